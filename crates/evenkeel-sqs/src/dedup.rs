//! What a message is called by its sender, so that it is sent once.

use evenkeel_queue::message::DedupId;

use crate::fault::Fault;
use crate::limit::DEDUP_MAX;

/// Refuses a name that AWS would.
pub(crate) fn check(name: &str) -> Result<(), Fault> {
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic());
    if plain && (1..=DEDUP_MAX).contains(&name.len()) {
        return Ok(());
    }
    let reason = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
    Err(Fault::value("MessageDeduplicationId", name, reason))
}

/// A name that counts in the whole queue.
pub(crate) fn of_queue(name: &str) -> DedupId {
    DedupId::new("", name)
}
