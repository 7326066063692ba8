//! Loom models of the concurrent core: loom runs each in every interleaving within a preemption bound.
//!
//! The state word, the mailbox queues, the slab, the oneshot and the idle workers are the crate's own. The
//! code around them mirrors what the invoker, the coordinator and the workers do with them, in the same
//! order.
//!
//! Limits: preemptions per execution, set by each model and overridden by `LOOM_MAX_PREEMPTIONS`.

mod capacity;
mod defects;
mod mailbox;
mod parking;
mod replies;
mod returned_refs;
mod slot_reuse;
mod stopping;
mod worker_exit;

use alloc::collections::VecDeque;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::task::Waker;
use std::sync::Arc as StdArc;

use loom::sync::{Condvar, Mutex};

use super::state::{CellState, Notify, Release, SIGNAL, SUSPENDED, SYSTEM, USER, WAITERS};
use crate::mailbox::{MailboxOptions, MailboxQueues, OverflowStrategy, PushResult};
use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};

/// Runs a model in every interleaving with at most `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// A message that suspends its cell until `Order::Resume`.
const SUSPEND: u32 = 1000;

/// System message of a [`ModelCell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Resume,
    Stop,
}

/// A cell without a worker: the thread that is granted the run permit runs it.
struct Miniature {
    state: CellState,
    lanes: MailboxQueues<u32, Order>,
    /// Stands for the state that a future's poll would find; ordered only by the state word.
    external: AtomicU32,
    low_mark: usize,
    owner: UnsafeCell<Owner>,
}

// SAFETY: the runner state is accessed only under the run permit, which is what the models check.
unsafe impl Send for Miniature {}
// SAFETY: as above.
unsafe impl Sync for Miniature {}

#[derive(Clone, Debug, Default)]
struct Owner {
    private: VecDeque<u32>,
    seen: Vec<u32>,
    buried: Vec<u32>,
    heard: u32,
    awaited: bool,
    suspended: bool,
    resumed_early: bool,
}

impl Miniature {
    fn new(places: usize) -> Arc<Self> {
        let options = MailboxOptions {
            capacity: NonZeroUsize::new(places).expect("the capacity is not zero"),
            overflow: OverflowStrategy::Reject,
            reserve_for_system: 0,
            high_mark: places,
            low_mark: places / 2,
        };
        Arc::new(Self {
            state: CellState::new(),
            lanes: MailboxQueues::new(&options),
            external: AtomicU32::new(0),
            low_mark: options.low_mark,
            owner: UnsafeCell::new(Owner::default()),
        })
    }

    /// Mirrors `ActorRef::try_tell`.
    fn tell(&self, message: u32) -> PushResult<u32> {
        let pushed = self.lanes.push(message);
        if pushed == PushResult::Queued {
            self.follow(self.state.raise(USER));
        }
        pushed
    }

    /// Mirrors `ActorRef::send`, on a thread of its own.
    fn send(&self, message: u32, bell: &StdArc<Bell>) -> PushResult<u32> {
        let waker = Waker::from(bell.clone());
        loop {
            match self.lanes.push_or_wait(message, &waker, &self.state) {
                Ok(PushResult::Queued) => {
                    self.follow(self.state.raise(USER));
                    return PushResult::Queued;
                }
                Ok(PushResult::Full(_)) => bell.wait(),
                Ok(pushed) => return pushed,
                Err(message) => return PushResult::Full(message),
            }
        }
    }

    /// Mirrors `CellRef::tell_system`.
    fn order(&self, order: Order) -> Result<(), Order> {
        self.lanes.push_system(order)?;
        self.follow(self.state.raise(SYSTEM));
        Ok(())
    }

    /// Mirrors a future that becomes ready: changes its state, then wakes.
    fn signal(&self) {
        self.external.fetch_add(1, Ordering::Relaxed);
        self.follow(self.state.raise_unlocked(SIGNAL));
    }

    fn follow(&self, notify: Notify) {
        if notify == Notify::Schedule {
            self.run();
        }
    }

    /// Runs the cell until the run permit is released.
    fn run(&self) {
        loop {
            // SAFETY: the caller was granted the run permit; loom fails the model if another thread is here.
            let step = self.owner.with_mut(|owner| self.serve(unsafe { &mut *owner }));
            match step {
                Step::Finish { hold } if self.state.release(hold) == Release::Kept => {}
                Step::Finish { .. } | Step::Ended => return,
            }
        }
    }

