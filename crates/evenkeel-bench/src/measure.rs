//! Interleaved measurement: contenders alternate, and each is compared with the baseline of the same round.
//!
//! Limits: a group takes about `rounds × contenders × 1.25 × batch_time`, without the set-up. If the machine is slow
//! for longer than a round, all contenders of that round are slow, which cancels out in the ratios. Memory addresses
//! alone can make two copies of the same contender differ by up to a fifth, so contenders are set up again every few
//! rounds, each time at different addresses.

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use crate::clock::{self, Elapsed};

/// Work to be measured.
pub trait Work {
    /// Performs `ops` operations.
    fn run(&mut self, ops: u64);

    /// Restores the state that [`run`](Self::run) consumed; not included in the measured time.
    fn restore(&mut self) {}

    /// Returns the maximum number of operations of a [`run`](Self::run) between two restores.
    fn ops_max(&self) -> u64 {
        u64::MAX
    }
}

/// Performance goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Maximum number of nanoseconds, inclusive.
    NsMax(f64),
    /// Upper limit of the ratio to the baseline, exclusive.
    RatioBelow(f64),
}

/// Named implementation in a group.
pub struct Contender {
    name: &'static str,
    work: Box<dyn Work>,
    goal: Option<Goal>,
}

impl Contender {
    /// Creates a contender without a goal.
    pub fn new(name: &'static str, work: impl Work + 'static) -> Self {
        Self { name, work: Box::new(work), goal: None }
    }

    /// Sets the goal.
    #[must_use]
    pub fn with_goal(self, goal: Option<Goal>) -> Self {
        Self { goal, ..self }
    }
}

/// Number and length of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of rounds; every contender runs once per round.
    pub rounds: usize,
    /// Approximate length of one run.
    pub batch_time: Duration,
}

impl Effort {
    /// Enough rounds for results that can be published.
    pub const FULL: Self = Self { rounds: 36, batch_time: Duration::from_millis(10) };
    /// Enough to check that everything runs.
    pub const QUICK: Self = Self { rounds: 3, batch_time: Duration::from_micros(200) };
}

/// Result of one contender; the first of a group is the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The contender's name within its group.
    pub name: &'static str,
    /// Median CPU time per operation, in nanoseconds.
    pub cpu_ns: f64,
    /// Median wall-clock time per operation, in nanoseconds.
    pub wall_ns: f64,
    /// CPU time as a multiple of the baseline's in the same round.
    pub ratio: Quartiles,
    /// Median excess over the CPU time of the baseline in the same round, in nanoseconds.
    pub more_ns: f64,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
}

impl Row {
    /// Reports whether the goal is met; `None` without a goal.
    pub fn meets_goal(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::NsMax(max) => self.cpu_ns <= max,
            Goal::RatioBelow(limit) => self.ratio.median < limit,
        })
    }
}

/// Quartiles of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the samples are below.
    pub lower: f64,
    /// Half of the samples are below.
    pub median: f64,
    /// A quarter of the samples are above.
    pub upper: f64,
}

impl Quartiles {
    /// Computes the quartiles of at least one sample, interpolating between neighbours.
    fn from_samples(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let quantile = |fraction: f64| {
            let position = fraction * (samples.len() - 1) as f64;
            let below = samples[position.floor() as usize];
            let above = samples[position.ceil() as usize];
            below + (above - below) * position.fract()
        };
        Self { lower: quantile(0.25), median: quantile(0.5), upper: quantile(0.75) }
    }
}

/// Number of rounds between two set-ups.
const ROUNDS_PER_SET_UP: usize = 4;

/// Bytes allocated before each set-up, and kept, to shift the addresses of what follows.
const ADDRESS_SHIFT: usize = 100_003;

