//! Administrators: queues made, changed, removed and shown; purges, redrives.

use core::num::NonZeroU64;

use evenkeel_queue::queue_state::MoveCursor;
use evenkeel_queue::queues::CreateResult;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, Queue, QueueSettings, Rejection};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::json::{queue_error, unmade};
use super::{Native, check_admin, json_response, number, query, read, within};
use crate::fifo;
use crate::limit::HEADROOM;
use crate::queue_metadata::DeadLetterTarget;
use crate::settings::QueueSpec;

/// Queues, or keys, of one page.
pub(super) const PAGE_MAX: u64 = 10_000;
/// Messages of one step of a redrive.
const REDRIVE_MAX: u64 = 10_000;
/// What a queue is told that is not the queue's own: a name, where the queue has a number.
const DEAD_LETTERS: &str = "dead_letters";
const OTHER_ORDER: &str = "messages of a FIFO queue go to FIFO queues only, and others to others";
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
    pub(super) fn list(&self, call: &ServerRequest) -> Result<Response, ApiError> {
        let [prefix, after, max] = query(call, ["prefix", "after", "max"])?;
        let max = number("max", max.as_deref(), 1_000, 1..=PAGE_MAX)?;
        let found = self.sqs.queues.list(&prefix.unwrap_or_default(), after.as_deref(), max as usize);
        let queues: Vec<Value> = found.iter().map(totals).collect();
        json_response(StatusCode::OK, &json!({"queues": queues}))
    }

    pub(super) fn show(&self, queue: &Queue) -> Result<Response, ApiError> {
        json_response(StatusCode::OK, &self.shown(queue)?)
    }

    fn shown(&self, queue: &Queue) -> Result<Value, ApiError> {
        let mut shown = totals(queue);
        let body = queue.descriptor();
        shown["created_at_ms"] = json!(body.created_at);
        shown["changed_at_ms"] = json!(body.changed_at);
        shown["settings"] = Value::Object(self.settings_of(&body.settings)?);
        shown["tags"] = json!(QueueSpec::of(queue).notes.tags);
        Ok(shown)
    }

    /// What a queue is told, as it is told.
    fn settings_of(&self, settings: &QueueSettings) -> Result<Map<String, Value>, ApiError> {
        let Ok(Value::Object(mut shown)) = serde_json::to_value(settings) else {
            return Err(ApiError::Internal);
        };
        shown.remove(REDRIVE);
        shown
            .insert(MESSAGE_BYTES_MAX.to_owned(), json!(settings.message_bytes_max.saturating_sub(HEADROOM)));
        let letters =
            settings.redrive.and_then(|redrive| Some((self.sqs.queues.by_id(redrive.to)?, redrive)));
        let letters =
            letters.map(|(to, redrive)| json!({"queue": to.descriptor().name, "after": redrive.attempts_max}));
        shown.insert(DEAD_LETTERS.to_owned(), json!(letters));
        Ok(shown)
    }

    /// Makes a queue, or tells one that is there something else; what is not said stays.
    pub(super) async fn put(&self, call: &mut ServerRequest, name: &str) -> Result<Response, ApiError> {
        check_admin(call)?;
        let wishes: Map<String, Value> = read(call).await?;
        let _changing = self.sqs.changing.lock().await;
        if let Some(queue) = self.sqs.queues.get(name) {
            let mut shape = QueueSpec::of(&queue);
            self.apply(&mut shape, wishes)?;
            let changed = self.sqs.queues.change(&queue, shape.settings, shape.notes.write()).await;
            changed.map_err(unmade)?;
            return json_response(StatusCode::OK, &self.shown(&queue)?);
        }
        let mut shape = self.sqs.new_shape(name);
        self.apply(&mut shape, wishes)?;
        let created = self.sqs.queues.create(name, shape.settings, shape.notes.write()).await;
        let queue = created.map_err(unmade)?;
        if let CreateResult::Created(queue) = &queue {
            self.sqs.link(queue).await;
        }
        json_response(StatusCode::CREATED, &self.shown(&queue.queue())?)
    }

    fn apply(&self, shape: &mut QueueSpec, wishes: Map<String, Value>) -> Result<(), ApiError> {
        let mut settings = self.settings_of(&shape.settings)?;
        let letters = wishes.get(DEAD_LETTERS).cloned();
        for (name, value) in wishes {
            let known = || settings.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            if !settings.contains_key(&name) {
                return Err(ApiError::invalid(format!("unknown setting {name:?}; there is {}", known())));
            }
            settings.insert(name, value);
        }
        settings.remove(DEAD_LETTERS);
        settings.insert(REDRIVE.to_owned(), json!(shape.settings.redrive));
        let read: Result<QueueSettings, _> = serde_json::from_value(Value::Object(settings));
        let mut read =
            read.map_err(|error| ApiError::invalid(format!("settings cannot be read: {error}")))?;
        self.check_target(&read)?;
        read.message_bytes_max = read.message_bytes_max.saturating_add(HEADROOM);
        if (read.order == DeliveryOrder::Fifo) != shape.name.ends_with(fifo::SUFFIX) {
            return Err(ApiError::invalid("order is fifo for names that end in .fifo, and for no others"));
        }
        shape.settings = read;
        match letters {
            None => {}
            Some(Value::Null) => {
                (shape.settings.redrive, shape.notes.dead_letters) = (None, None);
            }
            Some(letters) => self.apply_letters(shape, letters)?,
        }
        Ok(())
    }

    /// Refuses a target that nothing can be dispatched to.
    fn check_target(&self, settings: &QueueSettings) -> Result<(), ApiError> {
        match &settings.dispatch {
            Some(dispatch) => (self.sqs.options.check_target)(&dispatch.target).map_err(ApiError::invalid),
            None => Ok(()),
        }
    }

    /// Has dead letters go where another queue is, by its name in both protocols.
    fn apply_letters(&self, shape: &mut QueueSpec, letters: Value) -> Result<(), ApiError> {
        let wrong = |error| {
            ApiError::invalid(format!(
                "{DEAD_LETTERS} is {{\"queue\": name, \"after\": deliveries}}: {error}"
            ))
        };
        let DeadLettersBody { queue, after } = serde_json::from_value(letters).map_err(wrong)?;
        let target = self.queue(&queue)?;
        if shape.id == Some(target.id()) {
            return Err(ApiError::invalid("a queue is not its own dead-letter queue"));
        }
        if target.descriptor().settings.order != shape.settings.order {
            return Err(ApiError::invalid(OTHER_ORDER));
        }
        shape.settings.redrive = Some(RedrivePolicy { to: target.id(), attempts_max: after });
        shape.notes.dead_letters =
            Some(DeadLetterTarget { arn: self.sqs.options.arn(&queue), receives_max: after });
        Ok(())
    }

    pub(super) async fn delete(&self, call: &ServerRequest, name: &str) -> Result<Response, ApiError> {
        check_admin(call)?;
        let queue = self.queue(name)?;
        let _changing = self.sqs.changing.lock().await;
        match self.sqs.queues.remove(name).await {
            Ok(()) => self.sqs.unlink(queue.id()).await,
            // Another request removed it meanwhile.
            Err(Rejection::QueueDeleted) => {}
            Err(rejection) => return Err(queue_error(rejection)),
        }
        json_response(StatusCode::OK, &json!({"name": name}))
    }

    /// Moves messages to another queue, or each to where it came from.
    pub(super) async fn redrive(
        &self,
        call: &mut ServerRequest,
        queue: &Queue,
    ) -> Result<Response, ApiError> {
        check_admin(call)?;
        let RedriveBody { to, max } = read(call).await?;
        let max = within("max", max.map_or(1_000, NonZeroU64::get), 1..=REDRIVE_MAX)?;
        let to = to.map(|to| self.queue(&to)).transpose()?;
        if to.as_ref().is_some_and(|to| to.id() == queue.id()) {
            return Err(ApiError::invalid("messages are in this queue already"));
        }
        if to.as_ref().is_some_and(|to| to.descriptor().settings.order != queue.descriptor().settings.order) {
            return Err(ApiError::invalid(OTHER_ORDER));
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

/// A queue's name and what it holds.
fn totals(queue: &Queue) -> Value {
    let body = queue.descriptor();
    let totals = queue.totals();
    json!({
        "name": body.name, "pending": totals.pending, "in_flight": totals.in_flight, "delayed": totals.delayed,
        "bytes": totals.bytes, "expired": totals.expired,
    })
}

pub(super) async fn purge(call: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    check_admin(call)?;
    let before = queue.totals();
    queue.purge().await.map_err(queue_error)?;
    json_response(StatusCode::OK, &json!({"purged": before.pending + before.in_flight + before.delayed}))
}
