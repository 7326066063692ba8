//! Failover: for every fault of a node, the client gets the right response from another node or a clear error, and
//! nothing leaks.

use std::net::SocketAddr;
use std::time::Instant;

use evenkeel_sim_node::{Fault, FaultKind, SimOptions};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::fleet::{Backend, CHAT, Fleet, TIMEOUT, tenant, tenant_status};
use evenkeel_sim_node::testing::{RawResponse, ResponseEnd, chat, fast, open, read};

/// Timeouts of two seconds, unlimited retries, and a single health check at startup.
const CONFIG: &str = "
[connection_pool]
request_timeout_secs = 2
connect_timeout_secs = 2
[llm.health]
interval_secs = 3600
[llm.retry]
budget = 1
retries_min = 1000
[llm.breaker]
cooldown_secs = 0.001
cooldown_max_secs = 0.001
";

/// Expected end of a request whose first node has a fault.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Another node responds, and the client does not notice the failure.
    Failover,
    /// The client has part of the response, and the stream ends with an error event.
    ErrorEvent(&'static str),
}

/// A gateway with a faulty and a healthy node.
struct FailoverTest {
    fleet: Fleet,
    /// Response text of a healthy node.
    text: String,
}

#[test]
fn requests_fail_over_from_an_unreachable_node() {
    let unused = UnusedAddress::new();
    let test = FailoverTest::with("dead", CONFIG, Backend::Url(unused.url("http")));
    test.expect(Expected::Failover, Expected::Failover);
}

#[test]
fn requests_fail_over_from_a_node_that_never_responds() {
    FailoverTest::new(FaultKind::Silent).expect(Expected::Failover, Expected::Failover);
}

#[test]
fn requests_fail_over_from_a_node_with_a_late_first_token() {
    // The limit applies only to the first chunk.
    let config = format!("[llm]\nfirst_byte_max_secs = 1\n{CONFIG}");
    let fault = Fault::new(FaultKind::SlowFirstToken);
    let test = FailoverTest::with("slow-first-token", &config, faulty(fault));
    test.expect(Expected::Failover, Expected::Failover);
}

#[test]
fn a_stream_cut_by_its_node_ends_with_an_error_event() {
    FailoverTest::new(FaultKind::MidStreamCut)
        .expect(Expected::Failover, Expected::ErrorEvent("bad_upstream"));
}

#[test]
fn a_stalled_stream_ends_with_a_timeout_event() {
    FailoverTest::new(FaultKind::StalledStream)
        .expect(Expected::Failover, Expected::ErrorEvent("upstream_timeout"));
}

#[test]
fn requests_fail_over_from_a_node_that_answers_429_without_retry_after() {
    let test = FailoverTest::new(FaultKind::TooManyRequests);
    test.expect(Expected::Failover, Expected::Failover);
    assert_eq!(test.faulty_node()["error_rate"], 0.0, "overload must not count as a failure");
}

#[test]
fn requests_fail_over_from_a_node_that_answers_429_with_retry_after() {
    let test = FailoverTest::new(FaultKind::TooManyRequestsRetryAfter);
    test.expect(Expected::Failover, Expected::Failover);
    assert_eq!(test.faulty_node()["error_rate"], 0.0, "overload must not count as a failure");
}

#[test]
fn a_malformed_response_fails_over_and_a_malformed_event_ends_its_stream() {
    FailoverTest::new(FaultKind::MalformedJson)
        .expect(Expected::Failover, Expected::ErrorEvent("bad_upstream"));
}

#[test]
fn a_response_with_a_wrong_content_length_fails_over_but_a_complete_stream_is_accepted() {
    // The stream is complete, including the end-of-stream marker; only its content length is wrong.
    FailoverTest::new(FaultKind::WrongContentLength).expect_whole(Expected::Failover);
    let test = FailoverTest::new(FaultKind::WrongContentLength);
    let mut user = 0;
    test.until_hit(1, |test| {
        user += 1;
        test.assert_complete(&test.send(user, true));
    });
    test.fleet.wait_idle();
}

