//! Keys and tenants at their limits: throttled without loss, debt or delay to others, and served again.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use evenkeel_policy::weight::Weight;
use evenkeel_queue::queue_state::{Explanation, Throttle, ThrottleReason, ThrottleScope};
use evenkeel_queue::rule::Rate;
use evenkeel_queue::{KeyRule, Namespace, NewMessage, QueueSettings};

use crate::harness::{Rig, ack, keys, receive, receive_now, send};

#[tokio::test]
async fn a_key_at_its_concurrency_limit_waits_and_others_continue() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["acme/a"; 10]).await;
        // Applies to waiting messages too.
        queue.set_rule("acme/a", at_most(2)).await.unwrap();
        send(&queue, ["acme/b"; 3]).await;
        let received = receive_now(&queue, 10).await;
        let of = |key: &str| keys(&received).iter().filter(|other| *other == key).count();
        assert_eq!((of("acme/a"), of("acme/b")), (2, 3));
        assert!(receive_now(&queue, 10).await.is_empty());
        let first = received.iter().find(|delivery| &*delivery.key == "acme/a").unwrap();
        ack(&queue, core::slice::from_ref(first)).await;
        assert_eq!(keys(&receive(&queue, 10).await), ["acme/a"]);
        queue.set_rule("acme/a", KeyRule::default()).await.unwrap();
        assert_eq!(receive_now(&queue, 10).await.len(), 7, "the limit is gone, so everything is delivered");
    }
}

#[tokio::test]
async fn concurrent_changes_of_a_rule_do_not_overwrite_each_other() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let first = queue.lock_rule("acme").await.unwrap();
        let mut second = Box::pin(queue.lock_rule("acme"));
        let early = tokio::time::timeout(Duration::from_millis(20), &mut second).await;
        assert!(early.is_err(), "the second change read the rule before the first was stored");
        let weight = Weight::whole(3).unwrap();
        let rule = KeyRule { weight: Some(weight), ..first.rule() };
        first.set(rule).await.unwrap();
        let second = second.await.unwrap();
        let rule = KeyRule { concurrency_max: NonZeroU32::new(5), ..second.rule() };
        second.set(rule).await.unwrap();
        let rule = KeyRule { weight: Some(weight), concurrency_max: NonZeroU32::new(5), rate: None };
        assert_eq!(queue.rule("acme").await.unwrap(), rule);
    }
}

#[tokio::test]
async fn a_tenants_concurrency_limit_counts_all_its_keys() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings::default()).await;
    queue.set_rule("acme", at_most(3)).await.unwrap();
    send(&queue, ["acme/a", "acme/b", "acme/c", "acme", "acme/a", "other/a"]).await;
    let received = receive_now(&queue, 10).await;
    assert_eq!(received.len(), 4);
    let nacked = received.iter().find(|delivery| delivery.key.starts_with("acme")).unwrap();
    queue.nack(&[(nacked.receipt.clone(), Some(Duration::from_secs(600)))]).await;
    assert_eq!(receive_now(&queue, 10).await.len(), 1, "a nacked message is not in flight");
}

#[tokio::test]
async fn a_lease_that_ends_unblocks_its_throttled_key() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings { lease_ms: 50, ..QueueSettings::default() }).await;
    queue.set_rule("a/a", at_most(1)).await.unwrap();
    send(&queue, ["a/a"; 2]).await;
    assert_eq!(receive_now(&queue, 10).await.len(), 1);
    let again = receive(&queue, 10).await;
    assert_eq!((again.len(), again[0].attempt), (1, 2));
}

#[tokio::test]
async fn a_raised_rate_applies_to_a_throttled_key() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let at_rate =
        |rate| KeyRule { rate: Some(Rate::new(rate, NonZeroU32::new(1)).unwrap()), ..KeyRule::default() };
    queue.set_rule("a", at_rate(0.001)).await.unwrap();
    send(&queue, ["a"; 2]).await;
    assert_eq!((receive_now(&queue, 10).await.len(), receive_now(&queue, 10).await.len()), (1, 0));
    queue.set_rule("a", at_rate(1_000.0)).await.unwrap();
    assert_eq!(receive(&queue, 10).await.len(), 1);
}

