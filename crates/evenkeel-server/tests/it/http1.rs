//! HTTP/1.1: errors, limits, timeouts, request smuggling, pipelining.

use std::time::Duration;

use evenkeel_server::body;
use evenkeel_server::listener::ListenerLimits;
use evenkeel_server::tenant::{TenantSettings, TenantState};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Setup, TestServer, read_until, tenant};

fn error(response: &str) -> Value {
    let (_, body) = response.split_once("\r\n\r\n").expect("a response has a head");
    serde_json::from_str::<Value>(body).expect("an error is JSON")["error"].clone()
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn the_probes_report_liveness_and_readiness() {
    let server = TestServer::start().await;
    assert_eq!(status(&server.request("GET /livez", "").await), "200");
    assert_eq!(status(&server.request("GET /readyz", "").await), "503");
    server.readiness.ready();
    assert_eq!(status(&server.request("GET /readyz", "").await), "200");
    server.readiness.unready();
    assert_eq!(status(&server.request("GET /readyz", "").await), "503");
}

#[tokio::test]
async fn routing_errors_are_in_the_json_format() {
    let server = TestServer::start().await;
    let unknown = server.request("GET /Echo", "").await;
    assert_eq!((status(&unknown), &error(&unknown)["code"]), ("404", &Value::from("unknown_url")));
    assert!(unknown.contains("content-type: application/json"));
    let wrong = server.request("GET /echo", "").await;
    assert_eq!(status(&wrong), "405");
    assert!(wrong.contains("allow: POST\r\n"), "{wrong}");
    assert!(server.request("GET /v1/anything?x=1", "").await.ends_with("fallback"));
}

#[tokio::test]
async fn a_panicking_handler_fails_its_own_request_only() {
    let server = TestServer::start().await;
    let response = server.request("GET /panic", "").await;
    assert_eq!(status(&response), "500");
    assert!(!response.contains("bug"), "an internal message reached the client");
    assert_eq!(status(&server.request("GET /livez", "").await), "200");
}

#[tokio::test]
async fn a_valid_request_id_is_used_and_an_invalid_one_replaced() {
    let server = TestServer::start().await;
    assert!(
        server.request("GET /livez", "x-request-id: mine-1\r\n").await.contains("x-request-id: mine-1\r\n")
    );
    assert!(server.request("GET /none", "x-request-id: <b>\r\n").await.contains("x-request-id: req-"));
}

#[tokio::test]
async fn an_api_key_authenticates_its_tenant() {
    let off = TenantSettings { state: TenantState::Disabled, ..tenant("off", "ek-off") };
    let tenants = vec![tenant("acme", "ek-acme"), off];
    let server = TestServer::with(Setup { tenants, ..Setup::default() }).await;
    for header in ["authorization: Bearer ek-acme", "x-api-key: ek-acme", "api-key: ek-acme"] {
        assert!(server.request("GET /whoami", &format!("{header}\r\n")).await.ends_with("acme"), "{header}");
    }
    let rejected = server.request("GET /whoami", "x-api-key: ek-other\r\n").await;
    assert_eq!((status(&rejected), &error(&rejected)["code"]), ("401", &Value::from("invalid_api_key")));
    assert!(!rejected.contains("ek-other"), "a key was repeated");
    assert_eq!(status(&server.request("GET /whoami", "x-api-key: ek-off\r\n").await), "403");
    assert_eq!(status(&server.request("GET /admin", "x-api-key: ek-acme\r\n").await), "403");
    assert_eq!(status(&server.request("GET /admin", "x-api-key: ek-root\r\n").await), "200");
}

#[tokio::test]
async fn requests_over_the_rate_limit_are_rejected_with_retry_after() {
    let limited = TenantSettings { rpm: Some(1), ..tenant("acme", "ek-acme") };
    let server = TestServer::with(Setup { tenants: vec![limited], ..Setup::default() }).await;
    assert_eq!(status(&server.request("GET /whoami", "x-api-key: ek-acme\r\n").await), "200");
    let rejected = server.request("GET /whoami", "x-api-key: ek-acme\r\n").await;
    assert_eq!((status(&rejected), &error(&rejected)["type"]), ("429", &Value::from("requests")));
    assert!(rejected.contains("retry-after: "), "{rejected}");
}

#[tokio::test]
async fn a_body_up_to_the_limit_is_read_and_one_byte_more_gets_413() {
    let limits = ListenerLimits { body_bytes_max: 10, ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let fits = server.request("POST /echo", "content-length: 10\r\n\r\n0123456789").await;
    assert!(fits.ends_with("0123456789"), "{fits}");
    let declared = server.request("POST /echo", "content-length: 11\r\n").await;
    assert_eq!((status(&declared), &error(&declared)["code"]), ("413", &Value::from("body_too_large")));
    let chunked =
        server.request("POST /echo", "transfer-encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n").await;
    assert_eq!((status(&chunked), &error(&chunked)["code"]), ("413", &Value::from("body_too_large")));
}

#[tokio::test]
async fn a_smuggled_request_is_rejected_and_never_parsed() {
    let server = TestServer::start().await;
    let smuggled = "GET /whoami HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for lengths in [
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
    ] {
        let response = server
            .send_raw(format!(
                "POST /echo HTTP/1.1\r\nhost: localhost\r\n{lengths}\r\n0\r\n\r\n{smuggled}{smuggled}"
            ))
            .await;
        assert_eq!(status(&response), "400", "{lengths}");
        assert_eq!(error(&response)["code"], "ambiguous_framing", "{lengths}");
        assert_eq!(response.matches("HTTP/1.1").count(), 1, "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
}

#[tokio::test]
async fn hyper_alone_accepts_two_lengths_and_hides_one() {
    let (mut client, server) = tokio::io::duplex(1024);
    let service = hyper::service::service_fn(async |request: http::Request<hyper::body::Incoming>| {
        let seen = request.headers().contains_key("content-length");
        Ok::<_, std::convert::Infallible>(http::Response::new(body::full(format!("length seen: {seen}"))))
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    let (served, read) = tokio::join!(serving, client.read_to_string(&mut response));
    assert!(served.is_ok() && read.is_ok());
    assert_eq!(status(&response), "200");
    assert!(response.ends_with("length seen: false"), "hyper shows the conflict: `framing` is not needed");
}

#[tokio::test]
async fn a_smuggled_request_behind_valid_ones_is_rejected() {
    let server = TestServer::start().await;
    let good = "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc";
    let bad = "POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n";
    let responses = server.send_raw(format!("{good}{good}{bad}{good}")).await;
    assert_eq!(responses.matches("HTTP/1.1 200").count(), 2, "{responses}");
    assert_eq!(responses.matches("HTTP/1.1 400").count(), 1, "{responses}");
}

#[tokio::test]
async fn a_malformed_head_gets_400() {
    let server = TestServer::start().await;
    for headers in [
        "x: 1\r\n folded\r\n",
        "content-length : 3\r\n",
        "content-length: 3\r\ncontent-length: 4\r\n",
        "content-length: +3\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "no colon\r\n",
        "host: b\r\n",
        "x-api-key: a\r\nx-api-key: b\r\n",
    ] {
        let head = format!("GET /whoami HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let response = server.send_raw(head).await;
        assert_eq!(status(&response), "400", "{headers:?}: {response}");
    }
}

#[tokio::test]
async fn a_head_over_the_limits_gets_431() {
    let limits = ListenerLimits { head_bytes_max: 8192, headers_max: 10, ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    assert_eq!(status(&server.request("GET /livez", &"x: 1\r\n".repeat(8)).await), "200");
    assert_eq!(status(&server.request("GET /livez", &"x: 1\r\n".repeat(9)).await), "431");
    assert_eq!(status(&server.request("GET /livez", &format!("x: {}\r\n", "y".repeat(8192))).await), "431");
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_head_is_disconnected() {
    let limits = ListenerLimits { head_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    for start in ["", "PRI * HT", "GET /livez HTTP/1.1\r\nhost:"] {
        assert!(!server.send_raw(start).await.contains("200"), "{start:?}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_gets_408() {
    let limits = ListenerLimits { body_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let server = TestServer::with(Setup { limits, ..Setup::default() }).await;
    let response = server.request("POST /echo", "content-length: 5\r\n\r\nab").await;
    assert_eq!((status(&response), &error(&response)["code"]), ("408", &Value::from("body_timeout")));
}

#[tokio::test]
async fn keep_alive_and_pipelined_requests_are_answered_in_order() {
    let server = TestServer::start().await;
    let mut stream = server.connect().await;
    let post = |text: &str| {
        format!("POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    };
    for text in ["one", "two"] {
        stream.write_all(post(text).as_bytes()).await.unwrap();
        read_until(&mut stream, text).await;
    }
    stream.write_all(format!("{}{}{}", post("three"), post("four"), post("five")).as_bytes()).await.unwrap();
    let responses = read_until(&mut stream, "five").await;
    assert!(responses.find("three") < responses.find("four"), "{responses}");
}
