//! Queue attributes under AWS's names: parsed, applied to the queue's settings and metadata, and formatted.

use std::collections::BTreeMap;

use evenkeel_queue::queue::Queue;
use evenkeel_queue::queue_state::QueueTotals;
use evenkeel_queue::store::QueueDescriptor;
use evenkeel_queue::{Namespace, QueueId, QueueSettings, Rejection};
use evenkeel_server::tenant::Caller;
use tokio::sync::MutexGuard;

use crate::api::{EmptyResponse, RequestContext, SqsApi};
use crate::error::SqsError;
use crate::fifo;
use crate::limit::{
    DELAY_SECS, HEADROOM, KEY_REUSE_SECS, KEY_REUSE_SECS_DEFAULT, MESSAGE_BYTES, RETENTION_SECS,
    VISIBILITY_SECS, WAIT_SECS,
};
use crate::policy;
use crate::queue_metadata::QueueMetadata;
use crate::redrive;

/// Attributes of a request by name.
pub(crate) type Attributes = BTreeMap<String, String>;

/// The settings and metadata of a queue, before or after a change.
#[derive(Clone)]
pub(crate) struct QueueSpec {
    /// `None` before the queue is created.
    pub(crate) id: Option<QueueId>,
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    pub(crate) settings: QueueSettings,
    pub(crate) metadata: QueueMetadata,
}

impl QueueSpec {
    pub(crate) fn of(queue: &Queue) -> Self {
        let descriptor = queue.descriptor();
        Self {
            id: Some(queue.id()),
            namespace: descriptor.namespace,
            name: descriptor.name.clone(),
            settings: descriptor.settings.clone(),
            metadata: QueueMetadata::read(&descriptor.metadata),
        }
    }
}

/// The lock that serializes changes of queues.
///
/// A request finds its queue and checks the caller's permission while it holds the lock, because the queue may get another
/// owner or policy while the request waits.
pub(crate) struct ChangeLock<'a> {
    sqs: &'a SqsApi,
    _changing: MutexGuard<'a, ()>,
}

impl ChangeLock<'_> {
    /// Finds the queue that a URL names, if the caller may perform the operation on it.
    pub(crate) fn queue(&self, context: &RequestContext, url: Option<&str>) -> Result<Queue, SqsError> {
        self.sqs.queue(context, url)
    }

    /// Changes the settings and metadata of a queue.
    pub(crate) async fn change(
        &self,
        queue: &Queue,
        change: impl FnOnce(&mut QueueSpec) -> Result<(), SqsError>,
    ) -> Result<(), SqsError> {
        let mut spec = QueueSpec::of(queue);
        change(&mut spec)?;
        Ok(self.sqs.queues.change(queue, spec.settings, spec.metadata.to_json()).await?)
    }

    /// Deletes a queue; its sources lose their dead-letter queue.
    pub(crate) async fn delete(&self, queue: &Queue) -> Result<(), Rejection> {
        match self.sqs.queues.remove(queue.id()).await {
            Ok(()) => self.sqs.unlink_sources(queue.id()).await,
            // Another request deleted it in the meantime.
            Err(Rejection::QueueDeleted) => {}
            Err(rejection) => return Err(rejection),
        }
        Ok(())
    }
}

