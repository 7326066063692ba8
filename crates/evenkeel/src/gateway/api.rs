//! Routes of the gateway itself: `GET /`, `/metrics`, `/api/config`, `/api/openapi.json`, `/api/routes`, `/api/tenants…`. Each API
//! adds its own.

use std::sync::Arc;

use evenkeel_policy::class::Class;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::audit_trail::AuditNote;
use evenkeel_server::body::{self, Response};
use evenkeel_server::percent;
use evenkeel_server::route::{METRICS, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::Access;
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_sqs::SqsApi;
use evenkeel_telemetry::{CONTENT_TYPE, Secret};
use http::header;
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Map, Value, json};

use super::reload::in_force;
use super::{ChangeError, Core, usage};
use crate::config::read_tenant;
use crate::key_use::parse_expiry;
use crate::tenant_store::{OldKeys, TenantChange, TenantStoreError};

/// Describes the SQL API and every path under `/api`, including those of the LLM and queue APIs.
const OPENAPI: &str = include_str!("openapi.json");
const ROUTES: &str = "/api/routes";
const TENANTS: &str = "/api/tenants";
const TENANT: &str = "/api/tenants/";
/// Last segment of the path of a tenant's keys.
const KEYS: &str = "keys";

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes, metrics: Access) -> Result<(), RouteError> {
    let respond = |respond: fn(&Core) -> Response| {
        let core = core.clone();
        handler(move |_| {
            let response = respond(&core);
            async { Ok(response) }
        })
    };
    // `/` is also the endpoint of SQS clients.
    core.queue.sqs.add_routes(routes, respond(|_| json_response(StatusCode::OK, &about())))?;
    routes.add(Method::GET, METRICS, metrics, respond(metrics_page))?;
    let config = respond(|core| {
        let state = core.state.lock();
        json_response(StatusCode::OK, &in_force(&state.started, &state.config))
    });
    routes.add(Method::GET, "/api/config", Access::Admin, config)?;
    routes.add(Method::GET, "/api/openapi.json", Access::Public, respond(|_| openapi()))?;
    let tenants = respond(|core| {
        let mut list = core.state.lock().tenants.describe();
        core.add_budgets(&mut list);
        json_response(StatusCode::OK, &list)
    });
    routes.add(Method::GET, TENANTS, Access::Admin, tenants)?;
    let shared = core.clone();
    routes.add(Method::POST, TENANTS, Access::Admin, handler(move |call| add(shared.clone(), call)))?;
    let shared = core.clone();
    let read = handler(move |call| read(shared.clone(), call));
    for path in
        ["/api/tenants/{tenant}/keys", "/api/tenants/{tenant}/sqs-key", "/api/tenants/{tenant}/statement"]
    {
        routes.add(Method::GET, path, Access::Admin, read.clone())?;
    }
    let shared = core.clone();
    let create_key = handler(move |call| create_key(shared.clone(), call));
    for path in ["/api/tenants/{tenant}/keys", "/api/tenants/{tenant}/rotate"] {
        routes.add(Method::POST, path, Access::Admin, create_key.clone())?;
    }
    let shared = core.clone();
    let set = handler(move |call| set(shared.clone(), call));
    routes.add(Method::PATCH, "/api/tenants/{tenant}", Access::Admin, set)?;
    let shared = core.clone();
    let remove = handler(move |call| remove(shared.clone(), call));
    for path in ["/api/tenants/{tenant}", "/api/tenants/{tenant}/keys/{key}"] {
        routes.add(Method::DELETE, path, Access::Admin, remove.clone())?;
    }
    Ok(())
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
    if let Some(setting) = ["key_hashes", "keys"].into_iter().find(|setting| settings.contains_key(*setting))
    {
        let message = format!("{setting} cannot be set; the gateway creates a key and returns it");
        return Err(ApiError::invalid(message));
    }
    let tenant = read_tenant(&settings).map_err(|errors| ApiError::invalid(errors.to_string()))?;
    let name = tenant.name.clone();
    let key = change(core, TenantChange::Add(Box::new(tenant)), call.audit.clone()).await?;
    Ok(json_response(StatusCode::CREATED, &with_key(&name, key)))
}

/// Handles `POST /api/tenants/{name}/keys` and `…/rotate`.
async fn create_key(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path().to_owned();
    let path = path.strip_prefix(TENANT).and_then(|rest| rest.rsplit_once('/'));
    match path.ok_or(ApiError::NoRoute)? {
        (name, "rotate") => rotate(core, call, name.to_owned()).await,
        (name, KEYS) => add_key(core, call, name.to_owned()).await,
        _ => Err(ApiError::NoRoute),
    }
}

