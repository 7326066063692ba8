//! Dead-letter queues by name: RedrivePolicy, RedriveAllowPolicy and ListDeadLetterSourceQueues.

use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Queue, QueueId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{RequestContext, SqsApi};
use crate::error::SqsError;
use crate::limit::{ALLOWED_MAX, RECEIVES};
use crate::queue::page_of;
use crate::queue_metadata::{DeadLetterTarget, QueueMetadata};
use crate::settings::QueueSpec;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListSources {
    queue_url: Option<String>,
    next_token: Option<String>,
    max_results: Option<i64>,
}

#[derive(Serialize)]
pub(crate) struct ListSourcesResponse {
    #[serde(rename = "queueUrls")]
    queue_urls: Vec<String>,
    #[serde(rename = "NextToken", skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    dead_letter_target_arn: Option<String>,
    max_receive_count: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allow {
    redrive_permission: Option<String>,
    #[serde(default)]
    source_queue_arns: Vec<String>,
}

/// Tells a queue where its dead letters go; an empty policy has them stay.
pub(crate) fn apply_policy(sqs: &SqsApi, shape: &mut QueueSpec, value: &str) -> Result<(), SqsError> {
    if value.is_empty() {
        shape.settings.redrive = None;
        shape.notes.dead_letters = None;
        return Ok(());
    }
    let wrong = |reason: &str| SqsError::value("RedrivePolicy", value, reason);
    let policy: Policy =
        serde_json::from_str(value).map_err(|_| wrong("Redrive policy is not valid JSON."))?;
    let arn = policy
        .dead_letter_target_arn
        .ok_or_else(|| wrong("Redrive policy does not contain mandatory attribute: deadLetterTargetArn."))?;
    let count = policy.max_receive_count;
    let count = count
        .ok_or_else(|| wrong("Redrive policy does not contain mandatory attribute: maxReceiveCount."))?;
    // SDKs write it as a number, people as a text.
    let number =
        count.as_i64().or_else(|| count.as_str()?.parse().ok()).filter(|count| RECEIVES.contains(count));
    let number = number.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| {
        wrong(&format!(
            "Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive."
        ))
    })?;
    let name = sqs.options.name_of_arn(&arn).map_err(|_| {
        wrong("Invalid value for deadLetterTargetArn: it is the QueueArn of the other queue.")
    })?;
    let target = name.and_then(|name| sqs.queues.get(name));
    let target = target.ok_or_else(|| wrong("Dead letter target does not exist."))?;
    if shape.id == Some(target.id()) {
        return Err(wrong("Dead letter target is the queue itself."));
    }
    if target.descriptor().settings.order != shape.settings.order {
        return Err(wrong("Dead-letter queue must be same type of queue as the source."));
    }
    if !allows(&target, &sqs.options.arn(&shape.name)) {
        return Err(wrong("The dead letter target's redrive allow policy does not allow this queue."));
    }
    shape.settings.redrive = Some(RedrivePolicy { to: target.id(), attempts_max: number });
    shape.notes.dead_letters = Some(DeadLetterTarget { arn, receives_max: number });
    Ok(())
}

/// Shows where a queue's dead letters go.
pub(crate) fn show_policy(notes: &QueueMetadata) -> Option<String> {
    let DeadLetterTarget { arn, receives_max } = notes.dead_letters.as_ref()?;
    Some(json!({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max}).to_string())
}

/// Reads who may use a queue for dead letters; everybody when it is empty.
pub(crate) fn check_allow(value: &str) -> Result<Option<String>, SqsError> {
    if value.is_empty() {
        return Ok(None);
    }
    let wrong = |reason: &str| SqsError::value("RedriveAllowPolicy", value, reason);
    let allow: Allow = serde_json::from_str(value).map_err(|_| wrong("it is not valid JSON."))?;
    let permission = allow.redrive_permission.unwrap_or_default();
    let arns = allow.source_queue_arns.len();
    match (permission.as_str(), arns) {
        ("allowAll" | "denyAll", 0) => Ok(Some(value.to_owned())),
        ("byQueue", 1..=ALLOWED_MAX) => Ok(Some(value.to_owned())),
        ("byQueue", _) => Err(wrong("byQueue needs 1 to 10 sourceQueueArns.")),
        ("allowAll" | "denyAll", _) => Err(wrong("only byQueue takes sourceQueueArns.")),
        _ => Err(wrong("redrivePermission is allowAll, denyAll or byQueue.")),
    }
}

fn allows(target: &Queue, arn: &str) -> bool {
    let notes = QueueMetadata::read(&target.descriptor().metadata);
    let allow = notes.redrive_allow.and_then(|text| serde_json::from_str::<Allow>(&text).ok());
    let Some(allow) = allow else { return true };
    match allow.redrive_permission.as_deref() {
        Some("denyAll") => false,
        Some("byQueue") => allow.source_queue_arns.iter().any(|allowed| allowed == arn),
        _ => true,
    }
}

impl SqsApi {
    pub(crate) fn dead_letter_sources(
        &self,
        ask: &RequestContext,
        wish: &ListSources,
    ) -> Result<ListSourcesResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let page = page_of(wish.max_results, wish.next_token.as_deref())?;
        let mut sources = self.sources_of(queue.id());
        sources.retain(|source| page.after.as_deref().is_none_or(|after| after < source.as_str()));
        let next_token = page.next(&sources, String::as_str);
        sources.truncate(page.max);
        let queue_urls = sources.iter().map(|name| self.options.url(&ask.host, name)).collect();
        Ok(ListSourcesResponse { queue_urls, next_token })
    }

    /// Names the queues whose dead letters go to this one, in order.
    pub(crate) fn sources_of(&self, target: QueueId) -> Vec<String> {
        let all = self.queues.list("", None, usize::MAX);
        let sources = all.iter().map(Queue::descriptor);
        let sources =
            sources.filter(|body| body.settings.redrive.is_some_and(|redrive| redrive.to == target));
        sources.map(|body| body.name.clone()).collect()
    }

    /// Has queues whose dead letters go to a queue of this name use the new one.
    pub(crate) async fn link(&self, target: &Queue) {
        let arn = self.options.arn(&target.descriptor().name);
        for queue in self.queues.list("", None, usize::MAX) {
            let named =
                QueueMetadata::read(&queue.descriptor().metadata).dead_letters.filter(|named| named.arn == arn);
            if let Some(DeadLetterTarget { receives_max, .. }) = named {
                let redrive = RedrivePolicy { to: target.id(), attempts_max: receives_max };
                self.set_redrive(&queue, Some(redrive)).await;
            }
        }
    }

    /// Has queues keep their dead letters whose dead-letter queue is gone, until there is one of its name again.
    pub(crate) async fn unlink(&self, target: QueueId) {
        for name in self.sources_of(target) {
            if let Some(queue) = self.queues.get(&name) {
                self.set_redrive(&queue, None).await;
            }
        }
    }

    async fn set_redrive(&self, queue: &Queue, redrive: Option<RedrivePolicy>) {
        let mut shape = QueueSpec::of(queue);
        shape.settings.redrive = redrive;
        if let Err(error) = self.queues.change(queue, shape.settings, shape.notes.write()).await {
            tracing::warn!(queue = shape.name, %error, "where dead letters go was not changed");
        }
    }
}
