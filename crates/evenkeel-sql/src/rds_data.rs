//! The AWS RDS Data API, for unmodified AWS clients: `/Execute`, `/BatchExecute`, `/BeginTransaction`,
//! `/CommitTransaction` and `/RollbackTransaction`.
//!
//! Guarantees: the signature (SigV4), or the ticket of a request that a peer hands over, is the only credential; the ARN
//! only chooses among the configured datasources. Scheduling, sessions, transactions and limits are those of `/execute` and
//! `/tx/begin`. A batch outside of a transaction takes effect as a whole or not at all. A statement that was started is not
//! started again by the retries of the client.
//!
//! Limits: `timeout_default` for the whole request, the wait for a connection included; `result_bytes_max` for a result.

mod error;
mod named_params;
mod parameter;
mod request;
mod result;
mod started_calls;
mod value;

use std::sync::Arc;
use std::time::Instant;

use evenkeel_pipeline::RedirectMode;
use evenkeel_policy::score::RequestKind;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::AuditScope;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::{Handler, RateLimit, Route, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, Tenant};
use http::{HeaderName, Method, StatusCode};
use serde_json::{Value, json};

use self::request::{BatchRequest, BoundBatch, EndRequest, ExecuteRequest, Target, parse_begin};
use self::result::{DiscardedRows, RdsResult};
pub(crate) use self::started_calls::StartedCalls;
use crate::api::SqlApi;
use crate::database::{ConnectionRequest, Database, LentConnection};
use crate::datasource::{AccessMode, BeginOptions, Statement, TransactionEnd, TransactionStatus};
use crate::error::SqlError;
use crate::handover::FoundTransaction;
use crate::metrics::Operation;
use crate::param::Param;
use crate::received::ReceivedRequest;
use crate::request::{BeginRequest, invalid};
use crate::statement::{bounded, check_outside, commit, run_checked_out, run_in_transaction};
use crate::stats::Activity;
use crate::transaction::{CheckedOut, OpenTransaction};
use crate::transaction_routes::{BegunTransaction, begin_anywhere, end_transaction};

/// Service in the credential scope of signatures.
pub(crate) const SERVICE: &str = "rds-data";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");

/// Adds the routes of the Data API.
pub(crate) fn add_routes(api: &Arc<SqlApi>, routes: &mut Routes) -> Result<(), RouteError> {
    let handlers = [
        ("/Execute", data_handler(api, execute)),
        ("/BatchExecute", data_handler(api, batch_execute)),
        ("/BeginTransaction", data_handler(api, begin)),
        ("/CommitTransaction", data_handler(api, commit_transaction)),
        ("/RollbackTransaction", data_handler(api, rollback_transaction)),
    ];
    for (path, handler) in handlers {
        let route = Route {
            method: Method::POST,
            // The handler verifies the signature.
            access: Access::Unchecked,
            rate_limit: RateLimit::Handler,
            handler,
            error_format: error::error_format,
            audit: AuditScope::All,
        };
        routes.add_route(path, route)?;
    }
    Ok(())
}

/// Creates the handler of an operation. Its responses have the request id in the header that AWS's clients read.
fn data_handler<F, A>(api: &Arc<SqlApi>, serve: F) -> Handler
where
    F: Fn(Arc<SqlApi>, ServerRequest) -> A + Send + Sync + Copy + 'static,
    A: Future<Output = Result<Response, SqlError>> + Send + 'static,
{
    let inner = api.handler_with_errors(Operation::RdsData, error::error_response, serve);
    handler(move |call: ServerRequest| {
        let request_id = call.request_id.clone();
        let response = inner(call);
        async move {
            let mut response = response.await?;
            response.headers_mut().insert(REQUEST_ID, request_id);
            Ok(response)
        }
    })
}

