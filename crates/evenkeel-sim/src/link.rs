//! Simulates a link: two real `LinkSession`s over model paths.
//!
//! A path has a rate, a delay, a queue, losses and faults. Each connection on it is a model of QUIC: streams are reliable
//! and ordered, datagrams are not, and a congestion window limits what is on its way. Datagrams are also delayed and
//! repeated at random, frames repeated. Applications at both ends write patterns and check every byte that arrives.

mod connection;
mod endpoint;
mod plans;
mod run;
mod traffic;
mod wire;

use evenkeel_link::flow::{FlowEnd, FlowLane, Side};
use evenkeel_link::session::{PathReplacement, SessionConfig, SessionError};
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondChange, Transition};
use evenkeel_policy::time::{Duration, Instant};

pub use plans::{
    all_paths_down, bad_path, better_candidate, black_hole, candidate_takeover, flapping, limping_path,
    link_names, link_plan, random_faults, recovering_path, shares, short_transfers, similar_candidate,
    steady_slow_path, throughput, unhealthy_path,
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
    /// Longest time that a packet waits in the queue before it is dropped.
    pub queue: Duration,
    /// Fraction of packets lost at random.
    pub loss: f64,
    /// Fraction of datagrams that are delayed or repeated, and of frames that are repeated.
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
    Limping(Duration),
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
    /// Time between two writes of 1000 bytes; `None` writes as much as the session takes.
    pub pace: Option<Duration>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct LinkRun {
    pub flows: Vec<LinkFlowRun>,
    /// Bytes that arrived in the last three quarters of the run, in Mbit/s.
    pub goodput_mbit: f64,
    /// Bytes of flows sent per path, by both sides.
    pub path_bytes: Vec<u64>,
    /// Bytes sent on another path because the first did not deliver them in time.
    pub reinjected_bytes: u64,
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
    /// Hash of everything that happened.
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
    /// Longest time between two arrivals at the acceptor, the first and the last included.
    pub gap_max: Duration,
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
