//! Gates: filters that exclude a node before it is scored.
//!
//! Guarantees: no gate computes a score, and each gate closes at the value at which the corresponding sub-score reaches
//! its limit, up to the rounding of the sub-score.

use super::limits::Limits;
use super::node::{NodeStats, Status};
use super::sub_scores::RequestKind;

/// Metrics that close gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GateRule {
    /// Status, free capacity, error rate, latency and the number of waiting requests, as the specification says.
    #[default]
    Quality,
    /// Status and free capacity only. For a node's own queue: a slow or failing node still has to serve its requests.
    CapacityOnly,
}

/// First closed gate of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Gate {
    /// The node accepts no work.
    #[error("node is {0}")]
    NotServing(Status),
    /// A capacity that the request depends on is zero or less.
    #[error("node has no capacity configured")]
    NoCapacityConfigured,
    /// No slot is free.
    #[error("every slot is taken")]
    SlotsFull,
    /// Every database connection is in use.
    #[error("every database connection is in use")]
    DbFull,
    /// Too few transaction connections are free.
    #[error("too few transaction connections are free")]
    TxFull,
    /// Too many requests wait for a database connection.
    #[error("too many requests wait for a database connection")]
    PoolWaiting,
    /// The error rate scores 0.
    #[error("error rate is too high")]
    ErrorsTooMany,
    /// The latency scores 0.
    #[error("latency is too high")]
    LatencyTooBad,
}

impl Limits {
    /// Returns the first closed gate as the error if the node cannot serve the request.
    ///
    /// The latency gate uses the absolute limit, never the median. For inference there is no error gate: the node's
    /// circuit breaker handles errors and is reflected in the status. A limit of 5 % errors suits a database, but would
    /// exclude every node of an inference pool.
    pub fn gate(&self, stats: &NodeStats, request: RequestKind) -> Result<(), Gate> {
        if stats.status != Status::Serving {
            return Err(Gate::NotServing(stats.status));
        }
        if request == RequestKind::Infer {
            return slot_gates(stats);
        }
        database_gates(stats)?;
        match (self.config().gates, request) {
            (GateRule::Quality, RequestKind::BeginTx) => self.transaction_gates(stats),
            (GateRule::Quality, _) => self.quality_gates(stats),
            (GateRule::CapacityOnly, RequestKind::BeginTx) if stats.tx_free() <= 0.0 => Err(Gate::TxFull),
            (GateRule::CapacityOnly, _) => Ok(()),
        }
    }

