//! What clients send in HTTP/1.1, and what they get.

use std::time::Duration;

use evenkeel_server::body;
use evenkeel_server::listener::ListenerLimits;
use evenkeel_server::tenant::{TenantSettings, TenantState};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{House, Plan, read_all, read_until, tenant};

fn error(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    serde_json::from_str::<Value>(body).expect("a refusal is JSON")["error"].clone()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn probes_answer_and_readiness_follows_its_switch() {
    let house = House::open().await;
    assert_eq!(status(&house.ask("GET /livez", "").await), "200");
    assert_eq!(status(&house.ask("GET /readyz", "").await), "503");
    house.readiness.ready();
    assert_eq!(status(&house.ask("GET /readyz", "").await), "200");
    house.readiness.unready();
    assert_eq!(status(&house.ask("GET /readyz", "").await), "503");
}

#[tokio::test]
async fn routes_refuse_in_the_envelope() {
    let house = House::open().await;
    let unknown = house.ask("GET /Echo", "").await;
    assert_eq!((status(&unknown), &error(&unknown)["code"]), ("404", &Value::from("unknown_url")));
    assert!(unknown.contains("content-type: application/json"));
    let wrong = house.ask("GET /echo", "").await;
    assert_eq!(status(&wrong), "405");
    assert!(wrong.contains("allow: POST\r\n"), "{wrong}");
    assert!(house.ask("GET /v1/anything?x=1", "").await.ends_with("fallback"));
}

#[tokio::test]
async fn a_panicking_handler_costs_its_own_request_only() {
    let house = House::open().await;
    let answer = house.ask("GET /panic", "").await;
    assert_eq!(status(&answer), "500");
    assert!(!answer.contains("defect"), "an internal message got out");
    assert_eq!(status(&house.ask("GET /livez", "").await), "200");
}

#[tokio::test]
async fn a_request_id_is_kept_if_sane_and_made_otherwise() {
    let house = House::open().await;
    assert!(house.ask("GET /livez", "x-request-id: mine-1\r\n").await.contains("x-request-id: mine-1\r\n"));
    assert!(house.ask("GET /none", "x-request-id: <b>\r\n").await.contains("x-request-id: req-"));
}

#[tokio::test]
async fn a_key_decides_who_asks() {
    let off = TenantSettings { state: TenantState::Disabled, ..tenant("off", "ek-off") };
    let tenants = vec![tenant("acme", "ek-acme"), off];
    let house = House::with(Plan { tenants, ..Plan::default() }).await;
    for header in ["authorization: Bearer ek-acme", "x-api-key: ek-acme", "api-key: ek-acme"] {
        assert!(house.ask("GET /whoami", &format!("{header}\r\n")).await.ends_with("acme"), "{header}");
    }
    let refused = house.ask("GET /whoami", "x-api-key: ek-other\r\n").await;
    assert_eq!((status(&refused), &error(&refused)["code"]), ("401", &Value::from("invalid_api_key")));
    assert!(!refused.contains("ek-other"), "a key was repeated");
    assert_eq!(status(&house.ask("GET /whoami", "x-api-key: ek-off\r\n").await), "403");
    assert_eq!(status(&house.ask("GET /admin", "x-api-key: ek-acme\r\n").await), "403");
    assert_eq!(status(&house.ask("GET /admin", "x-api-key: ek-root\r\n").await), "200");
}

#[tokio::test]
async fn requests_beyond_the_minute_are_refused_with_a_time_to_come_back() {
    let limited = TenantSettings { rpm: Some(1), ..tenant("acme", "ek-acme") };
    let house = House::with(Plan { tenants: vec![limited], ..Plan::default() }).await;
    assert_eq!(status(&house.ask("GET /whoami", "x-api-key: ek-acme\r\n").await), "200");
    let refused = house.ask("GET /whoami", "x-api-key: ek-acme\r\n").await;
    assert_eq!((status(&refused), &error(&refused)["type"]), ("429", &Value::from("requests")));
    assert!(refused.contains("retry-after: "), "{refused}");
}

#[tokio::test]
async fn a_body_up_to_the_limit_is_read_and_one_byte_more_is_413() {
    let limits = ListenerLimits { body_bytes_max: 10, ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    let fits = house.ask("POST /echo", "content-length: 10\r\n\r\n0123456789").await;
    assert!(fits.ends_with("0123456789"), "{fits}");
    let declared = house.ask("POST /echo", "content-length: 11\r\n").await;
    assert_eq!((status(&declared), &error(&declared)["code"]), ("413", &Value::from("body_too_large")));
    let chunked =
        house.ask("POST /echo", "transfer-encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n").await;
    assert_eq!((status(&chunked), &error(&chunked)["code"]), ("413", &Value::from("body_too_large")));
}

#[tokio::test]
async fn two_lengths_are_refused_and_what_follows_is_never_a_request() {
    let house = House::open().await;
    let smuggled = "GET /whoami HTTP/1.1\r\nhost: a\r\n\r\n";
    for lengths in [
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
    ] {
        let answer = house
            .raw(format!("POST /echo HTTP/1.1\r\nhost: a\r\n{lengths}\r\n0\r\n\r\n{smuggled}{smuggled}"))
            .await;
        assert_eq!(status(&answer), "400", "{lengths}");
        assert_eq!(error(&answer)["code"], "ambiguous_framing", "{lengths}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn hyper_alone_serves_two_lengths_and_hides_one() {
    let (mut client, server) = tokio::io::duplex(1024);
    let service = hyper::service::service_fn(async |request: http::Request<hyper::body::Incoming>| {
        let seen = request.headers().contains_key("content-length");
        Ok::<_, std::convert::Infallible>(http::Response::new(body::full(format!("length seen: {seen}"))))
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    let head =
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let (served, read) = tokio::join!(serving, client.read_to_string(&mut answer));
    assert!(served.is_ok() && read.is_ok());
    assert_eq!(status(&answer), "200");
    assert!(answer.ends_with("length seen: false"), "hyper tells: `framing` may go");
}

#[tokio::test]
async fn two_lengths_behind_good_requests_are_refused_too() {
    let house = House::open().await;
    let good = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    let bad =
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n";
    let answers = house.raw(format!("{good}{good}{bad}{good}")).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 400").count(), 1, "{answers}");
}

#[tokio::test]
async fn malformed_heads_are_400_and_the_connection_closes() {
    let house = House::open().await;
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
        let head = format!("GET /whoami HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
        let answer = house.raw(head).await;
        assert_eq!(status(&answer), "400", "{headers:?}: {answer}");
    }
}

#[tokio::test]
async fn heads_too_large_or_too_many_are_431() {
    let limits = ListenerLimits { head_bytes_max: 8192, headers_max: 10, ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    assert_eq!(status(&house.ask("GET /livez", &"x: 1\r\n".repeat(8)).await), "200");
    assert_eq!(status(&house.ask("GET /livez", &"x: 1\r\n".repeat(9)).await), "431");
    assert_eq!(status(&house.ask("GET /livez", &format!("x: {}\r\n", "y".repeat(8192))).await), "431");
}

#[tokio::test]
async fn who_is_silent_or_stops_within_a_head_is_let_go() {
    let limits = ListenerLimits { head_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    for start in ["", "PRI * HT", "GET /livez HTTP/1.1\r\nhost:"] {
        assert!(!house.raw(start).await.contains("200"), "{start:?}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let limits = ListenerLimits { body_wait_max: Duration::from_millis(20), ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    let answer = house.ask("POST /echo", "content-length: 5\r\n\r\nab").await;
    assert_eq!((status(&answer), &error(&answer)["code"]), ("408", &Value::from("body_timeout")));
}

#[tokio::test]
async fn a_connection_carries_one_request_after_another_and_pipelined_ones_in_order() {
    let house = House::open().await;
    let mut stream = house.connect().await;
    let post = |text: &str| {
        format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    };
    for text in ["one", "two"] {
        stream.write_all(post(text).as_bytes()).await.unwrap();
        read_until(&mut stream, text).await;
    }
    stream.write_all(format!("{}{}{}", post("three"), post("four"), post("five")).as_bytes()).await.unwrap();
    let answers = read_until(&mut stream, "five").await;
    assert!(answers.find("three") < answers.find("four"), "{answers}");
}

#[tokio::test]
async fn a_connection_beyond_the_bound_waits_until_another_ends() {
    let limits = ListenerLimits { connections_max: 1, ..ListenerLimits::default() };
    let house = House::with(Plan { limits, ..Plan::default() }).await;
    let mut first = house.connect().await;
    let ask = |text: &str| {
        format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    };
    first.write_all(ask("one").as_bytes()).await.unwrap();
    read_until(&mut first, "one").await;
    let mut second = house.connect().await;
    second.write_all(ask("other").as_bytes()).await.unwrap();
    for _ in 0..20 {
        first.write_all(ask("one").as_bytes()).await.unwrap();
        read_until(&mut first, "one").await;
    }
    assert!(second.try_read(&mut [0]).is_err(), "it was served beyond the bound");
    drop(first);
    read_until(&mut second, "other").await;
    second.shutdown().await.unwrap();
    assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(read_all(&mut second).await, "");
}
