//! A queue, as a door calls it.

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
use crate::queue_actor::{MoveRequest, Msg, QueueGauge, ReceiptResults, ReceiveRequest, WhenEmpty};
use crate::queue_state::{
    AbandonMode, Explanation, KeyStats, LeasedMessage, MoveCursor, QueueStats, QueueTotals,
};
use crate::receipt::{DeliveryId, Receipt, ReceiptSigner};
use crate::rejection::Rejection;
use crate::settings::{DeliveryOrder, QueueSettings, TIMED_MAX};
use crate::store::{Batch, QueueDescriptor, Store, StoreError};
use crate::time::{UnixMillis, WallClock};

pub use crate::queue_actor::MoveProgress;
pub use key_rules::KeyRuleGuard;
pub(crate) use owner::{ActiveOwner, Owner, RestartBackoff};

/// Questions to a keeper that take longer are given up.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Questions to one keeper at a time; beyond, callers are told to come back.
const ASKS_MAX: u64 = 65_536;

/// A handle on one queue; cheap to clone.
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<QueueInner>);

pub(crate) struct QueueInner {
    pub(crate) id: QueueId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) seal: Arc<ReceiptSigner>,
    pub(crate) clock: WallClock,
    pub(crate) gauge: Arc<QueueGauge>,
    pub(crate) body: RwLock<Arc<QueueDescriptor>>,
    pub(crate) owner: watch::Sender<Owner>,
    pub(crate) asks: AtomicU64,
    pub(crate) notes: JobStatusTable,
    /// Whoever changes a rule by what it was.
    pub(crate) ruling: Arc<tokio::sync::Mutex<()>>,
    pub(crate) falls: Mutex<RestartBackoff>,
}

/// What a consumer wants.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions {
    /// At most so many messages.
    pub max: usize,
    /// Invisible to others for so long; as the queue says when `None`.
    pub lease: Option<Duration>,
    /// Wait so long for the first.
    pub wait: Duration,
}

impl Queue {
    /// Names it.
    pub fn id(&self) -> QueueId {
        self.0.id
    }

    /// Reads what it is, beside its messages.
    pub fn body(&self) -> Arc<QueueDescriptor> {
        self.0.body.read().clone()
    }

    /// Reads the time as the queue sees it.
    pub fn now(&self) -> UnixMillis {
        self.0.clock.now()
    }

    /// Tells what it holds, as of its keeper's last message.
    pub fn totals(&self) -> QueueTotals {
        self.0.gauge.read()
    }

    /// Sends messages, all or none; returns once they are as durable as the queue's settings say.
    ///
    /// One that was sent under the same name within [`DEDUP_WINDOW`](crate::message::DEDUP_WINDOW) is not sent
    /// again: what it was called is answered.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = drafts.len()))]
    pub async fn enqueue(&self, drafts: Vec<NewMessage>) -> Result<Vec<MessageId>, Rejection> {
        let body = self.body();
        // Without a keeper nobody takes messages in; they would pile up.
        self.wait_for_owner(None, ANSWER_MAX).await?;
        let bytes = self.check(&body.settings, &drafts)?;
        let mut expected = self.reserve_capacity(&body.settings, &drafts, bytes)?;
        let has_names = drafts.iter().any(|draft| draft.dedup.is_some());
        let sizes: Vec<u64> = if has_names {
            drafts.iter().map(|draft| draft.payload.size() as u64).collect()
        } else {
            Vec::new()
        };
        let batch = Batch {
            queue: self.0.id,
            drafts,
            sent_at: self.0.clock.now(),
            delay_ms: body.settings.delay_ms,
            durability: body.settings.durability,
        };
        let (done, answered) = oneshot::channel();
        self.0.store.append(
            batch,
            Box::new(move |result| {
                if let Ok(sent) = &result {
                    expected.keep(sent, &sizes);
                }
                // Before whoever sent it is told, and counts.
                drop(expected);
                // Whoever sent it may have gone; it is sent nevertheless.
                drop(done.send(result));
            }),
        );
        let sent = answered.await.unwrap_or(Err(StoreError::Closed)).map_err(|why| match why {
            StoreError::TooManyKeys => Rejection::TooManyKeys { max: u64::from(body.settings.keys_max) },
            why => Rejection::Store(why),
        })?;
        Ok(sent.into_iter().map(EnqueueResult::id).collect())
    }

