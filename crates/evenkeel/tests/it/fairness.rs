//! Fairness between tenants over sockets: a flood does not delay others, and tokens are shared by weight.

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

use crate::fleet::{Backend, CHAT, Fleet, TIMEOUT, tenant, tenant_status};
use evenkeel_sim_node::testing::{chat, fast, is_silent};

#[test]
fn a_quiet_tenant_waits_for_at_most_two_requests_of_a_flood_of_a_thousand() {
    // One slot, so that requests are served one after the other.
    let engine =
        SimOptions { slots: 1, first_token: Duration::from_millis(150), tokens_per_second: 1, ..fast() };
    let config = tenant("flood", "") + &tenant("quiet", "");
    let fleet = Fleet::start("flood-order", &config, vec![("one", Backend::Sim(engine))]);
    let mut flood = Vec::new();
    for _ in 0..10 {
        flood.extend((0..100).map(|_| fleet.send("flood", CHAT, &median(1))));
        // Drops the requests that already have a response: they were rejected.
        fleet.wait_status("overloaded", |status| status["state"] == "overloaded");
        flood.retain_mut(is_silent);
    }
    let dispatched = |status: &Value| status["counts"]["dispatched"].as_u64().unwrap();
    for _ in 0..15 {
        let before = fleet
            .wait_status("flooded", |status| tenant_status(status, "flood")["waiting"].as_u64() > Some(9));
        // Generates a token a second, so it runs until the client disconnects.
        let quiet = fleet.send("quiet", CHAT, &median(100));
        let after =
            fleet.wait_status("dispatched", |status| tenant_status(status, "quiet")["in_flight"] == 1);
        let others = dispatched(&after) - dispatched(&before) - 1;
        assert!(others <= 2, "{others} requests of the flood were served first");
        drop(quiet);
        fleet.wait_status("cancelled", |status| tenant_status(status, "quiet")["in_flight"] == 0);
    }
    assert_eq!(tenant_status(&fleet.status(), "quiet")["waiting"], 0);
    drop(flood);
    fleet.wait_idle();
}

/// Returns a request with a limit of completion tokens that costs about one quantum, as a median request should.
fn median(tokens: u32) -> Value {
    let content = "long ".repeat(380);
    chat(json!({"max_tokens": tokens, "messages": [{"role": "user", "content": content}]}))
}

/// Number of requests of the quiet tenant.
const QUIET: u64 = 20;
/// Number of requests of the flood per request of the quiet tenant.
const FLOOD_PER_QUIET: u64 = 1_000;

#[test]
fn under_a_flood_of_a_thousand_to_one_the_quiet_tenant_is_served_within_two_service_times() {
    let engine = SimOptions { slots: 4, first_token: Duration::from_millis(100), ..fast() };
    let config = tenant("flood", "") + &tenant("quiet", "");
    let fleet = Fleet::start("flood-wait", &config, vec![("one", Backend::Sim(engine))]);
    let address = fleet.address;
    let arrived = Arc::new(AtomicU64::new(0));
    let stopped = Arc::new(AtomicBool::new(false));
    let (floods, quiet) = fleet.runtime.block_on(async {
        let mut floods = JoinSet::new();
        for _ in 0..150 {
            let arrived = arrived.clone();
            let stopped = stopped.clone();
            floods.spawn(flood(address, arrived, stopped));
        }
        let quiet = timeout(TIMEOUT, quiet(address, &arrived)).await.unwrap();
        stopped.store(true, Ordering::Relaxed);
        (floods.join_all().await, quiet)
    });
    let served: Vec<TimedResponse> = floods.into_iter().flatten().collect();
    let waited = quiet.iter().map(|response| response.waited).max().unwrap();
    let mut services: Vec<Duration> = served.iter().map(TimedResponse::service).collect();
    services.sort_unstable();
    let service = services[services.len() / 2];
    let arrived = arrived.load(Ordering::Relaxed);
    let served = served.len();
    println!("the flood sent {arrived} requests, {served} were served; median service time {service:?}");
    println!("the quiet tenant waited at most {waited:?}");
    assert!(quiet.iter().all(|response| response.status == 200), "{quiet:?}");
    assert!(arrived >= QUIET * FLOOD_PER_QUIET);
    assert!(waited <= 2 * service, "waited {waited:?}, service time {service:?}");
    fleet.wait_idle();
}

/// Sends requests without pause; returns the successful responses.
async fn flood(address: SocketAddr, arrived: Arc<AtomicU64>, stopped: Arc<AtomicBool>) -> Vec<TimedResponse> {
    let mut client = Client::connect(address, "flood").await;
    let mut served = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        let response = client.chat(&median(1)).await;
        arrived.fetch_add(1, Ordering::Relaxed);
        if response.status == 200 {
            served.push(response);
        }
    }
    served
}

