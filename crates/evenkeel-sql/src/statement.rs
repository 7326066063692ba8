//! `/query` and `/execute`: plain statements, statement lists, and statements of an open transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_pipeline::RedirectMode;
use evenkeel_policy::score::RequestKind;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, completed_channel, full, json_response};
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::Tenant;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use tokio::sync::{mpsc, oneshot};

use crate::api::SqlApi;
use crate::database::{ConnectionRequest, Database, LentConnection};
use crate::datasource::{
    AccessMode, BeginOptions, Completion, RowSink, RowsEnd, Statement, TransactionEnd, TransactionStatus,
};
use crate::error::{DatabaseError, SqlError};
use crate::handover::{FoundTransaction, HandoverRequest};
use crate::idempotency::{self, Repeat};
use crate::received::{ReceivedRequest, RequestIds};
use crate::request::{StatementRequest, Statements, invalid};
use crate::result::{Extent, JsonResult, LineStream, StreamFormat, StreamSender};
use crate::sql_words::{is_commit, is_prepare_transaction};
use crate::stats::{Activity, ActivityGuard};
use crate::transaction::{CheckedOut, EndedBy, OpenTransaction};

pub(crate) const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// Chunks of a stream that wait for the client.
pub(crate) const CHUNKS_MAX: usize = 2;

/// Form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseForm {
    Object,
    Stream(StreamFormat),
}

/// Limits of one statement's result.
#[derive(Clone, Copy, Debug)]
struct ResultLimits {
    access: AccessMode,
    rows_max: Option<u64>,
    bytes_max: usize,
    deadline: Instant,
}

/// Serves `/query` or `/execute`.
pub(crate) async fn serve(
    api: Arc<SqlApi>,
    access: AccessMode,
    call: ServerRequest,
) -> Result<Response, SqlError> {
    let received = ReceivedRequest::read(&api, call).await?;
    let mut request = StatementRequest::parse(&received.body, &api.limits)?;
    if access == AccessMode::ReadOnly {
        request.statements.set_rows_max(request.rows_max);
    }
    let key = idempotency::key(&received.headers)?.filter(|_| access == AccessMode::ReadWrite);
    let form = match (&key, response_form(&received.headers)) {
        (_, ResponseForm::Stream(StreamFormat::Csv)) => {
            check_csv(received.version, &request.statements, key.is_some())?;
            ResponseForm::Stream(StreamFormat::Csv)
        }
        // A stored response is not streamed.
        (Some(_), _) => ResponseForm::Object,
        (None, form) => form,
    };
    if let Some(tx_id) = &request.tx_id {
        if key.is_some() {
            return Err(SqlError::IdempotencyInTransaction);
        }
        return match api.find_transaction(tx_id, &received, request.timeout).await? {
            FoundTransaction::Here(open) => serve_in_transaction(&api, access, form, open, request).await,
            FoundTransaction::Elsewhere(response) => Ok(response),
        };
    }
    received.take_request()?;
    let plain = PlainRequest::new(&api, &received, access, form, request)?;
    if let Some(response) = api.hand_over(plain.to_handover(&received, api.redirect)).await? {
        return Ok(response);
    }
    api.check_draining()?;
    let Some(key) = key else { return plain.serve(&api).await };
    match api.idempotency.begin(&received.tenant.settings.name, &key, &received.body)? {
        Repeat::Stored(stored) => Ok(stored.to_response()),
        Repeat::First(entry) => {
            // A client that repeats the request must find its outcome, so the statement runs on after a disconnect.
            let task = async move {
                let result = plain.serve(&api).await;
                entry.store(result).await
            };
            let joined = tokio::spawn(task).await;
            joined.map_err(|_| ApiError::Internal)?
        }
    }
}

/// Returns the first form in `Accept` that the API has, or a JSON object.
fn response_form(headers: &HeaderMap) -> ResponseForm {
    let mut kinds = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|kind| kind.split(';').next().map(str::trim));
    let form = |kind: &str| match kind.to_ascii_lowercase().as_str() {
        NDJSON => Some(ResponseForm::Stream(StreamFormat::NdJson)),
        CSV => Some(ResponseForm::Stream(StreamFormat::Csv)),
        _ => None,
    };
    kinds.find_map(form).unwrap_or(ResponseForm::Object)
}

/// Rejects a request that CSV cannot answer.
fn check_csv(version: Version, statements: &Statements, has_key: bool) -> Result<(), ApiError> {
    let message = if matches!(statements, Statements::List(_)) {
        "a statement list has several results, and CSV only one; use Accept: application/json"
    } else if has_key {
        "the response to a request with an Idempotency-Key is stored as JSON; use Accept: application/json"
    } else if version < Version::HTTP_11 {
        "CSV needs HTTP/1.1 or later, because HTTP/1.0 does not show whether a response is complete"
    } else {
        return Ok(());
    };
    Err(invalid("accept", message))
}

