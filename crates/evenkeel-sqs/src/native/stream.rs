//! `GET /api/queues/{queue}/stream`: streams messages as server-sent events or as lines of JSON.
//!
//! Guarantees: a consumer has at most `max_in_flight` unacknowledged messages. When it disconnects, they are nacked and
//! redelivered to other consumers at once, as when it may no longer use the queue, or when its tenant is removed, disabled
//! or loses a key. When the server stops or the queue fails, they stay leased until their leases expire.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{Delivery, Queue, Rejection};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::Caller;
use http::HeaderValue;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::consume::{LEASE_MS_MAX, MESSAGES_MAX};
use super::json::{DeliveryJson, queue_error};
use super::{Native, number, query};
use crate::operation::Operation;

/// Interval of keep-alive lines on a stream without messages.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Minimum lease of a streamed message.
const LEASE_MS_MIN: u64 = 1_000;
/// Chunks buffered for the connection; when full, the stream waits until the client reads (backpressure).
const CHUNKS_MAX: usize = 16;
/// Retry delay while the queue is busy or has too many messages in flight.
const BUSY_RETRY: Duration = Duration::from_millis(100);

const RECEIVE: Operation = Operation::ReceiveMessage;

/// Format of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamFormat {
    Events,
    Lines,
}

/// The unacknowledged deliveries of all streams; an acknowledgement by either API lets its stream continue.
#[derive(Default)]
pub(crate) struct Streams {
    by_receipt: Mutex<HashMap<Receipt, Arc<UnackedDeliveries>>>,
    open: AtomicUsize,
}

/// The unacknowledged deliveries of one stream.
#[derive(Default)]
struct UnackedDeliveries {
    /// Expiry of each lease.
    leases: Mutex<HashMap<Receipt, Instant>>,
    /// Notified when a delivery ends.
    freed: Notify,
}

impl Streams {
    /// Removes a delivery that has ended.
    pub(crate) fn release(&self, receipt: &Receipt) {
        if let Some(mut by_receipt) = self.tracked()
            && let Some(unacked) = by_receipt.remove(receipt)
        {
            unacked.leases.lock().remove(receipt);
            unacked.freed.notify_one();
        }
    }

    /// Records the extension of a lease.
    pub(crate) fn extend(&self, receipt: &Receipt, lease: Duration) {
        if let Some(by_receipt) = self.tracked()
            && let Some(unacked) = by_receipt.get(receipt)
            && let Some(until) = unacked.leases.lock().get_mut(receipt)
        {
            *until = Instant::now() + lease;
        }
    }

    /// Locks the deliveries; `None` without open streams, so that acknowledgements usually skip the lock.
    fn tracked(&self) -> Option<MutexGuard<'_, HashMap<Receipt, Arc<UnackedDeliveries>>>> {
        (self.open.load(Ordering::Acquire) > 0).then(|| self.by_receipt.lock())
    }

    fn track(&self, unacked: &Arc<UnackedDeliveries>, deliveries: &[Delivery], until: Instant) {
        let mut by_receipt = self.by_receipt.lock();
        let mut leases = unacked.leases.lock();
        for delivery in deliveries {
            by_receipt.insert(delivery.receipt.clone(), unacked.clone());
            leases.insert(delivery.receipt.clone(), until);
        }
    }

    /// Removes a stream's expired leases; returns the number of the others and when the next one expires.
    fn remove_expired(&self, unacked: &UnackedDeliveries) -> (usize, Option<Instant>) {
        let mut by_receipt = self.by_receipt.lock();
        let mut leases = unacked.leases.lock();
        let now = Instant::now();
        leases.retain(|receipt, until| {
            let is_live = now < *until;
            if !is_live {
                by_receipt.remove(receipt);
            }
            is_live
        });
        (leases.len(), leases.values().min().copied())
    }

    /// Removes and returns all deliveries of a stream.
    fn drain(&self, unacked: &UnackedDeliveries) -> Vec<Receipt> {
        let mut by_receipt = self.by_receipt.lock();
        let mut leases = unacked.leases.lock();
        let receipts: Vec<Receipt> = leases.drain().map(|(receipt, _)| receipt).collect();
        receipts.iter().for_each(|receipt| drop(by_receipt.remove(receipt)));
        receipts
    }
}

