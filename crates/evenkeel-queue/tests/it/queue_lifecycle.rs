//! Queues are created, changed and removed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_queue::queue_state::KeyStats;
use evenkeel_queue::queues::{CreateError, CreateResult};
use evenkeel_queue::store::Store;
use evenkeel_queue::{Namespace, NewMessage, QueueSettings, Rejection};

use crate::harness::{Rig, receive, receive_now, send};

#[tokio::test]
async fn an_assigned_queue_keeps_its_messages_and_leases_and_its_old_name_is_free() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    send(&queue, ["a", "a"]).await;
    let leased = receive(&queue, 1).await;
    let owner = Namespace::Account("123456789012".parse().unwrap());
    rig.queues.assign(&queue, owner, QueueSettings::default(), "notes".into()).await.unwrap();
    assert!(rig.queues.get(Namespace::Shared, "jobs").is_none());
    let shared = rig.queue(QueueSettings::default()).await;
    let taken = rig.queues.assign(&shared, owner, QueueSettings::default(), String::new()).await;
    assert!(matches!(taken, Err(CreateError::NameTaken)));
    let rig = rig.restart().await;
    let names: Vec<_> = rig.queues.all().iter().map(|queue| queue.descriptor().namespace).collect();
    assert_eq!(names, [Namespace::Shared, owner]);
    let queue = rig.queues.get(owner, "jobs").unwrap();
    assert_eq!((queue.totals().pending, queue.totals().in_flight), (1, 1));
    assert_eq!(queue.ack(&[leased[0].receipt.clone()]).await, [Ok(())]);
    assert_eq!(queue.descriptor().metadata, "notes");
}

#[tokio::test]
async fn the_number_of_queues_of_an_owner_is_limited() {
    let rig = Rig::memory().await;
    let owner = Namespace::Account("123456789012".parse().unwrap());
    rig.queue(QueueSettings::default()).await;
    for (name, expected) in [("a", true), ("b", true), ("c", false)] {
        let checked = rig.queues.check_room(owner, 2);
        assert_eq!(checked.is_ok(), expected, "{checked:?}");
        rig.queues.create(owner, name, QueueSettings::default(), String::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_name_is_unique() {
    for rig in Rig::both().await {
        let first = rig
            .queues
            .create(Namespace::Shared, "jobs", QueueSettings::default(), "notes".into())
            .await
            .unwrap();
        assert!(matches!(first, CreateResult::Created(_)));
        let again = rig
            .queues
            .create(Namespace::Shared, "jobs", QueueSettings::default(), String::new())
            .await
            .unwrap();
        assert!(matches!(again, CreateResult::Existing(_)));
        assert_eq!(again.queue().descriptor().metadata, "notes");
    }
}

#[tokio::test]
async fn a_removed_queue_is_gone_and_its_name_can_be_reused() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a"]).await;
        rig.queues.remove(queue.id()).await.unwrap();
        assert!(rig.queues.get(Namespace::Shared, "jobs").is_none());
        assert!(queue.enqueue(vec![NewMessage::new("late")]).await.is_err());
        let fresh = rig.queue(QueueSettings::default()).await;
        assert_ne!(fresh.id(), queue.id());
        assert!(receive_now(&fresh, 10).await.is_empty(), "a new queue has the messages of the removed one");
    }
}

#[tokio::test]
async fn bad_names_settings_and_keys_are_rejected() {
    for rig in Rig::both().await {
        for name in ["", "with space", "a/b", &"x".repeat(81)] {
            let made =
                rig.queues.create(Namespace::Shared, name, QueueSettings::default(), String::new()).await;
            assert!(matches!(made, Err(CreateError::Name)), "{name:?} was accepted");
        }
        let settings = QueueSettings { wait_ms: 99_999, ..QueueSettings::default() };
        assert!(matches!(
            rig.queues.create(Namespace::Shared, "jobs", settings, String::new()).await,
            Err(CreateError::Setting(bad)) if bad.name == "wait_ms"
        ));
        let queue = rig.queue(QueueSettings { message_bytes_max: 1_024, ..QueueSettings::default() }).await;
        let bad = queue.enqueue(vec![NewMessage::new("x").for_key("line\nbreak")]).await;
        assert_eq!(bad, Err(Rejection::BadKey));
        let large = queue.enqueue(vec![NewMessage::new(vec![0_u8; 1_025])]).await;
        assert_eq!(large, Err(Rejection::TooLarge { max: 1_024 }));
    }
}

#[tokio::test]
async fn explain_describes_a_waiting_and_a_delivered_message() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let ids = queue.enqueue(vec![NewMessage::new("a"), NewMessage::new("b")]).await.unwrap();
        let explain = async |id| queue.explain(id).await.unwrap().describe(queue.now()).to_string();
        let text = explain(ids[1]).await;
        assert!(text.starts_with("waiting: 1 message of its key comes first; its tenant is next"), "{text}");
        let received = receive_now(&queue, 1).await;
        let text = explain(received[0].id).await;
        assert!(text.starts_with("in flight: delivered once, lease ends in "), "{text}");
    }
}

