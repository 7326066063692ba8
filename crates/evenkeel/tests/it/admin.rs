//! Administration: who may do it, with which key, and where the command line sends the key.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::json;

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, TestNode, fast, read};

const KEY_FILE: &str = "evenkeel-data/admin.key";

/// Sends a request with only these headers.
fn call(server: &ServerProcess, method: &str, path: &str, headers: &str, body: &str) -> RawResponse {
    read(server.send_text(method, path, headers, body))
}

fn code(reply: &RawResponse) -> String {
    reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {}\r\n", key.trim())
}

#[test]
fn a_server_without_configured_admin_keys_creates_one_and_keeps_it() {
    let dir = TestDir::new("admin-create");
    let server = ServerProcess::spawn_until(&dir, "created an admin key");
    let key = server.admin_key().unwrap();
    assert!(key.starts_with("ek-") && key.len() == 67);
    let mode = fs::metadata(dir.file(KEY_FILE)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(server.get_with_key("/api/tenants", &key).status, 200);
    server.signal("TERM");
    server.wait();
    let restarted = ServerProcess::start(&dir, &[]);
    assert_eq!(restarted.admin_key().unwrap(), key);
    assert_eq!(restarted.get_with_key("/api/tenants", &key).status, 200);
    restarted.signal("KILL");
    restarted.wait();
    dir.write(KEY_FILE, "nonsense");
    let refused = dir.run(&["serve", "--listen", "127.0.0.1:0"]).failed();
    assert!(refused.contains("admin.key: not an admin key; restore the file, or delete it"), "{refused}");
}

#[test]
fn admin_routes_reject_missing_wrong_and_tenant_keys_with_and_without_tenants() {
    let dir = TestDir::new("admin-keys");
    let server = ServerProcess::start(&dir, &[]);
    let routes = [
        ("GET", "/metrics"),
        ("GET", "/api/config"),
        ("GET", "/api/tenants"),
        ("POST", "/api/tenants"),
        ("POST", "/api/tenants/acme/rotate"),
        ("GET", "/api/tenants/acme/sqs-key"),
        ("GET", "/api/nodes"),
        ("POST", "/api/nodes"),
        ("DELETE", "/api/nodes/a"),
        ("GET", "/api/load-status"),
        ("GET", "/api/requests/x"),
        ("GET", "/api/paths"),
        ("GET", "/api/sql"),
    ];
    let check = |tenant_key: &str| {
        for (method, path) in routes {
            assert_eq!(call(&server, method, path, "", "").status, 401, "{method} {path}");
            for key in ["ek-wrong", tenant_key] {
                assert_eq!(
                    call(&server, method, path, &bearer(key), "").status,
                    403,
                    "{method} {path} {key}"
                );
            }
        }
    };
    check("ek-other");
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    check(&key);
    assert_eq!(call(&server, "GET", "/api/openapi.json", "", "").status, 200);
}

#[test]
fn queues_of_an_open_server_need_the_admin_key_only_to_be_administered() {
    let dir = TestDir::new("admin-queues");
    let server = ServerProcess::start(&dir, &[]);
    let json_type = "content-type: application/json\r\n";
    let anyone = |method: &str, path: &str, body: &str| call(&server, method, path, json_type, body);
    assert_eq!(code(&anyone("PUT", "/api/queues/q", "{}")), "admin_only");
    dir.run(&["queue", "create", "q"]).ok();
    let sent = anyone("POST", "/api/queues/q/messages", "{\"body\":\"x\"}");
    assert_eq!(sent.status, 201, "{sent:?}");
    let received = anyone("POST", "/api/queues/q/receive", "{\"wait_ms\":20000}").json();
    let receipt = &received["messages"][0]["receipt"];
    assert_eq!(received["messages"][0]["sender"], "open");
    let acked = anyone("POST", "/api/queues/q/ack", &json!({"receipts": [receipt]}).to_string());
    assert_eq!(acked.status, 200, "{acked:?}");
    for (method, path) in [
        ("POST", "/api/queues/q/purge"),
        ("POST", "/api/queues/q/redrive"),
        ("PUT", "/api/queues/q/keys/a"),
        ("DELETE", "/api/queues/q"),
    ] {
        assert_eq!(code(&anyone(method, path, "{}")), "admin_only", "{method} {path}");
    }
    let typo = call(&server, "GET", "/api/queues", &bearer("ek-typo"), "");
    assert_eq!((typo.status, code(&typo).as_str()), (401, "invalid_api_key"));
}

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
    assert_eq!(server.get("/api/nodes").json()["nodes"], json!([]));
    assert_eq!(server.get("/api/tenants").json()["tenants"], json!([]));
    for probe in ["/livez", "/readyz"] {
        assert_eq!(call(&server, "GET", probe, foreign, "").status, 200);
        assert_eq!(rebind(&server, "GET", probe, "").status, 200);
    }
}

