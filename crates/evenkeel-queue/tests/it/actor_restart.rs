//! Keepers that fall, and those that take their place: nothing is lost, nobody must restart anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::{NewMessage, Queue, QueueSettings, Rejection};

use crate::harness::{Rig, ack, await_some, body, send, take};
use crate::recording_store::Watched;

#[tokio::test]
async fn a_keeper_that_panics_is_replaced_and_nothing_is_lost() {
    for (rig, store) in Rig::both_watched().await {
        let queue = rig.queue(QueueSettings { lease_ms: 200, ..QueueSettings::default() }).await;
        send(&queue, ["a", "b", "c", "d"]).await;
        let held = take(&queue, 1).await;
        fell(&queue, &store).await;
        assert_eq!(queue.totals().pending + queue.totals().in_flight, 4);
        // A receipt of before is good, as after a restart.
        ack(&queue, &held).await;
        send(&queue, ["e"]).await;
        let mut seen = BTreeSet::from([body(&held[0])]);
        while seen.len() < 5 {
            let taken = await_some(&queue, 10).await;
            ack(&queue, &taken).await;
            seen.extend(taken.iter().map(body));
        }
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.delayed, totals.bytes), (0, 0, 0, 0));
        assert_eq!(queue.actor_restarts(), 1);
    }
}

#[tokio::test]
async fn a_consumer_that_waits_is_served_by_the_next_keeper() {
    for (rig, store) in Rig::both_watched().await {
        let queue = rig.queue(QueueSettings { lease_ms: 0, ..QueueSettings::default() }).await;
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { await_some(&queue, 1).await }
        });
        // A question of its own: whoever waits is in line by the time it is answered.
        queue.key_stats(0, 1).await.unwrap();
        store.trip();
        send(&queue, ["a"]).await;
        assert_eq!(body(&waiting.await.unwrap()[0]), "a-0");
        assert_eq!(queue.actor_restarts(), 1);
    }
}

#[tokio::test]
async fn whoever_asked_a_keeper_that_fell_is_told_so() {
    for (rig, store) in Rig::both_watched().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let held = take(&queue, 1).await;
        store.trip();
        let answers = queue.ack(&[held[0].receipt.clone()]).await;
        assert_eq!(answers, [Err(Rejection::Interrupted)]);
        // Asking again is all it takes.
        ack(&queue, &held).await;
        assert!(take(&queue, 1).await.is_empty());
    }
}

#[tokio::test]
async fn settings_weights_and_limits_hold_after_a_fall() {
    for (rig, store) in Rig::both_watched().await {
        let settings = QueueSettings { messages_max: 5, ..QueueSettings::default() };
        let queue = rig.queue(settings).await;
        send(&queue, ["a", "a", "a"]).await;
        fell(&queue, &store).await;
        send(&queue, ["a", "a"]).await;
        let refused = queue.enqueue(vec![NewMessage::new("one too many")]).await;
        assert_eq!(refused, Err(Rejection::QueueFull { limit: "messages", max: 5 }));
        rig.queues.remove("jobs").await.unwrap();
        let told = queue.receive(ReceiveOptions { max: 1, lease: None, wait: Duration::from_secs(20) }).await;
        assert_eq!(told.unwrap_err(), Rejection::QueueDeleted);
        assert_eq!(queue.actor_restarts(), 1, "a queue that was deleted needs no keeper");
    }
}

/// Senders go on while keepers fall again and again: whatever was accepted comes out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_accepted_is_lost_while_keepers_fall() {
    for (rig, store) in Rig::both_watched().await {
        let queue = rig.queue(QueueSettings { lease_ms: 1_000, ..QueueSettings::default() }).await;
        let senders: Vec<_> =
            (0..4).map(|sender| tokio::spawn(send_numbered(queue.clone(), sender))).collect();
        let mut seen = BTreeSet::new();
        let mut falls = 0;
        while seen.len() < 4 * 200 {
            let want = ReceiveOptions { max: 10, lease: None, wait: Duration::from_secs(20) };
            let taken = queue.receive(want).await.unwrap();
            if falls < 3 && seen.len() >= (falls + 1) * 150 {
                falls += 1;
                store.trip();
            }
            let receipts: Vec<_> = taken.iter().map(|delivery| delivery.receipt.clone()).collect();
            let answers = queue.ack(&receipts).await;
            let done = taken.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
            seen.extend(done.map(|(delivery, _)| body(delivery)));
        }
        for sender in senders {
            sender.await.unwrap();
        }
        assert_eq!(queue.actor_restarts(), 3);
        let totals = queue.totals();
        assert_eq!(totals.pending + totals.in_flight + totals.delayed, 0);
    }
}

async fn send_numbered(queue: Queue, sender: usize) {
    for number in 0..200 {
        queue.enqueue(vec![NewMessage::new(format!("{sender}-{number}"))]).await.unwrap();
    }
}

/// Has the queue's keeper fall while it delivers, and waits for the next.
async fn fell(queue: &Queue, store: &Arc<Watched>) {
    let before = queue.actor_restarts();
    store.trip();
    let lease = Some(Duration::ZERO);
    let taken = queue.receive(ReceiveOptions { max: 1, lease, wait: Duration::from_secs(20) }).await.unwrap();
    assert_eq!((taken.len(), queue.actor_restarts()), (1, before + 1));
    queue.nack(&[(taken[0].receipt.clone(), Some(Duration::ZERO))]).await;
}
