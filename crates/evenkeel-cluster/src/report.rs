//! Reports of a node's figures to its peers: their JSON form, and the checks that a received report passes.
//!
//! Guarantees: a report that names another node, or has a figure that cannot be true, is an error with a reason, and
//! never a panic. Unknown fields are ignored, so that nodes of different versions understand each other.
//!
//! Limits: [`POOLS_MAX`] pools, [`TEXT_BYTES_MAX`] bytes per text, [`REPORT_BYTES_MAX`] bytes in all.

use core::fmt;
use std::collections::HashSet;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::score::{NodeStats, Status};
use evenkeel_policy::time::Duration;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::millis;

/// Maximum number of pools in a report.
pub const POOLS_MAX: usize = 256;
/// Maximum length of a pool's name or database id.
pub const TEXT_BYTES_MAX: usize = 256;
/// Maximum size of a report.
pub const REPORT_BYTES_MAX: usize = 256 * 1024;
/// Largest latency that a node can report: a day.
const LATENCY_MS_MAX: f64 = 86_400_000.0;

/// Figures of a node as it reports them to its peers.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    pub status: Status,
    /// Databases whose identity is known.
    pub pools: Vec<PoolReport>,
}

/// Figures of one database at one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    /// Identity of the database; equal at two nodes that reach the same one.
    pub database_id: String,
    pub name: String,
    #[serde(with = "WireStats")]
    pub stats: NodeStats,
}

/// Identity of one run of a node, drawn at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId(pub u64);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A valid report of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedReport {
    pub boot: BootId,
    /// Number of the report within its boot.
    pub sequence: u64,
    /// The peer's clock when it wrote the report: milliseconds since its start.
    pub clock_ms: u64,
    /// Time at which the poll was sent, or the forwarded response arrived; the figures of a poll are not older.
    pub measured_at: Instant,
    pub received_at: Instant,
    pub status: Status,
    pub pools: Vec<PoolReport>,
}

