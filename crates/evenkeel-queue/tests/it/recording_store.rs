//! A store that records its calls, and can crash the actor that calls it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use evenkeel_queue::message::{EnqueueResult, MessageMeta, Payload};
use evenkeel_queue::queue_state::{StoredKey, StoredMessage};
use evenkeel_queue::store::{
    AppendBatch, AppendListener, Commit, Completion, Fetch, MessageChange, Ownership, QueueDescriptor,
    QueueRecord, Store, StoreError, StoredResult,
};
use evenkeel_queue::{Epoch, KeyId, KeyRule, MessageId, QueueId, Seq, UnixMillis};
use parking_lot::Mutex;

/// Forwards to another store and records the calls.
pub(crate) struct RecordingStore {
    store: Arc<dyn Store>,
    /// The next commit panics, in the queue actor that calls it.
    pub(crate) panics: AtomicBool,
    pub(crate) ownerships: AtomicU64,
    /// Number of times a queue was read as a whole.
    pub(crate) recoveries: AtomicU64,
    pub(crate) fetches: AtomicU64,
    pub(crate) changes: Mutex<Vec<MessageChange>>,
    /// While set, commits are collected here, neither written nor completed.
    pub(crate) held: Mutex<Option<Vec<Completion<()>>>>,
    /// While set, a commit waits in the queue actor that calls it until all of them have arrived.
    pub(crate) barrier: Mutex<Option<Arc<Barrier>>>,
    /// Ownership requests are rejected.
    pub(crate) rejects_ownership: AtomicBool,
}

impl RecordingStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            panics: AtomicBool::new(false),
            ownerships: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            changes: Mutex::default(),
            held: Mutex::default(),
            barrier: Mutex::default(),
            rejects_ownership: AtomicBool::new(false),
        })
    }

    /// Makes the next commit panic.
    pub(crate) fn panic_next_commit(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// Collects commits from now on.
    pub(crate) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    /// Returns the number of collected commits.
    pub(crate) fn held_len(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Completes the first collected commit without writing it.
    pub(crate) fn complete_first_held(&self) {
        let first = self.held.lock().as_mut().map(|held| held.remove(0));
        first.into_iter().for_each(|done| done(Ok(())));
    }

    /// Completes the collected commits with an error, and forwards later ones again.
    pub(crate) fn fail_held(&self) {
        let held = self.held.lock().take().unwrap_or_default();
        held.into_iter().for_each(|done| done(Err(StoreError::Busy)));
    }
}

impl Store for RecordingStore {
    fn append(&self, batch: AppendBatch, done: Completion<Vec<EnqueueResult>>) {
        self.store.append(batch, done);
    }

    fn read_keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError> {
        self.recoveries.fetch_add(1, Ordering::SeqCst);
        self.store.read_keys(queue, before)
    }

    fn read_delivery_states(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError> {
        self.store.read_delivery_states(queue, before)
    }

    fn read_next(&self, request: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>) {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.store.read_next(request, done);
    }

    fn read_payloads(
        &self,
        queue: QueueId,
        messages: Vec<(KeyId, MessageMeta)>,
        done: Completion<Vec<(Seq, Payload)>>,
    ) {
        self.store.read_payloads(queue, messages, done);
    }

    fn commit(&self, commit: Commit, done: Completion<()>) {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "panic requested by a test");
        let barrier = self.barrier.lock().clone();
        if let Some(barrier) = barrier {
            barrier.wait();
        }
        if let Some(held) = &mut *self.held.lock() {
            return held.push(done);
        }
        self.changes.lock().extend(&commit.changes);
        self.store.commit(commit, done);
    }

    fn purge(&self, queue: QueueId, done: Completion<()>) {
        self.store.purge(queue, done);
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>) {
        self.store.set_rule(queue, name, rule, done);
    }

    fn put_result(&self, id: MessageId, result: StoredResult, results_max: usize, done: Completion<()>) {
        self.store.put_result(id, result, results_max, done);
    }

    fn result(&self, id: MessageId, done: Completion<Option<StoredResult>>) {
        self.store.result(id, done);
    }

    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>) {
        self.store.expire_results(now, max, done);
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        self.store.queues()
    }

    fn put_queue(&self, id: Option<QueueId>, record: QueueDescriptor, done: Completion<QueueId>) {
        self.store.put_queue(id, record, done);
    }

    fn remove_queue(&self, queue: QueueId, done: Completion<()>) {
        self.store.remove_queue(queue, done);
    }

    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError> {
        self.ownerships.fetch_add(1, Ordering::SeqCst);
        if self.rejects_ownership.load(Ordering::SeqCst) {
            return Err(StoreError::Busy);
        }
        self.store.take_ownership(queues)
    }

    fn is_owner(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.store.is_owner(queue, epoch)
    }

    fn release_ownership(&self, queue: QueueId, epoch: Epoch) {
        self.store.release_ownership(queue, epoch);
    }

    fn secret(&self) -> [u8; 32] {
        self.store.secret()
    }

    fn plain_ids_before(&self) -> Seq {
        self.store.plain_ids_before()
    }

    fn close(&self) {
        self.store.close();
    }
}
