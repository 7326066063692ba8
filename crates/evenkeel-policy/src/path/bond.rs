//! Membership of the bonded lane, in which the chunks of one flow take several paths.
//!
//! Chunks of fast paths wait at the receiver for those of slow ones. A path that adds little to the goodput and makes
//! the others wait for too long leaves the lane, so that a long transfer over several paths is hardly ever slower than over
//! the best one.
//!
//! The goodput of a set of paths is the sum of their capacities, or the receive window per time from sending a chunk to
//! the credit for it, whichever is less. The second limit is why a slow path can cost more than it adds: no credit
//! returns before its chunk has arrived.
//!
//! Guarantees, checked by `tests/it/path.rs`:
//! - A review takes at most one path out, and never the last one that can carry data.
//! - A path leaves only if it adds less than `gain_min`, and delays the others by more than `delay_max` or by more than
//!   the window lasts.
//! - A path that left is reconsidered after its backoff, at most `backoff_max`, or earlier if its baseline or the others'
//!   capacity has halved; that its own queue drains is no reason. It returns if its delay is within the limit or, while the
//!   lane is busy, if it could add `gain_min` at unlimited capacity.

use alloc::vec::Vec;
use core::fmt;

use super::Loss;
use super::rule::SPANS;
use crate::id::PathId;
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, Instant, scaled};

/// Bytes of a packet, for the number of packets in flight.
const PACKET_BYTES: f64 = 1_200.0;

/// Growth between two reviews above which a capacity is not known yet: the congestion window still opens.
const GROWTH_MAX: f64 = 1.25;

/// Settings of the bonded lane; [`BondRule::new`] validates them.
///
/// `gain_min` is 0..=1, time spans are a millisecond to a day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BondConfig {
    /// Time between two reviews (default 2 s).
    pub interval: Duration,
    /// Fraction of the other paths' goodput that a slow path must add (default 0.1); 0 keeps every path.
    pub gain_min: f64,
    /// Delay that a path may cause however little it adds (default 250 ms); at most the time in which the others send a
    /// window.
    pub delay_max: Duration,
    /// Backoff after the first time a path left; doubles with each further time (default 10 s).
    pub backoff_min: Duration,
    /// Longest backoff, and the time in the lane after which earlier departures are forgotten (default 5 minutes).
    pub backoff_max: Duration,
}

impl Default for BondConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            gain_min: 0.1,
            delay_max: Duration::from_millis(250),
            backoff_min: Duration::from_secs(10),
            backoff_max: Duration::from_secs(300),
        }
    }
}

/// Validated [`BondConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BondRule {
    config: BondConfig,
}

/// Measurements of a path since the last review.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BondPath {
    /// The path's id.
    pub path: PathId,
    /// Bytes per second that the path can carry; for a path out of the lane, the value is not used.
    pub capacity: f64,
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Round trip without the queue that the path's own traffic fills.
    pub baseline: Duration,
    /// Recent loss.
    pub loss: Loss,
}

impl BondPath {
    /// Returns the expected time until a chunk arrives: half a round trip, and one more times the losses expected per round
    /// trip, at most 1.
    fn delay(&self) -> Duration {
        let loss = self.loss.as_f64();
        let lost =
            if loss > 0.0 { loss * self.capacity * self.rtt.as_secs_f64() / PACKET_BYTES } else { 0.0 };
        scaled(self.rtt, 0.5 + lost.min(1.0))
    }
}

/// Traffic of the lane since the last review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondDemand {
    /// The lane had nothing to send for most of the time, so capacities are unknown.
    Idle,
    /// The lane had data to send.
    Busy {
        /// Bytes that its flows may send beyond what arrived in order.
        window: u64,
    },
}

/// Effect of a path on the lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BondEstimate {
    /// Goodput that the path adds, as a fraction of the other paths' goodput; negative if they are better without it.
    pub gain: f64,
    /// Time by which a chunk on the path arrives after one on the fastest other path.
    pub delay: Duration,
    /// Longest delay that is allowed whatever the gain.
    pub delay_max: Duration,
}

/// Change of the membership of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BondChange {
    /// The path's id.
    pub path: PathId,
    /// Direction of the change.
    pub kind: BondChangeKind,
    /// Estimate that caused it.
    pub estimate: BondEstimate,
}

/// Direction of a [`BondChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BondChangeKind {
    /// The path left the lane.
    Left,
    /// The path takes part again.
    Returned,
}

