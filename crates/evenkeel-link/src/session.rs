//! Sans-I/O state machine of a link: `handle_*` in, `poll_*` out.
//!
//! The driver owns the connections and the clock. After each call of a `handle_*` or application method it polls
//! [`poll_transmit`](LinkSession::poll_transmit), [`poll_datagram`](LinkSession::poll_datagram),
//! [`poll_event`](LinkSession::poll_event) and [`poll_observation`](LinkSession::poll_observation) until each returns
//! `None`, then sleeps until [`poll_timeout`](LinkSession::poll_timeout). It passes fresh
//! [`PathSignals`](crate::path_signals::PathSignals) of every connected path about every 10 ms, and before
//! [`handle_timeout`](LinkSession::handle_timeout).
//!
//! Guarantees:
//! - Every byte of a flow is delivered once and in order, or the flow is reset; whatever a path does.
//! - Data on a path that is silent for a probe timeout (bonded) or two (stream lane) is sent again on another path.
//! - With the same calls, a session makes the same decisions: it reads no clock and draws no random numbers.
//! - Nothing that a peer sends makes it panic, or use more memory than its limits allow.
//! - Datagrams of a striped flow are delivered in order, and wait for earlier ones for 250 ms at most.
//!
//! Limits: those of [`SessionConfig`]; 64 MiB of received datagrams; 4096 chunks per flow and 32 768 in all beyond the acknowledged offsets; 65 536
//! stored pieces beyond gaps; 1 MiB of unacknowledged control messages.

mod acks;
mod active_set;
mod application;
mod bonded_lane;
mod byte_queue;
mod config;
mod datagrams;
mod flow_table;
mod link_path;
mod output;
mod path_table;
mod paths;
mod ready;
mod receive;
mod receive_half;
mod send_half;
mod status;
mod timers;
mod transmit;

use std::collections::{BTreeSet, VecDeque};

use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::{Duration, Instant};

pub use config::{CREDIT_INITIAL, SessionConfig};
pub use datagrams::{DatagramCounters, DatagramFlowStatus, PAYLOAD_BYTES_MAX};
pub use output::{
    Datagram, Observation, OpenFlowError, PathReplacement, ProtocolError, Read, ReplacementCause,
    SessionError, SessionEvent, StreamKey, Transmit,
};
pub use status::{
    FlowStatus, LinkPathStatus, PathCounters, ReplacementCounts, SessionStatus, SessionTotals, ShareStatus,
    TrafficRole,
};

use crate::flow::{FlowEnd, FlowId, LaneSupport, ResetCode, ResetReason, Side};
use crate::frame::ControlDecoder;
use acks::{AckSchedule, Urgency};
use bonded_lane::LaneSamples;
use datagrams::{DatagramFlows, DatagramHalves};
use flow_table::FlowTable;
use path_table::PathTable;
use ready::ReadyFlows;

/// Maximum number of observations that wait to be polled; further ones are dropped.
const OBSERVATIONS_MAX: usize = 4_096;

/// Time between the periodic checks.
const TICK: Duration = Duration::from_millis(100);

/// One end of a link.
#[derive(Debug)]
pub struct LinkSession {
    config: SessionConfig,
    phase: u64,
    side: Side,
    paths: PathTable,
    flows: FlowTable,
    control: ControlDecoder,
    acks: AckSchedule,
    /// Flows with a stream of their own.
    ready_streams: ReadyFlows,
    ready_bonded: ReadyFlows,
    datagrams: DatagramFlows,
    /// Lanes that the peer has.
    peer_lanes: LaneSupport,
    /// Set while bonded chunks wait for a path with room.
    is_bonded_blocked: bool,
    /// Redundant flows that wait until one of their paths has room.
    blocked_redundant: BTreeSet<FlowId>,
    /// Set while flows wait until fewer chunks are in flight.
    is_chunk_blocked: bool,
    /// Flows whose application waits until it can write.
    blocked_writers: BTreeSet<FlowId>,
    /// Queued ends of streams, copies and fragments of datagrams; they are returned before any frame.
    transmits: VecDeque<Transmit>,
    /// Queued acknowledgements and probes.
    packets: VecDeque<Datagram>,
    events: VecDeque<SessionEvent>,
    observations: VecDeque<Observation>,
    duplicate_bytes: u64,
    next_probe: u64,
    /// Time at which something last arrived from the peer.
    alive_at: Instant,
    has_been_connected: bool,
    tick_at: Instant,
    hedge_at: Instant,
    lane_samples: LaneSamples,
    /// Time of the last review of the bonded lane.
    lane_reviewed_at: Instant,
    has_peer_left: bool,
    has_ended: bool,
}

