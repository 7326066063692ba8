//! The actor that owns a queue: it holds the queue state and the waiting consumers, and writes to the store.
//!
//! It never blocks on the store: the result of a write comes back as a message. An appended message enters the state
//! only after the store reports it as written.

mod dispositions;
mod gauge;
mod lease_guard;
mod moves;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use core::time::Duration;

use evenkeel_actor::{Actor, ActorRef, Context, Flow, HandlerResult, Repeat, Reply, Signal, TimerId};
use parking_lot::RwLock;
use tokio::sync::mpsc::UnboundedSender;

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, MessageMeta, Payload};
use crate::namespace::Namespace;
use crate::queue_state::{
    AbandonMode, Explanation, KeyStats, LeasedMessage, PrefetchRequest, QueueState, QueueStats,
    RedeliveryRecord,
};
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::settings::QueueSettings;
use crate::store::{Fetch, MessageChange, Store, StoreError};
use crate::time::{UnixMillis, WallClock};

pub(crate) use dispositions::DeadLetterMoves;
pub(crate) use gauge::{AtomicCountAndBytes, SharedQueueTotals};
pub(crate) use lease_guard::LeaseGuard;
pub use moves::MoveProgress;
pub(crate) use moves::MoveRequest;

/// Timer for whatever is due next: leases, delays, moves, expiry and retries.
const DUE: TimerId = TimerId(0);
/// Timer for the removal of idle keys.
const SWEEP: TimerId = TimerId(1);
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// Timer that continues the removal of idle keys.
const SWEEP_MORE: TimerId = TimerId(2);
const SWEEP_MORE_DELAY: Duration = Duration::from_millis(10);
/// Maximum number of due messages handled at once, per kind, so that other messages are handled in between.
const DUE_MAX: usize = 1_024;
/// Maximum number of bytes read per prefetch.
const PREFETCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of concurrent prefetches.
const PREFETCHES_MAX: usize = 256;
/// Maximum number of waiting receives; further ones are rejected.
const WAITING_MAX: usize = 65_536;

/// Messages handled by [`QueueActor`].
pub(crate) enum Msg {
    /// Removes unused keys and starts the timer that removes idle ones.
    Start,
    /// The store has written these messages.
    Appended(Vec<AppendedMessage>),
    Receive(ReceiveRequest),
    Ack(Vec<DeliveryId>, Reply<ReceiptResults>),
    /// The store has written an acknowledgement, or failed to.
    Acked(PendingAck),
    Move(MoveRequest),
    /// The store has read the next messages of a key for a move.
    MoveFound(MoveRequest, KeyId, Result<Vec<(MessageMeta, Payload)>, StoreError>),
    /// The store has moved or deleted messages, or failed to; with the move they belong to.
    Removed(Vec<Seq>, Result<(), StoreError>, Option<MoveRequest>),
    /// The store has moved a message to the dead-letter queue, or failed to.
    DeadLettered(Seq, Result<(), StoreError>),
    /// Without a delay, the queue's backoff applies.
    Nack(Vec<(DeliveryId, Option<Duration>)>, Reply<ReceiptResults>),
    Abandon(Vec<(DeliveryId, AbandonMode)>, Reply<ReceiptResults>),
    /// Sets the end of each lease, relative to now.
    Extend(Vec<(DeliveryId, Duration)>, Reply<ReceiptResults>),
    Release(Vec<DeliveryId>, Reply<ReceiptResults>),
    /// A [`LeaseGuard`] was dropped before it reached a consumer.
    LeaseDropped(Vec<(Seq, u32)>),
    /// The store has read the next messages of a key.
    Prefetched(PrefetchRequest, Result<Vec<(MessageMeta, Payload)>, StoreError>),
    Purge(Reply<Result<(), Rejection>>),
    /// The store has purged the queue; messages that were appended after the purge are reported after this.
    Purged(Result<(), StoreError>, Reply<Result<(), Rejection>>),
    /// The store has written a rule.
    RuleChanged(KeyId, Arc<str>, KeyRule),
    GetRule(Arc<str>, Reply<KeyRule>),
    Settings(Arc<QueueSettings>),
    /// Replies after publishing totals that include every actor message sent before it.
    Settle(Reply<()>),
    Stats(Reply<QueueStats>),
    /// The number of keys to skip, and the maximum to return.
    KeyStats(usize, usize, Reply<Vec<KeyStats>>),
    Peek(usize, Reply<Vec<(KeyId, Arc<str>, MessageMeta)>>),
    Explain(MessageId, Reply<Explanation>),
    Close,
}

