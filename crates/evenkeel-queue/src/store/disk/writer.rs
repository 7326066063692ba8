//! The writer thread. Group commit: all writes that arrived during one fsync are committed together and share the next.

mod maintenance;
mod reclaim;
mod stage;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use fjall::{OwnedWriteBatch, PersistMode};
use parking_lot::RwLock;

use super::catalog::Catalog;
use super::dedup::DedupEntry;
use super::keyspaces::{Keyspaces, Recovery, io};
use super::write_queue::WriteQueue;
use super::{DiskOptions, FatalHandler};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult};
use crate::rule::KeyRule;
use crate::settings::Durability;
use crate::store::{
    AppendBatch, AppendListener, Commit, Completion, Ownership, QueueDescriptor, QueueRecord, StoreError,
    StoredResult,
};
use crate::time::UnixMillis;
use reclaim::Reclaim;

/// Number of changes at which a commit group is full; its last request may exceed it.
const GROUP_CHANGES_MAX: usize = 8_192;
const GROUP_BYTES_MAX: usize = 16 << 20;
/// Maximum wait for a group; a shorter wait is twice the duration of the last fsync.
const GROUP_WAIT_MAX: Duration = Duration::from_millis(2);
/// Maximum delay of a write that no caller waits for; it is committed with other writes, or after this time.
const RELAXED_WAIT_MAX: Duration = Duration::from_millis(5);
/// Interval of maintenance while writes keep arriving; without writes it runs at once.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which free disk space is read.
const FREE_SPACE_INTERVAL: Duration = Duration::from_millis(100);
/// Delay before the next attempt to reopen the database.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

/// A write, with its completion.
pub(super) enum WriteOp {
    Append(AppendBatch, Completion<Vec<EnqueueResult>>),
    Commit(Commit, Completion<()>),
    Purge(QueueId, Completion<()>),
    SetRule(QueueId, Arc<str>, KeyRule, Completion<KeyId>),
    PutResult(MessageId, StoredResult, usize, Completion<()>),
    ExpireResults(UnixMillis, usize, Completion<usize>),
    PutQueue(Option<QueueId>, Box<QueueDescriptor>, Completion<QueueId>),
    RemoveQueue(QueueId, Completion<()>),
    TakeOwnership(Vec<(QueueId, AppendListener)>, Completion<Vec<Ownership>>),
    IsOwner(QueueId, Epoch, Completion<bool>),
    ListQueues(Completion<Vec<QueueRecord>>),
    /// Returns the first sequence number that is not purged.
    GetPurgedBelow(QueueId, Completion<Seq>),
    Close(SyncSender<()>),
}

pub(super) struct Writer {
    dir: PathBuf,
    options: DiskOptions,
    write_queue: Arc<WriteQueue>,
    /// Writes taken from the queue and not yet added to a commit group.
    pending: VecDeque<WriteOp>,
    /// Shared with the readers.
    keyspaces: Arc<RwLock<Option<Keyspaces>>>,
    /// `None` while the database is closed after a failed write.
    catalog: Option<Catalog>,
    /// Append listeners, while the database is closed.
    listeners: Vec<(QueueId, AppendListener)>,
    /// Time of the first unsynced write, and the time within which it must be synced.
    unsynced: Option<(Instant, Duration)>,
    /// Requests that waited for the last fsync.
    synced_requests: usize,
    /// Duration of the last fsync of a commit group.
    sync_duration: Duration,
    free_bytes: u64,
    free_read_at: Option<Instant>,
    /// Bytes in memtables when the free disk space was read, and bytes appended since.
    unflushed_bytes: u64,
    appended_since_read: u64,
    reclaim: Reclaim,
    maintained_at: Instant,
    /// Time when the database was closed, or of the last attempt to reopen it.
    reopened_at: Option<Instant>,
    /// Minimum delay before the next attempt to reopen the database: twice the duration of the last one.
    reopen_delay: Duration,
    /// Error that closed the database.
    failed: Option<StoreError>,
    flushes: Arc<AtomicU64>,
}