    /// Leases messages to a consumer, in turns; waits for the first as long as it wants.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, max = want.max))]
    pub async fn receive(&self, want: ReceiveOptions) -> Result<Vec<Delivery>, Rejection> {
        if want.max == 0 {
            return Ok(Vec::new());
        }
        let line = if want.wait.is_zero() { WhenEmpty::Return } else { WhenEmpty::Wait };
        let within = if want.wait.is_zero() { ANSWER_MAX } else { want.wait };
        let ReceiveOptions { max, lease, .. } = want;
        let began = Instant::now();
        let mut fallen = None;
        loop {
            let left = within.saturating_sub(began.elapsed());
            let kept = match self.wait_for_owner(fallen, left).await {
                Err(Rejection::Interrupted) if line == WhenEmpty::Wait => return Ok(Vec::new()),
                kept => kept?,
            };
            let left = within.saturating_sub(began.elapsed());
            let question = |reply| Msg::Receive(ReceiveRequest { max, lease, line, reply });
            // The keeper limits its line itself: consumers who wait must not keep others from acknowledging.
            let parcel = match kept.keeper.ask(question).within(left).await {
                Ok(parcel) => parcel?,
                Err(AskError::TimedOut) if line == WhenEmpty::Wait => return Ok(Vec::new()),
                Err(why) => match self.refusal(why) {
                    // Nothing was delivered: whoever waits, waits on with the next keeper.
                    Rejection::Interrupted => {
                        fallen = Some(kept.epoch);
                        continue;
                    }
                    refusal => return Err(refusal),
                },
            };
            let opened = parcel.into_messages().into_iter();
            return Ok(opened.map(|(leased, payload)| self.delivery(leased, payload, kept.epoch)).collect());
        }
    }

    fn delivery(&self, leased: LeasedMessage, payload: Payload, epoch: Epoch) -> Delivery {
        let LeasedMessage { key, name, header, delivered, first_delivered_at, .. } = leased;
        let queue = self.0.id;
        let seq = header.seq;
        let claim = DeliveryId { queue, key, seq, epoch, attempt: delivered.number() };
        Delivery {
            id: header.from.map_or(MessageId { queue, key, seq }, |from| from.id),
            receipt: self.0.seal.sign(claim),
            key: name,
            attempt: delivered.attempts,
            sent_at: header.sent_at,
            first_delivered_at,
            from: header.from.map(|from| from.queue),
            payload,
        }
    }

    /// Acknowledges deliveries; each is answered once its end is written down.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = receipts.len()))]
    pub async fn ack(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.each(receipts.iter().map(|receipt| (receipt, ())), |claims, reply| {
            Msg::Ack(claims.into_iter().map(|(claim, ())| claim).collect(), reply)
        })
        .await
    }

    /// Gives deliveries back, each after its delay, or after the queue's backoff.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = which.len()))]
    pub async fn nack(&self, which: &[(Receipt, Option<Duration>)]) -> ReceiptResults {
        self.each(which.iter().map(|(receipt, delay)| (receipt, *delay)), Msg::Nack).await
    }

    /// Takes deliveries back that did not count, each to be delivered again after its delay.
    pub async fn defer(&self, which: &[(Receipt, Duration)]) -> ReceiptResults {
        let given_up =
            |&(ref receipt, delay): &(Receipt, Duration)| (receipt.clone(), AbandonMode::Defer(delay));
        self.give_up(which.iter().map(given_up).collect()).await
    }

    /// Moves deliveries to the dead-letter queue at once, however often they were tried.
    pub async fn dead_letter(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.give_up(receipts.iter().map(|receipt| (receipt.clone(), AbandonMode::DeadLetter)).collect())
            .await
    }

    async fn give_up(&self, which: Vec<(Receipt, AbandonMode)>) -> ReceiptResults {
        self.each(which.iter().map(|(receipt, how)| (receipt, *how)), Msg::Abandon).await
    }

    /// Gives deliveries back as if they had never been made: they come again at once, and do not count.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = receipts.len()))]
    pub async fn take_back(&self, receipts: &[Receipt]) -> ReceiptResults {
        self.each(receipts.iter().map(|receipt| (receipt, ())), |claims, reply| {
            Msg::Release(claims.into_iter().map(|(claim, ())| claim).collect(), reply)
        })
        .await
    }

