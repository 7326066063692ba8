//! Leases, acknowledgements and redelivery.

use std::time::Duration;

use evenkeel_queue::queue::{MoveProgress, ReceiveOptions};
use evenkeel_queue::queue_state::{Explanation, MoveCursor};
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::store::StoreError;
use evenkeel_queue::{Namespace, NewMessage, QueueSettings, Rejection};

use crate::harness::{Rig, ack, body, receive, receive_now, send};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_message_is_delivered_once_until_its_lease_ends() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings { lease_ms: 50, ..QueueSettings::default() }).await;
        send(&queue, ["a"]).await;
        let first = receive_now(&queue, 10).await;
        assert_eq!(first.len(), 1);
        assert!(receive_now(&queue, 10).await.is_empty(), "the message was leased to two consumers");
        let second = receive(&queue, 10).await;
        assert_eq!((second[0].id, second[0].attempt), (first[0].id, 2));
        assert_eq!(queue.ack(&[first[0].receipt.clone()]).await, [Err(Rejection::StaleReceipt)]);
        ack(&queue, &second).await;
        for delivery in [&first[0], &second[0]] {
            let receipt = delivery.receipt.clone();
            assert_eq!(queue.ack(core::slice::from_ref(&receipt)).await, [Err(Rejection::MessageGone)]);
            assert_eq!(queue.extend(&[(receipt, LONG)]).await, [Err(Rejection::MessageGone)]);
        }
        assert_eq!(queue.totals().in_flight, 0);
    }
}

#[tokio::test]
async fn a_forged_or_foreign_receipt_acknowledges_nothing() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let other = rig
            .queues
            .create(Namespace::Shared, "other", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        send(&queue, ["a"]).await;
        let received = receive_now(&queue, 1).await;
        assert_eq!(queue.ack(&[Receipt::new("made-up")]).await, [Err(Rejection::ForgedReceipt)]);
        assert_eq!(other.ack(&[received[0].receipt.clone()]).await, [Err(Rejection::ForgedReceipt)]);
        assert_eq!(queue.totals().in_flight, 1);
    }
}

#[tokio::test]
async fn a_waiting_consumer_gets_the_next_message() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { receive(&queue, 10).await }
        });
        tokio::task::yield_now().await;
        send(&queue, ["a"]).await;
        assert_eq!(body(&waiting.await.unwrap()[0]), "a-0");
    }
}

#[tokio::test]
async fn a_message_whose_lease_has_just_ended_goes_to_the_consumer_that_waits_longest() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings { lease_ms: 100, ..QueueSettings::default() }).await;
        send(&queue, ["a"]).await;
        assert_eq!(receive_now(&queue, 1).await.len(), 1);
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { receive(&queue, 1).await }
        });
        tokio::task::yield_now().await;
        // Once the actor has answered this, it has the waiting receive.
        queue.stats().await.unwrap();
        // Blocks the runtime, so that the next receive finds the lease ended before the actor's timer does.
        std::thread::sleep(Duration::from_millis(150));
        assert!(receive_now(&queue, 1).await.is_empty());
        assert_eq!(body(&waiting.await.unwrap()[0]), "a-0");
    }
}

#[tokio::test]
async fn a_consumer_that_timed_out_leases_nothing() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let gone = queue.receive(ReceiveOptions { max: 1, lease: None, wait: Duration::from_millis(5) });
        assert!(gone.await.unwrap().is_empty());
        send(&queue, ["a"]).await;
        let received = receive(&queue, 1).await;
        assert_eq!(received[0].attempt, 1, "an undelivered lease was counted as an attempt");
    }
}

