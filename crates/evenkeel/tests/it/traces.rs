//! Traces, as a collector gets them from the running binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::raw::read;
use crate::server_process::Served;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SAID: &str =
    r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
/// How long anything may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_request_is_traced_from_its_client_to_its_node() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, SAID);
    let folder = folder("traces-through", &collector, node.address);
    let served = Served::start(&folder, &[]);
    let headers = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\nx-request-id: mine\r\n");
    assert_eq!(read(served.send("POST", CHAT, &headers, &ask())).status, 200);
    let told = node.next("/v1/chat").header("traceparent").unwrap();
    let spans = collector.spans(2);
    let request = &spans["POST /v1/chat/completions"];
    let attempt = &spans["attempt"];
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&json!(TRACE), &json!("b7ad6b7169203331")));
    assert_eq!(attempt["parentSpanId"], request["spanId"], "{attempt}");
    assert_eq!(told, format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap()));
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
        ("evenkeel.ending", json!("served")),
    ] {
        assert_eq!(attribute(request, name), value, "{name} of {request:#}");
    }
    assert_eq!(attribute(attempt, "evenkeel.node"), "one");
    assert_eq!(attribute(attempt, "evenkeel.path"), format!("http://{}", node.address));
    let events: Vec<_> = request["events"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert_eq!(events, ["queued", "dispatched", "first_byte"]);
    let at = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
    assert!(at(request, "startTimeUnixNano") <= at(attempt, "startTimeUnixNano"));
    assert!(at(attempt, "endTimeUnixNano") <= at(request, "endTimeUnixNano"));
}

#[test]
fn a_request_that_fails_says_so_in_its_trace() {
    let collector = Recorder::start(200, "{}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let folder = folder("traces-failure", &collector, address);
    let served = Served::start(&folder, &[]);
    assert_eq!(served.post(CHAT, &ask()).status, 502);
    let spans = collector.spans(2);
    let request = &spans["POST /v1/chat/completions"];
    let attempt = &spans["attempt"];
    assert_eq!((&request["status"]["code"], &attempt["status"]["code"]), (&json!(2), &json!(2)));
    assert_eq!(attribute(request, "error.type"), "bad_upstream");
    assert_eq!(attribute(request, "evenkeel.ending"), "refused");
    assert_eq!(request["parentSpanId"], Value::Null, "nobody else began this trace");
}

#[test]
fn who_does_not_want_to_be_traced_is_not_and_its_word_reaches_the_node() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, SAID);
    let folder = folder("traces-unwanted", &collector, node.address);
    let served = Served::start(&folder, &[]);
    let unwanted = format!("00-{TRACE}-b7ad6b7169203331-00");
    let headers = format!("traceparent: {unwanted}\r\n");
    assert_eq!(read(served.send("POST", CHAT, &headers, &ask())).status, 200);
    assert_eq!(node.next("/v1/chat").header("traceparent"), Some(unwanted));
    assert_eq!(served.post(CHAT, &ask()).status, 200);
    let spans = collector.spans(2);
    assert_ne!(spans["attempt"]["traceId"], TRACE, "only the second was traced");
}

#[test]
fn the_last_spans_reach_the_collector_when_the_gateway_stops() {
    let collector = Recorder::start(200, "{}");
    let node = Recorder::start(200, SAID);
    let folder = folder("traces-stop", &collector, node.address);
    let served = Served::start(&folder, &[]);
    assert_eq!(served.post(CHAT, &ask()).status, 200);
    served.signal("TERM");
    assert_eq!(served.wait(), Some(0));
    let spans = collector.spans(2);
    assert_eq!(attribute(&spans["POST /v1/chat/completions"], "evenkeel.ending"), "served");
}

#[test]
fn what_no_collector_takes_is_counted_and_nobody_waits_for_it() {
    let collector = Recorder::start(400, "{}");
    let node = Recorder::start(200, SAID);
    let folder = folder("traces-refused", &collector, node.address);
    let served = Served::start(&folder, &[]);
    assert_eq!(served.post(CHAT, &ask()).status, 200);
    served.wait_log("spans dropped");
    let page = served.get("/metrics").body;
    assert!(page.lines().any(|line| line == "evenkeel_telemetry_spans_dropped_total 2"), "{page}");
    assert_eq!(served.post(CHAT, &ask()).status, 200);
}

fn ask() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
}

fn folder(name: &str, collector: &Recorder, node: SocketAddr) -> Folder {
    let folder = Folder::new(name);
    let telemetry = format!("[telemetry]\notlp_endpoint = 'http://{}'\n", collector.address);
    let node = format!("[[llm.nodes]]\nname = 'one'\nurl = 'http://{node}'\nmodels = ['m']\n");
    folder.write("evenkeel.toml", &(telemetry + &node));
    folder
}

fn attribute(span: &Value, name: &str) -> Value {
    let told = span["attributes"].as_array().unwrap().iter().find(|told| told["key"] == name);
    let value = told.map_or(&Value::Null, |told| &told["value"]);
    value.as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default()
}

/// A server that answers everything alike and remembers what it was asked.
struct Recorder {
    address: SocketAddr,
    heard: Receiver<Heard>,
}

struct Heard {
    path: String,
    head: Vec<String>,
    body: String,
}

impl Heard {
    fn header(&self, name: &str) -> Option<String> {
        self.head.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

impl Recorder {
    fn start(status: u16, said: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (hear, heard) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let hear = hear.clone();
                std::thread::spawn(move || serve(socket, status, said, &hear));
            }
        });
        Self { address, heard }
    }

    /// The next request for a path that begins so.
    #[track_caller]
    fn next(&self, path: &str) -> Heard {
        loop {
            let heard = self.heard.recv_timeout(PATIENCE).unwrap();
            if heard.path.starts_with(path) {
                return heard;
            }
        }
    }

    /// The next spans, by name.
    #[track_caller]
    fn spans(&self, count: usize) -> Value {
        let mut found = json!({});
        let mut seen = 0;
        while seen < count {
            let heard = self.next("/v1/traces");
            assert_eq!(heard.header("content-type").as_deref(), Some("application/json"));
            let told: Value = serde_json::from_str(&heard.body).unwrap();
            let resource = &told["resourceSpans"][0];
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

/// Answers the requests of one connection.
fn serve(socket: TcpStream, status: u16, said: &str, hear: &Sender<Heard>) -> Option<()> {
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
        let mut heard = Heard { path, head, body: String::new() };
        let length = heard.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        heard.body = String::from_utf8(body).ok()?;
        hear.send(heard).ok()?;
        let answer = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{said}",
            said.len()
        );
        writer.write_all(answer.as_bytes()).ok()?;
    }
}
