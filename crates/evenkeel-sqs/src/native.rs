//! The native API of queues, `/api/queues…`: what SQS cannot say.
//!
//! Tenants send and consume; what changes a queue for everybody (its settings, what its keys are bound to, a purge) is an
//! administrator's. Messages are the same in both protocols: a header here is an attribute there.

mod admin;
mod consume;
mod json;
mod keys;
mod result;
mod send;
mod stream;

use std::sync::Arc;

use evenkeel_queue::Queue;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::percent;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, Caller};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use stream::Streams;

use self::admin::purge;
use self::consume::peek;
use self::keys::keys;
use self::result::{explain, result};
use crate::SqsApi;
use crate::chunked_body::body_of;

const QUEUES: &str = "/api/queues";
const QUEUE: &str = "/api/queues/";
const METHODS: [Method; 6] =
    [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];

/// Queues as the native API shows them.
#[derive(Clone)]
struct Native {
    sqs: Arc<SqsApi>,
}

impl SqsApi {
    /// Adds the native API to a table of routes.
    pub fn add_native_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let native = Native { sqs: self.clone() };
        let own = native.clone();
        let listed = handler(move |call| {
            let answer = own.list(&call);
            async { answer }
        });
        routes.add(Method::GET, QUEUES, Access::TenantOrAdmin, listed)?;
        // Also methods that nothing takes, so that each path says which it does.
        for method in METHODS {
            let own = native.clone();
            let answer = handler(move |call| own.clone().answer(call));
            routes.add(method, &format!("{QUEUE}*"), Access::TenantOrAdmin, answer)?;
        }
        Ok(())
    }
}

impl Native {
    async fn answer(self, mut call: ServerRequest) -> Result<Response, ApiError> {
        let path = call.request.uri().path().strip_prefix(QUEUE).ok_or(ApiError::NoRoute)?;
        let parts: Option<Vec<String>> = path.split('/').map(percent::decode).collect();
        let parts = parts.ok_or(ApiError::NoRoute)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        // What is answered to GET is asked by HEAD, too.
        let method =
            if call.request.method() == Method::HEAD { "GET" } else { call.request.method().as_str() };
        match (method.to_owned().as_str(), parts.as_slice()) {
            ("PUT", [name]) => self.put(&mut call, name).await,
            ("GET", [name]) => self.show(&self.queue(name)?),
            ("DELETE", [name]) => self.delete(&call, name).await,
            ("POST", [name, "messages"]) => self.send(&mut call, &self.queue(name)?).await,
            ("GET", [name, "messages"]) => peek(&call, &self.queue(name)?).await,
            ("GET", [name, "messages", id]) => explain(&self.queue(name)?, id).await,
            ("GET", [name, "results", id]) => result(&self.queue(name)?, id).await,
            ("POST", [name, "receive"]) => self.receive(&mut call, self.queue(name)?).await,
            ("POST", [name, "ack"]) => self.ack(&mut call, &self.queue(name)?).await,
            ("POST", [name, "nack"]) => self.nack(&mut call, &self.queue(name)?).await,
            ("POST", [name, "extend"]) => self.extend(&mut call, &self.queue(name)?).await,
            ("GET", [name, "stream"]) => self.stream(&call, self.queue(name)?),
            ("GET", [name, "keys"]) => keys(&call, &self.queue(name)?).await,
            ("PUT", [name, "keys", key]) => self.rule(&mut call, &self.queue(name)?, key).await,
            ("POST", [name, "purge"]) => purge(&call, &self.queue(name)?).await,
            ("POST", [name, "redrive"]) => self.redrive(&mut call, &self.queue(name)?).await,
            (_, parts) => Err(route_error(parts)),
        }
    }

    fn queue(&self, name: &str) -> Result<Queue, ApiError> {
        self.sqs.queues.get(name).ok_or_else(|| ApiError::NotFound { what: format!("queue {name:?}") })
    }
}

/// Says which methods a path takes, if it takes any.
fn route_error(parts: &[&str]) -> ApiError {
    let allow = match parts {
        [_] => "GET, PUT, DELETE",
        [_, "messages"] => "GET, POST",
        [_, "messages" | "results", _] | [_, "stream" | "keys"] => "GET",
        [_, "receive" | "ack" | "nack" | "extend" | "purge" | "redrive"] => "POST",
        [_, "keys", _] => "PUT",
        _ => return ApiError::NoRoute,
    };
    ApiError::Method { allow: allow.to_owned() }
}

/// Refuses whoever is not an administrator.
fn check_admin(call: &ServerRequest) -> Result<(), ApiError> {
    match call.caller {
        Caller::Admin => Ok(()),
        Caller::Public | Caller::Tenant(_) => Err(ApiError::AdminOnly),
    }
}

/// Who sends, as consumers are told.
fn sender_of(call: &ServerRequest) -> &str {
    match &call.caller {
        Caller::Tenant(tenant) => &tenant.settings.name,
        Caller::Admin => "admin",
        Caller::Public => "",
    }
}

/// Reads a body, which is an object; none at all is an empty one.
async fn read<T: DeserializeOwned>(call: &mut ServerRequest) -> Result<T, ApiError> {
    let bytes = call.read_body().await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    // A list of the right length would be read as if its items had names.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(unexpected)
}

fn unexpected(error: serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the body is not what is expected: {error}"))
}

/// Reads what stands after the question mark; a key that nobody knows is refused.
fn query<const N: usize>(
    call: &ServerRequest,
    known: [&'static str; N],
) -> Result<[Option<String>; N], ApiError> {
    let mut values = [const { None }; N];
    for pair in call.request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let unknown =
            || ApiError::invalid(format!("unknown parameter {key:?}; there is {}", known.join(", ")));
        let at = known.iter().position(|name| *name == key).ok_or_else(unknown)?;
        let value = percent::decode(value);
        values[at] = Some(value.ok_or_else(|| ApiError::invalid(format!("{key} cannot be read")))?);
    }
    Ok(values)
}

/// Reads a number that has bounds.
fn number(
    name: &str,
    value: Option<&str>,
    otherwise: u64,
    range: core::ops::RangeInclusive<u64>,
) -> Result<u64, ApiError> {
    let Some(value) = value else { return Ok(otherwise) };
    let wrong = |_| ApiError::invalid(format!("{name} is not a whole number: {value:?}"));
    within(name, value.parse().map_err(wrong)?, range)
}

/// Refuses a number that is out of bounds.
fn within(name: &str, value: u64, range: core::ops::RangeInclusive<u64>) -> Result<u64, ApiError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = range.into_inner();
    Err(ApiError::invalid(format!("{name} {value} is not between {min} and {max}")))
}

/// Writes an answer.
fn json_response(status: StatusCode, answer: &impl Serialize) -> Result<Response, ApiError> {
    let bytes = serde_json::to_vec(answer).map_err(|_| ApiError::Internal)?;
    let mut response = Response::new(body_of(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
