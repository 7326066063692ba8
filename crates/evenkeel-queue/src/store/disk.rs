//! The store on disk: fjall keyspaces, one writer thread and a few reader threads.
//!
//! Guarantees: an operation completes once its writes have the requested durability; one fsync makes the writes of all
//! operations durable that arrived during the previous fsync (group commit). Opening a store reads the keys of
//! messages, never their bodies.

mod catalog;
mod dedup;
mod keyspaces;
mod layout;
mod reader;
mod results;
mod segments;
mod write_queue;
mod writer;

use core::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};

use super::{
    AppendBatch, AppendListener, Commit, Completion, Fetch, Ownership, QueueDescriptor, QueueRecord, Store,
    StoreError, StoredResult,
};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{EnqueueResult, MessageMeta, Payload};
use crate::queue_state::{StoredKey, StoredMessage};
use crate::rule::KeyRule;
use crate::time::UnixMillis;
use keyspaces::{KeyExtents, Keyspaces, Recovery, StoreSnapshot};
use reader::ReadOp;
use write_queue::{EnqueueError, WriteQueue};
use writer::{WriteOp, Writer};

/// Maximum number of queued writes; further ones fail with [`StoreError::Busy`].
const WRITE_QUEUE_MAX: usize = 65_536;
/// Maximum number of queued reads; further ones fail with [`StoreError::Busy`].
const READ_QUEUE_MAX: usize = 65_536;
const READERS: usize = 2;

/// Disk space that background writes may need: flushes, compactions, acknowledgements.
pub const RESERVE_BYTES_MIN: u64 = 128 << 20;

/// Options of a store on disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Size of the block cache.
    pub cache_bytes: u64,
    /// Messages are rejected while less disk space than this is free; at least [`RESERVE_BYTES_MIN`], except in tests.
    pub reserve_bytes: u64,
    /// Maximum number of keys per tenant: the owner of the queue, over all its queues, or the first level of the keys in a
    /// shared queue.
    pub tenant_keys_max: u32,
    /// Called on the writer thread after the store has freed memory because it is idle; must not block.
    pub on_memory_freed: fn(),
    /// Called when an fsync fails.
    pub fatal: FatalHandler,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            reserve_bytes: 256 << 20,
            tenant_keys_max: 100_000,
            on_memory_freed: || {},
            fatal: FatalHandler::default(),
        }
    }
}

/// Callback for a failed fsync, after which it is unknown which of the last writes are durable.
///
/// If it returns, the next write reopens the database.
#[derive(Clone)]
pub struct FatalHandler(pub Arc<dyn Fn(&str) + Send + Sync>);

impl Default for FatalHandler {
    fn default() -> Self {
        Self(Arc::new(|error| tracing::error!(error, "closed the database after a disk error")))
    }
}

impl fmt::Debug for FatalHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FatalHandler")
    }
}

