//! Web pages of configured origins that call the LLM API: raw requests as a browser sends them, and a real Chromium.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use evenkeel_sim_node::testing::{RawResponse, TestNode, chat, fast, read};
use serde_json::{Value, json};

use crate::fleet::tenant;
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://app.example";
/// Fails a test whose page reports nothing.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_preflight_request_of_a_configured_origin_needs_no_key() {
    let (_node, _dir, server) = start("cors-preflight", PAGE);
    let asks = "access-control-request-method: POST\r\n\
                access-control-request-headers: authorization,content-type,x-stainless-lang\r\n";
    let preflight = |path: &str, origin: &str, more: &str| {
        read(server.send_text("OPTIONS", path, &format!("origin: {origin}\r\n{more}"), ""))
    };
    for path in [CHAT, "/v1/messages", "/v1/models", "/v1/models/a/b", "/v1/moderations"] {
        let reply = preflight(path, "https://App.Example", asks);
        assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{path}: {reply:?}");
        // The heads of responses are read in lower case.
        assert_eq!(header(&reply, "access-control-allow-origin"), [PAGE], "{path}");
        let methods = if path.starts_with("/v1/models") { "get" } else { "post" };
        assert_eq!(header(&reply, "access-control-allow-methods"), [methods], "{path}");
        let allowed = "authorization,content-type,x-stainless-lang";
        assert_eq!(header(&reply, "access-control-allow-headers"), [allowed], "{path}");
        assert_eq!(header(&reply, "access-control-max-age"), ["600"], "{path}");
        assert!(header(&reply, "vary").contains(&"origin"), "{path}: {reply:?}");
        assert!(header(&reply, "access-control-allow-credentials").is_empty(), "{path}: {reply:?}");
    }
    for (path, origin, more) in [
        (CHAT, "https://evil.example", asks),
        (CHAT, "https://app.example.evil.example", asks),
        (CHAT, "http://app.example", asks),
        (CHAT, "null", asks),
        (CHAT, "https://app.example\r\norigin: https://app.example", asks),
        ("/api/nodes", PAGE, asks),
        ("/api/queues", PAGE, asks),
        ("/metrics", PAGE, asks),
        ("/livez", PAGE, asks),
        ("/query", PAGE, asks),
        ("/", PAGE, asks),
    ] {
        let reply = preflight(path, origin, more);
        assert!((400..500).contains(&reply.status), "{path} {origin}: {reply:?}");
        assert!(!reply.head.contains("access-control"), "{path} {origin}: {reply:?}");
    }
    // Not a preflight request.
    assert_eq!(preflight(CHAT, PAGE, "").status, 405);
}

#[test]
fn a_page_may_read_the_responses_of_the_llm_api_only_from_a_configured_origin() {
    let (_node, _dir, server) = start("cors-responses", PAGE);
    let call = |method: &str, path: &str, origin: &str, key: &str, body: &str| {
        let origin = if origin.is_empty() { String::new() } else { format!("origin: {origin}\r\n") };
        let headers = format!("{origin}authorization: Bearer {key}\r\ncontent-type: application/json\r\n");
        read(server.send_text(method, path, &headers, body))
    };
    let body = chat(json!({})).to_string();
    let stream = chat(json!({"stream": true})).to_string();
    for (status, method, path, key, body) in [
        (200, "POST", CHAT, "ek-acme", body.as_str()),
        (200, "POST", CHAT, "ek-acme", stream.as_str()),
        (200, "GET", "/v1/models", "ek-acme", ""),
        (400, "POST", CHAT, "ek-acme", "{"),
        (401, "POST", CHAT, "ek-unknown", body.as_str()),
        (404, "GET", "/v1/models/gone", "ek-acme", ""),
        (405, "DELETE", CHAT, "ek-acme", ""),
    ] {
        let reply = call(method, path, PAGE, key, body);
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(header(&reply, "access-control-allow-origin"), [PAGE], "{reply:?}");
        let exposed = header(&reply, "access-control-expose-headers").concat();
        for name in ["x-request-id", "x-queue-wait-ms", "x-queue-size", "retry-after", "x-evenkeel-model"] {
            assert!(exposed.split(", ").any(|listed| listed == name), "{name}: {exposed}");
        }
        assert_eq!(header(&reply, "vary"), ["origin"], "{reply:?}");
        assert!(header(&reply, "access-control-allow-credentials").is_empty(), "{reply:?}");
        for origin in ["https://evil.example", ""] {
            let other = call(method, path, origin, key, body);
            assert_eq!(other.status, status, "{other:?}");
            assert!(!other.head.contains("access-control"), "{origin:?}: {other:?}");
            assert_eq!(header(&other, "vary"), ["origin"], "{origin:?}: {other:?}");
        }
    }
    let admin = server.admin_key().unwrap();
    for (path, key) in [("/api/nodes", admin.as_str()), ("/metrics", &admin), ("/readyz", "")] {
        let reply = call("GET", path, PAGE, key, "");
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(!reply.head.contains("access-control") && header(&reply, "vary").is_empty(), "{reply:?}");
    }
    let queried = call("POST", "/query", PAGE, "ek-acme", "{\"sql\": \"select 1\"}");
    assert!(queried.status == 200 && !queried.head.contains("access-control"), "{queried:?}");
}

