//! A store that notes what it is asked, and can make whoever asks it fall.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_queue::book::{KeptKey, KeptState};
use evenkeel_queue::message::{Header, Payload, Sent};
use evenkeel_queue::store::{
    Batch, Change, Claimed, Commit, Done, Fetch, KeptResult, QueueBody, QueueRecord, Store, StoreError, Tail,
};
use evenkeel_queue::{Epoch, KeyId, KeyRule, MessageId, QueueId, Seq, Wall};
use parking_lot::Mutex;

/// Asks another store, and notes it.
pub(crate) struct Watched {
    store: Arc<dyn Store>,
    /// Whether the next commit panics in the keeper that asks for it.
    pub(crate) trips: AtomicBool,
    pub(crate) claims: AtomicU64,
    /// How often queues were read as a whole.
    pub(crate) readings: AtomicU64,
    pub(crate) fetches: AtomicU64,
    pub(crate) changes: Mutex<Vec<Change>>,
    /// While there is a list, commits are put on it, neither written nor answered.
    pub(crate) held: Mutex<Option<Vec<Done<()>>>>,
    /// Whether nobody may become an owner.
    pub(crate) refuses_claims: AtomicBool,
}

impl Watched {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            trips: AtomicBool::new(false),
            claims: AtomicU64::new(0),
            readings: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            changes: Mutex::default(),
            held: Mutex::default(),
            refuses_claims: AtomicBool::new(false),
        })
    }

    /// Has whoever commits next panic.
    pub(crate) fn trip(&self) {
        self.trips.store(true, Ordering::SeqCst);
    }

    /// Puts commits aside from here on.
    pub(crate) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    /// Counts the commits that were put aside.
    pub(crate) fn holds(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Answers what was put aside with an error, and goes on as before.
    pub(crate) fn let_go(&self) {
        let held = self.held.lock().take().unwrap_or_default();
        held.into_iter().for_each(|done| done(Err(StoreError::Busy)));
    }
}

impl Store for Watched {
    fn append(&self, batch: Batch, done: Done<Vec<Sent>>) {
        self.store.append(batch, done);
    }

    fn keys(&self, queue: QueueId, before: Seq) -> Result<Vec<KeptKey>, StoreError> {
        self.readings.fetch_add(1, Ordering::SeqCst);
        self.store.keys(queue, before)
    }

    fn state(&self, queue: QueueId, before: Seq) -> Result<Vec<KeptState>, StoreError> {
        self.store.state(queue, before)
    }

    fn fetch(&self, ask: Fetch, done: Done<Vec<(Header, Payload)>>) {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.store.fetch(ask, done);
    }

    fn read(&self, queue: QueueId, which: Vec<(KeyId, Header)>, done: Done<Vec<(Seq, Payload)>>) {
        self.store.read(queue, which, done);
    }

    fn commit(&self, commit: Commit, done: Done<()>) {
        assert!(!self.trips.swap(false, Ordering::SeqCst), "tripped by a test");
        if let Some(held) = &mut *self.held.lock() {
            return held.push(done);
        }
        self.changes.lock().extend(&commit.changes);
        self.store.commit(commit, done);
    }

    fn purge(&self, queue: QueueId, done: Done<Seq>) {
        self.store.purge(queue, done);
    }

    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Done<KeyId>) {
        self.store.set_rule(queue, name, rule, done);
    }

    fn put_result(&self, of: MessageId, kept: KeptResult, max: usize, done: Done<()>) {
        self.store.put_result(of, kept, max, done);
    }

    fn result(&self, of: MessageId, done: Done<Option<KeptResult>>) {
        self.store.result(of, done);
    }

    fn expire_results(&self, now: Wall, max: usize, done: Done<usize>) {
        self.store.expire_results(now, max, done);
    }

    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError> {
        self.store.queues()
    }

    fn put_queue(&self, id: Option<QueueId>, record: QueueBody, done: Done<QueueId>) {
        self.store.put_queue(id, record, done);
    }

    fn remove_queue(&self, queue: QueueId, done: Done<()>) {
        self.store.remove_queue(queue, done);
    }

    fn claim(&self, queues: Vec<(QueueId, Tail)>) -> Result<Vec<Claimed>, StoreError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if self.refuses_claims.load(Ordering::SeqCst) {
            return Err(StoreError::Busy);
        }
        self.store.claim(queues)
    }

    fn renew(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError> {
        self.store.renew(queue, epoch)
    }

    fn release(&self, queue: QueueId, epoch: Epoch) {
        self.store.release(queue, epoch);
    }

    fn secret(&self) -> [u8; 32] {
        self.store.secret()
    }

    fn close(&self) {
        self.store.close();
    }
}