/// A [`Store`] that keeps its queues in a data directory.
pub struct DiskStore {
    write_queue: Arc<WriteQueue>,
    read_queue: Mutex<Option<SyncSender<ReadOp>>>,
    keyspaces: Arc<RwLock<Option<Keyspaces>>>,
    /// Number, size and range of the messages of each key, counted when the store was opened; the first `read_keys` of
    /// a queue removes its entry.
    recovered_keys: Mutex<KeyExtents>,
    /// Signs receipt handles and encrypts message ids.
    secret: [u8; 32],
    /// First message whose id is encrypted.
    plain_ids_before: Seq,
    /// Number of fsyncs by the writer.
    fsyncs: Arc<AtomicU64>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskStore {
    /// Opens or creates a data directory; blocks while it replays the journal and counts the messages of each key.
    pub fn open(dir: impl Into<PathBuf>, options: DiskOptions) -> Result<Self, StoreError> {
        let dir = dir.into();
        let Recovery { keyspaces, catalog, extents, secret, plain_ids_before } =
            Keyspaces::open(&dir, options.cache_bytes)?;
        let keyspaces = Arc::new(RwLock::new(Some(keyspaces)));
        let write_queue = Arc::new(WriteQueue::new(WRITE_QUEUE_MAX));
        let (read_sender, read_receiver) = sync_channel(READ_QUEUE_MAX);
        let fsyncs = Arc::<AtomicU64>::default();
        let writer =
            Writer::new(dir, options, write_queue.clone(), keyspaces.clone(), catalog, fsyncs.clone());
        let mut threads = vec![spawn("queue-writer".into(), move || writer.run())?];
        let shared_receiver: reader::ReadQueue = Arc::new(Mutex::new(read_receiver));
        for number in 0..READERS {
            let read_queue = shared_receiver.clone();
            let keyspaces = keyspaces.clone();
            threads
                .push(spawn(format!("queue-reader-{number}"), move || reader::run(&read_queue, &keyspaces))?);
        }
        Ok(Self {
            write_queue,
            read_queue: Mutex::new(Some(read_sender)),
            keyspaces,
            recovered_keys: Mutex::new(extents),
            secret,
            plain_ids_before,
            fsyncs,
            threads: Mutex::new(threads),
        })
    }

    /// Returns the number of fsyncs since the store was opened.
    pub fn flushes(&self) -> u64 {
        self.fsyncs.load(Ordering::Relaxed)
    }

    fn submit(&self, op: WriteOp) {
        match self.write_queue.try_push(op) {
            Err(EnqueueError::Full(op)) => drop(op.fail(&StoreError::Busy)),
            Err(EnqueueError::Closed(op)) => drop(op.fail(&StoreError::Closed)),
            Ok(()) => {}
        }
    }

    /// Submits an operation to the writer and blocks until it completes.
    fn submit_and_wait<T: Send + 'static>(
        &self,
        op: impl FnOnce(Completion<T>) -> WriteOp,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = sync_channel(1);
        let op = op(Box::new(move |result| drop(sender.send(result))));
        self.write_queue.push(op).map_err(|_| StoreError::Closed)?;
        receiver.recv().unwrap_or(Err(StoreError::Closed))
    }

    fn submit_read(&self, op: ReadOp) {
        let sent = match self.read_queue.lock().as_ref() {
            Some(sender) => sender.try_send(op),
            None => Err(TrySendError::Disconnected(op)),
        };
        match sent {
            Err(TrySendError::Full(op)) => op.fail(StoreError::Busy),
            Err(TrySendError::Disconnected(op)) => op.fail(StoreError::Closed),
            Ok(()) => {}
        }
    }

    /// Returns a consistent view of the store, independent of later writes.
    fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        let keyspaces = self.keyspaces.read();
        let keyspaces = keyspaces.as_ref().ok_or(StoreError::Closed)?;
        Ok(keyspaces.snapshot())
    }
}

impl Store for DiskStore {
    fn append(&self, batch: AppendBatch, done: Completion<Vec<EnqueueResult>>) {
        self.submit(WriteOp::Append(batch, done));
    }

    fn read_keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError> {
        let purged_below = self.submit_and_wait(|done| WriteOp::GetPurgedBelow(queue, done))?;
        let snapshot = self.snapshot()?;
        let recovered = self.recovered_keys.lock().remove(&queue);
        let extents = match recovered {
            Some(extents) => extents,
            None => snapshot.count_queue(queue, purged_below..before)?,
        };
        snapshot.stored_keys(queue, extents)
    }

    fn read_delivery_states(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError> {
        let purged_below = self.submit_and_wait(|done| WriteOp::GetPurgedBelow(queue, done))?;
        self.snapshot()?.stored_messages(queue, purged_below..before)
    }

    fn read_next(&self, fetch: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>) {
        self.submit_read(ReadOp::Fetch(fetch, done));
    }

    fn read_payloads(
        &self,
        queue: QueueId,
        messages: Vec<(KeyId, MessageMeta)>,
        done: Completion<Vec<(Seq, Payload)>>,
    ) {
        self.submit_read(ReadOp::Payloads(queue, messages, done));
    }

    fn commit(&self, commit: Commit, done: Completion<()>) {
        self.submit(WriteOp::Commit(commit, done));
    }

    fn purge(&self, queue: QueueId, done: Completion<()>) {
        self.submit(WriteOp::Purge(queue, done));
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        self.submit(WriteOp::SetRule(queue, name, rule, done));
    }

    fn put_result(&self, id: MessageId, result: StoredResult, results_max: usize, done: Completion<()>) {
        self.submit(WriteOp::PutResult(id, result, results_max, done));
    }

    fn result(&self, id: MessageId, done: Completion<Option<StoredResult>>) {
        self.submit_read(ReadOp::Result(id, done));
    }

    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>) {
        self.submit(WriteOp::ExpireResults(now, max, done));
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        self.submit_and_wait(WriteOp::ListQueues)
    }

