//! Simulates a link: two real `LinkSession`s over model paths.
//!
//! A path has a rate, a delay, a queue, losses and faults. Each connection on it is a model of QUIC: streams are reliable
//! and ordered, datagrams are not, and a congestion window limits what is on its way. Datagrams are also delayed and
//! repeated at random, and frames repeated. Applications at both ends write patterns and check every byte that arrives.

mod connection;
mod datagram_traffic;
mod endpoint;
mod plans;
mod run;
mod traffic;
mod wire;

use evenkeel_link::flow::{FlowEnd, FlowLane, Side};
use evenkeel_link::session::{DatagramCounters, PathReplacement, SessionConfig, SessionError};
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondChange, Transition};
use evenkeel_policy::time::{Duration, Instant};

pub use datagram_traffic::DatagramRun;
pub use plans::{
    all_paths_down, bad_path, better_candidate, black_hole, candidate_takeover, datagrams, flapping,
    limping_path, link_names, link_plan, random_faults, recovering_path, shares, short_transfers,
    similar_candidate, steady_slow_path, throughput, unhealthy_path,
};
pub use run::run_link;

/// Paths, faults and flows of a simulated link.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Name in reports.
    pub name: &'static str,
    /// Description in reports.
    pub about: &'static str,
    pub seed: u64,
    pub duration: Duration,
    pub paths: Vec<LinkPathPlan>,
    pub flows: Vec<LinkFlowPlan>,
    pub config: SessionConfig,
}

/// One path, the same in both directions.
#[derive(Clone, Debug)]
pub struct LinkPathPlan {
    pub mbit: f64,
    /// Delay in one direction.
    pub delay: Duration,
    /// Length of the queue, as the time that it takes to drain; packets beyond it are dropped.
    pub queue: Duration,
    /// Fraction of packets lost at random.
    pub loss: f64,
    /// Fraction of datagrams that are delayed by up to 50 ms, half of them as a second copy, and of frames that are
    /// delivered twice.
    pub disorder: f64,
    pub faults: Vec<PathFault>,
}

/// Fault of a path for some time.
#[derive(Clone, Copy, Debug)]
pub struct PathFault {
    pub from: Duration,
    pub until: Duration,
    pub kind: PathFaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PathFaultKind {
    /// Every packet disappears.
    BlackHole,
    /// The connection is closed, and new ones are refused.
    Refused,
    /// The connection is replaced by a new one at the beginning.
    Replaced,
    /// The delay grows steadily to this value.
    GrowingDelay(Duration),
    /// The delay has this value, if it is longer than that of the path.
    Delayed(Duration),
}

/// One flow and its data.
#[derive(Clone, Copy, Debug)]
pub struct LinkFlowPlan {
    /// Time at which it is opened.
    pub at: Duration,
    pub lane: FlowLane,
    pub opener: Side,
    /// Bytes from the opener.
    pub bytes: u64,
    /// Bytes from the acceptor.
    pub reply: u64,
    /// Time between two writes or datagrams of 1000 bytes; `None` writes as much as the session takes, and no datagrams.
    pub pace: Option<Duration>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct LinkRun {
    pub flows: Vec<LinkFlowRun>,
    /// Rate at which data arrived in the last three quarters of the run.
    pub goodput_mbit: f64,
    /// Bytes of flows sent per path, by both sides.
    pub path_bytes: Vec<u64>,
    /// Bytes sent again.
    pub reinjected_bytes: u64,
    /// Datagrams of all flows at the listening side.
    pub datagrams: DatagramCounters,
    /// Number of flows whose first frame took each path.
    pub flow_picks: Vec<u64>,
    /// Changes of path health at the connecting side.
    pub transitions: Vec<TimedTransition>,
    /// Replacements of paths by candidates at the connecting side.
    pub replacements: Vec<Timed<PathReplacement>>,
    /// Paths that left the bonded lane of the connecting side, or returned to it.
    pub bonded_changes: Vec<Timed<BondChange>>,
    /// End of the connecting side's session.
    pub failure: Option<SessionFailure>,
    /// Bytes that arrived with another value than was sent.
    pub wrong_bytes: u64,
    /// Most memory that a session used.
    pub memory_max: SessionMemory,
    /// Hash of the times of all arrivals and of all session events.
    pub fingerprint: u64,
}

/// Result for one flow.
#[derive(Clone, Debug, Default)]
pub struct LinkFlowRun {
    /// Bytes that arrived at the acceptor.
    pub received: u64,
    /// Bytes that arrived at the opener.
    pub replied: u64,
    /// End at the opener.
    pub end: Option<FlowEnd>,
    /// Time at which the last byte arrived.
    pub completed_at: Option<Instant>,
    /// Longest pause between two arrivals at the acceptor, counted from its acceptance and, if data is missing, to the end
    /// of the run.
    pub gap_max: Duration,
    /// Datagrams that arrived at the acceptor.
    pub datagrams: Option<DatagramRun>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedTransition {
    pub at: Instant,
    pub path: PathId,
    pub transition: Transition,
}

/// Event with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed<T> {
    pub at: Instant,
    pub event: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFailure {
    pub at: Instant,
    pub error: SessionError,
}

/// Bytes that a session stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionMemory {
    pub receive_buffered: u64,
    pub receive_windows: u64,
    pub send_retained: u64,
}
