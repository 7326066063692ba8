//! FIFO queues: messages of a key one after the other, keys scheduled fairly.

use std::time::Duration;

use evenkeel_queue::queues::CreateError;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Delivery, DeliveryOrder, Namespace, NewMessage, QueueSettings, Rejection};

use crate::harness::{Rig, ack, body, keys, receive, receive_now, send};

const LONG: Duration = Duration::from_secs(600);
const FIFO: QueueSettings = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::STANDARD };

#[tokio::test]
async fn a_receive_takes_one_key_before_the_next_and_blocks_the_rest_of_each() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a", "a", "a", "a", "b", "b"]).await;
        let received = receive_now(&queue, 3).await;
        assert_eq!(bodies(&received), ["a-0", "a-1", "a-2"]);
        let other = receive_now(&queue, 10).await;
        assert_eq!(bodies(&other), ["b-4", "b-5"], "key a has messages in flight");
        ack(&queue, &received[..2]).await;
        assert!(receive_now(&queue, 10).await.is_empty(), "a-2 is still in flight");
        ack(&queue, &received[2..]).await;
        assert_eq!(bodies(&receive(&queue, 10).await), ["a-3"]);
    }
}

/// Each message of a receive is charged to its key, so a long backlog delays the others by one receive, not by more.
#[tokio::test]
async fn a_quiet_key_waits_for_at_most_one_receive_of_each_busy_key() {
    let rig = Rig::memory().await;
    let queue = rig.queue(FIFO).await;
    send(&queue, ["busy0", "busy1", "busy2"].iter().flat_map(|key| [*key; 400])).await;
    let mut served = std::collections::BTreeMap::<String, usize>::new();
    for round in 0..60 {
        if round % 4 == 0 {
            send(&queue, ["quiet"]).await;
        }
        let received = receive(&queue, 10).await;
        for key in keys(&received) {
            *served.entry(key).or_default() += 1;
        }
        ack(&queue, &received).await;
        // After the receive that was next, and one of each busy key, no quiet message may be left.
        if round % 4 == 3 {
            assert_eq!(served["quiet"], round / 4 + 1, "a quiet message waits after round {round}");
        }
    }
    let busy: Vec<usize> = ["busy0", "busy1", "busy2"].map(|key| served[key]).into();
    let difference = busy.iter().max().unwrap() - busy.iter().min().unwrap();
    assert!(difference <= 10, "busy keys of equal weight got {busy:?}");
}

#[tokio::test]
async fn a_returned_message_is_redelivered_while_a_later_one_of_its_key_is_in_flight() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a"; 4]).await;
        let received = receive_now(&queue, 3).await;
        queue.nack(&[(received[1].receipt.clone(), Some(Duration::ZERO))]).await;
        assert!(receive_now(&queue, 10).await.is_empty(), "a-0 comes before a-1 and is in flight");
        ack(&queue, &received[..1]).await;
        let again = receive_now(&queue, 10).await;
        assert_eq!(bodies(&again), ["a-1"], "a-3 waits for a-2, which is in flight");
        ack(&queue, &again).await;
        assert!(receive_now(&queue, 10).await.is_empty(), "a-3 waits for a-2, which is in flight");
        ack(&queue, &received[2..]).await;
        assert_eq!(bodies(&receive(&queue, 10).await), ["a-3"]);
    }
}

#[tokio::test]
async fn a_receipt_of_a_fifo_queue_ends_with_its_lease() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a"]).await;
        let late = [receive_now(&queue, 1).await[0].receipt.clone()];
        queue.nack(&[(late[0].clone(), Some(Duration::ZERO))]).await;
        assert_eq!(queue.ack(&late).await, [Err(Rejection::NotInFlight)]);
        assert_eq!(queue.extend(&[(late[0].clone(), LONG)]).await, [Err(Rejection::NotInFlight)]);
        let again = receive_now(&queue, 1).await;
        assert_eq!(queue.ack(&late).await, [Err(Rejection::StaleReceipt)]);
        assert_eq!(queue.extend(&[(late[0].clone(), LONG)]).await, [Err(Rejection::StaleReceipt)]);
        ack(&queue, &again).await;
        assert_eq!(queue.ack(&late).await, [Err(Rejection::MessageGone)]);
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

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(body).collect()
}
