//! Routes of the gateway itself: `GET /`, `/metrics`, `/api/config`, `/api/openapi.json`, `/api/routes`, `/api/tenants…`. Each API
//! adds its own.

use std::sync::Arc;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::route::{METRICS, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::Access;
use evenkeel_sqs::SqsApi;
use evenkeel_telemetry::{CONTENT_TYPE, Secret};
use http::header;
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Map, Value, json};

use super::reload::in_force;
use super::{ChangeError, Core};
use crate::config::read_tenant;
use crate::tenant_store::{OldKeys, TenantChange, TenantStoreError};

/// Describes the SQL API and every path under `/api`, including those of the LLM and queue APIs.
const OPENAPI: &str = include_str!("openapi.json");
const ROUTES: &str = "/api/routes";
const TENANTS: &str = "/api/tenants";
const TENANT: &str = "/api/tenants/";

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes, metrics: Access) -> Result<(), RouteError> {
    let respond = |respond: fn(&Core) -> Response| {
        let core = core.clone();
        handler(move |_| {
            let response = respond(&core);
            async { Ok(response) }
        })
    };
    // `POST /` is the endpoint of SQS clients.
    routes.add(Method::GET, "/", Access::Public, respond(|_| json_response(StatusCode::OK, &about())))?;
    routes.add(Method::GET, METRICS, metrics, respond(metrics_page))?;
    let config = respond(|core| {
        let state = core.state.lock();
        json_response(StatusCode::OK, &in_force(&state.started, &state.config))
    });
    routes.add(Method::GET, "/api/config", Access::Admin, config)?;
    routes.add(Method::GET, "/api/openapi.json", Access::Public, respond(|_| openapi()))?;
    let tenants = respond(|core| json_response(StatusCode::OK, &core.state.lock().tenants.describe()));
    routes.add(Method::GET, TENANTS, Access::Admin, tenants)?;
    let shared = core.clone();
    routes.add(Method::POST, TENANTS, Access::Admin, handler(move |call| add(shared.clone(), call)))?;
    let shared = core.clone();
    let sqs_keys = handler(move |call| {
        let keys = sqs_keys(&shared, call.request.uri().path());
        async { keys }
    });
    routes.add(Method::GET, &format!("{TENANT}*"), Access::Admin, sqs_keys)?;
    let shared = core.clone();
    let rotate = handler(move |call| rotate(shared.clone(), call));
    routes.add(Method::POST, &format!("{TENANT}*"), Access::Admin, rotate)?;
    let shared = core.clone();
    let set = handler(move |call| set(shared.clone(), call));
    routes.add(Method::PATCH, &format!("{TENANT}*"), Access::Admin, set)?;
    let shared = core.clone();
    let remove = handler(move |call| remove(shared.clone(), call));
    routes.add(Method::DELETE, &format!("{TENANT}*"), Access::Admin, remove)
}

/// Adds the list of all routes, itself included, and of the operations of the SQS API. Called last.
pub(super) fn add_list(routes: &mut Routes) -> Result<(), RouteError> {
    let mut list = routes.list();
    list.push((Method::GET, ROUTES.to_owned()));
    let list: Vec<Value> =
        list.iter().map(|(method, path)| json!({"method": method.as_str(), "path": path})).collect();
    let response = json!({"routes": list, "sqs_operations": SqsApi::operations()});
    let list = handler(move |_| {
        let response = json_response(StatusCode::OK, &response);
        async { Ok(response) }
    });
    routes.add(Method::GET, ROUTES, Access::Admin, list)
}

/// Describes the product and its APIs; public, so it contains nothing about this installation.
fn about() -> Value {
    json!({
        "name": "evenkeel",
        "version": env!("CARGO_PKG_VERSION"),
        "apis": [
            {"name": "openai", "path": "/v1"},
            {"name": "anthropic", "path": "/v1/messages"},
            {"name": "sqs", "path": "/"},
            {"name": "queues", "path": "/api/queues"},
            {"name": "sql", "path": "/query"},
            {"name": "admin", "path": "/api/openapi.json"},
        ],
        "metrics": "/metrics",
        "health": ["/livez", "/readyz"],
    })
}

