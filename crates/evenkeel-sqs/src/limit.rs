//! AWS's documented limits that the API enforces itself; the queue enforces the others.

use core::ops::RangeInclusive;

/// Entries per batch.
pub(crate) const BATCH_MAX: usize = 10;
/// Total bytes of a batch's messages; also the maximum of a single message.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request: 1 MiB of messages takes up to 6 MiB if every byte is escaped.
pub(crate) const WIRE_BYTES_MAX: u64 = 8 << 20;
/// Messages per receive.
pub(crate) const RECEIVE: RangeInclusive<i64> = 1..=10;
/// Seconds of long polling.
pub(crate) const WAIT_SECS: RangeInclusive<i64> = 0..=20;
/// Seconds of the visibility timeout.
pub(crate) const VISIBILITY_SECS: RangeInclusive<i64> = 0..=43_200;
/// Seconds of a message's delay.
pub(crate) const DELAY_SECS: RangeInclusive<i64> = 0..=900;
/// Seconds of a message's retention.
pub(crate) const RETENTION_SECS: RangeInclusive<i64> = 60..=1_209_600;
/// Values of `MaximumMessageSize`.
pub(crate) const MESSAGE_BYTES: RangeInclusive<i64> = 1_024..=1 << 20;
/// Values of `KmsDataKeyReusePeriodSeconds`.
pub(crate) const KEY_REUSE_SECS: RangeInclusive<i64> = 60..=86_400;
/// `KmsDataKeyReusePeriodSeconds` of a queue with a key.
pub(crate) const KEY_REUSE_SECS_DEFAULT: u64 = 300;
/// Values of `maxReceiveCount` in a redrive policy.
pub(crate) const RECEIVES: RangeInclusive<i64> = 1..=1_000;
/// Queues per page of a list.
pub(crate) const PAGE: RangeInclusive<i64> = 1..=1_000;
/// Messages per second of a move task.
pub(crate) const MOVE_RATE: RangeInclusive<i64> = 1..=500;
/// Move tasks per list.
pub(crate) const TASKS: RangeInclusive<i64> = 1..=10;
/// Active move tasks of an owner.
pub(crate) const TASKS_ACTIVE_MAX: usize = 100;
/// Attributes per message.
pub(crate) const ATTRIBUTES_MAX: usize = 10;
/// Bytes of an attribute's name, and of its type.
pub(crate) const ATTRIBUTE_NAME_MAX: usize = 256;
/// Bytes of the trace header, which do not count towards the message's size.
pub(crate) const TRACE_MAX: usize = 1_024;
/// Characters of a group id.
pub(crate) const GROUP_MAX: usize = 128;
/// Characters of a deduplication id.
pub(crate) const DEDUP_MAX: usize = 128;
/// Tags per queue.
pub(crate) const TAGS_MAX: usize = 50;
/// Characters of a tag's key.
pub(crate) const TAG_KEY_MAX: usize = 128;
/// Characters of a tag's value.
pub(crate) const TAG_VALUE_MAX: usize = 256;
/// Bytes of a policy.
pub(crate) const POLICY_MAX: usize = 8_192;
/// Statements of a policy.
pub(crate) const STATEMENTS_MAX: usize = 20;
/// Source queues in a redrive allow policy.
pub(crate) const ALLOWED_MAX: usize = 10;
/// Bytes stored with a message beyond those that AWS counts: lengths, sender, trace header.
pub(crate) const HEADROOM: u64 = 4_096;