async fn execute(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read_signed(&api, call).await?;
    let tenant = &received.tenant;
    let request = ExecuteRequest::parse(&received.body)?;
    let bytes_max = api.limits.result_bytes_max;
    let mut result = RdsResult::new(request.options, bytes_max);
    let transaction_id = request.transaction_id.as_deref();
    let (database, open) = match find_source(&api, &request.target, transaction_id, &received).await? {
        ConnectionSource::Pool(database) => (database, None),
        ConnectionSource::Transaction(open) => (open.database.clone(), Some(open)),
        ConnectionSource::Elsewhere(response) => return Ok(response),
    };
    let statement = request.statement(database.source.engine(), &api.limits)?;
    let deadline = Instant::now() + api.limits.timeout_default;
    let run = if let Some(open) = open {
        let _session = database.stats.begin(Activity::HttpSession);
        let checked_out = api.transactions.check_out(open).await?;
        api.rds_calls.start(&received.headers, tenant)?;
        run_checked_out(&database, checked_out, &statement, &mut result, deadline).await
    } else {
        received.take_request()?;
        api.check_draining()?;
        let _session = database.stats.begin(Activity::HttpSession);
        let mut lent =
            database.connect(connection_request(&received, RequestKind::Execute, deadline)).await?;
        api.rds_calls.start(&received.headers, tenant)?;
        let run = database.run(&mut lent, &statement, &mut result, deadline).await;
        run.and_then(|completion| check_outside(&lent).map(|()| completion))
    };
    if result.is_too_large() {
        return Err(SqlError::ExecutedResultTooLarge { bytes_max });
    }
    Ok(json_response(StatusCode::OK, full(result.finish(&run?))))
}

async fn batch_execute(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read_signed(&api, call).await?;
    let tenant = &received.tenant;
    let request = BatchRequest::parse(&received.body)?;
    let transaction_id = request.transaction_id.as_deref();
    let (database, open) = match find_source(&api, &request.target, transaction_id, &received).await? {
        ConnectionSource::Pool(database) => (database, None),
        ConnectionSource::Transaction(open) => (open.database.clone(), Some(open)),
        ConnectionSource::Elsewhere(response) => return Ok(response),
    };
    if open.is_none() {
        received.take_request()?;
        api.check_draining()?;
    }
    let BoundBatch { sql, sets } = request.bind(database.source.engine())?;
    let results = vec![json!({"generatedFields": []}); sets.len()];
    let statement =
        Statement { sql, params: Vec::new(), time_max: api.limits.timeout_default, rows_max: None };
    let deadline = Instant::now() + api.limits.timeout_default;
    if let Some(open) = open {
        let _session = database.stats.begin(Activity::HttpSession);
        let checked_out = api.transactions.check_out(open).await?;
        api.rds_calls.start(&received.headers, tenant)?;
        run_batch_in(&database, checked_out, statement, sets, deadline).await?;
    } else {
        let _session = database.stats.begin(Activity::HttpSession);
        let mut lent =
            database.connect(connection_request(&received, RequestKind::BeginTx, deadline)).await?;
        api.rds_calls.start(&received.headers, tenant)?;
        run_batch(&database, &mut lent, statement, sets, deadline).await?;
    }
    Ok(ok(&json!({"updateResults": results})))
}

/// Runs a statement with each parameter set, in a transaction of its own. An error drops the connection, which rolls it back.
async fn run_batch(
    database: &Database,
    lent: &mut LentConnection,
    mut statement: Statement,
    sets: Vec<Vec<Param>>,
    deadline: Instant,
) -> Result<(), SqlError> {
    let _open = database.stats.begin(Activity::Transaction);
    let options = BeginOptions { isolation: None, access: AccessMode::ReadWrite };
    bounded(deadline, lent.connection.begin(options)).await?;
    for params in sets {
        statement.params = params;
        database.run(lent, &statement, &mut DiscardedRows, deadline).await?;
        if lent.connection.transaction_status() == TransactionStatus::Idle {
            return Err(SqlError::TransactionInList);
        }
    }
    commit(deadline, lent).await
}

/// Runs a statement with each parameter set, in an open transaction, which no other request can use meanwhile.
async fn run_batch_in(
    database: &Database,
    checked_out: CheckedOut,
    mut statement: Statement,
    sets: Vec<Vec<Param>>,
    deadline: Instant,
) -> Result<(), SqlError> {
    let mut checked_out = Some(checked_out);
    for params in sets {
        statement.params = params;
        let Some(connection) = checked_out.take() else { return Err(SqlError::TransactionInList) };
        let run = run_in_transaction(database, connection, &statement, &mut DiscardedRows, deadline).await?;
        checked_out = run.still_open;
    }
    Ok(())
}

