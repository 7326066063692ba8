//! The system lane: few messages, never refused, each with a place made beforehand.
//!
//! Bound: a child has at most a failure and an end under way, a watch an end, a timer one firing, and
//! what is left (stop, resume, restart, a signal per suspension) is asked for once at a time. Whoever
//! gains a child, a watch or a timer reserves its places then, so that telling its end never allocates.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use evenkeel_policy::time::Instant;

use super::LaneStats;
use crate::cell::CellRef;
use crate::guardian::{FailureNotification, SupervisionCommand};
use crate::invoke::SignalKey;
use crate::stop::{Ending, StopMode};
use crate::sync::Lock;
use crate::timer::TimerId;

/// What the system tells a cell.
#[derive(Debug)]
pub(crate) enum SystemMessage {
    /// End, at once or after what waits.
    Stop(StopMode),
    /// What a supervisor ordered.
    Command(SupervisionCommand),
    /// A child failed and this was decided about it.
    ChildFailed(Box<FailureNotification>),
    /// A child or a watched actor has ended.
    Ended { who: CellRef, how: Ending },
    /// Tell `CellRef` when this actor has ended.
    Watch(CellRef),
    /// Do not.
    Unwatch(CellRef),
    /// The wait for a signal is over.
    Signal(SignalKey),
    /// The time of a suspension is over.
    Resume { due: Instant },
    /// Nothing may have arrived for as long as the actor asked for.
    ReceiveTimeout { due: Instant },
    /// A timer of the actor's own fired.
    Timer { id: TimerId, due: Instant },
}

/// The system lane of one mailbox.
#[derive(Debug)]
pub(crate) struct SystemLane(Lock<Lane>);

#[derive(Debug)]
enum Lane {
    Unused,
    Open(Box<OpenLane>),
    Closed,
}

#[derive(Debug, Default)]
struct OpenLane {
    queue: VecDeque<SystemMessage>,
    enqueued: u64,
}

impl SystemLane {
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
    pub(crate) fn push(&self, message: SystemMessage) -> Result<(), SystemMessage> {
        self.0.with(|lane| match lane.open() {
            Some(open) => {
                open.queue.push_back(message);
                open.enqueued += 1;
                Ok(())
            }
            None => Err(message),
        })
    }

    pub(crate) fn pop(&self) -> Option<SystemMessage> {
        self.0.with(|lane| match lane {
            Lane::Open(open) => open.queue.pop_front(),
            Lane::Unused | Lane::Closed => None,
        })
    }

    /// Ends the lane and hands over what was never read.
    pub(crate) fn close(&self) -> VecDeque<SystemMessage> {
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

impl Lane {
    fn open(&mut self) -> Option<&mut OpenLane> {
        if matches!(self, Self::Unused) {
            *self = Self::Open(Box::default());
        }
        match self {
            Self::Open(open) => Some(open),
            Self::Unused | Self::Closed => None,
        }
    }
}
