//! The system lane: few messages, never refused, each with a place made beforehand.
//!
//! Bound: a child has at most a failure and an end under way, a watch an end, a timer one firing, and
//! what is left (stop, resume, restart, a signal per suspension) is asked for once at a time. Whoever
//! gains a child, a watch or a timer reserves its places then, so that telling its end never allocates.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::LaneStats;
use crate::sync::Lock;

/// The system lane of one mailbox.
#[derive(Debug)]
pub(crate) struct SystemLane<M>(Lock<Lane<M>>);

#[derive(Debug)]
enum Lane<M> {
    Unused,
    Open(Box<OpenLane<M>>),
    Closed,
}

#[derive(Debug)]
struct OpenLane<M> {
    queue: VecDeque<M>,
    enqueued: u64,
}

impl<M> SystemLane<M> {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Lane::Unused))
    }

    /// Makes `places` more, for messages that must not fail later.
    pub(crate) fn reserve(&self, places: usize) {
        self.0.with(|lane| {
            if let Some(open) = lane.open() {
                open.queue.reserve(places);
            }
        });
    }

    /// Puts a message at the end; `Err` once the cell has ended.
    pub(crate) fn push(&self, message: M) -> Result<(), M> {
        self.0.with(|lane| match lane.open() {
            Some(open) => {
                open.queue.push_back(message);
                open.enqueued += 1;
                Ok(())
            }
            None => Err(message),
        })
    }

    pub(crate) fn pop(&self) -> Option<M> {
        self.0.with(|lane| match lane {
            Lane::Open(open) => open.queue.pop_front(),
            Lane::Unused | Lane::Closed => None,
        })
    }

    /// Ends the lane and hands over what was never read.
    pub(crate) fn close(&self) -> VecDeque<M> {
        self.0.with(|lane| match core::mem::replace(lane, Lane::Closed) {
            Lane::Open(open) => open.queue,
            Lane::Unused | Lane::Closed => VecDeque::new(),
        })
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.0.with(|lane| match lane {
            Lane::Open(open) => LaneStats { enqueued: open.enqueued, depth: open.queue.len() },
            Lane::Unused | Lane::Closed => LaneStats::default(),
        })
    }
}

impl<M> Lane<M> {
    fn open(&mut self) -> Option<&mut OpenLane<M>> {
        if matches!(self, Self::Unused) {
            *self = Self::Open(Box::new(OpenLane { queue: VecDeque::new(), enqueued: 0 }));
        }
        match self {
            Self::Open(open) => Some(open),
            Self::Unused | Self::Closed => None,
        }
    }
}
