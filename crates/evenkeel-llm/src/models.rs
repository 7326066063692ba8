//! `GET /v1/models`: what a tenant may ask for.

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::{Caller, Tenant};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::LlmApi;
use crate::error_format::with_zero_wait;

/// Lists the models that any node serves and the tenant may use.
pub(crate) fn list(llm: &LlmApi, call: &ServerRequest) -> Result<Response, ApiError> {
    let tenant = tenant(call)?;
    let models = llm.nodes.models();
    let allowed = models.iter().filter(|name| tenant.check_model(name).is_ok());
    if is_anthropics(call) {
        let listed: Vec<_> = allowed.map(|name| anthropic_model(name)).collect();
        let ends = [listed.first(), listed.last()].map(|model| model.map(|model| model["id"].clone()));
        let [first_id, last_id] = ends;
        let list = json!({"data": listed, "has_more": false, "first_id": first_id, "last_id": last_id});
        return Ok(answer_unwaited(&list));
    }
    let listed: Vec<_> = allowed.map(|name| model(name)).collect();
    Ok(answer_unwaited(&json!({"object": "list", "data": listed})))
}

/// Describes one model, whose name may have slashes in it.
pub(crate) fn one(llm: &LlmApi, call: &ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().trim_start_matches("/v1/models/");
    tenant(call)?.check_model(name)?;
    if llm.nodes.models().iter().any(|served| **served == *name) {
        let model = if is_anthropics(call) { anthropic_model(name) } else { model(name) };
        return Ok(answer_unwaited(&model));
    }
    Err(ApiError::NoModel { model: name.to_owned() })
}

fn tenant(call: &ServerRequest) -> Result<&Tenant, ApiError> {
    match &call.caller {
        Caller::Tenant(tenant) => Ok(tenant),
        Caller::Public | Caller::Admin => Err(ApiError::Internal),
    }
}

/// Whether one of Anthropic's clients asks: they all name the version of the API they speak.
fn is_anthropics(call: &ServerRequest) -> bool {
    call.request.headers().contains_key("anthropic-version")
}

fn anthropic_model(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
}

fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "evenkeel"})
}

fn answer_unwaited(value: &Value) -> Response {
    with_zero_wait(answer(value))
}

/// Answers with JSON.
pub(crate) fn answer(value: &Value) -> Response {
    body::json_response(StatusCode::OK, body::full(value.to_string()))
}
