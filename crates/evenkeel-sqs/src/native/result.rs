//! State of a message and result of a job: `…/messages/{id}` and `…/results/{id}`.

use evenkeel_queue::job_result::{JobResult, ResultState};
use evenkeel_queue::queue_state::Explanation;
use evenkeel_queue::{MessageId, Namespace, Queue, UnixMillis};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::tenant::Caller;
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::json::queue_error;
use super::json_response;
use crate::access::own_namespace;
use crate::base64;

/// State of a message that is in its queue.
struct MessageLocation {
    state: &'static str,
    explanation: String,
}

pub(super) async fn explain(queue: &Queue, id: &str, caller: &Caller) -> Result<Response, ApiError> {
    let message = message_id(queue, id)?;
    if let Some(MessageLocation { state, explanation }) = locate(queue, message, caller).await? {
        return json_response(StatusCode::OK, &json!({"id": id, "state": state, "explanation": explanation}));
    }
    let Some((JobResult { head, .. }, _)) = readable_result(queue, message, caller).await? else {
        let what = format!("message {id} in this queue: acknowledged, expired, or never sent");
        return Err(ApiError::NotFound { what });
    };
    let attempt = head.attempt;
    let status = head.status;
    let at = UnixMillis(head.finished_at_ms);
    let explanation = match head.state {
        ResultState::Done => format!("done with status {status} at {at}, attempt {attempt}"),
        ResultState::Failed => format!("failed permanently with status {status} at {at}, attempt {attempt}"),
    };
    let state = state_str(head.state);
    json_response(StatusCode::OK, &json!({"id": id, "state": state, "explanation": explanation}))
}

pub(super) async fn result(queue: &Queue, id: &str, caller: &Caller) -> Result<Response, ApiError> {
    let message = message_id(queue, id)?;
    if let Some((JobResult { head, body }, expires_at)) = readable_result(queue, message, caller).await? {
        let result = ResultJson {
            id,
            state: state_str(head.state),
            status: head.status,
            content_type: head.content_type.as_deref(),
            attempt: head.attempt,
            finished_at_ms: head.finished_at_ms,
            expires_at_ms: expires_at.0,
            body: ResultBodyJson::new(&body),
        };
        return json_response(StatusCode::OK, &result);
    }
    let what = match locate(queue, message, caller).await? {
        Some(MessageLocation { state, explanation }) => {
            format!("result of message {id} yet: {state}, {explanation}")
        }
        None => format!("result of message {id}: expired, acknowledged by a consumer, or never sent"),
    };
    Err(ApiError::NotFound { what })
}

/// Returns the result of a job and when it expires; to tenants that may not read it, there is none.
async fn readable_result(
    queue: &Queue,
    message: MessageId,
    caller: &Caller,
) -> Result<Option<(JobResult, UnixMillis)>, ApiError> {
    let found = queue.result(message).await.map_err(queue_error)?;
    Ok(found.filter(|(result, _)| may_read(caller, result.head.reader)))
}

/// Reports whether a caller may read what only `reader` and administrators may read.
fn may_read(caller: &Caller, reader: Namespace) -> bool {
    match caller {
        Caller::Admin(_) => true,
        Caller::Tenant(_) | Caller::Public => reader == Namespace::Shared || reader == own_namespace(caller),
    }
}

/// Finds a message in its queue, with its progress if it is a dispatched job that the caller may read; `None` if it is not
/// there.
async fn locate(
    queue: &Queue,
    message: MessageId,
    caller: &Caller,
) -> Result<Option<MessageLocation>, ApiError> {
    let explanation = queue.explain(message).await.map_err(queue_error)?;
    let state = match explanation {
        Explanation::InFlight { .. } => "in_flight",
        Explanation::Delayed { .. } => "delayed",
        Explanation::Exhausted { .. } | Explanation::Leaving => "leaving",
        Explanation::Waiting { .. } => "waiting",
        Explanation::Unknown => return Ok(None),
    };
    let described = explanation.describe(queue.now());
    let explanation = match queue.job_status(message, |reader| may_read(caller, reader)) {
        Some(status) => format!("{described}; {status}"),
        None => described.to_string(),
    };
    Ok(Some(MessageLocation { state, explanation }))
}

fn message_id(queue: &Queue, id: &str) -> Result<MessageId, ApiError> {
    queue.message_ids().parse(id).map_err(|error| ApiError::invalid(format!("{id:?} is {error}")))
}

fn state_str(state: ResultState) -> &'static str {
    match state {
        ResultState::Done => "done",
        ResultState::Failed => "failed",
    }
}

/// Result of a job.
#[derive(Serialize)]
struct ResultJson<'a> {
    id: &'a str,
    state: &'static str,
    status: u16,
    content_type: Option<&'a str>,
    attempt: u32,
    finished_at_ms: u64,
    expires_at_ms: u64,
    body: ResultBodyJson<'a>,
}

/// Body of a result: unmodified JSON, text, or base64.
#[derive(Serialize)]
#[serde(untagged)]
enum ResultBodyJson<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes { base64: String },
}

impl<'a> ResultBodyJson<'a> {
    fn new(body: &'a [u8]) -> Self {
        match (serde_json::from_slice(body), str::from_utf8(body)) {
            (Ok(json), _) => Self::Json(json),
            (Err(_), Ok(text)) => Self::Text(text),
            (Err(_), Err(_)) => Self::Bytes { base64: base64::encode(body) },
        }
    }
}
