//! Administration: who may do it, with which key, and where the command line sends the key.

mod sites;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

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
        self.heads.recv_timeout(Duration::from_secs(60)).unwrap()
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
fn the_variables_key_goes_to_a_configured_address_only_on_this_machine() {
    let dir = TestDir::new("admin-configured");
    let list = |args: &[&str]| {
        let mut command = dir.command(&[&["node", "list"], args].concat());
        let output = command.env("EVENKEEL_ADMIN_KEY", "ek-chosen").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    for address in ["192.0.2.1:7070", "[2001:db8::1]:7070"] {
        for setting in ["listen", "admin_listen"] {
            dir.write("evenkeel.toml", &format!("[server]\n{setting} = '{address}'\n"));
            let refused = list(&[]);
            let expected = format!("EVENKEEL_ADMIN_KEY is not sent to {address}");
            assert!(refused.contains(&expected) && refused.contains("pass --url"), "{refused}");
        }
    }
    let here = Recorder::start();
    list(&["--url", &here.url]);
    assert!(here.next().contains("authorization: bearer ek-chosen"));
    let address = here.url.strip_prefix("http://").unwrap();
    dir.write("evenkeel.toml", &format!("[server]\nlisten = '{address}'\n"));
    list(&[]);
    assert!(here.next().contains("authorization: bearer ek-chosen"));
}

#[test]
fn a_key_file_that_others_may_have_read_or_planted_is_rejected() {
    let dir = TestDir::new("admin-planted");
    let server = ServerProcess::start(&dir, &[]);
    let key = dir.file(KEY_FILE);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = dir.run(&["node", "list"]).failed();
    assert!(refused.contains("has mode 644") && refused.contains("chmod 600"), "{refused}");
    server.signal("TERM");
    server.wait();
    let serve = || dir.run(&["serve", "--listen", "127.0.0.1:0"]).failed();
    let refused = serve();
    assert!(refused.contains("has mode 644") && refused.contains("chmod 600"), "{refused}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&key, dir.file("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.file("elsewhere"), &key).unwrap();
    let refused = serve();
    assert!(refused.contains("is a symbolic link or not a regular file; delete it"), "{refused}");
}

#[test]
fn a_tenant_added_after_a_crash_during_its_removal_has_another_account() {
    let dir = TestDir::new("admin-crash-remove");
    let account = || {
        let listed = dir.run(&["tenant", "list", "--json"]).ok();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        listed["tenants"][0]["account"].as_str().unwrap().to_owned()
    };
    dir.run(&["tenant", "add", "acme"]).ok();
    let first = account();
    let accounts = dir.read("evenkeel-data/accounts.json");
    dir.run(&["tenant", "remove", "acme"]).ok();
    // The crash came before the account numbers were written.
    dir.write("evenkeel-data/accounts.json", &accounts);
    dir.run(&["tenant", "add", "acme"]).ok();
    assert_ne!(account(), first);
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
            thread::sleep(Duration::from_millis(20));
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

#[test]
fn an_admin_listener_takes_administration_and_metrics_off_the_public_port() {
    let dir = TestDir::new("admin-listen");
    dir.write("evenkeel.toml", "[server]\nadmin_listen = '127.0.0.1:0'\n");
    let server = ServerProcess::start(&dir, &[]);
    dir.run(&["queue", "create", "q"]).ok();
    let key = dir.run(&["tenant", "add", "acme"]).ok();
    assert!(dir.run(&["tenant", "list"]).ok().contains("acme"));
    dir.run(&["node", "list"]).ok();
    let admin_key = server.admin_key().unwrap();
    for path in ["/api/nodes", "/api/tenants", "/api/config", "/metrics", "/api/openapi.json"] {
        assert_eq!(server.get_with_key(path, &admin_key).status, 404, "{path}");
    }
    // Tenants use queues on the public port, which accepts no admin key.
    assert_eq!(server.get_with_key("/api/queues/q", &key).status, 200);
    assert_eq!(server.get_with_key("/api/queues/q", &admin_key).status, 401);
    let announced = dir.read("evenkeel-data/lock");
    let admin = announced.lines().nth(1).unwrap().strip_prefix("http://").unwrap();
    let on_admin = |path: &str, key: &str| {
        let mut socket = TcpStream::connect(admin).unwrap();
        let key = bearer(key);
        write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}\r\n").unwrap();
        read(socket).status
    };
    for path in ["/api/nodes", "/metrics", "/livez", "/readyz"] {
        assert_eq!(on_admin(path, &admin_key), 200, "{path}");
    }
    assert_eq!(on_admin("/api/nodes", &key), 403);
    assert_eq!(on_admin("/v1/models", &key), 404);
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn files_of_the_data_directory_are_for_their_owner_only_whatever_the_umask() {
    for umask in ["000", "277"] {
        let dir = TestDir::new(&format!("admin-umask-{umask}"));
        let script = format!("umask {umask}; exec \"$0\" serve --listen 127.0.0.1:0");
        let mut shell = Command::new("sh");
        shell.current_dir(dir.file("")).args(["-c", &script, env!("CARGO_BIN_EXE_evenkeel")]);
        let server = ServerProcess::spawn(&mut shell);
        dir.run(&["queue", "create", "q"]).ok();
        dir.run(&["queue", "send", "q", "x"]).ok();
        dir.run(&["tenant", "add", "acme"]).ok();
        assert_eq!(server.post("/execute", &json!({"sql": "create table t (n int)"})).status, 401);
        let mut directories = vec![dir.file("evenkeel-data")];
        let mut files = 0;
        while let Some(directory) = directories.pop() {
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&directory), 0o700, "{}", directory.display());
            for entry in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    directories.push(entry);
                } else {
                    assert_eq!(mode(&entry), 0o600, "{}", entry.display());
                    files += 1;
                }
            }
        }
        assert!(files > 5, "{files} files");
    }
}

