//! Rules that look right and are not: each beside ours, and loom finds the order in which it fails.

use alloc::collections::VecDeque;

use loom::thread;

use super::super::state::{CellState, Notify, Release, SUSPENDED, USER};
use super::check;
use crate::sync::{Arc, AtomicU32, Lock, Ordering, UnsafeCell};

/// Where the messages of a [`Sketch`] wait.
trait Lane: Send + Sync + 'static {
    fn new() -> Self;
    fn push(&self, message: u32);
    fn pop(&self) -> Option<u32>;
}

struct Locked(Lock<VecDeque<u32>>);

impl Lane for Locked {
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

/// A lane without a lock in miniature: a set of messages below 32, ordered by nothing but the word.
struct LockFree(AtomicU32);

impl Lane for LockFree {
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

/// How a sender tells.
#[derive(Clone, Copy)]
enum Tell {
    /// Looks at the word, and writes only when it must.
    Raise,
    /// Always writes.
    Announce,
}

/// When the owner clears the flag.
#[derive(Clone, Copy)]
enum Clear {
    BeforeLook,
    AfterLook,
}

/// A cell under rules that may be wrong; the word is the crate's own.
struct Sketch<L> {
    state: CellState,
    lane: L,
    seen: UnsafeCell<u32>,
}

// SAFETY: what was seen is touched only under the run right.
unsafe impl<L: Send> Send for Sketch<L> {}
// SAFETY: as above.
unsafe impl<L: Sync> Sync for Sketch<L> {}

impl<L: Lane> Sketch<L> {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: CellState::new(), lane: L::new(), seen: UnsafeCell::new(0) })
    }

    fn tell(&self, message: u32, tell: Tell, clear: Clear) {
        self.lane.push(message);
        let notify = match tell {
            Tell::Raise => self.state.raise(USER),
            Tell::Announce => self.state.raise_unlocked(USER),
        };
        if notify == Notify::Schedule {
            self.run(clear);
        }
    }

    fn run(&self, clear: Clear) {
        loop {
            match clear {
                Clear::BeforeLook => {
                    self.state.lower(USER);
                    self.drain();
                }
                Clear::AfterLook => {
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
        while self.lane.pop().is_some() {
            // SAFETY: the caller has the run right; loom fails the model if somebody else is here.
            self.seen.with_mut(|seen| unsafe { *seen += 1 });
        }
    }

    fn seen(&self) -> u32 {
        // SAFETY: every thread is done, which loom checks.
        self.seen.with(|seen| unsafe { *seen })
    }
}

fn two_senders<L: Lane>(tell: Tell, clear: Clear) {
    check(3, move || {
        let cell = Sketch::<L>::new();
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1, tell, clear);
            other.tell(2, tell, clear);
        });
        cell.tell(3, tell, clear);
        sender.join().unwrap();
        assert_eq!(cell.seen(), 3, "stranded");
    });
}

#[test]
fn a_locked_lane_needs_a_look_only() {
    two_senders::<Locked>(Tell::Raise, Clear::BeforeLook);
}

#[test]
#[should_panic(expected = "stranded")]
fn clearing_after_the_last_look_strands() {
    two_senders::<Locked>(Tell::Raise, Clear::AfterLook);
}

#[test]
fn a_lane_without_a_lock_needs_a_write() {
    two_senders::<LockFree>(Tell::Announce, Clear::BeforeLook);
}

#[test]
#[should_panic(expected = "stranded")]
fn a_look_only_strands_in_a_lane_without_a_lock() {
    two_senders::<LockFree>(Tell::Raise, Clear::BeforeLook);
}

/// The seed's literal rule: a set of those that are registered, and a cell whose run ended with
/// `Completed { ready_hint: false }` is unregistered.
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

    /// Whether it is the cell's turn; an entry that is not in the set any more is skipped.
    fn next(&mut self) -> Option<bool> {
        self.queue.pop_front()?;
        Some(core::mem::take(&mut self.is_in_set))
    }
}

#[test]
#[should_panic(expected = "stranded")]
fn unregistering_after_a_run_that_found_nothing_more_strands() {
    check(3, || {
        let ready = Arc::new(Lock::new(Registered::default()));
        let lane = Arc::new(Locked::new());
        let sender = {
            let ready = ready.clone();
            let lane = lane.clone();
            thread::spawn(move || {
                for message in [1, 2] {
                    lane.push(message);
                    ready.with(Registered::register_ready);
                }
            })
        };
        let turn = || {
            let Some(is_in_set) = ready.with(Registered::next) else { return 0 };
            let mut seen = 0;
            while is_in_set && lane.pop().is_some() {
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

/// When a failed cell is suspended.
#[derive(Clone, Copy)]
enum Suspend {
    /// In the transition that ends the run.
    WithRelease,
    /// When somebody who decides gets round to it.
    AfterRelease,
}

/// The first message fails; nothing may be handled after that until somebody decides.
fn one_fails(suspend: Suspend) {
    check(3, move || {
        let cell = Sketch::<Locked>::new();
        let other = cell.clone();
        cell.lane.push(1);
        assert_eq!(cell.state.raise(USER), Notify::Schedule);
        let sender = thread::spawn(move || other.tell(2, Tell::Raise, Clear::BeforeLook));
        // One message, then the failure.
        cell.lane.pop();
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
        assert_eq!(cell.seen(), 0, "handled by an actor that has failed");
    });
}

#[test]
fn an_actor_that_failed_handles_nothing_until_somebody_decides() {
    one_fails(Suspend::WithRelease);
}

#[test]
#[should_panic(expected = "handled by an actor that has failed")]
fn a_failure_decided_after_the_run_leaves_a_window() {
    one_fails(Suspend::AfterRelease);
}