impl fmt::Display for BondChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BondEstimate { gain, delay, delay_max } = self.estimate;
        let gain = gain * 100.0;
        match self.kind {
            BondChangeKind::Left => write!(
                f,
                "left the bonded lane: it adds {gain:.1} % goodput (less than bonded_gain_min) and delays data by \
                 {delay:.0?}, above the limit of {delay_max:.0?}"
            ),
            BondChangeKind::Returned if delay <= delay_max => {
                write!(
                    f,
                    "returned to the bonded lane: it delays data by {delay:.0?}, within the limit of {delay_max:.0?}"
                )
            }
            BondChangeKind::Returned => {
                write!(f, "returned to the bonded lane: its capacity is measured again")
            }
        }
    }
}

impl BondRule {
    /// Validates the settings; the error names the first one out of range.
    pub fn new(config: BondConfig) -> Result<Self, SettingOutOfRange> {
        check("bonded_interval", config.interval.as_secs_f64(), SPANS)?;
        check("bonded_gain_min", config.gain_min, 0.0..=1.0)?;
        check("bonded_delay_max", config.delay_max.as_secs_f64(), SPANS)?;
        check("bonded_backoff_max", config.backoff_max.as_secs_f64(), SPANS)?;
        let backoff_max = config.backoff_max.as_secs_f64();
        check("bonded_backoff_min", config.backoff_min.as_secs_f64(), 0.001..=backoff_max)?;
        Ok(Self { config })
    }

    /// Returns the time between two reviews.
    pub const fn interval(&self) -> Duration {
        self.config.interval
    }

    /// Estimates the effect of a path on the others; `window` is `None` if it limits nothing.
    pub fn estimate(&self, path: &BondPath, others: &[BondPath], window: Option<u64>) -> BondEstimate {
        let alone = goodput(others.iter(), window);
        let together = goodput(others.iter().chain([path]), window);
        let gain = if alone > 0.0 { together / alone - 1.0 } else { f64::INFINITY };
        let fastest = others.iter().map(BondPath::delay).min().unwrap_or(Duration::MAX);
        let delay = path.delay().saturating_sub(fastest);
        let delay_max = match window {
            Some(window) if alone > 0.0 => {
                scaled(Duration::from_secs(1), window as f64 / capacity(others)).min(self.config.delay_max)
            }
            _ => self.config.delay_max,
        };
        BondEstimate { gain, delay, delay_max }
    }

    fn is_worth(&self, estimate: &BondEstimate) -> bool {
        self.config.gain_min <= estimate.gain || estimate.delay <= estimate.delay_max
    }

    fn backoff(&self, exits: u32) -> Duration {
        let doubled = 1_u32.checked_shl(exits.saturating_sub(1)).unwrap_or(u32::MAX);
        self.config.backoff_min.saturating_mul(doubled).min(self.config.backoff_max)
    }
}

fn capacity(paths: &[BondPath]) -> f64 {
    paths.iter().map(|path| path.capacity).sum()
}

/// Returns the bytes per second that a set of paths delivers in order.
fn goodput<'a>(paths: impl Iterator<Item = &'a BondPath> + Clone, window: Option<u64>) -> f64 {
    let capacity: f64 = paths.clone().map(|path| path.capacity).sum();
    let arrival = paths.clone().map(BondPath::delay).max().unwrap_or_default();
    // Credit returns on the fastest path.
    let credit = paths.map(|path| path.rtt / 2).min().unwrap_or_default();
    let cycle = arrival.saturating_add(credit).as_secs_f64();
    match window {
        Some(window) if cycle > 0.0 => capacity.min(window as f64 / cycle),
        _ => capacity,
    }
}

/// Membership of the bonded lane.
#[derive(Clone, Debug)]
pub struct BondedLane {
    rule: BondRule,
    members: Vec<Membership>,
}

#[derive(Clone, Debug)]
struct Membership {
    path: PathId,
    state: State,
    /// Number of times that the path left since it last stayed for long.
    exits: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    In {
        since: Instant,
        /// Capacity at the last review; `None` if it was not measured.
        capacity: Option<f64>,
    },
    Out {
        retry_at: Instant,
        /// The path's baseline when it left.
        baseline: Duration,
        /// Capacity of the others when it left.
        others: f64,
    },
}

impl BondedLane {
    /// Creates a lane without paths.
    pub const fn new(rule: BondRule) -> Self {
        Self { rule, members: Vec::new() }
    }