fn metrics_page(core: &Core) -> Response {
    let mut response = Response::new(body::full(core.metrics()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn openapi() -> Response {
    body::json_response(StatusCode::OK, body::full(OPENAPI))
}

async fn add(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let settings = read_object(&mut call).await?;
    if settings.contains_key("key_hashes") {
        return Err(ApiError::invalid("key_hashes cannot be set; the gateway creates a key and returns it"));
    }
    let tenant = read_tenant(&settings).map_err(|errors| ApiError::invalid(errors.to_string()))?;
    let name = tenant.name.clone();
    let key = change(core, TenantChange::Add(tenant)).await?;
    Ok(json_response(StatusCode::CREATED, &with_key(&name, key)))
}

async fn rotate(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path().to_owned();
    let name = path.strip_prefix(TENANT).and_then(|rest| rest.strip_suffix("/rotate"));
    let name = name.ok_or(ApiError::NoRoute)?.to_owned();
    let options = read_object(&mut call).await?;
    if let Some(key) = options.keys().find(|key| *key != "keep_old") {
        return Err(ApiError::invalid(format!("unknown option {key:?}; the only option is \"keep_old\"")));
    }
    let old_keys = match options.get("keep_old") {
        None | Some(Value::Bool(false)) => OldKeys::Revoke,
        Some(Value::Bool(true)) => OldKeys::Keep,
        Some(_) => return Err(ApiError::invalid("keep_old must be true or false")),
    };
    let key = change(core, TenantChange::Rotate { name: name.clone(), old_keys }).await?;
    Ok(json_response(StatusCode::OK, &with_key(&name, key)))
}

/// Handles `GET /api/tenants/{name}/sqs-key`: returns AWS credentials for the tenant's SQS clients.
fn sqs_keys(core: &Core, path: &str) -> Result<Response, ApiError> {
    let name = path.strip_prefix(TENANT).and_then(|rest| rest.strip_suffix("/sqs-key"));
    let name = name.ok_or(ApiError::NoRoute)?;
    let state = core.state.lock();
    let keys = state.tenants.sqs_keys(name, core.queue.sqs.master_key());
    let keys = keys.map_err(|error| api_error(ChangeError::Store(error)))?;
    Ok(json_response(StatusCode::OK, &json!({"name": name, "keys": keys})))
}

async fn set(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().strip_prefix(TENANT).ok_or(ApiError::NoRoute)?.to_owned();
    let settings = read_object(&mut call).await?;
    change(core, TenantChange::Set { name: name.clone(), settings }).await?;
    Ok(json_response(StatusCode::OK, &json!({"name": name})))
}

async fn remove(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().strip_prefix(TENANT).ok_or(ApiError::NoRoute)?.to_owned();
    change(core, TenantChange::Remove { name: name.clone() }).await?;
    Ok(json_response(StatusCode::OK, &json!({"name": name})))
}

/// Parses the body as a JSON object; an empty body is an empty object.
pub(super) async fn read_object(call: &mut ServerRequest) -> Result<Map<String, Value>, ApiError> {
    let body = call.read_body().await?;
    if body.bytes.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&body.bytes) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => Err(ApiError::invalid("the body is not a JSON object")),
        Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
    }
}

/// Applies a change on a blocking thread, because it writes to disk.
async fn change(core: Arc<Core>, change: TenantChange) -> Result<Option<Secret<String>>, ApiError> {
    let changed = tokio::task::spawn_blocking(move || core.change_tenants(change)).await;
    changed.map_err(|_| ApiError::Internal)?.map_err(api_error)
}

fn api_error(error: ChangeError) -> ApiError {
    match error {
        ChangeError::Store(TenantStoreError::Unknown { name }) => {
            ApiError::NotFound { what: format!("tenant {name:?}") }
        }
        ChangeError::Store(
            error @ (TenantStoreError::Exists { .. }
            | TenantStoreError::Configured { .. }
            | TenantStoreError::Fixed { .. }
            | TenantStoreError::Settings(_)
            | TenantStoreError::Tenants(_)),
        ) => ApiError::invalid(error.to_string()),
        ChangeError::Exposed(errors) => ApiError::invalid(errors.to_string()),
        ChangeError::Store(
            error @ (TenantStoreError::DataDir(_)
            | TenantStoreError::Accounts(_)
            | TenantStoreError::NoRandomness),
        ) => {
            tracing::error!(target: "evenkeel", %error, "could not store the change to the tenants; nothing changed");
            ApiError::Internal
        }
        ChangeError::Pipeline(error) => {
            tracing::error!(target: "evenkeel", %error, "tenants were stored, but the request pipeline rejected them; restart to apply them");
            ApiError::Internal
        }
    }
}

fn with_key(name: &str, key: Option<Secret<String>>) -> Value {
    json!({"name": name, "key": key.map(|key| key.expose().clone())})
}

pub(super) fn json_response(status: StatusCode, value: &Value) -> Response {
    body::json_response(status, body::full(value.to_string()))
}
