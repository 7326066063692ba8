//! Traces that the binary exports to a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::read;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const RESPONSE: &str =
    r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
/// Turns a test that would hang into one that fails.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_trace_continues_from_the_client_to_the_node() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, RESPONSE);
    let dir = test_dir("traces-through", &collector, node.address);
    let server = ServerProcess::start(&dir, &[]);
    let headers = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\nx-request-id: mine\r\n");
    assert_eq!(read(server.send("POST", CHAT, &headers, &body())).status, 200);
    let traceparent = node.next("/v1/chat").header("traceparent").unwrap();
    let spans = collector.spans(2);
    let request = &spans["POST /v1/chat/completions"];
    let attempt = &spans["attempt"];
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&json!(TRACE), &json!("b7ad6b7169203331")));
    assert_eq!(attempt["parentSpanId"], request["spanId"], "{attempt}");
    assert_eq!(traceparent, format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap()));
    assert_eq!((&request["kind"], &attempt["kind"]), (&json!(2), &json!(3)));
    for (name, value) in [
        ("http.route", json!(CHAT)),
        ("http.response.status_code", json!("200")),
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("m")),
        ("gen_ai.usage.input_tokens", json!("3")),
        ("gen_ai.usage.output_tokens", json!("4")),
        ("evenkeel.request_id", json!("mine")),
        ("evenkeel.tenant", json!("open")),
        ("evenkeel.queue_wait_ms", json!("0")),
        ("evenkeel.attempts", json!("1")),
        ("evenkeel.stream", json!(false)),
        ("evenkeel.outcome", json!("served")),
    ] {
        assert_eq!(attribute(request, name), value, "{name} of {request:#}");
    }
    assert_eq!(attribute(attempt, "evenkeel.node"), "one");
    assert_eq!(attribute(attempt, "evenkeel.path"), format!("http://{}", node.address));
    let events: Vec<_> = request["events"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert_eq!(events, ["queued", "dispatched", "first_byte"]);
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    assert!(time(request, "startTimeUnixNano") <= time(attempt, "startTimeUnixNano"));
    assert!(time(attempt, "endTimeUnixNano") <= time(request, "endTimeUnixNano"));
}

#[test]
fn the_trace_of_a_failed_request_has_the_error() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(500, "{}");
    let dir = test_dir("traces-failure", &collector, node.address);
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.post(CHAT, &body()).status, 502);
    let spans = collector.spans(2);
    let request = &spans["POST /v1/chat/completions"];
    let attempt = &spans["attempt"];
    assert_eq!((&request["status"]["code"], &attempt["status"]["code"]), (&json!(2), &json!(2)));
    assert_eq!(attribute(request, "error.type"), "bad_upstream");
    assert_eq!(attribute(request, "evenkeel.outcome"), "refused");
    assert_eq!(request["parentSpanId"], Value::Null, "the gateway starts the trace");
}

#[test]
fn an_unsampled_request_is_not_traced_and_its_traceparent_reaches_the_node() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, RESPONSE);
    let dir = test_dir("traces-unsampled", &collector, node.address);
    let server = ServerProcess::start(&dir, &[]);
    let unsampled = format!("00-{TRACE}-b7ad6b7169203331-00");
    let headers = format!("traceparent: {unsampled}\r\n");
    assert_eq!(read(server.send("POST", CHAT, &headers, &body())).status, 200);
    assert_eq!(node.next("/v1/chat").header("traceparent"), Some(unsampled));
    assert_eq!(server.post(CHAT, &body()).status, 200);
    let spans = collector.spans(2);
    assert_ne!(spans["attempt"]["traceId"], TRACE, "only the second request is traced");
}

#[test]
fn a_stopping_gateway_exports_its_last_spans() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, RESPONSE);
    let dir = test_dir("traces-stop", &collector, node.address);
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.post(CHAT, &body()).status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let spans = collector.spans(2);
    assert_eq!(attribute(&spans["POST /v1/chat/completions"], "evenkeel.outcome"), "served");
}

#[test]
fn spans_that_the_collector_rejects_are_counted_and_delay_no_request() {
    let collector = Recorder::start(400, "{}");
    let node = Recorder::start(200, RESPONSE);
    let dir = test_dir("traces-rejected", &collector, node.address);
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(server.post(CHAT, &body()).status, 200);
    server.wait_log("the collector accepts no spans");
    let page = server.get("/metrics").body;
    assert!(page.lines().any(|line| line == "evenkeel_telemetry_spans_dropped_total 2"), "{page}");
    assert_eq!(server.post(CHAT, &body()).status, 200);
}

fn body() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
}

fn test_dir(name: &str, collector: &Recorder, node: SocketAddr) -> TestDir {
    let dir = TestDir::new(name);
    let telemetry = format!("[telemetry]\notlp_endpoint = 'http://{}'\n", collector.address);
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{node}'\nmodels = ['m']\n");
    dir.write("evenkeel.toml", &(telemetry + &node));
    dir
}

fn attribute(span: &Value, name: &str) -> Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|entry| entry["key"] == name);
    let value = found.map_or(&Value::Null, |entry| &entry["value"]);
    value.as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default()
}

/// A server with a fixed response that records requests.
struct Recorder {
    address: SocketAddr,
    requests: Receiver<Recorded>,
}

struct Recorded {
    path: String,
    head: Vec<String>,
    body: String,
}

impl Recorded {
    fn header(&self, name: &str) -> Option<String> {
        self.head.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

impl Recorder {
    fn start(status: u16, response: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || serve(socket, status, response, &sender));
            }
        });
        Self { address, requests }
    }

    /// Returns the next request whose path begins with `path`.
    #[track_caller]
    fn next(&self, path: &str) -> Recorded {
        loop {
            let request = self.requests.recv_timeout(TIMEOUT).unwrap();
            if request.path.starts_with(path) {
                return request;
            }
        }
    }

    /// Waits for `count` spans and returns them by name.
    #[track_caller]
    fn spans(&self, count: usize) -> Value {
        let mut found = json!({});
        let mut seen = 0;
        while seen < count {
            let request = self.next("/v1/traces");
            assert_eq!(request.header("content-type").as_deref(), Some("application/json"));
            let batch: Value = serde_json::from_str(&request.body).unwrap();
            let resource = &batch["resourceSpans"][0];
            assert_eq!(attribute(&resource["resource"], "service.name"), "evenkeel");
            for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
                found[span["name"].as_str().unwrap()] = span.clone();
                seen += 1;
            }
        }
        assert_eq!(seen, count, "{found:#}");
        found
    }
}

/// Serves one connection.
fn serve(socket: TcpStream, status: u16, body: &str, sender: &Sender<Recorded>) -> Option<()> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut writer = socket;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let path = head.first()?.split(' ').nth(1)?.to_owned();
        let mut request = Recorded { path, head, body: String::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).ok()?;
        request.body = String::from_utf8(bytes).ok()?;
        sender.send(request).ok()?;
        let response = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        writer.write_all(response.as_bytes()).ok()?;
    }
}
