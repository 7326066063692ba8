//! Messages moved from one queue to another.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_queue::queue::MoveProgress;
use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Delivery, MessageId, NewMessage, Queue, QueueSettings};

use crate::harness::{Rig, await_some, body, take};

/// More than a window's worth came from nowhere, before, between and behind what can go home.
#[tokio::test]
async fn messages_from_nowhere_are_left_and_hold_up_nobody() {
    for rig in Rig::both().await {
        let dead = made(&rig, "dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let source = made(&rig, "source", QueueSettings { redrive, ..QueueSettings::default() }).await;
        let mut died = BTreeSet::new();
        for round in 0..3 {
            let strays = (0..400).map(|n| NewMessage::new(format!("stray-{round}-{n}")).for_key("tenant/a"));
            dead.enqueue(strays.collect()).await.unwrap();
            died.extend(die(&source, round).await);
        }
        while dead.totals().pending < 3 * 400 + 3 * 20 {
            tokio::task::yield_now().await;
        }
        let mut cursor = Some(MoveCursor::default());
        let mut moved = 0;
        let mut left = 0;
        while let Some(from) = cursor {
            let step = dead.move_some(from, None, 7).await.unwrap();
            assert!(step.moved <= 7);
            moved += step.moved;
            (cursor, left) = (step.next, step.left);
        }
        assert_eq!((moved, left), (60, 1_200));
        assert_eq!(dead.totals().pending, 1_200);
        let mut home = Vec::new();
        while home.len() < 60 {
            home.extend(await_some(&source, 10).await);
        }
        assert_eq!(home.iter().map(|delivery| delivery.id).collect::<BTreeSet<_>>(), died);
        // What was left comes out whole and in order.
        let mut strays = Vec::new();
        while strays.len() < 1_200 {
            strays.extend(await_some(&dead, 100).await.iter().map(body));
        }
        let sent = (0..3).flat_map(|round| (0..400).map(move |n| format!("stray-{round}-{n}")));
        assert_eq!(strays, sent.collect::<Vec<_>>());
        assert!(take(&dead, 1).await.is_empty());
    }
}

#[tokio::test]
async fn what_came_from_a_queue_that_is_gone_is_left() {
    for rig in Rig::both().await {
        let dead = made(&rig, "dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let source = made(&rig, "source", QueueSettings { redrive, ..QueueSettings::default() }).await;
        die(&source, 0).await;
        while dead.totals().pending < 20 {
            tokio::task::yield_now().await;
        }
        rig.queues.remove("source").await.unwrap();
        let moved = dead.move_some(MoveCursor::default(), None, 100).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 0, left: 20, next: None }));
        let other = made(&rig, "other", QueueSettings::default()).await;
        let held = take(&dead, 5).await;
        let moved = dead.move_some(MoveCursor::default(), Some(other.id()), 100).await;
        assert_eq!(moved, Ok(MoveProgress { moved: 15, left: 0, next: None }), "what consumers have stays");
        assert_eq!(queue_of(&held), 5);
        assert_eq!((dead.totals().pending, dead.totals().in_flight), (0, 5));
    }
}

async fn made(rig: &Rig, name: &str, settings: QueueSettings) -> Queue {
    rig.queues.create(name, settings, String::new()).await.unwrap().queue()
}

/// Sends twenty messages that nobody can handle, and names them.
async fn die(source: &Queue, round: usize) -> Vec<MessageId> {
    let messages =
        (0..20).map(|n| NewMessage::new(format!("dead-{round}-{n}")).for_key("tenant/a")).collect();
    let ids = source.enqueue(messages).await.unwrap();
    let mut died = 0;
    while died < ids.len() {
        let taken = await_some(source, 10).await;
        died += taken.len();
        let back: Vec<_> =
            taken.iter().map(|delivery| (delivery.receipt.clone(), Some(Duration::ZERO))).collect();
        assert!(source.nack(&back).await.iter().all(Result::is_ok));
    }
    ids
}

fn queue_of(held: &[Delivery]) -> usize {
    held.iter().filter(|delivery| delivery.from.is_some()).count()
}