/// Writes that are committed together.
///
/// fjall gives all writes of a batch the same sequence number, so of two writes to one key either may win. A message is
/// written once and deleted once, never in the same group; for every other key, the batch has only the last write.
pub(super) struct CommitGroup {
    batch: OwnedWriteBatch,
    /// Last write to each key that may be overwritten; `None` deletes it.
    latest: HashMap<(KeyspaceId, Vec<u8>), Option<Vec<u8>>>,
    /// Deduplication entries of this group.
    dedup: HashMap<[u8; 36], DedupEntry>,
    completions: Vec<Completion<()>>,
    appended: Vec<(QueueId, AppendListener, Vec<AppendedMessage>)>,
    sync: SyncDeadline,
    bytes: usize,
    count: usize,
    /// Requests that a caller waits for.
    awaited: usize,
    /// No further request may join the group.
    is_last: bool,
}

/// A keyspace whose keys may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum KeyspaceId {
    Meta,
    Keys,
    State,
    Results,
    ResultsDue,
}

/// Deadline for the fsync of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SyncDeadline {
    None,
    Within(Duration),
    Now,
}

impl Writer {
    pub(super) fn new(
        dir: PathBuf,
        options: DiskOptions,
        write_queue: Arc<WriteQueue>,
        keyspaces: Arc<RwLock<Option<Keyspaces>>>,
        catalog: Catalog,
        flushes: Arc<AtomicU64>,
    ) -> Self {
        Self {
            dir,
            options,
            write_queue,
            pending: VecDeque::new(),
            keyspaces,
            catalog: Some(catalog),
            listeners: Vec::new(),
            unsynced: None,
            synced_requests: 0,
            sync_duration: Duration::ZERO,
            free_bytes: u64::MAX,
            free_read_at: None,
            unflushed_bytes: 0,
            appended_since_read: 0,
            // The first run drops what a crash left behind.
            reclaim: Reclaim::default(),
            maintained_at: Instant::now(),
            reopened_at: None,
            reopen_delay: REOPEN_DELAY,
            failed: None,
            flushes,
        }
    }

    /// Runs until the store closes.
    pub(super) fn run(mut self) {
        loop {
            match self.next() {
                WriterTask::Write => {
                    if let Some(closed) = self.write() {
                        self.close();
                        closed.send(()).ok();
                        return;
                    }
                }
                WriterTask::Sync => self.sync(),
                WriterTask::Maintain => self.run_maintenance(),
                WriterTask::Reclaim => self.run_reclaim(),
            }
        }
    }

    /// Waits for the next task.
    fn next(&mut self) -> WriterTask {
        loop {
            // A constant stream of writes must postpone neither the fsync nor the rest.
            if let Some(task) = self.due_task() {
                return task;
            }
            if !self.pending.is_empty() {
                return WriterTask::Write;
            }
            self.wait_for_group();
            if self.has_maintenance() && self.write_queue.is_empty() {
                return WriterTask::Maintain;
            }
            let sync = self.unsynced.map(|(since, within)| since + within);
            match sync.into_iter().chain(self.next_timer()).min() {
                Some(at) => self.write_queue.wait_until(at),
                None => self.write_queue.wait(),
            }
            if !self.write_queue.is_empty() {
                return WriterTask::Write;
            }
        }
    }

    fn due_task(&self) -> Option<WriterTask> {
        if self.unsynced.is_some_and(|(since, within)| within <= since.elapsed()) {
            return Some(WriterTask::Sync);
        }
        if self.has_maintenance() && MAINTENANCE_INTERVAL <= self.maintained_at.elapsed() {
            return Some(WriterTask::Maintain);
        }
        self.next_timer().is_some_and(|at| at <= Instant::now()).then_some(WriterTask::Reclaim)
    }

