//! What a queue may be told, under AWS's names: read, kept and shown.

use std::collections::BTreeMap;

use evenkeel_queue::queue::Queue;
use evenkeel_queue::store::QueueDescriptor;
use evenkeel_queue::{QueueId, QueueSettings};

use crate::api::{EmptyResponse, SqsApi};
use crate::error::SqsError;
use crate::fifo;
use crate::limit::{
    DELAY_SECS, HEADROOM, KEY_REUSE_SECS, MESSAGE_BYTES, POLICY_MAX, RETENTION_SECS, VISIBILITY_SECS,
    WAIT_SECS,
};
use crate::queue_metadata::QueueMetadata;
use crate::redrive;

/// Attributes by name, as they are sent.
pub(crate) type Attributes = BTreeMap<String, String>;

/// What a queue is, as far as it can be told.
#[derive(Clone)]
pub(crate) struct QueueSpec {
    /// `None` before it is made.
    pub(crate) id: Option<QueueId>,
    pub(crate) name: String,
    pub(crate) settings: QueueSettings,
    pub(crate) notes: QueueMetadata,
}

impl QueueSpec {
    pub(crate) fn of(queue: &Queue) -> Self {
        let body = queue.descriptor();
        Self {
            id: Some(queue.id()),
            name: body.name.clone(),
            settings: body.settings.clone(),
            notes: QueueMetadata::read(&body.metadata),
        }
    }
}