    fn put_queue(&self, id: Option<QueueId>, descriptor: QueueDescriptor, done: Completion<QueueId>) {
        self.submit(WriteOp::PutQueue(id, Box::new(descriptor), done));
    }

    fn remove_queue(&self, queue: QueueId, done: Completion<()>) {
        self.recovered_keys.lock().remove(&queue);
        self.submit(WriteOp::RemoveQueue(queue, done));
    }

    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError> {
        self.submit_and_wait(|done| WriteOp::TakeOwnership(queues, done))
    }

    fn is_owner(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.submit_and_wait(|done| WriteOp::IsOwner(queue, epoch, done))
    }

    // Nothing to release: only one process can open the directory, and the next owner gets a higher epoch.
    fn release_ownership(&self, _queue: QueueId, _epoch: Epoch) {}

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn plain_ids_before(&self) -> Seq {
        self.plain_ids_before
    }

    fn close(&self) {
        let (sender, receiver) = sync_channel(1);
        if self.write_queue.push(WriteOp::Close(sender)).is_ok() {
            // An error means that the writer thread has already stopped.
            receiver.recv().ok();
        }
        self.read_queue.lock().take();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a store thread panicked");
            }
        }
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.close();
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let spawned = std::thread::Builder::new().name(name).spawn(work);
    spawned.map_err(|error| StoreError::Io(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NewMessage;
    use crate::settings::Durability;

    #[test]
    fn purge_deletes_earlier_messages_from_disk_and_keeps_later_ones() {
        let dir = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
        let queue = store
            .submit_and_wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::for_test()), done))
            .unwrap();
        let send = |count: usize| {
            let messages =
                (0..count).map(|n| NewMessage::new("body").for_key(format!("key{}", n % 7))).collect();
            let batch = AppendBatch {
                queue,
                messages,
                sent_at: UnixMillis(1),
                delay_ms: 0,
                durability: Durability::Os,
            };
            store.submit_and_wait(|done| WriteOp::Append(batch, done)).unwrap();
        };
        send(5_000);
        store.submit_and_wait(|done| WriteOp::Purge(queue, done)).unwrap();
        send(10);
        let remaining = || store.snapshot().unwrap().count_queue(queue, Seq(0)..Seq(u64::MAX)).unwrap();
        let count = || remaining().values().map(|extent| extent.messages).sum::<u64>();
        // The writer deletes purged messages in the background: poll until it has finished.
        let purged = (0..1_000_000).find(|_| count() == 10);
        assert!(purged.is_some(), "{} messages are left on disk", count());
    }

    #[test]
    fn interval_durability_syncs_even_while_writes_keep_arriving() {
        let dir = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(dir.path().join("queue"), DiskOptions::default()).unwrap();
        let queue = store
            .submit_and_wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::for_test()), done))
            .unwrap();
        let before = store.flushes();
        let (sender, receiver) = sync_channel(1);
        // Enough writes for several commit groups (`GROUP_CHANGES_MAX` each), sent without waiting.
        for number in 0..40_000 {
            let sender = sender.clone();
            let fsyncs = store.fsyncs.clone();
            let batch = AppendBatch {
                queue,
                messages: vec![NewMessage::new("body")],
                sent_at: UnixMillis(1),
                delay_ms: 0,
                durability: Durability::Interval(1),
            };
            let done: Completion<Vec<EnqueueResult>> = Box::new(move |_| {
                if number == 39_999 {
                    sender.send(fsyncs.load(Ordering::Relaxed)).ok();
                }
            });
            store.append(batch, done);
        }
        assert!(receiver.recv().unwrap() > before, "no fsync during 40 000 writes");
    }
}
