//! Acceptance criteria (AC) and integration tests 5.1 to 5.3 of the deficit round robin specification, with real queues
//! (see docs/specs.md, deficit round robin).

use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{TenantDrr, WeightedKey};
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::weight::Weight;
use evenkeel_queue::store::MessageChange;
use evenkeel_queue::{Durability, KeyRule, QueueSettings};

use crate::harness::{Rig, ack, keys, receive, receive_now, send};

/// Test 5.1, AC 7: three keys of equal weight get a third each.
#[tokio::test]
async fn three_equal_keys_are_delivered_a_third_each() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let all: Vec<&str> = ["a", "b", "c"].iter().flat_map(|key| [*key; 300]).collect();
        send(&queue, all).await;
        let mut first = Vec::new();
        while first.len() < 300 {
            first.extend(receive(&queue, 10).await);
        }
        for key in ["a", "b", "c"] {
            let count = keys(&first).iter().filter(|other| *other == key).count();
            assert!((99..=101).contains(&count), "{key} got {count} of 300");
        }
        let rest = receive_all(&queue).await;
        assert_eq!(first.len() + rest, 900);
    }
}

/// Test 5.2: all messages of a single key are delivered, in order.
#[tokio::test]
async fn a_single_key_delivers_all_messages() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["default"; 1_000]).await;
        let mut next = 0;
        while next < 1_000 {
            for delivery in receive(&queue, 100).await {
                assert_eq!(crate::harness::body(&delivery), format!("default-{next}"));
                next += 1;
            }
        }
        assert!(receive_now(&queue, 1).await.is_empty());
    }
}

/// Test 5.3, AC 3 and 4: a key without messages leaves the schedule, the others continue.
#[tokio::test]
async fn an_exhausted_key_leaves_the_schedule_and_the_others_continue() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["short", "short", "long", "long", "long", "long", "long", "long"]).await;
        let first = receive_now(&queue, 4).await;
        assert_eq!(keys(&first).iter().filter(|key| *key == "short").count(), 2);
        let rest = receive_now(&queue, 10).await;
        assert_eq!(keys(&rest), ["long"; 4]);
        ack(&queue, &first).await;
        ack(&queue, &rest).await;
        assert_eq!(queue.totals().pending, 0);
    }
}

/// AC 1 and 2: within a round a key gets its weight times the quantum, then the next key is served.
#[tokio::test]
async fn a_key_is_served_its_weight_in_messages_per_round() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        queue.set_rule("heavy", KeyRule::with_weight(Weight::whole(3).unwrap())).await.unwrap();
        let all: Vec<&str> = ["heavy", "light"].iter().flat_map(|key| [*key; 400]).collect();
        send(&queue, all).await;
        let mut received = Vec::new();
        while received.len() < 400 {
            received.extend(keys(&receive(&queue, 10).await));
        }
        let heavy = received.iter().filter(|key| *key == "heavy").count();
        assert!((297..=303).contains(&heavy), "heavy got {heavy} of 400 at weight 3 of 4");
    }
}

/// AC 5: a key whose messages were all delivered is scheduled again when new ones arrive.
#[tokio::test]
async fn a_key_is_scheduled_again_with_new_messages() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        ack(&queue, &receive_now(&queue, 10).await).await;
        assert!(receive_now(&queue, 1).await.is_empty());
        send(&queue, ["a", "b"]).await;
        let mut received = keys(&receive_now(&queue, 10).await);
        received.sort();
        assert_eq!(received, ["a", "b"]);
    }
}

/// AC 6: the scheduling state is in the actor's memory. A delivery reads nothing and writes only leases.
#[tokio::test]
async fn scheduling_uses_only_memory_of_the_queue_actor() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let all: Vec<&str> = ["a", "b", "c"].iter().flat_map(|key| [*key; 50]).collect();
        send(&queue, all).await;
        let recoveries = store.recoveries.load(Ordering::SeqCst);
        let mut received = Vec::new();
        while received.len() < 150 {
            received.extend(keys(&receive(&queue, 10).await));
        }
        for round in received.chunks(3) {
            let mut round = round.to_vec();
            round.sort();
            assert_eq!(round, ["a", "b", "c"]);
        }
        assert_eq!(store.recoveries.load(Ordering::SeqCst), recoveries);
        assert_eq!(store.fetches.load(Ordering::SeqCst), 0);
        let changes = store.changes.lock();
        assert!(changes.iter().all(|change| matches!(change, MessageChange::Leased(..))), "{changes:?}");
        assert_eq!(changes.len(), 150);
    }
}

/// AC 8: the CPU time of choosing a key, which a FIFO queue need not do, as a fraction of that of a delivery.
#[tokio::test]
async fn scheduling_costs_less_than_a_twentieth_of_a_delivery() {
    const MESSAGES: usize = 20_000;
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings { durability: Durability::Os, ..QueueSettings::default() }).await;
    let names: Vec<String> = (0..100).map(|key| format!("key{key}")).collect();
    for _ in 0..MESSAGES / 1_000 {
        send(&queue, names.iter().flat_map(|name| [name.as_str(); 10])).await;
    }
    let started = cpu_time();
    for _ in 0..MESSAGES / 10 {
        ack(&queue, &receive(&queue, 10).await).await;
    }
    let deliveries = cpu_time() - started;
    let mut drr = TenantDrr::new(Cost(1_000), 1_000).unwrap();
    for number in 0..100 {
        let tenant = TenantId(number);
        let key = Key(number);
        let weighted = WeightedKey { tenant, tenant_weight: Weight::ONE, key, weight: Weight::ONE };
        drr.add_key(weighted).unwrap();
    }
    let started = cpu_time();
    for _ in 0..MESSAGES {
        let turn = drr.next_key().unwrap();
        drr.consume_deficit(turn.key, Cost::MESSAGE);
    }
    let choices = cpu_time() - started;
    let ratio = choices.as_secs_f64() / deliveries.as_secs_f64();
    println!("choice of a key: {:.2} % of a delivery of {:?}", ratio * 100.0, deliveries / MESSAGES as u32);
    assert!(ratio < 0.05, "the choice of a key takes {ratio} of a delivery");
}

/// Returns the CPU time of the whole process.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

async fn receive_all(queue: &evenkeel_queue::Queue) -> usize {
    let mut count = 0;
    while queue.totals().pending > 0 {
        count += receive(queue, 100).await.len();
    }
    count
}
