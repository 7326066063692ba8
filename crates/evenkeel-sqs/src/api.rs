//! The door: what its parts share, and the route it answers.

use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use evenkeel_queue::{Queue, QueueId, Queues};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, Authenticator};
use evenkeel_telemetry::{RegisterError, Registry};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::access_key::MasterKey;
use crate::arn::name_of_url;
use crate::chunked_body::body_of;
use crate::error::{JSON, SqsError};
use crate::limit::{BATCH_BYTES_MAX, HEADROOM};
use crate::metrics::SqsMetrics;
use crate::move_task::MoveTasks;
use crate::native::Streams;
use crate::operation::Operation;
use crate::options::SqsOptions;
use crate::time::Seconds;

const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const TRACE: HeaderName = HeaderName::from_static("x-amzn-trace-id");

/// The queue door.
pub struct SqsApi {
    pub(crate) options: SqsOptions,
    pub(crate) queues: Arc<Queues>,
    pub(crate) gate: Arc<Authenticator>,
    pub(crate) master: MasterKey,
    pub(crate) meters: SqsMetrics,
    pub(crate) moves: MoveTasks,
    /// Who consumes by a stream.
    pub(crate) streams: Streams,
    /// When queues were last purged.
    pub(crate) purged: Mutex<HashMap<QueueId, Instant>>,
    /// Held while what a queue is told is read and changed.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Becomes true when the server stops: nobody waits any longer.
    pub(crate) stopping: watch::Sender<bool>,
    /// For tasks that outlive a request.
    pub(crate) me: Weak<Self>,
}

/// What an operation needs to know of its request.
pub(crate) struct RequestContext {
    /// The host as the client calls it.
    pub(crate) host: String,
    /// Who sends.
    pub(crate) sender: String,
    /// What the request traces.
    pub(crate) trace: Option<String>,
    /// Whether the client is still there.
    pub(crate) disconnect: Disconnect,
}

impl SqsApi {
    /// Sets up the door before queues; `gate` knows who may ask, `master` derives their secrets.
    pub fn new(
        mut options: SqsOptions,
        queues: Arc<Queues>,
        gate: Arc<Authenticator>,
        master: MasterKey,
        registry: &Registry,
    ) -> Result<Arc<Self>, RegisterError> {
        let meters = SqsMetrics::new(registry, options.queues_metered_max)?;
        options.defaults.message_bytes_max = BATCH_BYTES_MAX as u64 + HEADROOM;
        Ok(Arc::new_cyclic(|me| Self {
            options,
            moves: MoveTasks::restore_interrupted(&queues),
            queues,
            gate,
            master,
            meters,
            streams: Streams::default(),
            purged: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            stopping: watch::Sender::new(false),
            me: me.clone(),
        }))
    }