impl ReceivedReport {
    /// Returns the greatest age of the figures.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.measured_at)
    }

    /// Returns the peer's clock, extrapolated to now; it is behind by the time that the report travelled.
    pub fn clock_ms_at(&self, now: Instant) -> u64 {
        self.clock_ms.saturating_add(millis(now.saturating_duration_since(self.received_at)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReport {
    node: String,
    boot: String,
    sequence: u64,
    clock_ms: u64,
    #[serde(with = "WireStatus")]
    status: Status,
    pools: Vec<PoolReport>,
}

/// JSON form of [`NodeStats`], under the names of the load-balancing specification.
#[derive(Serialize, Deserialize)]
#[serde(remote = "NodeStats", rename_all = "camelCase")]
struct WireStats {
    running_http_session: u32,
    running_sql: u32,
    running_tx: u32,
    max_http_sessions: i32,
    max_open_conns: i32,
    max_transaction_conns: i32,
    open_conns: u32,
    idle_conns: u32,
    wait_conn_count: u32,
    p95_latency_ms: f64,
    latency_samples: u32,
    error_rate_1m: f64,
    timeouts_1m: u32,
    uptime_sec: u64,
    #[serde(with = "WireStatus")]
    status: Status,
    #[serde(with = "WireCost")]
    in_flight: Cost,
    latency_estimate_ms: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Status", rename_all = "UPPERCASE")]
enum WireStatus {
    Serving,
    Draining,
    Down,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cost")]
struct WireCost(u64);

/// The node that writes a report, and the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origination<'a> {
    pub(crate) node: &'a str,
    pub(crate) boot: BootId,
    pub(crate) sequence: u64,
    pub(crate) clock_ms: u64,
}

/// Writes a report as JSON.
pub(crate) fn to_json(report: NodeReport, by: Origination<'_>) -> Vec<u8> {
    let wire = WireReport {
        node: by.node.to_owned(),
        boot: by.boot.to_string(),
        sequence: by.sequence,
        clock_ms: by.clock_ms,
        status: report.status,
        pools: report.pools,
    };
    serde_json::to_vec(&wire).expect("a report has no map and no fallible value")
}

/// Parses and checks a report that `node` is expected to have written.
pub(crate) fn parse(json: &[u8], node: &str, received_at: Instant) -> Result<ReceivedReport, ReportError> {
    let wire: WireReport =
        serde_json::from_slice(json).map_err(|error| ReportError::Json { error: error.to_string() })?;
    if wire.node != node {
        return Err(ReportError::OtherNode { name: wire.node.chars().take(64).collect() });
    }
    if wire.boot.len() != 16 {
        return Err(ReportError::Boot);
    }
    let boot = u64::from_str_radix(&wire.boot, 16).map_err(|_| ReportError::Boot)?;
    if POOLS_MAX < wire.pools.len() {
        return Err(ReportError::TooManyPools { pools: wire.pools.len() });
    }
    let mut names = HashSet::new();
    for (index, pool) in wire.pools.iter().enumerate() {
        check(pool).map_err(|reason| ReportError::Pool { index, reason })?;
        if !names.insert(&pool.name) {
            return Err(ReportError::Pool { index, reason: "its name is not unique" });
        }
    }
    Ok(ReceivedReport {
        boot: BootId(boot),
        sequence: wire.sequence,
        clock_ms: wire.clock_ms,
        measured_at: received_at,
        received_at,
        status: wire.status,
        pools: wire.pools,
    })
}

/// Checks the texts and figures of a pool.
fn check(pool: &PoolReport) -> Result<(), &'static str> {
    let stats = &pool.stats;
    let is_text = |text: &str| (1..=TEXT_BYTES_MAX).contains(&text.len());
    let is_latency = |ms: f64| (0.0..=LATENCY_MS_MAX).contains(&ms);
    if !is_text(&pool.name) {
        return Err("its name is empty or too long");
    }
    if !is_text(&pool.database_id) {
        return Err("its database id is empty or too long");
    }
    if stats.open_conns < stats.idle_conns {
        return Err("it has more idle connections than open ones");
    }
    if !is_latency(stats.p95_latency_ms) || !is_latency(stats.latency_estimate_ms) {
        return Err("a latency is negative or longer than a day");
    }
    if !(0.0..=1.0).contains(&stats.error_rate_1m) {
        return Err("the error rate is not between 0 and 1");
    }
    Ok(())
}

/// A report that is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("the report is not valid: {error}")]
    Json { error: String },
    #[error("the report names another node, {name:?}")]
    OtherNode { name: String },
    #[error("the boot id is not 16 hexadecimal digits")]
    Boot,
    #[error("the report has {pools} pools, the limit is {POOLS_MAX}")]
    TooManyPools { pools: usize },
    #[error("pool {index} of the report is not valid: {reason}")]
    Pool { index: usize, reason: &'static str },
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stats() -> NodeStats {
        NodeStats { open_conns: 9, idle_conns: 4, status: Status::Serving, ..NodeStats::default() }
    }

    /// Writes a report with one pool as JSON that a test can change.
    fn written() -> Value {
        let pool = PoolReport { database_id: "7/shop".to_owned(), name: "shop".to_owned(), stats: stats() };
        let report = NodeReport { status: Status::Draining, pools: vec![pool] };
        let by = Origination { node: "b", boot: BootId(0xab), sequence: 7, clock_ms: 1_500 };
        serde_json::from_slice(&to_json(report, by)).unwrap()
    }

    fn parsed(json: &Value) -> Result<ReceivedReport, ReportError> {
        parse(json.to_string().as_bytes(), "b", Instant::now())
    }

    #[test]
    fn a_written_report_is_read_and_its_clock_goes_on() {
        let json = written();
        assert_eq!((&json["boot"], &json["status"]), (&json!("00000000000000ab"), &json!("DRAINING")));
        let report = parsed(&json).unwrap();
        assert_eq!((report.boot, report.sequence, report.clock_ms), (BootId(0xab), 7, 1_500));
        assert_eq!((report.status, report.pools[0].stats), (Status::Draining, stats()));
        assert_eq!(report.clock_ms_at(report.received_at + Duration::from_millis(20)), 1_520);
    }

    #[test]
    fn a_report_of_another_node_or_boot_is_an_error() {
        let mut json = written();
        json["node"] = json!("c");
        assert_eq!(parsed(&json), Err(ReportError::OtherNode { name: "c".to_owned() }));
        for boot in ["", "ab", "00000000000000zz", "000000000000000ab"] {
            let mut json = written();
            json["boot"] = json!(boot);
            assert_eq!(parsed(&json), Err(ReportError::Boot));
        }
    }

    #[test]
    fn a_figure_outside_of_its_type_is_an_error() {
        for (figure, value) in [
            ("runningSql", json!(-1)),
            ("runningHttpSession", json!(4_294_967_296_u64)),
            ("maxOpenConns", json!(3_000_000_000_u64)),
            ("uptimeSec", json!(1.5)),
            ("errorRate1m", json!(null)),
            ("p95LatencyMs", json!("fast")),
            ("status", json!("BUSY")),
            ("openConns", json!([1])),
        ] {
            let mut json = written();
            json["pools"][0]["stats"][figure] = value;
            assert!(matches!(parsed(&json), Err(ReportError::Json { .. })), "{figure}");
        }
    }

    #[test]
    fn a_text_that_is_no_report_is_an_error() {
        let valid = written().to_string();
        let nested = "[".repeat(100_000);
        let huge = valid.replace("\"p95LatencyMs\":0.0", "\"p95LatencyMs\":1e999");
        assert_ne!(huge, valid);
        for text in ["", "null", "{}", "[]", &valid[1..], &valid[..valid.len() - 1], &nested, &huge] {
            let report = parse(text.as_bytes(), "b", Instant::now());
            assert!(matches!(report, Err(ReportError::Json { .. })), "{report:?}");
        }
        assert!(matches!(parse(b"\xff", "b", Instant::now()), Err(ReportError::Json { .. })));
    }

    #[test]
    fn a_field_of_a_later_version_is_ignored() {
        let mut json = written();
        json["later"] = json!({"a": 1});
        json["pools"][0]["stats"]["later"] = json!(2);
        assert!(parsed(&json).is_ok());
    }
}
