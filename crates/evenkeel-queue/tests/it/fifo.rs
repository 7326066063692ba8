//! FIFO queues: messages of a key one after the other, keys scheduled fairly.

use std::time::Duration;

use evenkeel_queue::queues::CreateError;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, Namespace, NewMessage, QueueSettings, Rejection};

use crate::harness::{Rig, ack, body, keys, receive, receive_now, send};

const FIFO: QueueSettings = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::STANDARD };

#[tokio::test]
async fn a_batch_keeps_the_order_of_each_key_and_blocks_its_next_message() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a", "a", "a", "a", "b", "b"]).await;
        let received = receive_now(&queue, 3).await;
        assert_eq!(
            received.iter().map(body).collect::<Vec<_>>(),
            ["a-0", "b-4", "a-1"],
            "keys are served in turn"
        );
        assert!(receive_now(&queue, 10).await.is_empty(), "both keys have messages in flight");
        ack(&queue, &received[..1]).await;
        assert!(
            receive_now(&queue, 10).await.is_empty(),
            "one of the two messages of key a is still in flight"
        );
        ack(&queue, &received[1..]).await;
        let rest = receive(&queue, 10).await;
        let mut all: Vec<String> = rest.iter().map(body).collect();
        all.sort();
        assert_eq!(all, ["a-2", "a-3", "b-5"]);
    }
}

#[tokio::test]
async fn a_nacked_message_comes_before_the_rest_of_its_fifo_key() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a", "a", "b"]).await;
        let received = receive_now(&queue, 1).await;
        queue.nack(&[(received[0].receipt.clone(), Some(Duration::from_millis(100)))]).await;
        assert_eq!(keys(&receive_now(&queue, 10).await), ["b"], "key a waits for its first message");
        let again = receive(&queue, 1).await;
        assert_eq!((body(&again[0]), again[0].attempt), ("a-0".into(), 2));
    }
}

#[tokio::test]
async fn a_dead_letter_unblocks_its_fifo_key() {
    let rig = Rig::disk().await;
    let dead = rig.queues.create(Namespace::Shared, "dead", FIFO, String::new()).await.unwrap().queue();
    let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
    let queue = rig.queue(QueueSettings { redrive, ..FIFO }).await;
    send(&queue, ["a", "a"]).await;
    let received = receive_now(&queue, 1).await;
    queue.nack(&[(received[0].receipt.clone(), Some(Duration::ZERO))]).await;
    assert_eq!(body(&receive(&queue, 1).await[0]), "a-1");
    assert_eq!(body(&receive(&dead, 1).await[0]), "a-0");
}

#[tokio::test]
async fn fifo_order_survives_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(FIFO).await;
    send(&queue, ["a"; 3]).await;
    let received = receive_now(&queue, 2).await;
    queue.nack(&[(received[1].receipt.clone(), Some(Duration::from_secs(600)))]).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert!(receive_now(&queue, 10).await.is_empty(), "the first is in flight, the second is delayed");
    ack(&queue, &received[..1]).await;
    assert!(receive_now(&queue, 10).await.is_empty(), "the second is delayed");
    assert_eq!(queue.ack(&[received[1].receipt.clone()]).await, [Ok(())]);
    assert_eq!(body(&receive(&queue, 1).await[0]), "a-2");
}

#[tokio::test]
async fn a_message_in_flight_across_a_restart_blocks_the_rest_of_its_key() {
    let rig = Rig::disk().await;
    let queue = rig.queue(FIFO).await;
    send(&queue, ["a"; 3]).await;
    let received = receive_now(&queue, 1).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    while queue.peek(10).await.unwrap().len() < 2 {}
    assert!(receive_now(&queue, 10).await.is_empty(), "the first is in flight");
    ack(&queue, &received).await;
    assert_eq!(body(&receive(&queue, 1).await[0]), "a-1");
}

#[tokio::test]
async fn a_fifo_queue_rejects_a_change_of_order_and_messages_with_a_delay() {
    let rig = Rig::memory().await;
    let queue = rig.queue(FIFO).await;
    let changed = rig.queues.change(&queue, QueueSettings::default(), String::new()).await;
    assert!(matches!(changed, Err(CreateError::OrderIsFixed)));
    let late = NewMessage { delay: Some(Duration::from_secs(1)), ..NewMessage::new("late") };
    assert_eq!(queue.enqueue(vec![late]).await, Err(Rejection::DelayOnFifo));
}