async fn begin(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read_signed(&api, call).await?;
    let target = parse_begin(&received.body)?;
    let database = find_database(&api, &target, &received.tenant)?;
    let request = BeginRequest {
        database: Some(database.options.name.clone()),
        options: BeginOptions { isolation: None, access: AccessMode::ReadWrite },
        timeout: api.limits.timeout_default,
    };
    match begin_anywhere(&api, &received, request, RedirectMode::Forward).await? {
        BegunTransaction::Here { tx_id } => Ok(ok(&json!({"transactionId": tx_id}))),
        BegunTransaction::Elsewhere(response) => Ok(response),
    }
}

async fn commit_transaction(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    end(api, call, TransactionEnd::Commit).await
}

async fn rollback_transaction(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    end(api, call, TransactionEnd::Rollback).await
}

async fn end(api: Arc<SqlApi>, call: ServerRequest, end: TransactionEnd) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read_signed(&api, call).await?;
    let request = EndRequest::parse(&received.body)?;
    let open = match find_source(&api, &request.target, Some(&request.transaction_id), &received).await? {
        ConnectionSource::Transaction(open) => open,
        ConnectionSource::Elsewhere(response) => return Ok(response),
        ConnectionSource::Pool(_) => return Err(SqlError::InvalidTxId),
    };
    end_transaction(&api, open, end).await?;
    Ok(ok(&json!({"transactionStatus": match end {
        TransactionEnd::Commit => "Transaction Committed",
        TransactionEnd::Rollback => "Rollback Complete",
    }})))
}

fn connection_request(
    received: &ReceivedRequest,
    kind: RequestKind,
    deadline: Instant,
) -> ConnectionRequest<'_> {
    let tenant = &received.tenant;
    ConnectionRequest { tenant, kind, access: AccessMode::ReadWrite, deadline, name: received.ids.name() }
}

/// The place where a request gets its connection.
enum ConnectionSource {
    Pool(Arc<Database>),
    Transaction(Arc<OpenTransaction>),
    /// Another node owns the transaction, and this is its response.
    Elsewhere(Response),
}

/// Finds the datasource that the ARN names, or a transaction of it.
///
/// It never hands over a statement outside a transaction: only this node recognises a retry.
async fn find_source(
    api: &SqlApi,
    target: &Target,
    transaction_id: Option<&str>,
    received: &ReceivedRequest,
) -> Result<ConnectionSource, SqlError> {
    let Some(id) = transaction_id else {
        return Ok(ConnectionSource::Pool(find_database(api, target, &received.tenant)?.clone()));
    };
    let open = match api.find_transaction(id, received, api.limits.timeout_default).await? {
        FoundTransaction::Here(open) => open,
        FoundTransaction::Elsewhere(response) => return Ok(ConnectionSource::Elsewhere(response)),
    };
    let datasource = &open.database.options.name;
    if *datasource != target.datasource {
        let message = format!("the transaction is one of datasource {datasource:?}");
        return Err(invalid("resourceArn", message).into());
    }
    check_database_name(&open.database, target)?;
    Ok(ConnectionSource::Transaction(open))
}

/// Finds the datasource that the ARN names.
fn find_database<'a>(
    api: &'a SqlApi,
    target: &Target,
    tenant: &Tenant,
) -> Result<&'a Arc<Database>, SqlError> {
    let database = api.database(Some(&target.datasource), tenant)?;
    check_database_name(database, target)?;
    Ok(database)
}

/// Rejects a database name that is neither the datasource's nor that of its database.
fn check_database_name(database: &Database, target: &Target) -> Result<(), ApiError> {
    let names = [Some(database.options.name.as_str()), database.source.database_name()];
    match target.database.as_deref() {
        Some(name) if !names.contains(&Some(name)) => {
            let message = format!(
                "database {name:?} is not that of datasource {:?}; leave out database",
                target.datasource
            );
            Err(invalid("database", message))
        }
        Some(_) | None => Ok(()),
    }
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, full(body.to_string()))
}
