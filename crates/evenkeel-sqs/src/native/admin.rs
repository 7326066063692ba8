//! Endpoints that manage queues: list, show, create, change, delete, purge, redrive.

use core::num::NonZeroU64;

use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::queues::ListPosition;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, Namespace, Queue, QueueSettings};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::Caller;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::json::{create_error, queue_error};
use super::{Native, check_admin, json_response, no_queue, number, query, read, within};
use crate::access::own_namespace;
use crate::arn::QueueRef;
use crate::fifo;
use crate::limit::{HEADROOM, POLICY_MAX};
use crate::operation::Operation;
use crate::queue_metadata::DeadLetterTarget;
use crate::settings::QueueSpec;

/// Queues or keys per page.
pub(super) const PAGE_MAX: u64 = 10_000;
/// Messages per redrive.
const REDRIVE_MAX: u64 = 10_000;
/// Setting of this API that gives the dead-letter queue by name; it is stored as `redrive`, which has the queue's id.
const DEAD_LETTERS: &str = "dead_letters";
const ORDER_MISMATCH: &str = "a FIFO queue and a fair queue cannot exchange messages";
/// Setting of this API that is stored with the metadata of the SQS API.
const POLICY: &str = "policy";
const REDRIVE: &str = "redrive";
const MESSAGE_BYTES_MAX: &str = "message_bytes_max";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadLettersBody {
    queue: String,
    after: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RedriveBody {
    to: Option<String>,
    max: Option<NonZeroU64>,
}

impl Native {
    pub(super) fn list(&self, request: &ServerRequest) -> Result<Response, ApiError> {
        let [prefix, after, max] = query(request, ["prefix", "after", "max"])?;
        let max = number("max", max.as_deref(), 1_000, 1..=PAGE_MAX)?;
        let after = after.as_deref().map(|after| self.list_position(&request.caller, after)).transpose()?;
        let is_visible = |queue: &Queue| self.sqs.sees(&request.caller, queue);
        let found = self.sqs.queues.list(&prefix.unwrap_or_default(), after, max as usize, is_visible);
        let queues: Vec<Value> = found.iter().map(|queue| self.totals_json(queue)).collect();
        json_response(StatusCode::OK, &json!({"queues": queues}))
    }

    /// Parses the last queue of the previous page: `name`, or `owner/name` among queues of the same name.
    ///
    /// A tenant knows only itself and the account of shared queues.
    fn list_position<'a>(&self, caller: &Caller, after: &'a str) -> Result<ListPosition<'a>, ApiError> {
        let unknown = || ApiError::invalid(format!("the owner in {after:?} is not known"));
        let is_known = |namespace: Namespace| {
            matches!(caller, Caller::Admin(_))
                || namespace == Namespace::Shared
                || namespace == own_namespace(caller)
        };
        let found = self.queue_ref(after).filter(|queue| queue.namespace.is_none_or(is_known));
        let QueueRef { namespace, name } = found.ok_or_else(unknown)?;
        Ok(ListPosition { name, namespace })
    }

    /// Shows a queue; its dispatch target, which may contain a token, only to its owner.
    pub(super) fn show(&self, caller: &Caller, queue: &Queue) -> Result<Response, ApiError> {
        let mut json = self.to_json(queue)?;
        if !self.sqs.owns(caller, queue)
            && let Some(Value::Object(dispatch)) = json["settings"].get_mut("dispatch")
        {
            dispatch.remove("target");
        }
        json_response(StatusCode::OK, &json)
    }

    pub(super) fn to_json(&self, queue: &Queue) -> Result<Value, ApiError> {
        let mut json = self.totals_json(queue);
        let descriptor = queue.descriptor();
        json["created_at_ms"] = json!(descriptor.created_at);
        json["changed_at_ms"] = json!(descriptor.changed_at);
        json["settings"] = Value::Object(self.settings_json(&descriptor.settings)?);
        let metadata = QueueSpec::of(queue).metadata;
        json["tags"] = json!(metadata.tags);
        json["policy"] = metadata.policy.map_or(Value::Null, |policy| parsed_policy(&policy));
        Ok(json)
    }

    /// Returns settings in the format in which clients set them.
    fn settings_json(&self, settings: &QueueSettings) -> Result<Map<String, Value>, ApiError> {
        let Ok(Value::Object(mut json)) = serde_json::to_value(settings) else {
            return Err(ApiError::Internal);
        };
        json.remove(REDRIVE);
        // The stored limit also covers the bytes that are stored with each message and that clients do not count.
        json.insert(MESSAGE_BYTES_MAX.to_owned(), json!(settings.message_bytes_max.saturating_sub(HEADROOM)));
        let target = settings.redrive.and_then(|redrive| Some((self.sqs.queues.by_id(redrive.to)?, redrive)));
        let target = target
            .map(|(queue, redrive)| json!({"queue": queue.descriptor().name, "after": redrive.attempts_max}));
        json.insert(DEAD_LETTERS.to_owned(), json!(target));
        Ok(json)
    }

    /// Returns a queue's name, owner and message counts.
    fn totals_json(&self, queue: &Queue) -> Value {
        let totals = queue.totals();
        let descriptor = queue.descriptor();
        json!({
            "name": descriptor.name, "owner": self.sqs.owner_name(descriptor.namespace),
            "pending": totals.pending, "in_flight": totals.in_flight, "delayed": totals.delayed,
            "bytes": totals.bytes, "expired": totals.expired,
        })
    }

    /// Creates a queue or changes its settings; omitted settings stay unchanged.
    pub(super) async fn put(&self, request: &mut ServerRequest, name: &str) -> Result<Response, ApiError> {
        check_admin(request)?;
        let changes: Map<String, Value> = read(request).await?;
        let _changing = self.sqs.changing.lock().await;
        let QueueRef { namespace, name: queue_name } = self.queue_ref(name).ok_or_else(|| no_queue(name))?;
        let namespace = namespace.unwrap_or_default();
        if let Some(queue) = self.sqs.queues.get(namespace, queue_name) {
            let mut spec = QueueSpec::of(&queue);
            self.apply(&mut spec, changes)?;
            let changed = self.sqs.queues.change(&queue, spec.settings, spec.metadata.to_json()).await;
            changed.map_err(create_error)?;
            return json_response(StatusCode::OK, &self.to_json(&queue)?);
        }
        // A number without a tenant may be drawn for another one later.
        if let Namespace::Account(account) = namespace
            && self.sqs.auth.tenants().with_account(account).is_none()
        {
            return Err(ApiError::NotFound { what: format!("tenant with the account number {account}") });
        }
        let mut spec = self.sqs.new_spec(namespace, queue_name);
        // Without tenants nobody decides who uses a queue.
        spec.metadata.shared_on_purpose =
            namespace == Namespace::Shared && !self.sqs.auth.tenants().is_empty();
        self.apply(&mut spec, changes)?;
        let queue = self.sqs.create(spec).await.map_err(create_error)?;
        json_response(StatusCode::CREATED, &self.to_json(&queue)?)
    }

    fn apply(&self, spec: &mut QueueSpec, mut changes: Map<String, Value>) -> Result<(), ApiError> {
        if let Some(policy) = changes.remove(POLICY) {
            set_policy(spec, &policy)?;
        }
        let mut json = self.settings_json(&spec.settings)?;
        let dead_letters = changes.get(DEAD_LETTERS).cloned();
        for (name, value) in changes {
            let known = || json.keys().map(String::as_str).chain([POLICY]).collect::<Vec<_>>().join(", ");
            if !json.contains_key(&name) {
                return Err(ApiError::invalid(format!("unknown setting {name:?}, expected {}", known())));
            }
            json.insert(name, value);
        }
        json.remove(DEAD_LETTERS);
        json.insert(REDRIVE.to_owned(), json!(spec.settings.redrive));
        let settings: Result<QueueSettings, _> = serde_json::from_value(Value::Object(json));
        let mut settings =
            settings.map_err(|error| ApiError::invalid(format!("invalid settings: {error}")))?;
        self.check_target(&settings)?;
        settings.message_bytes_max = settings.message_bytes_max.saturating_add(HEADROOM);
        if (settings.order == DeliveryOrder::Fifo) != spec.name.ends_with(fifo::SUFFIX) {
            return Err(ApiError::invalid(
                "order must be fifo if the name ends in .fifo, and fair otherwise",
            ));
        }
        spec.settings = settings;
        match dead_letters {
            None => {}
            Some(Value::Null) => {
                spec.settings.redrive = None;
                spec.metadata.dead_letters = None;
            }
            Some(body) => self.set_dead_letters(spec, body)?,
        }
        Ok(())
    }

    /// Rejects an invalid dispatch target.
    fn check_target(&self, settings: &QueueSettings) -> Result<(), ApiError> {
        match &settings.dispatch {
            Some(dispatch) => (self.sqs.options.check_target.0)(&dispatch.target).map_err(ApiError::invalid),
            None => Ok(()),
        }
    }

    /// Sets the dead-letter queue: its id in the settings of the queue, its ARN in the metadata for the SQS API.
    fn set_dead_letters(&self, spec: &mut QueueSpec, body: Value) -> Result<(), ApiError> {
        let invalid = |error| {
            ApiError::invalid(format!(
                "{DEAD_LETTERS} must be {{\"queue\": name, \"after\": deliveries}}: {error}"
            ))
        };
        let DeadLettersBody { queue, after } = serde_json::from_value(body).map_err(invalid)?;
        let target = self.sqs.queues.get(spec.namespace, &queue).ok_or_else(|| no_queue(&queue))?;
        if spec.id == Some(target.id()) {
            return Err(ApiError::invalid("a queue cannot be its own dead-letter queue"));
        }
        if target.descriptor().settings.order != spec.settings.order {
            return Err(ApiError::invalid(ORDER_MISMATCH));
        }
        spec.settings.redrive = Some(RedrivePolicy { to: target.id(), attempts_max: after });
        spec.metadata.dead_letters =
            Some(DeadLetterTarget { arn: self.sqs.arn_of(&target), receives_max: after });
        Ok(())
    }

    pub(super) async fn delete(&self, request: &ServerRequest, name: &str) -> Result<Response, ApiError> {
        check_admin(request)?;
        let lock = self.sqs.lock_changes().await;
        let queue = self.queue(&request.caller, name, Operation::DeleteQueue)?;
        lock.delete(&queue).await.map_err(queue_error)?;
        json_response(StatusCode::OK, &json!({"name": name}))
    }

    /// Moves messages to another queue, or each to its source queue.
    pub(super) async fn redrive(
        &self,
        request: &mut ServerRequest,
        queue: &Queue,
    ) -> Result<Response, ApiError> {
        check_admin(request)?;
        let RedriveBody { to, max } = read(request).await?;
        let max = within("max", max.map_or(1_000, NonZeroU64::get), 1..=REDRIVE_MAX)?;
        let namespace = queue.descriptor().namespace;
        let find = |to: String| self.sqs.queues.get(namespace, &to).ok_or_else(|| no_queue(&to));
        let to = to.map(find).transpose()?;
        if to.as_ref().is_some_and(|to| to.id() == queue.id()) {
            return Err(ApiError::invalid("a queue cannot redrive to itself"));
        }
        if to.as_ref().is_some_and(|to| to.descriptor().settings.order != queue.descriptor().settings.order) {
            return Err(ApiError::invalid(ORDER_MISMATCH));
        }
        let mut moved = 0;
        let mut cursor = Some(MoveCursor::default());
        while let Some(from) = cursor.take().filter(|_| moved < max) {
            let left = (max - moved) as usize;
            let step = queue.move_some(from, to.as_ref().map(Queue::id), left).await.map_err(queue_error)?;
            moved += step.moved;
            cursor = step.next;
        }
        json_response(StatusCode::OK, &json!({"moved": moved, "left": queue.totals().pending}))
    }
}

/// Sets the policy of a queue; `null` removes it. It is enforced on a shared queue too.
fn set_policy(spec: &mut QueueSpec, policy: &Value) -> Result<(), ApiError> {
    let text = match policy {
        Value::Null => None,
        Value::Object(_) => Some(policy.to_string()),
        _ => return Err(ApiError::invalid("policy must be a JSON object, or null")),
    };
    let bytes = text.as_ref().map_or(0, String::len);
    if bytes > POLICY_MAX {
        return Err(ApiError::invalid(format!("policy has {bytes} bytes, the maximum is {POLICY_MAX}")));
    }
    spec.metadata.policy_enforced = text.is_some() && spec.namespace == Namespace::Shared;
    spec.metadata.policy = text;
    Ok(())
}

/// Returns a stored policy as JSON, or as text if a client stored something else.
fn parsed_policy(policy: &str) -> Value {
    serde_json::from_str(policy).unwrap_or_else(|_| json!(policy))
}

pub(super) async fn purge(request: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    check_admin(request)?;
    let before = queue.totals();
    queue.purge().await.map_err(queue_error)?;
    json_response(StatusCode::OK, &json!({"purged": before.pending + before.in_flight + before.delayed}))
}
