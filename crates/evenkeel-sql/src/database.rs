//! One configured database: its datasource, its nodes in the scheduler, its figures.
//!
//! PostgreSQL is one node with a slot per connection. SQLite is two: the readers, and the writer with one slot.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

use evenkeel_pipeline::{
    Arrival, AttemptFailure, ModelId, NodeSpec, OutageRule, Priority, RedirectOptions, Redirector,
    RegistryError, Rejection, Slots, TenantFlow,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::score::{NodeStats, RequestKind, Status};
use evenkeel_policy::weight::Weight;
use evenkeel_scheduler::RequestScheduler;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::scheduling::rejection_error;
use evenkeel_server::tenant::Tenant;
use evenkeel_telemetry::RequestName;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::api::SqlStartError;
use crate::datasource::{
    AccessMode, Completion, DatabaseConnection, Datasource, EngineKind, Lease, ReleaseCallback, RowSink,
    Session, Statement,
};
use crate::error::{DatabaseError, SqlError};
use crate::held_slot::{HeldSlot, HeldSlots};
use crate::options::DatasourceOptions;
use crate::stats::{Activity, DatabaseStats, StatementOutcome};

/// A configured database.
pub(crate) struct Database {
    pub(crate) options: DatasourceOptions,
    pub(crate) source: Arc<dyn Datasource>,
    pub(crate) stats: Arc<DatabaseStats>,
    scheduler: Arc<RequestScheduler>,
    held: Arc<HeldSlots>,
    readers: PoolNode,
    /// The same as `readers` on PostgreSQL.
    writers: PoolNode,
    id: OnceCell<String>,
    /// Chooses a peer for requests that find no room here.
    pub(crate) redirector: Mutex<Redirector>,
    /// Error of the last connection that could not be opened.
    last_failure: Mutex<String>,
    /// Set after a failure, until a connection is lent again.
    is_suspect: AtomicBool,
}

/// A node of the scheduler, and the model by which requests for it are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolNode {
    pub(crate) node: NodeId,
    pub(crate) model: ModelId,
}

/// A request for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionRequest<'a> {
    pub(crate) tenant: &'a Tenant,
    pub(crate) kind: RequestKind,
    pub(crate) access: AccessMode,
    pub(crate) deadline: Instant,
    /// Its name in the request log.
    pub(crate) name: RequestName<'a>,
}

/// A lent connection and the slot that it holds.
pub(crate) struct LentConnection {
    pub(crate) connection: Box<dyn DatabaseConnection>,
    pub(crate) held: Arc<HeldSlot>,
    /// Unset while a statement or BEGIN runs; stays unset if it was dropped, stopped or timed out, or if the connection
    /// failed.
    pub(crate) is_clean: bool,
}

impl Database {
    /// Adds the database's nodes to the scheduler. `index` is its position in the configuration.
    pub(crate) fn new(
        index: u32,
        options: DatasourceOptions,
        source: Arc<dyn Datasource>,
        scheduler: Arc<RequestScheduler>,
        held: Arc<HeldSlots>,
        redirect: RedirectOptions,
    ) -> Result<Self, SqlStartError> {
        let limits = redirect.score.limits;
        let redirector = Redirector::new(redirect)?;
        let add = |name: &str, model: ModelId, slots: u32, transactions: u32| {
            let spec = NodeSpec {
                slots: Slots::Fixed(slots),
                weight: Weight::ONE,
                models: vec![model],
                paths: Vec::new(),
                transactions_max: Some(limits.transaction_places(transactions)),
            };
            let node = scheduler.update(|pipeline, now| {
                let node = pipeline.add_node(now, &spec)?;
                // Named inside the update, because its event is logged under that name.
                scheduler.observer().metrics().name_node(node, name);
                Ok::<_, RegistryError>(node)
            })?;
            Ok::<_, RegistryError>(PoolNode { node, model })
        };
        let open = options.max_open_conns;
        let transactions = options.max_transaction_conns;
        let first = ModelId(2 * index);
        let (readers, writers) = match source.engine() {
            EngineKind::Postgres => {
                let node = add(&options.name, first, open, transactions)?;
                (node, node)
            }
            EngineKind::Sqlite => {
                // One connection is the writer's.
                let readers = open.saturating_sub(1).max(1);
                let writer = format!("{}-writer", options.name);
                let readers = add(&options.name, first, readers, transactions.min(readers))?;
                (readers, add(&writer, ModelId(2 * index + 1), 1, 1)?)
            }
        };
        let stats = DatabaseStats::new();
        Ok(Self {
            options,
            source,
            stats,
            scheduler,
            held,
            readers,
            writers,
            id: OnceCell::new(),
            redirector: Mutex::new(redirector),
            last_failure: Mutex::default(),
            is_suspect: AtomicBool::new(false),
        })
    }