/// Sends a request under the name of an attacker's site, which resolves to this server.
fn rebind(server: &ServerProcess, method: &str, path: &str, body: &str) -> RawResponse {
    let mut socket = std::net::TcpStream::connect(server.address).unwrap();
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
    let chat = evenkeel_sim_node::testing::chat(json!({})).to_string();
    let served = call(&server, "POST", "/v1/chat/completions", &format!("{}{page}", bearer(&key)), &chat);
    assert_eq!(served.status, 200, "{served:?}");
    let queried =
        call(&server, "POST", "/query", &format!("{}{page}", bearer(&key)), "{\"sql\":\"select 1\"}");
    assert_eq!(queried.status, 200, "{queried:?}");
    assert_eq!(call(&server, "GET", "/api/nodes", &format!("{admin}{page}"), "").status, 403);
    let console = format!("{admin}origin: https://console.example\r\n");
    assert_eq!(call(&server, "GET", "/api/nodes", &console, "").status, 200);
    let by_host = |host: &str| {
        let mut socket = std::net::TcpStream::connect(server.address).unwrap();
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

/// A server that records the heads of requests and answers 500.
struct Recorder {
    url: String,
    heads: Receiver<String>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, heads) = channel();
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let lines = BufReader::new(&socket).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let reply = "HTTP/1.1 500 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                let _ = (&socket).write_all(reply.as_bytes());
                if sender.send(head.join("\n").to_ascii_lowercase()).is_err() {
                    return;
                }
            }
        });
        Self { url, heads }
    }

    fn next(&self) -> String {
        self.heads.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
    }
}

#[test]
fn the_command_line_sends_the_created_key_only_to_the_server_that_created_it() {
    let dir = TestDir::new("admin-cli");
    let server = ServerProcess::start(&dir, &[]);
    let other = Recorder::start();
    for command in [&["tenant", "list"][..], &["node", "list"], &["queue", "list"], &["queue", "purge", "q"]]
    {
        let output = dir.run(&[command, &["--url", &other.url]].concat());
        assert_eq!(output.code, Some(1));
        let head = other.next();
        assert!(!head.contains("authorization") && !head.contains("ek-"), "{command:?}: {head}");
    }
    let own = format!("http://{}", server.address);
    dir.run(&["tenant", "list", "--url", &own]).ok();
    // An alias of the same server is not what it announced.
    let alias = format!("http://localhost:{}", server.address.port());
    let refused = dir.run(&["tenant", "list", "--url", &alias]).failed();
    assert!(refused.contains("set EVENKEEL_ADMIN_KEY to the admin key"), "{refused}");
    let mut with_variable = dir.command(&["tenant", "list", "--url", &other.url]);
    with_variable.env("EVENKEEL_ADMIN_KEY", "ek-chosen").output().unwrap();
    assert!(other.next().contains("authorization: bearer ek-chosen"));
}

#[test]
fn the_key_does_not_go_to_a_process_that_took_the_port_of_a_dead_server() {
    let dir = TestDir::new("admin-stale");
    let server = ServerProcess::start(&dir, &[]);
    let address = server.address;
    server.signal("KILL");
    server.wait();
    assert!(
        dir.read("evenkeel-data/lock").contains("http://"),
        "the announcement of the dead server is gone"
    );
    let impostor = TcpListener::bind(address).unwrap();
    impostor.set_nonblocking(true).unwrap();
    dir.write("evenkeel.toml", &format!("[server]\nlisten = '{address}'\n"));
    let accept = thread::spawn(move || {
        for _ in 0..3_000 {
            if let Ok((socket, _)) = impostor.accept() {
                socket.set_nonblocking(false).unwrap();
                let lines = BufReader::new(&socket).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let _ =
                    (&socket).write_all(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                return head.join("\n");
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("no connection");
    });
    // Without a running server, the command uses the configured address.
    assert_eq!(dir.run(&["node", "list"]).code, Some(1));
    let head = accept.join().unwrap().to_ascii_lowercase();
    assert!(!head.contains("authorization"), "{head}");
}

#[test]
fn every_command_administers_a_running_server_without_a_key_in_the_environment() {
    let dir = TestDir::new("admin-commands");
    let node = TestNode::start(fast());
    let url = format!("http://{}", node.address());
    let server = ServerProcess::start(&dir, &[]);
    for command in [
        &["tenant", "add", "acme"][..],
        &["tenant", "list"],
        &["tenant", "set", "acme", "--weight", "2"],
        &["tenant", "rotate", "acme"],
        &["tenant", "sqs-key", "acme"],
        &["tenant", "remove", "acme"],
        &["node", "add", "a", &url],
        &["node", "list"],
        &["node", "drain", "a"],
        &["node", "resume", "a"],
        &["node", "remove", "a"],
        &["queue", "create", "dead"],
        &["queue", "create", "q"],
        &["queue", "list"],
        &["queue", "stats", "q"],
        &["queue", "send", "q", "x"],
        &["queue", "peek", "q"],
        &["queue", "weight", "q", "k", "2"],
        &["queue", "limit", "q", "k", "--rate", "5"],
        &["queue", "purge", "q"],
        &["queue", "redrive", "q", "--to", "dead"],
        &["queue", "delete", "q"],
        &["sql", "select 1"],
    ] {
        dir.run(command).ok();
    }
    let chat = evenkeel_sim_node::testing::chat(json!({}));
    dir.run(&["node", "add", "b", &url, "--model", "sim"]).ok();
    let sent = read(server.send("POST", "/v1/chat/completions", "x-request-id: one\r\n", &chat));
    assert_eq!(sent.status, 200, "{sent:?}");
    dir.run(&["explain", "one"]).ok();
}
