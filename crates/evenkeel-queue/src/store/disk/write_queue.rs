//! Where requests wait for the writer, which is woken once for many.
//!
//! Bound: at most `len_max` requests that can be refused wait; those whose senders wait for an answer at start-up come
//! in addition.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::writer::WriteOp;

/// Requests in the order they came.
pub(super) struct WriteQueue {
    state: Mutex<State>,
    /// The writer sleeps here.
    called: Condvar,
    len_max: usize,
}

struct State {
    ops: VecDeque<WriteOp>,
    /// How many of them somebody waits for.
    awaited: usize,
    writer: WakeCondition,
    is_closed: bool,
}

/// What wakes the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeCondition {
    /// It is at work and will look.
    No,
    /// Anything.
    UntilAny,
    /// So many requests that somebody waits for.
    UntilAwaited(usize),
}

/// Why a request did not get in.
pub(super) enum EnqueueError {
    /// Too many wait.
    Full(WriteOp),
    /// Nobody writes any more.
    Closed(WriteOp),
}

impl WriteQueue {
    pub(super) fn new(len_max: usize) -> Self {
        let state = State { ops: VecDeque::new(), awaited: 0, writer: WakeCondition::No, is_closed: false };
        Self { state: Mutex::new(state), called: Condvar::new(), len_max }
    }

    /// Leaves a request, if there is room.
    pub(super) fn try_push(&self, op: WriteOp) -> Result<(), EnqueueError> {
        let state = self.state.lock();
        if self.len_max <= state.ops.len() {
            return Err(EnqueueError::Full(op));
        }
        self.put(state, op)
    }

    /// Leaves a request that must not be refused.
    pub(super) fn push(&self, op: WriteOp) -> Result<(), EnqueueError> {
        self.put(self.state.lock(), op)
    }

    fn put(&self, mut state: parking_lot::MutexGuard<'_, State>, op: WriteOp) -> Result<(), EnqueueError> {
        if state.is_closed {
            return Err(EnqueueError::Closed(op));
        }
        state.awaited += usize::from(op.is_awaited());
        state.ops.push_back(op);
        let wakes = match state.writer {
            WakeCondition::No => false,
            WakeCondition::UntilAny => true,
            WakeCondition::UntilAwaited(count) => count <= state.awaited,
        };
        if wakes {
            state.writer = WakeCondition::No;
            drop(state);
            self.called.notify_one();
        }
        Ok(())
    }

    /// Takes everything that is there.
    pub(super) fn take(&self) -> VecDeque<WriteOp> {
        let mut state = self.state.lock();
        state.awaited = 0;
        core::mem::take(&mut state.ops)
    }

    /// Waits until there is something.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.writer = WakeCondition::UntilAny;
            self.called.wait(&mut state);
        }
        state.writer = WakeCondition::No;
    }

    /// Waits until there is something, or it is too late.
    pub(super) fn wait_until(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.ops.is_empty() {
            state.writer = WakeCondition::UntilAny;
            if self.called.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.writer = WakeCondition::No;
    }

    /// Waits until there are so many requests that somebody waits for, or it is too late.
    pub(super) fn wait_for_awaited(&self, count: usize, deadline: Instant) {
        let mut state = self.state.lock();
        while state.awaited < count {
            state.writer = WakeCondition::UntilAwaited(count);
            if self.called.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.writer = WakeCondition::No;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().ops.is_empty()
    }

    /// Takes nothing more; what is there is dropped, which tells those who wait.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let dropped = core::mem::take(&mut state.ops);
        drop(state);
        drop(dropped);
    }
}
