//! `/tx/begin`, `/tx/commit` and `/tx/rollback`.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use evenkeel_pipeline::RedirectMode;
use evenkeel_policy::score::RequestKind;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::SqlApi;
use crate::database::{ConnectionRequest, Database};
use crate::datasource::{BeginOptions, TransactionEnd, TransactionStatus};
use crate::error::{DatabaseError, SqlError};
use crate::handover::{FoundTransaction, HandoverRequest};
use crate::received::ReceivedRequest;
use crate::request::{BeginRequest, parse_end};
use crate::statement::bounded;
use crate::stats::Activity;
use crate::transaction::{CheckedOut, EndedBy, OpenTransaction};

/// Serves `/tx/begin`.
pub(crate) async fn begin(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read(&api, call).await?;
    let request = BeginRequest::parse(&received.body, &api.limits)?;
    let tx_id = match begin_anywhere(&api, &received, request, api.redirect).await? {
        BegunTransaction::Here { tx_id } => tx_id,
        BegunTransaction::Elsewhere(response) => return Ok(response),
    };
    let expires = SystemTime::now() + api.limits.transaction_idle_max;
    let millis = expires.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    Ok(ok(&json!({"txId": tx_id, "expiresAt": millis})))
}

/// A transaction that was begun here, or the response of the peer that begins it.
pub(crate) enum BegunTransaction {
    Here { tx_id: String },
    Elsewhere(Response),
}

/// Begins a transaction, here or on a peer.
pub(crate) async fn begin_anywhere(
    api: &SqlApi,
    received: &ReceivedRequest,
    request: BeginRequest,
    mode: RedirectMode,
) -> Result<BegunTransaction, SqlError> {
    received.take_request()?;
    let tenant = &received.tenant;
    let database = api.database(request.database.as_deref(), tenant)?;
    let access = request.options.access;
    let kind = RequestKind::BeginTx;
    let deadline = Instant::now() + request.timeout;
    let handover = HandoverRequest { received, database, kind, access, deadline, mode };
    if let Some(response) = api.hand_over(handover).await? {
        return Ok(BegunTransaction::Elsewhere(response));
    }
    api.check_draining()?;
    let _session = database.stats.begin(Activity::HttpSession);
    let connection = ConnectionRequest { tenant, kind, access, deadline, name: received.ids.name() };
    let start = TransactionStart::Options(request.options);
    let tx_id = begin_transaction(api, database, connection, start).await?;
    Ok(BegunTransaction::Here { tx_id })
}

/// The way in which a transaction begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransactionStart {
    Options(BeginOptions),
    /// One that writes, and in which SQLite does not enforce foreign keys.
    WithoutForeignKeys,
}

/// Begins a transaction on a connection that the request waits for; returns its id.
pub(crate) async fn begin_transaction(
    api: &SqlApi,
    database: &Arc<Database>,
    request: ConnectionRequest<'_>,
    start: TransactionStart,
) -> Result<String, SqlError> {
    let mut lent = database.connect(request).await?;
    lent.is_clean = false;
    let begin = match start {
        TransactionStart::Options(options) => lent.connection.begin(options),
        TransactionStart::WithoutForeignKeys => lent.connection.begin_without_foreign_keys(),
    };
    let begun = bounded(request.deadline, begin).await;
    if let Err(SqlError::Database(error)) = &begun
        && error.is_node_fault(database.source.engine())
    {
        database.mark_failed(&lent);
    }
    begun?;
    lent.is_clean = true;
    Ok(api.transactions.open(request.tenant, database, request.access, lent)?)
}

/// Serves `/tx/commit`.
pub(crate) async fn commit(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    end(api, call, TransactionEnd::Commit).await
}

/// Serves `/tx/rollback`.
pub(crate) async fn rollback(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    end(api, call, TransactionEnd::Rollback).await
}

async fn end(api: Arc<SqlApi>, call: ServerRequest, end: TransactionEnd) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read(&api, call).await?;
    let tx_id = parse_end(&received.body)?;
    let open = match api.find_transaction(&tx_id, &received, api.limits.timeout_default).await? {
        FoundTransaction::Here(open) => open,
        FoundTransaction::Elsewhere(response) => return Ok(response),
    };
    end_transaction(&api, open, end).await?;
    Ok(ok(&json!({"status": match end {
        TransactionEnd::Commit => "committed",
        TransactionEnd::Rollback => "rolled back",
    }})))
}

/// Commits or rolls back an open transaction.
pub(crate) async fn end_transaction(
    api: &SqlApi,
    open: Arc<OpenTransaction>,
    end: TransactionEnd,
) -> Result<(), SqlError> {
    let _session = open.database.stats.begin(Activity::HttpSession);
    let checked_out = api.transactions.check_out(open).await?;
    // A client that disconnects does not stop a commit half-way: its outcome would be unknown.
    let deadline = Instant::now() + api.limits.timeout_default;
    let ended = tokio::spawn(end_checked_out(checked_out, end, deadline)).await;
    ended.map_err(|_| ApiError::Internal)?
}

/// Commits or rolls back, and records how the transaction ended.
pub(crate) async fn end_checked_out(
    mut checked_out: CheckedOut,
    end: TransactionEnd,
    deadline: Instant,
) -> Result<(), SqlError> {
    let database = checked_out.open.database.clone();
    let Some(lent) = checked_out.connection() else { return Err(SqlError::UnknownTransaction) };
    let result = tokio::time::timeout_at(deadline.into(), lent.connection.end(end)).await;
    let result = result.unwrap_or(Err(DatabaseError::OutcomeUnknown));
    if result.as_ref().is_err_and(|error| error.is_node_fault(database.source.engine())) {
        database.mark_failed(lent);
    }
    let status = lent.connection.transaction_status();
    match (&result, end) {
        (Ok(()), TransactionEnd::Commit) => checked_out.end(EndedBy::Commit),
        (Ok(()), TransactionEnd::Rollback) => checked_out.end(EndedBy::Rollback),
        (Err(DatabaseError::OutcomeUnknown), TransactionEnd::Commit) => {
            checked_out.end(EndedBy::UnknownOutcome);
        }
        (Err(DatabaseError::OutcomeUnknown | DatabaseError::Unavailable { .. }), _) => {
            checked_out.end(EndedBy::ConnectionLost);
        }
        // Such as a deferred constraint that fails, or a transaction that had failed before.
        (Err(_), _) if status == TransactionStatus::Idle => checked_out.end(EndedBy::FailedCommit),
        // The transaction is still open, such as when SQLite is busy.
        (Err(_), _) => {}
    }
    result.map_err(SqlError::Database)
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, full(body.to_string()))
}
