//! What a node says of itself: the figures every choice is made of.
//!
//! Bound: any bit pattern is allowed here. A count is a count; a figure that is no number or negative
//! is read as the worst one by whoever reads it, so a broken report can close or lower a node, never
//! raise it and never panic.

use core::fmt;

use crate::cost::Cost;

/// The figures of one node at one moment.
///
/// The default is a node nobody has heard of: DOWN, with no capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeStats {
    /// Requests being answered.
    pub running_http_session: u32,
    /// Statements being executed.
    pub running_sql: u32,
    /// Transactions open.
    pub running_tx: u32,
    /// The most requests at once; zero or less means not configured. For inference: slots.
    pub max_http_sessions: i32,
    /// The most database connections at once; zero or less means not configured.
    pub max_open_conns: i32,
    /// The most transactions at once; zero or less means not configured.
    pub max_transaction_conns: i32,
    /// Database connections open, idle ones included.
    pub open_conns: u32,
    /// Database connections open that nobody uses.
    pub idle_conns: u32,
    /// Requests waiting for a database connection at this moment.
    pub wait_conn_count: u32,
    /// The 95th percentile of recent latencies.
    pub p95_latency_ms: f64,
    /// How many latencies `p95_latency_ms` was taken from.
    pub latency_samples: u32,
    /// The part of the last minute's requests that went wrong through the node's fault, 0..=1.
    pub error_rate_1m: f64,
    /// Timeouts within the last minute.
    pub timeouts_1m: u32,
    /// Time since the node started.
    pub uptime_sec: u64,
    /// Whether it takes work.
    pub status: Status,
    /// Work sent to it and not answered yet, in the pool's currency: requests, or tokens.
    pub in_flight: Cost,
    /// The latency to expect of one more request; 0 until one was measured, so that a new node is tried.
    pub latency_estimate_ms: f64,
}

/// Whether a node takes work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// It takes new work.
    Serving,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It does not answer.
    #[default]
    Down,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "SERVING",
            Self::Draining => "DRAINING",
            Self::Down => "DOWN",
        })
    }
}
