//! The API of one queue.

mod key_rules;
mod owner;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use core::time::Duration;

use evenkeel_actor::{AskError, Reply};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::job_status::JobStatusTable;
use crate::message::{Delivery, EnqueueResult, KEY_BYTES_MAX, MessageMeta, NewMessage, Payload};
use crate::message_ids::MessageIds;
use crate::queue_actor::{
    KnownQueues, MoveRequest, Msg, ReceiptResults, ReceiveRequest, SharedQueueTotals, WhenEmpty,
};
use crate::queue_state::{
    AbandonMode, Explanation, KeyStats, LeasedMessage, MoveCursor, QueueStats, QueueTotals,
};
use crate::receipt::{DeliveryId, Receipt, ReceiptSigner};
use crate::rejection::Rejection;
use crate::settings::{DeliveryOrder, QueueSettings, WITH_TTL_MAX};
use crate::store::{AppendBatch, QueueDescriptor, Store, StoreError};
use crate::time::{UnixMillis, WallClock};

pub use crate::queue_actor::MoveProgress;
pub use key_rules::KeyRuleGuard;
pub(crate) use owner::{ActiveOwner, Owner, RestartBackoff};

/// Timeout of a request to the queue actor.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Concurrent requests to one queue actor; further ones are rejected.
const REQUESTS_MAX: u64 = 65_536;

/// Handle of a queue; cheap to clone.
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<QueueInner>);

pub(crate) struct QueueInner {
    pub(crate) id: QueueId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) known: KnownQueues,
    pub(crate) signer: Arc<ReceiptSigner>,
    pub(crate) message_ids: Arc<MessageIds>,
    pub(crate) clock: WallClock,
    pub(crate) gauge: Arc<SharedQueueTotals>,
    pub(crate) descriptor: RwLock<Arc<QueueDescriptor>>,
    pub(crate) owner: watch::Sender<Owner>,
    pub(crate) requests: AtomicU64,
    pub(crate) job_statuses: JobStatusTable,
    /// Serializes changes to rules.
    pub(crate) rule_lock: Arc<tokio::sync::Mutex<()>>,
    pub(crate) restarts: Mutex<RestartBackoff>,
}

/// Parameters of a receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions {
    /// Maximum number of messages.
    pub max: usize,
    /// Visibility timeout; `None` for the queue's.
    pub lease: Option<Duration>,
    /// Time to wait for the first message.
    pub wait: Duration,
}

impl Queue {
    pub fn id(&self) -> QueueId {
        self.0.id
    }

    /// Returns the queue's name, settings and metadata.
    pub fn descriptor(&self) -> Arc<QueueDescriptor> {
        self.0.descriptor.read().clone()
    }

    /// Formats and parses message ids for clients.
    pub fn message_ids(&self) -> &MessageIds {
        &self.0.message_ids
    }

    /// Returns the current time of the queue's clock.
    pub fn now(&self) -> UnixMillis {
        self.0.clock.now()
    }

    /// Returns message counts and bytes, without asking the queue actor, whose last changes may be missing.
    pub fn totals(&self) -> QueueTotals {
        self.0.gauge.read()
    }

    /// Returns message counts and bytes that include everything that was answered before, unless the actor is busy for longer
    /// than a second.
    pub async fn settled_totals(&self) -> QueueTotals {
        // An error means that the totals may lack the last changes.
        drop(tokio::time::timeout(SETTLE_TIMEOUT, self.ask(Msg::Settle)).await);
        self.totals()
    }