    /// Adds a path, which takes part at once; does nothing if it is known.
    pub fn add_path(&mut self, now: Instant, path: PathId) {
        if self.members.iter().all(|member| member.path != path) {
            let state = State::In { since: now, capacity: None };
            self.members.push(Membership { path, state, exits: 0 });
        }
    }

    /// Removes a path.
    pub fn remove_path(&mut self, path: PathId) {
        self.members.retain(|member| member.path != path);
    }

    /// Reports whether a path takes part.
    pub fn has(&self, path: PathId) -> bool {
        let is_in = |member: &Membership| member.path == path && matches!(member.state, State::In { .. });
        self.members.iter().any(is_in)
    }

    /// Returns the time between two reviews.
    pub const fn interval(&self) -> Duration {
        self.rule.interval()
    }

    /// Reviews the paths that can carry data, and returns the changes of their membership.
    pub fn review(&mut self, now: Instant, paths: &[BondPath], demand: BondDemand) -> Vec<BondChange> {
        let members: Vec<BondPath> = paths.iter().filter(|path| self.has(path.path)).copied().collect();
        let mut changes = Vec::new();
        if let BondDemand::Busy { window } = demand
            && self.rule.config.gain_min > 0.0
        {
            changes.extend(self.remove_worst(now, &members, window));
        }
        for path in paths.iter().filter(|path| !members.iter().any(|member| member.path == path.path)) {
            changes.extend(self.restore(now, path, &members, demand));
        }
        for member in &mut self.members {
            let measured = paths.iter().find(|path| path.path == member.path && demand != BondDemand::Idle);
            if let State::In { capacity, .. } = &mut member.state {
                *capacity = measured.map(|path| path.capacity);
            }
        }
        changes
    }

    /// Takes the path that adds least out of the lane, if it is not worth its delay.
    fn remove_worst(&mut self, now: Instant, paths: &[BondPath], window: u64) -> Option<BondChange> {
        let settled = paths.iter().filter(|path| self.is_settled(path));
        let judged = settled.map(|path| {
            let others = except(paths, path.path);
            (path, self.rule.estimate(path, &others, Some(window)), capacity(&others))
        });
        let unworthy = judged.filter(|(_, estimate, _)| !self.rule.is_worth(estimate));
        let (path, estimate, others) = unworthy.min_by(|one, other| one.1.gain.total_cmp(&other.1.gain))?;
        let rule = self.rule;
        let member = self.members.iter_mut().find(|member| member.path == path.path)?;
        if let State::In { since, .. } = member.state
            && rule.config.backoff_max <= now.since(since)
        {
            member.exits = 0;
        }
        member.exits = member.exits.saturating_add(1);
        member.state =
            State::Out { retry_at: now + rule.backoff(member.exits), baseline: path.baseline, others };
        Some(BondChange { path: path.path, kind: BondChangeKind::Left, estimate })
    }

    /// Reports whether the capacity of a path was measured twice and hardly grew.
    fn is_settled(&self, path: &BondPath) -> bool {
        self.members.iter().any(|member| {
            member.path == path.path
                && matches!(member.state, State::In { capacity: Some(before), .. } if path.capacity <= GROWTH_MAX * before)
        })
    }

    /// Returns a path to the lane if its backoff has elapsed or much has changed, and it may be worth its delay.
    fn restore(
        &mut self,
        now: Instant,
        path: &BondPath,
        members: &[BondPath],
        demand: BondDemand,
    ) -> Option<BondChange> {
        let window = match demand {
            BondDemand::Idle => None,
            BondDemand::Busy { window } => Some(window),
        };
        // What a path can carry is not known while it carries nothing.
        let unlimited = BondPath { capacity: f64::INFINITY, ..*path };
        let estimate = self.rule.estimate(&unlimited, members, window);
        let is_fast = estimate.delay <= estimate.delay_max;
        let may_gain = demand != BondDemand::Idle && self.rule.config.gain_min <= estimate.gain;
        let member = self.members.iter_mut().find(|member| member.path == path.path)?;
        let State::Out { retry_at, baseline, others } = member.state else { return None };
        let has_changed = path.baseline <= baseline / 2 || capacity(members) <= others / 2.0;
        if !(retry_at <= now || has_changed) || !(is_fast || may_gain) {
            return None;
        }
        member.state = State::In { since: now, capacity: None };
        Some(BondChange { path: path.path, kind: BondChangeKind::Returned, estimate })
    }
}