/// One result per receipt.
pub(crate) type ReceiptResults = Vec<Result<(), Rejection>>;

pub(crate) struct ReceiveRequest {
    pub(crate) max: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) when_empty: WhenEmpty,
    pub(crate) reply: Reply<Result<LeaseGuard, Rejection>>,
    /// Number of moves to the dead-letter queue that had begun when the actor got the request.
    moves_before: u64,
}

impl ReceiveRequest {
    pub(crate) const fn new(
        max: usize,
        lease: Option<Duration>,
        when_empty: WhenEmpty,
        reply: Reply<Result<LeaseGuard, Rejection>>,
    ) -> Self {
        Self { max, lease, when_empty, reply, moves_before: 0 }
    }
}

/// Behaviour of a receive when no message is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    Wait,
    Return,
}

/// An acknowledgement that is being written.
pub(crate) struct PendingAck {
    seqs: Vec<Seq>,
    results: ReceiptResults,
    written: Result<(), StoreError>,
    reply: Reply<ReceiptResults>,
}

pub(crate) struct QueueActor {
    pub(crate) queue: QueueId,
    pub(crate) epoch: Epoch,
    pub(crate) settings: Arc<QueueSettings>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) known: KnownQueues,
    pub(crate) clock: WallClock,
    pub(crate) state: QueueState,
    pub(crate) gauge: Arc<SharedQueueTotals>,
    /// Number and bytes of queue messages that are stored and not yet in the state.
    pub(crate) mailbox: Arc<AtomicCountAndBytes>,
    /// Consumers that wait for a message, the longest waiting first.
    pub(crate) waiting: VecDeque<ReceiveRequest>,
    /// Time for which the `DUE` timer is set.
    pub(crate) timer_due: Option<UnixMillis>,
    /// State of the random generator for backoff jitter.
    pub(crate) random: u64,
    /// Prefetches under way.
    pub(crate) prefetching: usize,
    pub(crate) dead_letter_moves: DeadLetterMoves,
    /// Messages and bytes appended to the state and not yet published in the gauge.
    pub(crate) appended: (u64, u64),
    /// Keys that had neither messages nor a rule at recovery.
    pub(crate) unused_keys: Vec<KeyId>,
    pub(crate) _drop_notifier: DropNotifier,
}

/// All open queues, with their namespaces; messages may be moved to those of their own namespace.
pub(crate) type KnownQueues = Arc<RwLock<HashMap<QueueId, Namespace>>>;

/// Reports on drop that the queue actor has stopped, for whatever reason.
pub(crate) struct DropNotifier {
    pub(crate) stopped: ActorStopped,
    pub(crate) sender: UnboundedSender<ActorStopped>,
}

/// Identifies a queue actor that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActorStopped {
    pub(crate) queue: QueueId,
    pub(crate) epoch: Epoch,
}

impl Drop for DropNotifier {
    fn drop(&mut self) {
        // The receiver is gone once all queues have shut down.
        self.sender.send(self.stopped).ok();
    }
}

