//! `GET /api/queues/{queue}/stream`: messages as they come, as server-sent events or as lines of JSON.
//!
//! Bound: a consumer has at most as many messages unacknowledged as it said. When it leaves, what it has not
//! acknowledged goes to others at once; when the server stops, it stays the consumer's until its lease ends.

use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll};
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
use http::HeaderValue;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http_body::Frame;
use http_body_util::BodyExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::consume::{AT_ONCE_MAX, LEASE_MS_MAX};
use super::json::{DeliveryJson, queue_error};
use super::{Native, number, query};

/// A consumer that hears nothing for so long is told that the stream still lives.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The shortest lease of a message that is streamed.
const LEASE_MS_MIN: u64 = 1_000;
/// Pieces on their way to a connection; beyond, the stream waits for its reader.
const AHEAD: usize = 16;
/// How long a stream waits after its queue had no room for more in flight.
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamFormat {
    Events,
    Lines,
}

/// What every stream's consumer has in its hands, so that an acknowledgement makes room for more.
#[derive(Default)]
pub(crate) struct Streams {
    hands: Mutex<HashMap<Receipt, Arc<UnackedDeliveries>>>,
    open: AtomicUsize,
}

/// What one consumer has in its hands, and until when.
#[derive(Default)]
struct UnackedDeliveries {
    held: Mutex<HashMap<Receipt, Instant>>,
    freed: Notify,
}

impl Streams {
    /// Takes a delivery that has ended out of its consumer's hand.
    pub(crate) fn release(&self, receipt: &Receipt) {
        if let Some(mut hands) = self.tracked()
            && let Some(hand) = hands.remove(receipt)
        {
            hand.held.lock().remove(receipt);
            hand.freed.notify_one();
        }
    }

    /// Takes in that a lease ends so long from now.
    pub(crate) fn extend(&self, receipt: &Receipt, lease: Duration) {
        if let Some(hands) = self.tracked()
            && let Some(hand) = hands.get(receipt)
            && let Some(until) = hand.held.lock().get_mut(receipt)
        {
            *until = Instant::now() + lease;
        }
    }

    /// Who holds what, if there is any stream: most gateways have none, and acknowledge a lot.
    fn tracked(&self) -> Option<MutexGuard<'_, HashMap<Receipt, Arc<UnackedDeliveries>>>> {
        (0 < self.open.load(Ordering::Acquire)).then(|| self.hands.lock())
    }

    fn hold(&self, hand: &Arc<UnackedDeliveries>, deliveries: &[Delivery], until: Instant) {
        let mut hands = self.hands.lock();
        let mut held = hand.held.lock();
        for delivery in deliveries {
            hands.insert(delivery.receipt.clone(), hand.clone());
            held.insert(delivery.receipt.clone(), until);
        }
    }

    /// Takes out of a hand what is no longer its own, and tells how much it holds and until when.
    fn held(&self, hand: &UnackedDeliveries) -> (usize, Option<Instant>) {
        let mut hands = self.hands.lock();
        let mut held = hand.held.lock();
        let now = Instant::now();
        held.retain(|receipt, until| {
            let is_held = now < *until;
            if !is_held {
                hands.remove(receipt);
            }
            is_held
        });
        (held.len(), held.values().min().copied())
    }

    /// Empties a hand.
    fn drain(&self, hand: &UnackedDeliveries) -> Vec<Receipt> {
        let mut hands = self.hands.lock();
        let mut held = hand.held.lock();
        let receipts: Vec<Receipt> = held.drain().map(|(receipt, _)| receipt).collect();
        receipts.iter().for_each(|receipt| drop(hands.remove(receipt)));
        receipts
    }
}