fn except(paths: &[BondPath], path: PathId) -> Vec<BondPath> {
    paths.iter().filter(|other| other.path != path).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const A: PathId = PathId(0);
    const B: PathId = PathId(1);
    const MB: u64 = 1_000_000;

    /// Creates a path by its rate and its delay in one direction.
    fn path(path: PathId, mbit: f64, delay_ms: u64) -> BondPath {
        let rtt = Duration::from_millis(2 * delay_ms);
        BondPath { path, capacity: mbit * 125_000.0, rtt, baseline: rtt, loss: Loss::NONE }
    }

    fn bad(id: PathId) -> BondPath {
        BondPath { loss: Loss::new(0.03).unwrap(), ..path(id, 2.0, 300) }
    }

    fn lane() -> BondedLane {
        let mut lane = BondedLane::new(BondRule::default());
        lane.add_path(Instant::ORIGIN, A);
        lane.add_path(Instant::ORIGIN, B);
        lane
    }

    /// Reviews the paths at this second and returns the changes.
    fn review(lane: &mut BondedLane, secs: u64, paths: &[BondPath], window: u64) -> Vec<BondChangeKind> {
        let changes = lane.review(Instant::from_secs(secs), paths, BondDemand::Busy { window });
        changes.iter().map(|change| change.kind).collect()
    }

    #[test]
    fn a_bad_path_leaves_after_two_reviews() {
        let mut lane = lane();
        let paths = [path(A, 50.0, 10), bad(B)];
        assert_eq!(review(&mut lane, 2, &paths, 16 * MB), []);
        assert_eq!(review(&mut lane, 4, &paths, 16 * MB), [BondChangeKind::Left]);
        assert!(lane.has(A) && !lane.has(B));
    }

    #[test]
    fn a_path_that_adds_a_tenth_or_delays_little_stays() {
        for (first, second) in [
            (path(A, 50.0, 10), path(B, 50.0, 10)),
            (path(A, 50.0, 10), path(B, 20.0, 30)),
            (path(A, 50.0, 10), path(B, 50.0, 100)),
            (path(A, 10.0, 5), path(B, 100.0, 40)),
            (path(A, 50.0, 10), path(B, 1.0, 200)),
            (path(A, 50.0, 10), path(B, 6.0, 400)),
        ] {
            let mut lane = lane();
            for secs in 0..10 {
                assert_eq!(
                    review(&mut lane, secs, &[first, second], 16 * MB),
                    [],
                    "{first:?} and {second:?}"
                );
            }
        }
    }

    #[test]
    fn a_path_for_which_the_window_is_too_small_leaves_however_much_it_carries() {
        let paths = [path(A, 50.0, 10), path(B, 50.0, 100)];
        let estimate = BondRule::default().estimate(&paths[1], &paths[..1], Some(300_000));
        assert!(estimate.gain < 0.0, "{estimate:?}");
        assert_eq!(estimate.delay_max, Duration::from_millis(48));
        let mut lane = lane();
        review(&mut lane, 2, &paths, 300_000);
        assert_eq!(review(&mut lane, 4, &paths, 300_000), [BondChangeKind::Left]);
    }

    #[test]
    fn a_path_whose_capacity_still_grows_is_not_judged() {
        let mut lane = lane();
        let mut paths = [path(A, 50.0, 10), path(B, 0.1, 400)];
        for secs in 0..10 {
            paths[1].capacity *= 1.3;
            assert_eq!(review(&mut lane, secs, &paths, 16 * MB), []);
        }
        assert_eq!(review(&mut lane, 11, &paths, 16 * MB), [BondChangeKind::Left]);
    }

    #[test]
    fn nothing_is_decided_from_idle_intervals() {
        let mut lane = lane();
        let paths = [path(A, 50.0, 10), bad(B)];
        for secs in 0..10 {
            assert_eq!(lane.review(Instant::from_secs(2 * secs), &paths, BondDemand::Idle), []);
            assert_eq!(review(&mut lane, 2 * secs + 1, &paths, 16 * MB), []);
        }
    }

    /// Reviews `loaded` while it is in the lane and `idle` while it is not, and returns the times in seconds that it was out.
    fn backoffs(loaded: BondPath, idle: BondPath) -> Vec<u64> {
        let mut lane = lane();
        let mut out_since = None;
        let mut backoffs = Vec::new();
        for secs in 0..2_000 {
            let second = if lane.has(B) { loaded } else { idle };
            for change in review(&mut lane, secs, &[path(A, 50.0, 10), second], 16 * MB) {
                match change {
                    BondChangeKind::Left => out_since = Some(secs),
                    BondChangeKind::Returned => backoffs.push(secs - out_since.unwrap()),
                }
            }
        }
        backoffs
    }

    #[test]
    fn a_path_is_tried_again_after_a_backoff_that_doubles_up_to_five_minutes() {
        assert_eq!(backoffs(bad(B), bad(B)), [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]);
    }

    #[test]
    fn a_path_whose_own_queue_drains_waits_for_its_backoff() {
        let idle = path(B, 2.0, 30);
        let loaded = BondPath { rtt: Duration::from_secs(1), ..idle };
        assert_eq!(backoffs(loaded, idle), [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]);
    }

    #[test]
    fn a_path_that_cannot_gain_whatever_it_carries_is_not_tried_again() {
        let mut lane = lane();
        let paths = [path(A, 50.0, 10), bad(B)];
        for secs in 0..2_000 {
            review(&mut lane, secs, &paths, 4 * MB);
            assert!(secs < 3 || !lane.has(B), "after {secs} s");
        }
    }

    #[test]
    fn a_path_returns_at_once_when_its_round_trip_halves_or_the_others_fail() {
        let fast = [path(A, 50.0, 10), path(B, 2.0, 20)];
        let alone = [path(B, 2.0, 300)];
        let weak = [path(A, 5.0, 10), path(B, 2.0, 300)];
        for changed in [&fast[..], &alone, &weak] {
            let mut lane = lane();
            let paths = [path(A, 50.0, 10), bad(B)];
            review(&mut lane, 2, &paths, 16 * MB);
            assert_eq!(review(&mut lane, 4, &paths, 16 * MB), [BondChangeKind::Left]);
            assert_eq!(review(&mut lane, 6, &paths, 16 * MB), []);
            assert_eq!(review(&mut lane, 8, changed, 16 * MB), [BondChangeKind::Returned], "{changed:?}");
        }
    }

    #[test]
    fn without_a_least_gain_every_path_stays() {
        let rule = BondRule::new(BondConfig { gain_min: 0.0, ..BondConfig::default() }).unwrap();
        let mut lane = BondedLane { rule, ..lane() };
        let paths = [path(A, 50.0, 10), bad(B)];
        for secs in 0..10 {
            assert_eq!(review(&mut lane, secs, &paths, MB), []);
        }
    }

    #[test]
    fn a_change_is_displayed_with_its_cause() {
        let mut lane = lane();
        let paths = [path(A, 50.0, 10), bad(B)];
        review(&mut lane, 2, &paths, 16 * MB);
        let left = lane.review(Instant::from_secs(4), &paths, BondDemand::Busy { window: 16 * MB });
        let text = "left the bonded lane: it adds 4.0 % goodput (less than bonded_gain_min) and delays data by 890ms, \
                    above the limit of 250ms";
        assert_eq!(left[0].to_string(), text);
        let returned = lane.review(Instant::from_secs(14), &paths, BondDemand::Busy { window: 16 * MB });
        assert_eq!(returned[0].to_string(), "returned to the bonded lane: its capacity is measured again");
        let fast = BondChange {
            kind: BondChangeKind::Returned,
            estimate: BondEstimate { delay: Duration::from_millis(20), ..left[0].estimate },
            ..left[0]
        };
        let text = "returned to the bonded lane: it delays data by 20ms, within the limit of 250ms";
        assert_eq!(fast.to_string(), text);
    }

    #[test]
    fn an_invalid_setting_is_named_in_the_error() {
        let rejected = |change: fn(&mut BondConfig)| {
            let mut config = BondConfig::default();
            change(&mut config);
            BondRule::new(config).unwrap_err().setting
        };
        assert_eq!(rejected(|c| c.interval = Duration::ZERO), "bonded_interval");
        assert_eq!(rejected(|c| c.gain_min = f64::NAN), "bonded_gain_min");
        assert_eq!(rejected(|c| c.delay_max = Duration::ZERO), "bonded_delay_max");
        assert_eq!(rejected(|c| c.backoff_max = Duration::MAX), "bonded_backoff_max");
        assert_eq!(rejected(|c| c.backoff_min = Duration::from_secs(301)), "bonded_backoff_min");
    }
}
