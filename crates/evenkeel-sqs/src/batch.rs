//! What batches have in common: how many entries, what they are called, and which of them failed.

use std::collections::HashSet;

use serde::Serialize;

use crate::error::SqsError;
use crate::limit::BATCH_MAX;

const ID_MAX: usize = 80;

/// What became of a batch.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchResponse<T> {
    pub(crate) successful: Vec<T>,
    pub(crate) failed: Vec<BatchFailure>,
}

/// An entry that was done, where nothing more is told.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchSuccess {
    pub(crate) id: String,
}

/// An entry that was not.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchFailure {
    id: String,
    sender_fault: bool,
    code: &'static str,
    message: String,
}

impl BatchFailure {
    pub(crate) fn new(id: String, fault: &SqsError) -> Self {
        Self { id, sender_fault: fault.is_sender_fault(), code: fault.code(), message: fault.to_string() }
    }
}

/// Puts entries and what became of them together.
pub(crate) fn outcome(entries: Vec<(String, Result<(), SqsError>)>) -> BatchResponse<BatchSuccess> {
    let mut all = BatchResponse { successful: Vec::new(), failed: Vec::new() };
    for (id, result) in entries {
        match result {
            Ok(()) => all.successful.push(BatchSuccess { id }),
            Err(fault) => all.failed.push(BatchFailure::new(id, &fault)),
        }
    }
    all
}

/// Refuses a batch as a whole.
pub(crate) fn check_ids<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), SqsError> {
    let count = ids.len();
    if count == 0 {
        return Err(SqsError::EmptyBatch);
    }
    if BATCH_MAX < count {
        return Err(SqsError::TooManyEntries { count });
    }
    let mut seen = HashSet::with_capacity(count);
    for id in ids {
        let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !plain || !(1..=ID_MAX).contains(&id.len()) {
            return Err(SqsError::BadEntryId);
        }
        if !seen.insert(id) {
            return Err(SqsError::EntryIdsNotDistinct { id: id.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_refused_for_its_size_and_its_ids() {
        let check = |ids: &[&str]| check_ids(ids.iter().copied());
        let eleven: Vec<String> = (0..11).map(|n| n.to_string()).collect();
        let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
        assert_eq!(check(&[]), Err(SqsError::EmptyBatch));
        assert_eq!(check(&eleven[..10]), Ok(()));
        assert_eq!(check(&eleven), Err(SqsError::TooManyEntries { count: 11 }));
        assert_eq!(check(&["a", "a"]), Err(SqsError::EntryIdsNotDistinct { id: "a".to_owned() }));
        for bad in ["", "a b", "a:b", "ä", &"x".repeat(81)] {
            assert_eq!(check(&[bad]), Err(SqsError::BadEntryId));
        }
        assert_eq!(check(&[&"x".repeat(80), "A-z_0"]), Ok(()));
    }
}
