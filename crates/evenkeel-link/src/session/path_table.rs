//! The paths of a session and the schedulers that share traffic among them.
//!
//! One scheduler picks a path per own stream of a flow, one per bonded chunk and one per datagram of a striped flow, both
//! charged in bytes. All get the same samples. A path is eligible while it is connected, usable and not silent; if there is no such path, the
//! connected path with the shortest round trip that is not silent is picked, whatever its state. Of the eligible paths,
//! candidates take part in a pick only while no active path is healthy, and for bonded data, paths out of the bonded lane
//! only while no other path takes part.

use std::collections::BTreeSet;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondPath, BondedLane, IntervalSample, PathState, Probe, Role, Transition};
use evenkeel_policy::swrr::{Reweight, ShareWindow, SwrrError, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};

use super::active_set::ActiveSet;
use super::config::SessionConfig;
use super::datagrams::{DEADLINE_MAX, ReleaseRule, deadline};
use super::link_path::{LinkPath, OneWayDelay, millis};
use super::output::PathReplacement;
use super::status::{ShareStatus, TrafficRole};
use crate::flow::{DatagramMode, FlowLane};
use crate::frame::{CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES_MAX};

/// Bytes of bonded frames that may wait for a connection: two chunks.
///
/// Queued chunks cannot change their path any more, so the queue is short.
pub(super) const BONDED_QUEUE_MAX: u64 = 2 * (CHUNK_BYTES_MAX + CHUNK_HEADER_BYTES_MAX) as u64;

/// Number of copies of a datagram or a redundant chunk, if there are as many paths.
const COPIES_MIN: usize = 2;

/// The paths of a session.
#[derive(Debug)]
pub(super) struct PathTable {
    /// In the order of their ids.
    paths: Vec<LinkPath>,
    flow_scheduler: SwrrScheduler,
    bonded_scheduler: SwrrScheduler,
    datagram_scheduler: SwrrScheduler,
    pub(super) active_set: ActiveSet,
    pub(super) bonded_lane: BondedLane,
    pub(super) bonded_exits: u64,
    pub(super) reweights_applied: u64,
    pub(super) reweights_suppressed: u64,
}

impl PathTable {
    pub(super) fn new(config: &SessionConfig) -> Self {
        Self {
            paths: Vec::new(),
            flow_scheduler: SwrrScheduler::new(config.swrr.clone()),
            bonded_scheduler: SwrrScheduler::new(config.swrr.clone()),
            datagram_scheduler: SwrrScheduler::new(config.swrr.clone()),
            active_set: ActiveSet::new(config),
            bonded_lane: BondedLane::new(config.bond),
            bonded_exits: 0,
            reweights_applied: 0,
            reweights_suppressed: 0,
        }
    }

