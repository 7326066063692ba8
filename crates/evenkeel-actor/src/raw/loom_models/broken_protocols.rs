//! Plausible but broken protocols, with the correct variant where there is one; loom finds the failing
//! interleaving.

use alloc::collections::VecDeque;

use loom::thread;

use super::super::state::{CellState, Notify, ReleaseOutcome, SUSPENDED, USER};
use super::check;
use crate::sync::{Arc, AtomicU32, Lock, Ordering, UnsafeCell};

/// Message queue of a [`ProtocolCell`].
trait TestQueue: Send + Sync + 'static {
    fn new() -> Self;
    fn push(&self, message: u32);
    fn pop(&self) -> Option<u32>;
}

struct LockedQueue(Lock<VecDeque<u32>>);

impl TestQueue for LockedQueue {
    fn new() -> Self {
        Self(Lock::new(VecDeque::new()))
    }

    fn push(&self, message: u32) {
        self.0.with(|queue| queue.push_back(message));
    }

    fn pop(&self) -> Option<u32> {
        self.0.with(VecDeque::pop_front)
    }
}

/// Stand-in for a lock-free queue: a bit set of message numbers below 32.
///
/// All its accesses are relaxed, so only the state word synchronises.
struct LockFreeQueue(AtomicU32);

impl TestQueue for LockFreeQueue {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn push(&self, message: u32) {
        self.0.fetch_or(1 << message, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<u32> {
        let set = self.0.load(Ordering::Relaxed);
        if set == 0 {
            return None;
        }
        let message = set.trailing_zeros();
        self.0.fetch_and(!(1 << message), Ordering::Relaxed);
        Some(message)
    }
}

/// Protocol of a sender.
#[derive(Clone, Copy)]
enum SendProtocol {
    /// [`CellState::raise`]: no write if the flag is already set.
    Raise,
    /// [`CellState::raise_always`]: always a write.
    RaiseAlways,
}

/// Order of clearing the flag and popping the queue.
#[derive(Clone, Copy)]
enum ClearOrder {
    BeforePop,
    AfterPop,
}

/// A minimal cell that uses the real [`CellState`] with a configurable protocol.
struct ProtocolCell<Q> {
    state: CellState,
    queue: Q,
    handled: UnsafeCell<u32>,
}

// SAFETY: `handled` is accessed only under the run permit.
unsafe impl<Q: Send> Send for ProtocolCell<Q> {}
// SAFETY: as above.
unsafe impl<Q: Sync> Sync for ProtocolCell<Q> {}

impl<Q: TestQueue> ProtocolCell<Q> {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: CellState::new(), queue: Q::new(), handled: UnsafeCell::new(0) })
    }

    fn tell(&self, message: u32, protocol: SendProtocol, clear: ClearOrder) {
        self.queue.push(message);
        let notify = match protocol {
            SendProtocol::Raise => self.state.raise(USER),
            SendProtocol::RaiseAlways => self.state.raise_always(USER),
        };
        if notify == Notify::Schedule {
            self.run(clear);
        }
    }

    fn run(&self, clear: ClearOrder) {
        loop {
            match clear {
                ClearOrder::BeforePop => {
                    self.state.lower(USER);
                    self.drain();
                }
                ClearOrder::AfterPop => {
                    self.drain();
                    self.state.lower(USER);
                }
            }
            if self.state.release(0) == ReleaseOutcome::Released {
                return;
            }
        }
    }

    fn drain(&self) {
        while self.queue.pop().is_some() {
            // SAFETY: the caller holds the run permit; loom fails the model on concurrent access.
            self.handled.with_mut(|handled| unsafe { *handled += 1 });
        }
    }

    fn handled(&self) -> u32 {
        // SAFETY: all threads are done, which loom checks.
        self.handled.with(|handled| unsafe { *handled })
    }
}

fn two_senders<Q: TestQueue>(protocol: SendProtocol, clear: ClearOrder) {
    check(3, move || {
        let cell = ProtocolCell::<Q>::new();
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1, protocol, clear);
            other.tell(2, protocol, clear);
        });
        cell.tell(3, protocol, clear);
        sender.join().unwrap();
        assert_eq!(cell.handled(), 3, "lost wake-up");
    });
}

