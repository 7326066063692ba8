//! Clients that read slowly give up their slot; clients that are answered before they have sent everything see the answer.

use std::io::Write;
use std::process::Command;

use bytes::Bytes;
use evenkeel_sim_node::SimOptions;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::external_client::{python, run};
use crate::fleet::{Backend, CHAT, Fleet, TIMEOUT, tenant, tenant_status};
use crate::server_process::ServerProcess;
use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{chat, fast, read};

type Sender = http2::SendRequest<Full<Bytes>>;

/// Tokens of a response that is longer than the client's window and shorter than the read-ahead.
const TOKENS: usize = 500;

#[test]
fn four_http2_streams_with_closed_windows_do_not_hold_the_slots_of_an_engine() {
    let engine = SimOptions { slots: 4, tokens_per_second: 10_000, ..fast() };
    let config = tenant("slow", "") + &tenant("quiet", "");
    let fleet = Fleet::start("slow-readers", &config, vec![("one", Backend::Sim(engine))]);
    let unread = fleet.runtime.block_on(async {
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(1024).initial_connection_window_size(1 << 20);
        let socket = TcpStream::connect(fleet.address).await.unwrap();
        let (client, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut unread = Vec::new();
        for _ in 0..4 {
            let body = chat(json!({"stream": true, "max_tokens": TOKENS})).to_string();
            let request = Request::post(format!("http://a{CHAT}")).header("authorization", "Bearer ek-slow");
            let request = request.body(Full::new(Bytes::from(body))).unwrap();
            let response = timeout(TIMEOUT, client.clone().send_request(request)).await;
            unread.push(response.expect("every stream gets a slot").unwrap());
        }
        unread
    });
    fleet.wait_status("released", |status| tenant_status(status, "slow")["in_flight"] == 0);
    let reply = fleet.post("quiet", CHAT, &chat(json!({})));
    assert_eq!(reply.status, 200, "{reply:?}");
    for response in unread {
        let body = fleet.runtime.block_on(async { timeout(TIMEOUT, response.into_body().collect()).await });
        let text = String::from_utf8(body.unwrap().unwrap().to_bytes().to_vec()).unwrap();
        assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
        assert_eq!(text.matches("\"content\":").count(), TOKENS + 1, "every token arrives");
    }
    fleet.wait_idle();
}

#[test]
fn a_stream_longer_than_the_read_ahead_is_reset_when_nobody_reads_it() {
    let engine = SimOptions { slots: 1, tokens_per_second: 1_000_000, ..fast() };
    let config = "[server]\nwrite_wait_secs = 0.5\n".to_owned() + &tenant("slow", "") + &tenant("quiet", "");
    let fleet = Fleet::start("slow-long", &config, vec![("one", Backend::Sim(engine))]);
    let _unread = fleet.runtime.block_on(async {
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(1024);
        let socket = TcpStream::connect(fleet.address).await.unwrap();
        let (mut client, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let body = chat(json!({"stream": true, "max_tokens": 20_000})).to_string();
        let request = Request::post(format!("http://a{CHAT}")).header("authorization", "Bearer ek-slow");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        (client.send_request(request).await.unwrap(), client)
    });
    fleet.wait_status("reset", |status| tenant_status(status, "slow")["in_flight"] == 0);
    assert_eq!(fleet.post("quiet", CHAT, &chat(json!({}))).status, 200);
    fleet.wait_idle();
}

/// Sends a request over HTTP/2 with windows that stay closed; returns the response and its connection.
async fn send_unread(
    server: &ServerProcess,
    path: &str,
    target: &str,
    body: &Value,
) -> (Response<Incoming>, Sender) {
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(0);
    let socket = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = client.handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/json")
        .header("accept", "application/x-ndjson")
        .header("x-amz-target", target)
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let response = timeout(TIMEOUT, client.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    (response, client)
}

#[test]
fn a_streamed_query_that_nobody_reads_gives_up_its_connection() {
    let dir = TestDir::new("slow-sql");
    dir.write("evenkeel.toml", "[server]\nwrite_wait_secs = 0.5\n");
    let server = ServerProcess::start(&dir, &[]);
    let sql =
        "with recursive c(n) as (select 1 union all select n + 1 from c) select n, hex(zeroblob(500)) from c";
    let endless = json!({"sql": sql});
    let running = || server.get("/healthz").json()["datasources"][0]["stats"]["runningSql"].clone();
    let runtime = Runtime::new().unwrap();
    let (response, client) = runtime.block_on(send_unread(&server, "/query", "", &endless));
    assert_eq!(running(), 1, "the statement has begun");
    let body = runtime.block_on(async { timeout(TIMEOUT, response.into_body().collect()).await.unwrap() });
    assert!(body.is_err(), "the stream is reset");
    drop(client);
    let unread = server.send("POST", "/query", "accept: application/x-ndjson\r\n", &endless);
    wait_until("the statements end", || running() == 0);
    drop(unread);
}

#[test]
fn a_message_that_a_slow_consumer_does_not_read_goes_to_the_next() {
    let dir = TestDir::new("slow-sqs");
    dir.write("evenkeel.toml", "[server]\nwrite_wait_secs = 0.5\n");
    let server = ServerProcess::start(&dir, &[]);
    assert_eq!(read(server.send("PUT", "/api/queues/jobs", "", &json!({}))).status, 201);
    // More than HTTP/2 takes into its own buffers, which count as sent.
    let body = "x".repeat(200_000);
    assert_eq!(server.post("/api/queues/jobs/messages", &json!({"body": body})).status, 201);
    let request = json!({"QueueUrl": "jobs", "VisibilityTimeout": 43_200});
    let runtime = Runtime::new().unwrap();
    let unread = runtime.block_on(send_unread(&server, "/", "AmazonSQS.ReceiveMessage", &request));
    let received = server.post("/api/queues/jobs/receive", &json!({"wait_ms": 20_000})).json();
    assert_eq!(received["messages"][0]["body"], body.as_str());
    drop(unread);
}

fn wait_until(expected: &str, is_reached: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !is_reached() {
        assert!(started.elapsed() < TIMEOUT, "not in time: {expected}");
    }
}

#[test]
fn curl_and_httpx_see_the_response_to_an_upload_with_a_wrong_key() {
    let config = tenant("acme", "");
    let fleet = Fleet::start("early-response", &config, vec![("one", Backend::Sim(fast()))]);
    let dir = TestDir::new("early-response-upload");
    let url = format!("http://{}{CHAT}", fleet.address);
    for mib in [8, 30] {
        let mut file = std::fs::File::create(dir.file("upload")).unwrap();
        for _ in 0..mib {
            file.write_all(&vec![b'x'; 1 << 20]).unwrap();
        }
        for (length, version) in [
            ("Expect:", "--http1.1"),
            ("Transfer-Encoding: chunked", "--http1.1"),
            ("Expect:", "--http2-prior-knowledge"),
        ] {
            let mut curl = Command::new("curl");
            curl.arg(version);
            curl.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "-H", "Expect:"]);
            curl.args(["-H", length, "-H", "Authorization: Bearer wrong", "-w", "%{http_code}"]);
            curl.args(["--data-binary", "@upload", &url]).current_dir(dir.file(""));
            let output = curl.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{mib} MiB, {length} {version}: {error}");
            assert!(
                text.contains("invalid_api_key") && text.ends_with("401"),
                "{mib} MiB, {length} {version}: {text}"
            );
        }
    }
    run(python("early_response_client.py").arg(&url));
}
