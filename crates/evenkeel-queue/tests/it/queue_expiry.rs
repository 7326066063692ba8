//! Expiry by TTL and by retention, through queues in memory and on disk.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::message::DedupId;
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::queue_state::Explanation;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::store::{AppendBatch, QueueDescriptor, Store};
use evenkeel_queue::time::WallClock;
use evenkeel_queue::{
    Durability, KeyId, MessageId, Namespace, NewMessage, Queue, QueueId, QueueSettings, Queues, Rejection,
    Seq, UnixMillis,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::harness::{Rig, ack, body, receive, receive_now};

const MINUTE: QueueSettings = QueueSettings { retention_ms: 60_000, ..QueueSettings::STANDARD };

#[tokio::test]
async fn a_delete_that_the_store_rejected_is_repeated() {
    for (rig, store) in Rig::both_recording().await {
        let queue = rig.queue(QueueSettings::default()).await;
        store.hold();
        let message = NewMessage { ttl: Some(Duration::from_millis(1)), ..NewMessage::new("x") };
        let ids = queue.enqueue(vec![message]).await.unwrap();
        wait_until(async || store.held_len() == 1).await;
        assert_eq!(queue.totals().expired, 0, "the message is still stored");
        assert_eq!(queue.explain(ids[0]).await, Ok(Explanation::Leaving));
        store.fail_held();
        wait_until(async || queue.totals().expired == 1).await;
        let left: u64 = store.read_keys(queue.id(), Seq(u64::MAX)).unwrap().iter().map(|key| key.count).sum();
        assert_eq!((left, queue.totals().bytes), (0, 0));
    }
}

#[tokio::test]
async fn waiting_messages_with_a_ttl_are_counted() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let message = |ttl, delay| NewMessage { ttl, delay, ..NewMessage::new("x") };
        let ttl = Some(Duration::from_secs(3_600));
        let delay = Some(Duration::from_secs(60));
        let messages = vec![message(None, None), message(ttl, None), message(ttl, delay), message(ttl, None)];
        queue.enqueue(messages).await.unwrap();
        wait_until(async || queue.totals().with_ttl == 3).await;
        let received = receive_now(&queue, 2).await;
        wait_until(async || queue.totals().with_ttl == 2).await;
        ack(&queue, &received).await;
        queue.purge().await.unwrap();
        wait_until(async || queue.totals().with_ttl == 0).await;
    }
}

#[tokio::test]
async fn a_ttl_out_of_range_is_rejected_with_its_range() {
    let rig = Rig::memory().await;
    let queue = rig.queue(QueueSettings { delay_ms: 500, ..MINUTE }).await;
    let send = |ttl: u64, delay: Option<u64>| {
        let delay = delay.map(Duration::from_millis);
        queue.enqueue(vec![NewMessage {
            ttl: Some(Duration::from_millis(ttl)),
            delay,
            ..NewMessage::new("x")
        }])
    };
    let rejection = |min| Err(Rejection::BadTtl { min, max: 60_000 });
    for (ttl, delay, min) in [(0, Some(0), 1), (60_001, Some(0), 1), (500, None, 501), (20, Some(20), 21)] {
        assert_eq!(send(ttl, delay).await, rejection(min));
    }
    assert_eq!(queue.totals().pending, 0);
    assert_eq!(
        Rejection::BadTtl { min: 1, max: 60_000 }.to_string(),
        "ttl is not between 1 ms, past its delay, and 60000 ms, the queue's retention"
    );
    send(60_000, Some(0)).await.unwrap();
    send(501, None).await.unwrap();
}

#[tokio::test]
async fn a_message_that_expires_while_waiting_is_not_delivered_and_its_deduplication_id_stays() {
    for rig in Rig::both().await {
        let queue = rig.queue(QueueSettings::default()).await;
        let named = |ttl| NewMessage { ttl, dedup: Some(DedupId::new("", "once")), ..NewMessage::new("x") };
        let first = queue.enqueue(vec![named(Some(Duration::from_millis(1)))]).await.unwrap();
        wait_until(async || queue.totals().expired == 1).await;
        assert_eq!(queue.totals().pending, 0);
        assert_eq!(queue.explain(first[0]).await, Ok(Explanation::Unknown));
        assert_eq!(queue.enqueue(vec![named(None)]).await.unwrap(), first, "the duplicate was stored");
        assert!(receive_now(&queue, 1).await.is_empty());
    }
}