#[test]
fn requests_fail_over_from_a_node_that_resets_connections() {
    FailoverTest::new(FaultKind::Reset).expect(Expected::Failover, Expected::Failover);
}

#[test]
fn requests_fail_over_from_a_node_that_half_closes_connections() {
    FailoverTest::new(FaultKind::HalfClose).expect(Expected::Failover, Expected::Failover);
}

#[test]
fn a_stream_truncated_within_an_event_ends_with_an_error_event() {
    FailoverTest::new(FaultKind::TruncatedSse)
        .expect(Expected::Failover, Expected::ErrorEvent("bad_upstream"));
}

#[test]
fn a_burst_of_errors_opens_the_breaker_which_closes_after_the_burst() {
    // A breaker that is open stays open until the test has seen it.
    let config = tenant("one", "") + &tenant("two", "") + CONFIG + "backoff_min_secs = 2\n";
    let fault = Fault { count: 1_000, ..Fault::new(FaultKind::ErrorBurst) };
    let test = FailoverTest::with("burst", &config, faulty(fault));
    let mut user = 0;
    let mut send = |test: &FailoverTest| {
        user += 1;
        let tenant = if user % 2 == 0 { "one" } else { "two" };
        test.assert_complete(&test.send_as(tenant, user, user % 4 < 2));
    };
    let started = Instant::now();
    while test.faulty_node()["breaker"] != "open" {
        send(&test);
        assert!(started.elapsed() < TIMEOUT, "two tenants' failures do not open the breaker");
    }
    test.fleet.sims[0].set_fault(None).unwrap();
    while test.faulty_node()["breaker"] != "closed" {
        send(&test);
        assert!(started.elapsed() < TIMEOUT, "the breaker of the recovered node does not close");
    }
    test.fleet.wait_idle();
}

#[test]
fn all_requests_succeed_while_a_node_flaps() {
    let config = CONFIG.replace("3600", "0.05") + "backoff_min_secs = 0.05\nbackoff_max_secs = 0.1\n";
    let fault = Fault { count: 2, ..Fault::new(FaultKind::Flapping) };
    let test = FailoverTest::with("flapping", &config, faulty(fault));
    for user in 0..100 {
        test.assert_complete(&test.send(user, user % 2 == 0));
    }
    assert!(test.hits() > 0);
    test.fleet.sims[0].set_fault(None).unwrap();
    test.fleet.wait_status("recovered", |status| status["nodes"][0]["breaker"] == "closed");
    test.fleet.wait_idle();
}

#[test]
fn requests_fail_over_from_a_node_whose_host_name_does_not_resolve() {
    let url = "http://no-such-host.invalid:8000".to_owned();
    FailoverTest::with("dns", CONFIG, Backend::Url(url)).expect(Expected::Failover, Expected::Failover);
}

#[test]
fn requests_fail_over_from_an_https_node_that_does_not_speak_tls() {
    let plain = Fleet::start("tls-plain", "", vec![("healthy", Backend::Sim(fast()))]);
    let url = format!("https://{}", plain.sims[0].address());
    FailoverTest::with("tls", CONFIG, Backend::Url(url)).expect(Expected::Failover, Expected::Failover);
}

#[test]
fn requests_fail_over_from_a_node_with_an_untrusted_certificate_and_use_it_once_trusted() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let dir = crate::test_dir::TestDir::new("tls-files");
    dir.write("cert.pem", &made.cert.pem());
    dir.write("key.pem", &made.signing_key.serialize_pem());
    let cert = dir.file("cert.pem");
    let key = dir.file("key.pem");
    let config = format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let upstream = Fleet::start("tls-behind", &config, vec![("healthy", Backend::Sim(fast()))]);
    let url = format!("https://{}", upstream.address);
    let test = FailoverTest::with("tls-untrusted", CONFIG, Backend::Url(url.clone()));
    test.expect(Expected::Failover, Expected::Failover);

    let config = format!("[llm]\nca_file = {cert:?}\n{CONFIG}");
    let test = FailoverTest::with("tls-trusted", &config, Backend::Url(url));
    for user in 0..8 {
        test.assert_complete(&test.send(user, user % 2 == 0));
    }
    assert_eq!(test.fleet.status()["counts"]["retried"], 0);
    test.fleet.wait_idle();
}