/// A request outside of an open transaction.
struct PlainRequest {
    tenant: Arc<Tenant>,
    ids: RequestIds,
    database: Arc<Database>,
    access: AccessMode,
    kind: RequestKind,
    form: ResponseForm,
    /// Also limits the time that a hand-over takes.
    deadline: Instant,
    request: StatementRequest,
}

impl PlainRequest {
    fn new(
        api: &SqlApi,
        received: &ReceivedRequest,
        access: AccessMode,
        form: ResponseForm,
        request: StatementRequest,
    ) -> Result<Self, SqlError> {
        let tenant = received.tenant.clone();
        let ids = received.ids.clone();
        let database = api.database(request.database.as_deref(), &tenant)?.clone();
        let kind = match (access, &request.statements) {
            (_, Statements::List(_)) => RequestKind::BeginTx,
            (AccessMode::ReadOnly, Statements::One(_)) => RequestKind::Query,
            (AccessMode::ReadWrite, Statements::One(_)) => RequestKind::Execute,
        };
        let deadline = Instant::now() + request.timeout;
        Ok(Self { tenant, ids, database, access, kind, form, deadline, request })
    }

    fn to_handover<'a>(&'a self, received: &'a ReceivedRequest, mode: RedirectMode) -> HandoverRequest<'a> {
        HandoverRequest {
            received,
            database: &self.database,
            kind: self.kind,
            access: self.access,
            deadline: self.deadline,
            mode,
        }
    }

    /// Waits for a connection and runs the statements.
    async fn serve(self, api: &SqlApi) -> Result<Response, SqlError> {
        let Self { tenant, ids, database, access, kind, form, deadline, request } = self;
        let session = database.stats.begin(Activity::HttpSession);
        let started = Instant::now();
        let limits = ResultLimits {
            access,
            rows_max: request.rows_max,
            bytes_max: api.limits.result_bytes_max,
            deadline,
        };
        let connection = ConnectionRequest { tenant: &tenant, kind, access, deadline, name: ids.name() };
        let mut lent = database.connect(connection).await?;
        match request.statements {
            Statements::List(list) => {
                let body = run_list(&database, &mut lent, &list, limits, started).await?;
                Ok(json_response(StatusCode::OK, full(body)))
            }
            Statements::One(statement) => match form {
                ResponseForm::Object => {
                    let (result, completion) = run_to_json(&database, &mut lent, &statement, limits).await?;
                    check_outside(&lent)?;
                    Ok(object_response(result, &completion, started.elapsed()))
                }
                ResponseForm::Stream(format) => {
                    let owner = StreamOwner::Plain { lent };
                    stream(database, owner, statement, format, limits, started, session).await
                }
            },
        }
    }
}

/// Runs a statement and collects its result.
async fn run_to_json(
    database: &Database,
    lent: &mut LentConnection,
    statement: &Statement,
    limits: ResultLimits,
) -> Result<(JsonResult, Completion), SqlError> {
    let mut result = JsonResult::new(limits.rows_max, limits.bytes_max, limits.access);
    let run = database.run(lent, statement, &mut result, limits.deadline).await;
    check_size(&result, limits)?;
    Ok((result, run?))
}

/// Rejects a result above the size limit.
fn check_size(result: &JsonResult, limits: ResultLimits) -> Result<(), SqlError> {
    let bytes_max = limits.bytes_max;
    match (result.extent(), limits.access) {
        (Extent::TooLarge, AccessMode::ReadOnly) => Err(SqlError::ResultTooLarge { bytes_max }),
        (Extent::TooLarge, AccessMode::ReadWrite) => Err(SqlError::ExecutedResultTooLarge { bytes_max }),
        (Extent::All | Extent::Truncated, _) => Ok(()),
    }
}

fn object_response(result: JsonResult, completion: &Completion, elapsed: Duration) -> Response {
    json_response(StatusCode::OK, full(result.finish(completion, elapsed)))
}

/// Rejects a plain statement that began a transaction; dropping the connection rolls it back.
pub(crate) fn check_outside(lent: &LentConnection) -> Result<(), SqlError> {
    match lent.connection.transaction_status() {
        TransactionStatus::Idle => Ok(()),
        TransactionStatus::Open | TransactionStatus::Failed => Err(SqlError::TransactionOutside),
    }
}

