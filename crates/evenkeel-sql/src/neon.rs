//! `POST /sql`: the HTTP protocol of Neon's serverless driver, for PostgreSQL.
//!
//! Guarantees: the connection string only chooses among the configured datasources and the tenants; it never names a
//! server. Nothing is kept from one request to the next, so each may have credentials of its own. Scheduling, sessions
//! and limits are those of `/execute`.
//!
//! Limits: `statements_max` queries per batch; `timeout_default` for the whole request, the wait for a connection
//! included; `result_bytes_max` for all results together.

mod connection_string;
mod error;
mod request;
mod result;

use std::sync::Arc;
use std::time::Instant;

use evenkeel_pipeline::RedirectMode;
use evenkeel_policy::score::RequestKind;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::Tenant;
use http::StatusCode;

use self::connection_string::ConnectionString;
pub(crate) use self::error::{error_format, error_response};
use self::request::{BatchOptions, Deferral, NeonRequest, Queries};
use self::result::{NeonResult, RowFormat};
use crate::api::SqlApi;
use crate::database::{ConnectionRequest, Database, LentConnection};
use crate::datasource::{AccessMode, EngineKind, Statement, TransactionStatus};
use crate::error::{DatabaseError, SqlError};
use crate::handover::HandoverRequest;
use crate::received::ReceivedRequest;
use crate::statement::{bounded, check_outside, commit};
use crate::stats::Activity;

/// Serves `/sql`.
pub(crate) async fn serve(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let target = ConnectionString::from_headers(call.request.headers())?;
    let key = target.password.as_deref().unwrap_or_default();
    let received = ReceivedRequest::read_as(&api, call, |auth, _| auth.tenant_with_key(key)).await?;
    let tenant = &received.tenant;
    let request = NeonRequest::parse(&received.headers, &received.body, &api.limits)?;
    received.take_request()?;
    let database = find_database(&api, target.database.as_deref(), tenant)?;
    let (kind, access) = match &request.queries {
        Queries::One(_) => (RequestKind::Execute, AccessMode::ReadWrite),
        Queries::Batch { options, .. } => (RequestKind::BeginTx, options.begin.access),
    };
    let deadline = Instant::now() + api.limits.timeout_default;
    let handover = HandoverRequest {
        received: &received,
        database,
        kind,
        access,
        deadline,
        // The driver does not know of peers.
        mode: RedirectMode::Forward,
    };
    if let Some(response) = api.hand_over(handover).await? {
        return Ok(response);
    }
    api.check_draining()?;
    let _session = database.stats.begin(Activity::HttpSession);
    let connection = ConnectionRequest { tenant, kind, access, deadline, name: received.ids.name() };
    let lent = database.connect(connection).await?;
    let bytes_max = api.limits.result_bytes_max;
    let mut runner = Runner { database, lent, format: request.format, bytes_max, deadline };
    let body = match &request.queries {
        Queries::One(statement) => {
            let body = runner.run(statement, bytes_max).await?;
            check_outside(&runner.lent)?;
            body
        }
        Queries::Batch { statements, options } => runner.run_batch(statements, *options).await?,
    };
    Ok(json_response(StatusCode::OK, full(body)))
}

/// Finds the datasource that a connection string's database names; `None` names the default.
fn find_database<'a>(
    api: &'a SqlApi,
    name: Option<&str>,
    tenant: &Tenant,
) -> Result<&'a Arc<Database>, SqlError> {
    let datasource = name.map(|name| datasource_name(api, name)).transpose()?;
    let database = api.database(datasource, tenant)?;
    match database.source.engine() {
        EngineKind::Postgres => Ok(database),
        EngineKind::Sqlite => {
            let what =
                format!("/sql is for PostgreSQL, and datasource {:?} is SQLite", database.options.name);
            Err(SqlError::Database(DatabaseError::Unsupported { what }))
        }
    }
}

/// Returns the name of the datasource that has this name, or whose PostgreSQL database has it.
fn datasource_name<'a>(api: &'a SqlApi, name: &str) -> Result<&'a str, SqlError> {
    if let Some(datasource) = api.datasources().find(|datasource| *datasource == name) {
        return Ok(datasource);
    }
    let mut named = api.databases.iter().filter(|database| database.source.database_name() == Some(name));
    let first = named.next().ok_or_else(|| SqlError::UnknownDatabase { name: name.to_owned() })?;
    if named.next().is_some() {
        let message = format!(
            "several datasources have a PostgreSQL database {name:?}; \
             name the datasource in the connection string instead"
        );
        return Err(ApiError::invalid(message).into());
    }
    Ok(&first.options.name)
}

/// Runs the queries of one request on its connection.
struct Runner<'a> {
    database: &'a Database,
    lent: LentConnection,
    format: RowFormat,
    /// Largest size of all results together.
    bytes_max: usize,
    deadline: Instant,
}

impl Runner<'_> {
    /// Runs a query and returns its result as JSON, which may have `bytes_left` bytes.
    async fn run(&mut self, statement: &Statement, bytes_left: usize) -> Result<Vec<u8>, SqlError> {
        let mut result = NeonResult::new(self.format, bytes_left);
        let run = self.database.run(&mut self.lent, statement, &mut result, self.deadline).await;
        if result.is_too_large() {
            return Err(SqlError::ExecutedResultTooLarge { bytes_max: self.bytes_max });
        }
        Ok(result.finish(&run?))
    }

    /// Runs queries in one transaction. An error drops the connection, which rolls the transaction back.
    async fn run_batch(
        &mut self,
        statements: &[Statement],
        options: BatchOptions,
    ) -> Result<Vec<u8>, SqlError> {
        let _open = self.database.stats.begin(Activity::Transaction);
        bounded(self.deadline, self.lent.connection.begin(options.begin)).await?;
        if options.deferral == Deferral::Deferrable {
            let defer = Statement {
                sql: "SET TRANSACTION DEFERRABLE".to_owned(),
                params: Vec::new(),
                time_max: self.deadline.saturating_duration_since(Instant::now()),
                rows_max: None,
            };
            self.run(&defer, self.bytes_max).await?;
        }
        let mut body = br#"{"results":["#.to_vec();
        for (index, statement) in statements.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            let bytes_left = self.bytes_max.saturating_sub(body.len());
            let result = self.run(statement, bytes_left).await.map_err(|error| match error {
                // The error rolls the batch back, so nothing of it was executed.
                SqlError::ExecutedResultTooLarge { bytes_max } => SqlError::ResultTooLarge { bytes_max },
                other => other,
            })?;
            if self.lent.connection.transaction_status() == TransactionStatus::Idle {
                return Err(SqlError::TransactionInList);
            }
            body.extend_from_slice(&result);
        }
        commit(self.deadline, &mut self.lent).await?;
        body.extend_from_slice(b"]}");
        Ok(body)
    }
}