    /// Sends messages atomically; returns once they are as durable as the queue's settings require.
    ///
    /// A duplicate within [`DEDUP_WINDOW`](crate::message::DEDUP_WINDOW) is not stored; the id of the first is
    /// returned.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = messages.len()))]
    pub async fn enqueue(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>, Rejection> {
        let descriptor = self.descriptor();
        let settings = &descriptor.settings;
        // Without an actor, messages would accumulate in the forwarder's buffer.
        self.wait_for_owner(None, REPLY_TIMEOUT).await?;
        let bytes = self.check(settings, &messages)?;
        let mut reservation = self.reserve_capacity(settings, &messages, bytes)?;
        let has_dedup = messages.iter().any(|message| message.dedup.is_some());
        let sizes: Vec<u64> = if has_dedup {
            messages.iter().map(|message| message.payload.size() as u64).collect()
        } else {
            Vec::new()
        };
        let batch = AppendBatch {
            queue: self.0.id,
            messages,
            sent_at: self.0.clock.now(),
            delay_ms: settings.delay_ms,
            durability: settings.durability,
        };
        let (done, completed) = oneshot::channel();
        self.0.store.append(
            batch,
            Box::new(move |result| {
                if let Ok(sent) = &result {
                    reservation.confirm(sent, &sizes);
                }
                // Dropped first, so that the sender reads correct totals after the reply.
                drop(reservation);
                // An error means that the sender was cancelled; its messages are stored nevertheless.
                drop(done.send(result));
            }),
        );
        let sent = completed.await.unwrap_or(Err(StoreError::Closed)).map_err(|error| match error {
            StoreError::TooManyKeys => Rejection::TooManyKeys { max: u64::from(settings.keys_max) },
            StoreError::TooManyTenantKeys { max } => Rejection::TooManyTenantKeys { max },
            error => Rejection::Store(error),
        })?;
        Ok(sent.into_iter().map(EnqueueResult::id).collect())
    }

    /// Leases messages to a consumer, fairly between keys; waits up to `options.wait` for the first one.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, max = options.max))]
    pub async fn receive(&self, options: ReceiveOptions) -> Result<Vec<Delivery>, Rejection> {
        if options.max == 0 {
            return Ok(Vec::new());
        }
        let ReceiveOptions { max, lease, wait } = options;
        let when_empty = if wait.is_zero() { WhenEmpty::Return } else { WhenEmpty::Wait };
        let timeout = if wait.is_zero() { REPLY_TIMEOUT } else { wait };
        let started = Instant::now();
        let mut stopped = None;
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            let owner = match self.wait_for_owner(stopped, left).await {
                Err(Rejection::Interrupted) if when_empty == WhenEmpty::Wait => return Ok(Vec::new()),
                owner => owner?,
            };
            let left = timeout.saturating_sub(started.elapsed());
            let request = |reply| Msg::Receive(ReceiveRequest::new(max, lease, when_empty, reply));
            // No request permit: the actor limits waiting receives itself, and they must not block acknowledgements.
            let guard = match owner.actor.ask(request).within(left).await {
                Ok(guard) => guard?,
                Err(AskError::TimedOut) if when_empty == WhenEmpty::Wait => {
                    return self.0.gauge.unreadable().map_or(Ok(Vec::new()), |error| Err(error.into()));
                }
                Err(error) => match self.ask_rejection(error) {
                    // Nothing was delivered, so the next actor can serve the same request.
                    Rejection::Interrupted => {
                        stopped = Some(owner.epoch);
                        continue;
                    }
                    rejection => return Err(rejection),
                },
            };
            let leased = guard.into_messages().into_iter();
            return Ok(leased.map(|(leased, payload)| self.delivery(leased, payload, owner.epoch)).collect());
        }
    }

    fn delivery(&self, leased: LeasedMessage, payload: Payload, epoch: Epoch) -> Delivery {
        let LeasedMessage { key, name, meta, deliveries, first_delivered_at, .. } = leased;
        let queue = self.0.id;
        let seq = meta.seq;
        let delivery = DeliveryId { queue, key, seq, epoch, attempt: deliveries.number() };
        Delivery {
            id: meta.from.map_or(MessageId { queue, key, seq }, |from| from.id),
            receipt: self.0.signer.sign(delivery),
            key: name,
            attempt: deliveries.attempts,
            sent_at: meta.sent_at,
            first_delivered_at,
            from: meta.from.map(|from| from.queue),
            payload,
        }
    }

    /// Acknowledges deliveries; returns once the deletes are stored.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = receipts.len()))]
    pub async fn ack(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.ask_for_receipts(receipts.iter().map(|receipt| (receipt, ())), |deliveries, reply| {
            Msg::Ack(deliveries.into_iter().map(|(delivery, ())| delivery).collect(), reply)
        })
        .await
    }

    /// Rejects deliveries; each counts as an attempt and is redelivered after its delay, or the queue's backoff.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = nacks.len()))]
    pub async fn nack(&self, nacks: &[(Receipt, Option<Duration>)]) -> ReceiptResults {
        self.ask_for_receipts(nacks.iter().map(|(receipt, delay)| (receipt, *delay)), Msg::Nack).await
    }

    /// Defers deliveries: no attempt is counted, and each is redelivered after its delay.
    pub async fn defer(&self, deferrals: &[(Receipt, Duration)]) -> ReceiptResults {
        self.abandon(deferrals.iter().map(|(receipt, delay)| (receipt, AbandonMode::Defer(*delay)))).await
    }

    /// Moves deliveries to the dead-letter queue at once, regardless of their number of attempts.
    pub async fn dead_letter(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.abandon(receipts.iter().map(|receipt| (receipt, AbandonMode::DeadLetter))).await
    }

    async fn abandon<'a>(
        &self,
        deliveries: impl Iterator<Item = (&'a Receipt, AbandonMode)>,
    ) -> ReceiptResults {
        self.ask_for_receipts(deliveries, Msg::Abandon).await
    }