#[tokio::test]
async fn statistics_are_per_key() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a", "a", "b/x"]).await;
        receive_now(&queue, 1).await;
        let stats = queue.key_stats(0, 10).await.unwrap();
        let all: Vec<(&str, u64)> =
            stats.iter().map(|key| (&*key.name, key.pending + key.in_flight)).collect();
        assert_eq!(all, [("a", 2), ("b/x", 1)]);
        let next = queue.peek(10).await.unwrap();
        assert_eq!(next.len(), 2);
    }
}

#[tokio::test]
async fn wait_times_are_reported_per_key_and_per_queue() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        send(&queue, ["a", "b", "b"]).await;
        assert_eq!(queue.stats().await.unwrap().waits, None);
        let late =
            NewMessage { delay: Some(Duration::from_millis(50)), ..NewMessage::new("late").for_key("a") };
        queue.enqueue(vec![late]).await.unwrap();
        receive_now(&queue, 2).await;
        let of =
            |stats: &[KeyStats], name: &str| stats.iter().find(|key| &*key.name == name).unwrap().clone();
        let stats = queue.key_stats(0, 10).await.unwrap();
        let a = of(&stats, "a");
        let b = of(&stats, "b");
        assert_eq!((a.delivered, b.delivered, b.pending), (1, 1, 1));
        let a = a.waits.unwrap();
        let b = b.waits.unwrap();
        assert!(a.p50 <= a.p99 && b.p50 <= b.p99);
        while queue.totals().pending + queue.totals().delayed > 0 {
            receive(&queue, 2).await;
        }
        let all = queue.stats().await.unwrap();
        assert_eq!((all.delivered, all.redelivered, all.keys), (4, 0, 2));
        assert!(all.waits.unwrap().p50 <= all.waits.unwrap().p99);
    }
}

#[tokio::test]
async fn a_key_over_the_limit_is_rejected_and_the_others_are_delivered() {
    for rig in Rig::both().await {
        let settings = QueueSettings { keys_max: 2, ..QueueSettings::default() };
        let queue = rig.queue(settings.clone()).await;
        send(&queue, ["t/a", "t/b"]).await;
        let rejected = queue.enqueue(vec![NewMessage::new("c").for_key("t/c")]).await;
        assert_eq!(rejected, Err(Rejection::TooManyKeys { max: 2 }));
        send(&queue, ["t/a"]).await;
        assert_eq!(receive_now(&queue, 10).await.len(), 3);
        // A changed limit applies at once.
        let more = QueueSettings { keys_max: 3, ..QueueSettings::default() };
        rig.queues.change(&queue, more, String::new()).await.unwrap();
        send(&queue, ["t/c", "t/c"]).await;
        rig.queues.change(&queue, settings, String::new()).await.unwrap();
        send(&queue, ["t/c"]).await;
        assert_eq!(receive_now(&queue, 10).await.len(), 3);
        assert_eq!((queue.totals().pending, queue.actor_restarts()), (0, 0));
    }
}

#[tokio::test]
async fn a_queue_that_failed_to_open_is_deleted_again() {
    for (rig, store) in Rig::both_recording().await {
        store.rejects_ownership.store(true, Ordering::SeqCst);
        let made =
            rig.queues.create(Namespace::Shared, "jobs", QueueSettings::default(), String::new()).await;
        assert!(matches!(made, Err(CreateError::Open(_))));
        store.rejects_ownership.store(false, Ordering::SeqCst);
        let queue = rig.queue(QueueSettings::default()).await;
        let records: Vec<_> = store.queues().unwrap().iter().map(|record| record.id).collect();
        assert_eq!(records, [queue.id()]);
    }
}
