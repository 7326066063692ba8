//! Hrana over HTTP, versions 1 to 3 in JSON: the protocol of the clients of libSQL, for SQLite.
//!
//! Guarantees: a stream outlives its request only while a transaction is open. The transaction is one of
//! [`crate::transaction`], and the baton is its signed id and the number of the stream's next request, so a request that is
//! sent twice is executed once. A pipeline whose client disconnects is rolled back. Scheduling and limits are those of
//! `/execute`.
//!
//! Limits: `statements_max` statements per request, and 10 more if they begin or end a transaction; `timeout_default` for
//! the whole request, waits for connections included; `result_bytes_max` for all results together, except those that a
//! cursor streams; [`stored_sql`] for stored texts.

mod batch;
mod cursor;
mod error;
mod pipeline;
mod request;
mod result;
mod statement_kind;
mod stored_sql;
mod stream;

use std::sync::Arc;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::percent;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;

pub(crate) use self::error::{error_format, error_response};
pub(crate) use self::stream::StreamState;
use self::stream::{HranaStream, StreamCall};
use crate::api::SqlApi;
use crate::error::SqlError;
use crate::handover::FoundTransaction;
use crate::received::ReceivedRequest;

/// Paths of requests. Below `/dev/` the path begins with the name of a datasource, as at libSQL's own server.
pub(crate) const POST_PATHS: [&str; 6] =
    ["/v1/execute", "/v1/batch", "/v2/pipeline", "/v3/pipeline", "/v3/cursor", "/dev/*"];
/// Paths by which clients ask for a version.
pub(crate) const GET_PATHS: [&str; 3] = ["/v2", "/v3", "/dev/*"];

/// Serves every request of the protocol.
pub(crate) async fn serve(api: Arc<SqlApi>, call: ServerRequest) -> Result<Response, SqlError> {
    let accepted_at = call.accepted_at;
    let received = ReceivedRequest::read(&api, call).await?;
    if let Some(response) = forward_to_owner(&api, &received).await? {
        return Ok(response);
    }
    let ReceivedRequest { tenant, body, path, ids, .. } = received;
    let (datasource, path) = split_path(&path);
    let stream_call = StreamCall { api, tenant, ids, datasource, accepted_at };
    match path {
        "/v1/execute" => pipeline::serve_execute(stream_call, &body).await,
        "/v1/batch" => pipeline::serve_batch(stream_call, &body).await,
        "/v2/pipeline" | "/v3/pipeline" => pipeline::serve(stream_call, &body).await,
        "/v3/cursor" => cursor::serve(stream_call, &body).await,
        _ => Err(ApiError::NoRoute.into()),
    }
}

/// Forwards a request whose stream has a transaction of another node; `None` if it is served here.
async fn forward_to_owner(api: &SqlApi, received: &ReceivedRequest) -> Result<Option<Response>, SqlError> {
    #[derive(Deserialize)]
    struct Continued {
        baton: Option<String>,
    }
    // A body that is not valid is rejected by the parser of its path.
    let continued: Option<Continued> = serde_json::from_slice(&received.body).ok();
    let baton = continued.and_then(|continued| continued.baton);
    let Some((id, _)) = baton.as_deref().and_then(stream::parse_baton) else { return Ok(None) };
    match api.find_transaction(id, received, api.limits.timeout_default).await? {
        FoundTransaction::Here(_) => Ok(None),
        FoundTransaction::Elsewhere(response) => Ok(Some(response)),
    }
}

/// Confirms to a client that a version is supported.
pub(crate) async fn serve_version(call: ServerRequest) -> Result<Response, ApiError> {
    match split_path(call.request.uri().path()).1 {
        "/v2" | "/v3" => Ok(json_response(StatusCode::OK, full("{}"))),
        _ => Err(ApiError::NoRoute),
    }
}

/// Splits the name of a datasource off a path; without one, the default is meant.
fn split_path(path: &str) -> (Option<String>, &str) {
    let named = path.strip_prefix("/dev/").and_then(|rest| rest.find('/').map(|end| rest.split_at(end)));
    match named {
        Some((name, rest)) => (Some(percent::decode(name).unwrap_or_else(|| name.to_owned())), rest),
        None => (None, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_name_a_datasource() {
        for (path, expected) in [
            ("/v2/pipeline", (None, "/v2/pipeline")),
            ("/dev/lite/v2/pipeline", (Some("lite"), "/v2/pipeline")),
            ("/dev/a%20b/v3", (Some("a b"), "/v3")),
            ("/dev/lite", (None, "/dev/lite")),
        ] {
            let (datasource, rest) = split_path(path);
            assert_eq!((datasource.as_deref(), rest), expected, "{path}");
        }
    }
}