#[test]
fn requests_to_unreachable_nodes_wait_and_time_out() {
    let one = UnusedAddress::new();
    let other = UnusedAddress::new();
    let config = format!("[load_manager]\ndefault_timeout_secs = 1\n{CONFIG}");
    let nodes = vec![("one", Backend::Url(one.url("http"))), ("other", Backend::Url(other.url("http")))];
    let fleet = Fleet::start("all-down", &config, nodes);
    for stream in [false, true] {
        let reply = fleet.post("none", CHAT, &chat(json!({"stream": stream})));
        let outcome = (reply.status, reply.end, reply.json()["error"]["code"].clone());
        assert!(
            reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
            "{reply:?}"
        );
        assert_eq!(outcome, (504, ResponseEnd::Complete, json!("wait_timeout")), "{reply:?}");
        fleet.wait_idle();
    }
}

#[test]
fn requests_wait_for_the_first_node_to_recover_if_all_are_down() {
    let config = CONFIG.replace("3600", "0.05") + "backoff_min_secs = 0.05\nbackoff_max_secs = 0.1\n";
    let down = || faulty(Fault::new(FaultKind::Reset));
    let fleet = Fleet::start("recovers", &config, vec![("one", down()), ("other", down())]);
    let is_down = |node: &Value| node["breaker"] != "closed";
    fleet.wait_status("down", |status| status["nodes"].as_array().unwrap().iter().all(is_down));
    let waiting: Vec<_> =
        (0..8).map(|user| fleet.send("none", CHAT, &chat(json!({"user": user.to_string()})))).collect();
    // One request may have been sent as the probe of a half-open breaker.
    fleet.wait_status("waiting", |status| status["waiting"].as_u64() >= Some(7));
    fleet.sims[1].set_fault(None).unwrap();
    for reply in waiting.into_iter().map(read) {
        // The probe may have been sent before the node recovered.
        assert!(matches!(reply.status, 200 | 502), "{reply:?}");
    }
    assert_eq!(fleet.post("none", CHAT, &chat(json!({}))).status, 200);
    fleet.wait_idle();
}

#[test]
fn a_request_to_an_overloaded_pool_is_rejected_with_retry_after() {
    let busy = faulty(Fault::new(FaultKind::TooManyRequestsRetryAfter));
    // The node asks for a cooldown of one second, of which a request with this timeout waits half, twice.
    let config = CONFIG.replace("cooldown_max_secs = 0.001", "cooldown_max_secs = 60");
    let config = format!("[load_manager]\ndefault_timeout_secs = 1\n{config}");
    let fleet = Fleet::start("all-busy", &config, vec![("busy", busy)]);
    let reply = fleet.post("none", CHAT, &chat(json!({})));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("queue_full")));
    assert!(
        reply.head.contains("retry-after: 1") && reply.head.contains("x-queue-size: 0"),
        "{}",
        reply.head
    );
    fleet.wait_idle();
}

#[test]
fn a_cut_stream_is_charged_for_the_tokens_delivered() {
    let config = tenant("acme", "") + CONFIG;
    let fault = faulty(Fault::new(FaultKind::MidStreamCut));
    let fleet = Fleet::start("cut-stream", &config, vec![("faulty", fault)]);
    let reply = fleet.post("acme", CHAT, &chat(json!({"stream": true})));
    assert_eq!(
        reply.streamed_text().split(' ').count(),
        4,
        "the stream is cut after half of the text: {reply:?}"
    );
    fleet.wait_idle();
    let served = tenant_status(&fleet.status(), "acme")["served_cost"].as_u64().unwrap();
    assert!(
        (8..8 + 20).contains(&served),
        "the charge must be four tokens and the prompt, not the estimate: {served}"
    );
}

/// An address that is bound but not listening.
struct UnusedAddress(TcpSocket);

impl UnusedAddress {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Self(socket)
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.0.local_addr().unwrap())
    }
}

fn faulty(fault: Fault) -> Backend {
    Backend::Sim(SimOptions { fault: Some(fault), ..fast() })
}

