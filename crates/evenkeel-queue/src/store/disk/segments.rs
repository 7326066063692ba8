//! Message segments. Each is a keyspace, dropped as a whole once it holds no live message.
//!
//! A delete leaves a tombstone, which every later scan for a key's first message must skip; dropping a whole segment
//! leaves none. Compaction copies the last live messages of a sparse segment to the compacted segment and drops the
//! sparse one. "The compacted segment" is always the destination; there is one at a time.

use std::time::{Duration, Instant};

use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};

use crate::id::Seq;

/// Size at which a segment is closed.
const BYTES_MAX: u64 = 128 << 20;
/// Age at which a segment is closed, if it has [`APPENDED_MIN`] messages.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Segments with fewer messages are neither closed by age nor compacted.
const APPENDED_MIN: u64 = 10_000;
/// A segment is sparse, and compaction empties it, once less than one in this many of its messages is live.
const SPARSE_FACTOR: u64 = 16;
/// Bodies from this size on are stored apart from the keys, so that scans of keys do not read them.
const BODY_SEPARATION_MIN: u32 = 512;

/// A keyspace of messages.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) keyspace: Keyspace,
    /// First sequence number.
    pub(super) first: Seq,
    /// End of the sequence numbers, exclusive; `None` while messages are still appended.
    pub(super) end: Option<Seq>,
    pub(super) appended: u64,
    pub(super) live: u64,
    pub(super) bytes: u64,
    pub(super) opened: Instant,
}

impl Segment {
    pub(super) fn open(db: &Database, name: &str, first: Seq, end: Option<Seq>) -> fjall::Result<Self> {
        let separation = KvSeparationOptions::default().separation_threshold(BODY_SEPARATION_MIN);
        let options = || KeyspaceCreateOptions::default().with_kv_separation(Some(separation));
        let keyspace = db.keyspace(name, options)?;
        Ok(Self { keyspace, first, end, appended: 0, live: 0, bytes: 0, opened: Instant::now() })
    }

    pub(super) fn is_full(&self) -> bool {
        let is_old = AGE_MAX <= self.opened.elapsed() && APPENDED_MIN <= self.appended;
        BYTES_MAX <= self.bytes || is_old
    }

    /// Reports whether the segment is closed and has no live message.
    pub(super) fn is_empty(&self) -> bool {
        self.live == 0 && self.end.is_some()
    }

    /// Reports whether no memtable waits for its flush, which would create files after the others were dropped.
    pub(super) fn is_flushed(&self) -> bool {
        self.keyspace.tree.sealed_memtable_count() == 0
    }

    fn contains(&self, seq: Seq) -> bool {
        self.first <= seq && self.end.is_none_or(|end| seq < end)
    }

    /// Reports whether so few messages are live that they should be copied to the compacted segment.
    pub(super) fn is_sparse(&self) -> bool {
        self.end.is_some() && APPENDED_MIN <= self.appended && self.live * SPARSE_FACTOR < self.appended
    }
}

/// All segments of a store.
#[derive(Clone)]
pub(super) struct Segments {
    /// In order; messages are appended to the last one.
    pub(super) segments: Vec<Segment>,
    /// The compacted segment: holds the live messages that compaction copied out of sparse segments.
    pub(super) compacted: Segment,
    /// Number in the name of the compacted segment; a new one gets the next number.
    pub(super) compacted_number: u64,
}

impl Segments {
    /// Returns the only segment that can hold a message: the one whose range contains `seq`, or the compacted segment
    /// if there is none.
    pub(super) fn containing(&self, seq: Seq) -> &Segment {
        self.segment_index(seq).map_or(&self.compacted, |index| &self.segments[index])
    }

    pub(super) fn containing_mut(&mut self, seq: Seq) -> &mut Segment {
        match self.segment_index(seq) {
            Some(index) => &mut self.segments[index],
            None => &mut self.compacted,
        }
    }

    /// Returns the segment that messages are appended to.
    pub(super) fn current(&mut self) -> &mut Segment {
        self.segments.last_mut().expect("there is always a segment to append to")
    }

    /// Returns the keyspaces that may hold messages after `seq`: the compacted one, then the others in order.
    pub(super) fn after(&self, seq: Seq) -> impl Iterator<Item = &Keyspace> {
        self.compacted_keyspace().chain(self.segments_after(seq))
    }

    /// Returns the compacted segment's keyspace, if it holds a live message.
    pub(super) fn compacted_keyspace(&self) -> impl Iterator<Item = &Keyspace> {
        let compacted = core::iter::once(&self.compacted);
        compacted.filter(|segment| segment.live > 0).map(|segment| &segment.keyspace)
    }

    /// Returns the keyspaces of the segments, without the compacted one, that may hold messages after `seq`, in order.
    pub(super) fn segments_after(&self, seq: Seq) -> impl Iterator<Item = &Keyspace> {
        let later = self.segments.iter().filter(move |segment| segment.end.is_none_or(|end| seq < end));
        later.map(|segment| &segment.keyspace)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        core::iter::once(&self.compacted).chain(&self.segments)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        core::iter::once(&mut self.compacted).chain(&mut self.segments)
    }

    fn segment_index(&self, seq: Seq) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.first <= seq).checked_sub(1)?;
        self.segments[index].contains(seq).then_some(index)
    }
}

pub(super) fn segment_name(first: Seq) -> String {
    format!("m_{:020}", first.0)
}

pub(super) fn compacted_name(number: u64) -> String {
    format!("old_{number:020}")
}