/// Runs a list of statements in one transaction.
async fn run_list(
    database: &Database,
    lent: &mut LentConnection,
    list: &[Statement],
    limits: ResultLimits,
    started: Instant,
) -> Result<Vec<u8>, SqlError> {
    let _open = database.stats.begin(Activity::Transaction);
    let options = BeginOptions { isolation: None, access: limits.access };
    bounded(limits.deadline, lent.connection.begin(options)).await?;
    let mut body = br#"{"results":["#.to_vec();
    for (index, statement) in list.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        let statement_started = Instant::now();
        let bytes_max = limits.bytes_max.saturating_sub(body.len());
        let remaining = ResultLimits { bytes_max, ..limits };
        let run = run_to_json(database, lent, statement, remaining).await;
        let (result, completion) = run.map_err(|error| match error {
            // The error rolls the list back, so nothing of it takes effect.
            SqlError::ResultTooLarge { .. } | SqlError::ExecutedResultTooLarge { .. } => {
                SqlError::ResultTooLarge { bytes_max: limits.bytes_max }
            }
            other => other,
        })?;
        if completion.end == RowsEnd::Stopped {
            // SQLite stopped the statement at `maxRows`; PostgreSQL ends it itself.
            lent.connection.recover().await?;
            lent.is_clean = true;
        }
        if lent.connection.transaction_status() == TransactionStatus::Idle {
            return Err(SqlError::TransactionInList);
        }
        body.extend_from_slice(&result.finish(&completion, statement_started.elapsed()));
    }
    commit(limits.deadline, lent).await?;
    body.extend_from_slice(format!(r#"],"elapsedUs":{}}}"#, started.elapsed().as_micros()).as_bytes());
    Ok(body)
}

/// Commits the transaction of a list. A commit that takes longer than `deadline` may still take effect.
pub(crate) async fn commit(deadline: Instant, lent: &mut LentConnection) -> Result<(), SqlError> {
    let committed = bounded(deadline, lent.connection.end(TransactionEnd::Commit)).await;
    committed.map_err(|error| match error {
        SqlError::Timeout => SqlError::Database(DatabaseError::OutcomeUnknown),
        other => other,
    })
}

/// Runs a step of a connection until `deadline`.
pub(crate) async fn bounded<T>(
    deadline: Instant,
    step: impl Future<Output = Result<T, DatabaseError>>,
) -> Result<T, SqlError> {
    let result = tokio::time::timeout_at(deadline.into(), step).await;
    result.map_err(|_| SqlError::Timeout)?.map_err(SqlError::Database)
}

/// Runs a statement of an open transaction.
///
/// It bypasses admission, rate limits and draining: the transaction holds its connection already.
async fn serve_in_transaction(
    api: &Arc<SqlApi>,
    access: AccessMode,
    form: ResponseForm,
    open: Arc<OpenTransaction>,
    request: StatementRequest,
) -> Result<Response, SqlError> {
    let Statements::One(statement) = request.statements else { return Err(SqlError::TransactionInList) };
    let database = open.database.clone();
    let session = database.stats.begin(Activity::HttpSession);
    let started = Instant::now();
    let limits = ResultLimits {
        access,
        rows_max: request.rows_max,
        bytes_max: api.limits.result_bytes_max,
        deadline: started + request.timeout,
    };
    let checked_out = api.transactions.check_out(open).await?;
    if let ResponseForm::Stream(format) = form {
        let owner = StreamOwner::Transaction { checked_out };
        return stream(database, owner, statement, format, limits, started, session).await;
    }
    let mut result = JsonResult::new(limits.rows_max, limits.bytes_max, limits.access);
    let run = run_checked_out(&database, checked_out, &statement, &mut result, limits.deadline).await;
    let completion = run?;
    check_size(&result, limits)?;
    Ok(object_response(result, &completion, started.elapsed()))
}

/// Runs a statement on the connection of a transaction, then returns the connection or ends the transaction.
pub(crate) async fn run_checked_out(
    database: &Database,
    checked_out: CheckedOut,
    statement: &Statement,
    sink: &mut dyn RowSink,
    deadline: Instant,
) -> Result<Completion, SqlError> {
    let run = run_in_transaction(database, checked_out, statement, sink, deadline).await?;
    Ok(run.completion)
}

/// A statement that ran in a transaction.
pub(crate) struct RunInTransaction {
    completion: Completion,
    /// The connection, for further statements; `None` if the statement ended the transaction.
    pub(crate) still_open: Option<CheckedOut>,
}

/// Runs a statement on the connection of a transaction, and ends a transaction that the statement has ended.
pub(crate) async fn run_in_transaction(
    database: &Database,
    mut checked_out: CheckedOut,
    statement: &Statement,
    sink: &mut dyn RowSink,
    deadline: Instant,
) -> Result<RunInTransaction, SqlError> {
    let engine = database.source.engine();
    if is_prepare_transaction(&statement.sql, engine) {
        let what = "PREPARE TRANSACTION is not supported over HTTP".to_owned();
        return Err(SqlError::Database(DatabaseError::Unsupported { what }));
    }
    if is_commit(&statement.sql, engine) {
        checked_out.ends_if_lost = EndedBy::UnknownOutcome;
    }
    let open = checked_out.open.clone();
    let Some(lent) = checked_out.connection() else { return Err(SqlError::UnknownTransaction) };
    let run = tokio::select! {
        biased;
        run = database.run(lent, statement, sink, deadline) => run,
        ended_by = open.stopped() => Err(SqlError::TransactionEnded(ended_by)),
    };
    let is_over = lent.is_clean && lent.connection.transaction_status() == TransactionStatus::Idle;
    match run {
        Ok(completion) => finish_in_transaction(checked_out, statement, completion),
        Err(error) => {
            if is_lost(&error) {
                let ended_by = checked_out.ends_if_lost;
                checked_out.end(ended_by);
            } else if is_over {
                // A commit that failed, such as by a deferred constraint.
                checked_out.end(EndedBy::FailedCommit);
            }
            Err(error)
        }
    }
}

/// Ends a transaction that the statement has ended.
fn finish_in_transaction(
    mut checked_out: CheckedOut,
    statement: &Statement,
    completion: Completion,
) -> Result<RunInTransaction, SqlError> {
    let engine = checked_out.open.database.source.engine();
    let Some(lent) = checked_out.connection() else { return Err(SqlError::UnknownTransaction) };
    if completion.end == RowsEnd::Stopped {
        // The sink stopped the statement, which may still run; dropping `checked_out` cancels it.
        lent.is_clean = false;
        return Ok(RunInTransaction { completion, still_open: Some(checked_out) });
    }
    if lent.connection.transaction_status() != TransactionStatus::Idle {
        return Ok(RunInTransaction { completion, still_open: Some(checked_out) });
    }
    match completion.command.as_str() {
        // SQLite calls a commit what the statement called it.
        "COMMIT" | "END" => checked_out.end(EndedBy::Commit),
        _ if is_commit(&statement.sql, engine) => {
            checked_out.end(EndedBy::FailedCommit);
            return Err(SqlError::Database(DatabaseError::rolled_back()));
        }
        _ => checked_out.end(EndedBy::Rollback),
    }
    Ok(RunInTransaction { completion, still_open: None })
}

/// Reports whether an error means that the transaction's connection is gone.
pub(crate) fn is_lost(error: &SqlError) -> bool {
    matches!(error, SqlError::Database(DatabaseError::OutcomeUnknown | DatabaseError::Unavailable { .. }))
}

/// The owner of the connection that a stream reads from.
enum StreamOwner {
    Plain { lent: LentConnection },
    Transaction { checked_out: CheckedOut },
}

/// Runs a statement in a task and streams its rows.
///
/// An error before the response begins becomes an error response; a later one is the last line of a stream of JSON, and
/// aborts a stream of CSV.
async fn stream(
    database: Arc<Database>,
    owner: StreamOwner,
    statement: Statement,
    format: StreamFormat,
    limits: ResultLimits,
    started: Instant,
    session: ActivityGuard,
) -> Result<Response, SqlError> {
    let (sender, chunks) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let (completed_sender, completed) = oneshot::channel();
    let (started_sender, starts) = oneshot::channel();
    let reader = sender.clone();
    let sender = StreamSender { chunks: sender, completed: completed_sender, started: started_sender };
    let lines = LineStream::new(format, limits.rows_max, limits.access, sender);
    tokio::spawn(async move {
        let _session = session;
        tokio::select! {
            biased;
            () = run_stream(&database, owner, &statement, limits, started, lines) => {}
            // The client is gone, perhaps before the first row; dropping the statement cancels it.
            () = reader.closed() => {}
        }
    });
    starts.await.map_err(|_| ApiError::Internal)??;
    let mut response = Response::new(completed_channel(chunks, completed));
    let content_type = match format {
        StreamFormat::NdJson => NDJSON,
        StreamFormat::Csv => "text/csv; charset=utf-8; header=present",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

async fn run_stream(
    database: &Database,
    owner: StreamOwner,
    statement: &Statement,
    limits: ResultLimits,
    started: Instant,
    mut lines: LineStream,
) {
    let result = match owner {
        StreamOwner::Plain { mut lent } => {
            let run = database.run(&mut lent, statement, &mut lines, limits.deadline).await;
            run.and_then(|completion| check_outside(&lent).map(|()| completion))
        }
        StreamOwner::Transaction { checked_out } => {
            run_checked_out(database, checked_out, statement, &mut lines, limits.deadline).await
        }
    };
    match result {
        Ok(completion) => lines.finish(Ok((&completion, started.elapsed()))).await,
        Err(error) => lines.finish(Err(error)).await,
    }
}
