//! Fairness scenarios of a queue shared by tenants; the tests that measure something print it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue_state::QueueState;
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::{Epoch, KeyId, KeyRule, QueueId, QueueSettings, Seq, UnixMillis};

/// A queue state whose consumers receive one message at a time and whose store answers at once.
struct Harness {
    state: QueueState,
    stored: HashMap<KeyId, Vec<MessageMeta>>,
    names: Vec<Arc<str>>,
    /// Payload of every message.
    payload: Payload,
    seq: u64,
    now: u64,
    /// Number of prefetches.
    prefetches: usize,
    /// Deliveries whose payload was not prefetched.
    unread: usize,
}

impl Harness {
    fn new() -> Self {
        let state = QueueState::new(Epoch(1), &QueueSettings::default(), (1, 2)).unwrap();
        Self {
            state,
            stored: HashMap::new(),
            names: Vec::new(),
            payload: Payload::default(),
            seq: 0,
            now: 1,
            prefetches: 0,
            unread: 0,
        }
    }

    fn key(&mut self, name: &str) -> KeyId {
        let index = self.names.iter().position(|known| &**known == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        KeyId(index as u32)
    }

    fn send(&mut self, name: &str, count: usize) {
        let key = self.key(name);
        for _ in 0..count {
            self.seq += 1;
            let meta = MessageMeta {
                seq: Seq(self.seq),
                sent_at: UnixMillis(self.now),
                size: self.payload.size() as u32,
                cost: Cost::MESSAGE,
                from: None,
                expires_at: None,
            };
            self.stored.entry(key).or_default().push(meta);
            let name = self.names[key.0 as usize].clone();
            let payload = self.payload.clone();
            let message = AppendedMessage { key, name, weight: None, meta, not_before: None, payload };
            self.state.append(UnixMillis(self.now), message).unwrap();
        }
    }

    fn set_weight(&mut self, name: &str, weight: u32) {
        let key = self.key(name);
        let name = self.names[key.0 as usize].clone();
        self.state.set_rule(
            UnixMillis(self.now),
            key,
            &name,
            KeyRule::with_weight(Weight::whole(weight).unwrap()),
        );
    }

    /// Delivers and acknowledges one message; returns its key.
    fn serve(&mut self) -> Option<Arc<str>> {
        self.prefetch();
        let leased = self
            .state
            .lease_messages(UnixMillis(self.now), 1, Duration::from_secs(30))
            .unwrap()
            .leased
            .pop()?;
        let key = leased.key;
        let seq = leased.meta.seq;
        self.state.ack(DeliveryId { queue: QueueId(1), key, seq, epoch: Epoch(1), attempt: 1 }).unwrap();
        self.state.confirm_removal(seq);
        self.unread += usize::from(leased.payload.is_none());
        Some(leased.name)
    }

    fn prefetch(&mut self) {
        while let Some(request) = self.state.poll_prefetch() {
            let all = &self.stored[&request.key];
            let from = all.partition_point(|meta| meta.seq <= request.after);
            let found = all[from..].iter().take(request.count).map(|meta| (*meta, self.payload.clone()));
            self.state.apply_prefetch(request, found.collect());
            self.prefetches += 1;
        }
    }

    fn serve_many(&mut self, count: usize) -> Vec<Arc<str>> {
        (0..count).map(|_| self.serve().expect("the backlog is long enough")).collect()
    }
}

#[test]
fn a_quiet_tenant_waits_for_at_most_one_message_of_a_flooding_tenant() {
    let mut harness = Harness::new();
    harness.send("loud", 100_000);
    let mut waits = Vec::new();
    for _ in 0..100 {
        harness.serve_many(997);
        harness.send("quiet", 1);
        let waited = (1..).find(|_| harness.serve().is_some_and(|name| &*name == "quiet")).unwrap();
        waits.push(waited);
    }
    waits.sort_unstable();
    println!("flood 1000:1, deliveries until the quiet tenant's: p50 {} p99 {}", waits[49], waits[98]);
    assert!(waits[98] <= 2, "the quiet tenant's message was only delivery number {}", waits[98]);
}

#[test]
fn weights_hold_in_every_window_of_a_thousand() {
    let mut harness = Harness::new();
    for weight in 1..=5 {
        let name = format!("tenant{weight}");
        harness.set_weight(&name, weight);
        harness.send(&name, 30_000);
    }
    let served = harness.serve_many(60_000);
    let mut worst: f64 = 0.0;
    for window in served.windows(1_000).step_by(7) {
        for weight in 1..=5 {
            let name = format!("tenant{weight}");
            let share = window.iter().filter(|other| ***other == *name).count() as f64 / 1_000.0;
            worst = worst.max((share - f64::from(weight) / 15.0).abs());
        }
    }
    println!("weights 1:2:3:4:5, worst error of a share in any window of 1000: {:.3} %", worst * 100.0);
    assert!(worst <= 0.01, "a share was off by {worst}");
}

#[test]
fn a_tenant_with_ten_keys_gets_the_share_of_one_tenant() {
    let mut harness = Harness::new();
    for number in 0..10 {
        harness.send(&format!("sybil/{number}"), 10_000);
    }
    harness.send("honest", 20_000);
    let served = harness.serve_many(20_000);
    let honest = served.iter().filter(|name| &***name == "honest").count();
    println!("sybil with 10 keys: the honest tenant gets {:.2} %", honest as f64 / 200.0);
    assert!((9_990..=10_010).contains(&honest), "the honest tenant got {honest} of 20000");
}

#[test]
fn a_weight_applies_to_the_backlog_at_once() {
    let mut harness = Harness::new();
    harness.send("a", 20_000);
    harness.send("b", 20_000);
    harness.serve_many(1_000);
    harness.set_weight("a", 4);
    let served = harness.serve_many(1_000);
    let a = served.iter().filter(|name| &***name == "a").count();
    println!("weight 1 to 4 on a backlog: {a} of the next 1000");
    assert!((790..=810).contains(&a), "a got {a} of 1000 at weight 4 of 5");
}

/// Deliveries are charged, not the time that consumers take: a slow tenant does not slow down the others.
#[test]
fn a_slow_tenant_delays_no_other() {
    let mut harness = Harness::new();
    harness.send("slow", 1_000);
    harness.send("fast", 1_000);
    // No message is acknowledged, so the messages of both tenants stay in flight.
    let mut fast = 0;
    for _ in 0..1_000 {
        let leased =
            harness.state.lease_messages(UnixMillis(harness.now), 1, Duration::from_secs(30)).unwrap().leased;
        fast += leased.iter().filter(|leased| &*leased.name == "fast").count();
        harness.prefetch();
    }
    println!("slow tenant: the fast one gets {fast} of 1000");
    assert!((499..=501).contains(&fast));
}

/// 100 MB of 1 000 keys, of which 32 MB are in memory at a time.
#[test]
fn a_backlog_larger_than_memory_is_read_by_prefetch() {
    let mut harness = Harness::new();
    harness.payload.body = vec![b'x'; 1_024].into();
    let names: Vec<String> = (0..1_000).map(|number| format!("tenant{number}")).collect();
    for _ in 0..100 {
        names.iter().for_each(|name| harness.send(name, 1));
    }
    let served = harness.serve_many(100_000);
    assert!(harness.serve().is_none());
    println!("100 000 of 1 000 keys: {} prefetches, {} read one by one", harness.prefetches, harness.unread);
    assert_eq!(harness.unread, 0, "messages were read one by one");
    assert!(harness.prefetches <= 100_000 / 8, "{} prefetches", harness.prefetches);
    // A key that waits for its prefetch does not lose its turn.
    for round in served.chunks(1_000) {
        let mut names = round.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 1_000, "a key was served twice in a round");
    }
}

#[test]
fn a_tenant_with_expired_messages_delays_no_other() {
    let mut harness = Harness::new();
    (0..8).for_each(|number| harness.send(&format!("expired{number}"), 200));
    harness.now += QueueSettings::default().retention_ms + 1;
    harness.send("quiet", 10);
    let received =
        harness.state.lease_messages(UnixMillis(harness.now), 10, Duration::from_secs(30)).unwrap();
    assert_eq!(received.expired.len(), 1_024, "one receive expires one batch");
    let names: Vec<&str> = received.leased.iter().map(|leased| &*leased.name).collect();
    assert_eq!(names, ["quiet"; 10]);
    // The rest expires once the first batch is deleted.
    received.expired.iter().for_each(|(_, meta)| harness.state.confirm_removal(meta.seq));
    let rest = harness.state.lease_messages(UnixMillis(harness.now), 10, Duration::from_secs(30)).unwrap();
    assert_eq!((rest.expired.len(), rest.leased.len()), (1_600 - 1_024, 0));
}