/// Measures the contenders in alternation; the first is the baseline.
pub fn measure(set_up: &dyn Fn() -> Vec<Contender>, effort: Effort) -> Vec<Row> {
    let mut shifts = Vec::new();
    let mut contenders = set_up();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::with_capacity(effort.rounds); contenders.len()];
    for first in (0..effort.rounds).step_by(ROUNDS_PER_SET_UP) {
        if first > 0 {
            shifts.push(black_box(vec![1_u8; ADDRESS_SHIFT]));
            contenders = set_up();
        }
        let rounds = first..effort.rounds.min(first + ROUNDS_PER_SET_UP);
        run_rounds(&mut contenders, rounds, effort.batch_time, &mut samples);
    }
    let rows = contenders.iter().zip(&samples);
    rows.map(|(contender, own)| row(contender, own, &samples[0])).collect()
}

/// Records the samples of some rounds.
fn run_rounds(
    contenders: &mut [Contender],
    rounds: Range<usize>,
    batch_time: Duration,
    samples: &mut [Vec<Sample>],
) {
    let batches: Vec<_> =
        contenders.iter_mut().map(|contender| batch(contender.work.as_mut(), batch_time)).collect();
    for round in rounds {
        for index in order(round, contenders.len()) {
            samples[index].push(sample(contenders[index].work.as_mut(), batches[index]));
        }
    }
}

/// Returns the order of the contenders in a round.
///
/// Even rounds run forward, odd rounds backward, and the start moves on by one every two rounds. So no contender always
/// follows the same one, and with three or more, none follows itself, which would leave it warm caches.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let start = round.div_ceil(2);
    (0..count).map(move |position| {
        let step = if round.is_multiple_of(2) { position } else { count - position };
        (start + step) % count
    })
}

/// Finds the number of operations that take about `batch_time`.
fn batch(work: &mut dyn Work, batch_time: Duration) -> u64 {
    let ops_max = work.ops_max();
    let mut ops = 64.min(ops_max);
    loop {
        let elapsed = run_once(work, ops).cpu;
        if elapsed >= batch_time / 4 {
            let scale = batch_time.as_secs_f64() / elapsed.as_secs_f64();
            return ((ops as f64 * scale) as u64).clamp(1, ops_max);
        }
        if ops == ops_max {
            return ops;
        }
        ops = ops.saturating_mul(2).min(ops_max);
    }
}

/// Nanoseconds per operation in one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_ns: f64,
    wall_ns: f64,
}

fn sample(work: &mut dyn Work, ops: u64) -> Sample {
    // Warms up the caches, which the previous contender has used.
    run_once(work, ops.div_ceil(4));
    let elapsed = run_once(work, ops);
    let per_op = |time: Duration| time.as_secs_f64() * 1e9 / ops as f64;
    Sample { cpu_ns: per_op(elapsed.cpu), wall_ns: per_op(elapsed.wall) }
}

fn run_once(work: &mut dyn Work, ops: u64) -> Elapsed {
    let elapsed = clock::time(|| work.run(ops));
    work.restore();
    elapsed
}

