//! The native queue API, `/api/queues…`, for features that SQS does not have.
//!
//! Tenants send and consume; operations that change a queue for everyone (settings, limits of keys, purge, redrive,
//! assign, delete) need an admin key. A queue of another owner is named `owner/name`, with the slash percent-encoded. Both APIs share the messages: a header of the native API is an SQS message attribute.

mod admin;
mod assign;
mod consume;
mod json;
mod keys;
mod result;
mod send;
mod stream;

use std::sync::Arc;

use evenkeel_queue::Queue;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::AuditScope;
use evenkeel_server::body::{self, Response};
use evenkeel_server::percent;
use evenkeel_server::query::query;
use evenkeel_server::route::{RateLimit, Route, RouteError, Routes, ServerRequest, handler, openai_error};
use evenkeel_server::tenant::{Access, Caller};
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use stream::Streams;

use self::admin::purge;
use self::consume::peek;
use self::keys::keys;
use self::result::{explain, result};
use crate::SqsApi;
use crate::arn::QueueRef;
use crate::chunked_body::chunked;
use crate::operation::Operation;

const QUEUES: &str = "/api/queues";
const QUEUE: &str = "/api/queues/";
/// Queues of other owners that an error names.
const OWNERS_NAMED_MAX: usize = 5;
/// Methods and paths of a queue; `dispatch` gets no others.
const PATHS: [(Method, &str); 17] = [
    (Method::GET, "/api/queues/{queue}"),
    (Method::PUT, "/api/queues/{queue}"),
    (Method::DELETE, "/api/queues/{queue}"),
    (Method::GET, "/api/queues/{queue}/messages"),
    (Method::POST, "/api/queues/{queue}/messages"),
    (Method::GET, "/api/queues/{queue}/messages/{id}"),
    (Method::GET, "/api/queues/{queue}/results/{id}"),
    (Method::POST, "/api/queues/{queue}/receive"),
    (Method::POST, "/api/queues/{queue}/ack"),
    (Method::POST, "/api/queues/{queue}/nack"),
    (Method::POST, "/api/queues/{queue}/extend"),
    (Method::GET, "/api/queues/{queue}/stream"),
    (Method::GET, "/api/queues/{queue}/keys"),
    (Method::PUT, "/api/queues/{queue}/keys/{key}"),
    (Method::POST, "/api/queues/{queue}/purge"),
    (Method::POST, "/api/queues/{queue}/redrive"),
    (Method::POST, "/api/queues/{queue}/assign"),
];

/// The native API.
#[derive(Clone)]
struct Native {
    sqs: Arc<SqsApi>,
}

impl SqsApi {
    /// Adds the routes of the native API.
    pub fn add_native_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let native = Native { sqs: self.clone() };
        let api = native.clone();
        let list = handler(move |request| {
            let response = api.list(&request);
            async { response }
        });
        routes.add(Method::GET, QUEUES, Access::TenantOrAdmin, list)?;
        for (method, path) in PATHS {
            let api = native.clone();
            let route = Route {
                method,
                access: Access::TenantOrAdmin,
                rate_limit: RateLimit::Server,
                handler: handler(move |request| api.clone().dispatch(request)),
                error_format: openai_error,
                audit: AuditScope::ExceptData(is_data),
            };
            routes.add_route(path, route)?;
        }
        Ok(())
    }
}

impl Native {
    async fn dispatch(self, mut request: ServerRequest) -> Result<Response, ApiError> {
        let path = request.request.uri().path().strip_prefix(QUEUE).ok_or(ApiError::NoRoute)?;
        let parts: Option<Vec<String>> = path.split('/').map(percent::decode).collect();
        let parts = parts.ok_or(ApiError::NoRoute)?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        // HEAD is handled as GET.
        let method =
            if request.request.method() == Method::HEAD { "GET" } else { request.request.method().as_str() };
        use Operation as Op;
        let caller = request.caller.clone();
        let queue = |name: &str, operation| self.queue(&caller, name, operation);
        // For requests of administrators; a tenant that sees the queue gets 403.
        let visible = |name: &str| queue(name, Op::ListQueues);
        match (method.to_owned().as_str(), parts.as_slice()) {
            ("PUT", [name]) => self.put(&mut request, name).await,
            ("GET", [name]) => self.show(&caller, &queue(name, Op::GetQueueAttributes)?),
            ("DELETE", [name]) => self.delete(&request, name).await,
            ("POST", [name, "messages"]) => self.send(&mut request, &queue(name, Op::SendMessage)?).await,
            ("GET", [name, "messages"]) => peek(&request, &queue(name, Op::ReceiveMessage)?).await,
            ("GET", [name, "messages", id]) => {
                explain(&queue(name, Op::GetQueueAttributes)?, id, &caller).await
            }
            ("GET", [name, "results", id]) => {
                // The sender of a job reads its result.
                let found = queue(name, Op::SendMessage).or_else(|_| queue(name, Op::ReceiveMessage));
                result(&found?, id, &caller).await
            }
            ("POST", [name, "receive"]) => self.receive(&mut request, queue(name, Op::ReceiveMessage)?).await,
            ("POST", [name, "ack"]) => self.ack(&mut request, &queue(name, Op::DeleteMessage)?).await,
            ("POST", [name, "nack"]) => {
                self.nack(&mut request, &queue(name, Op::ChangeMessageVisibility)?).await
            }
            ("POST", [name, "extend"]) => {
                self.extend(&mut request, &queue(name, Op::ChangeMessageVisibility)?).await
            }
            ("GET", [name, "stream"]) => self.stream(&request, queue(name, Op::ReceiveMessage)?),
            ("GET", [name, "keys"]) => keys(&request, &queue(name, Op::GetQueueAttributes)?).await,
            ("PUT", [name, "keys", key]) => self.set_rule(&mut request, &visible(name)?, key).await,
            ("POST", [name, "purge"]) => purge(&request, &visible(name)?).await,
            ("POST", [name, "redrive"]) => self.redrive(&mut request, &visible(name)?).await,
            ("POST", [name, "assign"]) => self.assign(&mut request, name).await,
            _ => Err(ApiError::NoRoute),
        }
    }

