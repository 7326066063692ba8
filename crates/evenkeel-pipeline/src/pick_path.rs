//! Pick path: chooses a path to the picked node by smooth weighted round robin (SWRR).
//!
//! Guarantees: the bounds of [`swrr`](evenkeel_policy::swrr) hold over the usable paths. A deactivated path gets no
//! request during its backoff while another path is usable, and then one at a time until enough were answered.

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{
    IntervalCollector, IntervalSample, PathRule, PathState, PathStats, Probe, Role, Transition,
};
use evenkeel_policy::swrr::{Health, ReweightCounts, ShareWindow, SwrrError, SwrrRules, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};

/// Definition of a path to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathSpec {
    /// Round-trip time, if measured.
    pub rtt: Option<Duration>,
}

/// Status of one path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// Its health.
    pub state: PathState,
    /// Mean round-trip time.
    pub rtt: Option<Duration>,
    /// Current weight.
    pub weight: u32,
    /// Requests in flight.
    pub in_flight: u32,
}

/// Shares of the paths to one node.
#[derive(Clone, Debug, PartialEq)]
pub struct PathShares {
    /// Observed and expected shares of the last complete window of requests, once there is one.
    pub window: Option<ShareWindow>,
    /// Changes of weights.
    pub reweights: ReweightCounts,
}

/// The paths to one node; may be empty.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    swrr: SwrrScheduler,
    rule: PathRule,
    paths: Vec<Path>,
}

#[derive(Clone, Debug)]
struct Path {
    stats: PathStats,
    /// Outcomes since the last sample, while the path is usable.
    outcomes: IntervalCollector,
    trust: Trust,
    in_flight: u32,
}

/// Trust in a path, lost when it is deactivated and restored when it is healthy again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Full,
    Lost,
}

impl Path {
    /// Reports whether the path is in rotation. A new path is used at once; one that failed has to be probed first.
    fn is_usable(&self) -> bool {
        self.stats.state().is_usable() || (self.is_probing() && self.trust == Trust::Full)
    }

    fn can_carry(&self) -> bool {
        self.is_usable() || (self.is_probing() && self.in_flight == 0)
    }

    fn is_probing(&self) -> bool {
        self.stats.state() == PathState::Probing
    }
}

impl Paths {
    pub(crate) fn new(
        specs: &[PathSpec],
        rules: &SwrrRules,
        rule: PathRule,
        now: Instant,
    ) -> Result<Self, SwrrError> {
        let mut swrr = SwrrScheduler::new(rules.clone());
        let mut paths = Vec::with_capacity(specs.len());
        for (id, spec) in (0..).map(PathId).zip(specs) {
            swrr.add_path(id)?;
            if let Some(rtt) = spec.rtt {
                swrr.update_path_rtt(id, now, millis(rtt))?;
            }
            swrr.activate(id, now)?;
            let mut stats = PathStats::new(rule);
            stats.on_time(now);
            let outcomes = IntervalCollector::new(&rule, now);
            paths.push(Path { stats, outcomes, trust: Trust::Full, in_flight: 0 });
        }
        Ok(Self { swrr, rule, paths })
    }

    /// Picks a path and counts the request; `None` when the node has no paths.
    pub(crate) fn pick(&mut self, now: Instant) -> Option<PathId> {
        self.swrr.refresh(now);
        let paths = &self.paths;
        let path =
            self.swrr.pick_where(|path| paths[path.index()].can_carry()).or_else(|| self.swrr.pick())?;
        self.paths[path.index()].in_flight += 1;
        Some(path)
    }

    /// Records that a request no longer uses the path.
    pub(crate) fn release(&mut self, path: PathId) {
        if let Some(path) = self.paths.get_mut(path.index()) {
            path.in_flight -= 1;
        }
    }

    /// Records the outcome of a probe or a request; causes at most one change of state.
    ///
    /// A probing path is judged by each outcome, a usable one by the samples of intervals.
    pub(crate) fn on_probe(&mut self, now: Instant, path: PathId, probe: Probe) -> Option<Transition> {
        let role = if self.has_other(path) { Role::OneOfMany } else { Role::Last };
        let best_rtt = self.best_rtt();
        let known = self.paths.get_mut(path.index())?;
        if known.is_probing() {
            measure(&mut self.swrr, path, now, &probe.into());
        } else if known.stats.state().is_usable() {
            known.outcomes.record_probe(probe);
        }
        let mut transition = known.stats.on_probe(now, probe, role);
        if transition.is_none()
            && known.stats.state().is_usable()
            && let Some(sample) = known.outcomes.poll(now, known.stats.rtt())
        {
            measure(&mut self.swrr, path, now, &sample);
            transition = known.stats.on_interval(now, sample, best_rtt, role);
        }
        self.apply(now, path, transition);
        transition
    }

