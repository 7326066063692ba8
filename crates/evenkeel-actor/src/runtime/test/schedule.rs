//! The state of the test runtime: tasks, sleepers and the virtual clock.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};

use evenkeel_policy::time::Instant;

use super::TASKS_MAX;
use super::random::SplitMix64;
use crate::runtime::{RuntimeSpawnError, TaskFuture};
use crate::sync::Lock;

/// The state of a test runtime, and its seed.
pub(super) struct Schedule {
    seed: u64,
    state: Lock<State>,
}

struct State {
    now: Instant,
    random: SplitMix64,
    slots: Vec<TaskSlot>,
    /// Slots without a task.
    vacant: Vec<usize>,
    runnable: Vec<TaskId>,
    /// Ordered by the end of the sleep, then by its number.
    sleepers: BTreeMap<SleepKey, Waker>,
    sleeps_total: u64,
    open: bool,
}

/// The end of a sleep, and its number.
pub(super) type SleepKey = (Instant, u64);

#[derive(Default)]
struct TaskSlot {
    /// `None` while the task is polled, and in a vacant slot.
    task: Option<TaskFuture>,
    flag: Option<Arc<WakeFlag>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskId {
    Main,
    Task(usize),
}

/// The future to be polled next.
pub(super) enum NextPoll {
    /// The future passed to `block_on`.
    Main,
    Task(TakenTask),
}

/// A task taken out of its slot to be polled.
pub(super) struct TakenTask {
    slot: usize,
    task: TaskFuture,
    flag: Arc<WakeFlag>,
}

/// The waker of one task: makes it runnable, at most once before its next poll.
pub(super) struct WakeFlag {
    id: TaskId,
    queued: AtomicBool,
    schedule: Weak<Schedule>,
}

impl WakeFlag {
    /// Clears the flag before a poll: a wake-up from here on makes the task runnable again.
    pub(super) fn clear(&self) {
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
            schedule.state.with(|state| state.runnable.push(self.id));
        }
    }
}

impl Schedule {
    pub(super) fn new(seed: u64) -> Self {
        let state = State {
            now: Instant::ORIGIN,
            random: SplitMix64::new(seed),
            slots: Vec::new(),
            vacant: Vec::new(),
            runnable: Vec::new(),
            sleepers: BTreeMap::new(),
            sleeps_total: 0,
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
        self.state.with(|state| state.slots.len() - state.vacant.len())
    }

    pub(super) fn spawn(self: &Arc<Self>, task: TaskFuture) -> Result<(), RuntimeSpawnError> {
        let flag = self.state.with(|state| {
            if !state.open || (state.vacant.is_empty() && state.slots.len() >= TASKS_MAX) {
                return Err(RuntimeSpawnError);
            }
            let slot = state.vacant.pop().unwrap_or_else(|| {
                state.slots.push(TaskSlot::default());
                state.slots.len() - 1
            });
            let flag = Arc::new(WakeFlag {
                id: TaskId::Task(slot),
                queued: AtomicBool::new(false),
                schedule: Arc::downgrade(self),
            });
            state.slots[slot] = TaskSlot { task: Some(task), flag: Some(flag.clone()) };
            Ok(flag)
        })?;
        flag.wake();
        Ok(())
    }

    /// Creates the wake flag of the future passed to `block_on`, runnable at once.
    pub(super) fn main_flag(self: &Arc<Self>) -> Arc<WakeFlag> {
        let flag = Arc::new(WakeFlag {
            id: TaskId::Main,
            queued: AtomicBool::new(false),
            schedule: Arc::downgrade(self),
        });
        flag.wake_by_ref();
        flag
    }

    /// Picks a runnable task at random.
    pub(super) fn next_poll(&self) -> Option<NextPoll> {
        self.wake_due();
        self.state.with(|state| {
            loop {
                if state.runnable.is_empty() {
                    return None;
                }
                let index = state.random.below(state.runnable.len());
                let TaskId::Task(slot) = state.runnable.swap_remove(index) else {
                    return Some(NextPoll::Main);
                };
                let entry = &mut state.slots[slot];
                // A waker may outlive its task.
                if let (Some(task), Some(flag)) = (entry.task.take(), entry.flag.clone()) {
                    return Some(NextPoll::Task(TakenTask { slot, task, flag }));
                }
            }
        })
    }

    /// Polls a task once, and puts it back unless it has completed.
    pub(super) fn poll(&self, taken: TakenTask) {
        let TakenTask { slot, mut task, flag } = taken;
        flag.clear();
        let waker = Waker::from(flag);
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        self.state.with(|state| match polled {
            Poll::Pending => state.slots[slot].task = Some(task),
            Poll::Ready(()) => {
                state.slots[slot] = TaskSlot::default();
                state.vacant.push(slot);
            }
        });
    }

    /// Advances time to the end of the next sleep; returns `false` if that is after `until`.
    pub(super) fn move_to_next_sleep(&self, until: Instant) -> bool {
        self.state.with(|state| match state.sleepers.first_key_value() {
            Some((&(at, _), _)) if at <= until => {
                state.now = state.now.max(at);
                true
            }
            _ => false,
        })
    }

    /// Advances time; sleepers that are due are woken before the next poll.
    pub(super) fn move_to(&self, at: Instant) {
        self.state.with(|state| state.now = state.now.max(at));
    }

    fn wake_due(&self) {
        while let Some(waker) = self.state.with(State::pop_due) {
            waker.wake();
        }
    }

    /// Registers a waker for a point in time; returns `None` for [`Instant::FAR_FUTURE`], which is never reached.
    pub(super) fn register_sleep(&self, at: Instant, waker: Waker) -> Option<SleepKey> {
        if at == Instant::FAR_FUTURE {
            return None;
        }
        self.state.with(|state| {
            state.sleeps_total += 1;
            let key = (at, state.sleeps_total);
            state.sleepers.insert(key, waker);
            Some(key)
        })
    }

    pub(super) fn cancel_sleep(&self, key: SleepKey) {
        // Dropped outside the lock: a waker may hold the last reference to something.
        drop(self.state.with(|state| state.sleepers.remove(&key)));
    }

    /// Rejects new tasks and drops the existing ones.
    pub(super) fn close(&self) {
        let (slots, sleepers) = self.state.with(|state| {
            state.open = false;
            state.runnable.clear();
            state.vacant.clear();
            (core::mem::take(&mut state.slots), core::mem::take(&mut state.sleepers))
        });
        drop((slots, sleepers));
        // Dropping the tasks may have woken tasks that no longer exist.
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