impl Actor for QueueActor {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            // Sent once every queue has an actor: an expired lease may move a message to another queue.
            Msg::Start => self.start(ctx),
            Msg::Appended(appended) => self.append(appended),
            Msg::Receive(request) => self.on_receive(request, &ctx.me()),
            Msg::Ack(deliveries, reply) => self.ack(deliveries, reply, ctx.me()),
            Msg::Acked(ack) => self.on_acked(ack),
            Msg::Move(request) => {
                // It moves messages that a receive would find.
                self.end_due(&ctx.me());
                self.continue_move(request, ctx.me());
            }
            Msg::MoveFound(request, key, found) => self.on_move_found(request, key, found, ctx.me()),
            Msg::Removed(seqs, result, request) => {
                self.on_removed(seqs, &result);
                if let Some(request) = request {
                    request.finish(result);
                }
            }
            Msg::DeadLettered(seq, result) => {
                self.dead_letter_moves.finished += 1;
                self.on_removed(vec![seq], &result);
            }
            Msg::Nack(nacks, reply) => self.nack(nacks, reply, &ctx.me()),
            Msg::Abandon(deliveries, reply) => self.abandon(&deliveries, reply, &ctx.me()),
            Msg::Extend(leases, reply) => self.extend(&leases, reply),
            Msg::Release(deliveries, reply) => self.release(&deliveries, reply),
            Msg::LeaseDropped(undelivered) => self.release_undelivered(&undelivered),
            Msg::Prefetched(request, found) => self.on_prefetched(request, found),
            Msg::Purge(reply) => {
                let self_ref = ctx.me();
                let done = move |purged| self_ref.tell(Msg::Purged(purged, reply));
                self.store.purge(self.queue, Box::new(done));
            }
            Msg::Purged(purged, reply) => {
                let purged = purged.map(|()| self.state.clear(self.clock.now()));
                respond(reply, purged.map_err(Rejection::Store));
            }
            Msg::RuleChanged(key, name, rule) => self.state.set_rule(self.clock.now(), key, &name, rule),
            Msg::GetRule(name, reply) => respond(reply, self.state.rule(&name)),
            Msg::Settings(settings) => {
                self.state.set_limits(&settings);
                self.settings = settings;
            }
            Msg::Settle(reply) => {
                self.end_due(&ctx.me());
                self.publish_totals();
                respond(reply, ());
            }
            Msg::Stats(reply) => respond(reply, self.state.stats()),
            Msg::KeyStats(skip, max, reply) => respond(reply, self.state.key_stats(skip, max)),
            Msg::Peek(max, reply) => {
                self.state.set_now(self.clock.now());
                respond(reply, self.state.peek(max));
            }
            Msg::Explain(id, reply) => {
                self.state.set_now(self.clock.now());
                respond(reply, self.state.explain(id, self.queue));
            }
            Msg::Close => return Ok(Flow::Stop),
        }
        self.after_message(ctx);
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match signal {
            Signal::Timer(DUE) => {
                self.timer_due = None;
                let now = self.clock.now();
                let mut ended = self.state.expire_leases(now, DUE_MAX);
                // A waiting receive moves exhausted messages to the dead-letter queue like a new one.
                if self.waiting.iter().any(|request| request.reply.is_awaited()) {
                    ended.extend(self.state.prepare_receive(now, DUE_MAX));
                }
                self.write_dispositions(ended, &ctx.me());
            }
            Signal::Timer(SWEEP | SWEEP_MORE) => self.sweep(ctx),
            _ => {}
        }
        self.after_message(ctx);
        Ok(Flow::Continue)
    }
}

impl QueueActor {
    fn start(&mut self, ctx: &mut Context<'_, Self>) {
        let unused = core::mem::take(&mut self.unused_keys);
        self.commit_relaxed(unused.into_iter().map(MessageChange::KeyRemoved).collect());
        if !ctx.set_timer(SWEEP, SWEEP_INTERVAL, Repeat::Every(SWEEP_INTERVAL)) {
            tracing::warn!(queue = self.queue.0, "could not set a timer, idle keys will not be removed");
        }
    }

    /// Ends leases and delays that are due, and removes expired messages.
    fn end_due(&mut self, self_ref: &ActorRef<Msg>) {
        let ended = self.state.expire_leases(self.clock.now(), DUE_MAX);
        self.write_dispositions(ended, self_ref);
    }

    fn append(&mut self, appended: Vec<AppendedMessage>) {
        let now = self.clock.now();
        let (count, bytes) = gauge::count_and_bytes(&appended);
        self.appended = (self.appended.0 + count, self.appended.1 + bytes);
        for message in appended {
            let seq = message.meta.seq;
            if let Err(error) = self.state.append(now, message) {
                let queue = self.queue.0;
                tracing::error!(queue, seq = seq.0, %error, "could not schedule a stored message; it is delivered after the next start");
            }
        }
    }