    /// Updates trust, ramp and health of a path after a sample.
    fn apply(&mut self, now: Instant, path: PathId, transition: Option<Transition>) {
        let known = &mut self.paths[path.index()];
        match transition.map(|transition| transition.to) {
            Some(PathState::Inactive) => known.trust = Trust::Lost,
            Some(PathState::Active) if known.trust == Trust::Lost => {
                known.trust = Trust::Full;
                known.outcomes = IntervalCollector::new(&self.rule, now);
                self.restart_ramp(now, path);
            }
            _ => {}
        }
        let health = self.paths[path.index()].stats.state().health().unwrap_or(Health::Healthy);
        // The path is known, so the call does not fail.
        let _ = self.swrr.set_health(path, now, health);
    }

    /// Restarts the weight ramp of a path that was deactivated.
    fn restart_ramp(&mut self, now: Instant, path: PathId) {
        // The path is known, so neither call fails.
        let _ = self.swrr.deactivate(path);
        let _ = self.swrr.activate(path, now);
    }

    /// Ends the backoffs that are due.
    pub(crate) fn on_time(&mut self, now: Instant) -> Vec<(PathId, Transition)> {
        let numbered = (0..).map(PathId).zip(&mut self.paths);
        numbered.filter_map(|(id, path)| path.stats.on_time(now).map(|transition| (id, transition))).collect()
    }

    /// Returns the end of the next backoff.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.paths.iter().filter_map(|path| path.stats.retry_at()).min()
    }

    /// Reports whether the node can be reached without this path.
    pub(crate) fn has_other(&self, path: PathId) -> bool {
        let mut others = (0..).map(PathId).zip(&self.paths);
        others.any(|(other, known)| other != path && known.is_usable())
    }

    pub(crate) fn statuses(&self) -> Vec<PathStatus> {
        let numbered = (0..).map(PathId).zip(&self.paths);
        let status = |(path, known): (PathId, &Path)| PathStatus {
            path,
            state: known.stats.state(),
            rtt: self.swrr.rtt(path),
            weight: self.swrr.weight(path).unwrap_or(0),
            in_flight: known.in_flight,
        };
        numbered.map(status).collect()
    }

    /// Returns the shares and the changes of weights; `None` if the node has no paths to choose from.
    pub(crate) fn shares(&self) -> Option<PathShares> {
        let shares =
            || PathShares { window: self.swrr.last_window().cloned(), reweights: self.swrr.reweights() };
        (!self.paths.is_empty()).then(shares)
    }

    fn best_rtt(&self) -> Option<Duration> {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        usable.filter_map(|path| path.stats.rtt()).min()
    }
}

