//! Results of jobs, stored apart from the queue's messages until they expire.
//!
//! Guarantees: a stored result reads back unchanged until its TTL ends; expired results are deleted.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use core::time::Duration;

use crate::id::MessageId;
use crate::namespace::Namespace;
use crate::queue::Queue;
use crate::queues::Queues;
use crate::rejection::Rejection;
use crate::store::{Completion, StoreError, StoredResult};
use crate::time::UnixMillis;

/// Maximum number of results deleted in one write, so that other writes run in between.
const EXPIRE_MAX: usize = 1_000;

/// Result of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    pub head: ResultHead,
    /// Body of the response.
    pub body: Bytes,
}

/// Metadata of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultHead {
    pub state: ResultState,
    /// HTTP status of the response.
    pub status: u16,
    pub content_type: Option<String>,
    /// Attempt that produced the result.
    pub attempt: u32,
    pub finished_at_ms: u64,
    /// Account that may read the result; shared means every user of the queue. Earlier versions do not store it.
    #[serde(default, skip_serializing_if = "Namespace::is_shared")]
    pub reader: Namespace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultState {
    Done,
    /// Failed for good; a retry would not help.
    Failed,
}

impl JobResult {
    fn encode(&self) -> Result<Bytes, StoreError> {
        let head = serde_json::to_vec(&self.head).map_err(|error| StoreError::Io(error.to_string()))?;
        // A head has a few hundred bytes, far below 4 GiB.
        Ok([&(head.len() as u32).to_be_bytes(), head.as_slice(), &self.body].concat().into())
    }

    fn decode(bytes: &Bytes) -> Option<Self> {
        let (len, _) = bytes.split_first_chunk::<4>()?;
        let body_at = 4_usize.checked_add(u32::from_be_bytes(*len) as usize)?;
        let head = serde_json::from_slice(bytes.get(4..body_at)?).ok()?;
        Some(Self { head, body: bytes.slice(body_at..) })
    }
}

impl Queue {
    /// Stores the result of a message for `ttl`; returns once it is durable.
    ///
    /// If the queue then has more than `max` results, those that expire first are evicted.
    pub async fn put_result(
        &self,
        id: MessageId,
        result: &JobResult,
        ttl: Duration,
        max: usize,
    ) -> Result<(), Rejection> {
        let stored = StoredResult { expires_at: self.now() + ttl, bytes: result.encode()? };
        Ok(wait_for_completion(|done| self.0.store.put_result(id, stored, max, done)).await?)
    }

    /// Returns the result of a message and when it expires, if there is one.
    ///
    /// The id of a moved message names the queue it was sent to, which may be another one of the same owner, or deleted.
    pub async fn result(&self, id: MessageId) -> Result<Option<(JobResult, UnixMillis)>, Rejection> {
        let origin = self.0.known.read().get(&id.queue).copied();
        if origin.is_some_and(|origin| origin != self.descriptor().namespace) {
            return Ok(None);
        }
        let stored = wait_for_completion(|done| self.0.store.result(id, done)).await?;
        let Some(stored) = stored.filter(|stored| self.now() < stored.expires_at) else { return Ok(None) };
        let corrupt =
            || StoreError::Io(format!("the result of {} is corrupt", self.message_ids().format(id)));
        Ok(Some((JobResult::decode(&stored.bytes).ok_or_else(corrupt)?, stored.expires_at)))
    }
}

impl Queues {
    /// Deletes the expired results of all queues.
    pub async fn expire_results(&self) -> Result<(), StoreError> {
        while wait_for_completion(|done| self.store.expire_results(self.clock.now(), EXPIRE_MAX, done))
            .await?
            > 0
        {}
        Ok(())
    }
}

async fn wait_for_completion<T: Send + 'static>(submit: impl FnOnce(Completion<T>)) -> Result<T, StoreError> {
    let (done, completed) = oneshot::channel();
    submit(Box::new(move |result| drop(done.send(result))));
    completed.await.unwrap_or(Err(StoreError::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reads_back_unchanged_and_a_truncated_one_is_rejected() {
        let head = ResultHead {
            state: ResultState::Failed,
            status: 422,
            content_type: Some("application/json".into()),
            attempt: 3,
            finished_at_ms: 7,
            reader: Namespace::Shared,
        };
        let result = JobResult { head, body: Bytes::from_static(b"\x00{}") };
        let bytes = result.encode().unwrap();
        let head = br#"{"state":"failed","status":422,"content_type":"application/json","attempt":3,"finished_at_ms":7}"#;
        assert_eq!(bytes[4..4 + head.len()], *head);
        assert_eq!(JobResult::decode(&bytes), Some(result.clone()));
        let reader = Namespace::Account("123456789012".parse().unwrap());
        let owned = JobResult { head: ResultHead { reader, ..result.head.clone() }, ..result.clone() };
        assert_eq!(JobResult::decode(&owned.encode().unwrap()), Some(owned));
        for cut in 0..40 {
            assert_eq!(JobResult::decode(&bytes.slice(..cut)), None, "{cut}");
        }
    }
}