#[test]
fn raise_loses_no_wakeup_with_a_locked_queue() {
    two_senders::<LockedQueue>(SendProtocol::Raise, ClearOrder::BeforePop);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn clearing_the_flag_after_the_last_pop_loses_a_wakeup() {
    two_senders::<LockedQueue>(SendProtocol::Raise, ClearOrder::AfterPop);
}

#[test]
fn raise_always_loses_no_wakeup_with_a_lock_free_queue() {
    two_senders::<LockFreeQueue>(SendProtocol::RaiseAlways, ClearOrder::BeforePop);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn raise_loses_a_wakeup_with_a_lock_free_queue() {
    two_senders::<LockFreeQueue>(SendProtocol::Raise, ClearOrder::BeforePop);
}

/// The ready set exactly as specified (see docs/specs.md, actor scheduler facade), for one cell.
///
/// A cell whose run ended with `Completed { ready_hint: false }` is removed from the set.
#[derive(Default)]
struct ReadySet {
    queue: VecDeque<()>,
    is_registered: bool,
}

impl ReadySet {
    fn register_ready(&mut self) {
        if !self.is_registered {
            self.is_registered = true;
            self.queue.push_back(());
        }
    }

    fn unregister(&mut self) {
        self.is_registered = false;
    }

    /// Pops an entry and removes its cell from the set; `Some(false)` if the cell was not in the set.
    fn next(&mut self) -> Option<bool> {
        self.queue.pop_front()?;
        Some(core::mem::take(&mut self.is_registered))
    }
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn unregistering_after_a_run_without_a_ready_hint_loses_a_wakeup() {
    check(3, || {
        let ready = Arc::new(Lock::new(ReadySet::default()));
        let queue = Arc::new(LockedQueue::new());
        let sender = {
            let ready = ready.clone();
            let queue = queue.clone();
            thread::spawn(move || {
                for message in [1, 2] {
                    queue.push(message);
                    ready.with(ReadySet::register_ready);
                }
            })
        };
        let run_next = || {
            let Some(is_registered) = ready.with(ReadySet::next) else { return 0 };
            let mut handled = 0;
            while is_registered && queue.pop().is_some() {
                handled += 1;
            }
            if is_registered {
                ready.with(ReadySet::unregister);
            }
            handled
        };
        let mut handled = run_next();
        sender.join().unwrap();
        handled += run_next() + run_next();
        assert_eq!(handled, 2, "lost wake-up");
    });
}

/// Order of suspending a failed cell and releasing its run permit.
#[derive(Clone, Copy)]
enum SuspendOrder {
    /// In the transition that ends the run.
    WithRelease,
    /// In a separate step, after the run permit was released.
    AfterRelease,
}

/// Fails the first message; the cell must not handle the second.
fn fail_first_message(order: SuspendOrder) {
    check(3, move || {
        let cell = ProtocolCell::<LockedQueue>::new();
        let other = cell.clone();
        cell.queue.push(1);
        assert_eq!(cell.state.raise(USER), Notify::Schedule);
        let sender = thread::spawn(move || other.tell(2, SendProtocol::Raise, ClearOrder::BeforePop));
        // One message, then the failure.
        cell.queue.pop();
        match order {
            SuspendOrder::WithRelease => drop(cell.state.release(SUSPENDED)),
            SuspendOrder::AfterRelease => {
                cell.state.lower(USER);
                if cell.state.release(0) == ReleaseOutcome::Released {
                    cell.state.set(SUSPENDED);
                }
            }
        }
        sender.join().unwrap();
        assert_eq!(cell.handled(), 0, "handled by a failed actor");
    });
}

#[test]
fn suspending_in_the_release_transition_leaves_no_race() {
    fail_first_message(SuspendOrder::WithRelease);
}

#[test]
#[should_panic(expected = "handled by a failed actor")]
fn suspending_after_the_run_leaves_a_race_window() {
    fail_first_message(SuspendOrder::AfterRelease);
}
