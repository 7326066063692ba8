//! The gates: why a node is out of the question, whatever its score.
//!
//! Bound: a closed gate needs no score to be computed, and each closes exactly where the sub-score it
//! stands for reaches its limit.

use core::fmt;

use super::limits::Limits;
use super::node::{NodeStats, Status};
use super::parts::Request;

/// The first closed gate on the way to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// The node takes no work.
    NotServing(Status),
    /// A maximum the request depends on is zero or less.
    NoCapacityConfigured,
    /// Every slot is taken.
    SlotsFull,
    /// Every database connection is in use.
    DbFull,
    /// Too few transaction places are free.
    TxFull,
    /// Too many requests wait for a database connection.
    PoolWaiting,
    /// The error rate is as bad as it counts.
    ErrorsTooMany,
    /// The latency is as bad as it counts.
    LatencyTooBad,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotServing(status) => return write!(f, "node is {status}"),
            Self::NoCapacityConfigured => "node has no capacity configured",
            Self::SlotsFull => "every slot is taken",
            Self::DbFull => "every database connection is in use",
            Self::TxFull => "too few transaction places are free",
            Self::PoolWaiting => "too many requests wait for a database connection",
            Self::ErrorsTooMany => "error rate is too high",
            Self::LatencyTooBad => "latency is too high",
        })
    }
}

impl core::error::Error for Gate {}

impl Limits {
    /// Passes a node that may be chosen for the request; else names the first closed gate.
    ///
    /// Latency is judged by its absolute score. A model's health is its breaker's business and shows in
    /// the status: five errors in a hundred close a database node, but would empty a pool of models.
    pub fn gate(&self, stats: &NodeStats, request: Request) -> Result<(), Gate> {
        if stats.status != Status::Serving {
            return Err(Gate::NotServing(stats.status));
        }
        match request {
            Request::Query | Request::Execute => {
                database_gates(stats)?;
                self.quality_gates(stats)
            }
            Request::BeginTx => {
                database_gates(stats)?;
                self.transaction_gates(stats)
            }
            Request::Infer => slot_gates(stats),
        }
    }

    fn quality_gates(&self, stats: &NodeStats) -> Result<(), Gate> {
        // Asking for the range closes the gate on NaN and negative figures as well.
        if !(0.0..self.config().err_bad).contains(&stats.error_rate_1m) {
            return Err(Gate::ErrorsTooMany);
        }
        if !(0.0..self.config().lat_bad_ms).contains(&stats.p95_latency_ms) {
            return Err(Gate::LatencyTooBad);
        }
        Ok(())
    }

    fn transaction_gates(&self, stats: &NodeStats) -> Result<(), Gate> {
        if stats.tx_free() < self.config().tx_free_min {
            return Err(Gate::TxFull);
        }
        if stats.wait_conn_count >= self.config().tx_wait_max {
            return Err(Gate::PoolWaiting);
        }
        Ok(())
    }
}

fn database_gates(stats: &NodeStats) -> Result<(), Gate> {
    if stats.max_http_sessions <= 0 || stats.max_open_conns <= 0 || stats.max_transaction_conns <= 0 {
        return Err(Gate::NoCapacityConfigured);
    }
    if stats.db_free() <= 0.0 {
        return Err(Gate::DbFull);
    }
    Ok(())
}

fn slot_gates(stats: &NodeStats) -> Result<(), Gate> {
    if stats.max_http_sessions <= 0 {
        return Err(Gate::NoCapacityConfigured);
    }
    if stats.http_free() <= 0.0 {
        return Err(Gate::SlotsFull);
    }
    Ok(())
}
