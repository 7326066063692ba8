//! The SQS API: shared state, routes, and the dispatch of operations.

use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use evenkeel_queue::{Queue, QueueId, Queues};
use evenkeel_server::access_key::MasterKey;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::AuditGuard;
use evenkeel_server::body::Response;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::sigv4::{SignatureVerifier, SignedRequest};
use evenkeel_server::tenant::{Access, Authenticator, Caller};
use evenkeel_telemetry::{RegisterError, Registry};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::arn::QueueRef;
use crate::chunked_body::chunked;
use crate::error::{JSON, SqsError};
use crate::limit::{BATCH_BYTES_MAX, HEADROOM, WIRE_BYTES_MAX};
use crate::metrics::SqsMetrics;
use crate::move_task::MoveTasks;
use crate::native::Streams;
use crate::operation::Operation;
use crate::options::SqsOptions;
use crate::time::Seconds;

/// Service in the credential scope of signatures.
const SERVICE: &str = "sqs";
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const TRACE: HeaderName = HeaderName::from_static("x-amzn-trace-id");

/// The SQS API and the native API of queues.
pub struct SqsApi {
    pub(crate) options: SqsOptions,
    pub(crate) queues: Arc<Queues>,
    pub(crate) auth: Arc<Authenticator>,
    signatures: SignatureVerifier,
    pub(crate) metrics: SqsMetrics,
    pub(crate) moves: MoveTasks,
    pub(crate) streams: Streams,
    /// Time of each queue's last purge.
    pub(crate) purged: Mutex<HashMap<QueueId, Instant>>,
    /// Serializes read-modify-write changes of queue settings.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Set to true on shutdown, which ends every long poll.
    pub(crate) stopping: watch::Sender<bool>,
    /// Given to tasks that outlive a request.
    pub(crate) weak_self: Weak<Self>,
}

/// The parts of a request that operations use besides the body.
pub(crate) struct RequestContext {
    /// Host that the client addressed, for queue URLs.
    pub(crate) host: String,
    pub(crate) operation: Operation,
    /// The tenant that sent the request.
    pub(crate) caller: Caller,
    /// Value of `X-Amzn-Trace-Id`.
    pub(crate) trace: Option<String>,
    pub(crate) disconnect: Disconnect,
}

impl SqsApi {
    /// Creates the API. `auth` authenticates tenants, `master` derives their secrets.
    pub fn new(
        mut options: SqsOptions,
        queues: Arc<Queues>,
        auth: Arc<Authenticator>,
        master: MasterKey,
        registry: &Registry,
    ) -> Result<Arc<Self>, RegisterError> {
        let metrics = SqsMetrics::new(registry, options.queues_metered_max)?;
        options.defaults.message_bytes_max = BATCH_BYTES_MAX as u64 + HEADROOM;
        Ok(Arc::new_cyclic(|weak_self| Self {
            options,
            moves: MoveTasks::restore_interrupted(&queues),
            queues,
            signatures: SignatureVerifier::new(auth.clone(), master, SERVICE).with_body_max(WIRE_BYTES_MAX),
            auth,
            metrics,
            streams: Streams::default(),
            purged: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            stopping: watch::Sender::new(false),
            weak_self: weak_self.clone(),
        }))
    }

