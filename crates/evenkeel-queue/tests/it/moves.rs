//! Messages moved from one queue to another.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_queue::queue::MoveProgress;
use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Delivery, MessageId, Namespace, NewMessage, Queue, QueueSettings};

use crate::harness::{Rig, body, receive, receive_now};

/// Messages that are sent directly to the dead-letter queue have no origin. Before each group of dead-lettered
/// messages, more of them are sent than a prefetch reads, so that the move must read past them.
#[tokio::test]
async fn a_move_leaves_messages_without_an_origin_and_moves_the_others() {
    // Runs on a store in memory and on a store on disk.
    for rig in Rig::both().await {
        let dead = create(&rig, "dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let source = create(&rig, "source", QueueSettings { redrive, ..QueueSettings::default() }).await;
        let mut dead_lettered = BTreeSet::new();
        for round in 0..3 {
            let unmoved =
                (0..400).map(|n| NewMessage::new(format!("unmoved-{round}-{n}")).for_key("tenant/a"));
            dead.enqueue(unmoved.collect()).await.unwrap();
            dead_lettered.extend(dead_letter_twenty(&source, round).await);
        }
        while dead.totals().pending < 3 * 400 + 3 * 20 {
            tokio::task::yield_now().await;
        }
        let mut cursor = Some(MoveCursor::default());
        let mut moved = 0;
        let mut left = 0;
        while let Some(from) = cursor {
            let progress = dead.move_some(from, None, 7).await.unwrap();
            assert!(progress.moved <= 7);
            moved += progress.moved;
            cursor = progress.next;
            left = progress.left;
        }
        assert_eq!((moved, left), (60, 1_200));
        assert_eq!(dead.totals().pending, 1_200);
        let mut returned = Vec::new();
        while returned.len() < 60 {
            returned.extend(receive(&source, 10).await);
        }
        assert_eq!(returned.iter().map(|delivery| delivery.id).collect::<BTreeSet<_>>(), dead_lettered);
        // The messages that were left are delivered completely and in order.
        let mut unmoved = Vec::new();
        while unmoved.len() < 1_200 {
            unmoved.extend(receive(&dead, 100).await.iter().map(body));
        }
        let sent = (0..3).flat_map(|round| (0..400).map(move |n| format!("unmoved-{round}-{n}")));
        assert_eq!(unmoved, sent.collect::<Vec<_>>());
        assert!(receive_now(&dead, 1).await.is_empty());
    }
}

#[tokio::test]
async fn a_move_leaves_messages_whose_origin_was_deleted() {
    for rig in Rig::both().await {
        let dead = create(&rig, "dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let source = create(&rig, "source", QueueSettings { redrive, ..QueueSettings::default() }).await;
        dead_letter_twenty(&source, 0).await;
        while dead.totals().pending < 20 {
            tokio::task::yield_now().await;
        }
        rig.queues.remove(source.id()).await.unwrap();
        let moved = dead.move_some(MoveCursor::default(), None, 100).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 0, left: 20, next: None }));
        let other = create(&rig, "other", QueueSettings::default()).await;
        let in_flight = receive_now(&dead, 5).await;
        let moved = dead.move_some(MoveCursor::default(), Some(other.id()), 100).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 15, left: 0, next: None }), "messages in flight stay");
        assert_eq!(count_with_origin(&in_flight), 5);
        assert_eq!((dead.totals().pending, dead.totals().in_flight), (0, 5));
    }
}

#[tokio::test]
async fn a_move_leaves_messages_whose_origin_has_another_owner() {
    for rig in Rig::both().await {
        let dead = create(&rig, "dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let source = create(&rig, "source", QueueSettings { redrive, ..QueueSettings::default() }).await;
        dead_letter_twenty(&source, 0).await;
        while dead.totals().pending < 20 {
            tokio::task::yield_now().await;
        }
        let owner = Namespace::Account("123456789012".parse().unwrap());
        rig.queues.assign(&source, owner, QueueSettings::default(), String::new()).await.unwrap();
        let left = Ok(MoveProgress { moved: 0, left: 20, next: None });
        assert_eq!(dead.move_some(MoveCursor::default(), None, 100).await, left);
        assert_eq!(dead.move_some(MoveCursor::default(), Some(source.id()), 100).await, left);
        rig.queues.assign(&dead, owner, QueueSettings::default(), String::new()).await.unwrap();
        let moved = dead.move_some(MoveCursor::default(), None, 100).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 20, left: 0, next: None }));
    }
}

async fn create(rig: &Rig, name: &str, settings: QueueSettings) -> Queue {
    rig.queues.create(Namespace::Shared, name, settings, String::new()).await.unwrap().queue()
}

/// Sends twenty messages that always fail; returns their ids.
async fn dead_letter_twenty(source: &Queue, round: usize) -> Vec<MessageId> {
    let messages =
        (0..20).map(|n| NewMessage::new(format!("dead-{round}-{n}")).for_key("tenant/a")).collect();
    let ids = source.enqueue(messages).await.unwrap();
    let mut nacked = 0;
    while nacked < ids.len() {
        let received = receive(source, 10).await;
        nacked += received.len();
        let nacks: Vec<_> =
            received.iter().map(|delivery| (delivery.receipt.clone(), Some(Duration::ZERO))).collect();
        assert!(source.nack(&nacks).await.iter().all(Result::is_ok));
    }
    ids
}

fn count_with_origin(deliveries: &[Delivery]) -> usize {
    deliveries.iter().filter(|delivery| delivery.from.is_some()).count()
}