#[tokio::test]
async fn messages_expired_before_a_start_are_deleted_and_not_delivered() {
    let dir = TempDir::new().unwrap();
    let now = WallClock::start().now();
    let past_retention = MINUTE.retention_ms + 1_000;
    let store = open(&dir);
    let queue = put_queue(&*store, MINUTE).await;
    // More than a prefetch window of expired messages per key; those of one key alternate with unexpired ones.
    for n in 0..400 {
        let ttl = |ms| Some(Duration::from_millis(ms));
        append(
            &*store,
            queue,
            UnixMillis(now.0 - 10_000),
            vec![
                NewMessage { ttl: ttl(5_000), ..NewMessage::new("past its TTL").for_key("own") },
                NewMessage { ttl: ttl(50_000), ..NewMessage::new(format!("kept-{n}")).for_key("own") },
            ],
        )
        .await;
        append(
            &*store,
            queue,
            UnixMillis(now.0 - past_retention),
            vec![NewMessage::new("past the retention").for_key("old")],
        )
        .await;
    }
    drop(store);
    let queues = Queues::open(open(&dir), 10).await.unwrap();
    let jobs = queues.get(Namespace::Shared, "jobs").unwrap();
    wait_until(async || jobs.totals().expired == 800).await;
    assert_eq!(jobs.totals().pending, 400);
    let first = MessageId { queue, key: KeyId(0), seq: Seq(2) };
    wait_until(async || jobs.explain(first).await.unwrap().expires_at() == Some(UnixMillis(now.0 + 40_000)))
        .await;
    let mut delivered = Vec::new();
    while delivered.len() < 400 {
        let received = receive(&jobs, 100).await;
        delivered.extend(received.iter().map(body));
        ack(&jobs, &received).await;
    }
    assert_eq!(delivered, (0..400).map(|n| format!("kept-{n}")).collect::<Vec<_>>());
    queues.shutdown().await;
    let store = open(&dir);
    let left: u64 = store.read_keys(queue, Seq(u64::MAX)).unwrap().iter().map(|key| key.count).sum();
    assert_eq!(left, 0, "messages are left on disk");
}

#[tokio::test]
async fn a_dead_letter_keeps_its_ttl_and_is_not_redriven_after_it() {
    let dir = TempDir::new().unwrap();
    for store in [Arc::new(MemoryStore::new()) as Arc<dyn Store>, open(&dir)] {
        let queues = Queues::open(store, 10).await.unwrap();
        let create = async |name: &str, settings| {
            queues.create(Namespace::Shared, name, settings, String::new()).await.unwrap().queue()
        };
        let dead = create("dead", QueueSettings::default()).await;
        let redrive = Some(RedrivePolicy { to: dead.id(), attempts_max: 1 });
        let jobs = create("jobs", QueueSettings { redrive, ..QueueSettings::default() }).await;
        let message = |ms| NewMessage { ttl: Some(Duration::from_millis(ms)), ..NewMessage::new("x") };
        let ids = jobs.enqueue(vec![message(3_600_000)]).await.unwrap();
        let expires_at = jobs.explain(ids[0]).await.unwrap().expires_at();
        assert!(expires_at.is_some());
        nack_all(&jobs).await;
        wait_until(async || dead.totals().pending == 1).await;
        assert_eq!(dead.explain(ids[0]).await.unwrap().expires_at(), expires_at);
        // The next message expires before or after it is dead-lettered.
        jobs.enqueue(vec![message(40)]).await.unwrap();
        nack_all(&jobs).await;
        wait_until(async || dead.totals().expired + jobs.totals().expired == 1).await;
        let moved = dead.move_some(Default::default(), None, 10).await.unwrap();
        assert_eq!((moved.moved, moved.next), (1, None));
        assert_eq!(receive(&jobs, 10).await.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids);
    }
}

/// Nacks every message that is ready.
async fn nack_all(queue: &Queue) {
    let options = ReceiveOptions { max: 10, lease: None, wait: Duration::from_millis(50) };
    for delivery in queue.receive(options).await.unwrap() {
        drop(queue.nack(&[(delivery.receipt, Some(Duration::ZERO))]).await);
    }
}

fn open(dir: &TempDir) -> Arc<dyn Store> {
    Arc::new(DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap())
}

async fn put_queue(store: &dyn Store, settings: QueueSettings) -> QueueId {
    let descriptor = QueueDescriptor {
        name: "jobs".into(),
        namespace: Namespace::Shared,
        settings,
        created_at: 0,
        changed_at: 0,
        metadata: String::new(),
    };
    let (done, created) = oneshot::channel();
    store.put_queue(None, descriptor, Box::new(move |id| drop(done.send(id))));
    created.await.unwrap().unwrap()
}

/// Stores messages as if they had been sent at another time.
async fn append(store: &dyn Store, queue: QueueId, sent_at: UnixMillis, messages: Vec<NewMessage>) {
    let batch = AppendBatch { queue, messages, sent_at, delay_ms: 0, durability: Durability::Os };
    let (done, written) = oneshot::channel();
    store.append(batch, Box::new(move |sent| drop(done.send(sent))));
    written.await.unwrap().unwrap();
}

/// Waits until a condition holds, for a minute at most.
async fn wait_until(condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the condition holds within a minute");
}
