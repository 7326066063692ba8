//! Receipts used after their lease has ended, and the move of exhausted messages to the dead-letter queue.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::queue_state::{DEAD_LETTER_DELAY, Disposition, Explanation, QueueState};
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{
    Delivery, DeliveryOrder, Epoch, KeyId, KeyRule, Namespace, Queue, QueueId, QueueSettings, Rejection, Seq,
    UnixMillis,
};

use crate::harness::{Rig, ack, body, receive, receive_now, send};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_late_receipt_leases_a_visible_message_again_and_deletes_it() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a", "b"]).await;
        let received = receive_expired(&queue, 2).await;
        let late = received[0].receipt.clone();
        assert_eq!(queue.extend(&[(late.clone(), LONG)]).await, [Ok(())]);
        ack(&queue, &received[1..]).await;
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight), (0, 1));
        assert!(receive_now(&queue, 10).await.is_empty(), "the message is leased again");
        assert_eq!(queue.nack(&[(late.clone(), Some(Duration::ZERO))]).await, [Ok(())]);
        assert_eq!(queue.nack(&[(late.clone(), Some(Duration::ZERO))]).await, [Err(Rejection::NotInFlight)]);
        assert_eq!(queue.release(&[late]).await, [Err(Rejection::NotInFlight)]);
        let again = receive_now(&queue, 10).await;
        assert_eq!(again[0].attempt, 2, "leasing again counts no attempt");
        ack(&queue, &again).await;
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.bytes), (0, 0, 0));
    }
}

#[tokio::test]
async fn a_receipt_of_an_earlier_delivery_changes_nothing() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        let earlier = receive_expired(&queue, 1).await[0].receipt.clone();
        let held = receive(&queue, 1).await;
        for in_flight in [1, 0] {
            assert_eq!(
                queue.extend(&[(earlier.clone(), Duration::ZERO)]).await,
                [Err(Rejection::StaleReceipt)]
            );
            assert_eq!(queue.nack(&[(earlier.clone(), None)]).await, [Err(Rejection::StaleReceipt)]);
            assert_eq!(queue.ack(core::slice::from_ref(&earlier)).await, [Err(Rejection::StaleReceipt)]);
            assert_eq!(queue.totals().in_flight, in_flight);
            // Nor does it once the message is visible again.
            queue.nack(&[(held[0].receipt.clone(), Some(Duration::ZERO))]).await;
        }
        assert_eq!(queue.ack(&[held[0].receipt.clone()]).await, [Ok(())]);
    }
}

#[tokio::test]
async fn a_late_receipt_works_after_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a", "b"]).await;
    let receipts = receive_expired(&queue, 2).await;
    let receipts: Vec<Receipt> = receipts.into_iter().map(|delivery| delivery.receipt).collect();
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!(queue.ack(&receipts[..1]).await, [Ok(())]);
    assert_eq!(queue.extend(&[(receipts[1].clone(), LONG)]).await, [Ok(())]);
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!((queue.totals().pending, queue.totals().in_flight), (0, 1));
    assert_eq!(queue.ack(&receipts[1..]).await, [Ok(())]);
}

#[tokio::test]
async fn a_late_receipt_respects_the_limits_of_messages_in_flight() {
    let one = KeyRule { concurrency_max: NonZeroU32::new(1), ..KeyRule::default() };
    for (in_flight_max, rule) in [(1, KeyRule::default()), (100, one)] {
        let rig = Rig::memory().await;
        let queue = rig.queue(QueueSettings { in_flight_max, ..QueueSettings::default() }).await;
        queue.set_rule("a", rule).await.unwrap();
        send(&queue, ["a", "a"]).await;
        let late = receive_now(&queue, 1).await[0].receipt.clone();
        queue.nack(&[(late.clone(), Some(LONG))]).await;
        let held = receive_now(&queue, 1).await;
        let again = [(late, LONG)];
        assert_eq!(queue.extend(&again).await, [Err(Rejection::TooManyInFlight { max: 1 })]);
        ack(&queue, &held).await;
        assert_eq!(queue.extend(&again).await, [Ok(())]);
        send(&queue, ["a"]).await;
        let more = queue.receive(ReceiveOptions { max: 1, lease: None, wait: Duration::ZERO }).await;
        assert!(
            more.is_err() || more.unwrap().is_empty(),
            "the limit counts the message that was leased again"
        );
    }
}

