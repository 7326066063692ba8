//! A stream during one request: it runs statements one after the other, in a transaction or each on its own.
//!
//! Outside a transaction the stream takes a connection from the scheduler and keeps it until the end of the request: a
//! reader until the first statement that writes, then the writer. `BEGIN` opens a transaction, whose connection stays with
//! its actor between requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_policy::score::RequestKind;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;

use super::request::HranaStatement;
use super::statement_kind::{ForeignKeyChecks, StatementKind};
use super::stored_sql::StoredSql;
use crate::api::SqlApi;
use crate::database::{ConnectionRequest, Database, LentConnection};
use crate::datasource::{
    AccessMode, BeginOptions, Completion, EngineKind, RowSink, RowsEnd, Statement, StatementDescription,
    TransactionEnd,
};
use crate::error::{DatabaseError, SqlError, StatementError};
use crate::received::RequestIds;
use crate::statement::{bounded, check_outside, commit, run_checked_out};
use crate::stats::{Activity, ActivityGuard};
use crate::transaction::{EndedBy, OpenTransaction};
use crate::transaction_routes::{TransactionStart, begin_transaction, end_checked_out};

/// State of a stream between two requests, kept with its transaction.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// Number of the next request, which its baton must contain.
    turn: u64,
    stored: StoredSql,
}

/// A request that needs a stream.
pub(super) struct StreamCall {
    pub(super) api: Arc<SqlApi>,
    pub(super) tenant: Arc<Tenant>,
    pub(super) ids: RequestIds,
    /// `None` means the default.
    pub(super) datasource: Option<String>,
    pub(super) accepted_at: evenkeel_policy::time::Instant,
}

/// A stream that serves a request.
pub(super) struct HranaStream {
    api: Arc<SqlApi>,
    tenant: Arc<Tenant>,
    ids: RequestIds,
    database: Arc<Database>,
    deadline: Instant,
    accepted_at: evenkeel_policy::time::Instant,
    /// Set once the request was counted against the tenant's rate limit.
    is_admitted: bool,
    /// Set once the request had a connection, so that statements may have run.
    has_connected: bool,
    mode: StreamMode,
    pub(super) stored: StoredSql,
    foreign_keys: ForeignKeyChecks,
    /// Set when the client can continue the transaction.
    is_baton_issued: bool,
    _session: ActivityGuard,
}

enum StreamMode {
    /// Each statement is a transaction of its own.
    Autocommit(Option<HeldConnection>),
    Transaction(StreamTransaction),
    /// The transaction ended without a `COMMIT` or `ROLLBACK` of the client, so no other statement may run.
    Lost(SqlError),
}

struct HeldConnection {
    lent: LentConnection,
    access: AccessMode,
}

struct StreamTransaction {
    id: String,
    open: Arc<OpenTransaction>,
}

impl HranaStream {
    /// Opens a new stream, or continues the one that the baton names.
    pub(super) fn open(call: StreamCall, baton: Option<&str>) -> Result<Self, SqlError> {
        let StreamCall { api, tenant, ids, datasource, accepted_at } = call;
        let Some(baton) = baton else {
            tenant.take_request(accepted_at)?;
            api.check_draining()?;
            let database = api.database(datasource.as_deref(), &tenant)?.clone();
            check_engine(&database)?;
            let mode = StreamMode::Autocommit(None);
            let mut stream = Self::new(api, tenant, ids, database, accepted_at, mode);
            stream.is_admitted = true;
            return Ok(stream);
        };
        let (id, turn) = parse_baton(baton).ok_or(SqlError::InvalidTxId)?;
        let open = api.transactions.find_here(id, &tenant)?;
        check_engine(&open.database)?;
        if datasource.is_some_and(|name| name != open.database.options.name) {
            return Err(ApiError::invalid("the baton belongs to a stream of another datasource").into());
        }
        let stored = {
            let mut state = open.stream.lock();
            if turn != state.turn {
                return Err(SqlError::BatonReused);
            }
            state.turn += 1;
            core::mem::take(&mut state.stored)
        };
        let database = open.database.clone();
        let mode = StreamMode::Transaction(StreamTransaction { id: id.to_owned(), open });
        let mut stream = Self::new(api, tenant, ids, database, accepted_at, mode);
        stream.stored = stored;
        Ok(stream)
    }

