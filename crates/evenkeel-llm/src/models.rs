//! `GET /v1/models`: what a tenant may ask for.

use evenkeel_door::body::{self, Response};
use evenkeel_door::refusal::Refusal;
use evenkeel_door::route::Call;
use evenkeel_door::tenant::{Caller, Tenant};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::door::Llm;
use crate::wording::unwaited;

/// Lists the models that any node serves and the tenant may use.
pub(crate) fn list(llm: &Llm, call: &Call) -> Result<Response, Refusal> {
    let tenant = tenant(call)?;
    let models = llm.nodes.models();
    let listed = models.iter().filter(|name| tenant.check_model(name).is_ok()).map(|name| model(name));
    Ok(answer_unwaited(&json!({"object": "list", "data": listed.collect::<Vec<_>>()})))
}

/// Describes one model, whose name may have slashes in it.
pub(crate) fn one(llm: &Llm, call: &Call) -> Result<Response, Refusal> {
    let name = call.request.uri().path().trim_start_matches("/v1/models/");
    tenant(call)?.check_model(name)?;
    if llm.nodes.models().iter().any(|served| **served == *name) {
        return Ok(answer_unwaited(&model(name)));
    }
    Err(Refusal::NoModel { model: name.to_owned() })
}

fn tenant(call: &Call) -> Result<&Tenant, Refusal> {
    match &call.caller {
        Caller::Tenant(tenant) => Ok(tenant),
        Caller::Public | Caller::Admin => Err(Refusal::Internal),
    }
}

fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "evenkeel"})
}

fn answer_unwaited(value: &Value) -> Response {
    unwaited(answer(value))
}

/// Answers with JSON.
pub(crate) fn answer(value: &Value) -> Response {
    let mut response = Response::new(body::full(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
