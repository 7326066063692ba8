//! Deduplication of messages by the sender's deduplication ID.

use std::collections::BTreeSet;

use evenkeel_queue::message::DedupId;
use evenkeel_queue::{Durability, MessageId, Namespace, NewMessage, Queue, QueueSettings};

use crate::harness::{Rig, ack, body, receive_now};

#[tokio::test]
async fn a_duplicate_returns_the_first_id_and_is_not_stored() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let first =
            queue.enqueue(vec![named("a", "one"), named("b", "two"), named("a", "three")]).await.unwrap();
        assert_eq!(first[0], first[2], "a duplicate in the same request was stored");
        let again = queue
            .enqueue(vec![named("b", "four"), NewMessage::new("five"), NewMessage::new("five")])
            .await
            .unwrap();
        assert_eq!(again[0], first[1]);
        let received = receive_now(&queue, 10).await;
        assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["one", "two", "five", "five"]);
        ack(&queue, &received).await;
        assert_eq!(
            queue.enqueue(vec![named("a", "six")]).await.unwrap(),
            first[..1],
            "a duplicate of an acknowledged message was stored"
        );
        let totals = queue.totals();
        assert_eq!((totals.pending, totals.in_flight, totals.bytes), (0, 0, 0), "a duplicate was counted");
    }
}

#[tokio::test]
async fn a_deduplication_id_is_scoped_to_its_group_and_queue() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let other = rig
        .queues
        .create(Namespace::Shared, "other", QueueSettings::default(), String::new())
        .await
        .unwrap()
        .queue();
    let scoped = |scope| NewMessage { dedup: Some(DedupId::new(scope, "a")), ..NewMessage::new("x") };
    let mut ids = queue.enqueue(vec![scoped(""), scoped("group"), named("groupa", "x")]).await.unwrap();
    ids.extend(other.enqueue(vec![scoped("")]).await.unwrap());
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4);
}

/// Many of the duplicates share a commit group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_concurrent_duplicates_is_stored() {
    for durability in [Durability::Fsync, Durability::Os] {
        let rig = Rig::disk().await;
        let queue = rig.queue(QueueSettings { durability, ..QueueSettings::default() }).await;
        let senders: Vec<_> = (0..64).map(|_| tokio::spawn(send_all(queue.clone()))).collect();
        let mut ids = BTreeSet::new();
        for sender in senders {
            ids.insert(sender.await.unwrap());
        }
        assert_eq!(ids.len(), 1, "the senders got different ids");
        assert_eq!(receive_now(&queue, 1_000).await.len(), 20);
    }
}

async fn send_all(queue: Queue) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.extend(queue.enqueue(vec![named(&number.to_string(), "x")]).await.unwrap());
    }
    ids
}

#[tokio::test]
async fn deduplication_ids_survive_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let sent = queue.enqueue(vec![named("a", "one")]).await.unwrap();
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_eq!(queue.enqueue(vec![named("a", "two")]).await.unwrap(), sent);
    assert_eq!(queue.totals().pending, 1);
}

#[tokio::test]
async fn a_purge_forgets_deduplication_ids() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let first = queue.enqueue(vec![named("a", "one")]).await.unwrap();
        queue.purge().await.unwrap();
        let second = queue.enqueue(vec![named("a", "two")]).await.unwrap();
        assert_ne!(first, second, "a message sent after the purge was taken for a duplicate");
        assert_eq!(queue.enqueue(vec![named("a", "three")]).await.unwrap(), second);
        assert_eq!(receive_now(&queue, 10).await.iter().map(body).collect::<Vec<_>>(), ["two"]);
    }
}

#[tokio::test]
async fn a_purge_forgets_deduplication_ids_across_a_restart() {
    let rig = Rig::disk().await;
    let queue = rig.queue(QueueSettings::default()).await;
    let first = queue.enqueue(vec![named("a", "one")]).await.unwrap();
    queue.purge().await.unwrap();
    let rig = rig.restart().await;
    let queue = rig.queues.get(Namespace::Shared, "jobs").unwrap();
    assert_ne!(queue.enqueue(vec![named("a", "two")]).await.unwrap(), first);
    assert_eq!(queue.totals().pending, 1);
}

fn named(name: &str, body: &'static str) -> NewMessage {
    NewMessage { dedup: Some(DedupId::new("", name)), ..NewMessage::new(body) }
}
