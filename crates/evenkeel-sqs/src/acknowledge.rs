//! DeleteMessage and ChangeMessageVisibility, single and in batches.

use core::time::Duration;

use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{DeliveryOrder, Queue, Rejection};
use serde::Deserialize;

use crate::api::{EmptyResponse, RequestContext, SqsApi, required, seconds};
use crate::batch::{BatchResponse, BatchSuccess, batch_response, check_ids};
use crate::error::SqsError;
use crate::limit::VISIBILITY_SECS;
use crate::protocol::list;
use crate::reason;
use crate::time::Seconds;

/// Request about one delivery, single or as an entry of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiptRequest {
    /// Set for entries of a batch.
    id: Option<String>,
    queue_url: Option<String>,
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiptBatchRequest {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "list")]
    entries: Vec<ReceiptRequest>,
}

impl SqsApi {
    pub(crate) async fn delete_message(
        &self,
        context: &RequestContext,
        request: &ReceiptRequest,
    ) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        // AWS reports a missing handle of DeleteMessage under this name.
        let results = self.delete(&queue, &[request.receipt("MessageHandle")?]).await;
        first_error(results)
    }

    pub(crate) async fn delete_message_batch(
        &self,
        context: &RequestContext,
        request: ReceiptBatchRequest,
    ) -> Result<BatchResponse<BatchSuccess>, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let (receipts, errors) =
            request.read("DeleteMessageBatchRequestEntry", |entry| entry.receipt("ReceiptHandle"))?;
        let results = self.delete(&queue, &receipts).await;
        Ok(request.response(errors, results))
    }

    async fn delete(&self, queue: &Queue, receipts: &[Receipt]) -> Vec<Result<(), SqsError>> {
        let order = queue.descriptor().settings.order;
        let results = queue.ack(receipts).await;
        let deleted = results.iter().filter(|result| result.is_ok()).count();
        self.count_deleted(queue, deleted as u64);
        let results = results.into_iter().zip(receipts).map(|(result, receipt)| match result {
            // Idempotent: a client that got no response retries after the message is deleted.
            Ok(()) | Err(Rejection::MessageGone) => {
                self.streams.release(receipt);
                Ok(())
            }
            Err(rejection) if is_ignored(&rejection, order) => {
                self.streams.release(receipt);
                Ok(())
            }
            Err(rejection) => Err(receipt_error(rejection, receipt)),
        });
        results.collect()
    }

    pub(crate) async fn change_visibility(
        &self,
        context: &RequestContext,
        request: &ReceiptRequest,
    ) -> Result<EmptyResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        first_error(self.change_visibilities(&queue, vec![request.change()?]).await)
    }

    pub(crate) async fn change_visibility_batch(
        &self,
        context: &RequestContext,
        request: ReceiptBatchRequest,
    ) -> Result<BatchResponse<BatchSuccess>, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let (changes, errors) =
            request.read("ChangeMessageVisibilityBatchRequestEntry", ReceiptRequest::change)?;
        let results = self.change_visibilities(&queue, changes).await;
        Ok(request.response(errors, results))
    }

    /// Sets the visibility timeouts of deliveries; a timeout of 0 nacks the delivery.
    async fn change_visibilities(
        &self,
        queue: &Queue,
        changes: Vec<(Receipt, Seconds)>,
    ) -> Vec<Result<(), SqsError>> {
        let order = queue.descriptor().settings.order;
        let mut nacks = Vec::new();
        let mut extensions = Vec::new();
        for (receipt, timeout) in &changes {
            match timeout {
                Seconds(0) => nacks.push((receipt.clone(), Some(Duration::ZERO))),
                timeout => extensions.push((receipt.clone(), Duration::from(*timeout))),
            }
        }
        let nacked = if nacks.is_empty() { Vec::new() } else { queue.nack(&nacks).await };
        let extended = if extensions.is_empty() { Vec::new() } else { queue.extend(&extensions).await };
        let mut nacked = nacked.into_iter();
        let mut extended = extended.into_iter();
        let results = changes.iter().map(|(receipt, timeout)| {
            let result = if *timeout == Seconds(0) { nacked.next() } else { extended.next() };
            match (result.unwrap_or(Err(Rejection::Interrupted)), timeout) {
                (Ok(()), Seconds(0)) => self.streams.release(receipt),
                (Ok(()), timeout) => self.streams.extend(receipt, Duration::from(*timeout)),
                (Err(rejection), _) if is_ignored(&rejection, order) => {}
                (Err(rejection), _) => return Err(receipt_error(rejection, receipt)),
            }
            Ok(())
        });
        results.collect()
    }
}

