//! Pick path: which way to the chosen node.
//!
//! Bounds: over the paths in use, those of [`swrr`](evenkeel_policy::swrr); a path that was switched off carries one
//! request at a time until enough were answered, and nothing during its backoff while another path is left.

use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{PathRule, PathState, PathStats, Probe, Role, Transition};
use evenkeel_policy::swrr::{Health, SwrrError, SwrrRules, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};

/// One way to a node, as it is known when the node is added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathSpec {
    /// Its round trip, if somebody measured it.
    pub rtt: Option<Duration>,
}

/// How one path does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathStatus {
    /// The path.
    pub path: PathId,
    /// Whether it is fit for use.
    pub state: PathState,
    /// The average round trip.
    pub rtt: Option<Duration>,
    /// The weight in force.
    pub weight: u32,
    /// How many requests it carries.
    pub in_flight: u32,
}

/// The ways to one node; a node may do without.
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

/// Whether a path has been switched off since it was last well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Given,
    Lost,
}

impl Path {
    /// A new path is used at once, for want of a better one; one that failed has to be tried out first.
    fn is_usable(&self) -> bool {
        self.stats.state().is_usable() || (self.is_on_trial() && self.trust == Trust::Given)
    }

    fn may_carry(&self) -> bool {
        self.is_usable() || (self.is_on_trial() && self.in_flight == 0)
    }

    fn is_on_trial(&self) -> bool {
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
            paths.push(Path { stats, trust: Trust::Given, in_flight: 0 });
        }
        Ok(Self { swrr, rule, paths })
    }

    /// Chooses the way of a request and counts it; `None` when the node has no paths to choose from.
    pub(crate) fn pick(&mut self, now: Instant) -> Option<PathId> {
        self.swrr.refresh(now);
        let paths = &self.paths;
        let path =
            self.swrr.pick_where(|path| paths[path.index()].may_carry()).or_else(|| self.swrr.pick())?;
        self.paths[path.index()].in_flight += 1;
        Some(path)
    }

    /// Notes that a request is off the path.
    pub(crate) fn release(&mut self, path: PathId) {
        if let Some(path) = self.paths.get_mut(path.index()) {
            path.in_flight -= 1;
        }
    }

    /// Takes in that a request was answered; how long the node took says nothing about the path.
    pub(crate) fn on_answer(&mut self, now: Instant, path: PathId) -> Option<Transition> {
        let rtt = self.swrr.rtt(path).unwrap_or_default();
        self.on_sample(now, path, Probe::Answered { rtt })
    }

    /// Takes in what became of a probe.
    pub(crate) fn on_probe(&mut self, now: Instant, path: PathId, probe: Probe) -> Option<Transition> {
        if let Probe::Answered { rtt } = probe {
            // Refused only for a path that does not exist, which `on_sample` leaves alone too.
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
                known.trust = Trust::Given;
                self.restart_ramp(now, path);
            }
            _ => {}
        }
        let health = self.paths[path.index()].stats.state().health().unwrap_or(Health::Healthy);
        // The path is known and the numbers are in range, so neither is refused.
        let _ = self.swrr.update_path_loss(path, now, loss);
        let _ = self.swrr.set_health(path, now, health);
        transition
    }

    /// Lets a path that was off start small.
    fn restart_ramp(&mut self, now: Instant, path: PathId) {
        // The path is known, so neither is refused.
        let _ = self.swrr.deactivate(path);
        let _ = self.swrr.activate(path, now);
    }

    /// Ends backoffs that are over.
    pub(crate) fn on_time(&mut self, now: Instant) -> Vec<(PathId, Transition)> {
        let numbered = (0..).map(PathId).zip(&mut self.paths);
        numbered.filter_map(|(id, path)| path.stats.on_time(now).map(|transition| (id, transition))).collect()
    }

    /// When the next backoff is over.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.paths.iter().filter_map(|path| path.stats.retry_at()).min()
    }

    /// Tells whether the node can be reached without this path.
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

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::swrr::PATHS_MAX;

    const NEAR: PathId = PathId(0);
    const FAR: PathId = PathId(1);

    #[test]
    fn new_paths_share_by_inverse_round_trip_from_the_first_request() {
        let mut paths = paths(&[10, 20]);
        let near = (0..300).filter(|_| use_once(&mut paths, 0) == NEAR).count();
        assert_eq!(near, 200);
    }

    #[test]
    fn a_path_that_fails_twice_is_left_alone_and_comes_back_one_request_at_a_time() {
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
    fn a_path_that_is_well_again_starts_small() {
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
    fn the_last_path_is_used_however_it_fails() {
        let mut paths = paths(&[10]);
        for _ in 0..10 {
            paths.on_probe(Instant::ORIGIN, NEAR, Probe::Failed);
        }
        assert_eq!(paths.pick(Instant::ORIGIN), Some(NEAR));
    }

    #[test]
    fn a_node_has_at_most_so_many_paths() {
        let specs = vec![PathSpec::default(); PATHS_MAX + 1];
        let made = Paths::new(&specs, &SwrrRules::default(), PathRule::default(), Instant::ORIGIN);
        assert_eq!(made.unwrap_err(), SwrrError::TooManyPaths { paths_max: PATHS_MAX });
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
