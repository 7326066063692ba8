//! FIFO queues: a key's messages one after the other, keys in turns.

use std::time::Duration;

use evenkeel_queue::queues::CreateError;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, NewMessage, QueueSettings, Rejection};

use crate::harness::{Rig, ack, await_some, body, keys, send, take};

const FIFO: QueueSettings = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::STANDARD };

#[tokio::test]
async fn a_batch_has_a_key_in_order_and_the_next_waits_for_all_of_it() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a", "a", "a", "a", "b", "b"]).await;
        let taken = take(&queue, 3).await;
        assert_eq!(taken.iter().map(body).collect::<Vec<_>>(), ["a-0", "b-4", "a-1"], "keys take turns");
        assert!(take(&queue, 10).await.is_empty(), "both keys have messages out");
        ack(&queue, &taken[..1]).await;
        assert!(take(&queue, 10).await.is_empty(), "one of a's two is still out");
        ack(&queue, &taken[1..]).await;
        let rest = await_some(&queue, 10).await;
        let mut all: Vec<String> = rest.iter().map(body).collect();
        all.sort();
        assert_eq!(all, ["a-2", "a-3", "b-5"]);
    }
}

#[tokio::test]
async fn what_is_given_back_comes_before_anything_else_of_its_key() {
    for rig in Rig::both().await {
        let queue = rig.queue(FIFO).await;
        send(&queue, ["a", "a", "b"]).await;
        let taken = take(&queue, 1).await;
        queue.nack(&[(taken[0].receipt.clone(), Some(Duration::from_millis(100)))]).await;
        assert_eq!(keys(&take(&queue, 10).await), ["b"], "a waits for its first message");
        let again = await_some(&queue, 1).await;
        assert_eq!((body(&again[0]), again[0].attempt), ("a-0".into(), 2));
    }
}

#[tokio::test]
async fn a_dead_letter_frees_its_key() {
    let rig = Rig::disk().await;
    let dead = rig.queues.create("dead", FIFO, String::new()).await.unwrap().queue();
    let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
    let queue = rig.queue(QueueSettings { redrive, ..FIFO }).await;
    send(&queue, ["a", "a"]).await;
    let taken = take(&queue, 1).await;
    queue.nack(&[(taken[0].receipt.clone(), Some(Duration::ZERO))]).await;
    assert_eq!(body(&await_some(&queue, 1).await[0]), "a-1");
    assert_eq!(body(&await_some(&dead, 1).await[0]), "a-0");
}

#[tokio::test]
async fn order_holds_over_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(FIFO).await;
    send(&queue, ["a"; 3]).await;
    let taken = take(&queue, 2).await;
    queue.nack(&[(taken[1].receipt.clone(), Some(Duration::from_secs(600)))]).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    assert!(take(&queue, 10).await.is_empty(), "the first is out, the second is delayed");
    ack(&queue, &taken[..1]).await;
    assert!(take(&queue, 10).await.is_empty(), "the second is delayed");
    assert_eq!(queue.ack(&[taken[1].receipt.clone()]).await, [Ok(())]);
    assert_eq!(body(&await_some(&queue, 1).await[0]), "a-2");
}

#[tokio::test]
async fn who_is_out_over_a_restart_holds_up_the_rest_of_its_key() {
    let rig = Rig::disk().await;
    let queue = rig.queue(FIFO).await;
    send(&queue, ["a"; 3]).await;
    let taken = take(&queue, 1).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get("jobs").unwrap();
    while queue.peek(10).await.unwrap().len() < 2 {}
    assert!(take(&queue, 10).await.is_empty(), "the first is out");
    ack(&queue, &taken).await;
    assert_eq!(body(&await_some(&queue, 1).await[0]), "a-1");
}

#[tokio::test]
async fn order_is_decided_when_a_queue_is_made_and_delays_are_the_queues() {
    let rig = Rig::memory().await;
    let queue = rig.queue(FIFO).await;
    let changed = rig.queues.change(&queue, QueueSettings::default(), String::new()).await;
    assert!(matches!(changed, Err(CreateError::OrderIsFixed)));
    let late = NewMessage { delay: Some(Duration::from_secs(1)), ..NewMessage::new("late") };
    assert_eq!(queue.enqueue(vec![late]).await, Err(Rejection::DelayOnFifo));
}