    fn quality_gates(&self, stats: &NodeStats) -> Result<(), Gate> {
        // The range check also closes the gate for NaN and negative values.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::LimitsConfig;
    use crate::score::tests::example_node;
    use alloc::string::ToString;

    const DATABASE: [RequestKind; 3] = [RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx];
    const STATEMENTS: [RequestKind; 2] = [RequestKind::Query, RequestKind::Execute];

    #[test]
    fn only_a_serving_node_is_open() {
        for request in [RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx, RequestKind::Infer] {
            assert_eq!(gate(request, |_| ()), Ok(()));
            for status in [Status::Draining, Status::Down] {
                assert_eq!(gate(request, |node| node.status = status), Err(Gate::NotServing(status)));
            }
        }
    }

    #[test]
    fn each_maximum_must_be_configured() {
        for request in DATABASE {
            for none in [0, -1] {
                let closed = Err(Gate::NoCapacityConfigured);
                assert_eq!(gate(request, |node| node.max_http_sessions = none), closed);
                assert_eq!(gate(request, |node| node.max_open_conns = none), closed);
                assert_eq!(gate(request, |node| node.max_transaction_conns = none), closed);
            }
            // A capacity of one is enough; the example node's load would not fit in it.
            let smallest = |node: &mut NodeStats| {
                node.max_http_sessions = 1;
                node.max_open_conns = 1;
                node.max_transaction_conns = 1;
                node.open_conns = 0;
                node.running_tx = 0;
            };
            assert_eq!(gate(request, smallest), Ok(()));
        }
    }

    #[test]
    fn the_last_free_connection_keeps_the_database_open() {
        for request in DATABASE {
            // 109 open, 10 idle: 99 of 100 in use.
            assert_eq!(gate(request, |node| node.open_conns = 109), Ok(()));
            assert_eq!(gate(request, |node| node.open_conns = 110), Err(Gate::DbFull));
            assert_eq!(gate(request, |node| node.open_conns = u32::MAX), Err(Gate::DbFull));
        }
    }

    #[test]
    fn a_warm_idle_pool_is_open_although_every_connection_is_opened() {
        let warm = NodeStats { open_conns: 100, idle_conns: 100, ..example_node() };
        let db_free_counting_idle = 1.0 - f64::from(warm.open_conns) / f64::from(warm.max_open_conns);
        assert!(db_free_counting_idle <= 0.0, "counting idle connections as used would close the gate");
        for request in DATABASE {
            assert_eq!(Limits::default().gate(&warm, request), Ok(()));
        }
    }

    #[test]
    fn a_twentieth_of_the_transaction_connections_free_is_enough_to_begin() {
        for (running_tx, max, outcome) in
            [(19, 20, Ok(())), (20, 20, Err(Gate::TxFull)), (95, 100, Ok(())), (96, 100, Err(Gate::TxFull))]
        {
            let change = |node: &mut NodeStats| {
                node.running_tx = running_tx;
                node.max_transaction_conns = max;
            };
            assert_eq!(gate(RequestKind::BeginTx, change), outcome, "{running_tx} of {max}");
            assert_eq!(gate(RequestKind::Query, change), Ok(()));
            assert_eq!(gate(RequestKind::Execute, change), Ok(()));
        }
    }

    #[test]
    fn no_transaction_begins_while_twenty_requests_wait() {
        assert_eq!(gate(RequestKind::BeginTx, |node| node.wait_conn_count = 19), Ok(()));
        assert_eq!(gate(RequestKind::BeginTx, |node| node.wait_conn_count = 20), Err(Gate::PoolWaiting));
        assert_eq!(gate(RequestKind::Query, |node| node.wait_conn_count = 20), Ok(()));
    }

    #[test]
    fn the_error_gate_closes_at_the_rate_that_scores_0() {
        for request in STATEMENTS {
            assert_eq!(gate(request, |node| node.error_rate_1m = 0.0499), Ok(()));
            for bad in [0.05, 1.0, f64::NAN, -0.1] {
                assert_eq!(gate(request, |node| node.error_rate_1m = bad), Err(Gate::ErrorsTooMany));
            }
        }
        assert_eq!(gate(RequestKind::BeginTx, |node| node.error_rate_1m = 0.05), Ok(()));
        assert_eq!(gate(RequestKind::Infer, |node| node.error_rate_1m = 0.05), Ok(()));
    }

    #[test]
    fn the_latency_gate_closes_at_the_value_that_scores_0() {
        for request in STATEMENTS {
            assert_eq!(gate(request, |node| node.p95_latency_ms = 1999.9), Ok(()));
            for bad in [2000.0, f64::INFINITY, f64::NAN, -1.0] {
                assert_eq!(gate(request, |node| node.p95_latency_ms = bad), Err(Gate::LatencyTooBad));
            }
        }
        assert_eq!(gate(RequestKind::BeginTx, |node| node.p95_latency_ms = 2000.0), Ok(()));
        assert_eq!(gate(RequestKind::Infer, |node| node.p95_latency_ms = 2000.0), Ok(()));
    }

    #[test]
    fn inference_needs_a_slot_and_no_database() {
        let no_database = |node: &mut NodeStats| {
            node.max_open_conns = 0;
            node.max_transaction_conns = 0;
        };
        assert_eq!(gate(RequestKind::Infer, no_database), Ok(()));
        assert_eq!(gate(RequestKind::Infer, |node| node.running_http_session = 119), Ok(()));
        assert_eq!(gate(RequestKind::Infer, |node| node.running_http_session = 120), Err(Gate::SlotsFull));
        assert_eq!(
            gate(RequestKind::Infer, |node| node.max_http_sessions = 0),
            Err(Gate::NoCapacityConfigured)
        );
    }

    #[test]
    fn the_gates_close_at_the_configured_limits() {
        let strict =
            LimitsConfig { lat_bad_ms: 40.0, tx_free_min: 0.91, tx_wait_max: 1, ..LimitsConfig::default() };
        let limits = Limits::new(strict).unwrap();
        assert_eq!(limits.gate(&example_node(), RequestKind::Query), Err(Gate::LatencyTooBad));
        assert_eq!(limits.gate(&example_node(), RequestKind::BeginTx), Err(Gate::TxFull));
        let limits = Limits::new(LimitsConfig { tx_free_min: 0.9, err_bad: 0.01, ..strict }).unwrap();
        assert_eq!(limits.gate(&example_node(), RequestKind::Query), Err(Gate::ErrorsTooMany));
        assert_eq!(limits.gate(&example_node(), RequestKind::BeginTx), Err(Gate::PoolWaiting));
        assert_eq!(limits.assess(&example_node(), RequestKind::BeginTx), Err(Gate::PoolWaiting));
    }

    #[test]
    fn by_capacity_alone_a_slow_and_failing_node_is_open_until_it_is_full() {
        let limits =
            Limits::new(LimitsConfig { gates: GateRule::CapacityOnly, ..LimitsConfig::default() }).unwrap();
        let poor = NodeStats {
            p95_latency_ms: f64::INFINITY,
            error_rate_1m: 1.0,
            wait_conn_count: 1_000,
            running_tx: 49,
            ..example_node()
        };
        for request in DATABASE {
            assert_eq!(limits.gate(&poor, request), Ok(()));
            assert!(Limits::default().gate(&poor, request).is_err(), "quality gates exclude it");
            let full = NodeStats { open_conns: 110, ..poor };
            assert_eq!(limits.gate(&full, request), Err(Gate::DbFull));
            let down = NodeStats { status: Status::Down, ..poor };
            assert_eq!(limits.gate(&down, request), Err(Gate::NotServing(Status::Down)));
        }
        let without_places = NodeStats { running_tx: 50, ..poor };
        assert_eq!(limits.gate(&without_places, RequestKind::BeginTx), Err(Gate::TxFull));
        assert_eq!(limits.gate(&without_places, RequestKind::Query), Ok(()));
    }

    #[test]
    fn each_gate_has_its_own_message() {
        let messages = [
            (Gate::NotServing(Status::Draining), "node is DRAINING"),
            (Gate::NotServing(Status::Down), "node is DOWN"),
            (Gate::NotServing(Status::Serving), "node is SERVING"),
            (Gate::NoCapacityConfigured, "node has no capacity configured"),
            (Gate::SlotsFull, "every slot is taken"),
            (Gate::DbFull, "every database connection is in use"),
            (Gate::TxFull, "too few transaction connections are free"),
            (Gate::PoolWaiting, "too many requests wait for a database connection"),
            (Gate::ErrorsTooMany, "error rate is too high"),
            (Gate::LatencyTooBad, "latency is too high"),
        ];
        for (gate, message) in messages {
            assert_eq!(gate.to_string(), message);
        }
    }

    /// Applies the default gates to the example node after `change`.
    fn gate(request: RequestKind, change: impl Fn(&mut NodeStats)) -> Result<(), Gate> {
        let mut stats = example_node();
        change(&mut stats);
        Limits::default().gate(&stats, request)
    }
}
