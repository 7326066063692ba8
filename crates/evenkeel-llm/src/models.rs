//! `GET /v1/models`: the models and aliases that a tenant may use.

use std::sync::Arc;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::percent;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::{Caller, Tenant};
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::LlmApi;
use crate::error_format::with_zero_wait;

/// Lists the models that any node serves and the tenant may use.
pub(crate) fn list(llm: &LlmApi, call: &ServerRequest) -> Result<Response, ApiError> {
    let allowed = allowed(llm, tenant(call)?);
    if is_anthropic_client(call) {
        let listed: Vec<_> = allowed.iter().map(|name| anthropic_model(name)).collect();
        let ends = [listed.first(), listed.last()].map(|model| model.map(|model| model["id"].clone()));
        let [first_id, last_id] = ends;
        let list = json!({"data": listed, "has_more": false, "first_id": first_id, "last_id": last_id});
        return Ok(json_response_with_zero_wait(&list));
    }
    let listed: Vec<_> = allowed.iter().map(|name| model(name)).collect();
    Ok(json_response_with_zero_wait(&json!({"object": "list", "data": listed})))
}

/// Describes one model. Its name may contain slashes, which some clients percent-encode and others do not.
pub(crate) fn one(llm: &LlmApi, call: &ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path();
    let encoded = path.strip_prefix("/v1/models/").unwrap_or(path);
    let Some(name) = percent::decode(encoded) else {
        return Err(ApiError::NoModel { model: encoded.to_owned() });
    };
    let tenant = tenant(call)?;
    if allowed(llm, tenant).iter().any(|allowed| **allowed == *name) {
        let model = if is_anthropic_client(call) { anthropic_model(&name) } else { model(&name) };
        return Ok(json_response_with_zero_wait(&model));
    }
    tenant.check_model(&name)?;
    Err(llm.unknown_model(&name))
}

/// Lists the names of the models that nodes serve and of their aliases, those that the tenant may use, sorted.
fn allowed(llm: &LlmApi, tenant: &Tenant) -> Vec<Arc<str>> {
    let served = llm.nodes.models();
    let table = llm.model_table();
    let is_served = |model: &str| llm.nodes.model(model).and_then(|id| llm.nodes.model_name(id));
    let is_served = |model: &str| is_served(model).is_some_and(|name| served.binary_search(&name).is_ok());
    let mut allowed = table.names(tenant, is_served);
    allowed.extend(served.iter().filter(|name| tenant.check_model(name).is_ok()).cloned());
    allowed.sort_unstable();
    allowed.dedup();
    allowed
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