#[tokio::test]
async fn a_nacked_message_is_redelivered_after_its_delay() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let first = receive_now(&queue, 1).await;
        let back = queue.nack(&[(first[0].receipt.clone(), Some(Duration::ZERO))]).await;
        assert_eq!(back, [Ok(())]);
        let second = receive_now(&queue, 1).await;
        assert_eq!(second[0].attempt, 2);
        queue.nack(&[(second[0].receipt.clone(), Some(Duration::from_millis(30)))]).await;
        assert!(receive_now(&queue, 1).await.is_empty());
        assert_eq!(queue.totals().delayed, 1);
        assert_eq!(receive(&queue, 1).await[0].attempt, 3);
    }
}

#[tokio::test]
async fn an_extended_lease_holds() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings { lease_ms: 40, ..QueueSettings::default() }).await;
        send(&queue, ["a", "b"]).await;
        let received = receive_now(&queue, 2).await;
        assert_eq!(queue.extend(&[(received[0].receipt.clone(), Duration::from_secs(60))]).await, [Ok(())]);
        let again = receive(&queue, 2).await;
        assert_eq!(again.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [received[1].id]);
    }
}

#[tokio::test]
async fn a_delayed_message_is_delivered_after_its_delay() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let late = NewMessage { delay: Some(Duration::from_millis(40)), ..NewMessage::new("late") };
        queue.enqueue(vec![late, NewMessage::new("now")]).await.unwrap();
        assert_eq!(body(&receive_now(&queue, 10).await[0]), "now");
        assert_eq!(body(&receive(&queue, 10).await[0]), "late");
    }
}

#[tokio::test]
async fn leases_end_while_the_queue_is_busy() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings { lease_ms: 30, ..QueueSettings::default() }).await;
        send(&queue, ["stuck"]).await;
        assert_eq!(receive_now(&queue, 1).await.len(), 1);
        // The queue is never idle: sends and receives continue until the message is redelivered.
        let mut rounds = 0;
        loop {
            send(&queue, ["busy"]).await;
            let received = receive_now(&queue, 10).await;
            let is_back = received.iter().any(|delivery| &*delivery.key == "stuck");
            ack(&queue, &received).await;
            if is_back {
                break;
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "a lease did not end while the queue was busy");
        }
    }
}

#[tokio::test]
async fn a_message_that_always_fails_moves_to_the_dead_letter_queue_and_back() {
    for rig in Rig::both().await {
        let dead = rig
            .queues
            .create(Namespace::Shared, "dead", QueueSettings::default(), String::new())
            .await
            .unwrap()
            .queue();
        let redrive = evenkeel_queue::settings::RedrivePolicy { to: dead.id(), attempts_max: 2 };
        let queue = rig.queue(QueueSettings { redrive: Some(redrive), ..QueueSettings::default() }).await;
        let sent = queue.enqueue(vec![NewMessage::new("tenant/a-0").for_key("tenant/a")]).await.unwrap()[0];
        for _ in 0..2 {
            let received = receive(&queue, 1).await;
            queue.nack(&[(received[0].receipt.clone(), Some(Duration::ZERO))]).await;
        }
        let dead_lettered = receive(&dead, 1).await;
        assert_eq!((&*dead_lettered[0].key, body(&dead_lettered[0])), ("tenant/a", "tenant/a-0".into()));
        assert_eq!(
            (dead_lettered[0].from, dead_lettered[0].attempt, dead_lettered[0].id),
            (Some(queue.id()), 1, sent)
        );
        assert_eq!(queue.totals().pending + queue.totals().in_flight, 0);
        assert!(matches!(dead.explain(sent).await, Ok(Explanation::InFlight { attempt: 1, .. })));
        dead.nack(&[(dead_lettered[0].receipt.clone(), Some(Duration::ZERO))]).await;
        let moved = dead.move_some(MoveCursor::default(), None, 10).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 1, left: 0, next: None }));
        let back = receive(&queue, 1).await;
        assert_eq!((back[0].attempt, back[0].id, back[0].from), (1, sent, Some(dead.id())));
    }
}

