//! `/v2/pipeline` and `/v3/pipeline`: requests on a stream; `/v1/execute` and `/v1/batch`: one request on a stream of its own.

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use http::StatusCode;
use serde_json::json;

use super::HranaStream;
use super::batch::{Batch, StepOutcome};
use super::error::to_json_within;
use super::request::{BatchBody, ExecuteBody, HranaStatement, PipelineBody, SqlRef, StreamRequest};
use super::result::{HranaResult, description};
use super::stream::StreamCall;
use crate::datasource::AccessMode;
use crate::datasource::sqlite::sql_text;
use crate::error::SqlError;
use crate::request::parse_json;

/// Serves a pipeline: every request is executed, even after one that failed.
pub(super) async fn serve(call: StreamCall, body: &[u8]) -> Result<Response, SqlError> {
    let body = PipelineBody::parse(body, &call.api.limits)?;
    let mut stream = HranaStream::open(call, body.baton.as_deref())?;
    let bytes_max = stream.result_bytes_max();
    let mut out = br#"{"results":["#.to_vec();
    let mut is_closed = false;
    for (index, request) in body.requests.0.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let kind = request.kind();
        let is_close = matches!(request, StreamRequest::Close);
        let bytes_left = bytes_max.saturating_sub(out.len());
        let response = match is_closed {
            true => Err(ApiError::invalid("the stream was closed by an earlier request").into()),
            false => respond(&mut stream, request, bytes_left).await,
        };
        is_closed |= is_close;
        match response {
            Ok(fields) => {
                out.extend_from_slice(format!(r#"{{"type":"ok","response":{{"type":"{kind}""#).as_bytes());
                out.extend_from_slice(&fields);
                out.extend_from_slice(b"}}");
            }
            Err(error) if stream.is_rejected_by(&error) => return Err(error),
            Err(error) => {
                let error = json!({"type": "error", "error": to_json_within(&error, bytes_left)});
                out.extend_from_slice(error.to_string().as_bytes());
            }
        }
    }
    let rest = json!({"baton": stream.issue_baton(), "base_url": null}).to_string();
    out.extend_from_slice(b"],");
    out.extend_from_slice(&rest.as_bytes()[1..]);
    Ok(json_response(StatusCode::OK, full(out)))
}

/// Serves a request and returns the fields of its response that follow its type.
async fn respond(
    stream: &mut HranaStream,
    request: StreamRequest,
    bytes_left: usize,
) -> Result<Vec<u8>, SqlError> {
    match request {
        StreamRequest::Close => stream.close().await.map(|()| Vec::new()),
        StreamRequest::Execute { stmt } => Ok(result_field(&execute(stream, &stmt, bytes_left).await?)),
        StreamRequest::Batch { batch } => Ok(result_field(&run_batch(stream, &batch, bytes_left).await?)),
        StreamRequest::Sequence(sql) => run_sequence(stream, &sql).await.map(|()| Vec::new()),
        StreamRequest::Describe(sql) => {
            let described = stream.describe(sql.resolve(&stream.stored)?).await?;
            Ok(result_field(description(&described).to_string().as_bytes()))
        }
        StreamRequest::StoreSql { sql_id, sql } => {
            stream.stored.insert(sql_id, sql)?;
            Ok(Vec::new())
        }
        StreamRequest::CloseSql { sql_id } => {
            stream.stored.remove(sql_id);
            Ok(Vec::new())
        }
        StreamRequest::GetAutocommit => {
            Ok(format!(r#","is_autocommit":{}"#, stream.is_autocommit()).into_bytes())
        }
    }
}

fn result_field(result: &[u8]) -> Vec<u8> {
    [br#","result":"#, result].concat()
}

/// Runs a statement and returns its result.
async fn execute(
    stream: &mut HranaStream,
    statement: &HranaStatement,
    bytes_left: usize,
) -> Result<Vec<u8>, SqlError> {
    let to_run = stream.statement(statement)?;
    let access = stream.access_for(&to_run.sql);
    let mut result = HranaResult::new(statement.wants_rows(), access, bytes_left);
    // The error of a statement that failed comes before the size of its result.
    let completion = stream.run(&to_run, &mut result).await?;
    if result.is_too_large() {
        let bytes_max = stream.result_bytes_max();
        return Err(match access {
            AccessMode::ReadOnly => SqlError::ResultTooLarge { bytes_max },
            AccessMode::ReadWrite => SqlError::ExecutedResultTooLarge { bytes_max },
        });
    }
    Ok(result.finish(&completion))
}

/// Runs the steps of a batch whose conditions hold.
async fn run_batch(stream: &mut HranaStream, batch: &Batch, bytes_left: usize) -> Result<Vec<u8>, SqlError> {
    let mut out = br#"{"step_results":["#.to_vec();
    let mut errors = b"[".to_vec();
    let mut outcomes = Vec::new();
    for (index, step) in batch.steps().iter().enumerate() {
        if index > 0 {
            out.push(b',');
            errors.push(b',');
        }
        let bytes_left = bytes_left.saturating_sub(out.len() + errors.len());
        let result = match step.is_due(&outcomes, stream.is_autocommit()) {
            true => Some(execute(stream, &step.stmt, bytes_left).await),
            false => None,
        };
        match &result {
            Some(Ok(result)) => out.extend_from_slice(result),
            Some(Err(error)) if stream.is_rejected_by(error) => return Err(error.clone()),
            Some(Err(_)) | None => out.extend_from_slice(b"null"),
        }
        outcomes.push(StepOutcome::of(result.as_ref()));
        let error = result.and_then(Result::err).map(|error| to_json_within(&error, bytes_left));
        errors.extend_from_slice(json!(error).to_string().as_bytes());
    }
    let parts = [out.as_slice(), br#"],"step_errors":"#, &errors, br#"],"replication_index":null}"#];
    Ok(parts.concat())
}

/// Runs the statements of a text until one fails.
async fn run_sequence(stream: &mut HranaStream, sql: &SqlRef) -> Result<(), SqlError> {
    let text = sql.resolve(&stream.stored)?;
    for sql in sql_text::split(&text).filter(|sql| sql_text::command(sql).is_some()) {
        let statement = stream.plain_statement(sql.to_owned());
        let mut unwanted = HranaResult::new(false, AccessMode::ReadWrite, usize::MAX);
        stream.run(&statement, &mut unwanted).await?;
    }
    Ok(())
}

/// Serves `/v1/execute`.
pub(super) async fn serve_execute(call: StreamCall, body: &[u8]) -> Result<Response, SqlError> {
    let body: ExecuteBody = parse_json(body)?;
    let mut stream = HranaStream::open(call, None)?;
    let bytes_max = stream.result_bytes_max();
    let result = execute(&mut stream, &body.stmt, bytes_max).await?;
    close_alone(stream, &result).await
}

/// Serves `/v1/batch`.
pub(super) async fn serve_batch(call: StreamCall, body: &[u8]) -> Result<Response, SqlError> {
    let body = BatchBody::parse(body, &call.api.limits)?;
    let mut stream = HranaStream::open(call, None)?;
    let bytes_max = stream.result_bytes_max();
    let result = run_batch(&mut stream, &body.batch, bytes_max).await?;
    close_alone(stream, &result).await
}

/// Closes a stream of one request, and returns the response.
async fn close_alone(mut stream: HranaStream, result: &[u8]) -> Result<Response, SqlError> {
    stream.close().await?;
    Ok(json_response(StatusCode::OK, full([br#"{"result":"#, result, b"}"].concat())))
}
