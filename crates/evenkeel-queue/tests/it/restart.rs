//! What a restart keeps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_policy::weight::Weight;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::{QueueDescriptor, Store};
use evenkeel_queue::{Durability, KeyRule, NewMessage, QueueSettings, Queues, Rejection};
use tempfile::TempDir;

use crate::harness::{Rig, ack, await_some, body, keys, send, take};
use crate::recording_store::Watched;

#[tokio::test]
async fn messages_their_order_and_their_keys_survive() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let all: Vec<&str> = ["a", "b"].iter().flat_map(|key| [*key; 1_000]).collect();
    send(&queue, all).await;
    let first = take(&queue, 100).await;
    ack(&queue, &first).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    assert_eq!(queue.totals().pending, 1_900);
    let mut next = [50, 1_050];
    let mut left = 1_900;
    while left > 0 {
        let taken = await_some(&queue, 100).await;
        for delivery in &taken {
            let at = usize::from(&*delivery.key == "b");
            assert_eq!(body(delivery), format!("{}-{}", delivery.key, next[at]));
            next[at] += 1;
        }
        left -= taken.len();
        ack(&queue, &taken).await;
    }
}

/// The active keys are rebuilt: turns are fair from the first delivery on.
#[tokio::test]
async fn turns_are_rebuilt() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let all: Vec<&str> = ["a", "b", "c"].iter().flat_map(|key| [*key; 200]).collect();
    send(&queue, all).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    // All is in memory then: a turn that waits for the disk in vain is another test's.
    while queue.peek(600).await.unwrap().len() < 600 {}
    let mut taken = Vec::new();
    while taken.len() < 300 {
        taken.extend(keys(&await_some(&queue, 300 - taken.len()).await));
    }
    for key in ["a", "b", "c"] {
        let count = taken.iter().filter(|other| *other == key).count();
        assert!((95..=105).contains(&count), "{key} got {count} of 300");
    }
}

#[tokio::test]
async fn leases_attempts_and_receipts_survive() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a", "b", "c"]).await;
    let taken = take(&queue, 2).await;
    queue.nack(&[(taken[1].receipt.clone(), Some(Duration::ZERO))]).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    let totals = queue.totals();
    assert_eq!((totals.pending, totals.in_flight), (2, 1));
    assert_eq!(queue.ack(&[taken[1].receipt.clone()]).await, [Err(Rejection::StaleReceipt)]);
    ack(&queue, &taken[..1]).await;
    let mut again = await_some(&queue, 1).await;
    again.extend(await_some(&queue, 1).await);
    let mut attempts: Vec<u32> = again.iter().map(|delivery| delivery.attempt).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2]);
}

#[tokio::test]
async fn a_lease_that_is_extended_after_a_restart_is_still_its_consumers() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a"]).await;
    let taken = take(&queue, 1).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    for _ in 0..2 {
        let longer = (taken[0].receipt.clone(), Duration::from_secs(600));
        assert_eq!(queue.extend(&[longer]).await, [Ok(())]);
    }
    let rig = rig.restart().await;
    ack(&rig.queues.get("jobs").unwrap(), &taken).await;
}

#[tokio::test]
async fn delays_weights_settings_and_purges_survive() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings { lease_ms: 1_234, ..QueueSettings::default() }).await;
    send(&queue, ["gone"; 50]).await;
    queue.purge().await.unwrap();
    queue.set_rule("heavy", KeyRule::with_weight(Weight::whole(3).unwrap())).await.unwrap();
    let late = NewMessage { delay: Some(Duration::from_secs(600)), ..NewMessage::new("late") };
    queue.enqueue(vec![late]).await.unwrap();
    let all: Vec<&str> = ["heavy", "light"].iter().flat_map(|key| [*key; 200]).collect();
    send(&queue, all).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    assert_eq!(queue.descriptor().settings.lease_ms, 1_234);
    let totals = queue.totals();
    assert_eq!((totals.pending, totals.delayed), (400, 1));
    // A turn waits for the disk a moment only.
    while queue.peek(400).await.unwrap().len() < 400 {}
    let mut taken = Vec::new();
    while taken.len() < 200 {
        taken.extend(keys(&await_some(&queue, 200 - taken.len()).await));
    }
    let heavy = taken.iter().filter(|key| *key == "heavy").count();
    assert!((145..=155).contains(&heavy), "heavy got {heavy} of 200 at weight 3 of 4");
}

#[tokio::test]
async fn a_removed_queue_stays_removed() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a"; 5_000]).await;
    rig.queues.remove("jobs").await.unwrap();
    let rig = rig.restart().await;
    assert!(rig.queues.get("jobs").is_none());
    let fresh = rig.queue(QueueSettings::default()).await;
    assert_ne!(fresh.id(), queue.id());
    assert!(take(&fresh, 10).await.is_empty());
}

/// A start is one flush of the disk, not one per queue.
#[tokio::test]
async fn a_thousand_queues_are_claimed_in_one_write() {
    let folder = TempDir::new().unwrap();
    let disk = Arc::new(DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap());
    let (done, mut made) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..1_000 {
        let record = QueueDescriptor {
            name: format!("queue{number}"),
            settings: QueueSettings::default(),
            created_at: 0,
            changed_at: 0,
            metadata: String::new(),
        };
        let done = done.clone();
        disk.put_queue(None, record, Box::new(move |id| drop(done.send(id))));
    }
    for _ in 0..1_000 {
        made.recv().await.unwrap().unwrap();
    }
    let before = disk.flushes();
    let store = Watched::new(disk.clone());
    let queues = Queues::open(store.clone(), 1_000).await.unwrap();
    assert_eq!((store.claims.load(Ordering::SeqCst), disk.flushes() - before), (1, 1));
    assert_eq!(queues.list("", None, usize::MAX).len(), 1_000);
    let queue = queues.get("queue999").unwrap();
    send(&queue, ["a"]).await;
    ack(&queue, &await_some(&queue, 1).await).await;
}

/// Purges and sends that the disk sees together: what a start finds is what the queue held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_takes_nothing_that_was_sent_after_it() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings { durability: Durability::Os, ..QueueSettings::default() }).await;
    for _ in 0..200 {
        let senders: Vec<_> = (0..16)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.enqueue(vec![NewMessage::new("x")]).await })
            })
            .collect();
        queue.purge().await.unwrap();
        for sender in senders {
            sender.await.unwrap().unwrap();
        }
    }
    // Answered after everything before.
    queue.key_stats(0, 1).await.unwrap();
    let held = queue.totals().pending;
    let rig = rig.restart().await;
    assert_eq!(rig.queues.get("jobs").unwrap().totals().pending, held);
}

#[tokio::test]
async fn keys_without_messages_are_forgotten_at_a_start() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings { keys_max: 2, ..QueueSettings::default() }).await;
    send(&queue, ["a", "b"]).await;
    ack(&queue, &take(&queue, 10).await).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    // Answered after the queue has begun.
    queue.key_stats(0, 1).await.unwrap();
    send(&queue, ["c", "d"]).await;
    assert_eq!(take(&queue, 10).await.len(), 2);
}
