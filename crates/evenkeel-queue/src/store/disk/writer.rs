//! The thread that writes: whatever has come in meanwhile goes to disk together, then everybody is answered.

mod maintenance;
mod stage;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use fjall::{OwnedWriteBatch, PersistMode};
use parking_lot::RwLock;

use super::dedup::DedupEntry;
use super::keyspaces::{Catalog, Keyspaces, Recovery, io};
use super::write_queue::WriteQueue;
use super::{DiskOptions, FatalHandler};
use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult};
use crate::rule::KeyRule;
use crate::settings::Durability;
use crate::store::{
    AppendListener, Batch, Commit, Completion, Ownership, QueueDescriptor, QueueRecord, StoreError,
    StoredResult,
};
use crate::time::UnixMillis;

/// At most so many messages are written and changes made together, and one request more.
const GROUP_MAX: usize = 8_192;
/// Or so many bytes.
const GROUP_BYTES_MAX: usize = 16 << 20;
/// Those whom one flush answered are waited for twice as long as it took, and never longer than this.
const GROUP_WAIT_MAX: Duration = Duration::from_millis(2);
/// What nobody waits for is written with what somebody does, or after this long.
const RELAXED_WAIT_MAX: Duration = Duration::from_millis(5);
/// What was purged is removed when nobody asks for anything; some of it also this often while somebody does.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// How often the free space of the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long to wait before a folder that could not be opened again is tried once more.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// What the writer is asked.
pub(super) enum WriteOp {
    Append(Batch, Completion<Vec<EnqueueResult>>),
    Commit(Commit, Completion<()>),
    Purge(QueueId, Completion<Seq>),
    SetRule(QueueId, Arc<str>, KeyRule, Completion<KeyId>),
    PutResult(MessageId, StoredResult, usize, Completion<()>),
    ExpireResults(UnixMillis, usize, Completion<usize>),
    PutQueue(Option<QueueId>, Box<QueueDescriptor>, Completion<QueueId>),
    RemoveQueue(QueueId, Completion<()>),
    Claim(Vec<(QueueId, AppendListener)>, Completion<Vec<Ownership>>),
    Renew(QueueId, Epoch, Completion<bool>),
    Queues(Completion<Vec<QueueRecord>>),
    /// Before which message a queue is purged.
    PurgedBelow(QueueId, Completion<Seq>),
    Close(SyncSender<()>),
}

pub(super) struct Writer {
    folder: PathBuf,
    options: DiskOptions,
    inbox: Arc<WriteQueue>,
    /// Taken from there and not written yet.
    taken: VecDeque<WriteOp>,
    /// What readers read from.
    opened: Arc<RwLock<Option<Keyspaces>>>,
    /// `None` while the folder could not be opened again.
    ledger: Option<Catalog>,
    /// Who is told of each queue's messages, while the folder is closed.
    tails: Vec<(QueueId, AppendListener)>,
    /// Since when something waits to be on disk, and how long it may.
    unsynced: Option<(Instant, Duration)>,
    /// How many requests the last flush was for, and how long it took.
    flushed: usize,
    flush_took: Duration,
    free: u64,
    looked_at: Option<Instant>,
    tidied_at: Instant,
    reopened_at: Option<Instant>,
    /// Why the folder is closed.
    failed: Option<StoreError>,
    /// How often the disk had to confirm.
    flushes: Arc<AtomicU64>,
}

/// What is written together.
///
/// All of a batch has one number in fjall's order, so of two writes to one place in it, either may win. Messages are
/// written once and removed once, never in one group; of everything else only the last is put into the batch.
pub(super) struct CommitGroup {
    batch: OwnedWriteBatch,
    /// What is written to places that may be written to again: the value, or none to remove it.
    latest: HashMap<(KeyspaceId, Vec<u8>), Option<Vec<u8>>>,
    /// What was sent under a name that its sender gave, by the entry's place.
    named: HashMap<[u8; 36], DedupEntry>,
    answers: Vec<Completion<()>>,
    tails: Vec<(QueueId, AppendListener, Vec<AppendedMessage>)>,
    sync: SyncDeadline,
    bytes: usize,
    count: usize,
    /// How many requests somebody waits for.
    awaited: usize,
    /// Nothing more may be written with it.
    is_last: bool,
}

