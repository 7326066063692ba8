//! Web pages of other sites, proxies on the same machine, and paths of engines.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::{bearer, call, code};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, read};

#[test]
fn a_web_page_of_another_site_cannot_use_an_open_gateway() {
    let dir = TestDir::new("admin-csrf");
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "q"]).ok();
    let key = bearer(&server.admin_key().unwrap());
    let node = "{\"name\":\"evil\",\"url\":\"http://192.0.2.1\"}";
    let foreign = "origin: https://evil.example\r\ncontent-type: text/plain\r\n";
    let simple = [
        ("POST", "/api/nodes", node),
        ("POST", "/api/tenants", "{\"name\":\"evil\"}"),
        ("POST", "/api/queues/q/purge", ""),
        ("POST", "/api/queues/q/messages", "{\"body\":\"x\"}"),
        ("POST", "/v1/chat/completions", "{\"model\":\"m\"}"),
        ("POST", "/query", "{\"sql\":\"select 1\"}"),
        ("GET", "/v1/models", ""),
        ("GET", "/", ""),
    ];
    for (method, path, body) in simple {
        for headers in [
            foreign.to_owned(),
            format!("{key}{foreign}"),
            "origin: null\r\n".to_owned(),
            "origin: http://192.0.2.1\r\n".to_owned(),
            "sec-fetch-site: cross-site\r\n".to_owned(),
            "sec-fetch-site: same-site\r\n".to_owned(),
        ] {
            let reply = call(&server, method, path, &headers, body);
            assert_eq!(reply.status, 403, "{method} {path} {headers:?}: {reply:?}");
            assert!(reply.body.contains("cors_origins"), "{method} {path}: {reply:?}");
        }
        let rebound = rebind(&server, method, path, body);
        assert_eq!(rebound.status, 403, "{method} {path}: {rebound:?}");
        assert!(rebound.body.contains("hosts of [server]"), "{method} {path}: {rebound:?}");
    }
    let own_type = call(&server, "POST", "/api/nodes", &format!("{key}content-type: text/plain\r\n"), node);
    assert_eq!((own_type.status, code(&own_type).as_str()), (415, "unsupported_media_type"));
    let own = "origin: http://localhost\r\n";
    assert_eq!(call(&server, "GET", "/v1/models", own, "").status, 200);
    let twice = call(&server, "GET", "/v1/models", &format!("{own}origin: https://evil.example\r\n"), "");
    assert_eq!(twice.status, 400, "{twice:?}");
    assert!(twice.body.contains("header origin is repeated"), "{twice:?}");
    assert_eq!(server.get("/api/nodes").json()["nodes"], json!([]));
    assert_eq!(server.get("/api/tenants").json()["tenants"], json!([]));
    for probe in ["/livez", "/readyz"] {
        assert_eq!(call(&server, "GET", probe, foreign, "").status, 200);
        assert_eq!(rebind(&server, "GET", probe, "").status, 200);
    }
}

/// Sends a request under the name of an attacker's site, which resolves to this server.
fn rebind(server: &ServerProcess, method: &str, path: &str, body: &str) -> RawResponse {
    let mut socket = TcpStream::connect(server.address).unwrap();
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nhost: evil.example:{}\r\norigin: http://evil.example:{}\r\n\
         connection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
        server.address.port(),
        server.address.port(),
    )
    .unwrap();
    read(socket)
}

#[test]
fn with_tenants_only_the_native_api_checks_host_and_origin() {
    let dir = TestDir::new("admin-sites");
    dir.write(
        "evenkeel.toml",
        "[server]\nhosts = ['llm.example']\ncors_origins = ['https://console.example']\n",
    );
    let node = TestNode::start(fast());
    let server = ServerProcess::start(&dir, &["--node", &format!("http://{}", node.address())]);
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    let admin = bearer(&server.admin_key().unwrap());
    let page = "origin: https://evil.example\r\n";
    let chat = chat(json!({})).to_string();
    let served = call(&server, "POST", "/v1/chat/completions", &format!("{}{page}", bearer(&key)), &chat);
    assert_eq!(served.status, 200, "{served:?}");
    let queried =
        call(&server, "POST", "/query", &format!("{}{page}", bearer(&key)), "{\"sql\":\"select 1\"}");
    assert_eq!(queried.status, 200, "{queried:?}");
    assert_eq!(call(&server, "GET", "/api/nodes", &format!("{admin}{page}"), "").status, 403);
    let console = format!("{admin}origin: https://console.example\r\n");
    assert_eq!(call(&server, "GET", "/api/nodes", &console, "").status, 200);
    let by_host = |host: &str| {
        let mut socket = TcpStream::connect(server.address).unwrap();
        write!(socket, "GET /api/nodes HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{admin}\r\n")
            .unwrap();
        read(socket).status
    };
    for (host, status) in [
        ("llm.example", 200),
        ("LLM.example:443", 200),
        ("a.localhost", 200),
        ("[::1]:1", 200),
        ("evil.example", 403),
    ] {
        assert_eq!(by_host(host), status, "{host}");
    }
}

