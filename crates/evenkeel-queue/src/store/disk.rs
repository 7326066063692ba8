//! The store on disk: fjall's keyspaces, one thread that writes, few that read.
//!
//! Bound: a request is answered after what it wrote is as durable as it asked; one disk flush serves every request
//! that came in during the one before. Opening reads keys, never bodies.

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
    AppendListener, Batch, Commit, Completion, Fetch, Ownership, QueueDescriptor, QueueRecord, Store,
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

/// Requests that wait to be written; beyond, callers are told to come back.
const OPS_MAX: usize = 65_536;
/// Requests that wait to be read.
const LOOKS_MAX: usize = 65_536;
const READERS: usize = 2;

/// How a store on disk behaves.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Memory for blocks that were read.
    pub cache_bytes: u64,
    /// Messages are refused while less than this is free on the disk.
    pub reserve_bytes: u64,
    /// What happens when the disk did not confirm a write.
    pub fatal: FatalHandler,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, reserve_bytes: 256 << 20, fatal: FatalHandler::default() }
    }
}

/// What happens when the disk did not confirm a write: whether it happened, nobody knows.
#[derive(Clone)]
pub struct FatalHandler(pub Arc<dyn Fn(&str) + Send + Sync>);

impl Default for FatalHandler {
    fn default() -> Self {
        Self(Arc::new(|why| tracing::error!(why, "store stopped")))
    }
}

impl fmt::Debug for FatalHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fatal")
    }
}

/// Queues in a folder.
pub struct DiskStore {
    inbox: Arc<WriteQueue>,
    looks: Mutex<Option<SyncSender<ReadOp>>>,
    opened: Arc<RwLock<Option<Keyspaces>>>,
    /// What was counted when the folder was opened, until a queue's owner asks.
    counts: Mutex<KeyExtents>,
    secret: [u8; 32],
    /// How often the writer had the disk confirm.
    flushes: Arc<AtomicU64>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskStore {
    /// Opens a folder, or makes one; reads the disk.
    pub fn open(folder: impl Into<PathBuf>, options: DiskOptions) -> Result<Self, StoreError> {
        let folder = folder.into();
        let Recovery { opened, ledger, counts, secret } = Keyspaces::open(&folder, options.cache_bytes)?;
        let opened = Arc::new(RwLock::new(Some(opened)));
        let inbox = Arc::new(WriteQueue::new(OPS_MAX));
        let (looks, looked) = sync_channel(LOOKS_MAX);
        let flushes = Arc::<AtomicU64>::default();
        let writer = Writer::new(folder, options, inbox.clone(), opened.clone(), ledger, flushes.clone());
        let mut threads = vec![spawn("queue-writer".into(), move || writer.run())?];
        let looked: reader::ReadQueue = Arc::new(Mutex::new(looked));
        for number in 0..READERS {
            let looked = looked.clone();
            let opened = opened.clone();
            threads.push(spawn(format!("queue-reader-{number}"), move || reader::run(&looked, &opened))?);
        }
        Ok(Self {
            inbox,
            looks: Mutex::new(Some(looks)),
            opened,
            counts: Mutex::new(counts),
            secret,
            flushes,
            threads: Mutex::new(threads),
        })
    }

    /// Counts how often the disk had to confirm what was written.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    fn submit(&self, op: WriteOp) {
        match self.inbox.try_push(op) {
            Err(EnqueueError::Full(op)) => drop(op.refuse(&StoreError::Busy)),
            Err(EnqueueError::Closed(op)) => drop(op.refuse(&StoreError::Closed)),
            Ok(()) => {}
        }
    }

    /// Asks the writer and waits; only while a queue is opened.
    fn wait<T: Send + 'static>(&self, op: impl FnOnce(Completion<T>) -> WriteOp) -> Result<T, StoreError> {
        let (done, answered) = sync_channel(1);
        let op = op(Box::new(move |result| drop(done.send(result))));
        self.inbox.push(op).map_err(|_| StoreError::Closed)?;
        answered.recv().unwrap_or(Err(StoreError::Closed))
    }

    fn submit_read(&self, look: ReadOp) {
        let sent = match self.looks.lock().as_ref() {
            Some(looks) => looks.try_send(look),
            None => Err(TrySendError::Disconnected(look)),
        };
        let refused = match sent {
            Err(TrySendError::Full(look)) => Some((look, StoreError::Busy)),
            Err(TrySendError::Disconnected(look)) => Some((look, StoreError::Closed)),
            Ok(()) => None,
        };
        match refused {
            Some((ReadOp::Fetch(_, done), why)) => done(Err(why)),
            Some((ReadOp::Read(_, _, done), why)) => done(Err(why)),
            Some((ReadOp::Result(_, done), why)) => done(Err(why)),
            None => {}
        }
    }

    /// The folder as it is at this moment, whatever the writer does meanwhile.
    fn snapshot(&self) -> Result<StoreSnapshot, StoreError> {
        let opened = self.opened.read();
        let opened = opened.as_ref().ok_or(StoreError::Closed)?;
        Ok(opened.still())
    }
}