    /// Has leases end so long from now.
    #[tracing::instrument(level = "debug", skip_all, fields(queue = self.0.id.0, count = which.len()))]
    pub async fn extend(&self, which: &[(Receipt, Duration)]) -> ReceiptResults {
        self.each(which.iter().map(|(receipt, lease)| (receipt, *lease)), Msg::Extend).await
    }

    /// Asks about each genuine receipt, and answers for the others.
    async fn each<'a, T>(
        &self,
        receipts: impl Iterator<Item = (&'a Receipt, T)>,
        ask: impl FnOnce(Vec<(DeliveryId, T)>, Reply<ReceiptResults>) -> Msg,
    ) -> ReceiptResults {
        let mut claims = Vec::new();
        let mut answers: ReceiptResults = receipts
            .map(|(receipt, more)| {
                let claim = self.0.seal.verify(receipt).filter(|claim| claim.queue == self.0.id);
                claims.push((claim.ok_or(Rejection::ForgedReceipt)?, more));
                Ok(())
            })
            .collect();
        if claims.is_empty() {
            return answers;
        }
        let told = self.ask(|reply| ask(claims, reply)).await;
        let mut told = match told {
            Ok(told) => told.into_iter(),
            Err(why) => vec![Err(why); answers.len()].into_iter(),
        };
        for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
            *answer = told.next().unwrap_or(Err(Rejection::Interrupted));
        }
        answers
    }

    /// Removes every message.
    pub async fn purge(&self) -> Result<(), Rejection> {
        self.ask(Msg::Purge).await?
    }

    /// Moves up to `max` waiting messages to another queue, or each to where it came from, and says where to go on.
    ///
    /// A move looks at each message that there was when it began, once; those that have nowhere to go are left.
    pub async fn move_some(
        &self,
        from: MoveCursor,
        to: Option<QueueId>,
        max: usize,
    ) -> Result<MoveProgress, Rejection> {
        self.ask(|reply| Msg::Move(MoveRequest::new(from, to, max, reply))).await?
    }

    /// Tells what it holds and how it has delivered.
    pub async fn stats(&self) -> Result<QueueStats, Rejection> {
        self.ask(Msg::Stats).await
    }

    /// Tells what each key holds, from the `skip`th on, at most `max`.
    pub async fn key_stats(&self, skip: usize, max: usize) -> Result<Vec<KeyStats>, Rejection> {
        self.ask(|reply| Msg::KeyStats(skip, max, reply)).await
    }

    /// Reads the next messages without touching them, key by key.
    pub async fn peek(&self, max: usize) -> Result<Vec<(MessageId, Arc<str>, Payload)>, Rejection> {
        let next = self.ask(|reply| Msg::Peek(max, reply)).await?;
        let which: Vec<(KeyId, MessageMeta)> = next.iter().map(|(key, _, header)| (*key, *header)).collect();
        let (done, answered) = oneshot::channel();
        self.0.store.read(self.0.id, which, Box::new(move |found| drop(done.send(found))));
        let mut found: std::collections::HashMap<Seq, Payload> =
            answered.await.unwrap_or(Err(StoreError::Closed))?.into_iter().collect();
        let named = next.into_iter().filter_map(|(key, name, MessageMeta { seq, from, .. })| {
            let id = from.map_or(MessageId { queue: self.0.id, key, seq }, |from| from.id);
            Some((id, name, found.remove(&seq)?))
        });
        Ok(named.collect())
    }

    /// Says why a message is where it is.
    pub async fn explain(&self, id: MessageId) -> Result<Explanation, Rejection> {
        self.ask(|reply| Msg::Explain(id, reply)).await
    }

    /// Counts how often its keeper fell and another took its place.
    pub fn actor_restarts(&self) -> u64 {
        self.0.falls.lock().replaced
    }

    async fn ask<T: Send + 'static>(&self, question: impl FnOnce(Reply<T>) -> Msg) -> Result<T, Rejection> {
        let _asking = RequestPermit::begin(&self.0.asks)?;
        let kept = self.wait_for_owner(None, ANSWER_MAX).await?;
        kept.keeper.ask(question).within(ANSWER_MAX).await.map_err(|why| self.refusal(why))
    }

    fn check(&self, settings: &QueueSettings, drafts: &[NewMessage]) -> Result<u64, Rejection> {
        let mut bytes = 0;
        for draft in drafts {
            check_key(&draft.key)?;
            if settings.order == DeliveryOrder::Fifo && draft.delay.is_some() {
                return Err(Rejection::DelayOnFifo);
            }
            check_ttl(settings, draft)?;
            let size = draft.payload.size() as u64;
            if settings.message_bytes_max < size {
                return Err(Rejection::TooLarge { max: settings.message_bytes_max });
            }
            bytes += size;
        }
        Ok(bytes)
    }

    /// Counts messages that are on their way, if there is room for them.
    fn reserve_capacity(
        &self,
        settings: &QueueSettings,
        drafts: &[NewMessage],
        bytes: u64,
    ) -> Result<CapacityReservation, Rejection> {
        let count = drafts.len() as u64;
        self.0.gauge.coming.add(count, bytes);
        let expected = CapacityReservation { gauge: self.0.gauge.clone(), count, bytes };
        check_room(settings, drafts, self.0.gauge.read())?;
        Ok(expected)
    }
}