    /// Adds the routes of SQS clients: `POST /`, and `POST` on queue URLs.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        for path in ["/", "/{account}/*"] {
            let sqs = self.clone();
            let handler = handler(move |request| sqs.clone().serve(request));
            // Public, because the API verifies the SigV4 signatures itself.
            routes.add(Method::POST, path, Access::Public, handler)?;
        }
        Ok(())
    }

    /// Lists the names of all operations.
    pub fn operations() -> Vec<&'static str> {
        Operation::ALL.iter().map(|operation| operation.name()).collect()
    }

    /// Returns the key that clients' secrets are derived from.
    pub fn master_key(&self) -> &MasterKey {
        self.signatures.master_key()
    }

    /// Ends every long poll with an empty response; other requests are still served.
    pub fn shutdown(&self) {
        self.stopping.send_replace(true);
    }

    /// Updates the gauges of all queues; called before metrics are rendered.
    pub fn update_metrics(&self) {
        self.metrics.publish_queue_totals(&self.queues, |queue| self.labels(queue));
    }

    async fn serve(self: Arc<Self>, mut request: ServerRequest) -> Result<Response, ApiError> {
        let started = Instant::now();
        let request_id = request.request_id.clone();
        let operation = operation_of(&request);
        let audit = operation.as_ref().ok().and_then(|operation| self.begin_audit(*operation, &mut request));
        let (operation, result) = match operation {
            Ok(operation) => (Some(operation), self.handle(operation, &mut request).await),
            Err(error) => (None, Err(error)),
        };
        match (&result, operation) {
            (Ok(_), Some(operation)) => self.metrics.succeeded(operation, started.elapsed()),
            (Ok(_), None) => {}
            (Err(error), operation) => self.metrics.failed(operation, error.code()),
        }
        let error = result.as_ref().err().filter(|_| audit.is_some()).map(ToString::to_string);
        let mut response = result.unwrap_or_else(SqsError::into_response);
        if let Some(audit) = audit {
            audit.finish(response.status(), error);
        }
        response.headers_mut().insert(REQUEST_ID, request_id);
        Ok(response)
    }

    /// Begins the audit record of an operation that changes queues; `None` for others.
    fn begin_audit(&self, operation: Operation, request: &mut ServerRequest) -> Option<AuditGuard> {
        if !operation.is_change() {
            return None;
        }
        let id = request.request_id.to_str().unwrap_or_default().to_owned();
        let audit = self.auth.audit(request.peer.ip(), id, format!("SQS {}", operation.name()))?;
        request.audit = audit.note();
        Some(audit)
    }

    async fn handle(&self, operation: Operation, request: &mut ServerRequest) -> Result<Response, SqsError> {
        let SignedRequest { tenant, body } = self.signatures.authenticate::<SqsError>(request).await?;
        tenant.take_request(request.accepted_at)?;
        let context = RequestContext {
            host: host_of(request),
            operation,
            caller: Caller::Tenant(tenant),
            trace: header_text(request, &TRACE).map(str::to_owned),
            disconnect: request.disconnect.clone(),
        };
        let json = self.run(operation, &context, &body.bytes).await?;
        let mut response = Response::new(chunked(json));
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        Ok(response)
    }

    pub(crate) async fn run(
        &self,
        operation: Operation,
        context: &RequestContext,
        body: &[u8],
    ) -> Result<Vec<u8>, SqsError> {
        match operation {
            Operation::AddPermission => to_json(&self.add_permission(context, read(body)?).await?),
            Operation::CancelMessageMoveTask => to_json(&self.cancel_move_task(context, &read(body)?)?),
            Operation::ChangeMessageVisibility => {
                to_json(&self.change_visibility(context, &read(body)?).await?)
            }
            Operation::ChangeMessageVisibilityBatch => {
                to_json(&self.change_visibility_batch(context, read(body)?).await?)
            }
            Operation::CreateQueue => to_json(&self.create_queue(context, read(body)?).await?),
            Operation::DeleteMessage => to_json(&self.delete_message(context, &read(body)?).await?),
            Operation::DeleteMessageBatch => to_json(&self.delete_message_batch(context, read(body)?).await?),
            Operation::DeleteQueue => to_json(&self.delete_queue(context, &read(body)?).await?),
            Operation::GetQueueAttributes => to_json(&self.queue_attributes(context, &read(body)?)?),
            Operation::GetQueueUrl => to_json(&self.queue_url(context, &read(body)?)?),
            Operation::ListDeadLetterSourceQueues => {
                to_json(&self.dead_letter_sources(context, &read(body)?)?)
            }
            Operation::ListMessageMoveTasks => to_json(&self.list_move_tasks(context, &read(body)?)?),
            Operation::ListQueueTags => to_json(&self.queue_tags(context, &read(body)?)?),
            Operation::ListQueues => to_json(&self.list_queues(context, &read(body)?)?),
            Operation::PurgeQueue => to_json(&self.purge_queue(context, &read(body)?).await?),
            Operation::ReceiveMessage => self.receive_message(context, &read(body)?).await,
            Operation::RemovePermission => to_json(&self.remove_permission(context, &read(body)?).await?),
            Operation::SendMessage => to_json(&self.send_message(context, read(body)?).await?),
            Operation::SendMessageBatch => to_json(&self.send_message_batch(context, read(body)?).await?),
            Operation::SetQueueAttributes => to_json(&self.set_queue_attributes(context, read(body)?).await?),
            Operation::StartMessageMoveTask => to_json(&self.start_move_task(context, &read(body)?).await?),
            Operation::TagQueue => to_json(&self.tag_queue(context, read(body)?).await?),
            Operation::UntagQueue => to_json(&self.untag_queue(context, &read(body)?).await?),
        }
    }

    /// Finds the queue that a URL names, if the caller may perform the operation on it.
    pub(crate) fn queue(&self, context: &RequestContext, url: Option<&str>) -> Result<Queue, SqsError> {
        let queue = self.options.queue_of_url(required("QueueUrl", url)?);
        // Without tenants there is one namespace, and the account in a URL has no meaning.
        let namespace = queue.namespace.filter(|_| !self.auth.tenants().is_empty());
        let queue = QueueRef { namespace, ..queue };
        self.find(&context.caller, queue, context.operation).ok_or(SqsError::NoQueue)
    }
}

