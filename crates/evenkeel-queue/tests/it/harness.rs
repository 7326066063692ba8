//! Queues for tests, in memory and on disk.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::store::Store;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Delivery, Namespace, NewMessage, Queue, QueueSettings, Queues};
use tempfile::TempDir;

use crate::recording_store::RecordingStore;

/// The queues of a gateway.
pub(crate) struct Rig {
    pub(crate) queues: Arc<Queues>,
    dir: Option<TempDir>,
}

impl Rig {
    /// Opens queues in memory.
    pub(crate) async fn memory() -> Self {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 1_000).await.unwrap();
        Self { queues, dir: None }
    }

    /// Opens queues in a directory of their own.
    pub(crate) async fn disk() -> Self {
        let dir = TempDir::new().unwrap();
        Self { queues: open(&dir).await, dir: Some(dir) }
    }

    /// Opens both kinds.
    pub(crate) async fn both() -> [Self; 2] {
        [Self::memory().await, Self::disk().await]
    }

    /// Opens both kinds, with a recording store.
    pub(crate) async fn both_recording() -> [(Self, Arc<RecordingStore>); 2] {
        let dir = TempDir::new().unwrap();
        let disk = DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
        [
            Self::recording(Arc::new(MemoryStore::new()), None).await,
            Self::recording(Arc::new(disk), Some(dir)).await,
        ]
    }

    async fn recording(store: Arc<dyn Store>, dir: Option<TempDir>) -> (Self, Arc<RecordingStore>) {
        let store = RecordingStore::new(store);
        let queues = Queues::open(store.clone(), 1_000).await.unwrap();
        (Self { queues, dir }, store)
    }

    /// Shuts down and restarts on the same directory.
    pub(crate) async fn restart(self) -> Self {
        self.queues.shutdown().await;
        let dir = self.dir.expect("a store in memory cannot restart");
        Self { queues: open(&dir).await, dir: Some(dir) }
    }

    pub(crate) async fn queue(&self, settings: QueueSettings) -> Queue {
        self.queues.create(Namespace::Shared, "jobs", settings, String::new()).await.unwrap().queue()
    }
}

async fn open(dir: &TempDir) -> Arc<Queues> {
    let store = DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    Queues::open(store, 1_000).await.unwrap()
}

/// Sends one message per key, in order.
pub(crate) async fn send(queue: &Queue, keys: impl IntoIterator<Item = &str>) {
    let messages = keys
        .into_iter()
        .enumerate()
        .map(|(n, key)| NewMessage::new(format!("{key}-{n}")).for_key(key))
        .collect();
    queue.enqueue(messages).await.unwrap();
}

/// Receives up to `max` messages that are ready.
pub(crate) async fn receive_now(queue: &Queue, max: usize) -> Vec<Delivery> {
    queue.receive(ReceiveOptions { max, lease: None, wait: Duration::ZERO }).await.unwrap()
}

/// Waits for the first message, then receives up to `max`.
pub(crate) async fn receive(queue: &Queue, max: usize) -> Vec<Delivery> {
    queue.receive(ReceiveOptions { max, lease: None, wait: Duration::from_secs(20) }).await.unwrap()
}

pub(crate) async fn ack(queue: &Queue, deliveries: &[Delivery]) {
    let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    for answer in queue.ack(&receipts).await {
        answer.unwrap();
    }
}

pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.body.to_vec()).unwrap()
}

pub(crate) fn keys(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.key.to_string()).collect()
}
