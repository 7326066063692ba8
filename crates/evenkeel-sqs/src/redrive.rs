//! Redrive to dead-letter queues: RedrivePolicy, RedriveAllowPolicy and ListDeadLetterSourceQueues.

use std::collections::BTreeMap;

use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{Queue, QueueId};
use evenkeel_server::tenant::Caller;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{RequestContext, SqsApi};
use crate::error::SqsError;
use crate::limit::{ALLOWED_MAX, RECEIVES};
use crate::operation::Operation;
use crate::queue::page_of;
use crate::queue_metadata::{DeadLetterTarget, QueueMetadata};
use crate::reason;
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
    #[serde(flatten)]
    unknown: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allow {
    redrive_permission: Option<String>,
    #[serde(default)]
    source_queue_arns: Vec<String>,
    #[serde(flatten)]
    unknown: BTreeMap<String, IgnoredAny>,
}

/// Sets the dead-letter queue of a queue; an empty policy removes it.
pub(crate) fn apply_policy(
    sqs: &SqsApi,
    caller: &Caller,
    spec: &mut QueueSpec,
    value: &str,
) -> Result<(), SqsError> {
    if value.is_empty() {
        spec.settings.redrive = None;
        spec.metadata.dead_letters = None;
        return Ok(());
    }
    let invalid = |reason: &str| SqsError::invalid_value("RedrivePolicy", value, reason);
    let not_json = |_| SqsError::AttributeValue {
        name: "RedrivePolicy",
        reason: reason::REDRIVE_NOT_JSON,
        hint: "must be a JSON object with deadLetterTargetArn and maxReceiveCount".to_owned(),
    };
    let policy: Policy = serde_json::from_str(value).map_err(not_json)?;
    if !policy.unknown.is_empty() {
        return Err(invalid(reason::REDRIVE_ATTRIBUTES));
    }
    let count = policy.max_receive_count.ok_or_else(|| invalid(reason::REDRIVE_NO_COUNT))?;
    let arn = policy.dead_letter_target_arn.ok_or_else(|| invalid(reason::REDRIVE_NO_TARGET))?;
    // SDKs send a number, hand-written policies often a string.
    let number =
        count.as_i64().or_else(|| count.as_str()?.parse().ok()).filter(|count| RECEIVES.contains(count));
    let number = number.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| {
        invalid(&format!(
            "Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive."
        ))
    })?;
    let target = sqs.options.queue_of_arn(&arn).map_err(|_| invalid(reason::REDRIVE_ARN))?;
    if target.is_some_and(|target| target.namespace != Some(spec.namespace)) {
        return Err(invalid("Dead letter target must have the same owner as the source queue."));
    }
    // Messages move to the target, so the caller must be able to send to it.
    let target = target.and_then(|target| sqs.find(caller, target, Operation::SendMessage));
    let target = target.ok_or_else(|| invalid(reason::REDRIVE_NO_QUEUE))?;
    if target.descriptor().settings.order != spec.settings.order {
        return Err(invalid(reason::REDRIVE_TYPE));
    }
    if !allows(&target, &sqs.options.arn(spec.namespace, &spec.name)) {
        return Err(invalid("The dead letter target's redrive allow policy does not allow this queue."));
    }
    spec.settings.redrive = Some(RedrivePolicy { to: target.id(), attempts_max: number });
    spec.metadata.dead_letters = Some(DeadLetterTarget { arn, receives_max: number });
    Ok(())
}

/// Returns the redrive policy of a queue as JSON.
pub(crate) fn policy_json(metadata: &QueueMetadata) -> Option<String> {
    let DeadLetterTarget { arn, receives_max } = metadata.dead_letters.as_ref()?;
    Some(json!({"deadLetterTargetArn": arn, "maxReceiveCount": receives_max}).to_string())
}