    /// Releases deliveries: no attempt is counted, and they are redelivered at once.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = receipts.len()))]
    pub async fn release(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.ask_for_receipts(receipts.iter().map(|receipt| (receipt, ())), |deliveries, reply| {
            Msg::Release(deliveries.into_iter().map(|(delivery, ())| delivery).collect(), reply)
        })
        .await
    }

    /// Extends or shortens leases, each to end the given time from now.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = leases.len()))]
    pub async fn extend(&self, leases: &[(Receipt, Duration)]) -> ReceiptResults {
        self.ask_for_receipts(leases.iter().map(|(receipt, lease)| (receipt, *lease)), Msg::Extend).await
    }

    /// Sends the deliveries of valid receipts to the actor; invalid receipts are rejected here.
    async fn ask_for_receipts<'a, T>(
        &self,
        receipts: impl Iterator<Item = (&'a Receipt, T)>,
        message: impl FnOnce(Vec<(DeliveryId, T)>, Reply<ReceiptResults>) -> Msg,
    ) -> ReceiptResults {
        let mut deliveries = Vec::new();
        let mut results: ReceiptResults = receipts
            .map(|(receipt, argument)| {
                let delivery = self.0.signer.verify(receipt).filter(|delivery| delivery.queue == self.0.id);
                deliveries.push((delivery.ok_or(Rejection::ForgedReceipt)?, argument));
                Ok(())
            })
            .collect();
        if deliveries.is_empty() {
            return results;
        }
        let mut replies = match self.ask(|reply| message(deliveries, reply)).await {
            Ok(replies) => replies.into_iter(),
            Err(error) => vec![Err(error); results.len()].into_iter(),
        };
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = replies.next().unwrap_or(Err(Rejection::Interrupted));
        }
        results
    }

    /// Deletes every message.
    pub async fn purge(&self) -> Result<(), Rejection> {
        self.ask(Msg::Purge).await?
    }

    /// Moves up to `max` ready messages to another queue, or each to its origin.
    ///
    /// A move visits each message that was sent before the move started once; messages without a destination stay.
    pub async fn move_some(
        &self,
        from: MoveCursor,
        to: Option<QueueId>,
        max: usize,
    ) -> Result<MoveProgress, Rejection> {
        self.ask(|reply| Msg::Move(MoveRequest::new(from, to, max, reply))).await?
    }

    pub async fn stats(&self) -> Result<QueueStats, Rejection> {
        self.ask(Msg::Stats).await
    }

    /// Returns the statistics of at most `max` keys, after the first `skip`.
    pub async fn key_stats(&self, skip: usize, max: usize) -> Result<Vec<KeyStats>, Rejection> {
        self.ask(|reply| Msg::KeyStats(skip, max, reply)).await
    }

    /// Returns the next messages of each key without delivering them, at most `max`.
    pub async fn peek(&self, max: usize) -> Result<Vec<(MessageId, Arc<str>, Payload)>, Rejection> {
        let next = self.ask(|reply| Msg::Peek(max, reply)).await?;
        let messages: Vec<(KeyId, MessageMeta)> = next.iter().map(|(key, _, meta)| (*key, *meta)).collect();
        let (done, completed) = oneshot::channel();
        self.0.store.read_payloads(self.0.id, messages, Box::new(move |found| drop(done.send(found))));
        let mut found: std::collections::HashMap<Seq, Payload> =
            completed.await.unwrap_or(Err(StoreError::Closed))?.into_iter().collect();
        let peeked = next.into_iter().filter_map(|(key, name, MessageMeta { seq, from, .. })| {
            let id = from.map_or(MessageId { queue: self.0.id, key, seq }, |from| from.id);
            Some((id, name, found.remove(&seq)?))
        });
        Ok(peeked.collect())
    }

    /// Explains why a message is not delivered now.
    pub async fn explain(&self, id: MessageId) -> Result<Explanation, Rejection> {
        self.ask(|reply| Msg::Explain(id, reply)).await
    }

    /// Returns how often the queue's actor was restarted after it stopped unexpectedly.
    pub fn actor_restarts(&self) -> u64 {
        self.0.restarts.lock().restarts
    }

    async fn ask<T: Send + 'static>(&self, message: impl FnOnce(Reply<T>) -> Msg) -> Result<T, Rejection> {
        let _permit = RequestPermit::acquire(&self.0.requests)?;
        let owner = self.wait_for_owner(None, REPLY_TIMEOUT).await?;
        owner.actor.ask(message).within(REPLY_TIMEOUT).await.map_err(|error| self.ask_rejection(error))
    }

    /// Validates messages; returns their bytes.
    fn check(&self, settings: &QueueSettings, messages: &[NewMessage]) -> Result<u64, Rejection> {
        let mut bytes = 0;
        for message in messages {
            check_key(&message.key)?;
            if settings.order == DeliveryOrder::Fifo && message.delay.is_some() {
                return Err(Rejection::DelayOnFifo);
            }
            check_ttl(settings, message)?;
            let size = message.payload.size() as u64;
            if size > settings.message_bytes_max {
                return Err(Rejection::TooLarge { max: settings.message_bytes_max });
            }
            bytes += size;
        }
        Ok(bytes)
    }

    /// Counts messages as being written, if the queue has capacity for them.
    fn reserve_capacity(
        &self,
        settings: &QueueSettings,
        messages: &[NewMessage],
        bytes: u64,
    ) -> Result<CapacityReservation, Rejection> {
        let count = messages.len() as u64;
        self.0.gauge.writing.add(count, bytes);
        let reservation = CapacityReservation { gauge: self.0.gauge.clone(), count, bytes };
        check_capacity(settings, messages, self.0.gauge.read())?;
        Ok(reservation)
    }
}

