//! The SQS API: shared state, and the dispatch of operations.

use core::fmt;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use evenkeel_queue::{Queue, QueueId, Queues};
use evenkeel_server::access_key::MasterKey;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::sigv4::SignatureVerifier;
use evenkeel_server::tenant::{Authenticator, Caller};
use evenkeel_telemetry::{RegisterError, Registry};
use http::header::HOST;
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::arn::QueueRef;
use crate::error::SqsError;
use crate::limit::{BATCH_BYTES_MAX, HEADROOM, WIRE_BYTES_MAX};
use crate::metrics::SqsMetrics;
use crate::move_task::MoveTasks;
use crate::native::Streams;
use crate::operation::Operation;
use crate::options::SqsOptions;
use crate::protocol::{Parameters, Protocol};
use crate::time::Seconds;

/// Service in the credential scope of signatures.
const SERVICE: &str = "sqs";

/// The SQS API and the native API of queues.
pub struct SqsApi {
    pub(crate) options: SqsOptions,
    pub(crate) queues: Arc<Queues>,
    pub(crate) auth: Arc<Authenticator>,
    pub(crate) signatures: SignatureVerifier,
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
    pub(crate) protocol: Protocol,
    pub(crate) request_id: String,
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

    /// Performs an operation and encodes its response.
    pub(crate) async fn run(
        &self,
        context: &RequestContext,
        parameters: Parameters<'_>,
    ) -> Result<Vec<u8>, SqsError> {
        match context.operation {
            Operation::AddPermission => {
                context.encode(&self.add_permission(context, parameters.read()?).await?)
            }
            Operation::CancelMessageMoveTask => {
                context.encode(&self.cancel_move_task(context, &parameters.read()?)?)
            }
            Operation::ChangeMessageVisibility => {
                context.encode(&self.change_visibility(context, &parameters.read()?).await?)
            }
            Operation::ChangeMessageVisibilityBatch => {
                context.encode(&self.change_visibility_batch(context, parameters.read()?).await?)
            }
            Operation::CreateQueue => context.encode(&self.create_queue(context, parameters.read()?).await?),
            Operation::DeleteMessage => {
                context.encode(&self.delete_message(context, &parameters.read()?).await?)
            }
            Operation::DeleteMessageBatch => {
                context.encode(&self.delete_message_batch(context, parameters.read()?).await?)
            }
            Operation::DeleteQueue => context.encode(&self.delete_queue(context, &parameters.read()?).await?),
            Operation::GetQueueAttributes => {
                context.encode(&self.queue_attributes(context, &parameters.read()?).await?)
            }
            Operation::GetQueueUrl => context.encode(&self.queue_url(context, &parameters.read()?)?),
            Operation::ListDeadLetterSourceQueues => {
                context.encode(&self.dead_letter_sources(context, &parameters.read()?)?)
            }
            Operation::ListMessageMoveTasks => {
                context.encode(&self.list_move_tasks(context, &parameters.read()?)?)
            }
            Operation::ListQueueTags => context.encode(&self.queue_tags(context, &parameters.read()?)?),
            Operation::ListQueues => context.encode(&self.list_queues(context, &parameters.read()?)?),
            Operation::PurgeQueue => context.encode(&self.purge_queue(context, &parameters.read()?).await?),
            Operation::ReceiveMessage => self.receive_message(context, &parameters.read()?).await,
            Operation::RemovePermission => {
                context.encode(&self.remove_permission(context, &parameters.read()?).await?)
            }
            Operation::SendMessage => context.encode(&self.send_message(context, parameters.read()?).await?),
            Operation::SendMessageBatch => {
                context.encode(&self.send_message_batch(context, parameters.read()?).await?)
            }
            Operation::SetQueueAttributes => {
                context.encode(&self.set_queue_attributes(context, parameters.read()?).await?)
            }
            Operation::StartMessageMoveTask => {
                context.encode(&self.start_move_task(context, &parameters.read()?).await?)
            }
            Operation::TagQueue => context.encode(&self.tag_queue(context, parameters.read()?).await?),
            Operation::UntagQueue => context.encode(&self.untag_queue(context, &parameters.read()?).await?),
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

impl RequestContext {
    /// Encodes the response in the protocol of the request.
    pub(crate) fn encode(&self, response: &impl Serialize) -> Result<Vec<u8>, SqsError> {
        self.encode_with_capacity(0, response)
    }

    /// Encodes a response of about this many bytes.
    pub(crate) fn encode_with_capacity(
        &self,
        bytes: usize,
        response: &impl Serialize,
    ) -> Result<Vec<u8>, SqsError> {
        self.protocol.encode(self.operation, &self.request_id, bytes, response)
    }
}

/// Returns a required parameter, or an error if it is missing or empty.
pub(crate) fn required<'a>(name: &'static str, value: Option<&'a str>) -> Result<&'a str, SqsError> {
    value.filter(|value| !value.is_empty()).ok_or(SqsError::Missing { name })
}

/// Checks a parameter in seconds against its range; `reason` is AWS's for a value outside.
pub(crate) fn seconds(
    name: &'static str,
    value: Option<i64>,
    range: &core::ops::RangeInclusive<i64>,
    reason: &'static str,
) -> Result<Option<Seconds>, SqsError> {
    match value {
        None => Ok(None),
        Some(value) if range.contains(&value) => Ok(Some(Seconds(value.unsigned_abs()))),
        Some(value) => Err(SqsError::invalid_value(name, value, reason)),
    }
}

pub(crate) fn header_text<'a>(request: &'a ServerRequest, name: &HeaderName) -> Option<&'a str> {
    request.request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok())
}

/// Returns the host that the client addressed, or `localhost` if it is not safe in a URL.
pub(crate) fn host_of(request: &ServerRequest) -> String {
    let authority = request.request.uri().authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(|| header_text(request, &HOST)).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte);
    if !host.is_empty() && host.bytes().all(is_plain) { host.to_owned() } else { "localhost".to_owned() }
}