async fn add_key(core: Arc<Core>, mut call: ServerRequest, tenant: String) -> Result<Response, ApiError> {
    let options = read_object(&mut call).await?;
    if let Some(key) = options.keys().find(|key| !["name", "expires_at", "priority"].contains(&key.as_str()))
    {
        let message =
            format!("unknown option {key:?}; the options are \"name\", \"expires_at\" and \"priority\"");
        return Err(ApiError::invalid(message));
    }
    let text = |option: &str| match options.get(option) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ApiError::invalid(format!("{option} must be a text"))),
    };
    let name = text("name")?;
    let expires_at = match text("expires_at")? {
        Some(text) => Some(parse_expiry(&text, UnixSeconds::now()).map_err(ApiError::invalid)?),
        None => None,
    };
    let priority = match text("priority")? {
        Some(name) => Some(name.parse::<Class>().map_err(|error| ApiError::invalid(error.to_string()))?),
        None => None,
    };
    let change_keys = TenantChange::AddKey { tenant: tenant.clone(), name, expires_at, priority };
    let key = change(core.clone(), change_keys, call.audit.clone()).await?;
    let mut response = with_key(&tenant, key);
    let hash = response["key"].as_str().map(KeyHash::of);
    let tenants = core.auth.tenants();
    let keys = tenants.get(&tenant).map(|tenant| tenant.settings.keys.as_slice()).unwrap_or_default();
    let added = keys.iter().find(|key| hash.is_some_and(|hash| key.hash.matches(&hash)));
    response["key_name"] = json!(added.map(|key| key.name.as_str()));
    response["expires_at"] = json!(expires_at.map(UnixSeconds::to_rfc3339));
    Ok(json_response(StatusCode::CREATED, &response))
}

async fn rotate(core: Arc<Core>, mut call: ServerRequest, name: String) -> Result<Response, ApiError> {
    let options = read_object(&mut call).await?;
    if let Some(key) = options.keys().find(|key| *key != "keep_old") {
        return Err(ApiError::invalid(format!("unknown option {key:?}; the only option is \"keep_old\"")));
    }
    let old_keys = match options.get("keep_old") {
        None | Some(Value::Bool(false)) => OldKeys::Revoke,
        Some(Value::Bool(true)) => OldKeys::Keep,
        Some(_) => return Err(ApiError::invalid("keep_old must be true or false")),
    };
    let key = change(core, TenantChange::Rotate { name: name.clone(), old_keys }, call.audit.clone()).await?;
    Ok(json_response(StatusCode::OK, &with_key(&name, key)))
}

/// Handles `GET /api/tenants/{name}/statement`, `…/keys`, and `…/sqs-key`, which returns AWS credentials for the tenant's
/// SQS clients.
async fn read(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path().to_owned();
    let path = path.strip_prefix(TENANT).and_then(|rest| rest.rsplit_once('/'));
    match path.ok_or(ApiError::NoRoute)? {
        (name, "statement") => usage::tenant_statement(core, call, name.to_owned()).await,
        (name, resource) => keys(&core, name, resource),
    }
}

fn keys(core: &Core, name: &str, resource: &str) -> Result<Response, ApiError> {
    let tenants = &core.state.lock().tenants;
    let described = match resource {
        KEYS => {
            let table = core.auth.tenants();
            tenants.describe_keys(name, UnixSeconds::now(), |hash| table.last_use(hash))
        }
        "sqs-key" => {
            let keys = tenants.sqs_keys(name, core.queue.sqs.master_key());
            keys.map(|keys| json!({"name": name, "keys": keys}))
        }
        _ => return Err(ApiError::NoRoute),
    };
    let described = described.map_err(|error| api_error(ChangeError::Store(error)))?;
    Ok(json_response(StatusCode::OK, &described))
}

async fn set(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().strip_prefix(TENANT).ok_or(ApiError::NoRoute)?.to_owned();
    let settings = read_object(&mut call).await?;
    change(core, TenantChange::Set { name: name.clone(), settings }, call.audit.clone()).await?;
    Ok(json_response(StatusCode::OK, &json!({"name": name})))
}

/// Handles `DELETE /api/tenants/{name}` and `DELETE /api/tenants/{name}/keys/{key}`.
async fn remove(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().strip_prefix(TENANT).ok_or(ApiError::NoRoute)?.to_owned();
    if let Some((tenant, key)) = name.split_once("/keys/") {
        let tenant = tenant.to_owned();
        let key = percent::decode(key).ok_or(ApiError::NoRoute)?;
        change(
            core,
            TenantChange::RemoveKey { tenant: tenant.clone(), name: key.clone() },
            call.audit.clone(),
        )
        .await?;
        return Ok(json_response(StatusCode::OK, &json!({"name": tenant, "key_name": key})));
    }
    change(core, TenantChange::Remove { name: name.clone() }, call.audit.clone()).await?;
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
async fn change(
    core: Arc<Core>,
    change: TenantChange,
    audit: AuditNote,
) -> Result<Option<Secret<String>>, ApiError> {
    let changed = tokio::task::spawn_blocking(move || core.change_tenants(change, &audit)).await;
    changed.map_err(|_| ApiError::Internal)?.map_err(api_error)
}

fn api_error(error: ChangeError) -> ApiError {
    match error {
        ChangeError::Store(TenantStoreError::Unknown { name }) => {
            ApiError::NotFound { what: format!("tenant {name:?}") }
        }
        ChangeError::Store(TenantStoreError::UnknownKey { tenant, name }) => {
            ApiError::NotFound { what: format!("key {name:?} of tenant {tenant:?}") }
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
