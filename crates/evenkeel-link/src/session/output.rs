//! Everything that a session passes to its driver and to the application.

use std::fmt;

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondChange, Transition};
use evenkeel_policy::time::Duration;

use crate::flow::{FlowEnd, FlowId, FlowLane, ResetReason};
use crate::frame::FrameError;

/// Stream of a path's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamKey {
    /// The stream of one flow; a flow has at most one per path.
    Flow(FlowId),
    /// The streams that bonded flows share; the driver spreads their frames over several.
    Bonded,
}

/// Work for a path's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// Write `header`, then `data`; opens the stream if it does not exist.
    ///
    /// The driver reports the bytes to [`handle_written`](super::LinkSession::handle_written) once the connection has
    /// taken them.
    Frame { path: PathId, stream: StreamKey, header: Bytes, data: Bytes },
    /// Send as one datagram of the connection once it has room; it may be lost.
    ///
    /// The driver reports the bytes to [`handle_datagram_sent`](super::LinkSession::handle_datagram_sent) once the
    /// connection has taken or dropped them.
    Datagram { path: PathId, data: Bytes },
    /// Finish the stream after everything written so far.
    Finish { path: PathId, stream: StreamKey },
    /// Reset the stream and drop everything that was not sent: it goes another way.
    Abandon { path: PathId, stream: StreamKey },
}

impl Transmit {
    /// Returns the path whose connection has to do the work.
    pub fn path(&self) -> PathId {
        match self {
            Self::Frame { path, .. }
            | Self::Datagram { path, .. }
            | Self::Finish { path, .. }
            | Self::Abandon { path, .. } => *path,
        }
    }
}

/// Acknowledgements or probe to send on a path's connection, as a datagram; it may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub path: PathId,
    pub data: Bytes,
}

/// Event for the driver or the application.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionEvent {
    /// The peer opened a flow.
    Accepted { flow: FlowId, lane: FlowLane, target: String },
    /// The flow has data or has ended, after a read returned [`Read::Pending`].
    Readable { flow: FlowId },
    /// The flow takes data again, after a write took less than it was given.
    Writable { flow: FlowId },
    /// The flow ended and was forgotten.
    FlowEnded { flow: FlowId, end: FlowEnd },
    /// The health of a path changed.
    PathChanged { path: PathId, transition: Transition },
    /// Nothing was acknowledged on a path for two probe timeouts; a new connection may revive it.
    PathSilent { path: PathId },
    /// A candidate became active, in place of another path or in a free place.
    CandidateActivated { replacement: PathReplacement },
    /// A path left the bonded lane, or returned to it.
    BondedLaneChanged { change: BondChange },
    /// The peer ends the session.
    Goodbye,
    /// The session ended; all its flows have been reset.
    SessionFailed { error: SessionError },
}

/// Change of the paths that carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReplacement {
    /// Path that becomes a candidate; `None` if a place was free.
    pub removed: Option<PathId>,
    /// Candidate that becomes active.
    pub added: PathId,
    pub cause: ReplacementCause,
}

/// Cause of a [`PathReplacement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacementCause {
    /// The active path was not connected, not usable or silent for too long.
    Unusable,
    /// The round trips of the active path were longer than those of the candidate in enough samples. `p95` is without an
    /// estimate of the queue that the path's own traffic causes.
    Slower { p95: Duration, added_p95: Duration },
}

impl fmt::Display for ReplacementCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable => f.write_str("the active path cannot carry data"),
            Self::Slower { p95, added_p95 } => {
                write!(
                    f,
                    "the p95 of {p95:.1?} without its own queue is worse than the candidate's of {added_p95:.1?}"
                )
            }
        }
    }
}

/// Measurement for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Round-trip time of a path.
    Rtt { path: PathId, rtt: Duration },
    /// Time that data of a bonded flow, or a datagram of a striped flow, waited for earlier ones.
    ReorderDelay { delay: Duration },
}

/// Result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Data(Bytes),
    /// There is no data; [`SessionEvent::Readable`] follows.
    Pending,
    /// The peer finished, and everything has been read.
    Finished,
    Reset(ResetReason),
}

/// Cause of the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("no path answered for {timeout:?}")]
    Timeout { timeout: Duration },
    #[error("the peer violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
}

/// Violation of the protocol by the peer; ends the session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("flow {flow}: opened with an identifier of this side")]
    ForeignFlow { flow: FlowId },
    #[error("flow {flow}: unknown, but has an identifier of this side")]
    UnknownFlow { flow: FlowId },
    #[error("flow {flow}: data up to offset {end} exceeds the credit of {credit}")]
    CreditExceeded { flow: FlowId, end: u64, credit: u64 },
    #[error("flow {flow}: data after its end, or two different ends")]
    DataAfterEnd { flow: FlowId },
    #[error("flow {flow}: too many separate ranges of data")]
    TooManyRuns { flow: FlowId },
    #[error("flow {flow}: acknowledgement of data that was not sent")]
    AckOfUnsent { flow: FlowId },
    #[error("flow {flow}: a datagram, but the flow is a byte stream")]
    NoDatagramFlow { flow: FlowId },
    #[error("the control flow ended")]
    ControlEnded,
    #[error("control messages are not acknowledged")]
    ControlBacklog,
}

/// Error for a flow that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFlowError {
    #[error("the link has {flows_max} open flows, which is its limit")]
    TooManyFlows { flows_max: u32 },
    #[error("the buffers of the link are full")]
    BudgetExhausted,
    #[error("target of {len} bytes is longer than 255")]
    TargetTooLong { len: usize },
    #[error(
        "the other side runs an older version of evenkeel, which has no lane {lane:?}; update it",
        lane = lane.to_string()
    )]
    LaneUnsupported { lane: FlowLane },
    #[error("the link has ended")]
    SessionEnded,
}
