//! Batches: validation of entry ids, and responses with one result per entry.

use std::collections::HashSet;

use serde::Serialize;

use crate::error::SqsError;
use crate::limit::BATCH_MAX;

const ID_MAX: usize = 80;

/// Response to a batch; as at AWS, it contains only the lists that have entries, because clients test for the key.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchResponse<T> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) successful: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<BatchFailure>,
}

/// A successful entry of an operation that returns nothing else.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchSuccess {
    pub(crate) id: String,
}

/// A failed entry.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchFailure {
    id: String,
    sender_fault: bool,
    code: &'static str,
    message: String,
}

impl BatchFailure {
    pub(crate) fn new(id: String, error: &SqsError) -> Self {
        Self { id, sender_fault: error.is_sender_fault(), code: error.code(), message: error.to_string() }
    }
}

/// Builds the response from the result of each entry.
pub(crate) fn batch_response(entries: Vec<(String, Result<(), SqsError>)>) -> BatchResponse<BatchSuccess> {
    let mut response = BatchResponse { successful: Vec::new(), failed: Vec::new() };
    for (id, result) in entries {
        match result {
            Ok(()) => response.successful.push(BatchSuccess { id }),
            Err(error) => response.failed.push(BatchFailure::new(id, &error)),
        }
    }
    response
}

/// Checks the number and the ids of a batch's entries; an error rejects the whole batch.
///
/// `entry` is the name of entries in the query protocol, which errors use.
pub(crate) fn check_ids<'a>(
    entry: &'static str,
    ids: impl ExactSizeIterator<Item = Option<&'a str>>,
) -> Result<(), SqsError> {
    let count = ids.len();
    if count == 0 {
        return Err(SqsError::EmptyBatch { entry });
    }
    if count > BATCH_MAX {
        return Err(SqsError::TooManyEntries { count });
    }
    let mut seen = HashSet::with_capacity(count);
    for (index, id) in ids.enumerate() {
        let missing = SqsError::MissingInEntry { entry, number: index + 1, name: "Id" };
        let id = id.ok_or(missing)?;
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_plain || !(1..=ID_MAX).contains(&id.len()) {
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
    fn a_batch_is_rejected_for_its_size_and_its_ids() {
        let check = |ids: &[&str]| check_ids("Entry", ids.iter().copied().map(Some));
        let eleven: Vec<String> = (0..11).map(|n| n.to_string()).collect();
        let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
        assert_eq!(check(&[]), Err(SqsError::EmptyBatch { entry: "Entry" }));
        assert_eq!(check(&eleven[..10]), Ok(()));
        assert_eq!(check(&eleven), Err(SqsError::TooManyEntries { count: 11 }));
        assert_eq!(check(&["a", "a"]), Err(SqsError::EntryIdsNotDistinct { id: "a".to_owned() }));
        for bad in ["", "a b", "a:b", "ä", &"x".repeat(81)] {
            assert_eq!(check(&[bad]), Err(SqsError::BadEntryId));
        }
        assert_eq!(check(&[&"x".repeat(80), "A-z_0"]), Ok(()));
        let missing = check_ids("Entry", [Some("a"), None].into_iter());
        assert_eq!(missing, Err(SqsError::MissingInEntry { entry: "Entry", number: 2, name: "Id" }));
    }
}
