//! Queue actors that crash are restarted: no message is lost, and no client has to do anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::{NewMessage, Queue, QueueSettings, Rejection};

use crate::harness::{Rig, ack, body, receive, receive_now, send};
use crate::recording_store::RecordingStore;

#[tokio::test]
async fn a_queue_actor_that_panics_is_restarted_without_losing_messages() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings { lease_ms: 200, ..QueueSettings::default() }).await;
        send(&queue, ["a", "b", "c", "d"]).await;
        let held = receive_now(&queue, 1).await;
        crash_actor(&queue, &store).await;
        assert_eq!(queue.totals().pending + queue.totals().in_flight, 4);
        // A receipt from before the crash is valid, as after a process restart.
        ack(&queue, &held).await;
        send(&queue, ["e"]).await;
        let mut seen = BTreeSet::from([body(&held[0])]);
        while seen.len() < 5 {
            let received = receive(&queue, 10).await;
            ack(&queue, &received).await;
            seen.extend(received.iter().map(body));
        }
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.delayed, totals.bytes), (0, 0, 0, 0));
        assert_eq!(queue.actor_restarts(), 1);
    }
}

#[tokio::test]
async fn a_waiting_consumer_is_served_after_the_actor_restarts() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings { lease_ms: 0, ..QueueSettings::default() }).await;
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { receive(&queue, 1).await }
        });
        // Answered after the waiting receive has been enqueued.
        queue.key_stats(0, 1).await.unwrap();
        store.panic_next_commit();
        send(&queue, ["a"]).await;
        assert_eq!(body(&waiting.await.unwrap()[0]), "a-0");
        assert_eq!(queue.actor_restarts(), 1);
    }
}

#[tokio::test]
async fn a_request_to_an_actor_that_crashes_is_interrupted() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let held = receive_now(&queue, 1).await;
        store.panic_next_commit();
        let answers = queue.ack(&[held[0].receipt.clone()]).await;
        assert_eq!(answers, [Err(Rejection::Interrupted)]);
        // A retry succeeds.
        ack(&queue, &held).await;
        assert!(receive_now(&queue, 1).await.is_empty());
    }
}

#[tokio::test]
async fn settings_and_limits_hold_after_an_actor_restart() {
    for (rig, store) in Rig::both_recording().await {
        let settings = QueueSettings { messages_max: 5, ..QueueSettings::default() };
        let queue = rig.queue(settings).await;
        send(&queue, ["a", "a", "a"]).await;
        crash_actor(&queue, &store).await;
        send(&queue, ["a", "a"]).await;
        let rejected = queue.enqueue(vec![NewMessage::new("one too many")]).await;
        assert_eq!(rejected, Err(Rejection::QueueFull { limit: "messages", max: 5 }));
        rig.queues.remove(queue.id()).await.unwrap();
        let result =
            queue.receive(ReceiveOptions { max: 1, lease: None, wait: Duration::from_secs(20) }).await;
        assert_eq!(result.unwrap_err(), Rejection::QueueDeleted);
        assert_eq!(queue.actor_restarts(), 1, "the actor of a deleted queue was restarted");
    }
}

/// Senders continue while the actor crashes repeatedly: every accepted message is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_message_is_lost_while_actors_crash() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings { lease_ms: 1_000, ..QueueSettings::default() }).await;
        let senders: Vec<_> =
            (0..4).map(|sender| tokio::spawn(send_numbered(queue.clone(), sender))).collect();
        let mut seen = BTreeSet::new();
        let mut crashes = 0;
        while seen.len() < 4 * 200 {
            let options = ReceiveOptions { max: 10, lease: None, wait: Duration::from_secs(20) };
            let received = queue.receive(options).await.unwrap();
            if crashes < 3 && seen.len() >= (crashes + 1) * 150 {
                crashes += 1;
                store.panic_next_commit();
            }
            let receipts: Vec<_> = received.iter().map(|delivery| delivery.receipt.clone()).collect();
            let answers = queue.ack(&receipts).await;
            let done = received.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
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

/// Crashes the queue's actor during a delivery and waits for the restart.
async fn crash_actor(queue: &Queue, store: &Arc<RecordingStore>) {
    let before = queue.actor_restarts();
    store.panic_next_commit();
    let lease = Some(Duration::ZERO);
    let received =
        queue.receive(ReceiveOptions { max: 1, lease, wait: Duration::from_secs(20) }).await.unwrap();
    assert_eq!((received.len(), queue.actor_restarts()), (1, before + 1));
    queue.nack(&[(received[0].receipt.clone(), Some(Duration::ZERO))]).await;
}