#[test]
fn a_volume_that_rejects_chmod_gets_a_warning_and_the_server_starts() {
    let dir = TestDir::new("admin-chmod");
    // A mounted volume of another system, such as CIFS or FAT, may reject every change of a mode.
    dir.write(
        "chmod.c",
        "#include <errno.h>\n#include <sys/stat.h>\n\
         int fchmod(int file, mode_t mode) { (void)file; (void)mode; errno = EPERM; return -1; }\n\
         int chmod(const char *path, mode_t mode) { (void)path; (void)mode; errno = EPERM; return -1; }\n",
    );
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", "chmod.so", "chmod.c"]).current_dir(dir.file(""));
    assert!(compiler.status().expect("a C compiler is required, for example Debian's gcc").success());
    let mut serve = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    serve.env("LD_PRELOAD", dir.file("chmod.so"));
    let server = ServerProcess::spawn_after(&mut serve, "could not restrict a file to its owner");
    assert_eq!(server.post("/api/tenants", &json!({"name": "acme"})).status, 201);
    assert_eq!(server.post("/api/queues/q/messages", &json!({"body": "x"})).status, 404);
    assert_eq!(read(server.send("PUT", "/api/queues/q", "", &json!({}))).status, 201);
    let log = dir.read("evenkeel-data/audit.log");
    assert!(log.contains("PUT /api/queues/q"), "{log}");
}

#[test]
fn a_new_tenant_has_no_name_that_means_something_else_and_an_existing_one_keeps_it() {
    let dir = TestDir::new("admin-names");
    for name in [".", "..", "other", "admin", "default", "123456789012", "open", "a b", "a/b", "\u{7f}"] {
        let refused = dir.run(&["tenant", "add", name]).failed();
        let is_reserved = refused.contains("no tenant may be named");
        assert!(is_reserved || refused.contains("a name must be 1 to 64 letters"), "{name:?}: {refused}");
    }
    dir.run(&["tenant", "add", "acme"]).ok();
    let stored = dir.read("evenkeel-data/tenants.toml");
    dir.write("evenkeel-data/tenants.toml", &stored.replace("acme", "other"));
    let server = ServerProcess::spawn_until(&dir, "this name is ambiguous");
    assert_eq!(server.get("/api/tenants").json()["tenants"][0]["name"], "other");
    dir.run(&["tenant", "set", "other", "--weight", "2"]).ok();
}
