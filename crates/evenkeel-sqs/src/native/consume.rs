//! Consumers: receive, acknowledge, give back, keep longer, look without touching, ask why.

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

/// Messages, or receipts, of one request.
pub(super) const AT_ONCE_MAX: u64 = 1_000;
/// The longest lease, which is also a queue's.
pub(super) const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1_000;
/// The longest a consumer waits for a first message.
const WAIT_MS_MAX: u64 = 20_000;
/// The longest that what is given back waits.
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
    pub(super) async fn receive(&self, call: &mut ServerRequest, queue: Queue) -> Result<Response, ApiError> {
        let wanted: ReceiveBody = read(call).await?;
        let max = within("max", wanted.max.unwrap_or(1), 1..=AT_ONCE_MAX)?;
        let lease_ms =
            wanted.lease_ms.map(|lease| within("lease_ms", lease, 0..=LEASE_MS_MAX)).transpose()?;
        let wait_ms = wanted.wait_ms.unwrap_or(queue.descriptor().settings.wait_ms);
        let want = ReceiveOptions {
            max: max as usize,
            lease: lease_ms.map(Duration::from_millis),
            wait: Duration::from_millis(within("wait_ms", wait_ms, 0..=WAIT_MS_MAX)?),
        };
        let deliveries = self.sqs.wait(&queue, want).await.map_err(queue_error)?;
        self.sqs.meters.received(&queue, deliveries.len() as u64);
        let messages: Vec<_> = deliveries.iter().map(DeliveryJson::of).collect();
        let answer = json_response(StatusCode::OK, &json!({"messages": messages}));
        release_unless_served(queue, &deliveries, call.disconnect.clone());
        answer
    }

    pub(super) async fn ack(&self, call: &mut ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
        let receipts = receipts_of(read::<AckBody>(call).await?.receipts)?;
        let answers = queue.ack(&receipts).await;
        self.sqs.meters.deleted(queue, answers.iter().filter(|answer| answer.is_ok()).count() as u64);
        over(&receipts, &answers).for_each(|receipt| self.sqs.streams.release(receipt));
        json_response(StatusCode::OK, &AckJson::of(receipts.iter().map(Receipt::as_str), &answers))
    }

    pub(super) async fn nack(&self, call: &mut ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
        let NackBody { receipts, delay_ms } = read(call).await?;
        let delay_ms = delay_ms.map(|delay| within("delay_ms", delay, 0..=DELAY_MS_MAX)).transpose()?;
        let receipts = receipts_of(receipts)?;
        let delay = delay_ms.map(Duration::from_millis);
        let which: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), delay)).collect();
        let answers = queue.nack(&which).await;
        over(&receipts, &answers).for_each(|receipt| self.sqs.streams.release(receipt));
        json_response(StatusCode::OK, &AckJson::of(receipts.iter().map(Receipt::as_str), &answers))
    }

    pub(super) async fn extend(&self, call: &mut ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
        let ExtendBody { receipts, lease_ms } = read(call).await?;
        let lease = Duration::from_millis(within("lease_ms", lease_ms, 0..=LEASE_MS_MAX)?);
        let receipts = receipts_of(receipts)?;
        let which: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), lease)).collect();
        let answers = queue.extend(&which).await;
        done(&receipts, &answers).for_each(|receipt| self.sqs.streams.extend(receipt, lease));
        json_response(StatusCode::OK, &AckJson::of(receipts.iter().map(Receipt::as_str), &answers))
    }
}

/// Those receipts whose deliveries are over: ended just now, or before.
fn over<'a>(
    receipts: &'a [Receipt],
    answers: &'a [Result<(), Rejection>],
) -> impl Iterator<Item = &'a Receipt> {
    let is_over = |answer: &Result<(), Rejection>| {
        use Rejection::{MessageGone, NotInFlight, StaleReceipt};
        matches!(answer, Ok(()) | Err(MessageGone | StaleReceipt | NotInFlight))
    };
    receipts.iter().zip(answers).filter(move |(_, answer)| is_over(answer)).map(|(receipt, _)| receipt)
}

/// Those receipts that were good.
fn done<'a>(
    receipts: &'a [Receipt],
    answers: &'a [Result<(), Rejection>],
) -> impl Iterator<Item = &'a Receipt> {
    receipts.iter().zip(answers).filter(|(_, answer)| answer.is_ok()).map(|(receipt, _)| receipt)
}

fn receipts_of(texts: Vec<String>) -> Result<Vec<Receipt>, ApiError> {
    within("the number of receipts", texts.len() as u64, 1..=AT_ONCE_MAX)?;
    Ok(texts.into_iter().map(Receipt::new).collect())
}

pub(super) async fn peek(call: &ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
    let [max] = query(call, ["max"])?;
    let max = number("max", max.as_deref(), 10, 1..=AT_ONCE_MAX)?;
    let found = queue.peek(max as usize).await.map_err(queue_error)?;
    let messages: Vec<_> = found.iter().map(PeekJson::of).collect();
    json_response(StatusCode::OK, &json!({"messages": messages}))
}