/// Records a sample of a path that the scheduler knows.
fn measure(swrr: &mut SwrrScheduler, path: PathId, now: Instant, sample: &IntervalSample) {
    // The path is known and the numbers are in range, so neither call fails.
    if let Some(rtt) = sample.rtt {
        let _ = swrr.update_path_rtt(path, now, millis(rtt));
    }
    let _ = swrr.update_path_loss(path, now, sample.loss_ratio());
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::swrr::PATHS_MAX;

    const NEAR: PathId = PathId(0);
    const FAR: PathId = PathId(1);

    #[test]
    fn new_paths_are_weighted_by_inverse_round_trip_time_from_the_first_request() {
        let mut paths = paths(&[10, 20]);
        let near = (0..300).filter(|_| use_once(&mut paths, 0) == NEAR).count();
        assert_eq!(near, 200);
    }

    #[test]
    fn a_path_that_fails_twice_backs_off_and_is_then_probed_one_request_at_a_time() {
        let mut paths = paths(&[10, 10]);
        paths.on_probe(Instant::ORIGIN, FAR, Probe::Failed);
        let off = paths.on_probe(Instant::ORIGIN, FAR, Probe::Failed).unwrap();
        assert_eq!(off.to, PathState::Inactive);
        assert!((0..20).all(|_| use_once(&mut paths, 100) == NEAR));
        let retry = paths.timeout().unwrap();
        assert_eq!(retry, Instant::from_secs(1));
        assert_eq!(paths.on_time(retry).len(), 1);
        let picks: Vec<_> = (0..10).filter_map(|_| paths.pick(retry)).collect();
        assert_eq!(picks.iter().filter(|&&path| path == FAR).count(), 1, "{picks:?}");
    }

    #[test]
    fn a_recovered_path_starts_with_a_small_weight() {
        let mut paths = paths(&[10, 10]);
        (0..2).for_each(|_| {
            paths.on_probe(Instant::ORIGIN, FAR, Probe::Failed);
        });
        // The other path finishes its own ramp meanwhile.
        assert!((1..=20).all(|tick| use_once(&mut paths, 100 * tick) == NEAR));
        let back = Instant::from_secs(2);
        paths.on_time(back);
        (0..3).for_each(|_| {
            paths.on_probe(back, FAR, Probe::Answered { rtt: Duration::from_millis(10) });
        });
        assert_eq!(paths.statuses()[1].state, PathState::Active);
        let far = (0..100).filter(|_| use_once(&mut paths, 2_000) == FAR).count();
        assert!((1..=10).contains(&far), "at most a tenth of its weight, not {far} of 100 picks");
    }

    #[test]
    fn a_longer_path_keeps_its_share_as_long_as_it_is_steady() {
        let mut paths = paths(&[10, 20, 100]);
        for tick in 1..=400 {
            let now = Instant::from_millis(100 * tick);
            for (path, rtt_ms) in [(0, 10), (1, 20), (2, 100)] {
                let probe = Probe::Answered { rtt: Duration::from_millis(rtt_ms) };
                paths.on_probe(now, PathId(path), probe);
                paths.on_probe(now, PathId(path), Probe::Reached);
            }
            paths.pick(now);
        }
        assert!(paths.statuses().iter().all(|status| status.state == PathState::Active));
        let mut counts = [0; 3];
        (0..1_600).for_each(|_| counts[use_once(&mut paths, 40_000).index()] += 1);
        assert_eq!(counts, [1_000, 500, 100]);
        let shares = paths.shares().unwrap();
        assert!(shares.window.unwrap().mean_deviation() < 0.001);
        assert!(shares.reweights.applied > 0);
    }

    #[test]
    fn two_failures_among_many_answers_of_an_interval_do_not_degrade_a_path() {
        let mut paths = paths(&[10, 10]);
        let answer = Probe::Answered { rtt: Duration::from_millis(10) };
        (0..3).for_each(|_| _ = paths.on_probe(Instant::ORIGIN, FAR, answer));
        for tick in 1..=100 {
            let now = Instant::from_millis(100 * tick);
            for outcome in [Probe::Lost, Probe::Reached, Probe::Lost] {
                paths.on_probe(now, FAR, outcome);
            }
            assert!((0..40).all(|_| paths.on_probe(now, FAR, Probe::Reached).is_none()));
        }
        assert_eq!(paths.statuses()[1].state, PathState::Active);
    }

    #[test]
    fn the_last_path_is_used_even_if_it_keeps_failing() {
        let mut paths = paths(&[10]);
        for _ in 0..10 {
            paths.on_probe(Instant::ORIGIN, NEAR, Probe::Failed);
        }
        assert_eq!(paths.pick(Instant::ORIGIN), Some(NEAR));
    }

    #[test]
    fn a_node_has_at_most_paths_max_paths() {
        let specs = vec![PathSpec::default(); PATHS_MAX + 1];
        let result = Paths::new(&specs, &SwrrRules::default(), PathRule::default(), Instant::ORIGIN);
        assert_eq!(result.unwrap_err(), SwrrError::TooManyPaths { paths_max: PATHS_MAX });
    }

    fn paths(rtts: &[u64]) -> Paths {
        let specs: Vec<_> =
            rtts.iter().map(|rtt| PathSpec { rtt: Some(Duration::from_millis(*rtt)) }).collect();
        Paths::new(&specs, &SwrrRules::default(), PathRule::default(), Instant::ORIGIN).unwrap()
    }

    fn use_once(paths: &mut Paths, millis: u64) -> PathId {
        let path = paths.pick(Instant::from_millis(millis)).unwrap();
        paths.release(path);
        path
    }
}