/// Without other activity, the queue's own timer serves the waiting consumer.
#[tokio::test]
async fn a_key_without_tokens_is_served_when_its_bucket_refills() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let rate = Rate::new(50.0, NonZeroU32::new(2)).unwrap();
    queue.set_rule("acme", KeyRule { rate: Some(rate), ..KeyRule::default() }).await.unwrap();
    send(&queue, ["acme"; 12]).await;
    let started = Instant::now();
    let mut got = receive_now(&queue, 100).await.len();
    assert_eq!(got, 2, "only the burst is delivered at once");
    while got < 12 {
        got += receive(&queue, 100).await.len();
    }
    assert!(Duration::from_millis(199) <= started.elapsed(), "ten more at 50 per second take 200 ms");
}

#[tokio::test]
async fn limits_survive_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let rate = Rate::new(0.25, NonZeroU32::new(7)).unwrap();
    let rule = KeyRule { rate: Some(rate), ..at_most(5) };
    send(&queue, ["acme/a"; 20]).await;
    // Set after the key was created, so that recovery reads the tenant's rule after the key.
    queue.set_rule("acme", rule).await.unwrap();
    queue.set_rule("acme/a", at_most(4)).await.unwrap();
    assert_eq!(receive_now(&queue, 3).await.len(), 3);
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!((queue.rule("acme").await, queue.rule("acme/a").await), (Ok(rule), Ok(at_most(4))));
    assert_eq!(receive(&queue, 20).await.len(), 1, "three of at most four are already in flight");
}

#[tokio::test]
async fn explain_and_stats_report_the_throttle_and_its_end() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let rate = Rate::new(0.001, None).unwrap();
    queue.set_rule("slow", KeyRule { rate: Some(rate), ..KeyRule::default() }).await.unwrap();
    queue.set_rule("acme/a", at_most(1)).await.unwrap();
    let ids = queue
        .enqueue(["slow", "slow", "acme/a", "acme/a"].map(|key| NewMessage::new("x").for_key(key)).to_vec())
        .await
        .unwrap();
    assert_eq!(receive_now(&queue, 10).await.len(), 2);
    let throttled = |explanation| match explanation {
        Explanation::Waiting { throttled, .. } => throttled,
        other => panic!("{other:?}"),
    };
    let explanation = queue.explain(ids[3]).await.unwrap();
    assert_eq!(
        throttled(explanation),
        Some(Throttle { scope: ThrottleScope::Key, reason: ThrottleReason::Concurrency { max: 1 } })
    );
    let text = explanation.describe(queue.now()).to_string();
    assert!(text.ends_with("its key is throttled: 1 in flight, the maximum"), "{text}");
    let Some(Throttle { scope: ThrottleScope::Tenant, reason: ThrottleReason::Rate { until } }) =
        throttled(queue.explain(ids[1]).await.unwrap())
    else {
        panic!("the tenant is not throttled by its rate");
    };
    let left = until.since(queue.now());
    assert!(Duration::from_secs(900) < left && left <= Duration::from_secs(1_000), "{left:?}");
    let stats = queue.key_stats(0, 10).await.unwrap();
    let slow = stats.iter().find(|key| &*key.name == "slow").unwrap();
    let scope = slow.throttled.map(|throttle| throttle.scope);
    assert_eq!((slow.rule.rate, scope), (Some(rate), Some(ThrottleScope::Tenant)));
    // A throttle causes no debt.
    assert_eq!(stats.iter().map(|key| key.debt.0).max(), Some(0));
}

fn at_most(max: u32) -> KeyRule {
    KeyRule { concurrency_max: NonZeroU32::new(max), ..KeyRule::default() }
}