impl Store for DiskStore {
    fn append(&self, batch: Batch, done: Completion<Vec<EnqueueResult>>) {
        self.submit(WriteOp::Append(batch, done));
    }

    fn keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError> {
        let below = self.wait(|done| WriteOp::PurgedBelow(queue, done))?;
        let still = self.snapshot()?;
        let counted = self.counts.lock().remove(&queue);
        let counts = match counted {
            Some(counts) => counts,
            None => still.count_queue(queue, below..before)?,
        };
        still.kept_keys(queue, counts)
    }

    fn state(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError> {
        let below = self.wait(|done| WriteOp::PurgedBelow(queue, done))?;
        self.snapshot()?.kept_states(queue, below..before)
    }

    fn fetch(&self, ask: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>) {
        self.submit_read(ReadOp::Fetch(ask, done));
    }

    fn read(&self, queue: QueueId, which: Vec<(KeyId, MessageMeta)>, done: Completion<Vec<(Seq, Payload)>>) {
        self.submit_read(ReadOp::Read(queue, which, done));
    }

    fn commit(&self, commit: Commit, done: Completion<()>) {
        self.submit(WriteOp::Commit(commit, done));
    }

    fn purge(&self, queue: QueueId, done: Completion<Seq>) {
        self.submit(WriteOp::Purge(queue, done));
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        self.submit(WriteOp::SetRule(queue, name, rule, done));
    }

    fn put_result(&self, of: MessageId, kept: StoredResult, max: usize, done: Completion<()>) {
        self.submit(WriteOp::PutResult(of, kept, max, done));
    }

    fn result(&self, of: MessageId, done: Completion<Option<StoredResult>>) {
        self.submit_read(ReadOp::Result(of, done));
    }

    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>) {
        self.submit(WriteOp::ExpireResults(now, max, done));
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        self.wait(WriteOp::Queues)
    }

    fn put_queue(&self, id: Option<QueueId>, record: QueueDescriptor, done: Completion<QueueId>) {
        self.submit(WriteOp::PutQueue(id, Box::new(record), done));
    }

    fn remove_queue(&self, queue: QueueId, done: Completion<()>) {
        self.counts.lock().remove(&queue);
        self.submit(WriteOp::RemoveQueue(queue, done));
    }

    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError> {
        self.wait(|done| WriteOp::Claim(queues, done))
    }

    fn renew(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.wait(|done| WriteOp::Renew(queue, epoch, done))
    }

    // One process owns a folder, and its epochs rise with every claim.
    fn release(&self, _queue: QueueId, _epoch: Epoch) {}

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn close(&self) {
        let (closed, wait) = sync_channel(1);
        if self.inbox.push(WriteOp::Close(closed)).is_ok() {
            // The writer is gone either way.
            wait.recv().ok();
        }
        self.looks.lock().take();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store had panicked");
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
    fn what_was_purged_leaves_the_disk_and_the_rest_stays() {
        let folder = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
        let queue =
            store.wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::plain()), done)).unwrap();
        let send = |count: usize| {
            let drafts = (0..count).map(|n| NewMessage::new("body").of(format!("key{}", n % 7))).collect();
            let batch =
                Batch { queue, drafts, sent_at: UnixMillis(1), delay_ms: 0, durability: Durability::Os };
            store.wait(|done| WriteOp::Append(batch, done)).unwrap();
        };
        send(5_000);
        store.wait(|done| WriteOp::Purge(queue, done)).unwrap();
        send(10);
        let left = || store.snapshot().unwrap().count_queue(queue, Seq(0)..Seq(u64::MAX)).unwrap();
        let messages = || left().values().map(|count| count.messages).sum::<u64>();
        // Each question is another turn of the writer, and it sweeps in between.
        let tries = (0..1_000_000).find(|_| messages() == 10);
        assert!(tries.is_some(), "{} messages are left on disk", messages());
    }

    #[test]
    fn an_interval_is_kept_while_requests_never_pause() {
        let folder = tempfile::TempDir::new().unwrap();
        let store = DiskStore::open(folder.path().join("queue"), DiskOptions::default()).unwrap();
        let queue =
            store.wait(|done| WriteOp::PutQueue(None, Box::new(QueueDescriptor::plain()), done)).unwrap();
        let before = store.flushes();
        let (told, answered) = sync_channel(1);
        // Five groups of the writer, all waiting when the first is written.
        for number in 0..40_000 {
            let told = told.clone();
            let flushes = store.flushes.clone();
            let batch = Batch {
                queue,
                drafts: vec![NewMessage::new("body")],
                sent_at: UnixMillis(1),
                delay_ms: 0,
                durability: Durability::Interval(1),
            };
            let done: Completion<Vec<EnqueueResult>> = Box::new(move |_| {
                if number == 39_999 {
                    told.send(flushes.load(Ordering::Relaxed)).ok();
                }
            });
            store.append(batch, done);
        }
        assert!(before < answered.recv().unwrap(), "forty thousand messages later nothing was on disk");
    }
}