    fn on_receive(&mut self, mut request: ReceiveRequest, self_ref: &ActorRef<Msg>) {
        let ended = self.state.prepare_receive(self.clock.now(), DUE_MAX);
        self.write_dispositions(ended, self_ref);
        request.moves_before = self.dead_letter_moves.started;
        // They have waited longer.
        self.serve_waiting(self_ref);
        if self.state.has_ready() {
            self.deliver(request, self_ref);
        } else if request.when_empty == WhenEmpty::Return && !self.awaits_store(&request) {
            self.answer_empty(request);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(request);
        } else {
            self.waiting.retain(|request| request.reply.is_awaited());
            if self.waiting.len() >= WAITING_MAX {
                return respond(request.reply, Err(Rejection::Busy));
            }
            self.waiting.push_back(request);
        }
    }

    /// Reports whether an empty response must wait: a read may still find a message, or a move to the dead-letter queue that
    /// began before the receive is not finished, and the client may look for the message there next.
    fn awaits_store(&self, request: &ReceiveRequest) -> bool {
        self.is_reading() || self.dead_letter_moves.finished < request.moves_before
    }

    fn is_reading(&self) -> bool {
        self.prefetching > 0 || self.state.is_prefetching()
    }

    /// Answers that the queue is empty, or that its messages cannot be read.
    fn answer_empty(&self, request: ReceiveRequest) {
        let answer = self.gauge.unreadable().map_or(Ok(LeaseGuard::empty()), |error| Err(error.into()));
        respond(request.reply, answer);
    }

    /// Leases the next messages to one consumer.
    fn deliver(&mut self, request: ReceiveRequest, self_ref: &ActorRef<Msg>) {
        let lease = request.lease.unwrap_or(self.settings.lease());
        let batch = match self.state.lease_messages(self.clock.now(), request.max, lease) {
            Ok(batch) => batch,
            Err(error) => return respond(request.reply, Err(error)),
        };
        let leased = batch.leased.iter();
        self.commit_relaxed(
            leased.map(|leased| MessageChange::Leased(self.lease_record(leased), leased.until)).collect(),
        );
        self.delete_expired(batch.expired, self_ref);
        let may_wait = request.when_empty == WhenEmpty::Wait || self.awaits_store(&request);
        if batch.leased.is_empty() && may_wait {
            return self.waiting.push_front(request);
        }
        LeaseGuard::deliver(batch.leased, request.reply, self_ref.clone(), &self.store, self.queue);
    }

    fn lease_record(&self, leased: &LeasedMessage) -> RedeliveryRecord {
        RedeliveryRecord {
            key: leased.key,
            meta: leased.meta,
            deliveries: leased.deliveries,
            first_delivered_at: Some(leased.first_delivered_at),
            not_before: None,
            epoch: self.epoch,
        }
    }

    fn ack(&mut self, deliveries: Vec<DeliveryId>, reply: Reply<ReceiptResults>, self_ref: ActorRef<Msg>) {
        let mut seqs = Vec::with_capacity(deliveries.len());
        let mut changes = Vec::with_capacity(deliveries.len());
        let mut results = ReceiptResults::with_capacity(deliveries.len());
        self.state.set_now(self.clock.now());
        for delivery in deliveries {
            results.push(match self.state.ack(delivery) {
                Ok(meta) => {
                    seqs.push(delivery.seq);
                    changes.push(MessageChange::Removed(delivery.key, meta));
                    Ok(())
                }
                // The same receipt twice in one request.
                Err(Rejection::Busy) if seqs.contains(&delivery.seq) => Ok(()),
                Err(error) => Err(error),
            });
        }
        if seqs.is_empty() {
            return respond(reply, results);
        }
        let done = move |written| self_ref.tell(Msg::Acked(PendingAck { seqs, results, written, reply }));
        self.store.commit(self.commit(changes), Box::new(done));
    }