/// Sends one request per [`FLOOD_PER_QUIET`] requests of the flood.
async fn quiet(address: SocketAddr, arrived: &AtomicU64) -> Vec<TimedResponse> {
    let mut client = Client::connect(address, "quiet").await;
    let mut responses = Vec::new();
    for number in 1..=QUIET {
        while arrived.load(Ordering::Relaxed) < number * FLOOD_PER_QUIET {
            tokio::task::yield_now().await;
        }
        responses.push(client.chat(&median(1)).await);
    }
    responses
}

#[test]
fn backlogged_tenants_share_tokens_by_weight_and_every_token_is_accounted_for() {
    let engine = SimOptions { slots: 2, first_token: Duration::from_millis(2), ..fast() };
    // The quantum is about the cost of a median request.
    let config = format!(
        "[load_manager]\nquantum_tokens = 50\n{}{}",
        tenant("three", "weight = 3"),
        tenant("one", "weight = 1")
    );
    let fleet = Fleet::start("shares", &config, vec![("one", Backend::Sim(engine))]);
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut add = |name, body: Value| {
        for _ in 0..12 {
            let client = send_until_stopped(fleet.address, name, body.clone(), stopped.clone());
            clients.spawn_on(client, fleet.runtime.handle());
        }
    };
    add("three", chat(json!({"max_tokens": 8})));
    add("one", chat(json!({"max_tokens": 40, "stream": true, "stream_options": {"include_usage": true}})));
    let backlogged = |status: &Value| {
        tenant_status(status, "three")["waiting"].as_u64() > Some(2)
            && tenant_status(status, "one")["waiting"].as_u64() > Some(2)
    };
    let cost = |status: &Value, name| tenant_status(status, name)["served_cost"].as_u64().unwrap();
    let before = fleet.wait_status("backlogged", backlogged);
    let after = fleet.wait_status("served", |status| {
        assert!(backlogged(status), "a tenant had no backlog: {status:#}");
        cost(status, "one") >= cost(&before, "one") + 15_000
    });
    let served = |name| (cost(&after, name) - cost(&before, name)) as f64;
    let share = served("three") / (served("three") + served("one"));
    println!("{} of weight 3, {} of weight 1: {share:.4}", served("three"), served("one"));
    assert!((share - 0.75).abs() < 0.02 * 0.75 && (share - 0.75).abs() < 0.02 * 0.25, "{share}");

    stop.send(true).unwrap();
    let costs = fleet.runtime.block_on(async { timeout(TIMEOUT, clients.join_all()).await.unwrap() });
    fleet.wait_idle();
    let status = fleet.status();
    for name in ["three", "one"] {
        let counted: u64 = costs.iter().filter(|(tenant, _)| *tenant == name).map(|(_, cost)| cost).sum();
        assert_eq!(cost(&status, name), counted, "cost of {name} differs from the usage in its responses");
    }
}

/// Sends one request after another until stopped; returns their total cost by the usage in the responses.
async fn send_until_stopped(
    address: SocketAddr,
    name: &'static str,
    body: Value,
    stopped: watch::Receiver<bool>,
) -> (&'static str, u64) {
    let mut client = Client::connect(address, name).await;
    let mut cost = 0;
    while !*stopped.borrow() {
        let response = client.chat(&body).await;
        assert_eq!(response.status, 200, "{}", response.body);
        let usage = response.usage();
        cost += usage["prompt_tokens"].as_u64().unwrap() + 2 * usage["completion_tokens"].as_u64().unwrap();
    }
    (name, cost)
}

/// Client of one tenant with one keep-alive connection.
struct Client {
    requests: SendRequest<Full<Bytes>>,
    key: String,
}

#[derive(Debug)]
struct TimedResponse {
    status: u16,
    waited: Duration,
    took: Duration,
    body: String,
}

impl Client {
    async fn connect(address: SocketAddr, tenant: &str) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (requests, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Self { requests, key: format!("Bearer ek-{tenant}") }
    }

    async fn chat(&mut self, body: &Value) -> TimedResponse {
        let request = Request::post(CHAT).header("host", "a").header("authorization", &self.key);
        let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
        self.requests.ready().await.unwrap();
        let started = Instant::now();
        let response = self.requests.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let waited = queue_wait(response.headers());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.into()).unwrap();
        TimedResponse { status, waited, took: started.elapsed(), body }
    }
}

fn queue_wait(headers: &HeaderMap) -> Duration {
    Duration::from_millis(headers["x-queue-wait-ms"].to_str().unwrap().parse().unwrap())
}

impl TimedResponse {
    /// Returns the response time without the queue wait.
    fn service(&self) -> Duration {
        self.took.saturating_sub(self.waited)
    }

    fn usage(&self) -> Value {
        let last = self.body.split("data: ").filter(|event| event.contains("\"usage\":{")).last();
        let event: Value = serde_json::from_str(last.unwrap_or(&self.body)).unwrap();
        event["usage"].clone()
    }
}