impl fmt::Debug for SqsApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsApi").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Response of operations that return nothing.
#[derive(Serialize)]
pub(crate) struct EmptyResponse {}

/// Initial buffer capacity; most responses fit.
const RESPONSE_BYTES: usize = 512;

pub(crate) fn to_json(response: &impl Serialize) -> Result<Vec<u8>, SqsError> {
    to_json_with_capacity(RESPONSE_BYTES, response)
}

pub(crate) fn to_json_with_capacity(bytes: usize, response: &impl Serialize) -> Result<Vec<u8>, SqsError> {
    let mut text = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut text, response).map_err(|_| SqsError::Internal)?;
    Ok(text)
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, SqsError> {
    // A request without parameters may have no body.
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| SqsError::Serialization { message: error.to_string() })
}

/// Returns a required parameter, or an error if it is missing or empty.
pub(crate) fn required<'a>(name: &'static str, value: Option<&'a str>) -> Result<&'a str, SqsError> {
    value.filter(|value| !value.is_empty()).ok_or(SqsError::Missing { name })
}

/// Checks a parameter in seconds against its range.
pub(crate) fn seconds(
    name: &'static str,
    value: Option<i64>,
    range: &core::ops::RangeInclusive<i64>,
) -> Result<Option<Seconds>, SqsError> {
    match value {
        None => Ok(None),
        Some(value) if range.contains(&value) => Ok(Some(Seconds(value.unsigned_abs()))),
        Some(value) => {
            let min = range.start();
            let max = range.end();
            Err(SqsError::invalid_value(
                name,
                value,
                format_args!("Must be between {min} and {max}, if provided."),
            ))
        }
    }
}

fn operation_of(request: &ServerRequest) -> Result<Operation, SqsError> {
    if let Some(target) = header_text(request, &TARGET) {
        return Operation::from_target(target).ok_or(SqsError::UnknownOperation);
    }
    let content_type = header_text(request, &CONTENT_TYPE);
    if content_type.is_some_and(|kind| kind.starts_with("application/x-www-form")) {
        let message = "The query protocol is not supported; use an AWS SDK from November 2023 or later, which uses JSON.";
        return Err(SqsError::Unsupported { message: message.to_owned() });
    }
    Err(SqsError::UnknownOperation)
}

fn header_text<'a>(request: &'a ServerRequest, name: &HeaderName) -> Option<&'a str> {
    request.request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok())
}

/// Returns the host that the client addressed, or `localhost` if it is not safe in a URL.
fn host_of(request: &ServerRequest) -> String {
    let authority = request.request.uri().authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(|| header_text(request, &HOST)).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    if !host.is_empty() && host.bytes().all(is_plain) { host.to_owned() } else { "localhost".to_owned() }
}