#[tokio::test]
async fn a_late_delete_wins_against_the_dead_letter_queue() {
    for rig in Rig::both().await {
        let (queue, dead) = with_dead_letters(&rig, 1).await;
        send(&queue, ["a"]).await;
        let late = receive_expired(&queue, 1).await;
        let explained = queue.explain(late[0].id).await.unwrap();
        assert!(matches!(explained, Explanation::Exhausted { attempts: 1, .. }), "{explained:?}");
        assert_eq!((queue.totals().pending, dead.totals().pending), (1, 0));
        assert_eq!(queue.key_stats(0, 1).await.unwrap()[0].pending, 1);
        ack(&queue, &late).await;
        assert!(receive_now(&queue, 1).await.is_empty());
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.bytes, dead.totals().pending), (0, 0, 0, 0));
    }
}

#[tokio::test]
async fn the_next_receive_moves_an_exhausted_message_to_the_dead_letter_queue() {
    for rig in Rig::both().await {
        let (queue, dead) = with_dead_letters(&rig, 1).await;
        send(&queue, ["a", "b"]).await;
        let late = receive_expired(&queue, 1).await[0].receipt.clone();
        // Leased again, the message is in flight and does not move.
        assert_eq!(queue.extend(&[(late.clone(), LONG)]).await, [Ok(())]);
        assert_eq!(body(&receive_now(&queue, 10).await[0]), "b-1");
        assert_eq!((queue.totals().in_flight, dead.totals().pending), (2, 0));
        assert_eq!(queue.extend(&[(late.clone(), Duration::ZERO)]).await, [Ok(())]);
        assert!(receive_now(&queue, 10).await.is_empty());
        assert_eq!(body(&receive(&dead, 1).await[0]), "a-0");
        let mut acked = queue.ack(core::slice::from_ref(&late)).await;
        // The dead-letter queue may deliver the message before its old queue learns that the move was written.
        while acked == [Err(Rejection::Busy)] {
            acked = queue.ack(core::slice::from_ref(&late)).await;
        }
        let answers = [acked, queue.extend(&[(late, LONG)]).await];
        assert_eq!(answers, [[Err(Rejection::MessageGone)], [Err(Rejection::MessageGone)]]);
        assert_eq!((queue.totals().pending, queue.totals().in_flight), (0, 1));
    }
}

#[tokio::test]
async fn an_empty_response_waits_only_for_moves_that_began_before_the_receive() {
    for (rig, store) in Rig::both_recording().await {
        let (queue, _dead) = with_dead_letters(&rig, 1).await;
        send(&queue, ["a", "b"]).await;
        let deliveries = receive(&queue, 2).await;
        store.hold();
        let move_away = async |delivery: &Delivery, held: usize| {
            let queue = queue.clone();
            let receipt = delivery.receipt.clone();
            tokio::spawn(async move { queue.nack(&[(receipt, None)]).await });
            while store.held_len() < held {
                tokio::task::yield_now().await;
            }
        };
        move_away(&deliveries[0], 1).await;
        let now = ReceiveOptions { max: 1, lease: None, wait: Duration::ZERO };
        let mut receiving = pin!(queue.receive(now));
        let mut poll =
            || receiving.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap);
        assert!(poll().is_pending());
        move_away(&deliveries[1], 2).await;
        assert!(poll().is_pending());
        store.complete_first_held();
        // Once the actor has answered this, it has handled the completed move.
        queue.stats().await.unwrap();
        assert_eq!(poll().map(|received| received.len()), Poll::Ready(0));
        store.fail_held();
    }
}

#[tokio::test]
async fn a_waiting_receive_moves_a_message_as_soon_as_it_is_exhausted() {
    for rig in Rig::both().await {
        let (queue, dead) = with_dead_letters(&rig, 1).await;
        send(&queue, ["a"]).await;
        let lease = Some(Duration::from_millis(50));
        queue.receive(ReceiveOptions { max: 1, lease, wait: Duration::ZERO }).await.unwrap();
        let waiting = tokio::spawn(async move { receive(&queue, 1).await });
        assert_eq!(body(&receive(&dead, 1).await[0]), "a-0");
        waiting.abort();
    }
}

#[tokio::test]
async fn an_exhausted_message_is_delivered_again_if_the_redrive_policy_was_relaxed() {
    for relaxed in [None, Some(2)] {
        for rig in Rig::both().await {
            let (queue, dead) = with_dead_letters(&rig, 1).await;
            send(&queue, ["a"]).await;
            receive_expired(&queue, 1).await;
            let redrive = relaxed.map(|attempts_max| RedrivePolicy { to: dead.id(), attempts_max });
            let settings = QueueSettings { redrive, ..QueueSettings::default() };
            rig.queues.change(&queue, settings, String::new()).await.unwrap();
            assert_eq!(receive_now(&queue, 1).await[0].attempt, 2);
            assert_eq!((queue.totals().pending, queue.totals().in_flight, dead.totals().pending), (0, 1, 0));
        }
    }
}