    fn on_acked(&mut self, ack: PendingAck) {
        let PendingAck { seqs, mut results, written, reply } = ack;
        match written {
            Ok(()) => seqs.into_iter().for_each(|seq| self.state.confirm_removal(seq)),
            Err(error) => {
                seqs.into_iter().for_each(|seq| self.state.revert_removal(seq));
                for result in results.iter_mut().filter(|result| result.is_ok()) {
                    *result = Err(Rejection::Store(error.clone()));
                }
            }
        }
        respond(reply, results);
    }

    fn nack(
        &mut self,
        nacks: Vec<(DeliveryId, Option<Duration>)>,
        reply: Reply<ReceiptResults>,
        self_ref: &ActorRef<Msg>,
    ) {
        let retry = |(delivery, delay): (DeliveryId, Option<Duration>)| {
            let delay = delay.unwrap_or_else(|| self.backoff(self.state.attempts(delivery.seq)));
            (delivery, AbandonMode::Retry(delay))
        };
        let retries: Vec<(DeliveryId, AbandonMode)> = nacks.into_iter().map(retry).collect();
        self.abandon(&retries, reply, self_ref);
    }

    fn abandon(
        &mut self,
        deliveries: &[(DeliveryId, AbandonMode)],
        reply: Reply<ReceiptResults>,
        self_ref: &ActorRef<Msg>,
    ) {
        let now = self.clock.now();
        let mut results = ReceiptResults::with_capacity(deliveries.len());
        let mut ended = Vec::new();
        for &(delivery, mode) in deliveries {
            let disposition = self.state.abandon(now, delivery, mode);
            results.push(disposition.map(|disposition| ended.push(disposition)));
        }
        self.write_dispositions(ended, self_ref);
        respond(reply, results);
    }

    fn extend(&mut self, leases: &[(DeliveryId, Duration)], reply: Reply<ReceiptResults>) {
        let now = self.clock.now();
        let mut results = ReceiptResults::with_capacity(leases.len());
        let mut changes = Vec::new();
        for &(delivery, lease) in leases {
            let extended = self.state.extend(now, delivery, lease);
            results.push(extended.map(|(record, until)| changes.push(MessageChange::Leased(record, until))));
        }
        self.commit_relaxed(changes);
        respond(reply, results);
    }

    fn release(&mut self, deliveries: &[DeliveryId], reply: Reply<ReceiptResults>) {
        let mut results = ReceiptResults::with_capacity(deliveries.len());
        let mut changes = Vec::new();
        for &delivery in deliveries {
            let released = self.state.release(delivery);
            results.push(released.map(|record| changes.extend(record.map(MessageChange::Requeued))));
        }
        self.commit_relaxed(changes);
        respond(reply, results);
    }

    fn release_undelivered(&mut self, undelivered: &[(Seq, u32)]) {
        let released =
            undelivered.iter().filter_map(|&(seq, number)| self.state.release_undelivered(seq, number));
        let changes = released.map(MessageChange::Requeued).collect();
        self.commit_relaxed(changes);
    }