    /// Adds what the door answers to a table of routes: `/`, and the URLs of queues.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let of_queue = format!("/{}/*", self.options.account);
        for path in ["/", &of_queue] {
            let sqs = self.clone();
            let answer = handler(move |call| sqs.clone().serve(call));
            // The door looks at signatures itself.
            routes.add(Method::POST, path, Access::Public, answer)?;
        }
        Ok(())
    }

    /// What secrets of clients are derived from.
    pub fn master_key(&self) -> &MasterKey {
        &self.master
    }

    /// Ends every wait; requests that come are served as long as the listener lets them in.
    pub fn shutdown(&self) {
        self.stopping.send_replace(true);
    }

    /// Puts what queues hold on the page of metrics.
    pub fn show_metrics(&self) {
        self.meters.publish_queue_totals(&self.queues);
    }

    async fn serve(self: Arc<Self>, mut call: ServerRequest) -> Result<Response, ApiError> {
        let began = Instant::now();
        let request_id = call.request_id.clone();
        let (operation, result) = match operation_of(&call) {
            Ok(operation) => (Some(operation), self.answer(operation, &mut call).await),
            Err(fault) => (None, Err(fault)),
        };
        match (&result, operation) {
            (Ok(_), Some(operation)) => self.meters.done(operation, began.elapsed()),
            (Ok(_), None) => {}
            (Err(fault), operation) => self.meters.refused(operation, fault.code()),
        }
        let mut response = result.unwrap_or_else(SqsError::into_response);
        response.headers_mut().insert(REQUEST_ID, request_id);
        Ok(response)
    }

    async fn answer(&self, operation: Operation, call: &mut ServerRequest) -> Result<Response, SqsError> {
        let signed = self.parse_signature(&call.request)?;
        let body = call.read_body().await?;
        let tenant = self.verify_signature(signed, &call.request, &body)?;
        tenant.take_request(call.accepted_at)?;
        let ask = RequestContext {
            host: host_of(call),
            sender: tenant.settings.name.clone(),
            trace: text_of(call, &TRACE).map(str::to_owned),
            disconnect: call.disconnect.clone(),
        };
        let answer = self.run(operation, &ask, &body).await?;
        let mut response = Response::new(body_of(answer));
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        Ok(response)
    }

    async fn run(
        &self,
        operation: Operation,
        ask: &RequestContext,
        body: &[u8],
    ) -> Result<Vec<u8>, SqsError> {
        match operation {
            Operation::AddPermission => to_json(&self.add_permission(read(body)?).await?),
            Operation::CancelMessageMoveTask => to_json(&self.cancel_move_task(&read(body)?)?),
            Operation::ChangeMessageVisibility => to_json(&self.change_visibility(&read(body)?).await?),
            Operation::ChangeMessageVisibilityBatch => {
                to_json(&self.change_visibility_batch(read(body)?).await?)
            }
            Operation::CreateQueue => to_json(&self.create_queue(ask, read(body)?).await?),
            Operation::DeleteMessage => to_json(&self.delete_message(&read(body)?).await?),
            Operation::DeleteMessageBatch => to_json(&self.delete_message_batch(read(body)?).await?),
            Operation::DeleteQueue => to_json(&self.delete_queue(&read(body)?).await?),
            Operation::GetQueueAttributes => to_json(&self.queue_attributes(&read(body)?)?),
            Operation::GetQueueUrl => to_json(&self.queue_url(ask, &read(body)?)?),
            Operation::ListDeadLetterSourceQueues => to_json(&self.dead_letter_sources(ask, &read(body)?)?),
            Operation::ListMessageMoveTasks => to_json(&self.list_move_tasks(&read(body)?)?),
            Operation::ListQueueTags => to_json(&self.queue_tags(&read(body)?)?),
            Operation::ListQueues => to_json(&self.list_queues(ask, &read(body)?)?),
            Operation::PurgeQueue => to_json(&self.purge_queue(&read(body)?).await?),
            Operation::ReceiveMessage => self.receive_message(ask, &read(body)?).await,
            Operation::RemovePermission => to_json(&self.remove_permission(&read(body)?).await?),
            Operation::SendMessage => to_json(&self.send_message(ask, read(body)?).await?),
            Operation::SendMessageBatch => to_json(&self.send_message_batch(ask, read(body)?).await?),
            Operation::SetQueueAttributes => to_json(&self.set_queue_attributes(read(body)?).await?),
            Operation::StartMessageMoveTask => to_json(&self.start_move_task(&read(body)?).await?),
            Operation::TagQueue => to_json(&self.tag_queue(read(body)?).await?),
            Operation::UntagQueue => to_json(&self.untag_queue(&read(body)?).await?),
        }
    }

    /// Finds the queue that a URL names.
    pub(crate) fn queue(&self, url: Option<&str>) -> Result<Queue, SqsError> {
        let url = required("QueueUrl", url)?;
        self.queues.get(name_of_url(url)).ok_or(SqsError::NoQueue)
    }
}

impl fmt::Debug for SqsApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqs").field("options", &self.options).finish_non_exhaustive()
    }
}

/// An answer that says nothing but that it was done.
#[derive(Serialize)]
pub(crate) struct EmptyResponse {}

/// What most answers fit in.
const ANSWER_BYTES: usize = 512;

/// Writes an answer.
pub(crate) fn to_json(answer: &impl Serialize) -> Result<Vec<u8>, SqsError> {
    to_json_with_capacity(ANSWER_BYTES, answer)
}

/// Writes an answer of which it is known how long it may be.
pub(crate) fn to_json_with_capacity(bytes: usize, answer: &impl Serialize) -> Result<Vec<u8>, SqsError> {
    let mut text = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut text, answer).map_err(|_| SqsError::Internal)?;
    Ok(text)
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, SqsError> {
    // A request without parameters may come without a body.
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| SqsError::Serialization { message: error.to_string() })
}

/// Reads a parameter that must be there.
pub(crate) fn required<'a>(name: &'static str, value: Option<&'a str>) -> Result<&'a str, SqsError> {
    value.filter(|value| !value.is_empty()).ok_or(SqsError::Missing { name })
}

/// Reads a parameter in seconds that has bounds.
pub(crate) fn seconds(
    name: &'static str,
    value: Option<i64>,
    range: &core::ops::RangeInclusive<i64>,
) -> Result<Option<Seconds>, SqsError> {
    match value {
        None => Ok(None),
        Some(value) if range.contains(&value) => Ok(Some(Seconds(value.unsigned_abs()))),
        Some(value) => {
            let least = range.start();
            let most = range.end();
            Err(SqsError::value(
                name,
                value,
                format_args!("Must be between {least} and {most}, if provided."),
            ))
        }
    }
}

fn operation_of(call: &ServerRequest) -> Result<Operation, SqsError> {
    if let Some(target) = text_of(call, &TARGET) {
        return Operation::of_target(target).ok_or(SqsError::UnknownOperation);
    }
    let is_form = text_of(call, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/x-www-form"));
    if is_form {
        let message =
            "The query protocol is not spoken here; AWS SDKs since November 2023 speak JSON.".to_owned();
        return Err(SqsError::Unsupported { message });
    }
    Err(SqsError::UnknownOperation)
}

fn text_of<'a>(call: &'a ServerRequest, name: &HeaderName) -> Option<&'a str> {
    call.request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok())
}

/// The host as the client calls it; what is none cannot end up in a URL.
fn host_of(call: &ServerRequest) -> String {
    let authority = call.request.uri().authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(|| text_of(call, &HOST)).unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    if !host.is_empty() && host.bytes().all(plain) { host.to_owned() } else { "localhost".to_owned() }
}