#[tokio::test]
async fn an_exhausted_message_blocks_its_fifo_key_until_it_has_moved() {
    for rig in Rig::both().await {
        let settings = QueueSettings { order: DeliveryOrder::Fifo, ..QueueSettings::default() };
        let dead = rig.queues.create(Namespace::Shared, "dead", settings.clone(), String::new()).await;
        let dead = dead.unwrap().queue();
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let queue = rig.queue(QueueSettings { redrive, ..settings }).await;
        send(&queue, ["a", "a"]).await;
        let late = receive_expired(&queue, 1).await;
        let expired: Vec<Receipt> = late.into_iter().map(|delivery| delivery.receipt).collect();
        assert_eq!(queue.ack(&expired).await, [Err(Rejection::NotInFlight)]);
        assert_eq!(body(&receive(&queue, 10).await[0]), "a-1");
        assert_eq!((dead.totals().pending, body(&receive(&dead, 1).await[0])), (1, "a-0".into()));
        assert_eq!(queue.ack(&expired).await, [Err(Rejection::MessageGone)]);
    }
}

#[tokio::test]
async fn an_exhausted_message_is_kept_across_a_restart() {
    let rig = Rig::disk().await;
    let (queue, _) = with_dead_letters(&rig, 1).await;
    send(&queue, ["a", "b"]).await;
    let late = receive_expired(&queue, 1).await;
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    let dead = rig.queues.get(Namespace::Shared, "dead").unwrap();
    wait_until_none_is_leased(&queue).await;
    let explained = queue.explain(late[0].id).await.unwrap();
    assert!(matches!(explained, Explanation::Exhausted { attempts: 1, .. }), "{explained:?}");
    assert_eq!((queue.totals().pending, dead.totals().pending), (2, 0));
    ack(&queue, &late).await;
    assert_eq!(queue.totals().pending, 1);
}

#[test]
fn an_exhausted_message_moves_by_itself_a_minute_after_its_lease_ended() {
    let redrive = Some(RedrivePolicy { to: QueueId(9), attempts_max: 1 });
    let settings = QueueSettings { redrive, ..QueueSettings::default() };
    let mut state = QueueState::new(Epoch(1), &settings, (1, 2)).unwrap();
    let meta = MessageMeta {
        seq: Seq(1),
        sent_at: UnixMillis(0),
        size: 3,
        cost: Cost::MESSAGE,
        from: None,
        expires_at: None,
    };
    let payload = Payload { headers: "".into(), body: "abc".into() };
    let name: Arc<str> = "a".into();
    let message = AppendedMessage { key: KeyId(0), name, weight: None, meta, not_before: None, payload };
    state.append(UnixMillis(0), message).unwrap();
    state.lease_messages(UnixMillis(0), 1, Duration::from_millis(100)).unwrap();
    assert_eq!(state.expire_leases(UnixMillis(100), 10), []);
    let move_at = UnixMillis(100) + DEAD_LETTER_DELAY;
    assert_eq!((move_at, state.next_due()), (UnixMillis(60_100), Some(move_at)));
    assert_eq!(state.expire_leases(UnixMillis(60_099), 10), []);
    let moved = Disposition::DeadLetter { key: KeyId(0), meta, attempts: 1 };
    assert_eq!(state.expire_leases(move_at, 10), [moved]);
}

#[tokio::test]
async fn a_queue_that_is_its_own_dead_letter_queue_redelivers_without_a_move() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: queue.id(), attempts_max: 1 });
        let settings = QueueSettings { redrive, ..QueueSettings::default() };
        rig.queues.change(&queue, settings, String::new()).await.unwrap();
        send(&queue, ["a"]).await;
        for attempt in 1..=3 {
            let received = receive(&queue, 10).await;
            assert_eq!((received[0].attempt, received[0].from), (attempt, None));
            queue.nack(&[(received[0].receipt.clone(), Some(Duration::ZERO))]).await;
        }
        assert_eq!(queue.totals().pending, 1);
    }
}

async fn with_dead_letters(rig: &Rig, attempts_max: u32) -> (Queue, Queue) {
    let settings = QueueSettings::default();
    let dead = rig.queues.create(Namespace::Shared, "dead", settings, String::new()).await.unwrap().queue();
    let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max });
    (rig.queue(QueueSettings { redrive, ..QueueSettings::default() }).await, dead)
}

/// Receives messages and waits until their leases have ended.
async fn receive_expired(queue: &Queue, max: usize) -> Vec<Delivery> {
    let options = ReceiveOptions { max, lease: Some(Duration::ZERO), wait: Duration::from_secs(20) };
    let received = queue.receive(options).await.unwrap();
    assert_eq!(received.len(), max);
    wait_until_none_is_leased(queue).await;
    received
}

async fn wait_until_none_is_leased(queue: &Queue) {
    while queue.stats().await.unwrap().totals.in_flight > 0 {
        tokio::task::yield_now().await;
    }
}