/// A keyspace whose places may be written to again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum KeyspaceId {
    Meta,
    Keys,
    State,
    Results,
    ResultsDue,
}

/// When a group must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SyncDeadline {
    Whenever,
    Within(Duration),
    Now,
}

impl Writer {
    pub(super) fn new(
        folder: PathBuf,
        options: DiskOptions,
        inbox: Arc<WriteQueue>,
        opened: Arc<RwLock<Option<Keyspaces>>>,
        ledger: Catalog,
        flushes: Arc<AtomicU64>,
    ) -> Self {
        Self {
            folder,
            options,
            inbox,
            taken: VecDeque::new(),
            opened,
            ledger: Some(ledger),
            tails: Vec::new(),
            unsynced: None,
            flushed: 0,
            flush_took: Duration::ZERO,
            free: u64::MAX,
            looked_at: None,
            tidied_at: Instant::now(),
            reopened_at: None,
            failed: None,
            flushes,
        }
    }

    /// Writes until it is closed.
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
                WriterTask::Tidy => self.run_maintenance(),
            }
        }
    }

    /// Waits for the next thing to do.
    fn next(&mut self) -> WriterTask {
        // Requests that never pause must not put it off.
        if self.unsynced.is_some_and(|(since, within)| within <= since.elapsed()) {
            return WriterTask::Sync;
        }
        if self.has_chores() && MAINTENANCE_INTERVAL <= self.tidied_at.elapsed() {
            return WriterTask::Tidy;
        }
        if !self.taken.is_empty() {
            return WriterTask::Write;
        }
        self.wait_for_group();
        if self.has_chores() && self.inbox.is_empty() {
            return WriterTask::Tidy;
        }
        let Some((since, within)) = self.unsynced else {
            self.inbox.wait();
            return WriterTask::Write;
        };
        self.inbox.wait_until(since + within);
        if self.inbox.is_empty() { WriterTask::Sync } else { WriterTask::Write }
    }

    /// Writes what has come in, together; a wish to close ends it.
    fn write(&mut self) -> Option<SyncSender<()>> {
        let mut group = match self.begin() {
            Ok(group) => group,
            Err(why) => {
                self.take_all();
                return self.taken.drain(..).find_map(|op| op.refuse(&why));
            }
        };
        let mut closing = self.fill(&mut group);
        let is_note = closing.is_none() && group.awaited == 0 && group.has_room();
        if is_note {
            // It is written with what somebody waits for, if that comes soon.
            self.inbox.wait_for_awaited(1, Instant::now() + RELAXED_WAIT_MAX);
            closing = self.fill(&mut group);
        }
        self.commit(group);
        closing
    }

    fn begin(&mut self) -> Result<CommitGroup, StoreError> {
        self.reopen_if_needed()?;
        self.refresh_free_space();
        let batch = self.opened.read().as_ref().map(|opened| opened.db.batch());
        batch.map(CommitGroup::new).ok_or(StoreError::Closed)
    }

    /// Stages what has come in, as far as it fits.
    fn fill(&mut self, group: &mut CommitGroup) -> Option<SyncSender<()>> {
        self.take_all();
        while group.has_room() {
            match self.taken.pop_front()? {
                WriteOp::Close(closed) => return Some(closed),
                // Its owner lets go of all it was told of, so nothing later may be told before.
                op @ WriteOp::Purge(..) => {
                    group.is_last = true;
                    group.awaited += 1;
                    self.stage(group, op);
                }
                op => {
                    group.count += op.weight();
                    group.awaited += usize::from(op.is_awaited());
                    self.stage(group, op);
                }
            }
        }
        None
    }

    fn take_all(&mut self) {
        if self.taken.is_empty() {
            self.taken = self.inbox.take();
        }
    }

    /// Waits a moment for those whom the last flush answered together.
    ///
    /// They often have their next requests under way: were the first of them written alone, all others would wait for
    /// two flushes. One that was answered alone is not waited for.
    fn wait_for_group(&mut self) {
        let company = core::mem::take(&mut self.flushed);
        if 1 < company {
            let wait = (2 * self.flush_took).min(GROUP_WAIT_MAX);
            self.inbox.wait_for_awaited(company, Instant::now() + wait);
        }
    }

    /// Puts a group on disk, as durably as the most demanding of it asks, and answers.
    fn commit(&mut self, group: CommitGroup) {
        let CommitGroup { mut batch, latest, answers, tails, sync, awaited, .. } = group;
        if let Some(opened) = self.opened.read().as_ref() {
            for ((space, place), value) in latest {
                let keyspace = match space {
                    KeyspaceId::Meta => &opened.meta,
                    KeyspaceId::Keys => &opened.keys,
                    KeyspaceId::State => &opened.state,
                    KeyspaceId::Results => &opened.results,
                    KeyspaceId::ResultsDue => &opened.results_due,
                };
                match value {
                    Some(value) => batch.insert(keyspace, place, value),
                    None => batch.remove(keyspace, place),
                }
            }
        }
        let has_content = !batch.is_empty();
        if let Err(error) = batch.durability(Some(PersistMode::Buffer)).commit() {
            let why = io(error);
            tracing::error!(%why, "writing failed, opening the folder again");
            self.failed = Some(why.clone());
            self.drop_folder();
            return answers.into_iter().for_each(|answer| answer(Err(why.clone())));
        }
        match sync {
            SyncDeadline::Now if has_content => {
                let begun = Instant::now();
                self.sync();
                (self.flushed, self.flush_took) = (awaited, begun.elapsed());
            }
            SyncDeadline::Within(within) if has_content => {
                let due = self.unsynced.map(|(since, within)| since + within);
                let sooner = due.is_none_or(|due| Instant::now() + within < due);
                if sooner {
                    self.unsynced = Some((Instant::now(), within));
                }
            }
            SyncDeadline::Now | SyncDeadline::Within(_) | SyncDeadline::Whenever => {}
        }
        if self.ledger.is_none() {
            // The disk failed while this was made durable.
            let why = StoreError::Unknown("the disk did not confirm".into());
            return answers.into_iter().for_each(|answer| answer(Err(why.clone())));
        }
        for (_, tail, appended) in tails {
            tail(appended);
        }
        answers.into_iter().for_each(|answer| answer(Ok(())));
        self.rotate_if_full();
        self.rotate_dedup();
    }

    /// Has everything written so far on disk.
    fn sync(&mut self) {
        self.unsynced = None;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        // Whoever waits is told by the folder's being closed.
        self.persist(PersistMode::SyncData).ok();
    }

    /// Has the disk confirm what was written so far; one that does not stops the store.
    fn persist(&mut self, mode: PersistMode) -> Result<(), StoreError> {
        let result = self.opened.read().as_ref().map(|opened| opened.db.persist(mode));
        let Some(Err(error)) = result else { return Ok(()) };
        // What is on disk now, nobody knows: the kernel may have dropped pages it could not write.
        let FatalHandler(fatal) = self.options.fatal.clone();
        fatal(&format!("the disk did not confirm a write, stopping because its outcome is unknown: {error}"));
        self.drop_folder();
        Err(StoreError::Unknown(error.to_string()))
    }

    fn close(&mut self) {
        let result = self.opened.read().as_ref().map(|opened| opened.db.persist(PersistMode::SyncAll));
        if let Some(Err(error)) = result {
            tracing::error!(%error, "what was written last may not be on disk");
        }
        self.drop_folder();
        self.reopened_at = None;
    }

    fn drop_folder(&mut self) {
        *self.opened.write() = None;
        let queues = self.ledger.take().map(|ledger| ledger.queues).unwrap_or_default();
        self.tails.extend(queues.into_iter().filter_map(|(id, queue)| Some((id, queue.tail?))));
        self.unsynced = None;
        self.reopened_at = Some(Instant::now());
    }

    /// Opens the folder again after a failed write; whoever listens to tails stays.
    fn reopen_if_needed(&mut self) -> Result<(), StoreError> {
        if self.ledger.is_some() {
            return Ok(());
        }
        if self.reopened_at.is_some_and(|at| at.elapsed() < REOPEN_AFTER) {
            return Err(self.failed.clone().unwrap_or(StoreError::Closed));
        }
        self.reopened_at = Some(Instant::now());
        let opening = Keyspaces::open(&self.folder, self.options.cache_bytes);
        let Recovery { opened, ledger, .. } = opening.inspect_err(|why| self.failed = Some(why.clone()))?;
        self.failed = None;
        *self.opened.write() = Some(opened);
        self.ledger = Some(Catalog { is_reopened: true, ..ledger });
        self.restore_tails();
        tracing::info!("the folder is open again");
        Ok(())
    }

    /// Looks now and then how much room is left.
    fn refresh_free_space(&mut self) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        match rustix::fs::statvfs(&self.folder) {
            Ok(disk) => self.free = disk.f_bavail.saturating_mul(disk.f_frsize),
            Err(error) => tracing::warn!(%error, "the free space of the disk is not known"),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

enum WriterTask {
    Write,
    Sync,
    Tidy,
}

impl CommitGroup {
    fn new(batch: OwnedWriteBatch) -> Self {
        Self {
            batch,
            latest: HashMap::new(),
            named: HashMap::new(),
            answers: Vec::new(),
            tails: Vec::new(),
            sync: SyncDeadline::Whenever,
            bytes: 0,
            count: 0,
            awaited: 0,
            is_last: false,
        }
    }

    fn has_room(&self) -> bool {
        !self.is_last && self.count < GROUP_MAX && self.bytes < GROUP_BYTES_MAX
    }

    fn put(&mut self, space: KeyspaceId, place: &[u8], value: impl Into<Vec<u8>>) {
        self.latest.insert((space, place.to_vec()), Some(value.into()));
    }

    fn take(&mut self, space: KeyspaceId, place: &[u8]) {
        self.latest.insert((space, place.to_vec()), None);
    }

    /// Tells whether something is put there by this group.
    fn has(&self, space: KeyspaceId, place: &[u8]) -> bool {
        self.latest.get(&(space, place.to_vec())).is_some_and(Option::is_some)
    }

    /// Has the group on disk at least as soon as `durability` says.
    fn need(&mut self, durability: Durability) {
        let sync = match durability {
            Durability::Fsync => SyncDeadline::Now,
            Durability::Interval(ms) => SyncDeadline::Within(Duration::from_millis(u64::from(ms))),
            Durability::Os => SyncDeadline::Whenever,
        };
        self.sync = match (self.sync, sync) {
            (SyncDeadline::Within(one), SyncDeadline::Within(other)) => SyncDeadline::Within(one.min(other)),
            (one, other) => one.max(other),
        };
    }
}

impl WriteOp {
    /// How many messages it writes or changes it makes.
    fn weight(&self) -> usize {
        match self {
            Self::Append(batch, _) => batch.drafts.len(),
            Self::Commit(commit, _) => commit.changes.len(),
            _ => 1,
        }
    }

    /// Whether somebody waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self, Self::Commit(commit, _) if commit.is_relaxed())
    }

    /// Answers a request that cannot be looked at; a wish to close is handed back.
    pub(super) fn refuse(self, why: &StoreError) -> Option<SyncSender<()>> {
        match self {
            Self::Append(_, done) => done(Err(why.clone())),
            Self::Commit(_, done) | Self::RemoveQueue(_, done) => done(Err(why.clone())),
            Self::Purge(_, done) | Self::PurgedBelow(_, done) => done(Err(why.clone())),
            Self::SetRule(.., done) => done(Err(why.clone())),
            Self::PutResult(.., done) => done(Err(why.clone())),
            Self::ExpireResults(.., done) => done(Err(why.clone())),
            Self::PutQueue(.., done) => done(Err(why.clone())),
            Self::Claim(_, done) => done(Err(why.clone())),
            Self::Renew(.., done) => done(Err(why.clone())),
            Self::Queues(done) => done(Err(why.clone())),
            Self::Close(closed) => return Some(closed),
        }
        None
    }
}