    fn new(
        api: Arc<SqlApi>,
        tenant: Arc<Tenant>,
        ids: RequestIds,
        database: Arc<Database>,
        accepted_at: evenkeel_policy::time::Instant,
        mode: StreamMode,
    ) -> Self {
        Self {
            _session: database.stats.begin(Activity::HttpSession),
            deadline: Instant::now() + api.limits.timeout_default,
            api,
            tenant,
            ids,
            database,
            accepted_at,
            is_admitted: false,
            has_connected: matches!(mode, StreamMode::Transaction(_)),
            mode,
            stored: StoredSql::default(),
            foreign_keys: ForeignKeyChecks::On,
            is_baton_issued: false,
        }
    }

    pub(super) fn is_autocommit(&self) -> bool {
        matches!(self.mode, StreamMode::Autocommit(_))
    }

    /// Reports whether an error decides the status of the response: the gateway rejected the request, and nothing was
    /// executed, so clients and proxies may retry by the status.
    pub(super) fn is_rejected_by(&self, error: &SqlError) -> bool {
        let is_of_gateway =
            matches!(error, SqlError::Api(error) if !matches!(error, ApiError::Invalid { .. }));
        is_of_gateway && !self.has_connected
    }

    pub(super) fn result_bytes_max(&self) -> usize {
        self.api.limits.result_bytes_max
    }

    /// Returns read-only for a statement that may be stopped at the size limit: a read outside a transaction.
    pub(super) fn access_for(&self, sql: &str) -> AccessMode {
        match StatementKind::of(sql) {
            StatementKind::Read if self.is_autocommit() => AccessMode::ReadOnly,
            _ => AccessMode::ReadWrite,
        }
    }

    /// Reports whether a statement is `BEGIN`, `COMMIT`, `ROLLBACK` or `PRAGMA foreign_keys`, which do not count.
    pub(super) fn is_control(&self, statement: &HranaStatement) -> bool {
        statement.resolve(&self.stored).is_ok_and(|sql| StatementKind::of(&sql).is_control())
    }

    /// Returns the statement to run, with its stored text and its time limit.
    pub(super) fn statement(&self, statement: &HranaStatement) -> Result<Statement, SqlError> {
        let sql = statement.resolve(&self.stored)?;
        Ok(Statement { params: statement.params()?, ..self.plain_statement(sql) })
    }

    /// Returns a statement without parameters.
    pub(super) fn plain_statement(&self, sql: String) -> Statement {
        Statement { sql, params: Vec::new(), time_max: self.time_left(), rows_max: None }
    }

    fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs a statement.
    pub(super) async fn run(
        &mut self,
        statement: &Statement,
        sink: &mut dyn RowSink,
    ) -> Result<Completion, SqlError> {
        match &self.mode {
            StreamMode::Transaction(_) => return self.run_in_transaction(statement, sink).await,
            StreamMode::Lost(error) => return Err(error.clone()),
            StreamMode::Autocommit(_) => {}
        }
        match StatementKind::of(&statement.sql) {
            StatementKind::Begin(access) => self.begin(access).await.map(|()| without_rows("BEGIN")),
            StatementKind::End => Err(no_transaction()),
            StatementKind::SetForeignKeys(checks) => {
                self.foreign_keys = checks;
                Ok(without_rows("PRAGMA"))
            }
            StatementKind::Read => self.run_alone(AccessMode::ReadOnly, statement, sink).await,
            StatementKind::Write => self.run_alone(AccessMode::ReadWrite, statement, sink).await,
        }
    }

    /// Describes a statement without running it.
    pub(super) async fn describe(&mut self, sql: String) -> Result<StatementDescription, SqlError> {
        let statement = self.plain_statement(sql);
        let deadline = self.deadline;
        match &self.mode {
            StreamMode::Transaction(transaction) => {
                let open = transaction.open.clone();
                let mut checked_out = self.api.transactions.check_out_recovered(&open, deadline).await?;
                let Some(lent) = checked_out.connection() else { return Err(SqlError::UnknownTransaction) };
                describe_on(lent, &statement, deadline).await
            }
            StreamMode::Lost(error) => Err(error.clone()),
            StreamMode::Autocommit(_) => {
                let lent = self.connect(AccessMode::ReadOnly).await?;
                let described = describe_on(lent, &statement, deadline).await;
                if !lent.is_clean {
                    self.mode = StreamMode::Autocommit(None);
                }
                described
            }
        }
    }