fn row(contender: &Contender, own: &[Sample], baseline: &[Sample]) -> Row {
    let median = |samples: Vec<f64>| Quartiles::from_samples(samples).median;
    let pairs = || own.iter().zip(baseline);
    Row {
        name: contender.name,
        cpu_ns: median(own.iter().map(|sample| sample.cpu_ns).collect()),
        wall_ns: median(own.iter().map(|sample| sample.wall_ns).collect()),
        ratio: Quartiles::from_samples(pairs().map(|(own, base)| own.cpu_ns / base.cpu_ns).collect()),
        more_ns: median(pairs().map(|(own, base)| own.cpu_ns - base.cpu_ns).collect()),
        goal: contender.goal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    #[test]
    fn every_contender_runs_once_per_round_in_alternating_order() {
        let log = Log::default();
        let effort = Effort { rounds: 2, batch_time: Duration::from_secs(1) };
        let rows = measure(&|| recorders(&log), effort);
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        let batches = ["a", "b", "c"].map(|name| (name, 10));
        // Each sample is a warm-up of a quarter of a batch, then a batch.
        let samples = ["a", "b", "c", "b", "a", "c"].map(|name| [(name, 3), (name, 10)]);
        let expected: Vec<_> = batches.into_iter().chain(samples.into_iter().flatten()).collect();
        assert_eq!(*log.borrow(), expected);
    }

    #[test]
    fn no_contender_follows_itself_and_each_is_first_and_last_equally_often() {
        for count in 3..10 {
            let turns: Vec<_> = (0..2 * count).flat_map(|round| order(round, count)).collect();
            assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
            for contender in 0..count {
                let times_first = turns.chunks(count).filter(|round| round[0] == contender).count();
                let times_last = turns.chunks(count).filter(|round| round[count - 1] == contender).count();
                assert_eq!((times_first, times_last), (2, 2), "{contender} of {count}");
            }
        }
    }

    #[test]
    fn contenders_are_set_up_again_every_few_rounds() {
        let set_ups = Cell::new(0);
        let set_up = || {
            set_ups.set(set_ups.get() + 1);
            recorders(&Log::default())
        };
        measure(&set_up, Effort { rounds: 2 * ROUNDS_PER_SET_UP + 1, batch_time: Duration::from_secs(1) });
        assert_eq!(set_ups.get(), 3);
    }

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        let sample = |ns| Sample { cpu_ns: ns, wall_ns: ns * 3.0 };
        // The machine is ten times slower in the second round.
        let baseline = [10.0, 100.0, 12.0].map(sample);
        let own = [20.0, 200.0, 36.0].map(sample);
        let contender = Contender::new("own", Recorder::idle()).with_goal(Some(Goal::RatioBelow(2.0)));
        let row = row(&contender, &own, &baseline);
        assert_eq!((row.cpu_ns, row.wall_ns, row.more_ns), (36.0, 108.0, 24.0));
        assert_eq!(row.ratio, Quartiles { lower: 2.0, median: 2.0, upper: 2.5 });
        assert_eq!(row.meets_goal(), Some(false), "the limit itself does not meet the goal");
    }

    #[test]
    fn a_goal_in_nanoseconds_includes_its_limit() {
        let samples = [Sample { cpu_ns: 20.0, wall_ns: 99.0 }];
        let meets = |goal| row(&Contender::new("own", Recorder::idle()).with_goal(goal), &samples, &samples);
        assert_eq!(meets(Some(Goal::NsMax(20.0))).meets_goal(), Some(true));
        assert_eq!(meets(Some(Goal::NsMax(19.9))).meets_goal(), Some(false));
        assert_eq!(meets(None).meets_goal(), None);
    }

    #[test]
    fn quartiles_are_interpolated() {
        let quartiles = Quartiles::from_samples(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(quartiles, Quartiles { lower: 1.75, median: 2.5, upper: 3.25 });
        assert_eq!(Quartiles::from_samples(vec![7.0]), Quartiles { lower: 7.0, median: 7.0, upper: 7.0 });
    }

    type Log = Rc<RefCell<Vec<(&'static str, u64)>>>;

    fn recorders(log: &Log) -> Vec<Contender> {
        let recorder = |name| Recorder { name, ops_max: 10, used: 0, log: log.clone() };
        ["a", "b", "c"].map(|name| Contender::new(name, recorder(name))).into()
    }

    /// Records its runs and requires a restore between them.
    struct Recorder {
        name: &'static str,
        ops_max: u64,
        used: u64,
        log: Log,
    }

    impl Recorder {
        fn idle() -> Self {
            Self { name: "", ops_max: 1, used: 0, log: Rc::default() }
        }
    }

    impl Work for Recorder {
        fn run(&mut self, ops: u64) {
            self.used += ops;
            assert!(self.used <= self.ops_max, "not restored");
            self.log.borrow_mut().push((self.name, ops));
        }

        fn restore(&mut self) {
            self.used = 0;
        }

        fn ops_max(&self) -> u64 {
            self.ops_max
        }
    }
}