impl ReceiptRequest {
    /// Returns the receipt handle, which the error calls `name`.
    fn receipt(&self, name: &'static str) -> Result<Receipt, SqsError> {
        Ok(Receipt::new(required(name, self.receipt_handle.as_deref())?))
    }

    fn change(&self) -> Result<(Receipt, Seconds), SqsError> {
        Ok((self.receipt("ReceiptHandle")?, self.visibility()?))
    }

    fn visibility(&self) -> Result<Seconds, SqsError> {
        let missing = SqsError::Missing { name: "VisibilityTimeout" };
        let timeout = self.visibility_timeout;
        seconds("VisibilityTimeout", timeout, &VISIBILITY_SECS, reason::CHANGE_VISIBILITY)?.ok_or(missing)
    }
}

impl ReceiptBatchRequest {
    /// Reads the entries, called `name` in errors. Returns the valid ones, and for every entry the error, if it has one.
    fn read<T>(
        &self,
        name: &'static str,
        read: impl Fn(&ReceiptRequest) -> Result<T, SqsError>,
    ) -> Result<(Vec<T>, Vec<Option<SqsError>>), SqsError> {
        check_ids(name, self.entries.iter().map(|entry| entry.id.as_deref()))?;
        let mut valid = Vec::with_capacity(self.entries.len());
        let mut errors = Vec::with_capacity(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate() {
            let entry = read(entry).map_err(|error| error.in_entry(name, index + 1));
            errors.push(entry.map(|entry| valid.push(entry)).err());
        }
        Ok((valid, errors))
    }

    /// Builds the response from the errors of [`read`](Self::read) and the results of the valid entries.
    fn response(
        &self,
        errors: Vec<Option<SqsError>>,
        results: Vec<Result<(), SqsError>>,
    ) -> BatchResponse<BatchSuccess> {
        let mut results = results.into_iter();
        let entries = self.entries.iter().zip(errors).map(|(entry, error)| {
            let result = match error {
                Some(error) => Err(error),
                None => results.next().unwrap_or(Err(SqsError::Internal)),
            };
            (entry.id.clone().unwrap_or_default(), result)
        });
        batch_response(entries.collect())
    }
}

/// Returns the first error, if any.
fn first_error(results: Vec<Result<(), SqsError>>) -> Result<EmptyResponse, SqsError> {
    results.into_iter().collect::<Result<Vec<()>, SqsError>>().map(|_| EmptyResponse {})
}

/// Reports whether a late receipt is answered with success although it changes nothing, as AWS does on standard queues:
/// another delivery was made later, or the message is visible already.
fn is_ignored(rejection: &Rejection, order: DeliveryOrder) -> bool {
    order == DeliveryOrder::Fair && matches!(rejection, Rejection::StaleReceipt | Rejection::NotInFlight)
}

/// Converts the rejection of a receipt into an error that contains the receipt.
fn receipt_error(rejection: Rejection, receipt: &Receipt) -> SqsError {
    let invalid = |reason| SqsError::invalid_value("ReceiptHandle", receipt, reason);
    match rejection {
        Rejection::ForgedReceipt => SqsError::ReceiptInvalid { receipt: receipt.as_str().to_owned() },
        Rejection::MessageGone => {
            invalid("Message does not exist or is not available for visibility timeout change.")
        }
        Rejection::StaleReceipt | Rejection::NotInFlight => invalid("The receipt handle has expired."),
        other => other.into(),
    }
}
