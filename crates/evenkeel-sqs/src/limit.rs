//! The limits that AWS documents, where they are the door's and not a queue's.

use core::ops::RangeInclusive;

/// Entries of a batch.
pub(crate) const BATCH_MAX: usize = 10;
/// Bytes of all messages of a batch; also the largest message.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 20;
/// Messages of a receive.
pub(crate) const RECEIVE: RangeInclusive<i64> = 1..=10;
/// Seconds a receive may wait.
pub(crate) const WAIT_SECS: RangeInclusive<i64> = 0..=20;
/// Seconds a message may be invisible.
pub(crate) const VISIBILITY_SECS: RangeInclusive<i64> = 0..=43_200;
/// Seconds a message may be delayed.
pub(crate) const DELAY_SECS: RangeInclusive<i64> = 0..=900;
/// Seconds a message may be kept.
pub(crate) const RETENTION_SECS: RangeInclusive<i64> = 60..=1_209_600;
/// Bytes that a queue's largest message may have.
pub(crate) const MESSAGE_BYTES: RangeInclusive<i64> = 1_024..=1 << 20;
/// Seconds that a data key may be reused.
pub(crate) const KEY_REUSE_SECS: RangeInclusive<i64> = 60..=86_400;
/// Deliveries before a message is a dead letter.
pub(crate) const RECEIVES: RangeInclusive<i64> = 1..=1_000;
/// Queues of one page.
pub(crate) const PAGE: RangeInclusive<i64> = 1..=1_000;
/// Messages per second of a move task.
pub(crate) const MOVE_RATE: RangeInclusive<i64> = 1..=500;
/// Move tasks of one listing.
pub(crate) const TASKS: RangeInclusive<i64> = 1..=10;
/// Move tasks at once.
pub(crate) const TASKS_ACTIVE_MAX: usize = 100;
/// Attributes of a message.
pub(crate) const ATTRIBUTES_MAX: usize = 10;
/// Bytes of an attribute's name, and of its type.
pub(crate) const ATTRIBUTE_NAME_MAX: usize = 256;
/// Bytes of a trace header, which do not count as the message's.
pub(crate) const TRACE_MAX: usize = 1_024;
/// Characters of a group id.
pub(crate) const GROUP_MAX: usize = 128;
/// Characters of a deduplication id.
pub(crate) const DEDUP_MAX: usize = 128;
/// Tags of a queue.
pub(crate) const TAGS_MAX: usize = 50;
/// Characters of a tag's key, and of its value.
pub(crate) const TAG_KEY_MAX: usize = 128;
pub(crate) const TAG_VALUE_MAX: usize = 256;
/// Bytes of a policy.
pub(crate) const POLICY_MAX: usize = 8_192;
/// Queues that a redrive allow policy names.
pub(crate) const ALLOWED_MAX: usize = 10;
/// What the queue keeps with a message beyond what AWS counts: lengths, sender, trace header.
pub(crate) const HEADROOM: u64 = 4_096;
