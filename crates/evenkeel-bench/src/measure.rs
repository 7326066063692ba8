//! Contenders take turns; each is compared with the baseline of its own round.
//!
//! Bound: a group takes about `rounds × contenders × 1.25 × batch_time`, setting up apart. A machine that is slow for
//! longer than a round is slow for everybody in it, and drops out of the ratios. Where memory happens to lie makes
//! two copies of the same program differ by up to a fifth, for as long as they live; so contenders are set up anew
//! for every few rounds, each time at other addresses.

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use crate::clock::{self, Elapsed};

/// Something to be timed.
pub trait Work {
    /// Does it `ops` times.
    fn run(&mut self, ops: u64);

    /// Puts back, outside the time measured, what [`run`](Self::run) used up.
    fn restore(&mut self) {}

    /// The most a single [`run`](Self::run) can do before it has to restore.
    fn ops_max(&self) -> u64 {
        u64::MAX
    }
}

/// A figure that is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most so many nanoseconds.
    NsMax(f64),
    /// Less than so many times the baseline.
    RatioBelow(f64),
}

/// One of those that take turns.
pub struct Contender {
    name: &'static str,
    work: Box<dyn Work>,
    goal: Option<Goal>,
}

impl Contender {
    /// Makes a contender without a goal.
    pub fn new(name: &'static str, work: impl Work + 'static) -> Self {
        Self { name, work: Box::new(work), goal: None }
    }

    /// Sets what it has to reach.
    #[must_use]
    pub fn with_goal(self, goal: Option<Goal>) -> Self {
        Self { goal, ..self }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How often everybody has a turn.
    pub rounds: usize,
    /// How long a turn takes, about.
    pub batch_time: Duration,
}

impl Effort {
    /// Enough for a figure to be quoted.
    pub const FULL: Self = Self { rounds: 36, batch_time: Duration::from_millis(10) };
    /// Enough to see that everything runs.
    pub const QUICK: Self = Self { rounds: 3, batch_time: Duration::from_micros(200) };
}

/// What came out for one contender; the first of a group is the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The contender's name within its group.
    pub name: &'static str,
    /// Median of its nanoseconds of thread time per operation.
    pub cpu_ns: f64,
    /// Median of its nanoseconds of real time per operation.
    pub wall_ns: f64,
    /// Its thread time as a multiple of the baseline's in the same round.
    pub ratio: Quartiles,
    /// Median of what it takes longer than the baseline in the same round, in nanoseconds of thread time.
    pub more_ns: f64,
    /// What it had to reach.
    pub goal: Option<Goal>,
}

impl Row {
    /// Tells whether the goal, if there is one, is reached.
    pub fn meets_goal(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::NsMax(most) => self.cpu_ns <= most,
            Goal::RatioBelow(limit) => self.ratio.median < limit,
        })
    }
}

/// The middle of some figures, and the middles of their halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the figures are below.
    pub lower: f64,
    /// Half of the figures are below.
    pub median: f64,
    /// A quarter of the figures are above.
    pub upper: f64,
}

impl Quartiles {
    /// Sorts at least one figure; between two figures it takes a point on the line from one to the other.
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (figures.len() - 1) as f64;
            let below = figures[place.floor() as usize];
            let above = figures[place.ceil() as usize];
            below + (above - below) * place.fract()
        };
        Self { lower: at(0.25), median: at(0.5), upper: at(0.75) }
    }
}

/// How many rounds contenders live.
const SITTING: usize = 4;

/// What is allocated before each sitting, and kept, to move what follows.
const BALLAST: usize = 100_003;

/// Lets the contenders take turns; the first is the baseline.
pub fn measure(set_up: &dyn Fn() -> Vec<Contender>, effort: Effort) -> Vec<Row> {
    let mut ballast = Vec::new();
    let mut contenders = set_up();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::with_capacity(effort.rounds); contenders.len()];
    for first in (0..effort.rounds).step_by(SITTING) {
        if 0 < first {
            ballast.push(black_box(vec![1_u8; BALLAST]));
            contenders = set_up();
        }
        let rounds = first..effort.rounds.min(first + SITTING);
        sit(&mut contenders, rounds, effort.batch_time, &mut samples);
    }
    let rows = contenders.iter().zip(&samples);
    rows.map(|(contender, own)| row(contender, own, &samples[0])).collect()
}

/// Takes the samples of some rounds.
fn sit(
    contenders: &mut [Contender],
    rounds: Range<usize>,
    batch_time: Duration,
    samples: &mut [Vec<Sample>],
) {
    let batches: Vec<_> =
        contenders.iter_mut().map(|contender| batch(contender.work.as_mut(), batch_time)).collect();
    for round in rounds {
        for at in order(round, contenders.len()) {
            samples[at].push(sample(contenders[at].work.as_mut(), batches[at]));
        }
    }
}

/// Whose turns a round consists of.
///
/// There and back, each time from the next place on: nobody always comes after the same neighbour, and nobody
/// (of three or more) comes after itself, with caches it has just warmed.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let start = round.div_ceil(2);
    (0..count).map(move |turn| {
        let step = if round.is_multiple_of(2) { turn } else { count - turn };
        (start + step) % count
    })
}

