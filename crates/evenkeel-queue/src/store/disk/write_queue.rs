//! Queue of pending writes. The writer is woken once for many of them.
//!
//! Limits: `len_max` writes that may be rejected; those that block their caller at start-up come in addition.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::writer::WriteOp;

/// Writes in order of arrival.
pub(super) struct WriteQueue {
    state: Mutex<State>,
    wake: Condvar,
    len_max: usize,
}

struct State {
    ops: VecDeque<WriteOp>,
    /// Writes whose completion a caller waits for.
    awaited: usize,
    writer: WakeCondition,
    is_closed: bool,
}

/// Condition that wakes the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeCondition {
    /// The writer is running and checks by itself.
    Never,
    Any,
    /// This many writes that a caller waits for.
    Awaited(usize),
}

pub(super) enum EnqueueError {
    Full(WriteOp),
    Closed(WriteOp),
}

impl WriteQueue {
    pub(super) fn new(len_max: usize) -> Self {
        let state =
            State { ops: VecDeque::new(), awaited: 0, writer: WakeCondition::Never, is_closed: false };
        Self { state: Mutex::new(state), wake: Condvar::new(), len_max }
    }

    /// Adds a write, if there is room.
    pub(super) fn try_push(&self, op: WriteOp) -> Result<(), EnqueueError> {
        let state = self.state.lock();
        if self.len_max <= state.ops.len() {
            return Err(EnqueueError::Full(op));
        }
        self.insert(state, op)
    }

    /// Adds a write regardless of the limit.
    pub(super) fn push(&self, op: WriteOp) -> Result<(), EnqueueError> {
        self.insert(self.state.lock(), op)
    }

    fn insert(&self, mut state: parking_lot::MutexGuard<'_, State>, op: WriteOp) -> Result<(), EnqueueError> {
        if state.is_closed {
            return Err(EnqueueError::Closed(op));
        }
        state.awaited += usize::from(op.is_awaited());
        state.ops.push_back(op);
        let is_woken = match state.writer {
            WakeCondition::Never => false,
            WakeCondition::Any => true,
            WakeCondition::Awaited(count) => count <= state.awaited,
        };
        if is_woken {
            state.writer = WakeCondition::Never;
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Removes all pending writes.
    pub(super) fn take_all(&self) -> VecDeque<WriteOp> {
        let mut state = self.state.lock();
        state.awaited = 0;
        core::mem::take(&mut state.ops)
    }

    /// Waits for a write.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.writer = WakeCondition::Any;
            self.wake.wait(&mut state);
        }
        state.writer = WakeCondition::Never;
    }

    /// Waits for a write until the deadline.
    pub(super) fn wait_until(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.writer = WakeCondition::Any;
            if self.wake.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.writer = WakeCondition::Never;
    }

    /// Waits for `count` writes that a caller waits for, until the deadline.
    pub(super) fn wait_for_awaited(&self, count: usize, deadline: Instant) {
        let mut state = self.state.lock();
        while state.awaited < count {
            state.writer = WakeCondition::Awaited(count);
            if self.wake.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.writer = WakeCondition::Never;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().ops.is_empty()
    }

    /// Rejects further writes and drops the pending ones, which completes them with an error.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = core::mem::take(&mut state.ops);
        drop(state);
        drop(dropped);
    }
}