/// Messages on their way; dropped, they will never come.
struct CapacityReservation {
    gauge: Arc<QueueGauge>,
    count: u64,
    bytes: u64,
}

impl CapacityReservation {
    /// They were written down: the keeper is told of them, and counts them itself; those sent before will not come.
    fn keep(&mut self, sent: &[EnqueueResult], sizes: &[u64]) {
        let again = sent.iter().zip(sizes).filter(|(sent, _)| matches!(sent, EnqueueResult::Duplicate(_)));
        (self.count, self.bytes) = again.fold((0, 0), |(count, bytes), (_, size)| (count + 1, bytes + size));
    }
}

impl Drop for CapacityReservation {
    fn drop(&mut self) {
        self.gauge.coming.take(self.count, self.bytes);
    }
}

/// One question under way.
struct RequestPermit<'a>(&'a AtomicU64);

impl<'a> RequestPermit<'a> {
    fn begin(asks: &'a AtomicU64) -> Result<Self, Rejection> {
        let asking = Self(asks);
        if ASKS_MAX <= asks.fetch_add(1, Ordering::Relaxed) {
            return Err(Rejection::Busy);
        }
        Ok(asking)
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuses messages with which the queue would hold more than it may; they are counted already.
fn check_room(settings: &QueueSettings, drafts: &[NewMessage], totals: QueueTotals) -> Result<(), Rejection> {
    let QueueTotals { pending, in_flight, delayed, bytes, timed, .. } = totals;
    if settings.messages_max < pending + in_flight + delayed {
        return Err(Rejection::QueueFull { limit: "messages", max: settings.messages_max });
    }
    if settings.bytes_max < bytes {
        return Err(Rejection::QueueFull { limit: "bytes", max: settings.bytes_max });
    }
    if TIMED_MAX < timed && drafts.iter().any(|draft| draft.ttl.is_some()) {
        return Err(Rejection::QueueFull { limit: "messages with a time to live", max: TIMED_MAX });
    }
    Ok(())
}

fn check_key(name: &str) -> Result<(), Rejection> {
    let fits = (1..=KEY_BYTES_MAX).contains(&name.len());
    if fits && !name.chars().any(char::is_control) { Ok(()) } else { Err(Rejection::BadKey) }
}

/// Refuses a time to live in which a message could never be delivered, or that its queue would cut short.
fn check_ttl(settings: &QueueSettings, draft: &NewMessage) -> Result<(), Rejection> {
    let Some(ttl) = draft.ttl else { return Ok(()) };
    let delay_ms = draft.delay.map_or(u128::from(settings.delay_ms), |delay| delay.as_millis());
    let min = u64::try_from(delay_ms).unwrap_or(u64::MAX).saturating_add(1);
    let max = settings.retention_ms;
    let fits = (u128::from(min)..=u128::from(max)).contains(&ttl.as_millis());
    if fits { Ok(()) } else { Err(Rejection::BadTtl { min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_with_a_million_messages_that_have_a_time_to_live_takes_only_others() {
        let drafts = |ttl| [NewMessage::new("x"), NewMessage { ttl, ..NewMessage::new("x") }];
        let with = drafts(Some(Duration::from_secs(1)));
        let without = drafts(None);
        let check = |drafts, timed| {
            check_room(&QueueSettings::default(), drafts, QueueTotals { timed, ..QueueTotals::default() })
        };
        assert_eq!(check(&with, 1_000_000), Ok(()));
        assert_eq!(check(&without, 1_000_001), Ok(()));
        let why = check(&with, 1_000_001).unwrap_err();
        assert_eq!(why.to_string(), "queue is full: it may hold 1000000 messages with a time to live");
    }
}