/// Finds how many operations take about `batch_time`.
fn batch(work: &mut dyn Work, batch_time: Duration) -> u64 {
    let ops_max = work.ops_max();
    let mut ops = 64.min(ops_max);
    loop {
        let elapsed = turn(work, ops).cpu;
        if batch_time / 4 <= elapsed {
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
    // Brings back into the cache what the neighbour's turn pushed out.
    turn(work, ops.div_ceil(4));
    let elapsed = turn(work, ops);
    let per_op = |time: Duration| time.as_secs_f64() * 1e9 / ops as f64;
    Sample { cpu_ns: per_op(elapsed.cpu), wall_ns: per_op(elapsed.wall) }
}

fn turn(work: &mut dyn Work, ops: u64) -> Elapsed {
    let elapsed = clock::time(|| work.run(ops));
    work.restore();
    elapsed
}

fn row(contender: &Contender, own: &[Sample], baseline: &[Sample]) -> Row {
    let median = |figures: Vec<f64>| Quartiles::of(figures).median;
    let pairs = || own.iter().zip(baseline);
    Row {
        name: contender.name,
        cpu_ns: median(own.iter().map(|sample| sample.cpu_ns).collect()),
        wall_ns: median(own.iter().map(|sample| sample.wall_ns).collect()),
        ratio: Quartiles::of(pairs().map(|(own, base)| own.cpu_ns / base.cpu_ns).collect()),
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
    fn everybody_has_a_turn_in_every_round_there_and_back() {
        let turns = Turns::default();
        let effort = Effort { rounds: 2, batch_time: Duration::from_secs(1) };
        let rows = measure(&|| noted(&turns), effort);
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        let batches = ["a", "b", "c"].map(|name| (name, 10));
        // Each sample is a warm-up of a quarter and a batch.
        let samples = ["a", "b", "c", "b", "a", "c"].map(|name| [(name, 3), (name, 10)]);
        let expected: Vec<_> = batches.into_iter().chain(samples.into_iter().flatten()).collect();
        assert_eq!(*turns.borrow(), expected);
    }

    #[test]
    fn nobody_comes_after_itself_and_everybody_opens_as_many_rounds() {
        for count in 3..10 {
            let turns: Vec<_> = (0..2 * count).flat_map(|round| order(round, count)).collect();
            assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
            for who in 0..count {
                let opened = turns.chunks(count).filter(|round| round[0] == who).count();
                let closed = turns.chunks(count).filter(|round| round[count - 1] == who).count();
                assert_eq!((opened, closed), (2, 2), "{who} of {count}");
            }
        }
    }

    #[test]
    fn every_few_rounds_everything_is_set_up_anew() {
        let set_ups = Cell::new(0);
        let set_up = || {
            set_ups.set(set_ups.get() + 1);
            noted(&Turns::default())
        };
        measure(&set_up, Effort { rounds: 2 * SITTING + 1, batch_time: Duration::from_secs(1) });
        assert_eq!(set_ups.get(), 3);
    }

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        let sample = |ns| Sample { cpu_ns: ns, wall_ns: ns * 3.0 };
        // The machine is ten times slower in the second round, for everybody.
        let baseline = [10.0, 100.0, 12.0].map(sample);
        let own = [20.0, 200.0, 36.0].map(sample);
        let contender = Contender::new("own", Noted::idle()).with_goal(Some(Goal::RatioBelow(2.0)));
        let row = row(&contender, &own, &baseline);
        assert_eq!((row.cpu_ns, row.wall_ns, row.more_ns), (36.0, 108.0, 24.0));
        assert_eq!(row.ratio, Quartiles { lower: 2.0, median: 2.0, upper: 2.5 });
        assert_eq!(row.meets_goal(), Some(false), "below means below");
    }

    #[test]
    fn a_goal_in_nanoseconds_includes_its_limit() {
        let samples = [Sample { cpu_ns: 20.0, wall_ns: 99.0 }];
        let meets = |goal| row(&Contender::new("own", Noted::idle()).with_goal(goal), &samples, &samples);
        assert_eq!(meets(Some(Goal::NsMax(20.0))).meets_goal(), Some(true));
        assert_eq!(meets(Some(Goal::NsMax(19.9))).meets_goal(), Some(false));
        assert_eq!(meets(None).meets_goal(), None);
    }

    #[test]
    fn quartiles_lie_between_figures() {
        let quartiles = Quartiles::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(quartiles, Quartiles { lower: 1.75, median: 2.5, upper: 3.25 });
        assert_eq!(Quartiles::of(vec![7.0]), Quartiles { lower: 7.0, median: 7.0, upper: 7.0 });
    }

    type Turns = Rc<RefCell<Vec<(&'static str, u64)>>>;

    fn noted(turns: &Turns) -> Vec<Contender> {
        let noted = |name| Noted { name, ops_max: 10, used: 0, turns: turns.clone() };
        ["a", "b", "c"].map(|name| Contender::new(name, noted(name))).into()
    }

    /// Notes its turns, and insists on being restored between them.
    struct Noted {
        name: &'static str,
        ops_max: u64,
        used: u64,
        turns: Turns,
    }

    impl Noted {
        fn idle() -> Self {
            Self { name: "", ops_max: 1, used: 0, turns: Rc::default() }
        }
    }

    impl Work for Noted {
        fn run(&mut self, ops: u64) {
            self.used += ops;
            assert!(self.used <= self.ops_max, "not restored");
            self.turns.borrow_mut().push((self.name, ops));
        }

        fn restore(&mut self) {
            self.used = 0;
        }

        fn ops_max(&self) -> u64 {
            self.ops_max
        }
    }
}
