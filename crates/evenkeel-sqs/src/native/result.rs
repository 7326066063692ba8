//! Where a message is, and what came of it: `…/messages/{id}` and `…/results/{id}`.

use evenkeel_queue::job_result::{JobResult, ResultState};
use evenkeel_queue::queue_state::Explanation;
use evenkeel_queue::{MessageId, Queue, UnixMillis};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::json::queue_error;
use super::json_response;
use crate::base64;

/// Where a message is.
struct MessageLocation {
    state: &'static str,
    words: String,
}

pub(super) async fn explain(queue: &Queue, id: &str) -> Result<Response, ApiError> {
    let which = message_id(id)?;
    if let Some(MessageLocation { state, words }) = place_of(queue, which).await? {
        return json_response(StatusCode::OK, &json!({"id": id, "state": state, "explanation": words}));
    }
    let Some((JobResult { head, .. }, _)) = queue.result(which).await.map_err(queue_error)? else {
        let what = format!("message {id} in this queue: acknowledged, expired, or never sent");
        return Err(ApiError::NotFound { what });
    };
    let attempt = head.attempt;
    let status = head.status;
    let at = UnixMillis(head.finished_at_ms);
    let words = match head.state {
        ResultState::Done => format!("done with status {status} at {at}, attempt {attempt}"),
        ResultState::Failed => format!("failed for good with status {status} at {at}, attempt {attempt}"),
    };
    json_response(StatusCode::OK, &json!({"id": id, "state": state_str(head.state), "explanation": words}))
}

pub(super) async fn result(queue: &Queue, id: &str) -> Result<Response, ApiError> {
    let which = message_id(id)?;
    if let Some((JobResult { head, body }, expires_at)) = queue.result(which).await.map_err(queue_error)? {
        let answer = ResultJson {
            id,
            state: state_str(head.state),
            status: head.status,
            content_type: head.content_type.as_deref(),
            attempt: head.attempt,
            finished_at_ms: head.finished_at_ms,
            expires_at_ms: expires_at.0,
            body: ResultBodyJson::of(&body),
        };
        return json_response(StatusCode::OK, &answer);
    }
    let what = match place_of(queue, which).await? {
        Some(MessageLocation { state, words }) => format!("result of message {id} yet: {state}, {words}"),
        None => format!("result of message {id}: expired, consumed by somebody, or never sent"),
    };
    Err(ApiError::NotFound { what })
}

/// Finds a message in its queue, and on its walk if it is a job that is dispatched.
async fn place_of(queue: &Queue, which: MessageId) -> Result<Option<MessageLocation>, ApiError> {
    let explanation = queue.explain(which).await.map_err(queue_error)?;
    let state = match explanation {
        Explanation::InFlight { .. } => "in_flight",
        Explanation::Delayed { .. } => "delayed",
        Explanation::Leaving => "leaving",
        Explanation::Waiting { .. } => "waiting",
        Explanation::Unknown => return Ok(None),
    };
    let words = match queue.job_status(which) {
        Some(status) => format!("{}; {status}", explanation.describe(queue.now())),
        None => explanation.describe(queue.now()).to_string(),
    };
    Ok(Some(MessageLocation { state, words }))
}

fn message_id(id: &str) -> Result<MessageId, ApiError> {
    id.parse().map_err(|error| ApiError::invalid(format!("{id:?} is {error}")))
}

fn state_str(state: ResultState) -> &'static str {
    match state {
        ResultState::Done => "done",
        ResultState::Failed => "failed",
    }
}

/// What came of a job.
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

/// An answer's body: JSON byte for byte, text, or bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum ResultBodyJson<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes { base64: String },
}

impl<'a> ResultBodyJson<'a> {
    fn of(body: &'a [u8]) -> Self {
        match (serde_json::from_slice(body), str::from_utf8(body)) {
            (Ok(json), _) => Self::Json(json),
            (Err(_), Ok(text)) => Self::Text(text),
            (Err(_), Err(_)) => Self::Bytes { base64: base64::encode(body) },
        }
    }
}