    async fn begin(&mut self, access: AccessMode) -> Result<(), SqlError> {
        // One connection at a time: two requests that each hold one could wait for each other.
        self.mode = StreamMode::Autocommit(None);
        self.admit()?;
        let deadline = self.deadline;
        let kind = RequestKind::BeginTx;
        let request =
            ConnectionRequest { tenant: &self.tenant, kind, access, deadline, name: self.ids.name() };
        let start = match (self.foreign_keys, access) {
            (ForeignKeyChecks::Off, AccessMode::ReadWrite) => TransactionStart::WithoutForeignKeys,
            _ => TransactionStart::Options(BeginOptions { isolation: None, access }),
        };
        let id = begin_transaction(&self.api, &self.database, request, start).await?;
        let open = self.api.transactions.find_here(&id, &self.tenant)?;
        self.has_connected = true;
        self.mode = StreamMode::Transaction(StreamTransaction { id, open });
        Ok(())
    }

    async fn run_in_transaction(
        &mut self,
        statement: &Statement,
        sink: &mut dyn RowSink,
    ) -> Result<Completion, SqlError> {
        let StreamMode::Transaction(transaction) = &self.mode else {
            return Err(SqlError::UnknownTransaction);
        };
        let open = transaction.open.clone();
        let run = match self.api.transactions.check_out_recovered(&open, self.deadline).await {
            Ok(checked_out) => {
                run_checked_out(&self.database, checked_out, statement, sink, self.deadline).await
            }
            Err(error) => Err(error),
        };
        match self.api.transactions.end_of(&open) {
            None => {}
            Some(SqlError::TransactionEnded(EndedBy::Commit | EndedBy::Rollback)) => {
                self.mode = StreamMode::Autocommit(None);
            }
            Some(error) => self.mode = StreamMode::Lost(error),
        }
        run
    }

    /// Runs a statement that is a transaction of its own.
    async fn run_alone(
        &mut self,
        access: AccessMode,
        statement: &Statement,
        sink: &mut dyn RowSink,
    ) -> Result<Completion, SqlError> {
        let database = self.database.clone();
        let deadline = self.deadline;
        let skips_foreign_keys =
            access == AccessMode::ReadWrite && self.foreign_keys == ForeignKeyChecks::Off;
        let lent = self.connect(access).await?;
        let run = async {
            if skips_foreign_keys {
                bounded(deadline, lent.connection.begin_without_foreign_keys()).await?;
            }
            let completion = database.run(lent, statement, sink, deadline).await?;
            if skips_foreign_keys {
                commit(deadline, lent).await?;
            }
            check_outside(lent)?;
            Ok(completion)
        };
        let result = run.await;
        let is_stopped = result.as_ref().is_ok_and(|completion| completion.end == RowsEnd::Stopped);
        if !lent.is_clean || is_stopped || check_outside(lent).is_err() {
            // Dropping the connection cancels what still runs, and rolls back.
            self.mode = StreamMode::Autocommit(None);
        }
        result
    }

    /// Returns a connection for a statement outside a transaction.
    async fn connect(&mut self, access: AccessMode) -> Result<&mut LentConnection, SqlError> {
        let has_access = match &self.mode {
            StreamMode::Autocommit(Some(held)) => {
                held.access == AccessMode::ReadWrite || access == AccessMode::ReadOnly
            }
            _ => false,
        };
        if !has_access {
            // A reader is given back before the request waits for the writer.
            self.mode = StreamMode::Autocommit(None);
            self.admit()?;
            let kind = match access {
                AccessMode::ReadOnly => RequestKind::Query,
                AccessMode::ReadWrite => RequestKind::Execute,
            };
            let deadline = self.deadline;
            let request =
                ConnectionRequest { tenant: &self.tenant, kind, access, deadline, name: self.ids.name() };
            let lent = self.database.connect(request).await?;
            self.has_connected = true;
            self.mode = StreamMode::Autocommit(Some(HeldConnection { lent, access }));
        }
        match &mut self.mode {
            StreamMode::Autocommit(Some(held)) => Ok(&mut held.lent),
            _ => Err(ApiError::Internal.into()),
        }
    }