    /// Waits for this tenant's turn, then takes a connection.
    pub(crate) async fn connect(&self, request: ConnectionRequest<'_>) -> Result<LentConnection, SqlError> {
        let pool = self.pool(request.access);
        let activity = match request.kind {
            RequestKind::BeginTx => Activity::Transaction,
            RequestKind::Query | RequestKind::Execute | RequestKind::Infer => Activity::Statement,
        };
        let cost = self.stats.expected_cost(activity);
        let arrival = Arrival {
            tenant: request.tenant.id,
            model: pool.model,
            cost,
            upfront: cost,
            affinity: None,
            deadline: Some(request.deadline.saturating_duration_since(Instant::now())),
            request: request.kind,
            priority: Priority::Interactive,
            // No SQL client names a class or a session.
            flow: TenantFlow { session: None, class: request.tenant.class_rule().class(None) },
            outage: OutageRule::Hold,
        };
        let slot = self.scheduler.submit(arrival, request.name).await;
        let slot = slot.map_err(|rejected| self.rejected(pool, &rejected.rejection))?;
        let held = self.held.hold(slot, activity, self.stats.clone());
        let _connecting = Connecting { slots: &self.held, held: held.clone() };
        let release = held.clone();
        let slots = self.held.clone();
        let lease = Lease {
            session: self.session(request.tenant),
            access: request.access,
            on_release: ReleaseCallback::new(move || slots.release(&release)),
        };
        let connected = tokio::time::timeout_at(request.deadline.into(), self.source.connect(lease)).await;
        match connected {
            Ok(Ok(connection)) => {
                self.held.connected(&held);
                if self.is_suspect.swap(false, Ordering::Relaxed) {
                    held.mark_answered();
                }
                Ok(LentConnection { connection, held, is_clean: true })
            }
            Ok(Err(error)) => {
                let is_fault = error.is_node_fault(self.source.engine());
                let failure = is_fault.then_some(AttemptFailure::Unreachable);
                self.held.connect_failed(&held, failure);
                if is_fault {
                    self.record_failure(&error);
                }
                Err(SqlError::Database(error))
            }
            Err(_) => {
                // A time limit says nothing about the node.
                self.held.connect_failed(&held, None);
                Err(SqlError::Api(ApiError::WaitTimeout))
            }
        }
    }

    /// Remembers why no connection could be opened; logs it if it differs from the last reason.
    fn record_failure(&self, error: &DatabaseError) {
        self.is_suspect.store(true, Ordering::Relaxed);
        self.stats.record(self.scheduler.now(), StatementOutcome::Failed);
        let reason = match error {
            DatabaseError::Unavailable { reason } => reason.clone(),
            other => other.to_string(),
        };
        let mut last = self.last_failure.lock();
        // An outage fails many requests in the same way.
        if *last != reason {
            tracing::warn!(datasource = self.options.name, reason, "could not connect to the database");
            *last = reason;
        }
    }

    /// Returns the error for a request that got no slot. If the circuit breaker is open and the wait timed out, it is the
    /// database's last error.
    fn rejected(&self, pool: PoolNode, rejection: &Rejection) -> SqlError {
        let (waiting, is_available) = self
            .scheduler
            .inspect(|pipeline| (pipeline.waiting(pool.model), pipeline.is_available(pool.node)));
        if !is_available && matches!(rejection, Rejection::WaitTimeout { .. } | Rejection::Outage { .. }) {
            let reason = self.last_failure.lock().clone();
            return SqlError::Database(DatabaseError::Unavailable { reason });
        }
        SqlError::Api(rejection_error(rejection, waiting, ApiError::Draining))
    }

    /// Runs a statement until `deadline`. A statement that reaches it is cancelled once the connection is dropped or
    /// recovered.
    pub(crate) async fn run(
        &self,
        lent: &mut LentConnection,
        statement: &Statement,
        sink: &mut dyn RowSink,
        deadline: Instant,
    ) -> Result<Completion, SqlError> {
        let _running = self.stats.begin(Activity::Statement);
        let started = Instant::now();
        lent.is_clean = false;
        let result = tokio::time::timeout_at(deadline.into(), lent.connection.run(statement, sink)).await;
        let outcome = match &result {
            Ok(Ok(completion)) => StatementOutcome::Answered { first_response: completion.first_response },
            Ok(Err(error)) if error.is_node_fault(self.source.engine()) => StatementOutcome::Failed,
            Ok(Err(_)) => StatementOutcome::Answered { first_response: started.elapsed() },
            Err(_) => StatementOutcome::TimedOut,
        };
        self.stats.record(self.scheduler.now(), outcome);
        match outcome {
            StatementOutcome::Answered { .. } => lent.is_clean = true,
            StatementOutcome::Failed => self.mark_failed(lent),
            // A time limit says nothing about the node.
            StatementOutcome::TimedOut => {}
        }
        result.map_err(|_| SqlError::Timeout)?.map_err(SqlError::Database)
    }