impl LinkSession {
    /// Creates a session without paths; after an outage of all paths, the schedulers restart at position
    /// `phase`, a random number.
    pub fn new(
        side: Side,
        config: SessionConfig,
        now: Instant,
        phase: u64,
    ) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self {
            paths: PathTable::new(&config),
            config,
            phase,
            side,
            flows: FlowTable::new(side, now),
            control: ControlDecoder::default(),
            acks: AckSchedule::default(),
            ready_streams: ReadyFlows::default(),
            ready_bonded: ReadyFlows::default(),
            datagrams: DatagramFlows::default(),
            peer_lanes: LaneSupport::All,
            is_bonded_blocked: false,
            blocked_redundant: BTreeSet::new(),
            is_chunk_blocked: false,
            blocked_writers: BTreeSet::new(),
            transmits: VecDeque::new(),
            packets: VecDeque::new(),
            events: VecDeque::new(),
            observations: VecDeque::new(),
            duplicate_bytes: 0,
            next_probe: 0,
            alive_at: now,
            has_been_connected: false,
            tick_at: now + TICK,
            hedge_at: now,
            lane_samples: LaneSamples::default(),
            lane_reviewed_at: now,
            has_peer_left: false,
            has_ended: false,
        })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Returns the next measurement for metrics.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.observations.pop_front()
    }

    fn observe(&mut self, observation: Observation) {
        if self.observations.len() < OBSERVATIONS_MAX {
            self.observations.push_back(observation);
        }
    }

    /// Marks a flow as ready to send.
    fn wake(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if flow.datagrams.as_ref().is_some_and(DatagramHalves::has_queued) {
            self.datagrams.ready.insert(id);
        }
        if flow.has_own_stream() {
            self.ready_streams.insert(id);
        } else {
            self.ready_bonded.insert(id);
        }
    }

    /// Marks all flows as ready to send, after paths have changed.
    fn wake_all(&mut self) {
        self.is_bonded_blocked = false;
        self.unblock_datagrams();
        for id in self.flows.ids() {
            self.wake(id);
        }
    }

    /// Removes a flow, remembers its end and reports it.
    fn end_flow(&mut self, now: Instant, id: FlowId, end: FlowEnd) {
        if let Some(flow) = self.flows.get(id)
            && end != FlowEnd::Finished
            && flow.has_own_stream()
            && let Some(path) = flow.home
        {
            self.transmits.push_back(Transmit::Abandon { path, stream: StreamKey::Flow(id) });
            self.release_home(id);
        }
        self.forget_datagrams(id);
        self.flows.close(id, end.clone());
        self.ready_streams.remove(id);
        self.ready_bonded.remove(id);
        self.blocked_redundant.remove(&id);
        self.blocked_writers.remove(&id);
        if end != FlowEnd::Finished {
            self.acks.forget(id);
        }
        self.events.push_back(SessionEvent::FlowEnded { flow: id, end });
        self.notify_writers(now);
    }

    /// Ends a flow whose two directions have ended.
    fn end_flow_if_over(&mut self, now: Instant, id: FlowId) {
        if self.flows.get(id).is_some_and(flow_table::LinkFlow::is_over) {
            self.end_flow(now, id, FlowEnd::Finished);
            self.acks.mark(id, Urgency::AtOnce);
        }
    }

    /// Ends the session because of a violation of the protocol, such as bytes that
    /// [`FrameDecoder`](crate::frame::FrameDecoder) rejects.
    pub fn handle_protocol_error(&mut self, now: Instant, error: ProtocolError) {
        self.fail(now, error.into());
    }

    /// Ends the session and resets all flows with `reason`; the peer is not told.
    pub fn end(&mut self, now: Instant, reason: &str) {
        if self.has_ended {
            return;
        }
        let reason = ResetReason::new(ResetCode::SESSION_LOST, reason);
        for id in self.flows.ids().into_iter().filter(|id| *id != FlowId::CONTROL) {
            self.end_flow(now, id, FlowEnd::Reset(reason.clone()));
        }
        self.has_ended = true;
        self.transmits.clear();
        self.packets.clear();
    }

    fn fail(&mut self, now: Instant, error: SessionError) {
        if !self.has_ended {
            self.end(now, &error.to_string());
            self.events.push_back(SessionEvent::SessionFailed { error });
        }
    }
}

#[cfg(test)]
mod tests;