    /// Counts the request against the tenant's rate limit, once; fails while the server drains.
    fn admit(&mut self) -> Result<(), SqlError> {
        if !self.is_admitted {
            self.tenant.take_request(self.accepted_at)?;
            self.api.check_draining()?;
            self.is_admitted = true;
        }
        Ok(())
    }

    /// Closes the stream; rolls back an open transaction.
    pub(super) async fn close(&mut self) -> Result<(), SqlError> {
        let open = match &self.mode {
            StreamMode::Transaction(transaction) => transaction.open.clone(),
            StreamMode::Autocommit(_) | StreamMode::Lost(_) => return Ok(()),
        };
        let checked_out = self.api.transactions.check_out_recovered(&open, self.deadline).await;
        self.mode = StreamMode::Autocommit(None);
        match checked_out {
            Ok(checked_out) => end_checked_out(checked_out, TransactionEnd::Rollback, self.deadline).await,
            // A statement that reached its time limit is still being cancelled.
            Err(_) => {
                self.api.transactions.abandon(&open);
                Ok(())
            }
        }
    }

    /// Returns the baton of the next request; `None` if the stream ends with this one.
    pub(super) fn issue_baton(&mut self) -> Option<String> {
        let StreamMode::Transaction(transaction) = &self.mode else { return None };
        self.is_baton_issued = true;
        let mut state = transaction.open.stream.lock();
        // The client may use the baton of a cursor before the cursor ends, which still needs the texts too.
        state.stored = self.stored.clone();
        Some(format!("{}.{}", transaction.id, state.turn))
    }

    /// Takes back a baton that the client cannot have received, so that the transaction ends with the request.
    pub(super) fn withdraw_baton(&mut self) {
        self.is_baton_issued = false;
    }
}

impl Drop for HranaStream {
    fn drop(&mut self) {
        let StreamMode::Transaction(transaction) = &self.mode else { return };
        if !self.is_baton_issued {
            self.api.transactions.abandon(&transaction.open);
        }
    }
}

/// Splits a baton into the id of the transaction and the number of the request.
pub(super) fn parse_baton(baton: &str) -> Option<(&str, u64)> {
    let (id, turn) = baton.rsplit_once('.')?;
    Some((id, turn.parse().ok()?))
}

fn check_engine(database: &Database) -> Result<(), SqlError> {
    match database.source.engine() {
        EngineKind::Sqlite => Ok(()),
        EngineKind::Postgres => {
            let what = format!(
                "Hrana is for SQLite, and datasource {:?} is PostgreSQL; name a SQLite datasource in the URL \
                 (/dev/NAME/)",
                database.options.name
            );
            Err(SqlError::Database(DatabaseError::Unsupported { what }))
        }
    }
}

async fn describe_on(
    lent: &mut LentConnection,
    statement: &Statement,
    deadline: Instant,
) -> Result<StatementDescription, SqlError> {
    lent.is_clean = false;
    let described = bounded(deadline, lent.connection.describe(statement)).await;
    lent.is_clean = !matches!(described, Err(SqlError::Timeout));
    described
}

/// Returns the completion of a statement that the stream handled itself.
fn without_rows(command: &str) -> Completion {
    Completion {
        command: command.to_owned(),
        rows_affected: 0,
        first_response: Duration::ZERO,
        end: RowsEnd::All,
        last_insert_rowid: None,
    }
}

fn no_transaction() -> SqlError {
    let error = StatementError {
        code: "25P01".to_owned(),
        message: "cannot commit or roll back: no transaction is active".to_owned(),
        severity: "ERROR".to_owned(),
        ..StatementError::default()
    };
    SqlError::Database(DatabaseError::Statement(Box::new(error)))
}