/// Queue capacity reserved for messages that are being written; released on drop.
struct CapacityReservation {
    gauge: Arc<SharedQueueTotals>,
    count: u64,
    bytes: u64,
}

impl CapacityReservation {
    /// Limits the release on drop to duplicates: the append forwarder has already released the stored messages.
    fn confirm(&mut self, sent: &[EnqueueResult], sizes: &[u64]) {
        let duplicates =
            sent.iter().zip(sizes).filter(|(sent, _)| matches!(sent, EnqueueResult::Duplicate(_)));
        (self.count, self.bytes) =
            duplicates.fold((0, 0), |(count, bytes), (_, size)| (count + 1, bytes + size));
    }
}

impl Drop for CapacityReservation {
    fn drop(&mut self) {
        self.gauge.writing.subtract(self.count, self.bytes);
    }
}

/// Permit for one request to the actor.
struct RequestPermit<'a>(&'a AtomicU64);

impl<'a> RequestPermit<'a> {
    fn acquire(requests: &'a AtomicU64) -> Result<Self, Rejection> {
        let permit = Self(requests);
        if requests.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            return Err(Rejection::Busy);
        }
        Ok(permit)
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Rejects messages that exceed the queue's capacity; `totals` already includes them.
fn check_capacity(
    settings: &QueueSettings,
    messages: &[NewMessage],
    totals: QueueTotals,
) -> Result<(), Rejection> {
    let QueueTotals { pending, in_flight, delayed, bytes, with_ttl, .. } = totals;
    if pending + in_flight + delayed > settings.messages_max {
        return Err(Rejection::QueueFull { limit: "messages", max: settings.messages_max });
    }
    if bytes > settings.bytes_max {
        return Err(Rejection::QueueFull { limit: "bytes", max: settings.bytes_max });
    }
    if with_ttl > WITH_TTL_MAX && messages.iter().any(|message| message.ttl.is_some()) {
        return Err(Rejection::QueueFull { limit: "messages with a time to live", max: WITH_TTL_MAX });
    }
    Ok(())
}

fn check_key(name: &str) -> Result<(), Rejection> {
    let fits = (1..=KEY_BYTES_MAX).contains(&name.len());
    if fits && !name.chars().any(char::is_control) { Ok(()) } else { Err(Rejection::BadKey) }
}

/// Rejects a TTL that ends before the message's delay, or that exceeds the queue's retention.
fn check_ttl(settings: &QueueSettings, message: &NewMessage) -> Result<(), Rejection> {
    let Some(ttl) = message.ttl else { return Ok(()) };
    let delay_ms = message.delay.map_or(u128::from(settings.delay_ms), |delay| delay.as_millis());
    let min = u64::try_from(delay_ms).unwrap_or(u64::MAX).saturating_add(1);
    let max = settings.retention_ms;
    let fits = (u128::from(min)..=u128::from(max)).contains(&ttl.as_millis());
    if fits { Ok(()) } else { Err(Rejection::BadTtl { min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_at_its_ttl_limit_accepts_only_messages_without_a_ttl() {
        let messages = |ttl| [NewMessage::new("x"), NewMessage { ttl, ..NewMessage::new("x") }];
        let with = messages(Some(Duration::from_secs(1)));
        let without = messages(None);
        let check = |messages, with_ttl| {
            let totals = QueueTotals { with_ttl, ..QueueTotals::default() };
            check_capacity(&QueueSettings::default(), messages, totals)
        };
        assert_eq!(check(&with, 1_000_000), Ok(()));
        assert_eq!(check(&without, 1_000_001), Ok(()));
        let error = check(&with, 1_000_001).unwrap_err();
        assert_eq!(error.to_string(), "queue is full: it may hold 1000000 messages with a time to live");
    }
}