#[tokio::test]
async fn a_full_queue_rejects_new_messages_and_keeps_its_own() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings { messages_max: 3, ..QueueSettings::default() }).await;
        send(&queue, ["a", "b", "c"]).await;
        let rejected = queue.enqueue(vec![NewMessage::new("d")]).await;
        assert_eq!(rejected, Err(Rejection::QueueFull { limit: "messages", max: 3 }));
        ack(&queue, &receive_now(&queue, 1).await).await;
        queue.enqueue(vec![NewMessage::new("d")]).await.unwrap();
        assert_eq!(receive_now(&queue, 10).await.len(), 3);
    }
}

#[tokio::test]
async fn a_purged_queue_is_empty_and_accepts_new_messages() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"; 1_000]).await;
        let held = receive_now(&queue, 5).await;
        queue.purge().await.unwrap();
        assert_eq!(queue.ack(&[held[0].receipt.clone()]).await, [Err(Rejection::MessageGone)]);
        assert!(receive_now(&queue, 10).await.is_empty());
        send(&queue, ["b"]).await;
        assert_eq!(body(&receive(&queue, 10).await[0]), "b-0");
    }
}

#[tokio::test]
async fn a_deep_backlog_is_delivered_completely_and_in_order() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        for part in 0..20 {
            let messages =
                (0..500).map(|n| NewMessage::new(format!("{}", part * 500 + n)).for_key("deep")).collect();
            queue.enqueue(messages).await.unwrap();
        }
        let mut next = 0;
        while next < 10_000 {
            let received = receive(&queue, 100).await;
            for delivery in &received {
                assert_eq!(body(delivery), next.to_string());
                next += 1;
            }
            ack(&queue, &received).await;
        }
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.bytes), (0, 0, 0));
    }
}

#[tokio::test]
async fn a_released_delivery_counts_no_attempt_and_is_redelivered_with_another_receipt() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let first = receive_now(&queue, 1).await;
        assert_eq!(queue.release(&[first[0].receipt.clone()]).await, [Ok(())]);
        let second = receive_now(&queue, 1).await;
        assert_eq!((second[0].id, second[0].attempt), (first[0].id, 1));
        let stale = [first[0].receipt.clone()];
        assert_eq!(
            queue.ack(&stale).await,
            [Err(Rejection::StaleReceipt)],
            "the receipt is of an earlier delivery"
        );
        assert_eq!(queue.release(&stale).await, [Err(Rejection::StaleReceipt)]);
        ack(&queue, &second).await;
    }
}

#[tokio::test]
async fn a_receive_of_zero_messages_blocks_no_other() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let nothing = ReceiveOptions { max: 0, lease: None, wait: Duration::from_secs(20) };
        let idle = tokio::spawn({
            let queue = queue.clone();
            async move { queue.receive(nothing).await }
        });
        tokio::task::yield_now().await;
        queue.key_stats(0, 1).await.unwrap();
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { receive(&queue, 1).await }
        });
        tokio::task::yield_now().await;
        send(&queue, ["a"]).await;
        assert_eq!(body(&waiting.await.unwrap()[0]), "a-0");
        assert!(idle.await.unwrap().unwrap().is_empty());
    }
}

/// A client that gets no answer retries; the retry must not be confirmed before the delete is written.
#[tokio::test]
async fn a_second_acknowledgement_is_not_confirmed_before_the_first() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let receipts = [receive_now(&queue, 1).await[0].receipt.clone()];
        store.hold();
        let first = tokio::spawn({
            let queue = queue.clone();
            let receipts = receipts.clone();
            async move { queue.ack(&receipts).await }
        });
        while store.held_len() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.ack(&receipts).await, [Err(Rejection::Busy)]);
        store.fail_held();
        assert_eq!(first.await.unwrap(), [Err(Rejection::Store(StoreError::Busy))]);
        let twice = [receipts[0].clone(), receipts[0].clone()];
        assert_eq!(queue.ack(&twice).await, [Ok(()), Ok(())]);
        assert_eq!(queue.ack(&receipts).await, [Err(Rejection::MessageGone)]);
    }
}
