//! Protocols that look right and are not, each next to the one in use; loom finds the failing interleaving.

use alloc::collections::VecDeque;

use loom::thread;

use super::super::state::{CellState, Notify, Release, SUSPENDED, USER};
use super::check;
use crate::sync::{Arc, AtomicU32, Lock, Ordering, UnsafeCell};

/// Message queue of a [`SketchCell`].
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

/// A miniature lock-free queue: a set of messages below 32, ordered only by the state word.
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
    /// Reads the word and writes only if necessary.
    Raise,
    /// Always writes.
    RaiseUnlocked,
}

/// Time at which the runner clears the flag.
#[derive(Clone, Copy)]
enum ClearTime {
    BeforePop,
    AfterPop,
}

/// A cell with a protocol that may be wrong; the state word is the crate's own.
struct SketchCell<L> {
    state: CellState,
    queue: L,
    seen: UnsafeCell<u32>,
}

// SAFETY: `seen` is accessed only under the run permit.
unsafe impl<L: Send> Send for SketchCell<L> {}
// SAFETY: as above.
unsafe impl<L: Sync> Sync for SketchCell<L> {}

impl<L: TestQueue> SketchCell<L> {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: CellState::new(), queue: L::new(), seen: UnsafeCell::new(0) })
    }

    fn tell(&self, message: u32, protocol: SendProtocol, clear: ClearTime) {
        self.queue.push(message);
        let notify = match protocol {
            SendProtocol::Raise => self.state.raise(USER),
            SendProtocol::RaiseUnlocked => self.state.raise_unlocked(USER),
        };
        if notify == Notify::Schedule {
            self.run(clear);
        }
    }

    fn run(&self, clear: ClearTime) {
        loop {
            match clear {
                ClearTime::BeforePop => {
                    self.state.lower(USER);
                    self.drain();
                }
                ClearTime::AfterPop => {
                    self.drain();
                    self.state.lower(USER);
                }
            }
            if self.state.release(0) == Release::Gone {
                return;
            }
        }
    }

    fn drain(&self) {
        while self.queue.pop().is_some() {
            // SAFETY: the caller holds the run permit; loom fails the model if another thread is here.
            self.seen.with_mut(|seen| unsafe { *seen += 1 });
        }
    }

    fn seen(&self) -> u32 {
        // SAFETY: all threads are done, which loom checks.
        self.seen.with(|seen| unsafe { *seen })
    }
}

fn two_senders<L: TestQueue>(protocol: SendProtocol, clear: ClearTime) {
    check(3, move || {
        let cell = SketchCell::<L>::new();
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1, protocol, clear);
            other.tell(2, protocol, clear);
        });
        cell.tell(3, protocol, clear);
        sender.join().unwrap();
        assert_eq!(cell.seen(), 3, "stranded");
    });
}

#[test]
fn with_a_locked_queue_a_read_suffices() {
    two_senders::<LockedQueue>(SendProtocol::Raise, ClearTime::BeforePop);
}

#[test]
#[should_panic(expected = "stranded")]
fn clearing_the_flag_after_the_last_pop_strands_a_message() {
    two_senders::<LockedQueue>(SendProtocol::Raise, ClearTime::AfterPop);
}

#[test]
fn a_lock_free_queue_needs_a_write() {
    two_senders::<LockFreeQueue>(SendProtocol::RaiseUnlocked, ClearTime::BeforePop);
}

#[test]
#[should_panic(expected = "stranded")]
fn with_a_lock_free_queue_a_read_only_strands_a_message() {
    two_senders::<LockFreeQueue>(SendProtocol::Raise, ClearTime::BeforePop);
}

/// The literal rule of the specification (see docs/specs.md, actor scheduler facade): a set of registered
/// cells, from which a cell whose run ended with `Completed { ready_hint: false }` is removed.
#[derive(Default)]
struct Registered {
    queue: VecDeque<()>,
    is_in_set: bool,
}

impl Registered {
    fn register_ready(&mut self) {
        if !self.is_in_set {
            self.is_in_set = true;
            self.queue.push_back(());
        }
    }

    fn unregister(&mut self) {
        self.is_in_set = false;
    }

    /// Pops an entry and reports whether its cell is still in the set; otherwise the entry is skipped.
    fn next(&mut self) -> Option<bool> {
        self.queue.pop_front()?;
        Some(core::mem::take(&mut self.is_in_set))
    }
}

#[test]
#[should_panic(expected = "stranded")]
fn unregistering_after_a_run_without_a_ready_hint_strands_a_message() {
    check(3, || {
        let ready = Arc::new(Lock::new(Registered::default()));
        let queue = Arc::new(LockedQueue::new());
        let sender = {
            let ready = ready.clone();
            let queue = queue.clone();
            thread::spawn(move || {
                for message in [1, 2] {
                    queue.push(message);
                    ready.with(Registered::register_ready);
                }
            })
        };
        let turn = || {
            let Some(is_in_set) = ready.with(Registered::next) else { return 0 };
            let mut seen = 0;
            while is_in_set && queue.pop().is_some() {
                seen += 1;
            }
            if is_in_set {
                ready.with(Registered::unregister);
            }
            seen
        };
        let mut seen = turn();
        sender.join().unwrap();
        seen += turn() + turn();
        assert_eq!(seen, 2, "stranded");
    });
}

/// Time at which a failed cell is suspended.
#[derive(Clone, Copy)]
enum Suspend {
    /// In the transition that ends the run.
    WithRelease,
    /// After the run, when the supervisor has decided.
    AfterRelease,
}

/// The first message fails; no other may be handled until the supervisor decides.
fn one_fails(suspend: Suspend) {
    check(3, move || {
        let cell = SketchCell::<LockedQueue>::new();
        let other = cell.clone();
        cell.queue.push(1);
        assert_eq!(cell.state.raise(USER), Notify::Schedule);
        let sender = thread::spawn(move || other.tell(2, SendProtocol::Raise, ClearTime::BeforePop));
        // One message, then the failure.
        cell.queue.pop();
        match suspend {
            Suspend::WithRelease => drop(cell.state.release(SUSPENDED)),
            Suspend::AfterRelease => {
                cell.state.lower(USER);
                if cell.state.release(0) == Release::Gone {
                    cell.state.set(SUSPENDED);
                }
            }
        }
        sender.join().unwrap();
        assert_eq!(cell.seen(), 0, "handled by a failed actor");
    });
}

#[test]
fn a_failed_actor_handles_nothing_until_its_supervisor_decides() {
    one_fails(Suspend::WithRelease);
}

#[test]
#[should_panic(expected = "handled by a failed actor")]
fn suspending_after_the_run_leaves_a_race_window() {
    one_fails(Suspend::AfterRelease);
}
