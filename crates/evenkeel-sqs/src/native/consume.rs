//! Endpoints of consumers: receive, ack, nack, extend, peek.

use core::time::Duration;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{Queue, Rejection};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::json::{AckJson, DeliveryJson, PeekJson, queue_error};
use super::{Native, json_response, number, query, read, within};
use crate::receive::release_unless_served;

/// Messages or receipts per request.
pub(super) const MESSAGES_MAX: u64 = 1_000;
/// Maximum lease, the same as in a queue's settings.
pub(super) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1_000;
/// Maximum wait of a long poll.
const WAIT_MS_MAX: u64 = 20_000;
/// Maximum delay of a nacked message.
const DELAY_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiveBody {
    max: Option<u64>,
    lease_ms: Option<u64>,
    wait_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AckBody {
    receipts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NackBody {
    receipts: Vec<String>,
    delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendBody {
    receipts: Vec<String>,
    lease_ms: u64,
}

impl Native {
    pub(super) async fn receive(
        &self,
        request: &mut ServerRequest,
        queue: Queue,
    ) -> Result<Response, ApiError> {
        let body: ReceiveBody = read(request).await?;
        let max = within("max", body.max.unwrap_or(1), 1..=MESSAGES_MAX)?;
        let lease_ms = body.lease_ms.map(|lease| within("lease_ms", lease, 0..=LEASE_MS_MAX)).transpose()?;
        let wait_ms = body.wait_ms.unwrap_or(queue.descriptor().settings.wait_ms);
        let options = ReceiveOptions {
            max: max as usize,
            lease: lease_ms.map(Duration::from_millis),
            wait: Duration::from_millis(within("wait_ms", wait_ms, 0..=WAIT_MS_MAX)?),
        };
        let deliveries = self.sqs.receive(&request.caller, &queue, options).await.map_err(queue_error)?;
        self.sqs.count_received(&queue, deliveries.len() as u64);
        let messages: Vec<_> =
            deliveries.iter().map(|delivery| DeliveryJson::new(queue.message_ids(), delivery)).collect();
        let response = json_response(StatusCode::OK, &json!({"messages": messages}));
        release_unless_served(queue, &deliveries, request.disconnect.clone());
        response
    }

    pub(super) async fn ack(&self, request: &mut ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
        let receipts = check_receipts(read::<AckBody>(request).await?.receipts)?;
        let results = queue.ack(&receipts).await;
        self.sqs.count_deleted(queue, results.iter().filter(|result| result.is_ok()).count() as u64);
        // A delivery that was made by a stream no longer counts as unacknowledged there.
        ended_receipts(&receipts, &results).for_each(|receipt| self.sqs.streams.release(receipt));
        json_response(StatusCode::OK, &AckJson::new(&receipts, &results))
    }

    pub(super) async fn nack(
        &self,
        request: &mut ServerRequest,
        queue: &Queue,
    ) -> Result<Response, ApiError> {
        let NackBody { receipts, delay_ms } = read(request).await?;
        let delay_ms = delay_ms.map(|delay| within("delay_ms", delay, 0..=DELAY_MS_MAX)).transpose()?;
        let receipts = check_receipts(receipts)?;
        let delay = delay_ms.map(Duration::from_millis);
        let nacks: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), delay)).collect();
        let results = queue.nack(&nacks).await;
        ended_receipts(&receipts, &results).for_each(|receipt| self.sqs.streams.release(receipt));
        json_response(StatusCode::OK, &AckJson::new(&receipts, &results))
    }

    pub(super) async fn extend(
        &self,
        request: &mut ServerRequest,
        queue: &Queue,
    ) -> Result<Response, ApiError> {
        let ExtendBody { receipts, lease_ms } = read(request).await?;
        let lease = Duration::from_millis(within("lease_ms", lease_ms, 0..=LEASE_MS_MAX)?);
        let receipts = check_receipts(receipts)?;
        let extensions: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), lease)).collect();
        let results = queue.extend(&extensions).await;
        accepted_receipts(&receipts, &results).for_each(|receipt| self.sqs.streams.extend(receipt, lease));
        json_response(StatusCode::OK, &AckJson::new(&receipts, &results))
    }
}

/// Returns the receipts whose deliveries were ended by this request or earlier.
fn ended_receipts<'a>(
    receipts: &'a [Receipt],
    results: &'a [Result<(), Rejection>],
) -> impl Iterator<Item = &'a Receipt> {
    let has_ended = |result: &Result<(), Rejection>| {
        use Rejection::{MessageGone, NotInFlight, StaleReceipt};
        matches!(result, Ok(()) | Err(MessageGone | StaleReceipt | NotInFlight))
    };
    receipts.iter().zip(results).filter(move |(_, result)| has_ended(result)).map(|(receipt, _)| receipt)
}

/// Returns the receipts that the queue accepted.
fn accepted_receipts<'a>(
    receipts: &'a [Receipt],
    results: &'a [Result<(), Rejection>],
) -> impl Iterator<Item = &'a Receipt> {
    receipts.iter().zip(results).filter(|(_, result)| result.is_ok()).map(|(receipt, _)| receipt)
}

fn check_receipts(texts: Vec<String>) -> Result<Vec<Receipt>, ApiError> {
    within("the number of receipts", texts.len() as u64, 1..=MESSAGES_MAX)?;
    Ok(texts.into_iter().map(Receipt::new).collect())
}

pub(super) async fn peek(request: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    let [max] = query(request, ["max"])?;
    let max = number("max", max.as_deref(), 10, 1..=MESSAGES_MAX)?;
    let found = queue.peek(max as usize).await.map_err(queue_error)?;
    let ids = queue.message_ids();
    let messages = found.iter().map(|(id, key, payload)| PeekJson::new(ids.format(*id), key, payload));
    let messages: Vec<_> = messages.collect();
    json_response(StatusCode::OK, &json!({"messages": messages}))
}
