//! State that survives a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_policy::weight::Weight;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::{QueueDescriptor, Store};
use evenkeel_queue::{Durability, KeyRule, Namespace, NewMessage, QueueSettings, Queues, Rejection};
use tempfile::TempDir;

use crate::harness::{Rig, ack, body, keys, receive, receive_now, send};
use crate::recording_store::RecordingStore;

#[tokio::test]
async fn messages_order_and_keys_survive_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let all: Vec<&str> = ["a", "b"].iter().flat_map(|key| [*key; 1_000]).collect();
    send(&queue, all).await;
    let first = receive_now(&queue, 100).await;
    ack(&queue, &first).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!(queue.totals().pending, 1_900);
    let mut next = [50, 1_050];
    let mut left = 1_900;
    while left > 0 {
        let received = receive(&queue, 100).await;
        for delivery in &received {
            let at = usize::from(&*delivery.key == "b");
            assert_eq!(body(delivery), format!("{}-{}", delivery.key, next[at]));
            next[at] += 1;
        }
        left -= received.len();
        ack(&queue, &received).await;
    }
}

/// Scheduling is fair from the first delivery on.
#[tokio::test]
async fn fair_scheduling_is_rebuilt_after_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let all: Vec<&str> = ["a", "b", "c"].iter().flat_map(|key| [*key; 200]).collect();
    send(&queue, all).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    // Waits until everything is in memory, so that no prefetch times out here.
    while queue.peek(600).await.unwrap().len() < 600 {}
    let mut received = Vec::new();
    while received.len() < 300 {
        received.extend(keys(&receive(&queue, 300 - received.len()).await));
    }
    for key in ["a", "b", "c"] {
        let count = received.iter().filter(|other| *other == key).count();
        assert!((95..=105).contains(&count), "{key} got {count} of 300");
    }
}

#[tokio::test]
async fn leases_attempts_and_receipts_survive_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a", "b", "c"]).await;
    let received = receive_now(&queue, 2).await;
    queue.nack(&[(received[1].receipt.clone(), Some(Duration::ZERO))]).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    let totals = queue.totals();
    assert_eq!((totals.pending, totals.in_flight), (2, 1));
    ack(&queue, &received[..1]).await;
    let mut again = receive(&queue, 1).await;
    again.extend(receive(&queue, 1).await);
    let mut attempts: Vec<u32> = again.iter().map(|delivery| delivery.attempt).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2]);
    assert_eq!(queue.ack(&[received[1].receipt.clone()]).await, [Err(Rejection::StaleReceipt)]);
}

#[tokio::test]
async fn a_lease_from_before_a_restart_can_be_extended_and_acknowledged() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a"]).await;
    let received = receive_now(&queue, 1).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    for _ in 0..2 {
        let longer = (received[0].receipt.clone(), Duration::from_secs(600));
        assert_eq!(queue.extend(&[longer]).await, [Ok(())]);
    }
    let rig = rig.restart().await;
    ack(&rig.queues.get(Namespace::Shared, "jobs").unwrap(), &received).await;
}

#[tokio::test]
async fn delays_weights_settings_and_purges_survive_a_restart() {
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
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!(queue.descriptor().settings.lease_ms, 1_234);
    let totals = queue.totals();
    assert_eq!((totals.pending, totals.delayed), (400, 1));
    // Waits until everything is in memory, so that no prefetch times out here.
    while queue.peek(400).await.unwrap().len() < 400 {}
    let mut received = Vec::new();
    while received.len() < 200 {
        received.extend(keys(&receive(&queue, 200 - received.len()).await));
    }
    let heavy = received.iter().filter(|key| *key == "heavy").count();
    assert!((145..=155).contains(&heavy), "heavy got {heavy} of 200 at weight 3 of 4");
}

#[tokio::test]
async fn a_removed_queue_stays_removed() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a"; 5_000]).await;
    rig.queues.remove(queue.id()).await.unwrap();
    let rig = rig.restart().await;
    assert!(rig.queues.get(Namespace::Shared, "jobs").is_none());
    let fresh = rig.queue(QueueSettings::default()).await;
    assert_ne!(fresh.id(), queue.id());
    assert!(receive_now(&fresh, 10).await.is_empty());
}

/// A start needs one fsync, not one per queue.
#[tokio::test]
async fn ownership_of_a_thousand_queues_is_taken_in_one_write() {
    let dir = TempDir::new().unwrap();
    let disk = Arc::new(DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap());
    let (done, mut created) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..1_000 {
        let record = QueueDescriptor {
            name: format!("queue{number}"),
            namespace: Namespace::Shared,
            settings: QueueSettings::default(),
            created_at: 0,
            changed_at: 0,
            metadata: String::new(),
        };
        let done = done.clone();
        disk.put_queue(None, record, Box::new(move |id| drop(done.send(id))));
    }
    for _ in 0..1_000 {
        created.recv().await.unwrap().unwrap();
    }
    let before = disk.flushes();
    let store = RecordingStore::new(disk.clone());
    let queues = Queues::open(store.clone(), 1_000).await.unwrap();
    assert_eq!((store.ownerships.load(Ordering::SeqCst), disk.flushes() - before), (1, 1));
    assert_eq!(queues.all().len(), 1_000);
    let queue = queues.get(Namespace::Shared, "queue999").unwrap();
    send(&queue, ["a"]).await;
    ack(&queue, &receive(&queue, 1).await).await;
}

/// Purges and sends may share a commit group; recovery must find the messages that the running queue had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_deletes_no_message_sent_after_it() {
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
    // The actor answers after it has handled all earlier messages.
    queue.key_stats(0, 1).await.unwrap();
    let held = queue.totals().pending;
    let rig = rig.restart().await;
    assert_eq!(rig.queues.get(Namespace::Shared, "jobs").unwrap().totals().pending, held);
}

#[tokio::test]
async fn keys_without_messages_are_removed_at_a_start() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings { keys_max: 2, ..QueueSettings::default() }).await;
    send(&queue, ["a", "b"]).await;
    ack(&queue, &receive_now(&queue, 10).await).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    // The actor answers after it has removed the unused keys.
    queue.key_stats(0, 1).await.unwrap();
    send(&queue, ["c", "d"]).await;
    assert_eq!(receive_now(&queue, 10).await.len(), 2);
}
