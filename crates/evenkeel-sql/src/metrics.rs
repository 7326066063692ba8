//! Metrics of the SQL API: requests by operation and code, and every figure of `/healthz` as a gauge.
//!
//! Limits: operations and datasources are fixed at start; codes beyond [`CODES_MAX`] are counted as `other`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::score::{NodeStats, Status};
use evenkeel_server::body::Response;
use evenkeel_telemetry::{
    Counter, DURATION_BOUNDS, Family, FloatGauge, Histogram, Label, MetricDesc, RegisterError, Registry,
};

use crate::database::Database;
use crate::error::SqlError;

const REQUESTS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_sql_requests_total", "requests of the SQL API, by operation and code");
const REQUEST_SECONDS: MetricDesc = MetricDesc::new(
    "evenkeel_sql_request_seconds",
    "duration of successful requests of the SQL API until the head of the response, by operation",
);
const NODE: MetricDesc = MetricDesc::new(
    "evenkeel_sql_node",
    "figures of this node by which nodes are compared, by datasource and figure; status is 1 while serving",
);
const OK: &str = "OK";
/// Maximum number of values of the label `code`.
const CODES_MAX: usize = 128;
/// Figures of a datasource.
const FIGURES: usize = 15;

/// An operation of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Query,
    Execute,
    Begin,
    Commit,
    Rollback,
    Neon,
    RdsData,
    Hrana,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Query,
        Self::Execute,
        Self::Begin,
        Self::Commit,
        Self::Rollback,
        Self::Neon,
        Self::RdsData,
        Self::Hrana,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Execute => "execute",
            Self::Begin => "begin",
            Self::Commit => "commit",
            Self::Rollback => "rollback",
            Self::Neon => "neon",
            Self::RdsData => "rds-data",
            Self::Hrana => "hrana",
        }
    }
}

pub(crate) struct SqlMetrics {
    requests: Family<Counter, 2>,
    /// One per [`Operation`].
    operations: Vec<OperationMetrics>,
    node: Family<FloatGauge, 2>,
}

/// Metrics of an operation's successful requests.
struct OperationMetrics {
    requests: Counter,
    seconds: Histogram,
}

impl SqlMetrics {
    pub(crate) fn new(registry: &Registry, databases: &[Arc<Database>]) -> Result<Self, RegisterError> {
        let operation = Label { name: "operation", values_max: Operation::ALL.len() };
        let code = Label { name: "code", values_max: CODES_MAX };
        let datasource = Label { name: "datasource", values_max: databases.len().max(1) };
        let figure = Label { name: "figure", values_max: FIGURES };
        let requests = registry.counters(REQUESTS_TOTAL, [operation, code])?;
        let seconds = registry.histograms(REQUEST_SECONDS, [operation], DURATION_BOUNDS)?;
        let operations = Operation::ALL.iter().map(|operation| OperationMetrics {
            requests: requests.with([operation.name(), OK]),
            seconds: seconds.with([operation.name()]),
        });
        let operations = operations.collect();
        Ok(Self { requests, operations, node: registry.float_gauges(NODE, [datasource, figure])? })
    }

    /// Counts a request.
    pub(crate) fn record(
        &self,
        operation: Operation,
        result: &Result<Response, SqlError>,
        elapsed: Duration,
    ) {
        match result {
            Ok(_) => {
                let metrics = &self.operations[operation as usize];
                metrics.requests.count();
                metrics.seconds.record(elapsed);
            }
            Err(error) => self.requests.with([operation.name(), error.code()]).count(),
        }
    }

    pub(crate) fn set_gauges(&self, datasource: &str, stats: &NodeStats) {
        let is_serving = stats.status == Status::Serving;
        let figures: [(&str, f64); FIGURES] = [
            ("runningHttpSession", stats.running_http_session.into()),
            ("runningSql", stats.running_sql.into()),
            ("runningTx", stats.running_tx.into()),
            ("maxHttpSessions", stats.max_http_sessions.into()),
            ("maxOpenConns", stats.max_open_conns.into()),
            ("maxTransactionConns", stats.max_transaction_conns.into()),
            ("openConns", stats.open_conns.into()),
            ("idleConns", stats.idle_conns.into()),
            ("waitConnCount", stats.wait_conn_count.into()),
            ("p95LatencyMs", stats.p95_latency_ms),
            ("latencySamples", stats.latency_samples.into()),
            ("errorRate1m", stats.error_rate_1m),
            ("timeouts1m", stats.timeouts_1m.into()),
            ("uptimeSec", stats.uptime_sec as f64),
            ("status", f64::from(u8::from(is_serving))),
        ];
        for (figure, value) in figures {
            self.node.with([datasource, figure]).set(value);
        }
    }
}