macro_rules! attributes {
    ($($name:ident),* $(,)?) => {
        /// Name of a queue attribute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum AttributeName { $($name),* }

        impl AttributeName {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

attributes! {
    Policy, VisibilityTimeout, MaximumMessageSize, MessageRetentionPeriod, ApproximateNumberOfMessages,
    ApproximateNumberOfMessagesNotVisible, CreatedTimestamp, LastModifiedTimestamp, QueueArn,
    ApproximateNumberOfMessagesDelayed, DelaySeconds, ReceiveMessageWaitTimeSeconds, RedrivePolicy, FifoQueue,
    ContentBasedDeduplication, KmsMasterKeyId, KmsDataKeyReusePeriodSeconds, DeduplicationScope, FifoThroughputLimit,
    RedriveAllowPolicy, SqsManagedSseEnabled,
}

impl AttributeName {
    pub(crate) fn parse(name: &str) -> Result<Self, SqsError> {
        let found = Self::ALL.iter().copied().find(|known| known.as_str() == name);
        found.ok_or_else(|| SqsError::UnknownAttribute { name: name.to_owned() })
    }

    /// Reports whether the attribute is a number of messages.
    pub(crate) const fn is_count(self) -> bool {
        matches!(
            self,
            Self::ApproximateNumberOfMessages
                | Self::ApproximateNumberOfMessagesNotVisible
                | Self::ApproximateNumberOfMessagesDelayed
        )
    }
}

impl SqsApi {
    /// Returns the ARN of a queue.
    pub(crate) fn arn_of(&self, queue: &Queue) -> String {
        let descriptor = queue.descriptor();
        self.options.arn(descriptor.namespace, &descriptor.name)
    }

    /// Returns the URL of a queue, on the host that the client reached.
    pub(crate) fn url_of(&self, context: &RequestContext, queue: &Queue) -> String {
        let descriptor = queue.descriptor();
        self.options.url(&context.host, descriptor.namespace, &descriptor.name)
    }

    /// Changes the settings and metadata of the queue that a URL names, if the caller may do so.
    pub(crate) async fn change(
        &self,
        context: &RequestContext,
        url: Option<&str>,
        change: impl FnOnce(&mut QueueSpec) -> Result<(), SqsError>,
    ) -> Result<EmptyResponse, SqsError> {
        let lock = self.lock_changes().await;
        let queue = lock.queue(context, url)?;
        lock.change(&queue, change).await?;
        Ok(EmptyResponse {})
    }

    /// Waits for the lock that serializes changes of queues.
    pub(crate) async fn lock_changes(&self) -> ChangeLock<'_> {
        ChangeLock { sqs: self, _changing: self.changing.lock().await }
    }

    /// Applies attributes to a queue's spec; an error rejects the whole request.
    pub(crate) fn apply(
        &self,
        caller: &Caller,
        spec: &mut QueueSpec,
        attributes: &Attributes,
    ) -> Result<(), SqsError> {
        for (name, value) in attributes {
            self.apply_one(caller, spec, AttributeName::parse(name)?, value)?;
        }
        let is_set = |name: AttributeName| attributes.contains_key(name.as_str());
        let both = spec.metadata.managed_sse && spec.metadata.kms_key.is_some();
        match (is_set(AttributeName::SqsManagedSseEnabled), is_set(AttributeName::KmsMasterKeyId)) {
            (true, true) if both => return Err(SqsError::BothEncryptions),
            // One kind of encryption replaces the other.
            (true, _) if both => {
                spec.metadata.kms_key = None;
                spec.metadata.kms_reuse_secs = None;
            }
            (_, true) if both => spec.metadata.managed_sse = false,
            _ => {}
        }
        fifo::check(spec)
    }

    fn apply_one(
        &self,
        caller: &Caller,
        spec: &mut QueueSpec,
        name: AttributeName,
        value: &str,
    ) -> Result<(), SqsError> {
        let bad = |hint: String| SqsError::AttributeValue { name: name.as_str(), reason: "", hint };
        let number = |range: &core::ops::RangeInclusive<i64>| {
            let number = value.parse::<i64>().ok().filter(|number| range.contains(number));
            number.map(i64::unsigned_abs).ok_or_else(|| {
                bad(format!("must be a whole number from {} to {}", range.start(), range.end()))
            })
        };
        let settings = &mut spec.settings;
        match name {
            AttributeName::VisibilityTimeout => settings.lease_ms = number(&VISIBILITY_SECS)? * 1_000,
            AttributeName::DelaySeconds => settings.delay_ms = number(&DELAY_SECS)? * 1_000,
            AttributeName::MessageRetentionPeriod => settings.retention_ms = number(&RETENTION_SECS)? * 1_000,
            AttributeName::ReceiveMessageWaitTimeSeconds => settings.wait_ms = number(&WAIT_SECS)? * 1_000,
            AttributeName::MaximumMessageSize => {
                settings.message_bytes_max = number(&MESSAGE_BYTES)? + HEADROOM;
            }
            AttributeName::Policy if value.is_empty() => spec.metadata.policy = None,
            AttributeName::Policy => {
                policy::check(value)?;
                spec.metadata.policy = Some(value.to_owned());
            }
            AttributeName::RedrivePolicy => redrive::apply_policy(self, caller, spec, value)?,
            AttributeName::RedriveAllowPolicy => spec.metadata.redrive_allow = redrive::check_allow(value)?,
            AttributeName::KmsMasterKeyId => {
                spec.metadata.kms_key = Some(value.to_owned()).filter(|key| !key.is_empty());
            }
            AttributeName::KmsDataKeyReusePeriodSeconds => {
                spec.metadata.kms_reuse_secs = Some(number(&KEY_REUSE_SECS)?);
            }
            AttributeName::SqsManagedSseEnabled => {
                spec.metadata.managed_sse = parse_bool(name, value)?;
            }
            AttributeName::FifoQueue
            | AttributeName::ContentBasedDeduplication
            | AttributeName::DeduplicationScope
            | AttributeName::FifoThroughputLimit => fifo::apply(spec, name, value)?,
            AttributeName::ApproximateNumberOfMessages
            | AttributeName::ApproximateNumberOfMessagesNotVisible
            | AttributeName::ApproximateNumberOfMessagesDelayed
            | AttributeName::CreatedTimestamp
            | AttributeName::LastModifiedTimestamp
            | AttributeName::QueueArn => {
                return Err(SqsError::UnknownAttribute { name: name.as_str().to_owned() });
            }
        }
        Ok(())
    }

    /// Returns a settable attribute, or the ARN; `None` if it has no value.
    pub(crate) fn setting(&self, spec: &QueueSpec, name: AttributeName) -> Option<String> {
        let QueueSpec { settings, metadata, .. } = spec;
        let seconds = |millis: u64| Some((millis / 1_000).to_string());
        match name {
            AttributeName::VisibilityTimeout => seconds(settings.lease_ms),
            AttributeName::DelaySeconds => seconds(settings.delay_ms),
            AttributeName::MessageRetentionPeriod => seconds(settings.retention_ms),
            AttributeName::ReceiveMessageWaitTimeSeconds => seconds(settings.wait_ms),
            AttributeName::MaximumMessageSize => {
                Some(settings.message_bytes_max.saturating_sub(HEADROOM).to_string())
            }
            AttributeName::Policy => metadata.policy.clone(),
            AttributeName::RedrivePolicy => redrive::policy_json(metadata),
            AttributeName::RedriveAllowPolicy => metadata.redrive_allow.clone(),
            AttributeName::KmsMasterKeyId => metadata.kms_key.clone(),
            AttributeName::KmsDataKeyReusePeriodSeconds => {
                // As at AWS, the default shows only beside a key.
                let default = metadata.kms_key.as_ref().map(|_| KEY_REUSE_SECS_DEFAULT);
                let set =
                    metadata.kms_reuse_secs.filter(|set| default.is_some() || *set != KEY_REUSE_SECS_DEFAULT);
                set.or(default).map(|seconds| seconds.to_string())
            }
            AttributeName::SqsManagedSseEnabled => Some(metadata.managed_sse.to_string()),
            AttributeName::QueueArn => Some(self.options.arn(spec.namespace, &spec.name)),
            AttributeName::FifoQueue
            | AttributeName::ContentBasedDeduplication
            | AttributeName::DeduplicationScope
            | AttributeName::FifoThroughputLimit => fifo::value(spec, name),
            AttributeName::ApproximateNumberOfMessages
            | AttributeName::ApproximateNumberOfMessagesNotVisible
            | AttributeName::ApproximateNumberOfMessagesDelayed
            | AttributeName::CreatedTimestamp
            | AttributeName::LastModifiedTimestamp => None,
        }
    }

    /// Returns any attribute of a queue, including its message counts.
    pub(crate) fn attribute(
        &self,
        totals: &QueueTotals,
        descriptor: &QueueDescriptor,
        spec: &QueueSpec,
        name: AttributeName,
    ) -> Option<String> {
        let count = |count: u64| Some(count.to_string());
        match name {
            AttributeName::ApproximateNumberOfMessages => count(totals.pending),
            AttributeName::ApproximateNumberOfMessagesNotVisible => count(totals.in_flight),
            AttributeName::ApproximateNumberOfMessagesDelayed => count(totals.delayed),
            AttributeName::CreatedTimestamp => count(descriptor.created_at / 1_000),
            AttributeName::LastModifiedTimestamp => count(descriptor.changed_at / 1_000),
            setting => self.setting(spec, setting),
        }
    }
}

/// Parses a boolean in any case, as AWS does: Python clients send `True`.
pub(crate) fn parse_bool(name: AttributeName, value: &str) -> Result<bool, SqsError> {
    let hint = || "must be true or false".to_owned();
    let invalid = || SqsError::AttributeValue { name: name.as_str(), reason: "", hint: hint() };
    value.to_ascii_lowercase().parse().map_err(|_| invalid())
}
