//! Returns disk space and memory while few messages are appended: empty segments, the journal, and memtables.
//!
//! fjall deletes a journal file once every keyspace that it mentions was flushed, a dropped keyspace once no journal
//! file mentions it, and frees a flushed memtable at the next flush. All of that needs writes, so without this a drained
//! store would keep its space until new messages arrive, which a full disk prevents.

use std::time::{Duration, Instant};

use fjall::{AbstractTree, Keyspace, PersistMode};

use super::{REOPEN_DELAY, Writer};
use crate::store::StoreError;
use crate::store::disk::keyspaces::{Keyspaces, io};
use crate::store::disk::segments::Segment;

/// Delay from a write to the next run, and the shortest delay between runs.
const INTERVAL: Duration = Duration::from_secs(1);
/// While the store is idle, the delay doubles from the third consecutive flush on, up to 64 s (1 s << 6).
const BACKOFF_SHIFT_MAX: u32 = 6;
/// With fewer bytes appended since the last run, empty segments are dropped.
const QUIET_BYTES: u64 = 256 << 10;
/// With fewer changes since the last run, memtables are flushed.
const IDLE_CHANGES: u64 = 100;
/// Memory of memtables that is worth a flush.
const FLUSH_MIN: u64 = 8 << 20;
/// The same while the disk is short of space.
const FLUSH_MIN_SHORT: u64 = 1 << 20;
/// Runs that follow the first one without anything to return, to purge memory that fjall frees late.
const SETTLED_MAX: u32 = 3;
/// Size from which an open segment without live messages is closed, so that it can be dropped.
const DRAINED_MIN: u64 = 8 << 20;
/// Size at which fjall seals a memtable.
const MEMTABLE_MAX: u64 = 64 << 20;
/// A key that no keyspace has.
const UNUSED_KEY: &[u8] = &[0xff];

/// Activity since the last run, and the time of the next.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    /// `None` while there is nothing to return.
    due: Option<Instant>,
    appended: u64,
    changes: u64,
    /// Consecutive idle runs that flushed memtables or left an empty segment to drop.
    flushes: u32,
    /// Runs since then that found nothing to return.
    settled: u32,
}

impl Reclaim {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records a commit.
    pub(super) fn record(&mut self, appended: usize, changes: usize) {
        self.appended += appended as u64;
        self.changes += changes as u64;
        self.due.get_or_insert_with(|| Instant::now() + INTERVAL);
    }
}

impl Writer {
    /// Reopens the database if a failed write closed it; otherwise frees unused space.
    pub(super) fn run_reclaim(&mut self) {
        if self.catalog.is_none() {
            // A failure is reported to the next request.
            self.reopen_if_needed().ok();
            return;
        }
        if let Err(error) = self.return_space() {
            let error = self.failure(error);
            self.fail(error);
        }
    }

    fn return_space(&mut self) -> Result<(), StoreError> {
        self.read_free_space();
        let is_short = self.available() < self.options.reserve_bytes;
        let is_quiet = is_short || self.reclaim.appended < QUIET_BYTES;
        let is_idle = is_short || (is_quiet && self.reclaim.changes < IDLE_CHANGES);
        let Reclaim { flushes, settled, .. } = core::mem::take(&mut self.reclaim);
        if is_idle {
            self.compact_sparse()?;
        }
        if is_quiet {
            self.drop_drained()?;
        }
        let min = if is_short { FLUSH_MIN_SHORT } else { FLUSH_MIN };
        let flushed = is_idle && self.flush_memtables(min)?;
        if flushed || !is_idle || self.has_empty_segment() {
            self.reclaim.flushes = if is_idle { flushes + 1 } else { 0 };
            let backoff = self.reclaim.flushes.saturating_sub(2).min(BACKOFF_SHIFT_MAX);
            self.reclaim.due = Some(Instant::now() + INTERVAL * (1 << backoff));
        } else {
            (self.options.on_memory_freed)();
            if settled < SETTLED_MAX {
                self.reclaim.settled = settled + 1;
                self.reclaim.due = Some(Instant::now() + INTERVAL);
            }
        }
        Ok(())
    }

    /// Returns when the writer must act although no write arrives: reopen the database, or return space.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        match self.catalog {
            Some(_) => self.reclaim.due(),
            None => self.reopened_at.map(|at| at + self.reopen_delay.max(REOPEN_DELAY)),
        }
    }

    /// Drops empty segments; the open segment is closed first if it is drained.
    fn drop_drained(&mut self) -> Result<(), StoreError> {
        let is_drained = |segment: &mut Segment| segment.live == 0 && DRAINED_MIN <= segment.bytes;
        let rotates =
            self.keyspaces.write().as_mut().is_some_and(|keyspaces| is_drained(keyspaces.segments.current()));
        if rotates {
            self.rotate()?;
        }
        self.drop_empty()
    }

    /// Reports whether a segment waits for a flush before it is dropped.
    fn has_empty_segment(&self) -> bool {
        let keyspaces = self.keyspaces.read();
        keyspaces.as_ref().is_some_and(|keyspaces| keyspaces.segments.segments.iter().any(Segment::is_empty))
    }

    /// Flushes the memtables if they take `min` bytes or hold back a journal file; reports whether it did.
    fn flush_memtables(&self, min: u64) -> Result<bool, StoreError> {
        let keyspaces = self.keyspaces.read();
        let Some(keyspaces) = keyspaces.as_ref() else { return Ok(false) };
        let memory: u64 = keyspaces.all().map(memtable_bytes).sum();
        if memory < min && keyspaces.db.journal_count() == 1 {
            return Ok(false);
        }
        flush_all(keyspaces)?;
        Ok(true)
    }

    /// Returns the free disk space, without what the memtables will take once they are flushed.
    pub(super) fn available(&self) -> u64 {
        // Bytes appended since the last reading take space twice: in the journal, and in a table after the flush.
        let appended = self.appended_since_read.saturating_mul(2);
        self.free_bytes.saturating_sub(self.unflushed_bytes).saturating_sub(appended)
    }
}

fn flush_all(keyspaces: &Keyspaces) -> Result<(), StoreError> {
    let mut batch = keyspaces.db.batch();
    for keyspace in keyspaces.all().filter(|keyspace| keyspace.tree.active_memtable().is_empty()) {
        // fjall compares a journal file with the last write in a keyspace's tables. A compaction that drops tombstones may
        // remove that write, so every keyspace gets a later one.
        batch.remove(keyspace, UNUSED_KEY);
    }
    batch.durability(Some(PersistMode::Buffer)).commit().map_err(io)?;
    for keyspace in keyspaces.all() {
        keyspace.rotate_memtable().map_err(io)?;
    }
    Ok(())
}

/// Returns the memory of a keyspace's memtables, also of flushed ones that fjall has not freed.
fn memtable_bytes(keyspace: &Keyspace) -> u64 {
    keyspace.tree.get_version_history_lock().memtable_size_sum()
}

/// Returns the bytes that the next flushes of a keyspace will write.
pub(super) fn unflushed_bytes(keyspaces: &Keyspaces) -> u64 {
    let active: u64 = keyspaces.all().map(|keyspace| keyspace.tree.active_memtable().size()).sum();
    let sealed: usize =
        keyspaces.segments.iter().map(|segment| segment.keyspace.tree.sealed_memtable_count()).sum();
    active + sealed as u64 * MEMTABLE_MAX
}