impl Native {
    pub(super) fn stream(&self, request: &ServerRequest, queue: Queue) -> Result<Response, ApiError> {
        let [max, lease] = query(request, ["max_in_flight", "lease_ms"])?;
        let max = number("max_in_flight", max.as_deref(), 10, 1..=MESSAGES_MAX)?;
        // With a lease of zero, a message would be delivered again and again, as fast as the client reads.
        let default = queue.descriptor().settings.lease_ms.max(LEASE_MS_MIN);
        let lease_ms = number("lease_ms", lease.as_deref(), default, LEASE_MS_MIN..=LEASE_MS_MAX)?;
        let accept = request.request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let is_ndjson = accept.is_some_and(|accept| accept.contains("ndjson"));
        let (format, content_type) = if is_ndjson {
            (StreamFormat::Lines, "application/x-ndjson")
        } else {
            (StreamFormat::Events, "text/event-stream")
        };
        let (chunks, body) = mpsc::channel(CHUNKS_MAX);
        let stream = Stream {
            native: self.clone(),
            caller: request.caller.clone(),
            queue,
            unacked: Arc::default(),
            max: max as usize,
            lease: Duration::from_millis(lease_ms),
            format,
            chunks,
        };
        self.sqs.streams.open.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(stream.run(request.disconnect.clone()));
        let mut response = Response::new(evenkeel_server::body::channel(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// One consumer's stream.
struct Stream {
    native: Native,
    caller: Caller,
    queue: Queue,
    unacked: Arc<UnackedDeliveries>,
    max: usize,
    lease: Duration,
    format: StreamFormat,
    chunks: mpsc::Sender<Bytes>,
}

/// Cause of a stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamStop {
    Disconnected,
    /// The server is shutting down, or the queue returned an error.
    ServerSide,
}

impl Stream {
    async fn run(self, mut disconnect: Disconnect) {
        let mut stopping = self.native.sqs.stopping.subscribe();
        let stop = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => StreamStop::ServerSide,
            _ = disconnect.ended() => StreamStop::Disconnected,
            () = self.native.sqs.auth.until_invalid(&self.caller) => {
                // A client that does not read gets no error.
                drop(self.chunks.try_send(self.format_error(&ApiError::Unauthenticated)));
                StreamStop::Disconnected
            }
            stop = self.feed() => stop,
        };
        let streams = &self.native.sqs.streams;
        let unacked = streams.drain(&self.unacked);
        streams.open.fetch_sub(1, Ordering::AcqRel);
        if stop == StreamStop::Disconnected && !unacked.is_empty() {
            let nacks: Vec<_> = unacked.into_iter().map(|receipt| (receipt, Some(Duration::ZERO))).collect();
            // Errors are ignored: those deliveries ended in the meantime.
            drop(self.queue.nack(&nacks).await);
        }
    }

    /// Delivers messages until the client disconnects or the queue fails.
    async fn feed(&self) -> StreamStop {
        loop {
            let max = self.wait_for_capacity().await;
            let options = ReceiveOptions { max, lease: Some(self.lease), wait: KEEP_ALIVE_INTERVAL };
            let chunk = match self.queue.receive(options).await {
                Ok(deliveries) if !self.native.sqs.allows(&self.caller, &self.queue, RECEIVE) => {
                    return self.revoke(&deliveries).await;
                }
                Ok(deliveries) if deliveries.is_empty() => self.keep_alive(),
                Ok(deliveries) => {
                    self.native.sqs.streams.track(&self.unacked, &deliveries, Instant::now() + self.lease);
                    self.native.sqs.count_received(&self.queue, deliveries.len() as u64);
                    deliveries.iter().flat_map(|delivery| self.format_delivery(delivery)).collect()
                }
                Err(Rejection::Busy | Rejection::TooManyInFlight { .. }) => {
                    tokio::time::sleep(BUSY_RETRY).await;
                    continue;
                }
                Err(rejection) => {
                    drop(self.chunks.send(self.format_error(&queue_error(rejection))).await);
                    return StreamStop::ServerSide;
                }
            };
            if self.chunks.send(chunk).await.is_err() {
                return StreamStop::Disconnected;
            }
        }
    }

    /// Ends the stream of a caller that may no longer use the queue; `deliveries` go to other consumers.
    async fn revoke(&self, deliveries: &[Delivery]) -> StreamStop {
        let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
        // Errors are ignored: those deliveries ended in the meantime.
        drop(self.queue.release(&receipts).await);
        drop(self.chunks.send(self.format_error(&queue_error(Rejection::QueueDeleted))).await);
        StreamStop::Disconnected
    }

    /// Waits until fewer than `max` deliveries are unacknowledged, and returns how many more may be sent.
    async fn wait_for_capacity(&self) -> usize {
        loop {
            let freed = self.unacked.freed.notified();
            let (unacked, until) = self.native.sqs.streams.remove_expired(&self.unacked);
            if unacked < self.max {
                return self.max - unacked;
            }
            let next = until.unwrap_or_else(Instant::now).min(Instant::now() + KEEP_ALIVE_INTERVAL);
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep_until(next) => {
                    // A write also lets the connection detect a disconnect.
                    drop(self.chunks.try_send(self.keep_alive()));
                }
            }
        }
    }

    fn format_delivery(&self, delivery: &Delivery) -> Vec<u8> {
        // Serialization of texts and numbers does not fail.
        let ids = self.queue.message_ids();
        let json = serde_json::to_string(&DeliveryJson::new(ids, delivery)).unwrap_or_default();
        match self.format {
            StreamFormat::Events => {
                format!("event: message\nid: {}\ndata: {json}\n\n", ids.format(delivery.id)).into_bytes()
            }
            StreamFormat::Lines => format!("{json}\n").into_bytes(),
        }
    }

    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(match self.format {
            StreamFormat::Events => b": still here\n\n",
            StreamFormat::Lines => b"\n",
        })
    }

    fn format_error(&self, error: &ApiError) -> Bytes {
        let json = error.to_json();
        Bytes::from(match self.format {
            StreamFormat::Events => format!("event: error\ndata: {json}\n\n"),
            StreamFormat::Lines => format!("{json}\n"),
        })
    }
}