/// Validates a redrive allow policy; an empty one removes it, so that every queue may use this dead-letter queue.
pub(crate) fn check_allow(value: &str) -> Result<Option<String>, SqsError> {
    if value.is_empty() {
        return Ok(None);
    }
    let invalid = |reason: &str| SqsError::invalid_value("RedriveAllowPolicy", value, reason);
    let format = || SqsError::AttributeValue {
        name: "RedriveAllowPolicy",
        reason: reason::ALLOW_FORMAT,
        hint:
            "must be a JSON object with redrivePermission (allowAll, denyAll or byQueue) and sourceQueueArns"
                .to_owned(),
    };
    let allow = serde_json::from_str(value).ok().filter(|allow: &Allow| allow.unknown.is_empty());
    let allow = allow.ok_or_else(format)?;
    let permission = allow.redrive_permission.unwrap_or_default();
    match (permission.as_str(), allow.source_queue_arns.len()) {
        ("allowAll" | "denyAll", 0) | ("byQueue", 1..=ALLOWED_MAX) => Ok(Some(value.to_owned())),
        ("byQueue", 0) => Err(invalid(reason::ALLOW_NO_SOURCES)),
        ("byQueue", _) => Err(invalid(reason::ALLOW_SOURCES_MAX)),
        ("allowAll" | "denyAll", _) => Err(invalid(reason::ALLOW_SOURCES)),
        _ => Err(format()),
    }
}

fn allows(target: &Queue, arn: &str) -> bool {
    let metadata = QueueMetadata::read(&target.descriptor().metadata);
    let allow = metadata.redrive_allow.and_then(|text| serde_json::from_str::<Allow>(&text).ok());
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
        context: &RequestContext,
        request: &ListSources,
    ) -> Result<ListSourcesResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let page = page_of(request.max_results, request.next_token.as_deref())?;
        let mut sources = self.sources_of(queue.id());
        // The sources have the owner of their dead-letter queue, so their names differ.
        let name_of = |source: &Queue| source.descriptor().name.clone();
        sources.retain(|source| page.after.as_ref().is_none_or(|after| *after.name < *name_of(source)));
        let next_token = self.next_page(&page, &sources);
        sources.truncate(page.max);
        let queue_urls = sources.iter().map(|source| self.url_of(context, source)).collect();
        Ok(ListSourcesResponse { queue_urls, next_token })
    }

    /// Returns the queues whose dead-letter queue is `target`, sorted by name.
    pub(crate) fn sources_of(&self, target: QueueId) -> Vec<Queue> {
        self.queues.list("", None, usize::MAX, |queue| {
            queue.descriptor().settings.redrive.is_some_and(|redrive| redrive.to == target)
        })
    }

    /// Makes a new queue the dead-letter queue of the queues whose policies name it.
    pub(crate) async fn link_sources(&self, target: &Queue) {
        let namespace = target.descriptor().namespace;
        let arn = self.arn_of(target);
        let is_same_owner = |queue: &Queue| queue.descriptor().namespace == namespace;
        for queue in self.queues.list("", None, usize::MAX, is_same_owner) {
            let named = QueueMetadata::read(&queue.descriptor().metadata)
                .dead_letters
                .filter(|named| named.arn == arn);
            if let Some(DeadLetterTarget { receives_max, .. }) = named {
                let redrive = RedrivePolicy { to: target.id(), attempts_max: receives_max };
                self.set_redrive(&queue, Some(redrive)).await;
            }
        }
    }

    /// Suspends the redrive to a deleted dead-letter queue, until a queue of the same name is created.
    pub(crate) async fn unlink_sources(&self, target: QueueId) {
        for source in self.sources_of(target) {
            self.set_redrive(&source, None).await;
        }
    }

    async fn set_redrive(&self, queue: &Queue, redrive: Option<RedrivePolicy>) {
        let mut spec = QueueSpec::of(queue);
        spec.settings.redrive = redrive;
        if let Err(error) = self.queues.change(queue, spec.settings, spec.metadata.to_json()).await {
            tracing::warn!(queue = spec.name, %error, "could not change the dead-letter queue");
        }
    }
}
