//! Every fault of a node, through the gateway: the right answer from another node, or an error that says so, and nothing
//! left behind.

use std::net::SocketAddr;
use std::time::Instant;

use evenkeel_sim_node::{Fault, FaultKind, SimOptions};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::fleet::{Behind, CHAT, Fleet, PATIENCE, of, tenant};
use crate::raw::{Ended, Reply, chat, fast, open, read};

/// Waits of two seconds where a fault is silence; a retry for whoever needs one; probes once, at the start.
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
spare_secs = 0.001
spare_max_secs = 0.001
";

/// How a request ends whose first node has a fault.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// Another node answers, and the client hears of nothing.
    Elsewhere,
    /// The client has part of the answer, and hears in the stream that there will be no more.
    Told(&'static str),
}

/// A gateway with a node that has a fault and one that is well.
struct Trial {
    fleet: Fleet,
    /// What every chat is answered with.
    answer: String,
}

#[test]
fn a_dead_node() {
    let nobody = Nobody::there();
    let trial = Trial::with("dead", CONFIG, Behind::Url(nobody.url("http")));
    trial.ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_silent_node() {
    Trial::of(FaultKind::Silent).ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_slow_first_token() {
    // Chunks may take longer than this, the first one may not.
    let config = format!("[llm]\nfirst_byte_max_secs = 1\n{CONFIG}");
    let fault = Fault::new(FaultKind::SlowFirstToken);
    let trial = Trial::with("slow-first-token", &config, faulty(fault));
    trial.ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_mid_stream_cut() {
    Trial::of(FaultKind::MidStreamCut).ends(Ends::Elsewhere, Ends::Told("bad_upstream"));
}

#[test]
fn a_stalled_stream() {
    Trial::of(FaultKind::StalledStream).ends(Ends::Elsewhere, Ends::Told("upstream_timeout"));
}

#[test]
fn a_429_without_retry_after() {
    let trial = Trial::of(FaultKind::TooManyRequests);
    trial.ends(Ends::Elsewhere, Ends::Elsewhere);
    assert_eq!(trial.faulty_node()["error_rate"], 0.0, "busy is not broken");
}

#[test]
fn a_429_with_retry_after() {
    let trial = Trial::of(FaultKind::TooManyRequestsRetryAfter);
    trial.ends(Ends::Elsewhere, Ends::Elsewhere);
    assert_eq!(trial.faulty_node()["error_rate"], 0.0, "busy is not broken");
}

#[test]
fn malformed_json() {
    Trial::of(FaultKind::MalformedJson).ends(Ends::Elsewhere, Ends::Told("bad_upstream"));
}

#[test]
fn a_wrong_content_length() {
    // All of the stream is there, down to its last word; only its length is wrong.
    Trial::of(FaultKind::WrongContentLength).whole(Ends::Elsewhere);
    let trial = Trial::of(FaultKind::WrongContentLength);
    let mut user = 0;
    trial.until_struck(1, |trial| {
        user += 1;
        trial.assert_right(&trial.ask(user, true));
    });
    trial.fleet.wait_idle();
}

#[test]
fn a_reset() {
    Trial::of(FaultKind::Reset).ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_half_close() {
    Trial::of(FaultKind::HalfClose).ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_truncated_sse() {
    Trial::of(FaultKind::TruncatedSse).ends(Ends::Elsewhere, Ends::Told("bad_upstream"));
}

#[test]
fn a_burst_of_500_breaks_a_node_and_its_end_mends_it() {
    let config = format!("{CONFIG}backoff_min_secs = 0.05\n");
    let trial = Trial::with("burst", &config, faulty(Fault::new(FaultKind::ErrorBurst)));
    let mut user = 0;
    trial.until_struck(5, |trial| {
        user += 1;
        trial.assert_right(&trial.ask(user, user % 2 == 0));
    });
    let began = Instant::now();
    while trial.faulty_node()["breaker"] != "closed" {
        user += 1;
        trial.assert_right(&trial.ask(user, user % 2 == 0));
        assert!(began.elapsed() < PATIENCE, "a node that is well again gets no work");
    }
    trial.fleet.wait_idle();
}

#[test]
fn flapping() {
    let config = CONFIG.replace("3600", "0.05") + "backoff_min_secs = 0.05\nbackoff_max_secs = 0.1\n";
    let fault = Fault { count: 2, ..Fault::new(FaultKind::Flapping) };
    let trial = Trial::with("flapping", &config, faulty(fault));
    for user in 0..100 {
        trial.assert_right(&trial.ask(user, user % 2 == 0));
    }
    assert!(trial.struck() > 0);
    trial.fleet.sims[0].set_fault(None).unwrap();
    trial.fleet.wait_status("mended", |status| status["nodes"][0]["breaker"] == "closed");
    trial.fleet.wait_idle();
}

#[test]
fn a_name_that_nobody_knows() {
    let url = "http://no-such-host.invalid:8000".to_owned();
    Trial::with("dns", CONFIG, Behind::Url(url)).ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_node_that_speaks_no_tls() {
    let plain = Fleet::start("tls-plain", "", vec![("well", Behind::Sim(fast()))]);
    let url = format!("https://{}", plain.sims[0].address());
    Trial::with("tls", CONFIG, Behind::Url(url)).ends(Ends::Elsewhere, Ends::Elsewhere);
}

#[test]
fn a_certificate_that_nobody_vouches_for_and_one_that_somebody_does() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = crate::folder::Folder::new("tls-files");
    folder.write("cert.pem", &made.cert.pem());
    folder.write("key.pem", &made.signing_key.serialize_pem());
    let cert = folder.file("cert.pem");
    let key = folder.file("key.pem");
    let config = format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let behind = Fleet::start("tls-behind", &config, vec![("well", Behind::Sim(fast()))]);
    let url = format!("https://{}", behind.address);
    let trial = Trial::with("tls-untrusted", CONFIG, Behind::Url(url.clone()));
    trial.ends(Ends::Elsewhere, Ends::Elsewhere);

    let trusting = format!("[llm]\nca_file = {cert:?}\n{CONFIG}");
    let trial = Trial::with("tls-trusted", &trusting, Behind::Url(url));
    for user in 0..8 {
        trial.assert_right(&trial.ask(user, user % 2 == 0));
    }
    assert_eq!(trial.fleet.status()["counts"]["retried"], 0);
    trial.fleet.wait_idle();
}

#[test]
fn all_nodes_down() {
    let one = Nobody::there();
    let other = Nobody::there();
    let config = format!("[load_manager]\ndefault_timeout_secs = 1\n{CONFIG}");
    let nodes = vec![("one", Behind::Url(one.url("http"))), ("other", Behind::Url(other.url("http")))];
    let fleet = Fleet::start("all-down", &config, nodes);
    let began = Instant::now();
    // The nodes' failures are told until they are left alone; from then on nobody has a slot.
    for stream in [false, true].into_iter().cycle() {
        let reply = fleet.post("none", CHAT, &chat(json!({"stream": stream})));
        let told = (reply.status, reply.ended, reply.json()["error"]["code"].clone());
        assert!(
            reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
            "{reply:?}"
        );
        fleet.wait_idle();
        if told == (504, Ended::Whole, json!("wait_timeout")) {
            break;
        }
        assert_eq!(told, (502, Ended::Whole, json!("bad_upstream")));
        assert!(began.elapsed() < PATIENCE, "dead nodes are asked for ever");
    }
}

#[test]
fn when_all_nodes_are_down_requests_wait_for_the_first_that_comes_back() {
    let config = CONFIG.replace("3600", "0.05") + "backoff_min_secs = 0.05\nbackoff_max_secs = 0.1\n";
    let down = || faulty(Fault::new(FaultKind::Reset));
    let fleet = Fleet::start("comes-back", &config, vec![("one", down()), ("other", down())]);
    let is_down = |node: &Value| node["breaker"] != "closed";
    fleet.wait_status("down", |status| status["nodes"].as_array().unwrap().iter().all(is_down));
    let waiting: Vec<_> =
        (0..8).map(|user| fleet.send("none", CHAT, &chat(json!({"user": user.to_string()})))).collect();
    // One of them may be out to see whether a node is back.
    fleet.wait_status("waiting", |status| status["waiting"].as_u64() >= Some(7));
    fleet.sims[1].set_fault(None).unwrap();
    for reply in waiting.into_iter().map(read) {
        // Whoever was sent out to see has found the node down.
        assert!(matches!(reply.status, 200 | 502), "{reply:?}");
    }
    assert_eq!(fleet.post("none", CHAT, &chat(json!({}))).status, 200);
    fleet.wait_idle();
}

#[test]
fn a_pool_that_is_busy_says_when_to_come_back() {
    let busy = faulty(Fault::new(FaultKind::TooManyRequestsRetryAfter));
    // A second's rest is all that a request may wait.
    let config = CONFIG.replace("spare_max_secs = 0.001", "spare_max_secs = 60");
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
fn who_is_let_down_pays_for_what_it_got_and_no_more() {
    let config = tenant("acme", "") + CONFIG;
    let fault = faulty(Fault::new(FaultKind::MidStreamCut));
    let fleet = Fleet::start("let-down", &config, vec![("faulty", fault)]);
    let reply = fleet.post("acme", CHAT, &chat(json!({"stream": true})));
    assert_eq!(reply.said().split(' ').count(), 4, "half of it: {reply:?}");
    fleet.wait_idle();
    let served = of(&fleet.status(), "acme")["served_cost"].as_u64().unwrap();
    assert!((8..8 + 20).contains(&served), "four tokens and the prompt, not the guess: {served}");
}

/// An address that is taken, and where nobody listens.
struct Nobody(TcpSocket);

impl Nobody {
    fn there() -> Self {
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

fn faulty(fault: Fault) -> Behind {
    Behind::Sim(SimOptions { fault: Some(fault), ..fast() })
}

impl Trial {
    fn of(kind: FaultKind) -> Self {
        Self::with(&kind.to_string(), CONFIG, faulty(Fault::new(kind)))
    }

    fn with(name: &str, config: &str, faulty: Behind) -> Self {
        let name = format!("failover-{name}");
        let fleet = Fleet::start(&name, config, vec![("faulty", faulty), ("well", Behind::Sim(fast()))]);
        let well = fleet.sims.last().unwrap().address();
        let body = chat(json!({})).to_string();
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}", body.len());
        let answer = content(&read(open(well, &format!("{head}\r\n\r\n{body}"))));
        Self { fleet, answer }
    }

    /// Sees how a whole answer and a stream end whose first node is the faulty one.
    fn ends(&self, whole: Ends, stream: Ends) {
        self.meet(false, whole);
        self.meet(true, stream);
    }

    fn whole(&self, ends: Ends) {
        self.meet(false, ends);
    }

    /// Asks for one conversation after another until one meets the fault.
    fn meet(&self, stream: bool, ends: Ends) {
        let began = Instant::now();
        for user in 0.. {
            let before = self.retried();
            let reply = self.ask(user, stream);
            let met = match ends {
                Ends::Elsewhere => {
                    self.assert_right(&reply);
                    before < self.retried()
                }
                Ends::Told(code) if reply.body.contains("\"error\"") => {
                    self.assert_told(&reply, code);
                    true
                }
                Ends::Told(_) => {
                    self.assert_right(&reply);
                    false
                }
            };
            self.fleet.wait_idle();
            if met {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "nobody met the fault: {:#}", self.fleet.status());
        }
    }

    /// Asks until the fault has struck so often.
    fn until_struck(&self, times: u64, mut ask: impl FnMut(&Self)) {
        let began = Instant::now();
        while self.struck() < times {
            ask(self);
            assert!(began.elapsed() < PATIENCE, "nobody met the fault");
        }
    }

    fn ask(&self, user: u32, stream: bool) -> Reply {
        self.fleet.post("none", CHAT, &chat(json!({"user": user.to_string(), "stream": stream})))
    }

    fn retried(&self) -> u64 {
        self.fleet.status()["counts"]["retried"].as_u64().unwrap()
    }

    fn faulty_node(&self) -> Value {
        self.fleet.status()["nodes"][0].clone()
    }

    /// How many requests the faulty engine has let down.
    fn struck(&self) -> u64 {
        let head = "GET /sim/fault HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        read(open(self.fleet.sims[0].address(), head)).json()["struck"].as_u64().unwrap()
    }

    #[track_caller]
    fn assert_right(&self, reply: &Reply) {
        assert_eq!((reply.status, reply.ended), (200, Ended::Whole), "{reply:?}");
        assert!(
            reply.head.contains("x-queue-wait-ms: ") && reply.head.contains("x-request-id: "),
            "{reply:?}"
        );
        if reply.head.contains("text/event-stream") {
            let events = reply.events();
            assert_eq!((reply.said(), events.last()), (self.answer.clone(), Some(&"[DONE]")), "{reply:?}");
            let (_, said) = events.split_last().unwrap();
            assert!(said.iter().all(|event| serde_json::from_str::<Value>(event).is_ok()), "{reply:?}");
        } else {
            assert_eq!(content(reply), self.answer);
        }
    }

    /// Sees that a stream is a beginning of the right answer, ends well on the wire, and says why there is no more.
    #[track_caller]
    fn assert_told(&self, reply: &Reply, code: &str) {
        assert_eq!((reply.status, reply.ended), (200, Ended::Whole), "{reply:?}");
        let events = reply.events();
        let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert_eq!(last["error"]["code"], code, "{reply:?}");
        assert!(!events.contains(&"[DONE]"), "{reply:?}");
        let said = reply.said();
        assert!(self.answer.starts_with(&said) && said.len() < self.answer.len(), "{said:?}");
        assert!(events.iter().all(|event| serde_json::from_str::<Value>(event).is_ok()), "{reply:?}");
    }
}

fn content(reply: &Reply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}
