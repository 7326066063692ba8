//! Queues to try things with.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::store::Store;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Delivery, NewMessage, Queue, QueueSettings, Queues};
use tempfile::TempDir;

use crate::recording_store::Watched;

/// A gateway's queues.
pub(crate) struct Rig {
    pub(crate) queues: Arc<Queues>,
    folder: Option<TempDir>,
}

impl Rig {
    /// Queues that forget.
    pub(crate) async fn memory() -> Self {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 1_000).await.unwrap();
        Self { queues, folder: None }
    }

    /// Queues in a folder of their own.
    pub(crate) async fn disk() -> Self {
        let folder = TempDir::new().unwrap();
        Self { queues: open(&folder).await, folder: Some(folder) }
    }

    /// Both kinds.
    pub(crate) async fn both() -> [Self; 2] {
        [Self::memory().await, Self::disk().await]
    }

    /// Both kinds, with somebody who watches the store.
    pub(crate) async fn both_watched() -> [(Self, Arc<Watched>); 2] {
        let folder = TempDir::new().unwrap();
        let disk = DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
        [
            Self::watched(Arc::new(MemoryStore::new()), None).await,
            Self::watched(Arc::new(disk), Some(folder)).await,
        ]
    }

    async fn watched(store: Arc<dyn Store>, folder: Option<TempDir>) -> (Self, Arc<Watched>) {
        let store = Watched::new(store);
        let queues = Queues::open(store.clone(), 1_000).await.unwrap();
        (Self { queues, folder }, store)
    }

    /// Ends in order and starts again on the same folder.
    pub(crate) async fn restart(self) -> Self {
        self.queues.shutdown().await;
        let folder = self.folder.expect("only what is on disk restarts");
        Self { queues: open(&folder).await, folder: Some(folder) }
    }

    pub(crate) async fn queue(&self, settings: QueueSettings) -> Queue {
        self.queues.create("jobs", settings, String::new()).await.unwrap().queue()
    }
}

async fn open(folder: &TempDir) -> Arc<Queues> {
    let store = DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
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

/// Takes what is there, up to `max`.
pub(crate) async fn take(queue: &Queue, max: usize) -> Vec<Delivery> {
    queue.receive(ReceiveOptions { max, lease: None, wait: Duration::ZERO }).await.unwrap()
}

/// Waits for the first, then takes what is there.
pub(crate) async fn await_some(queue: &Queue, max: usize) -> Vec<Delivery> {
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
