//! Tenants side by side, through sockets: a flood delays nobody else, and tokens go by weight.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_sim_node::SimOptions;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fleet::{Behind, CHAT, Fleet, PATIENCE, of, tenant};
use crate::raw::{chat, fast, is_silent};

#[test]
fn among_a_thousand_of_a_flood_a_quiet_request_is_at_most_third_in_turn() {
    // One slot: two service times are two requests.
    let engine =
        SimOptions { slots: 1, first_token: Duration::from_millis(150), tokens_per_second: 1, ..fast() };
    let config = tenant("flood", "") + &tenant("quiet", "");
    let fleet = Fleet::start("flood-order", &config, vec![("one", Behind::Sim(engine))]);
    let mut flood = Vec::new();
    for _ in 0..10 {
        flood.extend((0..100).map(|_| fleet.send("flood", CHAT, &median(1))));
        // Whoever was turned away has its answer.
        fleet.wait_status("overloaded", |status| status["state"] == "overloaded");
        flood.retain_mut(is_silent);
    }
    let dispatched = |status: &Value| status["counts"]["dispatched"].as_u64().unwrap();
    for _ in 0..15 {
        let before = fleet.wait_status("flooded", |status| of(status, "flood")["waiting"].as_u64() > Some(9));
        // Once in its turn it stays there until it leaves.
        let quiet = fleet.send("quiet", CHAT, &median(100));
        let after = fleet.wait_status("in its turn", |status| of(status, "quiet")["in_flight"] == 1);
        let others = dispatched(&after) - dispatched(&before) - 1;
        assert!(others <= 2, "{others} of the flood were served before");
        drop(quiet);
        fleet.wait_status("over", |status| of(status, "quiet")["in_flight"] == 0);
    }
    assert_eq!(of(&fleet.status(), "quiet")["waiting"], 0);
    drop(flood);
    fleet.wait_idle();
}

/// A request that costs about a quantum, as the median of requests should, and takes so many tokens to answer.
fn median(tokens: u32) -> Value {
    let content = "long ".repeat(380);
    chat(json!({"max_tokens": tokens, "messages": [{"role": "user", "content": content}]}))
}

/// How often the quiet tenant asks in a flood, and how many of the flood come each time.
const QUIET: u64 = 20;
const FLOOD_PER_QUIET: u64 = 1_000;

#[test]
fn a_flood_of_a_thousand_to_one_neither_turns_the_quiet_tenant_away_nor_delays_it_two_service_times() {
    let engine = SimOptions { slots: 4, first_token: Duration::from_millis(100), ..fast() };
    let config = tenant("flood", "") + &tenant("quiet", "");
    let fleet = Fleet::start("flood-wait", &config, vec![("one", Behind::Sim(engine))]);
    let address = fleet.address;
    let arrived = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let (floods, quiet) = fleet.runtime.block_on(async {
        let mut floods = JoinSet::new();
        for _ in 0..150 {
            let arrived = arrived.clone();
            let ended = ended.clone();
            floods.spawn(flood(address, arrived, ended));
        }
        let quiet = timeout(PATIENCE, quiet(address, &arrived)).await.unwrap();
        ended.store(true, Ordering::Relaxed);
        (floods.join_all().await, quiet)
    });
    let served: Vec<Answered> = floods.into_iter().flatten().collect();
    let waited = quiet.iter().map(|answered| answered.waited).max().unwrap();
    let mut services: Vec<Duration> = served.iter().map(Answered::service).collect();
    services.sort_unstable();
    let service = services[services.len() / 2];
    let arrived = arrived.load(Ordering::Relaxed);
    let served = served.len();
    println!("{arrived} of the flood arrived, {served} were served, half of them within {service:?}");
    println!("the quiet tenant waited for {waited:?} at most");
    assert!(quiet.iter().all(|answered| answered.status == 200), "{quiet:?}");
    assert!(arrived >= QUIET * FLOOD_PER_QUIET);
    assert!(waited <= 2 * service, "{waited:?} of {service:?}");
    fleet.wait_idle();
}

/// Asks without a pause, whatever it is told; keeps what was served.
async fn flood(address: SocketAddr, arrived: Arc<AtomicU64>, ended: Arc<AtomicBool>) -> Vec<Answered> {
    let mut client = Client::of(address, "flood").await;
    let mut served = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let answered = client.chat(&median(1)).await;
        arrived.fetch_add(1, Ordering::Relaxed);
        if answered.status == 200 {
            served.push(answered);
        }
    }
    served
}