    /// Finds the queue that a caller names, if the caller may perform the operation on it.
    fn queue(&self, caller: &Caller, name: &str, operation: Operation) -> Result<Queue, ApiError> {
        let queue = self.queue_ref(name).and_then(|queue| self.sqs.find(caller, queue, operation));
        queue.ok_or_else(|| match caller {
            Caller::Admin(_) => self.no_queue_but(name),
            Caller::Tenant(_) | Caller::Public => no_queue(name),
        })
    }

    /// Returns the error for an unknown name, with the queues of that name that tenants own.
    fn no_queue_but(&self, name: &str) -> ApiError {
        let owned =
            self.sqs.queues.list(name, None, OWNERS_NAMED_MAX, |queue| queue.descriptor().name == name);
        let owned: Vec<String> = owned.iter().filter_map(|queue| self.full_name(queue)).collect();
        match owned.as_slice() {
            [] => no_queue(name),
            owned => {
                let what = format!("shared queue {name:?}; tenants own {}", owned.join(", "));
                ApiError::NotFound { what }
            }
        }
    }

    /// Returns `owner/name`; `None` for a shared queue.
    fn full_name(&self, queue: &Queue) -> Option<String> {
        let descriptor = queue.descriptor();
        Some(format!("{}/{}", self.sqs.owner_name(descriptor.namespace)?, descriptor.name))
    }

    /// Parses `name` or `owner/name`; the owner is the name of a tenant or an account number.
    fn queue_ref<'a>(&self, name: &'a str) -> Option<QueueRef<'a>> {
        let Some((owner, name)) = name.split_once('/') else { return Some(QueueRef::by_name(name)) };
        let namespace = self.sqs.namespace_of_owner(owner)?;
        Some(QueueRef { namespace: Some(namespace), name })
    }
}

/// Reports whether a path is an operation on messages, which are too many to be recorded.
fn is_data(path: &str) -> bool {
    let parts: Vec<&str> = path.strip_prefix(QUEUE).unwrap_or_default().split('/').collect();
    matches!(parts.as_slice(), [_, "messages" | "receive" | "ack" | "nack" | "extend"])
}

/// Rejects callers that are not administrators.
fn check_admin(request: &ServerRequest) -> Result<(), ApiError> {
    match request.caller {
        Caller::Admin(_) => Ok(()),
        Caller::Public | Caller::Tenant(_) => Err(ApiError::AdminOnly),
    }
}

fn no_queue(name: &str) -> ApiError {
    ApiError::NotFound { what: format!("queue {name:?}") }
}

/// Parses the body as a JSON object; an empty body is an empty object.
async fn read<T: DeserializeOwned>(request: &mut ServerRequest) -> Result<T, ApiError> {
    let body = request.read_body().await?;
    let bytes: &[u8] = if body.bytes.is_empty() { b"{}" } else { &body.bytes };
    // serde would also accept an array with the fields in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(body_error)
}

fn body_error(error: serde_json::Error) -> ApiError {
    ApiError::invalid(format!("invalid body: {error}"))
}

/// Parses a number of the query and checks its range.
fn number(
    name: &str,
    value: Option<&str>,
    default: u64,
    range: core::ops::RangeInclusive<u64>,
) -> Result<u64, ApiError> {
    let Some(value) = value else { return Ok(default) };
    let invalid = |_| ApiError::invalid(format!("{name} is not a whole number: {value:?}"));
    within(name, value.parse().map_err(invalid)?, range)
}

/// Checks the range of a number.
fn within(name: &str, value: u64, range: core::ops::RangeInclusive<u64>) -> Result<u64, ApiError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (min, max) = range.into_inner();
    Err(ApiError::invalid(format!("{name} {value} is not between {min} and {max}")))
}

/// Serializes a value as the body of a response.
fn json_response(status: StatusCode, value: &impl Serialize) -> Result<Response, ApiError> {
    let bytes = serde_json::to_vec(value).map_err(|_| ApiError::Internal)?;
    Ok(body::json_response(status, chunked(bytes)))
}
