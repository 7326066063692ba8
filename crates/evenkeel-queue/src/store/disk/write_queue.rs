//! Queue of pending writes. It wakes the writer once per group of writes, not once per write.
//!
//! Limits: [`WriteQueue::try_push`] rejects writes beyond `len_max`. [`WriteQueue::push`] has no limit; it is for
//! callers that block until their write completes.

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
    /// Number of queued writes that a caller waits for.
    awaited: usize,
    wake_condition: WakeCondition,
    is_closed: bool,
}

/// Condition that wakes the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeCondition {
    /// The writer is running; it checks the queue before it waits.
    Never,
    Any,
    /// At least this many queued writes have a waiting caller.
    Awaited(usize),
}

pub(super) enum EnqueueError {
    Full(WriteOp),
    Closed(WriteOp),
}

impl WriteQueue {
    pub(super) fn new(len_max: usize) -> Self {
        let state = State {
            ops: VecDeque::new(),
            awaited: 0,
            wake_condition: WakeCondition::Never,
            is_closed: false,
        };
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
        let must_wake = match state.wake_condition {
            WakeCondition::Never => false,
            WakeCondition::Any => true,
            WakeCondition::Awaited(count) => count <= state.awaited,
        };
        if must_wake {
            state.wake_condition = WakeCondition::Never;
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

    /// Waits until a write is queued.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.wake_condition = WakeCondition::Any;
            self.wake.wait(&mut state);
        }
        state.wake_condition = WakeCondition::Never;
    }

    /// Waits until a write is queued or the deadline has passed.
    pub(super) fn wait_until(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.wake_condition = WakeCondition::Any;
            if self.wake.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.wake_condition = WakeCondition::Never;
    }

    /// Waits until `count` queued writes have a waiting caller, or the deadline has passed.
    pub(super) fn wait_for_awaited(&self, count: usize, deadline: Instant) {
        let mut state = self.state.lock();
        while state.awaited < count {
            state.wake_condition = WakeCondition::Awaited(count);
            if self.wake.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.wake_condition = WakeCondition::Never;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().ops.is_empty()
    }

    /// Rejects further writes and drops the pending ones without calling their completions.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = core::mem::take(&mut state.ops);
        drop(state);
        drop(dropped);
    }
}