    /// Records that the connection failed by the database's fault.
    pub(crate) fn mark_failed(&self, lent: &LentConnection) {
        self.is_suspect.store(true, Ordering::Relaxed);
        lent.held.mark_failed();
    }

    fn session(&self, tenant: &Tenant) -> Session {
        let sql = &tenant.settings.sql;
        Session {
            owner: u64::from_be_bytes(tenant.name_hash),
            role: sql.role.clone().or_else(|| self.options.role.clone()),
            settings: sql.settings.clone(),
        }
    }

    /// Returns the node whose connections serve this kind of access.
    pub(crate) fn pool(&self, access: AccessMode) -> PoolNode {
        match access {
            AccessMode::ReadOnly => self.readers,
            AccessMode::ReadWrite => self.writers,
        }
    }

    /// Reports whether the pool is SQLite's writer.
    pub(crate) fn is_single_writer(&self, pool: PoolNode) -> bool {
        self.writers != self.readers && pool == self.writers
    }

    /// Returns the nodes of this database: one, or SQLite's two.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = PoolNode> {
        let writers = (self.writers != self.readers).then_some(self.writers);
        core::iter::once(self.readers).chain(writers)
    }

    /// Returns the identity of the database, which two nodes share only if they use the same database.
    pub(crate) async fn id(&self) -> Result<&str, DatabaseError> {
        self.id.get_or_try_init(|| self.source.database_id()).await.map(String::as_str)
    }

    /// Returns the identity, once it is known, of a database that other nodes can use too; a SQLite file has one node.
    pub(crate) fn shared_id(&self) -> Option<&str> {
        match self.source.engine() {
            EngineKind::Postgres => self.id.get().map(String::as_str),
            EngineKind::Sqlite => None,
        }
    }

    /// Returns the figures by which the number of requests is limited, and nothing else.
    pub(crate) fn session_counts(&self, draining: bool) -> NodeStats {
        NodeStats {
            running_http_session: self.stats.running(Activity::HttpSession),
            max_http_sessions: to_i32(self.options.max_http_sessions),
            status: if draining { Status::Draining } else { Status::Serving },
            ..NodeStats::default()
        }
    }

    /// Returns the figures of this node for this database.
    pub(crate) fn node_stats(&self, uptime_sec: u64, draining: bool) -> NodeStats {
        let now = self.scheduler.now();
        let gauges = self.source.gauges();
        let quality = self.stats.quality(now);
        let (waiting, serving) = self.scheduler.inspect(|pipeline| {
            let waiting: usize = self.nodes().map(|node| pipeline.waiting(node.model)).sum();
            let is_serving = |node: PoolNode| pipeline.is_available(node.node);
            (waiting, self.nodes().all(is_serving))
        });
        let status = match (draining, serving) {
            (true, _) => Status::Draining,
            (false, true) => Status::Serving,
            (false, false) => Status::Down,
        };
        NodeStats {
            running_http_session: self.stats.running(Activity::HttpSession),
            running_sql: self.stats.running(Activity::Statement),
            running_tx: self.stats.running(Activity::Transaction),
            max_http_sessions: to_i32(self.options.max_http_sessions),
            max_open_conns: to_i32(self.options.max_open_conns),
            max_transaction_conns: to_i32(self.options.max_transaction_conns),
            open_conns: gauges.open,
            idle_conns: gauges.idle,
            wait_conn_count: u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(gauges.waiting),
            p95_latency_ms: quality.p95_latency_ms,
            latency_samples: quality.latency_samples,
            error_rate_1m: quality.error_rate_1m,
            timeouts_1m: quality.timeouts_1m,
            uptime_sec,
            status,
            in_flight: Cost(u64::from(gauges.in_use)),
            latency_estimate_ms: quality.latency_mean_ms,
        }
    }
}

/// Releases the slot if the request is dropped before it got a connection.
struct Connecting<'a> {
    slots: &'a HeldSlots,
    held: Arc<HeldSlot>,
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.slots.abandon(&self.held);
    }
}

fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