    pub(super) fn add(&mut self, now: Instant, mut path: LinkPath) -> Result<(), SwrrError> {
        self.flow_scheduler.add_path(path.id)?;
        self.bonded_scheduler.add_path(path.id)?;
        self.datagram_scheduler.add_path(path.id)?;
        self.bonded_lane.add_path(now, path.id);
        path.role = self.active_set.role_of_new(&mut self.paths, path.id);
        let index = self.paths.partition_point(|known| known.id < path.id);
        self.paths.insert(index, path);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: PathId) {
        self.paths.retain(|known| known.id != path);
        self.bonded_lane.remove_path(path);
        for scheduler in [&mut self.flow_scheduler, &mut self.bonded_scheduler, &mut self.datagram_scheduler]
        {
            // Fails only for an unknown path.
            let _ = scheduler.remove_path(path);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LinkPath> {
        self.paths.iter()
    }

    pub(super) fn ids(&self) -> Vec<PathId> {
        self.paths.iter().map(|path| path.id).collect()
    }

    pub(super) fn get(&self, path: PathId) -> Option<&LinkPath> {
        self.paths.iter().find(|known| known.id == path)
    }

    pub(super) fn get_mut(&mut self, path: PathId) -> Option<&mut LinkPath> {
        self.paths.iter_mut().find(|known| known.id == path)
    }

    pub(super) fn connected(&self) -> impl Iterator<Item = &LinkPath> {
        self.paths.iter().filter(|path| path.is_connected)
    }

    /// Returns the longest probe timeout of the connected paths.
    pub(super) fn pto_max(&self) -> Duration {
        self.connected().map(LinkPath::pto).max().unwrap_or_default()
    }

    /// Returns the longest round trip of the eligible paths, candidates included.
    pub(super) fn rtt_max(&self, now: Instant) -> Option<Duration> {
        self.paths.iter().filter(|path| path.is_eligible(now)).filter_map(LinkPath::rtt).max()
    }

    /// Returns the shortest smoothed round trip of the usable paths.
    pub(super) fn best_rtt(&self) -> Option<Duration> {
        let usable = self.connected().filter(|path| path.stats.state().is_usable());
        usable.filter_map(|path| path.stats.rtt()).min()
    }

    /// Reports whether another path can carry data.
    pub(super) fn has_alternative(&self, now: Instant, path: PathId) -> bool {
        let is_other = |other: &LinkPath| other.id != path;
        self.paths.iter().any(|other| is_other(other) && other.is_eligible(now))
            || fallback(&self.paths, now, is_other).is_some()
    }

    /// Returns the longest probe timeout of the healthy paths other than `path`; `None` if there is none.
    pub(super) fn healthy_pto(&self, now: Instant, path: PathId) -> Option<Duration> {
        let is_healthy = |other: &&LinkPath| {
            other.id != path && other.is_eligible(now) && other.stats.state() == PathState::Active
        };
        self.paths.iter().filter(is_healthy).map(LinkPath::pto).max()
    }

    /// Picks the path of a flow's own stream, other than `except`.
    pub(super) fn pick_for_flow(
        &mut self,
        now: Instant,
        lane: FlowLane,
        except: Option<PathId>,
    ) -> Option<PathId> {
        let preference = self.preference(now, lane, except);
        let paths = &self.paths;
        let bonded_lane = &self.bonded_lane;
        let may_take = |path: &LinkPath| Some(path.id) != except;
        let eligible = |id| {
            let path = paths.iter().find(|path| path.id == id);
            path.is_some_and(|path| {
                path.is_eligible(now) && may_take(path) && preference.allows(path, bonded_lane)
            })
        };
        self.flow_scheduler.pick_where(eligible).or_else(|| fallback(paths, now, may_take))
    }

    /// Returns which eligible paths other than `except` take part in a pick: without candidates, only bonded ones, or all.
    fn preference(&self, now: Instant, lane: FlowLane, except: Option<PathId>) -> Preference {
        let eligible = || self.paths.iter().filter(|path| Some(path.id) != except && path.is_eligible(now));
        let without_candidates = eligible().any(is_healthy_active);
        let any = Preference { without_candidates, only_bonded: false };
        let only_bonded = Preference { only_bonded: true, ..any };
        let has_member = eligible().any(|path| only_bonded.allows(path, &self.bonded_lane));
        if lane == FlowLane::Bonded && has_member { only_bonded } else { any }
    }

    /// Reports whether an active path is healthy, so that candidates carry no traffic.
    pub(super) fn has_healthy_active(&self, now: Instant) -> bool {
        self.paths.iter().any(|path| path.is_eligible(now) && is_healthy_active(path))
    }

    /// Reports whether a path is active and healthy.
    pub(super) fn is_healthy_active(&self, path: PathId) -> bool {
        self.get(path).is_some_and(|path| path.is_connected && is_healthy_active(path))
    }

    /// Replaces active paths by candidates where necessary.
    pub(super) fn review_active_set(&mut self, now: Instant) -> Vec<PathReplacement> {
        self.active_set.review(now, &mut self.paths)
    }

    /// Returns the measurements of the active paths since the last review of the bonded lane, `elapsed` ago.
    pub(super) fn bond_measurements(&mut self, now: Instant, elapsed: Duration) -> Vec<BondPath> {
        let measured = self.paths.iter_mut().map(|path| {
            let is_used = path.role == TrafficRole::Active && path.is_eligible(now);
            path.bond_measurement(now, elapsed).filter(|_| is_used)
        });
        measured.flatten().collect()
    }

    /// Picks the path of a bonded chunk whose frame has `len` bytes, other than `except` if there is another.
    pub(super) fn pick_for_chunk(
        &mut self,
        now: Instant,
        len: u64,
        except: Option<PathId>,
    ) -> Option<PathId> {
        let except = except.filter(|path| self.has_alternative(now, *path));
        let preference = self.preference(now, FlowLane::Bonded, except);
        let paths = &self.paths;
        let bonded_lane = &self.bonded_lane;
        let may_take = |path: &LinkPath| Some(path.id) != except && path.takes_chunk(len);
        let eligible = |id| {
            let path = paths.iter().find(|path| path.id == id);
            path.is_some_and(|path| {
                path.is_eligible(now) && may_take(path) && preference.allows(path, bonded_lane)
            })
        };
        self.bonded_scheduler.pick_sized(Cost(len), eligible).or_else(|| fallback(paths, now, may_take))
    }

    /// Picks the path of a datagram of a striped flow whose fragments have `len` bytes.
    pub(super) fn pick_for_datagram(&mut self, now: Instant, len: u64) -> Option<PathId> {
        let lane = FlowLane::Datagram(DatagramMode::Stripe);
        let preference = self.preference(now, lane, None);
        let rtt_max = self.stripe_rtt_max(now);
        let paths = &self.paths;
        let bonded_lane = &self.bonded_lane;
        let may_take = |path: &LinkPath| path.takes_datagram(len);
        let eligible = |id| {
            let path = paths.iter().find(|path| path.id == id);
            path.is_some_and(|path| {
                path.is_eligible(now)
                    && may_take(path)
                    && preference.allows(path, bonded_lane)
                    && path.rtt() <= rtt_max
            })
        };
        self.datagram_scheduler.pick_sized(Cost(len), eligible).or_else(|| fallback(paths, now, may_take))
    }

    /// Returns the longest round trip of a path that may carry datagrams of a striped flow: datagrams of a slower one
    /// would arrive after the others have been released.
    fn stripe_rtt_max(&self, now: Instant) -> Option<Duration> {
        let eligible = self.paths.iter().filter(|path| path.is_eligible(now));
        Some(eligible.filter_map(LinkPath::rtt).min()? + DEADLINE_MAX)
    }

    /// Returns the two paths of a redundant flow: healthy ones first, then active ones, then by round trip.
    pub(super) fn best_two(&self, now: Instant) -> Vec<PathId> {
        let mut eligible: Vec<&LinkPath> = self.paths.iter().filter(|path| path.is_eligible(now)).collect();
        let rank = |path: &&LinkPath| {
            let is_unhealthy = path.stats.state() != PathState::Active;
            (is_unhealthy, path.role == TrafficRole::Candidate, path.rtt())
        };
        eligible.sort_by_key(rank);
        let best: Vec<PathId> = eligible.iter().take(COPIES_MIN).map(|path| path.id).collect();
        if best.is_empty() { fallback(&self.paths, now, |_| true).into_iter().collect() } else { best }
    }

    /// Returns the paths for the copies of a datagram: all active ones that have room, and the fastest candidate if there
    /// is only one active path.
    pub(super) fn paths_for_copies(&self, now: Instant, len: u64) -> Vec<PathId> {
        let mut eligible: Vec<&LinkPath> = self.paths.iter().filter(|path| path.is_eligible(now)).collect();
        eligible.sort_by_key(|path| (path.role == TrafficRole::Candidate, path.rtt()));
        let active = eligible.iter().filter(|path| path.role == TrafficRole::Active).count();
        eligible.truncate(active.max(COPIES_MIN));
        let has_room = |path: &&&LinkPath| path.takes_datagram(len);
        let paths: Vec<PathId> = eligible.iter().filter(has_room).map(|path| path.id).collect();
        if !eligible.is_empty() {
            return paths;
        }
        fallback(&self.paths, now, |path| path.takes_datagram(len)).into_iter().collect()
    }

    /// Reports whether a flow that is pinned to a path stays there.
    pub(super) fn keeps_pinned(&self, now: Instant, path: PathId) -> bool {
        self.get(path).is_some_and(|path| {
            path.is_eligible(now) && (is_healthy_active(path) || !self.has_healthy_active(now))
        })
    }

    /// Returns the conditions under which missing datagrams of a striped flow are given up; `used` are the paths that have
    /// delivered datagrams of it.
    ///
    /// The difference between the delays of the paths is measured by the datagrams themselves; a path that has delivered
    /// none lately may be slower by the whole difference between the round trips.
    pub(super) fn release_rule(&self, now: Instant, used: &BTreeSet<PathId>) -> ReleaseRule {
        let rtt_max = self.stripe_rtt_max(now);
        let is_used = |path: &&LinkPath| {
            let is_expected = path.role == TrafficRole::Active || used.contains(&path.id);
            is_expected && path.is_eligible(now) && path.rtt() <= rtt_max
        };
        let delivering: Vec<&LinkPath> = self.paths.iter().filter(is_used).collect();
        let delays: Vec<OneWayDelay> = delivering.iter().filter_map(|path| path.one_way(now)).collect();
        let deadline = if delays.len() == delivering.len() {
            let means = || delays.iter().map(|delay| delay.mean);
            let spread = means().fold(f64::MIN, f64::max) - means().fold(f64::MAX, f64::min);
            let jitter = delays.iter().map(|delay| delay.deviation).fold(0.0, f64::max);
            deadline(millis(spread), millis(jitter))
        } else {
            let rtts = || delivering.iter().filter_map(|path| path.rtt());
            let spread = rtts().max().unwrap_or_default() - rtts().min().unwrap_or_default();
            let jitter = delivering.iter().filter_map(|path| path.rtt_deviation()).max().unwrap_or_default();
            deadline(spread, jitter)
        };
        ReleaseRule { paths: delivering.iter().map(|path| path.id).collect(), deadline }
    }

    /// Records the outcome of a probe or of an attempt to connect.
    pub(super) fn on_probe(&mut self, now: Instant, path: PathId, probe: Probe) -> Option<Transition> {
        let role = self.role(path);
        let transition = self.get_mut(path)?.stats.on_probe(now, probe, role);
        self.apply(now, path, transition)
    }

    /// Records the sample of an interval.
    pub(super) fn on_interval(
        &mut self,
        now: Instant,
        path: PathId,
        sample: IntervalSample,
    ) -> Option<Transition> {
        let role = self.role(path);
        let best_rtt = self.best_rtt();
        let transition = self.get_mut(path)?.stats.on_interval(now, sample, best_rtt, role);
        for scheduler in [&mut self.flow_scheduler, &mut self.bonded_scheduler, &mut self.datagram_scheduler]
        {
            let rtt_ms = sample.rtt.map(|rtt| rtt.as_secs_f64() * 1_000.0);
            // They fail only for an unknown path or a measurement that is not finite.
            let by_rtt = rtt_ms.map(|rtt_ms| scheduler.update_path_rtt(path, now, rtt_ms));
            let by_loss = scheduler.update_path_loss(path, now, sample.loss_ratio());
            for outcome in by_rtt.into_iter().chain([by_loss]).flatten() {
                self.reweights_applied += u64::from(outcome == Reweight::Applied);
                self.reweights_suppressed += u64::from(outcome == Reweight::Suppressed);
            }
        }
        self.active_set.on_sample(now, &mut self.paths, path);
        self.apply(now, path, transition)
    }

    /// Records that nothing was acknowledged for two probe timeouts.
    pub(super) fn on_silence(&mut self, now: Instant, path: PathId) -> Option<Transition> {
        let role = self.role(path);
        let transition = self.get_mut(path)?.stats.on_silence(now, role);
        self.apply(now, path, transition)
    }

    /// Starts probing an inactive path that has a new connection.
    pub(super) fn on_connection(&mut self, now: Instant, path: PathId) -> Option<Transition> {
        let transition = self.get_mut(path)?.stats.on_connection();
        self.apply(now, path, transition)
    }

    /// Starts probing a path whose backoff has elapsed.
    pub(super) fn on_time(&mut self, now: Instant, path: PathId) -> Option<Transition> {
        let transition = self.get_mut(path)?.stats.on_time(now);
        self.apply(now, path, transition)
    }

    fn role(&self, path: PathId) -> Role {
        let is_other = |other: &LinkPath| other.id != path && other.stats.state().is_usable();
        if self.connected().any(is_other) { Role::OneOfMany } else { Role::Last }
    }

    /// Passes a change of state on to the schedulers.
    fn apply(&mut self, now: Instant, path: PathId, change: Option<Transition>) -> Option<Transition> {
        let transition = change?;
        for scheduler in [&mut self.flow_scheduler, &mut self.bonded_scheduler, &mut self.datagram_scheduler]
        {
            // They fail only for an unknown path.
            let _ = match transition.to.health() {
                Some(health) => {
                    let _ = scheduler.activate(path, now);
                    scheduler.set_health(path, now, health).map(|_| ())
                }
                None => scheduler.deactivate(path),
            };
        }
        let counters = &mut self.get_mut(path)?.counters;
        match (transition.from.is_usable(), transition.to.is_usable()) {
            (false, true) => counters.activated += 1,
            (true, false) => counters.deactivated += 1,
            _ => {}
        }
        Some(transition)
    }

    /// Continues the stepwise increases of weights.
    pub(super) fn refresh(&mut self, now: Instant) {
        for scheduler in [&mut self.flow_scheduler, &mut self.bonded_scheduler, &mut self.datagram_scheduler]
        {
            let outcome = scheduler.refresh(now);
            self.reweights_applied += u64::from(outcome == Reweight::Applied);
        }
    }

    /// Restarts the sequences of all schedulers at position `phase`.
    pub(super) fn reset_weights(&mut self, phase: u64) {
        self.flow_scheduler.reset_weights_at(phase);
        self.bonded_scheduler.reset_weights_at(phase);
        self.datagram_scheduler.reset_weights_at(phase);
    }

    pub(super) fn weight(&self, path: PathId) -> Option<u32> {
        self.bonded_scheduler.weight(path)
    }

    pub(super) fn flow_share(&self, path: PathId) -> Option<ShareStatus> {
        share(self.flow_scheduler.last_window()?, path)
    }

    pub(super) fn bonded_share(&self, path: PathId) -> Option<ShareStatus> {
        share(self.bonded_scheduler.last_window()?, path)
    }

    /// Returns the last complete window of the scheduler whose shares deviate most from the expected ones.
    pub(super) fn most_deviant_window(&self) -> Option<&ShareWindow> {
        self.windows().max_by(|one, other| one.mean_deviation().total_cmp(&other.mean_deviation()))
    }

    /// Returns the last complete windows of all schedulers.
    pub(super) fn windows(&self) -> impl Iterator<Item = &ShareWindow> {
        [&self.flow_scheduler, &self.bonded_scheduler, &self.datagram_scheduler]
            .into_iter()
            .filter_map(|swrr| swrr.last_window())
    }
}

fn share(window: &ShareWindow, path: PathId) -> Option<ShareStatus> {
    let share = window.shares().iter().find(|share| share.path == path)?;
    Some(ShareStatus { observed: share.observed, theory: share.theory })
}

/// Condition for the paths of a pick beyond their eligibility.
#[derive(Clone, Copy, Debug)]
struct Preference {
    without_candidates: bool,
    only_bonded: bool,
}

impl Preference {
    fn allows(self, path: &LinkPath, bonded_lane: &BondedLane) -> bool {
        (path.role == TrafficRole::Active || !self.without_candidates)
            && (!self.only_bonded || bonded_lane.has(path.id))
    }
}

fn is_healthy_active(path: &LinkPath) -> bool {
    path.role == TrafficRole::Active && path.stats.state() == PathState::Active
}

/// Returns the fastest path that answers, whatever its state; `None` if a path is eligible.
fn fallback(paths: &[LinkPath], now: Instant, may_take: impl Fn(&LinkPath) -> bool) -> Option<PathId> {
    if paths.iter().any(|path| path.is_eligible(now)) {
        return None;
    }
    let answering = paths.iter().filter(|path| path.is_connected && !path.is_silent(now) && may_take(path));
    answering.min_by_key(|path| path.rtt().unwrap_or(Duration::MAX)).map(|path| path.id)
}
