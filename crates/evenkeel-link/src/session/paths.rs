//! Paths that come, go, fall silent or slow down, and the data that must leave them.

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{PathState, Probe, Transition};
use evenkeel_policy::swrr::SwrrError;
use evenkeel_policy::time::{Duration, Instant};

use super::acks::Urgency;
use super::flow_table::LinkFlow;
use super::link_path::LinkPath;
use super::send_half::SentChunk;
use super::status::TrafficRole;
use super::{LinkSession, Observation, OpenFlowError, SessionEvent, StreamKey, Transmit};
use crate::flow::{FlowEnd, FlowId, FlowLane, LaneSupport, ResetCode, ResetReason};
use crate::path_signals::PathSignals;

/// Shortest time after which an acknowledgement is overdue.
const REQUEST_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// Number of times that the pause between requests doubles.
const REQUEST_DOUBLINGS_MAX: u32 = 3;

/// Time for which a flow does not return from a candidate because a healthy path stalled it.
const HEDGED_MAX: Duration = Duration::from_secs(60);

impl LinkSession {
    /// Adds a path without a connection.
    pub fn add_path(&mut self, now: Instant, path: PathId, name: &str) -> Result<(), SwrrError> {
        self.paths.add(now, LinkPath::new(path, name, self.config.path, now))?;
        let transition = self.paths.on_time(now, path);
        self.report(now, path, transition);
        Ok(())
    }

    /// Returns the name of a path.
    pub fn path_name(&self, path: PathId) -> Option<&str> {
        self.paths.get(path).map(|known| known.name.as_str())
    }

