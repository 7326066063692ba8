//! DeleteMessage and ChangeMessageVisibility, each alone and in batches.

use core::time::Duration;

use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{Queue, Rejection};
use serde::Deserialize;

use crate::api::{EmptyResponse, SqsApi, required, seconds};
use crate::batch::{BatchResponse, BatchSuccess, check_ids, outcome};
use crate::error::SqsError;
use crate::limit::VISIBILITY_SECS;
use crate::time::Seconds;

/// One delivery, alone or as an entry of a batch, and what shall become of it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiptRequest {
    #[serde(default)]
    id: String,
    queue_url: Option<String>,
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiptBatchRequest {
    queue_url: Option<String>,
    #[serde(default)]
    entries: Vec<ReceiptRequest>,
}

impl SqsApi {
    pub(crate) async fn delete_message(&self, wish: &ReceiptRequest) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let results = self.delete(&queue, &[wish.receipt()?]).await;
        all(results)
    }

    pub(crate) async fn delete_message_batch(
        &self,
        wish: ReceiptBatchRequest,
    ) -> Result<BatchResponse<BatchSuccess>, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        check_ids(wish.entries.iter().map(|entry| entry.id.as_str()))?;
        let receipts = wish.entries.iter().map(ReceiptRequest::receipt).collect::<Result<Vec<_>, _>>()?;
        let results = self.delete(&queue, &receipts).await;
        Ok(outcome(wish.ids().zip(results).collect()))
    }

    async fn delete(&self, queue: &Queue, receipts: &[Receipt]) -> Vec<Result<(), SqsError>> {
        let answers = queue.ack(receipts).await;
        let deleted = answers.iter().filter(|answer| answer.is_ok()).count();
        self.meters.deleted(queue, deleted as u64);
        let judged = answers.into_iter().zip(receipts).map(|(answer, receipt)| match answer {
            // A client that was not answered asks again, and the message is gone already.
            Ok(()) | Err(Rejection::MessageGone | Rejection::StaleReceipt) => {
                self.streams.release(receipt);
                Ok(())
            }
            Err(rejection) => Err(fault_of(rejection, receipt)),
        });
        judged.collect()
    }

    pub(crate) async fn change_visibility(&self, wish: &ReceiptRequest) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let results = self.change_all(&queue, vec![(wish.receipt()?, wish.visibility()?)]).await;
        all(results)
    }

    pub(crate) async fn change_visibility_batch(
        &self,
        wish: ReceiptBatchRequest,
    ) -> Result<BatchResponse<BatchSuccess>, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        check_ids(wish.entries.iter().map(|entry| entry.id.as_str()))?;
        let mut results: Vec<Result<(), SqsError>> = Vec::with_capacity(wish.entries.len());
        let mut wishes = Vec::with_capacity(wish.entries.len());
        for entry in &wish.entries {
            let wished = entry.receipt().and_then(|receipt| Ok((receipt, entry.visibility()?)));
            results.push(wished.map(|wished| wishes.push(wished)));
        }
        let mut changed = self.change_all(&queue, wishes).await.into_iter();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = changed.next().unwrap_or(Err(SqsError::Internal));
        }
        Ok(outcome(wish.ids().zip(results).collect()))
    }

    /// Has deliveries end at another time; at once is to give them back.
    async fn change_all(&self, queue: &Queue, wishes: Vec<(Receipt, Seconds)>) -> Vec<Result<(), SqsError>> {
        let mut back = Vec::new();
        let mut longer = Vec::new();
        for (receipt, span) in &wishes {
            match span {
                Seconds(0) => back.push((receipt.clone(), Some(Duration::ZERO))),
                span => longer.push((receipt.clone(), Duration::from(*span))),
            }
        }
        let mut back = if back.is_empty() { Vec::new() } else { queue.nack(&back).await }.into_iter();
        let mut longer = if longer.is_empty() { Vec::new() } else { queue.extend(&longer).await }.into_iter();
        let answers = wishes.iter().map(|(receipt, span)| {
            let answer = if *span == Seconds(0) { back.next() } else { longer.next() };
            match (answer.unwrap_or(Err(Rejection::Interrupted)), span) {
                (Ok(()), Seconds(0)) => self.streams.release(receipt),
                (Ok(()), span) => self.streams.extend(receipt, Duration::from(*span)),
                (Err(rejection), _) => return Err(fault_of(rejection, receipt)),
            }
            Ok(())
        });
        answers.collect()
    }
}

impl ReceiptRequest {
    fn receipt(&self) -> Result<Receipt, SqsError> {
        Ok(Receipt::new(required("ReceiptHandle", self.receipt_handle.as_deref())?))
    }

    fn visibility(&self) -> Result<Seconds, SqsError> {
        let missing = SqsError::Missing { name: "VisibilityTimeout" };
        seconds("VisibilityTimeout", self.visibility_timeout, &VISIBILITY_SECS)?.ok_or(missing)
    }
}

impl ReceiptBatchRequest {
    fn ids(&self) -> impl Iterator<Item = String> {
        self.entries.iter().map(|entry| entry.id.clone())
    }
}

fn all(results: Vec<Result<(), SqsError>>) -> Result<EmptyResponse, SqsError> {
    results.into_iter().collect::<Result<Vec<()>, SqsError>>().map(|_| EmptyResponse {})
}

/// Says what is wrong with a receipt, and shows it.
fn fault_of(rejection: Rejection, receipt: &Receipt) -> SqsError {
    match rejection {
        Rejection::ForgedReceipt => SqsError::ReceiptInvalid { receipt: receipt.as_str().to_owned() },
        Rejection::MessageGone | Rejection::StaleReceipt => SqsError::value(
            "ReceiptHandle",
            receipt,
            "Message does not exist or is not available for visibility timeout change.",
        ),
        other => other.into(),
    }
}
