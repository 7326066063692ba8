//! Metrics of a node, the input of every choice.
//!
//! Guarantees: any value is allowed here. NaN and negative metrics count as the worst value, so a faulty report can
//! gate a node or lower its score, but never raise its score or cause a panic.

use core::fmt;

use crate::cost::Cost;

/// Metrics of one node at one moment.
///
/// The default is an unknown node: DOWN, with no capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeStats {
    /// Requests in progress.
    pub running_http_session: u32,
    /// Statements being executed.
    pub running_sql: u32,
    /// Open transactions.
    pub running_tx: u32,
    /// Maximum number of concurrent requests (for inference: slots); zero or less means not configured.
    pub max_http_sessions: i32,
    /// Maximum number of database connections; zero or less means not configured.
    pub max_open_conns: i32,
    /// Maximum number of concurrent transactions; zero or less means not configured.
    pub max_transaction_conns: i32,
    /// Open database connections, idle ones included.
    pub open_conns: u32,
    /// Idle database connections.
    pub idle_conns: u32,
    /// Requests waiting for a database connection.
    pub wait_conn_count: u32,
    /// 95th percentile of recent latencies.
    pub p95_latency_ms: f64,
    /// Number of samples from which `p95_latency_ms` is computed.
    pub latency_samples: u32,
    /// Fraction of the last minute's requests that failed because of the node, 0..=1.
    pub error_rate_1m: f64,
    /// Timeouts within the last minute.
    pub timeouts_1m: u32,
    /// Time since the node started.
    pub uptime_sec: u64,
    /// Serving status.
    pub status: Status,
    /// Work in flight, in the pool's unit: requests or tokens.
    pub in_flight: Cost,
    /// Expected latency of one more request; 0 until one was measured, so that a new node is tried.
    pub latency_estimate_ms: f64,
}

/// Serving status of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// Accepts new work.
    Serving,
    /// Finishes its work and accepts nothing new.
    Draining,
    /// Does not respond.
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