#[test]
fn without_configured_origins_there_are_no_cors_headers() {
    let (_node, _dir, server) = start("cors-off", "");
    let headers =
        format!("origin: {PAGE}\r\nauthorization: Bearer ek-acme\r\ncontent-type: application/json\r\n");
    let reply = read(server.send_text("POST", CHAT, &headers, &chat(json!({})).to_string()));
    assert!(reply.status == 200 && !reply.head.contains("access-control"), "{reply:?}");
    assert!(header(&reply, "vary").is_empty(), "{reply:?}");
    let asks = format!("origin: {PAGE}\r\naccess-control-request-method: POST\r\n");
    assert_eq!(read(server.send_text("OPTIONS", CHAT, &asks, "")).status, 405);
}

#[test]
fn a_page_in_chromium_streams_from_a_configured_origin_and_is_blocked_from_another() {
    let site = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = site.local_addr().unwrap();
    let (_node, dir, server) = start("cors-chromium", &format!("http://{address}"));
    let reports = serve_page(site, server.address);
    let browse = |host: &str| {
        let _browser = Browser::open(&dir, &format!("http://{host}:{}/", address.port()));
        reports.recv_timeout(TIMEOUT).unwrap()
    };
    let report = browse("127.0.0.1");
    assert_eq!(
        (&report["origin"], &report["status"], &report["id"]),
        (&json!(format!("http://{address}")), &json!(200), &json!("page:1")),
        "{report}"
    );
    let text = report["text"].as_str().unwrap();
    assert!(text.contains("chat.completion.chunk") && text.ends_with("data: [DONE]\n\n"), "{report}");
    assert_eq!((&report["wait"], &report["model"]), (&json!("0"), &json!("sim")), "{report}");
    assert_eq!((&report["denied"], &report["admin"]), (&json!(401), &json!("blocked")), "{report}");
    // The same page under another name is of another origin.
    let report = browse("localhost");
    assert_eq!((&report["failed"], &report["status"]), (&json!("blocked"), &Value::Null), "{report}");
}

/// Page that calls the gateway and reports to its own server what it could read.
const SCRIPT: &str = r#"<!doctype html><script type="module">
const report = { origin: location.origin };
const call = (path, key, body) => fetch(`http://GATEWAY${path}`, {
  method: body ? "POST" : "GET",
  headers: { authorization: `Bearer ${key}`, "content-type": "application/json", "x-request-id": "page:1" },
  body: body && JSON.stringify(body),
});
const chat = { model: "gpt", max_tokens: 8, stream: true, messages: [{ role: "user", content: "hello" }] };
try {
  const response = await call("/v1/chat/completions", "ek-acme", chat);
  report.status = response.status;
  report.id = response.headers.get("x-request-id");
  report.wait = response.headers.get("x-queue-wait-ms");
  report.model = response.headers.get("x-evenkeel-model");
  report.text = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) report.text += part.value;
  report.denied = (await call("/v1/chat/completions", "ek-unknown", chat)).status;
  report.admin = await call("/api/nodes", "ADMIN").then(() => "readable", () => "blocked");
} catch (error) {
  report.failed = error instanceof TypeError ? "blocked" : String(error);
}
await fetch("/report", { method: "POST", body: JSON.stringify(report) });
</script>"#;

/// Serves the page, and receives its reports.
fn serve_page(site: TcpListener, gateway: SocketAddr) -> Receiver<Value> {
    let (sender, reports) = channel();
    thread::spawn(move || {
        for socket in site.incoming() {
            let mut socket = socket.unwrap();
            let request = read_request(&mut socket);
            let page = SCRIPT.replace("GATEWAY", &gateway.to_string());
            let body = if request.starts_with("GET / ") { page.as_str() } else { "" };
            let length = body.len();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n";
            // The browser may have been closed after its report.
            let _ = write!(socket, "{head}content-length: {length}\r\n\r\n{body}");
            if let Some((_, report)) = request.split_once("\r\n\r\n").filter(|_| request.starts_with("POST "))
            {
                let _ = sender.send(serde_json::from_str(report).unwrap());
            }
        }
    });
    reports
}

/// Reads a request with its body.
fn read_request(socket: &mut TcpStream) -> String {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if length.unwrap_or(0) <= body.len() {
                return text.into_owned();
            }
        }
        match socket.read(&mut chunk) {
            // Browsers open connections that they do not use.
            Ok(0) | Err(_) => return String::new(),
            Ok(count) => request.extend_from_slice(&chunk[..count]),
        }
    }
}

/// A headless Chromium; killed on drop.
struct Browser(Child);

impl Browser {
    fn open(dir: &TestDir, url: &str) -> Self {
        let profile = dir.file("chromium");
        let child = Command::new("chromium-headless-shell")
            // Tests run as root in containers, where Chromium has neither its sandbox nor much shared memory.
            .args(["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server"])
            .args(["--remote-debugging-port=0", &format!("--user-data-dir={}", profile.display()), url])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium-headless-shell is not installed; `cargo xtask test` installs it");
        Self(child)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a gateway with the tenant `acme`, whose API pages of one origin may use; an empty one stands for none.
fn start(name: &str, origin: &str) -> (TestNode, TestDir, ServerProcess) {
    let node = TestNode::start(fast());
    let dir = TestDir::new(name);
    let origins = if origin.is_empty() { String::new() } else { format!("'{origin}'") };
    let config = format!(
        "[server]\ncors_origins = [{origins}]\n\
         [[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\nmodels = ['sim']\n\
         [[llm.models]]\nname = 'gpt'\nalias_of = 'sim'\n{}",
        node.address(),
        tenant("acme", "")
    );
    dir.write("evenkeel.toml", &config);
    let server = ServerProcess::start(&dir, &[]);
    (node, dir, server)
}

/// Returns the values of a header.
fn header<'a>(reply: &'a RawResponse, name: &str) -> Vec<&'a str> {
    let prefix = format!("{name}: ");
    reply.head.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
}