impl Native {
    pub(super) fn stream(&self, call: &ServerRequest, queue: Queue) -> Result<Response, ApiError> {
        let [max, lease] = query(call, ["max_in_flight", "lease_ms"])?;
        let max = number("max_in_flight", max.as_deref(), 10, 1..=AT_ONCE_MAX)?;
        // Without a lease a message would be handed out again and again, as fast as it is read.
        let usual = queue.descriptor().settings.lease_ms.max(LEASE_MS_MIN);
        let lease_ms = number("lease_ms", lease.as_deref(), usual, LEASE_MS_MIN..=LEASE_MS_MAX)?;
        let accept = call.request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let wants_lines = accept.is_some_and(|accept| accept.contains("ndjson"));
        let (shape, kind) = if wants_lines {
            (StreamFormat::Lines, "application/x-ndjson")
        } else {
            (StreamFormat::Events, "text/event-stream")
        };
        let (pieces, body) = mpsc::channel(AHEAD);
        let stream = Stream {
            native: self.clone(),
            queue,
            hand: Arc::default(),
            max: max as usize,
            lease: Duration::from_millis(lease_ms),
            shape,
            pieces,
        };
        self.sqs.streams.open.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(stream.run(call.disconnect.clone()));
        let mut response = Response::new(StreamBody(body).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// One consumer's stream.
struct Stream {
    native: Native,
    queue: Queue,
    hand: Arc<UnackedDeliveries>,
    max: usize,
    lease: Duration,
    shape: StreamFormat,
    pieces: mpsc::Sender<Bytes>,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamStop {
    ConsumerLeft,
    ServerStops,
}

impl Stream {
    async fn run(self, mut disconnect: Disconnect) {
        let mut stopping = self.native.sqs.stopping.subscribe();
        let ended = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => StreamStop::ServerStops,
            _ = disconnect.ended() => StreamStop::ConsumerLeft,
            ended = self.feed() => ended,
        };
        let streams = &self.native.sqs.streams;
        let left = streams.drain(&self.hand);
        streams.open.fetch_sub(1, Ordering::AcqRel);
        if ended == StreamStop::ConsumerLeft && !left.is_empty() {
            let back: Vec<_> = left.into_iter().map(|receipt| (receipt, Some(Duration::ZERO))).collect();
            // Those that were acknowledged meanwhile need nothing.
            drop(self.queue.nack(&back).await);
        }
    }

    /// Hands out messages as long as there is somebody to take them.
    async fn feed(&self) -> StreamStop {
        loop {
            let room = self.wait_for_room().await;
            let want = ReceiveOptions { max: room, lease: Some(self.lease), wait: SILENCE_MAX };
            let piece = match self.queue.receive(want).await {
                Ok(deliveries) if deliveries.is_empty() => self.silence(),
                Ok(deliveries) => {
                    self.native.sqs.streams.hold(&self.hand, &deliveries, Instant::now() + self.lease);
                    self.native.sqs.meters.received(&self.queue, deliveries.len() as u64);
                    deliveries.iter().flat_map(|delivery| self.written(delivery)).collect()
                }
                Err(Rejection::Busy | Rejection::TooManyInFlight { .. }) => {
                    tokio::time::sleep(BUSY_WAIT).await;
                    continue;
                }
                Err(rejection) => {
                    drop(self.pieces.send(self.error(rejection)).await);
                    return StreamStop::ServerStops;
                }
            };
            if self.pieces.send(piece).await.is_err() {
                return StreamStop::ConsumerLeft;
            }
        }
    }

    async fn wait_for_room(&self) -> usize {
        loop {
            let freed = self.hand.freed.notified();
            let (held, until) = self.native.sqs.streams.held(&self.hand);
            if held < self.max {
                return self.max - held;
            }
            let next = until.unwrap_or_else(Instant::now).min(Instant::now() + SILENCE_MAX);
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep_until(next) => {
                    // A reader that left is seen by the connection when it is written to.
                    drop(self.pieces.try_send(self.silence()));
                }
            }
        }
    }

    fn written(&self, delivery: &Delivery) -> Vec<u8> {
        // Texts and numbers are JSON.
        let json = serde_json::to_string(&DeliveryJson::of(delivery)).unwrap_or_default();
        match self.shape {
            StreamFormat::Events => {
                format!("event: message\nid: {}\ndata: {json}\n\n", delivery.id).into_bytes()
            }
            StreamFormat::Lines => format!("{json}\n").into_bytes(),
        }
    }

    fn silence(&self) -> Bytes {
        Bytes::from_static(match self.shape {
            StreamFormat::Events => b": still here\n\n",
            StreamFormat::Lines => b"\n",
        })
    }

    fn error(&self, rejection: Rejection) -> Bytes {
        let json = queue_error(rejection).to_json();
        Bytes::from(match self.shape {
            StreamFormat::Events => format!("event: error\ndata: {json}\n\n"),
            StreamFormat::Lines => format!("{json}\n"),
        })
    }
}

/// A body of what a stream hands over.
struct StreamBody(mpsc::Receiver<Bytes>);

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = evenkeel_server::body::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
