//! `GET /api/requests/{id}`: explains the requests that have this id in the header `x-request-id`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::{RouteError, Routes, handler};
use evenkeel_server::tenant::Access;
use evenkeel_server::{percent, request_id};
use evenkeel_telemetry::ExplainedRequest;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Core;
use super::api::json_response;

const REQUEST: &str = "/api/requests/";

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes) -> Result<(), RouteError> {
    let core = core.clone();
    let explain = handler(move |call| {
        let response = explain(&core, call.request.uri().path());
        async { response }
    });
    routes.add(Method::GET, "/api/requests/{id}", Access::Admin, explain)
}

/// Returns the latest request with the id in the path, and in `earlier` the others.
fn explain(core: &Core, path: &str) -> Result<Response, ApiError> {
    let id = path.strip_prefix(REQUEST).and_then(percent::decode).ok_or(ApiError::NoRoute)?;
    if !request_id::is_valid(id.as_bytes()) {
        let len_max = request_id::LEN_MAX;
        let message =
            format!("a request id has 1 to {len_max} ASCII letters, digits or characters of \"-_.:\"");
        return Err(ApiError::invalid(message));
    }
    let mut found = core.llm.explain(&id);
    found.extend(core.sql.explain(&id));
    found.sort_by_key(|request| request.steps.first().map(|step| step.age));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut requests = found.iter().map(|request| to_json(request, now));
    let Some(mut latest) = requests.next() else { return Err(not_found(core, &id)) };
    latest["id"] = json!(id);
    latest["earlier"] = requests.collect();
    Ok(json_response(StatusCode::OK, &latest))
}

fn to_json(request: &ExplainedRequest, now: Duration) -> Value {
    let ExplainedRequest { pool, tenant, steps, omitted } = request;
    let steps: Vec<_> = steps
        .iter()
        .map(|step| {
            let at = now.saturating_sub(step.age).as_millis() as u64;
            json!({"atMs": at, "ageMs": step.age.as_secs_f64() * 1_000.0, "text": step.text})
        })
        .collect();
    json!({"api": pool, "tenant": tenant, "steps": steps, "omitted": omitted})
}

fn not_found(core: &Core, id: &str) -> ApiError {
    let requests_max = core.state.lock().started.telemetry.request_log.requests_max;
    let what = match requests_max {
        0 => "request log: [telemetry] requests_max is 0".to_owned(),
        max => format!(
            "request {id:?} among the last {max} requests of each API on this node since its start ([telemetry] \
             requests_max); a request that was rejected before it could be queued is not recorded, its response has \
             the reason"
        ),
    };
    ApiError::NotFound { what }
}