    /// Mirrors one run of the invoker.
    fn serve(&self, owner: &mut Owner) -> Step {
        loop {
            let flags = self.state.flags_relaxed();
            if flags & WAITERS != 0 {
                self.wake_waiters(owner);
            }
            if flags & SYSTEM != 0 {
                self.state.lower(SYSTEM);
                while let Some(order) = self.lanes.pop_system() {
                    if self.obey(order, owner) == Some(Step::Ended) {
                        return Step::Ended;
                    }
                }
            }
            if flags & SIGNAL != 0 {
                self.state.lower(SIGNAL);
                owner.heard = self.external.load(Ordering::Relaxed);
            }
            let message = if owner.suspended { None } else { self.next(owner) };
            let Some(message) = message else {
                return self.finish(owner);
            };
            owner.seen.push(message);
            if message == SUSPEND && !core::mem::take(&mut owner.resumed_early) {
                owner.suspended = true;
                return self.finish(owner);
            }
        }
    }

    fn finish(&self, owner: &mut Owner) -> Step {
        self.wake_waiters(owner);
        let held = if owner.private.is_empty() { 0 } else { USER };
        Step::Finish { hold: if owner.suspended { SUSPENDED | held } else { 0 } }
    }

    fn next(&self, owner: &mut Owner) -> Option<u32> {
        if let Some(message) = owner.private.pop_front() {
            self.lanes.tell_left(owner.private.len());
            return Some(message);
        }
        if self.state.flags_relaxed() & USER == 0 {
            return None;
        }
        self.lanes.take(&mut owner.private, &self.state)
    }

    fn obey(&self, order: Order, owner: &mut Owner) -> Option<Step> {
        match order {
            Order::Resume if owner.suspended => {
                owner.suspended = false;
                None
            }
            Order::Resume => {
                owner.resumed_early = true;
                None
            }
            Order::Stop => {
                self.lanes.close().into_iter().for_each(Waker::wake);
                owner.buried.extend(owner.private.drain(..).chain(self.lanes.drain()));
                drop(self.lanes.end_system());
                self.state.mark_dead();
                Some(Step::Ended)
            }
        }
    }

    fn wake_waiters(&self, owner: &mut Owner) {
        if self.state.flags_relaxed() & WAITERS != 0 {
            self.state.lower(WAITERS);
            owner.awaited = true;
        }
        if owner.awaited {
            owner.awaited = self.lanes.wake_waiters(self.low_mark);
        }
    }

    /// Reads the runner state after all threads are done.
    fn owner(&self) -> Owner {
        // SAFETY: loom fails the model if another thread changes it meanwhile, or did so without
        // synchronization.
        self.owner.with(|owner| unsafe { (*owner).clone() })
    }

    /// Fails unless exactly these messages were handled, those of each thread in the order sent.
    fn assert_handled(&self, by_thread: &[&[u32]]) {
        let seen = self.owner().seen;
        let mut left: Vec<&[u32]> = by_thread.to_vec();
        for message in &seen {
            let from = left.iter_mut().find(|sent| sent.first() == Some(message));
            let sent = from.unwrap_or_else(|| panic!("reordered or handled twice: {seen:?}"));
            *sent = &sent[1..];
        }
        assert!(left.iter().all(|sent| sent.is_empty()), "stranded: only {seen:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Finish { hold: u32 },
    Ended,
}

/// A waker that a thread can wait for; loom reports a wait that never ends as a deadlock.
#[derive(Default)]
struct Bell {
    rings: Mutex<Rings>,
    rung: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Rings {
    unheard: bool,
    total: u32,
}

impl Bell {
    fn new() -> StdArc<Self> {
        StdArc::default()
    }

    /// Waits until it was woken since the last wait.
    fn wait(&self) {
        let mut rings = self.rings.lock().expect("nobody panics with the lock");
        while !rings.unheard {
            rings = self.rung.wait(rings).expect("nobody panics with the lock");
        }
        rings.unheard = false;
    }

    /// Counts all wake-ups.
    fn rings(&self) -> u32 {
        self.rings.lock().expect("nobody panics with the lock").total
    }
}

impl Wake for Bell {
    fn wake(self: StdArc<Self>) {
        let mut rings = self.rings.lock().expect("nobody panics with the lock");
        *rings = Rings { unheard: true, total: rings.total + 1 };
        self.rung.notify_one();
    }
}
