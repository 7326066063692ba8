//! The steps of a run that clear a flag of the state word and then look for the work behind it.
//!
//! The order matters: if a flag were cleared after the look, work that arrives in between would have its flag erased and
//! wait forever. The invoker and the loom models call these functions, so the models check the order that runs.

use alloc::collections::VecDeque;

use super::state::{CLOSED, CellState, SYSTEM, USER, WAITERS, WAKER_REF, WOKEN};
use crate::mailbox::MailboxQueues;

/// Passes the queued system messages to `handle` until it returns an action or none is left.
///
/// After an action, `SYSTEM` is raised again, because more messages may be queued.
#[inline]
pub(crate) fn process_system<M, S, R>(
    state: &CellState,
    queues: &MailboxQueues<M, S>,
    mut handle: impl FnMut(S) -> Option<R>,
) -> Option<R> {
    state.lower(SYSTEM);
    while let Some(message) = queues.pop_system() {
        let action = handle(message);
        if action.is_some() {
            state.set(SYSTEM);
            return action;
        }
    }
    None
}

/// Passes the flags before a wake-up to `poll`, which looks for the cause of the wake-up.
#[inline]
pub(crate) fn process_wake<R>(state: &CellState, poll: impl FnOnce(u32) -> R) -> R {
    poll(state.lower(WOKEN | WAKER_REF))
}

/// Takes the next user message from the private half, refilling it from the shared half when it is empty.
#[inline]
pub(crate) fn pop_user<M, S>(
    state: &CellState,
    queues: &MailboxQueues<M, S>,
    private: &mut VecDeque<M>,
) -> Option<M> {
    if let Some(message) = private.pop_front() {
        queues.set_private_len(private.len());
        return Some(message);
    }
    // In a closed mailbox the flag may be missing: a sender may have pushed a message and not raised the flag yet.
    if state.flags_relaxed() & (USER | CLOSED) == 0 {
        return None;
    }
    queues.take_batch(private, state)
}

/// Wakes the producers that wait for capacity if the queue has drained to its low watermark; `has_waiters` says whether
/// some are known to wait, and is updated.
pub(crate) fn wake_waiters<M, S>(
    state: &CellState,
    queues: &MailboxQueues<M, S>,
    has_waiters: &mut bool,
    low_watermark: usize,
) {
    if state.flags_relaxed() & WAITERS != 0 {
        state.lower(WAITERS);
        *has_waiters = true;
    }
    if *has_waiters {
        *has_waiters = queues.wake_waiters(low_watermark);
    }
}