impl FailoverTest {
    fn new(kind: FaultKind) -> Self {
        Self::with(&kind.to_string(), CONFIG, faulty(Fault::new(kind)))
    }

    fn with(name: &str, config: &str, faulty: Backend) -> Self {
        let name = format!("failover-{name}");
        let fleet = Fleet::start(&name, config, vec![("faulty", faulty), ("healthy", Backend::Sim(fast()))]);
        let healthy = fleet.sims.last().unwrap().address();
        let body = chat(json!({})).to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}",
            body.len()
        );
        let text = content(&read(open(healthy, &format!("{head}\r\n\r\n{body}"))));
        Self { fleet, text }
    }

    /// Checks a whole response and a stream whose first node is the faulty one.
    fn expect(&self, whole: Expected, stream: Expected) {
        self.check(false, whole);
        self.check(true, stream);
    }

    fn expect_whole(&self, expected: Expected) {
        self.check(false, expected);
    }

    /// Sends requests until the fault hits one.
    fn check(&self, stream: bool, expected: Expected) {
        let started = Instant::now();
        for user in 0.. {
            let before = self.retried();
            let reply = self.send(user, stream);
            let is_hit = match expected {
                Expected::Failover => {
                    self.assert_complete(&reply);
                    self.retried() > before
                }
                Expected::ErrorEvent(code) if reply.body.contains("\"error\"") => {
                    self.assert_error_event(&reply, code);
                    true
                }
                Expected::ErrorEvent(_) => {
                    self.assert_complete(&reply);
                    false
                }
            };
            self.fleet.wait_idle();
            if is_hit {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "the fault hit no request: {:#}", self.fleet.status());
        }
    }

    /// Sends requests until the fault has hit a number of them.
    fn until_hit(&self, count: u64, mut send: impl FnMut(&Self)) {
        let started = Instant::now();
        while self.hits() < count {
            send(self);
            assert!(started.elapsed() < TIMEOUT, "the fault hit no request");
        }
    }

    fn send(&self, user: u32, stream: bool) -> RawResponse {
        self.send_as("none", user, stream)
    }

    fn send_as(&self, tenant: &str, user: u32, stream: bool) -> RawResponse {
        self.fleet.post(tenant, CHAT, &chat(json!({"user": user.to_string(), "stream": stream})))
    }

    fn retried(&self) -> u64 {
        self.fleet.status()["counts"]["retried"].as_u64().unwrap()
    }

    fn faulty_node(&self) -> Value {
        self.fleet.status()["nodes"][0].clone()
    }

    /// Returns the number of requests hit by the fault.
    fn hits(&self) -> u64 {
        let head = "GET /sim/fault HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        read(open(self.fleet.sims[0].address(), head)).json()["struck"].as_u64().unwrap()
    }

    #[track_caller]
    fn assert_complete(&self, reply: &RawResponse) {
        assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
        assert!(
            reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
            "{reply:?}"
        );
        if reply.head.contains("text/event-stream") {
            let events = reply.events();
            assert_eq!(
                (reply.streamed_text(), events.last()),
                (self.text.clone(), Some(&"[DONE]")),
                "{reply:?}"
            );
            let (_, chunks) = events.split_last().unwrap();
            assert!(chunks.iter().all(|event| serde_json::from_str::<Value>(event).is_ok()), "{reply:?}");
        } else {
            assert_eq!(content(reply), self.text);
        }
    }

    /// Checks that a stream is a prefix of the right text, ends cleanly on the wire, and has an error event.
    #[track_caller]
    fn assert_error_event(&self, reply: &RawResponse, code: &str) {
        assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete), "{reply:?}");
        let events = reply.events();
        let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], code, "{reply:?}");
        assert!(!events.contains(&"[DONE]"), "{reply:?}");
        let text = reply.streamed_text();
        assert!(self.text.starts_with(&text) && text.len() < self.text.len(), "{text:?}");
        assert!(events.iter().all(|event| serde_json::from_str::<Value>(event).is_ok()), "{reply:?}");
    }
}

fn content(reply: &RawResponse) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}