    /// Removes a path; its connection counts as lost.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.drop_connection(now, path);
        self.paths.remove(path);
        self.wake_all();
    }

    /// Records which lanes the peer has; flows of others are reset.
    pub fn handle_peer_lanes(&mut self, now: Instant, lanes: LaneSupport) {
        self.peer_lanes = lanes;
        let is_unsupported = |flow: &LinkFlow| !lanes.has(flow.lane);
        let unsupported = self.flows.iter().filter(|(_, flow)| is_unsupported(flow));
        let unsupported: Vec<(FlowId, FlowLane)> = unsupported.map(|(id, flow)| (id, flow.lane)).collect();
        for (id, lane) in unsupported {
            let reason = OpenFlowError::LaneUnsupported { lane }.to_string();
            self.end_flow(now, id, FlowEnd::Reset(ResetReason::new(ResetCode::REFUSED, reason)));
        }
    }

    /// Records that a path has a new authenticated connection, which replaces an earlier one.
    ///
    /// A replacement changes neither weights nor states, and no flow changes its path: the picks that follow are those
    /// that would have followed.
    pub fn handle_path_up(&mut self, now: Instant, path: PathId) {
        let is_reconnected = self.has_been_connected && self.paths.connected().next().is_none();
        let interval = self.paths.get(path).filter(|path| path.is_connected).map(LinkPath::interval);
        let at_home: Vec<FlowId> = self.flows_at_home(path);
        self.drop_connection(now, path);
        let Some(known) = self.paths.get_mut(path) else { return };
        known.set_connected(now, true);
        if let Some(interval) = interval {
            known.resume_interval(interval);
        }
        for id in at_home {
            self.flows.update(id, |flow| flow.home = Some(path));
        }
        self.alive_at = self.alive_at.max(now);
        self.has_been_connected = true;
        if is_reconnected {
            self.paths.reset_weights(self.phase);
            for id in self.flows.ids() {
                self.acks.mark(id, Urgency::AtOnce);
            }
        }
        let transition = self.paths.on_connection(now, path);
        self.report(now, path, transition);
        self.recover(now);
        self.wake_all();
    }

    /// Records that the connection of a path was lost; everything that it did not deliver is sent again on another path.
    pub fn handle_path_down(&mut self, now: Instant, path: PathId) {
        self.drop_connection(now, path);
        self.handle_failure(now, path);
    }

    /// Records that the peer closed the connection of a path because it has a newer one, which this side will get
    /// soon: that is no failure of the path.
    pub fn handle_connection_replaced(&mut self, now: Instant, path: PathId) {
        self.drop_connection(now, path);
    }

    /// Records a failed attempt to connect, or the loss of a connection.
    pub fn handle_failure(&mut self, now: Instant, path: PathId) {
        let transition = self.paths.on_probe(now, path, Probe::Failed);
        self.report(now, path, transition);
    }

    fn drop_connection(&mut self, now: Instant, path: PathId) {
        let Some(known) = self.paths.get_mut(path).filter(|path| path.is_connected) else { return };
        known.set_connected(now, false);
        self.transmits.retain(|transmit| transmit.path() != path);
        self.packets.retain(|datagram| datagram.path != path);
        for id in self.flows_at_home(path) {
            self.release_home(id);
        }
        for id in self.flows.ids() {
            self.flows.update(id, |flow| flow.send.leave_path(path));
        }
        self.wake_all();
    }

    /// Returns the flows whose own stream is on a path.
    fn flows_at_home(&self, path: PathId) -> Vec<FlowId> {
        self.flows.iter().filter(|(_, flow)| flow.home == Some(path)).map(|(id, _)| id).collect()
    }

    /// Records the measurements of a path's current connection.
    pub fn handle_signals(&mut self, now: Instant, path: PathId, signals: PathSignals) {
        let Some(known) = self.paths.get_mut(path).filter(|path| path.is_connected) else { return };
        let outcome = known.record_signals(now, signals);
        if let Some(acked_at) = known.acked_at() {
            self.alive_at = self.alive_at.max(acked_at);
        }
        if let Some(rtt) = outcome.rtt {
            self.observe(Observation::Rtt { path, rtt });
        }
        let answer = outcome.rtt.map_or(Probe::Reached, |rtt| Probe::Answered { rtt });
        for _ in 0..outcome.answered {
            let transition = self.paths.on_probe(now, path, answer);
            self.report(now, path, transition);
        }
        self.poll_interval(now, path);
        if outcome.has_ended_silence {
            self.recover(now);
            self.wake_all();
        }
    }

    pub(super) fn poll_interval(&mut self, now: Instant, path: PathId) {
        if let Some(sample) = self.paths.get_mut(path).and_then(|path| path.poll_interval(now)) {
            let transition = self.paths.on_interval(now, path, sample);
            self.report(now, path, transition);
        }
    }

    /// Reports a change of a path's state, and lets the flows use the paths as they are now.
    pub(super) fn report(&mut self, now: Instant, path: PathId, transition: Option<Transition>) {
        if let Some(transition) = transition {
            self.events.push_back(SessionEvent::PathChanged { path, transition });
            self.recover(now);
            self.wake_all();
        }
    }

    /// Resends data that a path has not delivered in time, if another path can carry it.
    ///
    /// Bonded chunks leave a path that is silent for one probe timeout, stream-lane flows after two, because there is
    /// no second stream that delivers meanwhile. If a path answers, data older than [`hedge_after`](Self::hedge_after) is
    /// sent again on a healthy one.
    pub(super) fn recover(&mut self, now: Instant) {
        for path in self.paths.ids() {
            let Some(known) = self.paths.get(path).filter(|path| path.is_connected) else { continue };
            let is_silent = known.is_silent(now);
            let is_long_silent = known.is_long_silent(now);
            let hedge_after = self.hedge_after(now, known);
            if !is_silent && hedge_after.is_none() || !self.paths.has_alternative(now, path) {
                continue;
            }
            let is_late = |chunk: &SentChunk| {
                let is_old = hedge_after.is_some_and(|age| age < now.since(chunk.sent_at));
                chunk.path == path && (is_silent || is_old)
            };
            for id in self.flows.ids() {
                let Some(flow) = self.flows.get(id) else { continue };
                if !flow.has_own_stream() && flow.lane == FlowLane::Redundant {
                    if is_silent && self.flows.update(id, |flow| flow.send.leave_path(path)) == Some(true) {
                        self.wake(id);
                    }
                } else if !flow.has_own_stream() {
                    if self.flows.update(id, |flow| flow.send.resend(is_late)) == Some(true) {
                        self.is_bonded_blocked = false;
                        self.wake(id);
                    }
                } else if flow.home == Some(path)
                    && (is_long_silent || (!is_silent && flow.send.has_sent_where(is_late)))
                {
                    self.change_home(now, id, path);
                    let hedged_from = self.paths.is_healthy_active(path).then_some((path, now));
                    self.flows.update(id, |flow| flow.hedged_from = hedged_from);
                }
            }
        }
    }

    /// Returns the age at which data on a path is sent again on a healthy one; `None` if no other path is healthy.
    ///
    /// It is two probe timeouts of the healthy paths. A healthy path may answer probes and still stall data, so its data
    /// is sent again too, later by the ceiling of its round trip (`PathRule::ceiling`).
    pub(super) fn hedge_after(&self, now: Instant, path: &LinkPath) -> Option<Duration> {
        let timeouts = 2 * self.paths.healthy_pto(now, path.id)?;
        match path.stats.state() {
            PathState::Active => Some(self.config.path.ceiling(self.paths.best_rtt()?) + timeouts),
            _ => Some(timeouts),
        }
    }

    /// Moves a flow's own stream to another path, which continues from the last acknowledged byte.
    fn change_home(&mut self, now: Instant, id: FlowId, from: PathId) {
        let Some(lane) = self.flows.get(id).map(|flow| flow.lane) else { return };
        let Some(to) = self.paths.pick_for_flow(now, lane, Some(from)) else { return };
        self.transmits.push_back(Transmit::Abandon { path: from, stream: StreamKey::Flow(id) });
        self.release_home(id);
        self.flows.update(id, |flow| {
            flow.home = Some(to);
            flow.send.resend(|chunk| chunk.path == from)
        });
        self.wake(id);
    }

    /// Replaces active paths by candidates where necessary, and moves flows off the candidates.
    pub(super) fn review_active_set(&mut self, now: Instant) {
        let replacements = self.paths.review_active_set(now);
        let has_changed = !replacements.is_empty();
        for replacement in replacements {
            self.events.push_back(SessionEvent::CandidateActivated { replacement });
        }
        self.leave_candidates(now);
        if has_changed {
            self.wake_all();
        }
    }

    /// Moves flows from candidates to active paths, if one is healthy.
    ///
    /// A flow that a healthy path stalled stays until that path has been unhealthy, for at most [`HEDGED_MAX`].
    fn leave_candidates(&mut self, now: Instant) {
        let candidates = self.paths.iter().filter(|path| path.role == TrafficRole::Candidate);
        let candidates: Vec<PathId> = candidates.map(|path| path.id).collect();
        if candidates.is_empty() {
            return;
        }
        let has_healthy_active = self.paths.has_healthy_active(now);
        for id in self.flows.ids() {
            let Some(flow) = self.flows.get(id) else { continue };
            let is_hedged = |(path, at)| now.since(at) < HEDGED_MAX && self.paths.is_healthy_active(path);
            let hedged_from = flow.hedged_from.filter(|&hedged_from| is_hedged(hedged_from));
            let home = flow.home.filter(|_| flow.has_own_stream());
            self.flows.update(id, |flow| flow.hedged_from = hedged_from);
            if !has_healthy_active || hedged_from.is_some() {
                continue;
            }
            if let Some(home) = home.filter(|home| candidates.contains(home)) {
                self.change_home(now, id, home);
            }
        }
    }

    /// Asks the peer for acknowledgements that are overdue.
    pub(super) fn request_acks(&mut self, now: Instant) {
        let interval = REQUEST_INTERVAL_MIN.max(2 * self.paths.pto_max());
        let is_due = |flow: &LinkFlow| {
            let pause = interval * (1 << flow.requests.min(REQUEST_DOUBLINGS_MAX));
            (flow.send.awaits_ack() || flow.is_unconfirmed()) && now.since(flow.acked_at) >= pause
        };
        let due: Vec<FlowId> = self.flows.iter().filter(|(_, flow)| is_due(flow)).map(|(id, _)| id).collect();
        for id in due {
            let is_unconfirmed = self.flows.update(id, |flow| {
                flow.requests += 1;
                flow.acked_at = now;
                flow.repeat_open()
            });
            if is_unconfirmed == Some(true) {
                self.wake(id);
            } else {
                self.acks.request(id);
            }
        }
    }
}
