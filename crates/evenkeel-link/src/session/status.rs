//! Snapshot of a session for `status` and metrics.

use std::fmt;

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::PathState;
use evenkeel_policy::swrr::ShareWindow;
use evenkeel_policy::time::{Duration, Instant};

use super::LinkSession;
use super::datagrams::{DatagramCounters, DatagramFlowStatus, DatagramHalves};
use super::flow_table::LinkFlow;
use super::link_path::LinkPath;
use crate::flow::{FlowId, FlowLane};

/// Snapshot of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStatus {
    /// Paths in the order of their ids.
    pub paths: Vec<LinkPathStatus>,
    /// Flows in the order of their ids, without the control flow.
    pub flows: Vec<FlowStatus>,
    pub totals: SessionTotals,
    /// Shares in the last complete window of the scheduler that deviates most from the expected shares.
    pub window: Option<ShareWindow>,
}

/// Snapshot of one path.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPathStatus {
    pub path: PathId,
    pub name: String,
    /// Relays of the path's route, the first hop first; `None` if they are not known. The session never knows them: the driver
    /// adds them.
    pub relays: Option<Vec<String>>,
    pub state: PathState,
    pub role: TrafficRole,
    /// Reports whether the path takes part in the bonded lane.
    pub bonded: bool,
    /// Reports whether an authenticated connection exists.
    pub connected: bool,
    /// Reports whether packets have waited for an acknowledgement for more than a probe timeout.
    pub silent: bool,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Smoothed deviation of the round-trip time.
    pub rtt_deviation: Option<Duration>,
    /// Recent fraction of packets lost.
    pub loss: f64,
    /// Weight in force; `None` unless the path may carry traffic.
    pub weight: Option<u32>,
    /// Share of the streams opened on the path.
    pub flow_share: Option<ShareStatus>,
    /// Share of the bonded bytes.
    pub bonded_share: Option<ShareStatus>,
    /// Bytes in flight on the connection.
    pub in_flight: u64,
    /// Bytes that wait for the connection.
    pub queued: u64,
    pub counters: PathCounters,
}

/// Part that a path has in the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficRole {
    /// Carries traffic.
    Active,
    /// Is probed, and carries no traffic while an active path is healthy.
    Candidate,
}

impl fmt::Display for TrafficRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Candidate => "candidate",
        })
    }
}

/// Number of active paths that candidates replaced, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementCounts {
    /// Paths that were slower than the candidate.
    pub slower: u64,
    /// Paths that could not carry traffic.
    pub unusable: u64,
}

/// Share of a path in the last complete window of picks, among the paths that were eligible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareStatus {
    pub observed: f64,
    /// Expected share: the one that the weights give.
    pub theory: f64,
}

/// Counters of one path; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Bytes of flows sent, those sent again included.
    pub sent_bytes: u64,
    /// Bytes that had been sent before, on this path or another.
    pub reinjected_bytes: u64,
    /// Bytes of flows received, duplicates included.
    pub received_bytes: u64,
    /// Datagrams of flows sent, copies and fragments included.
    pub datagrams_sent: u64,
    /// Datagrams of flows received, copies and fragments included.
    pub datagrams_received: u64,
    /// Number of times the path became usable.
    pub activated: u64,
    /// Number of times the path ceased to be usable.
    pub deactivated: u64,
}

/// Snapshot of one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowStatus {
    pub flow: FlowId,
    pub lane: FlowLane,
    /// Path of the flow's own stream, if it has one; a pinned flow may have moved to another.
    pub path: Option<PathId>,
    /// Bytes that the application wrote.
    pub written: u64,
    /// Bytes that the peer acknowledged.
    pub acked: u64,
    /// Offset before which the peer allows to send.
    pub credit: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Bytes that the application read.
    pub read: u64,
    /// Bytes that wait for earlier ones.
    pub reorder_bytes: u64,
    /// Fraction of the receive window that waits for earlier data.
    pub reorder_utilisation: f64,
    /// Counters of a flow of datagrams.
    pub datagrams: Option<DatagramFlowStatus>,
}

