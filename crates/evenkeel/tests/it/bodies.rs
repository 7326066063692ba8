//! The budget of request bodies, against a server process: memory is bounded and a quiet tenant is served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fleet::{CHAT, TIMEOUT, request, tenant};
use crate::server_process::ServerProcess;
use crate::sqs::sqs_key;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{TestNode, chat, fast, open, read};

const MIB: u64 = 1 << 20;
/// Bytes after which an upload stalls.
const STALLED_AFTER: u64 = 30 * MIB;
/// Memory of a server besides the budget: code, buffers, and bodies whose upload was evicted a moment ago.
const MARGIN: u64 = 160 * MIB;

#[test]
fn stalled_uploads_are_evicted_and_a_quiet_tenant_is_served() {
    let dir = TestDir::new("bodies-stalled");
    let node = TestNode::start(fast());
    let config = format!(
        "[telemetry]\nmetrics = 'public'\n[[llm.nodes]]\nname = 'one'\nurl = 'http://{}'\n{}{}",
        node.address(),
        tenant("flood", ""),
        tenant("quiet", "")
    );
    dir.write("evenkeel.toml", &config);
    let server = ServerProcess::start(&dir, &["--config", "evenkeel.toml"]);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ek-flood\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let mut uploads: Vec<TcpStream> = (0..24).map(|_| stall(server.address, &head)).collect();
    let peak = resident_bytes(&server);
    assert!(peak < 256 * MIB + MARGIN, "24 uploads of 30 MiB take {} MiB", peak / MIB);
    let evicted = wait_metric(&server, "evenkeel_body_evictions_total", |evicted| evicted >= 16.0);
    assert!(metric(&server, "evenkeel_body_bytes") <= 256.0 * MIB as f64);
    let long = "long ".repeat(2_000_000);
    for content in ["short", &long] {
        let body = chat(json!({"metadata": content}));
        let reply = read(open(server.address, &request("quiet", CHAT, &body)));
        assert_eq!(reply.status, 200, "{} {}", reply.head, reply.body);
    }
    let responses: Vec<String> = uploads.iter_mut().filter_map(response).collect();
    assert!(responses.len() as f64 >= evicted, "{} of {evicted}", responses.len());
    for response in &responses {
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        assert!(response.contains("retry-after: 1\r\n"), "{response}");
        assert!(response.contains("\"bodies_full\""), "{response}");
    }
    drop(uploads);
    wait_metric(&server, "evenkeel_body_bytes", |bytes| bytes == 0.0);
}

#[test]
fn an_address_without_a_valid_signature_holds_at_most_16_mib() {
    let dir = TestDir::new("bodies-unsigned");
    dir.write("evenkeel.toml", "[telemetry]\nmetrics = 'public'\n");
    dir.run(&["tenant", "add", "acme"]).ok();
    let (key, _) = sqs_key(&dir, "acme");
    let server = ServerProcess::start(&dir, &["--config", "evenkeel.toml"]);
    let date = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().unwrap();
    let date = String::from_utf8(date.stdout).unwrap().trim().to_owned();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-amz-date: {date}\r\nx-amz-target: AmazonSQS.SendMessage\r\n\
         authorization: AWS4-HMAC-SHA256 Credential={key}/{}/r/sqs/aws4_request, \
         SignedHeaders=host;x-amz-date;x-amz-target, Signature=00\r\ntransfer-encoding: chunked\r\n\r\n",
        &date[..8]
    );
    let too_large = stall(server.address, &head);
    let reply = read(too_large);
    assert_eq!(reply.status, 413, "30 MiB are more than SQS accepts: {reply:?}");
    let before = resident_bytes(&server);
    let uploads: Vec<TcpStream> = (0..30).map(|_| stall_after(server.address, &head, 7 * MIB)).collect();
    wait_metric(&server, "evenkeel_body_evictions_total", |evicted| evicted >= 28.0);
    assert!(metric(&server, "evenkeel_body_bytes") <= 16.0 * MIB as f64);
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 16 * MIB + MARGIN / 2, "30 uploads of 7 MiB take {} MiB", grown / MIB);
    drop(uploads);
}

#[test]
fn sqs_accepts_8_mib_on_the_wire_and_1_mib_decoded() {
    let dir = TestDir::new("bodies-wire");
    let server = ServerProcess::start(&dir, &[]);
    let call = |operation: &str, body: &str| {
        let head =
            format!("content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{operation}\r\n");
        read(server.send_text("POST", "/", &head, body))
    };
    assert_eq!(call("CreateQueue", r#"{"QueueName": "q"}"#).status, 200);
    let send = |body: &str, padding: usize| {
        let head = format!(r#"{{"QueueUrl": "q", "MessageBody": "{body}""#);
        call("SendMessage", &format!("{head}{}}}", " ".repeat(padding - head.len() - 1)))
    };
    // Each byte is escaped and takes six.
    let sent = send(&r"\u0061".repeat(1 << 20), 8 << 20);
    assert_eq!(sent.status, 200, "{sent:?}");
    let long = send(&"a".repeat((1 << 20) + 1), 8 << 20);
    assert!(long.status == 400 && long.body.contains("shorter than 1048576 bytes"), "{long:?}");
    let wire = send("a", (8 << 20) + 1);
    assert_eq!(wire.status, 413, "{wire:?}");
}

/// Sends the beginning of a chunked body, and leaves the connection open.
fn stall(address: SocketAddr, head: &str) -> TcpStream {
    stall_after(address, head, STALLED_AFTER)
}

fn stall_after(address: SocketAddr, head: &str, bytes: u64) -> TcpStream {
    let mut socket = open(address, head);
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut chunk = format!("{:x}\r\n", 64 * 1024).into_bytes();
    chunk.extend(std::iter::repeat_n(b' ', 64 * 1024));
    chunk.extend(b"\r\n");
    for _ in 0..bytes / (64 * 1024) {
        // An upload that is evicted while it is sent ends here.
        if socket.write_all(&chunk).is_err() {
            break;
        }
    }
    socket
}

/// Returns the response to an upload; `None` if there is none yet.
fn response(socket: &mut TcpStream) -> Option<String> {
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = socket.read(&mut part) {
        bytes.extend_from_slice(&part[..read]);
    }
    (!bytes.is_empty()).then(|| String::from_utf8(bytes).unwrap())
}

pub(crate) fn resident_bytes(server: &ServerProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

pub(crate) fn metric(server: &ServerProcess, name: &str) -> f64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {page}"))
}

#[track_caller]
pub(crate) fn wait_metric(server: &ServerProcess, name: &str, is_reached: impl Fn(f64) -> bool) -> f64 {
    let started = Instant::now();
    loop {
        let value = metric(server, name);
        if is_reached(value) {
            return value;
        }
        assert!(started.elapsed() < TIMEOUT, "{name} is {value}");
    }
}
