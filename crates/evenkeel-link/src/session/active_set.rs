//! The paths that carry traffic, and the candidates that may replace them.
//!
//! With `paths_active_max`, further paths are candidates: connected and probed, but without traffic while an active path
//! is healthy. A candidate replaces an active path that cannot carry traffic, or one whose round trips are worse than its
//! own by the margin of the prune rule.
//!
//! Guarantees: at most `paths_active_max` paths are active; a free place goes to a usable candidate at the next tick; two
//! replacements of usable paths are at least `prune_interval` apart; a path that was pruned is compared by the p95 that it
//! had in use, for [`PRUNED_MEMORY`].

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{ActivePath, Alternative, PathRule, PathState, PruneRule, Swap};
use evenkeel_policy::time::{Duration, Instant};

use super::config::SessionConfig;
use super::link_path::LinkPath;
use super::output::{PathReplacement, ReplacementCause};
use super::status::{ReplacementCounts, TrafficRole};

/// Time for which an active path must be unable to carry traffic before a candidate replaces it. Candidates carry traffic
/// meanwhile if no active path is healthy.
const TAKEOVER_AFTER: Duration = Duration::from_secs(2);

/// Time for which the p95 of a pruned path counts, beside that of its probes.
///
/// Probes of an idle path do not meet the queue that its own traffic causes: without this memory, two busy paths would
/// replace each other forever.
const PRUNED_MEMORY: Duration = Duration::from_secs(600);

/// Rule and history of the replacements.
#[derive(Debug)]
pub(super) struct ActiveSet {
    active_max: usize,
    rule: PruneRule,
    path_rule: PathRule,
    /// Time of the last replacement of a usable path.
    swapped_at: Option<Instant>,
    pub(super) replacements: ReplacementCounts,
}

/// A path's p95 when it was pruned.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrunedP95 {
    at: Instant,
    p95: Duration,
}

impl ActiveSet {
    pub(super) fn new(config: &SessionConfig) -> Self {
        Self {
            active_max: config.paths_active_max as usize,
            rule: config.prune,
            path_rule: config.path,
            swapped_at: None,
            replacements: ReplacementCounts::default(),
        }
    }

    /// Returns the role of a new path, which may take the place of an active one with a higher id.
    ///
    /// So both sides begin with the same paths, in whatever order they connect.
    pub(super) fn role_of_new(&self, paths: &mut [LinkPath], path: PathId) -> TrafficRole {
        if count_active(paths) < self.active_max {
            return TrafficRole::Active;
        }
        let last =
            paths.iter_mut().filter(|known| known.role == TrafficRole::Active).max_by_key(|known| known.id);
        let Some(last) = last.filter(|last| path < last.id) else { return TrafficRole::Candidate };
        last.set_role(TrafficRole::Candidate);
        TrafficRole::Active
    }

    /// Compares an active path with the candidates after a sample.
    pub(super) fn on_sample(&self, now: Instant, paths: &mut [LinkPath], path: PathId) {
        if paths.len() <= self.active_max {
            return;
        }
        let alternatives = alternatives(now, paths);
        let known = paths.iter_mut().find(|known| known.id == path && known.role == TrafficRole::Active);
        if let Some(known) = known
            && let Some(p95) = self.p95_in_use(now, known)
        {
            known.streak = self.rule.on_sample(known.streak, p95, &alternatives);
        }
    }

    /// Returns the p95 with which an active path is compared. Round trips of a backlogged path contain the queue that its
    /// own traffic causes, so `slow_min` (100 ms) is subtracted as an estimate of that queue.
    fn p95_in_use(&self, now: Instant, path: &LinkPath) -> Option<Duration> {
        let queue = if path.is_backlogged(now) { self.path_rule.slow_min() } else { Duration::ZERO };
        Some(path.stats.p95()?.saturating_sub(queue))
    }