    /// Replies to the receives that waited only for the store.
    fn answer_empty_receives(&mut self) {
        // They may be anywhere in `waiting`, also behind receives that wait for messages.
        let (returning, waiting): (VecDeque<_>, _) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request| request.when_empty == WhenEmpty::Return && !self.awaits_store(request));
        self.waiting = waiting;
        for request in returning {
            self.answer_empty(request);
        }
    }

    fn on_prefetched(
        &mut self,
        request: PrefetchRequest,
        found: Result<Vec<(MessageMeta, Payload)>, StoreError>,
    ) {
        self.prefetching = self.prefetching.saturating_sub(1);
        let queue = self.queue.0;
        let key = request.key.0;
        match found {
            Ok(found) => {
                self.gauge.set_read_error(None);
                let missing = self.state.apply_prefetch(request, found);
                if missing > 0 {
                    tracing::error!(queue, key, missing, "messages are missing from the store");
                }
            }
            Err(error) => {
                tracing::warn!(queue, key, %error, "could not read messages, retrying in 1 s");
                self.gauge.set_read_error(Some(error));
                self.state.fail_prefetch(request);
            }
        }
    }

    fn on_removed(&mut self, seqs: Vec<Seq>, result: &Result<(), StoreError>) {
        let count = seqs.len();
        self.state.set_now(self.clock.now());
        match result {
            Ok(()) => seqs.into_iter().for_each(|seq| self.state.confirm_removal(seq)),
            Err(error) => {
                let queue = self.queue.0;
                tracing::warn!(queue, count, %error, "could not delete or move messages, retrying in 1 s");
                seqs.into_iter().for_each(|seq| self.state.revert_removal(seq));
            }
        }
    }

    /// Removes idle keys, and waiting receives that were cancelled.
    fn sweep(&mut self, ctx: &mut Context<'_, Self>) {
        let now = self.clock.now();
        let forgotten = self.state.forget_idle(now);
        // Continues after a short delay, so that other messages are handled in between. If the timer cannot be set, the
        // next sweep continues.
        if self.state.has_idle(now) {
            ctx.set_timer(SWEEP_MORE, SWEEP_MORE_DELAY, Repeat::Once);
        }
        self.commit_relaxed(forgotten.into_iter().map(MessageChange::KeyRemoved).collect());
        self.waiting.retain(|request| request.reply.is_awaited());
    }

    /// Returns the delay before a nacked message is redelivered, if the consumer gave none.
    fn backoff(&mut self, attempt: u32) -> Duration {
        let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
        let full = self.settings.backoff_ms_min.saturating_mul(doubled).min(self.settings.backoff_ms_max);
        // Jitter of up to a fifth, so that messages that failed together are not redelivered together.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let jitter = (full / 5).saturating_mul(self.random >> 33) >> 31;
        Duration::from_millis(full - jitter)
    }

    /// Serves waiting consumers, requests prefetches, publishes the totals and sets the timer.
    fn after_message(&mut self, ctx: &mut Context<'_, Self>) {
        self.serve_waiting(&ctx.me());
        self.request_prefetches(ctx);
        if !self.state.has_ready() && !self.is_reading() {
            self.answer_empty_receives();
        }
        self.publish_totals();
        // The timer is only moved to an earlier time. If its lease was acknowledged, it fires early and is set again.
        let earlier = self.state.next_due().filter(|&due| self.timer_due.is_none_or(|timer| due < timer));
        if let Some(due) = earlier {
            let after = due.since(self.clock.now()).max(Duration::from_millis(1));
            if ctx.set_timer(DUE, after, Repeat::Once) {
                self.timer_due = Some(due);
            }
        }
    }

    fn publish_totals(&mut self) {
        self.gauge.set_actor_totals(self.state.totals());
        let (count, bytes) = core::mem::take(&mut self.appended);
        if count > 0 {
            self.mailbox.subtract(count, bytes);
        }
    }

    fn request_prefetches(&mut self, ctx: &Context<'_, Self>) {
        while self.prefetching < PREFETCHES_MAX {
            let Some(request) = self.state.poll_prefetch() else { break };
            self.prefetching += 1;
            let self_ref = ctx.me();
            let fetch = Fetch {
                queue: self.queue,
                key: request.key,
                after: request.after,
                messages_max: request.count,
                bytes_max: PREFETCH_BYTES_MAX,
            };
            let done = move |found| self_ref.tell(Msg::Prefetched(request, found));
            self.store.read_next(fetch, Box::new(done));
        }
    }

    fn serve_waiting(&mut self, self_ref: &ActorRef<Msg>) {
        while self.state.has_ready() {
            let Some(request) = self.waiting.pop_front() else { break };
            if request.reply.is_awaited() {
                let before = self.waiting.len();
                self.deliver(request, self_ref);
                // The request was put back, because every ready message had expired.
                if self.waiting.len() > before {
                    break;
                }
            }
        }
    }
}

/// Sends a reply; the caller may have been cancelled.
fn respond<T>(reply: Reply<T>, value: T) {
    drop(reply.send(value));
}