/// Sums over a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SessionTotals {
    /// Bytes received and not yet read by the application.
    pub receive_buffered: u64,
    /// Sum of the flows' receive windows; bounds `receive_buffered`.
    pub receive_windows: u64,
    /// Bytes retained until they are acknowledged, those not yet sent included.
    pub send_retained: u64,
    pub duplicate_bytes: u64,
    /// Datagrams of all flows, those that have ended included.
    pub datagrams: DatagramCounters,
    /// Bytes of received datagrams that are stored.
    pub datagram_bytes: u64,
    /// Changes of a weight that took effect.
    pub reweights_applied: u64,
    /// Changes of a weight that were too small or too soon.
    pub reweights_suppressed: u64,
    /// Active paths that candidates replaced.
    pub replacements: ReplacementCounts,
    /// Number of times that a path left the bonded lane.
    pub bonded_exits: u64,
    /// Largest mean deviation of the shares from the expected ones, over the last windows of both schedulers.
    pub share_deviation: Option<f64>,
    /// Largest relative entropy of the shares, over the last windows of both schedulers.
    pub relative_entropy: Option<f64>,
}

impl LinkSession {
    /// Returns a snapshot.
    pub fn status(&self, now: Instant) -> SessionStatus {
        let flows = self.flows.iter().filter(|(id, _)| *id != FlowId::CONTROL);
        SessionStatus {
            paths: self.paths.iter().map(|path| self.path_status(now, path)).collect(),
            flows: flows.map(|(id, flow)| flow_status(id, flow)).collect(),
            totals: self.totals(),
            window: self.paths.most_deviant_window().cloned(),
        }
    }

    /// Reports whether a path is connected and has answered within two probe timeouts; false once the session has ended.
    pub fn has_answering_path(&self, now: Instant) -> bool {
        !self.has_ended && self.paths.connected().any(|path| !path.is_long_silent(now))
    }

    fn path_status(&self, now: Instant, path: &LinkPath) -> LinkPathStatus {
        LinkPathStatus {
            path: path.id,
            name: path.name.clone(),
            relays: None,
            state: path.stats.state(),
            role: path.role,
            bonded: self.paths.bonded_lane.has(path.id),
            connected: path.is_connected,
            silent: path.is_silent(now),
            rtt: path.rtt(),
            rtt_deviation: path.rtt_deviation(),
            loss: path.stats.loss().as_f64(),
            weight: self.paths.weight(path.id),
            flow_share: self.paths.flow_share(path.id),
            bonded_share: self.paths.bonded_share(path.id),
            in_flight: path.in_flight(),
            queued: path.queued(),
            counters: path.counters,
        }
    }

    fn totals(&self) -> SessionTotals {
        let usage = self.flows.usage();
        SessionTotals {
            receive_buffered: usage.buffered,
            receive_windows: usage.windows,
            send_retained: usage.retained,
            duplicate_bytes: self.duplicate_bytes,
            datagrams: self.datagram_totals(),
            datagram_bytes: usage.datagram_bytes as u64,
            reweights_applied: self.paths.reweights_applied,
            reweights_suppressed: self.paths.reweights_suppressed,
            replacements: self.paths.active_set.replacements,
            bonded_exits: self.paths.bonded_exits,
            share_deviation: self.paths.windows().map(ShareWindow::mean_deviation).reduce(f64::max),
            relative_entropy: self.paths.windows().map(ShareWindow::relative_entropy).reduce(f64::max),
        }
    }
}

fn flow_status(id: FlowId, flow: &LinkFlow) -> FlowStatus {
    let datagrams = flow.datagrams.as_ref().map(DatagramHalves::status);
    let reorder_bytes = flow.receive.reorder_bytes();
    let utilisation = reorder_bytes as f64 / flow.receive.window().max(1) as f64;
    FlowStatus {
        flow: id,
        lane: flow.lane,
        path: flow.home,
        written: flow.send.written(),
        acked: flow.send.acked(),
        credit: flow.send.credit(),
        received: flow.receive.received(),
        read: flow.receive.bytes_read(),
        reorder_bytes: datagrams.map_or(reorder_bytes, |datagrams| datagrams.reorder_bytes),
        reorder_utilisation: datagrams.map_or(utilisation, |datagrams| datagrams.reorder_utilisation),
        datagrams,
    }
}
