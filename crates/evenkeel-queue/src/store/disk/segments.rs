//! Where messages are: generations, each a keyspace that is dropped whole once nothing in it lives.
//!
//! Removed messages leave tombstones, and whoever looks for a first message wades through them; a generation
//! that is dropped leaves none. What outlives its generation is copied to a shelf of its own.

use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};

use crate::id::Seq;

/// A generation is full at this many bytes.
const BYTES_MAX: u64 = 128 << 20;
/// Or is closed at this age, if it has seen enough messages to be worth it.
const AGE_MAX: Duration = Duration::from_secs(600);
const APPENDED_MIN: u64 = 10_000;
/// One of which no more than this part lives is emptied.
const SPARSE: u64 = 16;
/// Bodies from here on are kept apart, so that whoever reads keys does not read them.
const BODY_SEPARATION_MIN: u32 = 512;

/// One keyspace of messages.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) keyspace: Keyspace,
    /// Messages from this one on.
    pub(super) first: Seq,
    /// And before this one; `None` while messages are still appended.
    pub(super) end: Option<Seq>,
    pub(super) appended: u64,
    pub(super) live: u64,
    pub(super) bytes: u64,
    pub(super) opened: Instant,
}

impl Segment {
    pub(super) fn open(db: &Database, name: &str, first: Seq, end: Option<Seq>) -> fjall::Result<Self> {
        let apart = KvSeparationOptions::default().separation_threshold(BODY_SEPARATION_MIN);
        let options = || KeyspaceCreateOptions::default().with_kv_separation(Some(apart));
        let keyspace = db.keyspace(name, options)?;
        Ok(Self { keyspace, first, end, appended: 0, live: 0, bytes: 0, opened: Instant::now() })
    }

    pub(super) fn is_full(&self) -> bool {
        let is_old = AGE_MAX <= self.opened.elapsed() && APPENDED_MIN <= self.appended;
        BYTES_MAX <= self.bytes || is_old
    }

    fn holds(&self, seq: Seq) -> bool {
        self.first <= seq && self.end.is_none_or(|end| seq < end)
    }

    /// Whether so little of it lives that what does should move.
    pub(super) fn is_sparse(&self) -> bool {
        self.end.is_some() && APPENDED_MIN <= self.appended && self.live * SPARSE < self.appended
    }
}

/// All keyspaces of messages.
#[derive(Clone)]
pub(super) struct Segments {
    /// In order; the last is the one that is appended to.
    pub(super) segments: Vec<Segment>,
    /// What outlived its generation.
    pub(super) compacted: Segment,
    pub(super) compacted_number: u64,
}

impl Segments {
    /// The shelf a message is on, if it is anywhere.
    pub(super) fn of(&self, seq: Seq) -> &Segment {
        self.generation_of(seq).map_or(&self.compacted, |at| &self.segments[at])
    }

    pub(super) fn of_mut(&mut self, seq: Seq) -> &mut Segment {
        match self.generation_of(seq) {
            Some(at) => &mut self.segments[at],
            None => &mut self.compacted,
        }
    }

    /// The shelf that is appended to.
    pub(super) fn current(&mut self) -> &mut Segment {
        self.segments.last_mut().expect("there is always a generation to append to")
    }

    /// Every shelf that may hold messages after this one: the old one first, then in order.
    pub(super) fn after(&self, seq: Seq) -> impl Iterator<Item = &Keyspace> {
        self.old_shelf().chain(self.generations_after(seq))
    }

    /// The shelf of what outlived its generation, if there is anything.
    pub(super) fn old_shelf(&self) -> impl Iterator<Item = &Keyspace> {
        core::iter::once(&self.compacted).filter(|old| old.live > 0).map(|old| &old.keyspace)
    }

    /// Generations that may hold messages after this one, in order.
    pub(super) fn generations_after(&self, seq: Seq) -> impl Iterator<Item = &Keyspace> {
        let later = self.segments.iter().filter(move |shelf| shelf.end.is_none_or(|end| seq < end));
        later.map(|shelf| &shelf.keyspace)
    }

    /// Every shelf.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        core::iter::once(&mut self.compacted).chain(&mut self.segments)
    }

    fn generation_of(&self, seq: Seq) -> Option<usize> {
        let at = self.segments.partition_point(|shelf| shelf.first <= seq).checked_sub(1)?;
        self.segments[at].holds(seq).then_some(at)
    }
}

/// A generation's name.
pub(super) fn generation_name(first: Seq) -> String {
    format!("m_{:020}", first.0)
}

/// The name of a shelf of what outlived its generation.
pub(super) fn old_name(number: u64) -> String {
    format!("old_{number:020}")
}
