//! What came of a job, kept apart from the queue until it expires.
//!
//! Bound: what is kept reads back as it was; it is kept for as long as the queue says and swept after.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use core::time::Duration;

use crate::id::MessageId;
use crate::queue::Queue;
use crate::queues::Queues;
use crate::rejection::Rejection;
use crate::store::{Completion, StoreError, StoredResult};
use crate::time::UnixMillis;

/// Results that are swept in one go; then others are heard.
const SWEEP_MAX: usize = 1_000;

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// What is known of it beside its body.
    pub head: ResultHead,
    /// The answer's body.
    pub body: Bytes,
}

/// What is known of a result beside its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultHead {
    /// How it ended.
    pub state: ResultState,
    /// The answer's status.
    pub status: u16,
    /// What the body is, if the answer said so.
    pub content_type: Option<String>,
    /// With which delivery it ended.
    pub attempt: u32,
    /// When it ended.
    pub finished_at_ms: u64,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultState {
    /// It was answered.
    Done,
    /// It cannot be answered, however often it is tried.
    Failed,
}

impl JobResult {
    fn encode(&self) -> Result<Bytes, StoreError> {
        let head = serde_json::to_vec(&self.head).map_err(|why| StoreError::Io(why.to_string()))?;
        // A head is a few words, far below 4 GiB.
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
    /// Keeps what came of a message for so long, and no more than so many of its queue's; returns once that is on disk.
    pub async fn put_result(
        &self,
        of: MessageId,
        result: &JobResult,
        ttl: Duration,
        max: usize,
    ) -> Result<(), Rejection> {
        let kept = StoredResult { expires_at: self.now() + ttl, bytes: result.encode()? };
        Ok(wait_for_completion(|done| self.0.store.put_result(of, kept, max, done)).await?)
    }

    /// Reads what came of a message and until when it is kept; `None` when nothing is.
    ///
    /// A message that was moved is named after the queue it was sent to, which may be another, or gone.
    pub async fn result(&self, of: MessageId) -> Result<Option<(JobResult, UnixMillis)>, Rejection> {
        let kept = wait_for_completion(|done| self.0.store.result(of, done)).await?;
        let Some(kept) = kept.filter(|kept| self.now() < kept.expires_at) else { return Ok(None) };
        let garbled = || StoreError::Io(format!("cannot make sense of the result of {of}"));
        Ok(Some((JobResult::decode(&kept.bytes).ok_or_else(garbled)?, kept.expires_at)))
    }
}

impl Queues {
    /// Forgets every result that has expired, of whatever queue.
    pub async fn expire_results(&self) -> Result<(), StoreError> {
        while wait_for_completion(|done| self.store.expire_results(self.clock.now(), SWEEP_MAX, done)).await?
            > 0
        {}
        Ok(())
    }
}

async fn wait_for_completion<T: Send + 'static>(ask: impl FnOnce(Completion<T>)) -> Result<T, StoreError> {
    let (done, answered) = oneshot::channel();
    ask(Box::new(move |result| drop(done.send(result))));
    answered.await.unwrap_or(Err(StoreError::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reads_back_as_it_was_and_garbage_does_not() {
        let head = ResultHead {
            state: ResultState::Failed,
            status: 422,
            content_type: Some("application/json".into()),
            attempt: 3,
            finished_at_ms: 7,
        };
        let result = JobResult { head, body: Bytes::from_static(b"\x00{}") };
        let bytes = result.encode().unwrap();
        assert_eq!(JobResult::decode(&bytes), Some(result));
        for cut in 0..40 {
            assert_eq!(JobResult::decode(&bytes.slice(..cut)), None, "{cut}");
        }
    }
}
