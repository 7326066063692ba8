//! Pick path: chooses a path to the picked node by smooth weighted round robin (SWRR).
//!
//! Guarantees: the bounds of [`swrr`](evenkeel_policy::swrr) hold over the usable paths. A deactivated path gets no
//! request during its backoff while another path is usable, and then one at a time until enough were answered.

use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{PathRule, PathState, PathStats, Probe, Role, Transition};
use evenkeel_policy::swrr::{Health, SwrrError, SwrrRules, SwrrScheduler};
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
            paths.push(Path { stats, trust: Trust::Full, in_flight: 0 });
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

    /// Records a response; its latency is mostly the node's, so the path's RTT stays unchanged.
    pub(crate) fn on_response(&mut self, now: Instant, path: PathId) -> Option<Transition> {
        let rtt = self.swrr.rtt(path).unwrap_or_default();
        self.on_sample(now, path, Probe::Answered { rtt })
    }

    /// Records the result of a probe.
    pub(crate) fn on_probe(&mut self, now: Instant, path: PathId, probe: Probe) -> Option<Transition> {
        if let Probe::Answered { rtt } = probe {
            // Fails only for a path that does not exist, which `on_sample` also ignores.
            let _ = self.swrr.update_path_rtt(path, now, millis(rtt));
        }
        self.on_sample(now, path, probe)
    }

    fn on_sample(&mut self, now: Instant, path: PathId, probe: Probe) -> Option<Transition> {
        let role = if self.has_other(path) { Role::OneOfMany } else { Role::Last };
        let slo = self.rule.slo(self.best_p95());
        let known = self.paths.get_mut(path.index())?;
        let loss = if outcome(probe) == Outcome::Bad { 1.0 } else { 0.0 };
        let transition = known.stats.on_probe(now, probe, slo, role);
        match transition.map(|transition| transition.to) {
            Some(PathState::Inactive) => known.trust = Trust::Lost,
            Some(PathState::Active) if known.trust == Trust::Lost => {
                known.trust = Trust::Full;
                self.restart_ramp(now, path);
            }
            _ => {}
        }
        let health = self.paths[path.index()].stats.state().health().unwrap_or(Health::Healthy);
        // The path is known and the numbers are in range, so neither call fails.
        let _ = self.swrr.update_path_loss(path, now, loss);
        let _ = self.swrr.set_health(path, now, health);
        transition
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

    fn best_p95(&self) -> Duration {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        usable.filter_map(|path| path.stats.p95()).min().unwrap_or_default()
    }
}

fn outcome(probe: Probe) -> Outcome {
    match probe {
        Probe::Answered { .. } => Outcome::Good,
        Probe::Lost | Probe::Failed => Outcome::Bad,
    }
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
        let back = Instant::from_secs(2);
        paths.on_time(back);
        (0..3).for_each(|_| {
            paths.on_probe(back, FAR, Probe::Answered { rtt: Duration::from_millis(10) });
        });
        assert_eq!(paths.statuses()[1].state, PathState::Active);
        let far = (0..100).filter(|_| use_once(&mut paths, 2_000) == FAR).count();
        assert!((1..=15).contains(&far), "a tenth of its weight is a tenth of the picks, not {far} of 100");
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