/// nginx in front of a server, on the same machine; killed on drop.
struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    fn start(dir: &TestDir, server: &ServerProcess) -> Self {
        // The port may be taken before nginx binds it, so other ports are tried.
        for _ in 0..20 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let upstream = server.address;
            dir.write(
                "nginx.conf",
                &format!(
                    "daemon off; pid nginx.pid; error_log stderr; events {{}}\n\
                     http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
                     fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
                     server {{ listen {address}; location / {{ proxy_pass http://{upstream};\n\
                     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }} }} }}\n"
                ),
            );
            let mut command = Command::new("nginx");
            command.arg("-p").arg(dir.file("")).args(["-c", "nginx.conf", "-e", "stderr"]);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect(address).is_ok() {
                    return Self { child, address };
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("nginx does not start");
    }

    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> RawResponse {
        let mut socket = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        write!(socket, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        read(socket)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, so that nginx ends its workers.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[test]
fn behind_nginx_on_the_same_host_nobody_is_admin_and_an_open_server_serves_nobody() {
    let dir = TestDir::new("admin-nginx");
    let server = ServerProcess::start(&dir, &[]);
    let nginx = Nginx::start(&dir, &server);
    let json_type = "content-type: application/json\r\n";
    let node = "{\"name\":\"evil\",\"url\":\"http://192.0.2.1\"}";
    assert_eq!(nginx.call("POST", "/api/nodes", json_type, node).status, 401);
    for (method, path) in
        [("GET", "/v1/models"), ("GET", "/api/queues"), ("POST", "/query"), ("POST", "/"), ("GET", "/")]
    {
        let refused = nginx.call(method, path, json_type, "{}");
        assert_eq!(refused.status, 403, "{method} {path}: {refused:?}");
        assert!(refused.body.contains("add a tenant, or set allow_open"), "{method} {path}: {refused:?}");
    }
    assert_eq!(nginx.call("GET", "/readyz", "", "").status, 200);
    let admin = bearer(&server.admin_key().unwrap());
    assert_eq!(nginx.call("GET", "/api/nodes", &admin, "").status, 200, "the key identifies the admin");
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    assert_eq!(nginx.call("GET", "/v1/models", &bearer(&key), "").status, 200);
    assert_eq!(nginx.call("GET", "/api/nodes", &bearer(&key), "").status, 403);
    assert_eq!(server.get("/api/nodes").json()["nodes"], json!([]));
}

#[test]
fn clients_reach_only_the_inference_paths_and_the_extra_paths_of_a_node() {
    let dir = TestDir::new("admin-paths");
    let node = TestNode::start(fast());
    let url = format!("http://{}", node.address());
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["node", "add", "a", &url, "--model", "sim", "--extra-path", "/v1/tokenize"]).ok();
    let body = json!({"model": "sim", "lora_name": "x", "lora_path": "/etc"});
    let status = |path: &str| server.post(path, &body).json()["error"]["code"].clone();
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/tokenize/", "/v1/files"] {
        assert_eq!(status(path), "unknown_url", "{path}");
    }
    // The simulated engine does not know these, but gets them.
    for path in ["/v1/tokenize", "/v1/score"] {
        assert_ne!(status(path), "unknown_url", "{path}");
    }
    assert_eq!(server.get("/api/nodes").json()["nodes"][0]["extra_paths"], json!(["/v1/tokenize"]));
    // A second node of the model that does not accept the path could be picked.
    dir.run(&["node", "add", "b", &url, "--model", "sim"]).ok();
    assert_eq!(status("/v1/tokenize"), "unknown_url");
    let invalid = dir.run(&["node", "add", "c", &url, "--extra-path", "/metrics"]).failed();
    assert!(invalid.contains("extra_paths must list at most 64 paths"), "{invalid}");
}

#[test]
fn a_request_over_http_1_1_needs_a_host() {
    let dir = TestDir::new("admin-host");
    let server = ServerProcess::start(&dir, &[]);
    let status = |head: &str| {
        let mut socket = TcpStream::connect(server.address).unwrap();
        write!(socket, "{head}\r\n\r\n").unwrap();
        read(socket).status
    };
    assert_eq!(status("GET /livez HTTP/1.1\r\nconnection: close"), 400);
    assert_eq!(status("GET /livez HTTP/1.1\r\nconnection: close\r\nhost: x"), 200);
    assert_eq!(status("GET /livez HTTP/1.0"), 200);
}