/// Asks once in a while.
async fn quiet(address: SocketAddr, arrived: &AtomicU64) -> Vec<Answered> {
    let mut client = Client::of(address, "quiet").await;
    let mut answers = Vec::new();
    for turn in 1..=QUIET {
        while arrived.load(Ordering::Relaxed) < turn * FLOOD_PER_QUIET {
            tokio::task::yield_now().await;
        }
        answers.push(client.chat(&median(1)).await);
    }
    answers
}

#[test]
fn while_both_are_backlogged_tokens_go_by_weight_and_every_token_is_accounted_for() {
    let engine = SimOptions { slots: 2, first_token: Duration::from_millis(2), ..fast() };
    // About a median request.
    let config = format!(
        "[load_manager]\nquantum_tokens = 50\n{}{}",
        tenant("three", "weight = 3"),
        tenant("one", "weight = 1")
    );
    let fleet = Fleet::start("shares", &config, vec![("one", Behind::Sim(engine))]);
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut add = |name, body: Value| {
        for _ in 0..12 {
            let client = keep_asking(fleet.address, name, body.clone(), stopped.clone());
            clients.spawn_on(client, fleet.runtime.handle());
        }
    };
    add("three", chat(json!({"max_tokens": 8})));
    add("one", chat(json!({"max_tokens": 40, "stream": true, "stream_options": {"include_usage": true}})));
    let backlogged = |status: &Value| {
        of(status, "three")["waiting"].as_u64() > Some(2) && of(status, "one")["waiting"].as_u64() > Some(2)
    };
    let cost = |status: &Value, name| of(status, name)["served_cost"].as_u64().unwrap();
    let before = fleet.wait_status("backlogged", backlogged);
    let after = fleet.wait_status("served", |status| {
        assert!(backlogged(status), "a tenant had nothing to ask: {status:#}");
        cost(status, "one") >= cost(&before, "one") + 15_000
    });
    let served = |name| (cost(&after, name) - cost(&before, name)) as f64;
    let share = served("three") / (served("three") + served("one"));
    println!("{} of weight 3, {} of weight 1: {share:.4}", served("three"), served("one"));
    assert!((share - 0.75).abs() < 0.02 * 0.75 && (share - 0.75).abs() < 0.02 * 0.25, "{share}");

    stop.send(true).unwrap();
    let told = fleet.runtime.block_on(async { timeout(PATIENCE, clients.join_all()).await.unwrap() });
    fleet.wait_idle();
    let status = fleet.status();
    for name in ["three", "one"] {
        let counted: u64 = told.iter().filter(|(of, _)| *of == name).map(|(_, cost)| cost).sum();
        assert_eq!(cost(&status, name), counted, "what {name} was told that it used");
    }
}

/// Asks one request after another until told to stop; says what all of it cost by the answers' own words.
async fn keep_asking(
    address: SocketAddr,
    name: &'static str,
    body: Value,
    stopped: watch::Receiver<bool>,
) -> (&'static str, u64) {
    let mut client = Client::of(address, name).await;
    let mut cost = 0;
    while !*stopped.borrow() {
        let answered = client.chat(&body).await;
        assert_eq!(answered.status, 200, "{}", answered.body);
        let usage = answered.usage();
        cost += usage["prompt_tokens"].as_u64().unwrap() + 2 * usage["completion_tokens"].as_u64().unwrap();
    }
    (name, cost)
}

/// A client of one tenant, on one connection.
struct Client {
    requests: SendRequest<Full<Bytes>>,
    key: String,
}

#[derive(Debug)]
struct Answered {
    status: u16,
    waited: Duration,
    took: Duration,
    body: String,
}

impl Client {
    async fn of(address: SocketAddr, tenant: &str) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (requests, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Self { requests, key: format!("Bearer ek-{tenant}") }
    }

    async fn chat(&mut self, body: &Value) -> Answered {
        let request = Request::post(CHAT).header("host", "a").header("authorization", &self.key);
        let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
        self.requests.ready().await.unwrap();
        let began = Instant::now();
        let response = self.requests.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let waited = queue_wait(response.headers());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.into()).unwrap();
        Answered { status, waited, took: began.elapsed(), body }
    }
}

fn queue_wait(headers: &HeaderMap) -> Duration {
    Duration::from_millis(headers["x-queue-wait-ms"].to_str().unwrap().parse().unwrap())
}

impl Answered {
    /// How long it took once it had its slot.
    fn service(&self) -> Duration {
        self.took.saturating_sub(self.waited)
    }

    fn usage(&self) -> Value {
        let last = self.body.split("data: ").filter(|event| event.contains("\"usage\":{")).last();
        let said: Value = serde_json::from_str(last.unwrap_or(&self.body)).unwrap();
        said["usage"].clone()
    }
}
