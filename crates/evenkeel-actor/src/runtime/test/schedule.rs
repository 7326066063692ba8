//! Who can go on, who sleeps, and what time it is.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};

use evenkeel_policy::time::Instant;

use super::TASKS_MAX;
use super::random::Random;
use crate::runtime::{RuntimeSpawnError, TaskFuture};
use crate::sync::Lock;

/// Everything a runtime holds.
pub(super) struct Schedule {
    seed: u64,
    state: Lock<State>,
}

struct State {
    now: Instant,
    random: Random,
    places: Vec<TaskSlot>,
    /// Places without a task.
    vacant: Vec<usize>,
    runnable: Vec<TaskId>,
    /// By the end of the sleep, then by who began first.
    sleepers: BTreeMap<SleepKey, Waker>,
    sleeps: u64,
    open: bool,
}

/// When a sleep ends, and its number.
pub(super) type SleepKey = (Instant, u64);

#[derive(Default)]
struct TaskSlot {
    /// `None` while it is polled, and in a vacant place.
    task: Option<TaskFuture>,
    flag: Option<Arc<WakeFlag>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskId {
    Main,
    Task(usize),
}

/// Whose step is next.
pub(super) enum NextPoll {
    /// The future that `block_on` waits for.
    Main,
    Task(TaskTurn),
}

/// A task, taken out of its place to be polled.
pub(super) struct TaskTurn {
    place: usize,
    task: TaskFuture,
    flag: Arc<WakeFlag>,
}

/// Wakes one task: puts it among those that can go on, once.
pub(super) struct WakeFlag {
    who: TaskId,
    queued: AtomicBool,
    schedule: Weak<Schedule>,
}

impl WakeFlag {
    /// Notes that the task is about to be polled: a waker that fires from here on counts.
    pub(super) fn lower(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(schedule) = self.schedule.upgrade() else { return };
        if !self.queued.swap(true, Ordering::SeqCst) {
            schedule.state.with(|state| state.runnable.push(self.who));
        }
    }
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        let state = State {
            now: Instant::ORIGIN,
            random: Random::new(seed),
            places: Vec::new(),
            vacant: Vec::new(),
            runnable: Vec::new(),
            sleepers: BTreeMap::new(),
            sleeps: 0,
            open: true,
        };
        Self { seed, state: Lock::new(state) }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn now(&self) -> Instant {
        self.state.with(|state| state.now)
    }

    pub(super) fn tasks(&self) -> usize {
        self.state.with(|state| state.places.len() - state.vacant.len())
    }

    pub(super) fn spawn(self: &Arc<Self>, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let flag = self.state.with(|state| {
            if !state.open || (state.vacant.is_empty() && TASKS_MAX <= state.places.len()) {
                return Err(RuntimeSpawnError);
            }
            let place = state.vacant.pop().unwrap_or_else(|| {
                state.places.push(TaskSlot::default());
                state.places.len() - 1
            });
            let flag = Arc::new(WakeFlag {
                who: TaskId::Task(place),
                queued: AtomicBool::new(false),
                schedule: Arc::downgrade(self),
            });
            state.places[place] = TaskSlot { task: Some(task), flag: Some(flag.clone()) };
            Ok(flag)
        })?;
        flag.wake();
        Ok(())
    }

    /// Makes the flag of the future that `block_on` waits for, which can go on at once.
    pub(super) fn main(self: &Arc<Self>) -> Arc<WakeFlag> {
        let flag = Arc::new(WakeFlag {
            who: TaskId::Main,
            queued: AtomicBool::new(false),
            schedule: Arc::downgrade(self),
        });
        flag.wake_by_ref();
        flag
    }

    /// Chooses among those that can go on.
    pub(super) fn next_turn(&self) -> Option<NextPoll> {
        self.wake_due();
        self.state.with(|state| {
            loop {
                if state.runnable.is_empty() {
                    return None;
                }
                let at = state.random.below(state.runnable.len());
                let TaskId::Task(place) = state.runnable.swap_remove(at) else { return Some(NextPoll::Main) };
                let home = &mut state.places[place];
                // A waker that outlives its task wakes nobody.
                if let (Some(task), Some(flag)) = (home.task.take(), home.flag.clone()) {
                    return Some(NextPoll::Task(TaskTurn { place, task, flag }));
                }
            }
        })
    }

    /// Polls a task once, and puts it back unless it is done.
    pub(super) fn poll(&self, turn: TaskTurn) {
        let TaskTurn { place, mut task, flag } = turn;
        flag.lower();
        let waker = Waker::from(flag);
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        self.state.with(|state| match polled {
            Poll::Pending => state.places[place].task = Some(task),
            Poll::Ready(()) => {
                state.places[place] = TaskSlot::default();
                state.vacant.push(place);
            }
        });
    }

    /// Moves time to the end of the next sleep, if that is not after `until`.
    pub(super) fn move_to_next_sleep(&self, until: Instant) -> bool {
        self.state.with(|state| match state.sleepers.first_key_value() {
            Some((&(at, _), _)) if at <= until => {
                state.now = state.now.max(at);
                true
            }
            _ => false,
        })
    }

    /// Moves time on; sleeps that end by then end with the next step.
    pub(super) fn move_to(&self, at: Instant) {
        self.state.with(|state| state.now = state.now.max(at));
    }

    fn wake_due(&self) {
        while let Some(waker) = self.state.with(State::pop_due) {
            waker.wake();
        }
    }

    /// Has `waker` woken at `at`; `None` when that is never.
    pub(super) fn sleep(&self, at: Instant, waker: Waker) -> Option<SleepKey> {
        if at == Instant::FAR_FUTURE {
            return None;
        }
        self.state.with(|state| {
            state.sleeps += 1;
            let key = (at, state.sleeps);
            state.sleepers.insert(key, waker);
            Some(key)
        })
    }

    pub(super) fn wake_up(&self, key: SleepKey) {
        // Dropped after the lock: a waker may be the last to hold something.
        drop(self.state.with(|state| state.sleepers.remove(&key)));
    }

    /// Takes no more tasks and drops those there are.
    pub(super) fn close(&self) {
        let (places, sleepers) = self.state.with(|state| {
            state.open = false;
            state.runnable.clear();
            state.vacant.clear();
            (core::mem::take(&mut state.places), core::mem::take(&mut state.sleepers))
        });
        drop((places, sleepers));
        // What was woken by the drops has no place any more.
        self.state.with(|state| state.runnable.clear());
    }
}

impl State {
    fn pop_due(&mut self) -> Option<Waker> {
        let first = self.sleepers.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("seed", &self.seed).field("now", &self.now()).finish_non_exhaustive()
    }
}