    /// Commits pending writes as one group; returns the reply channel of a close request.
    fn write(&mut self) -> Option<SyncSender<()>> {
        let mut group = match self.begin() {
            Ok(group) => group,
            Err(error) => {
                self.take_all();
                return self.pending.drain(..).find_map(|op| op.fail(&error));
            }
        };
        let mut closing = self.fill(&mut group);
        let is_relaxed = closing.is_none() && group.awaited == 0 && group.has_room();
        if is_relaxed {
            // Wait briefly for a write that a caller waits for, to commit both together.
            self.write_queue.wait_for_awaited(1, Instant::now() + RELAXED_WAIT_MAX);
            closing = self.fill(&mut group);
        }
        self.commit(group);
        closing
    }

    fn begin(&mut self) -> Result<CommitGroup, StoreError> {
        self.reopen_if_needed()?;
        self.refresh_free_space();
        let batch = self.keyspaces.read().as_ref().map(|keyspaces| keyspaces.db.batch());
        batch.map(CommitGroup::new).ok_or(StoreError::Closed)
    }

    /// Adds pending writes to the group until it is full; returns the reply channel of a close request.
    fn fill(&mut self, group: &mut CommitGroup) -> Option<SyncSender<()>> {
        self.take_all();
        while group.has_room() {
            match self.pending.pop_front()? {
                WriteOp::Close(closed) => return Some(closed),
                // A purge makes the owner drop every message it knows, so later messages must reach the owner after it.
                op @ WriteOp::Purge(..) => {
                    group.is_last = true;
                    group.awaited += 1;
                    self.stage(group, op);
                }
                op => {
                    group.count += op.changes();
                    group.awaited += usize::from(op.is_awaited());
                    self.stage(group, op);
                }
            }
        }
        None
    }

    fn take_all(&mut self) {
        if self.pending.is_empty() {
            self.pending = self.write_queue.take_all();
        }
    }

    /// Waits briefly for the next requests of the callers that the last fsync released, so that they share an fsync.
    ///
    /// If the first request were committed alone, the others would wait for two fsyncs. A single caller is not waited
    /// for.
    fn wait_for_group(&mut self) {
        let released = core::mem::take(&mut self.synced_requests);
        if released > 1 {
            let wait = (2 * self.sync_duration).min(GROUP_WAIT_MAX);
            self.write_queue.wait_for_awaited(released, Instant::now() + wait);
        }
    }