    /// Replaces paths that cannot carry traffic or are worse than a candidate; returns the replacements.
    pub(super) fn review(&mut self, now: Instant, paths: &mut [LinkPath]) -> Vec<PathReplacement> {
        for path in paths.iter_mut() {
            let ineligible_since = path.ineligible_since.unwrap_or(now);
            path.ineligible_since = (!path.is_eligible(now)).then_some(ineligible_since);
        }
        let mut replacements = Vec::new();
        while let Some(replacement) = self.take_over(now, paths) {
            self.replacements.unusable += u64::from(replacement.removed.is_some());
            replacements.push(replacement);
        }
        if let Some(swap) = self.swap(now, paths) {
            self.replacements.slower += 1;
            replacements.push(swap);
        }
        replacements
    }

    /// Gives a free place, or that of a path that cannot carry traffic, to the fastest candidate that can.
    fn take_over(&self, now: Instant, paths: &mut [LinkPath]) -> Option<PathReplacement> {
        let is_free = count_active(paths) < self.active_max;
        let is_out = |path: &&LinkPath| {
            path.role == TrafficRole::Active
                && path.ineligible_since.is_some_and(|since| TAKEOVER_AFTER <= now.since(since))
        };
        let removed = paths.iter().find(is_out).map(|path| path.id).filter(|_| !is_free);
        if !is_free && removed.is_none() {
            return None;
        }
        let candidates =
            paths.iter().filter(|path| path.role == TrafficRole::Candidate && path.is_eligible(now));
        let added = candidates.min_by_key(|path| (path.stats.p95().unwrap_or(Duration::MAX), path.id))?.id;
        exchange(paths, removed, added);
        Some(PathReplacement { removed, added, cause: ReplacementCause::Unusable })
    }

    /// Replaces the slowest path that the prune rule names, if the last replacement is long enough ago.
    fn swap(&mut self, now: Instant, paths: &mut [LinkPath]) -> Option<PathReplacement> {
        if paths.len() <= self.active_max
            || self.swapped_at.is_some_and(|swapped_at| !self.rule.is_due(swapped_at, now))
        {
            return None;
        }
        let active = |path: &LinkPath| {
            let is_active = path.role == TrafficRole::Active;
            let p95 = self.p95_in_use(now, path).filter(|_| is_active)?;
            Some(ActivePath { path: path.id, p95, streak: path.streak })
        };
        let used: Vec<ActivePath> = paths.iter().filter_map(active).collect();
        let alternatives = alternatives(now, paths);
        let Swap { prune, add } = self.rule.swap(&used, &alternatives)?;
        let added_p95 = alternatives.iter().find(|alternative| alternative.path == add)?.p95;
        let p95 = used.iter().find(|active| active.path == prune)?.p95;
        let pruned = paths.iter_mut().find(|path| path.id == prune)?;
        pruned.pruned = Some(PrunedP95 { at: now, p95: pruned.stats.p95()? });
        self.swapped_at = Some(now);
        exchange(paths, Some(prune), add);
        let cause = ReplacementCause::Slower { p95, added_p95 };
        Some(PathReplacement { removed: Some(prune), added: add, cause })
    }
}

fn count_active(paths: &[LinkPath]) -> usize {
    paths.iter().filter(|path| path.role == TrafficRole::Active).count()
}

/// Returns the candidates that may replace a slower path.
fn alternatives(now: Instant, paths: &[LinkPath]) -> Vec<Alternative> {
    let is_healthy = |path: &&LinkPath| {
        path.role == TrafficRole::Candidate
            && path.is_eligible(now)
            && path.stats.state() == PathState::Active
    };
    let alternative = |path: &LinkPath| {
        let remembered = path.pruned.filter(|pruned| now.since(pruned.at) < PRUNED_MEMORY);
        let p95 = path.stats.p95()?.max(remembered.map_or(Duration::ZERO, |pruned| pruned.p95));
        Some(Alternative { path: path.id, p95, answered: path.stats.answered() })
    };
    paths.iter().filter(is_healthy).filter_map(alternative).collect()
}

fn exchange(paths: &mut [LinkPath], removed: Option<PathId>, added: PathId) {
    for path in paths {
        if Some(path.id) == removed {
            path.set_role(TrafficRole::Candidate);
        } else if path.id == added {
            path.set_role(TrafficRole::Active);
        }
    }
}
