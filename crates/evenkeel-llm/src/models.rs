//! `GET /v1/models`: the models that a tenant may use.

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
    if is_anthropic_client(call) {
        let listed: Vec<_> = allowed.map(|name| anthropic_model(name)).collect();
        let ends = [listed.first(), listed.last()].map(|model| model.map(|model| model["id"].clone()));
        let [first_id, last_id] = ends;
        let list = json!({"data": listed, "has_more": false, "first_id": first_id, "last_id": last_id});
        return Ok(json_response_with_zero_wait(&list));
    }
    let listed: Vec<_> = allowed.map(|name| model(name)).collect();
    Ok(json_response_with_zero_wait(&json!({"object": "list", "data": listed})))
}

/// Describes one model; its name may contain slashes.
pub(crate) fn one(llm: &LlmApi, call: &ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().trim_start_matches("/v1/models/");
    tenant(call)?.check_model(name)?;
    if llm.nodes.models().iter().any(|served| **served == *name) {
        let model = if is_anthropic_client(call) { anthropic_model(name) } else { model(name) };
        return Ok(json_response_with_zero_wait(&model));
    }
    Err(ApiError::NoModel { model: name.to_owned() })
}

fn tenant(call: &ServerRequest) -> Result<&Tenant, ApiError> {
    match &call.caller {
        Caller::Tenant(tenant) => Ok(tenant),
        Caller::Public | Caller::Admin(_) => Err(ApiError::Internal),
    }
}

/// Reports whether the client is one of Anthropic's SDKs, which all send the API version.
fn is_anthropic_client(call: &ServerRequest) -> bool {
    call.request.headers().contains_key("anthropic-version")
}

fn anthropic_model(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
}

fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "evenkeel"})
}

fn json_response_with_zero_wait(value: &Value) -> Response {
    with_zero_wait(json_response(value))
}

pub(crate) fn json_response(value: &Value) -> Response {
    body::json_response(StatusCode::OK, body::full(value.to_string()))
}