    /// Commits a group, syncs it if one of its requests requires that, and completes the requests.
    fn commit(&mut self, group: CommitGroup) {
        let CommitGroup { mut batch, latest, completions, appended, sync, bytes, count, awaited, .. } = group;
        if let Some(keyspaces) = self.keyspaces.read().as_ref() {
            for ((keyspace, key), value) in latest {
                let keyspace = match keyspace {
                    KeyspaceId::Meta => &keyspaces.meta,
                    KeyspaceId::Keys => &keyspaces.keys,
                    KeyspaceId::State => &keyspaces.state,
                    KeyspaceId::Results => &keyspaces.results,
                    KeyspaceId::ResultsDue => &keyspaces.results_due,
                };
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        let has_content = !batch.is_empty();
        if let Err(error) = batch.durability(Some(PersistMode::Buffer)).commit() {
            let error = self.failure(io(error));
            self.fail(error.clone());
            return completions.into_iter().for_each(|done| done(Err(error.clone())));
        }
        if has_content {
            self.appended_since_read += bytes as u64;
            self.reclaim.record(bytes, count);
        }
        match sync {
            SyncDeadline::Now if has_content => {
                let started = Instant::now();
                self.sync();
                self.synced_requests = awaited;
                self.sync_duration = started.elapsed();
            }
            SyncDeadline::Within(within) if has_content => {
                let due = self.unsynced.map(|(since, within)| since + within);
                let sooner = due.is_none_or(|due| Instant::now() + within < due);
                if sooner {
                    self.unsynced = Some((Instant::now(), within));
                }
            }
            SyncDeadline::Now | SyncDeadline::Within(_) | SyncDeadline::None => {}
        }
        if self.catalog.is_none() {
            // The sync failed.
            let error = StoreError::Unknown("fsync failed".into());
            return completions.into_iter().for_each(|done| done(Err(error.clone())));
        }
        for (_, listener, messages) in appended {
            listener(messages);
        }
        completions.into_iter().for_each(|done| done(Ok(())));
        self.rotate_if_full();
        self.rotate_dedup();
    }

    /// Syncs everything written so far.
    fn sync(&mut self) {
        self.unsynced = None;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        // A failure closes the database; `commit` then completes its requests with an error.
        self.persist(PersistMode::SyncData).ok();
    }

    /// Calls fsync; on failure, calls the fatal handler and closes the database.
    fn persist(&mut self, mode: PersistMode) -> Result<(), StoreError> {
        let result = self.keyspaces.read().as_ref().map(|keyspaces| keyspaces.db.persist(mode));
        let Some(Err(error)) = result else { return Ok(()) };
        // The kernel may have dropped pages that it could not write, so the contents of the disk are unknown.
        let FatalHandler(fatal) = self.options.fatal.clone();
        fatal(&format!("fsync failed, the outcome of the last writes is unknown: {error}"));
        self.close_database();
        Err(StoreError::Unknown(error.to_string()))
    }

    /// Closes the database after a failed write, because fjall rejects everything after one.
    fn fail(&mut self, error: StoreError) {
        if self.catalog.is_some() {
            tracing::error!(%error, "write failed, reopening the database");
            self.failed = Some(error);
            self.close_database();
        }
    }

    /// Returns the cause of a failed write. After a failed flush, fjall rejects every write without the cause.
    fn failure(&mut self, error: StoreError) -> StoreError {
        if !matches!(error, StoreError::Io(_)) {
            return error;
        }
        self.read_free_space();
        let free = self.free_bytes;
        let reserve = self.options.reserve_bytes;
        if free < reserve { StoreError::DiskFull { free, reserve } } else { error }
    }

    fn close(&mut self) {
        let result =
            self.keyspaces.read().as_ref().map(|keyspaces| keyspaces.db.persist(PersistMode::SyncAll));
        if let Some(Err(error)) = result {
            tracing::error!(%error, "fsync failed at close, the last writes may not be durable");
        }
        self.close_database();
        self.reopened_at = None;
    }

    fn close_database(&mut self) {
        *self.keyspaces.write() = None;
        let queues = self.catalog.take().map(|catalog| catalog.queues).unwrap_or_default();
        self.listeners.extend(queues.into_iter().filter_map(|(id, queue)| Some((id, queue.listener?))));
        self.unsynced = None;
        self.reopened_at = Some(Instant::now());
    }

    /// Reopens the database after a failed write, with the same append listeners.
    fn reopen_if_needed(&mut self) -> Result<(), StoreError> {
        if self.catalog.is_some() {
            return Ok(());
        }
        if self.reopened_at.is_some_and(|at| at.elapsed() < self.reopen_delay) {
            return Err(self.failed.clone().unwrap_or(StoreError::Closed));
        }
        let started = Instant::now();
        let recovery = Keyspaces::open(&self.dir, self.options.cache_bytes);
        self.reopened_at = Some(Instant::now());
        self.reopen_delay = REOPEN_DELAY.max(2 * started.elapsed());
        let Recovery { keyspaces, mut catalog, .. } =
            recovery.inspect_err(|error| self.failed = Some(error.clone()))?;
        self.failed = None;
        *self.keyspaces.write() = Some(keyspaces);
        catalog.is_reopened = true;
        self.catalog = Some(catalog);
        self.restore_listeners();
        tracing::info!("database reopened after a failed write");
        Ok(())
    }

    /// Reads the free disk space, at most once per [`FREE_SPACE_INTERVAL`].
    fn refresh_free_space(&mut self) {
        if self.free_read_at.is_some_and(|at| at.elapsed() < FREE_SPACE_INTERVAL) {
            return;
        }
        self.read_free_space();
    }

    fn read_free_space(&mut self) {
        self.free_read_at = Some(Instant::now());
        self.appended_since_read = 0;
        self.unflushed_bytes = self.keyspaces.read().as_ref().map_or(0, reclaim::unflushed_bytes);
        match rustix::fs::statvfs(&self.dir) {
            Ok(disk) => self.free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize),
            Err(error) => tracing::warn!(%error, "could not read the free disk space"),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.write_queue.close();
    }
}

enum WriterTask {
    Write,
    Sync,
    Maintain,
    Reclaim,
}

impl CommitGroup {
    fn new(batch: OwnedWriteBatch) -> Self {
        Self {
            batch,
            latest: HashMap::new(),
            dedup: HashMap::new(),
            completions: Vec::new(),
            appended: Vec::new(),
            sync: SyncDeadline::None,
            bytes: 0,
            count: 0,
            awaited: 0,
            is_last: false,
        }
    }

    fn has_room(&self) -> bool {
        !self.is_last && self.count < GROUP_CHANGES_MAX && self.bytes < GROUP_BYTES_MAX
    }

    fn insert(&mut self, keyspace: KeyspaceId, key: &[u8], value: impl Into<Vec<u8>>) {
        self.latest.insert((keyspace, key.to_vec()), Some(value.into()));
    }

    fn remove(&mut self, keyspace: KeyspaceId, key: &[u8]) {
        self.latest.insert((keyspace, key.to_vec()), None);
    }

    /// Reports whether this group writes a value to the key.
    fn writes(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.latest.get(&(keyspace, key.to_vec())).is_some_and(Option::is_some)
    }

    /// Lowers the sync deadline of the group to what `durability` requires.
    fn require(&mut self, durability: Durability) {
        let sync = match durability {
            Durability::Fsync => SyncDeadline::Now,
            Durability::Interval(ms) => SyncDeadline::Within(Duration::from_millis(u64::from(ms))),
            Durability::Os => SyncDeadline::None,
        };
        self.sync = match (self.sync, sync) {
            (SyncDeadline::Within(one), SyncDeadline::Within(other)) => SyncDeadline::Within(one.min(other)),
            (one, other) => one.max(other),
        };
    }
}

impl WriteOp {
    /// Returns the number of changes.
    fn changes(&self) -> usize {
        match self {
            Self::Append(batch, _) => batch.messages.len(),
            Self::Commit(commit, _) => commit.changes.len(),
            _ => 1,
        }
    }

    /// Reports whether a caller waits for the completion.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self, Self::Commit(commit, _) if commit.is_relaxed())
    }

    /// Completes a request with an error; returns the reply channel of a close request.
    pub(super) fn fail(self, error: &StoreError) -> Option<SyncSender<()>> {
        match self {
            Self::Append(_, done) => done(Err(error.clone())),
            Self::Commit(_, done) | Self::RemoveQueue(_, done) | Self::Purge(_, done) => {
                done(Err(error.clone()));
            }
            Self::GetPurgedBelow(_, done) => done(Err(error.clone())),
            Self::SetRule(.., done) => done(Err(error.clone())),
            Self::PutResult(.., done) => done(Err(error.clone())),
            Self::ExpireResults(.., done) => done(Err(error.clone())),
            Self::PutQueue(.., done) => done(Err(error.clone())),
            Self::TakeOwnership(_, done) => done(Err(error.clone())),
            Self::IsOwner(.., done) => done(Err(error.clone())),
            Self::ListQueues(done) => done(Err(error.clone())),
            Self::Close(closed) => return Some(closed),
        }
        None
    }
}
