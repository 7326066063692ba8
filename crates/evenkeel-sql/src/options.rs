//! Options of the SQL API.

use std::time::Duration;

use evenkeel_pipeline::{PipelineOptions, RedirectMode};
use evenkeel_policy::score::ScoreConfig;
use evenkeel_server::access_key::MasterKey;

/// Options of the SQL API.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    /// At least one; the first is the default.
    pub datasources: Vec<DatasourceOptions>,
    pub limits: SqlLimits,
    /// Options of the scheduler; its quantum, selection and gates are set by the API.
    pub pipeline: PipelineOptions,
    /// Constants of the load-balancing specification (docs/specs.md).
    pub score: ScoreConfig,
    /// The way in which requests go to a peer, unless the client or the endpoint chooses another.
    pub redirect: RedirectMode,
    /// Name of this node in transaction ids; a cluster has its own.
    pub node: String,
    /// Key that signs transaction ids, unless there is a cluster; stable across restarts, so that an id from before a restart is recognised.
    pub signing_key: [u8; 32],
    /// Key that the secrets of AWS clients are derived from.
    pub master_key: MasterKey,
}

/// One datasource.
#[derive(Clone, Debug)]
pub struct DatasourceOptions {
    pub name: String,
    /// Most connections at once.
    pub max_open_conns: u32,
    /// Most open transactions; below `max_open_conns`, so that plain statements always find a connection.
    pub max_transaction_conns: u32,
    /// Most requests on SQL routes while this node has room.
    pub max_http_sessions: u32,
    /// Role that statements run as, unless the tenant has its own.
    pub role: Option<String>,
}

/// Limits of requests and transactions.
#[derive(Clone, Copy, Debug)]
pub struct SqlLimits {
    /// Time limit of a statement, the wait for a connection included, if the request sets none.
    pub timeout_default: Duration,
    pub timeout_max: Duration,
    /// Largest result of a response that is not streamed.
    pub result_bytes_max: usize,
    /// Statements of one request.
    pub statements_max: usize,
    /// Time after which an idle transaction is rolled back.
    pub transaction_idle_max: Duration,
    /// Time after which an idle transaction above its tenant's share is rolled back while other tenants wait.
    pub transaction_contended_idle_max: Duration,
    /// Time after which any transaction is rolled back.
    pub transaction_time_max: Duration,
    /// Stored responses of requests with an `Idempotency-Key`.
    pub idempotency_entries_max: usize,
    pub idempotency_bytes_max: usize,
    pub idempotency_time_max: Duration,
}

impl Default for SqlLimits {
    fn default() -> Self {
        Self {
            timeout_default: Duration::from_secs(30),
            timeout_max: Duration::from_secs(3_600),
            result_bytes_max: 16 << 20,
            statements_max: 100,
            transaction_idle_max: Duration::from_secs(15),
            transaction_contended_idle_max: Duration::from_secs(1),
            transaction_time_max: Duration::from_secs(600),
            idempotency_entries_max: 10_000,
            idempotency_bytes_max: 64 << 20,
            idempotency_time_max: Duration::from_secs(24 * 3_600),
        }
    }
}
