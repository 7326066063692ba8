//! The timing wheel against a model: a list sorted at every step.

use std::time::Duration;

use evenkeel_actor::timing_wheel::{TimerKey, TimingWheel, WheelOptions};
use evenkeel_policy::time::Instant;
use proptest::prelude::*;

const LEN_MAX: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    /// Cancels one of the timers inserted so far.
    Cancel(usize),
    Advance(u64),
    AdvanceToNextDue,
    AdvanceToTheEndOfTime,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let span = prop_oneof![4 => 0..300_u64, 2 => 0..100_000_u64, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let step = prop_oneof![
        8 => span.clone().prop_map(Step::Insert),
        4 => any::<usize>().prop_map(Step::Cancel),
        4 => (0..300_u64).prop_map(Step::Advance),
        1 => span.prop_map(Step::Advance),
        4 => Just(Step::AdvanceToNextDue),
        1 => Just(Step::AdvanceToTheEndOfTime),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn the_wheel_behaves_like_a_sorted_list(steps in steps(), tick in 1..40_u64, bits in 1..=6_u32) {
        let mut pair = WheelAndModel::new(tick, bits);
        for step in steps {
            pair.apply(&step)?;
            prop_assert_eq!(pair.wheel.len(), pair.model.len());
            let earliest = pair.model.iter().map(|timer| pair.fires_at(timer)).min();
            let next = pair.wheel.next_due();
            prop_assert_eq!(next.is_some(), earliest.is_some());
            prop_assert!(next <= earliest, "{:?} is after {:?}", next, earliest);
            if pair.cancelled == 0 {
                prop_assert_eq!(next, earliest);
            }
        }
    }

    #[test]
    fn advancing_to_next_due_reaches_a_timer_in_at_most_as_many_steps_as_there_are_levels(
        spans in prop::collection::vec(prop_oneof![0..5_000_u64, any::<u64>()], 2..LEN_MAX),
        cancelled in prop::collection::vec(any::<bool>(), LEN_MAX),
        bits in 1..=6_u32,
    ) {
        let mut pair = WheelAndModel::new(1, bits);
        for span in spans {
            pair.apply(&Step::Insert(span))?;
        }
        for (at, _) in cancelled.iter().enumerate().filter(|(_, cancelled)| **cancelled) {
            pair.apply(&Step::Cancel(at))?;
        }
        while !pair.model.is_empty() {
            let left = pair.model.len();
            let mut steps = 0;
            while pair.model.len() == left {
                pair.apply(&Step::AdvanceToNextDue)?;
                steps += 1;
            }
            prop_assert!(steps <= 64_u32.div_ceil(bits), "{} steps", steps);
        }
    }
}

struct WheelAndModel {
    tick: u64,
    now: Instant,
    wheel: TimingWheel<usize>,
    /// Timers in order of insertion.
    model: Vec<Timer>,
    keys: Vec<TimerKey>,
    cancelled: usize,
}

#[derive(Clone, Copy)]
struct Timer {
    due: Instant,
    inserted: Instant,
    id: usize,
}

impl WheelAndModel {
    fn new(tick: u64, bits: u32) -> Self {
        let options =
            WheelOptions { tick: Duration::from_nanos(tick), buckets: 1 << bits, len_max: LEN_MAX as u32 };
        let wheel = TimingWheel::new(options).unwrap();
        Self { tick, now: Instant::ORIGIN, wheel, model: Vec::new(), keys: Vec::new(), cancelled: 0 }
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Insert(span) => self.insert(Duration::from_nanos(span)),
            Step::Cancel(any) => self.cancel(any),
            Step::Advance(span) => self.advance(self.now + Duration::from_nanos(span)),
            Step::AdvanceToNextDue => self.advance(self.wheel.next_due().unwrap_or(self.now).max(self.now)),
            Step::AdvanceToTheEndOfTime => self.advance(Instant::FAR_FUTURE),
        }
    }

    fn insert(&mut self, span: Duration) -> Result<(), TestCaseError> {
        let due = self.now + span;
        let id = self.keys.len();
        match self.wheel.insert(due, id) {
            Ok(key) => {
                self.keys.push(key);
                self.model.push(Timer { due, inserted: self.now, id });
            }
            Err(rejected) => {
                prop_assert_eq!(rejected.0, id);
                prop_assert_eq!(self.model.len(), LEN_MAX);
            }
        }
        Ok(())
    }

    fn cancel(&mut self, any: usize) -> Result<(), TestCaseError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let id = any % self.keys.len();
        let at = self.model.iter().position(|timer| timer.id == id);
        prop_assert_eq!(self.wheel.cancel(self.keys[id]), at.map(|_| id));
        if let Some(at) = at {
            self.model.remove(at);
            self.cancelled += 1;
        }
        Ok(())
    }

    fn advance(&mut self, now: Instant) -> Result<(), TestCaseError> {
        self.now = now;
        let mut out = Vec::new();
        self.wheel.advance(now, &mut out);
        let (mut due, waiting): (Vec<Timer>, Vec<Timer>) =
            self.model.iter().partition(|timer| self.fires_at(timer) <= now);
        due.sort_by_key(|timer| self.fires_at(timer));
        self.model = waiting;
        prop_assert_eq!(out, due.iter().map(|timer| (timer.due, timer.id)).collect::<Vec<_>>());
        Ok(())
    }

    /// Returns the end of the tick in which the timer is due, or was inserted if it was overdue then.
    fn fires_at(&self, timer: &Timer) -> Instant {
        let tick = timer.due.as_nanos().div_ceil(self.tick).max(timer.inserted.as_nanos() / self.tick);
        Instant::from_nanos(tick.saturating_mul(self.tick))
    }
}