macro_rules! attributes {
    ($($name:ident),* $(,)?) => {
        /// An attribute of a queue.
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
    /// Finds one by its name.
    pub(crate) fn parse(name: &str) -> Result<Self, SqsError> {
        let found = Self::ALL.iter().copied().find(|known| known.as_str() == name);
        found.ok_or_else(|| SqsError::UnknownAttribute { name: name.to_owned() })
    }
}

impl SqsApi {
    /// Changes what a queue is told, one at a time.
    pub(crate) async fn change(
        &self,
        queue: &Queue,
        change: impl FnOnce(&mut QueueSpec) -> Result<(), SqsError>,
    ) -> Result<EmptyResponse, SqsError> {
        let _changing = self.changing.lock().await;
        let mut shape = QueueSpec::of(queue);
        change(&mut shape)?;
        self.queues.change(queue, shape.settings, shape.notes.write()).await?;
        Ok(EmptyResponse {})
    }

    /// Tells a queue several things, or none of them.
    pub(crate) fn apply(&self, shape: &mut QueueSpec, attributes: &Attributes) -> Result<(), SqsError> {
        for (name, value) in attributes {
            self.apply_one(shape, AttributeName::parse(name)?, value)?;
        }
        if shape.notes.managed_sse && shape.notes.kms_key.is_some() {
            return Err(SqsError::BothEncryptions);
        }
        fifo::check(shape)
    }

    fn apply_one(&self, shape: &mut QueueSpec, name: AttributeName, value: &str) -> Result<(), SqsError> {
        let bad = |why: String| SqsError::AttributeValue { name: name.as_str(), why };
        let number = |range: &core::ops::RangeInclusive<i64>| {
            let number = value.parse::<i64>().ok().filter(|number| range.contains(number));
            number.map(i64::unsigned_abs).ok_or_else(|| {
                bad(format!("Must be a whole number from {} to {}.", range.start(), range.end()))
            })
        };
        let settings = &mut shape.settings;
        match name {
            AttributeName::VisibilityTimeout => settings.lease_ms = number(&VISIBILITY_SECS)? * 1_000,
            AttributeName::DelaySeconds => settings.delay_ms = number(&DELAY_SECS)? * 1_000,
            AttributeName::MessageRetentionPeriod => settings.retention_ms = number(&RETENTION_SECS)? * 1_000,
            AttributeName::ReceiveMessageWaitTimeSeconds => settings.wait_ms = number(&WAIT_SECS)? * 1_000,
            AttributeName::MaximumMessageSize => {
                settings.message_bytes_max = number(&MESSAGE_BYTES)? + HEADROOM
            }
            AttributeName::Policy => {
                let why = || bad(format!("Must be a JSON object of at most {POLICY_MAX} bytes."));
                shape.notes.policy = policy(value).ok_or_else(why)?;
            }
            AttributeName::RedrivePolicy => redrive::apply_policy(self, shape, value)?,
            AttributeName::RedriveAllowPolicy => shape.notes.redrive_allow = redrive::check_allow(value)?,
            AttributeName::KmsMasterKeyId => {
                shape.notes.kms_key = Some(value.to_owned()).filter(|key| !key.is_empty());
            }
            AttributeName::KmsDataKeyReusePeriodSeconds => {
                shape.notes.kms_reuse_secs = Some(number(&KEY_REUSE_SECS)?)
            }
            AttributeName::SqsManagedSseEnabled => {
                shape.notes.managed_sse = value.parse().map_err(|_| bad("Must be true or false.".into()))?;
            }
            AttributeName::FifoQueue
            | AttributeName::ContentBasedDeduplication
            | AttributeName::DeduplicationScope
            | AttributeName::FifoThroughputLimit => fifo::apply(shape, name, value)?,
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

    /// Shows what a queue was told; `None` where it was told nothing and there is no default.
    pub(crate) fn show_told(&self, shape: &QueueSpec, name: AttributeName) -> Option<String> {
        let QueueSpec { settings, notes, .. } = shape;
        let seconds = |millis: u64| Some((millis / 1_000).to_string());
        match name {
            AttributeName::VisibilityTimeout => seconds(settings.lease_ms),
            AttributeName::DelaySeconds => seconds(settings.delay_ms),
            AttributeName::MessageRetentionPeriod => seconds(settings.retention_ms),
            AttributeName::ReceiveMessageWaitTimeSeconds => seconds(settings.wait_ms),
            AttributeName::MaximumMessageSize => {
                Some(settings.message_bytes_max.saturating_sub(HEADROOM).to_string())
            }
            AttributeName::Policy => notes.policy.clone(),
            AttributeName::RedrivePolicy => redrive::show_policy(notes),
            AttributeName::RedriveAllowPolicy => notes.redrive_allow.clone(),
            AttributeName::KmsMasterKeyId => notes.kms_key.clone(),
            AttributeName::KmsDataKeyReusePeriodSeconds => {
                notes.kms_reuse_secs.map(|seconds| seconds.to_string())
            }
            AttributeName::SqsManagedSseEnabled => Some(notes.managed_sse.to_string()),
            AttributeName::QueueArn => Some(self.options.arn(&shape.name)),
            AttributeName::FifoQueue
            | AttributeName::ContentBasedDeduplication
            | AttributeName::DeduplicationScope
            | AttributeName::FifoThroughputLimit => fifo::show(shape, name),
            AttributeName::ApproximateNumberOfMessages
            | AttributeName::ApproximateNumberOfMessagesNotVisible
            | AttributeName::ApproximateNumberOfMessagesDelayed
            | AttributeName::CreatedTimestamp
            | AttributeName::LastModifiedTimestamp => None,
        }
    }

    /// Shows an attribute of a queue, what it holds included.
    pub(crate) fn show(
        &self,
        queue: &Queue,
        body: &QueueDescriptor,
        shape: &QueueSpec,
        name: AttributeName,
    ) -> Option<String> {
        let totals = queue.totals();
        let count = |count: u64| Some(count.to_string());
        match name {
            AttributeName::ApproximateNumberOfMessages => count(totals.pending),
            AttributeName::ApproximateNumberOfMessagesNotVisible => count(totals.in_flight),
            AttributeName::ApproximateNumberOfMessagesDelayed => count(totals.delayed),
            AttributeName::CreatedTimestamp => count(body.created_at / 1_000),
            AttributeName::LastModifiedTimestamp => count(body.changed_at / 1_000),
            told => self.show_told(shape, told),
        }
    }
}

/// Reads a policy; an empty one takes it away.
fn policy(value: &str) -> Option<Option<String>> {
    if value.is_empty() {
        return Some(None);
    }
    let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(value).is_ok();
    (is_object && value.len() <= POLICY_MAX).then(|| Some(value.to_owned()))
}
