//! The actor that owns a queue: its book, its consumers in line, and what it has the store write.
//!
//! It never waits for the store. What is to be written is handed over and comes back as a message; messages enter
//! the book only when the store tells that they are written.

mod gauge;
mod lease_guard;
mod moves;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use core::time::Duration;

use evenkeel_actor::{Actor, ActorRef, Context, Flow, HandlerResult, Repeat, Reply, Signal, TimerId};
use parking_lot::RwLock;
use tokio::sync::mpsc::UnboundedSender;

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, MessageMeta, Payload};
use crate::queue_state::{
    AbandonMode, Disposition, Explanation, KeyStats, LeasedMessage, PrefetchRequest, QueueState, QueueStats,
    RedeliveryRecord,
};
use crate::receipt::DeliveryId;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::settings::QueueSettings;
use crate::store::{Commit, Fetch, MessageChange, Store, StoreError};
use crate::time::{UnixMillis, WallClock};

pub(crate) use gauge::{AtomicTotals, QueueGauge};
pub(crate) use lease_guard::LeaseGuard;
pub use moves::MoveProgress;
pub(crate) use moves::MoveRequest;

/// Something comes back: a lease ends, a delay is over.
const DUE: TimerId = TimerId(0);
/// Keys that hold nothing are forgotten.
const SWEEP: TimerId = TimerId(1);
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// More of them are.
const SWEEP_ON: TimerId = TimerId(2);
const SWEEP_ON_AFTER: Duration = Duration::from_millis(10);
/// At most so many come back in one go; then others are heard.
const TICK_MAX: usize = 1_024;
/// No more of a key is read at once.
const REFILL_BYTES_MAX: usize = 1 << 20;
/// The store is asked for so many keys at a time.
const REFILLS_MAX: usize = 256;
/// Consumers in line beyond this are refused.
const WAITING_MAX: usize = 65_536;

/// What a keeper is told.
pub(crate) enum Msg {
    /// Every queue has its keeper: time begins.
    Start,
    /// By the store: these were written down.
    Appended(Vec<AppendedMessage>),
    /// Lease up to so many messages; wait in line when there is none.
    Receive(ReceiveRequest),
    /// Acknowledge these, or say of each why not.
    Ack(Vec<DeliveryId>, Reply<ReceiptResults>),
    /// By the store: the acknowledgement is written down, or is not.
    Acked(PendingAck),
    /// Go on with a move.
    Move(MoveRequest),
    /// By the store: what follows in the key that a move has come to.
    MoveFound(MoveRequest, KeyId, Result<Vec<(MessageMeta, Payload)>, StoreError>),
    /// By the store: messages were moved, or removed because they were over, or were not, and whose move that was.
    Removed(Vec<Seq>, Result<(), StoreError>, Option<MoveRequest>),
    /// Give these back; without a delay after the queue's backoff.
    Nack(Vec<(DeliveryId, Option<Duration>)>, Reply<ReceiptResults>),
    /// These were not done, and that is no failure of a consumer's.
    Abandon(Vec<(DeliveryId, AbandonMode)>, Reply<ReceiptResults>),
    /// Have these leases end so long from now.
    Extend(Vec<(DeliveryId, Duration)>, Reply<ReceiptResults>),
    /// Take these back, uncounted.
    Release(Vec<DeliveryId>, Reply<ReceiptResults>),
    /// By a parcel that reached nobody.
    LeaseDropped(Vec<(Seq, u32)>),
    /// By the store: what follows in a key.
    Prefetched(PrefetchRequest, Result<Vec<(MessageMeta, Payload)>, StoreError>),
    /// Remove everything.
    Purge(Reply<Result<(), Rejection>>),
    /// By the store: everything before this is gone.
    Purged(Result<Seq, StoreError>, Reply<Result<(), Rejection>>),
    /// By the store: what is set for a key is written down.
    RuleChanged(KeyId, Arc<str>, KeyRule),
    /// Tell what is set for a key.
    GetRule(Arc<str>, Reply<KeyRule>),
    /// Keep to these settings.
    Settings(Arc<QueueSettings>),
    /// Tell what the queue holds and how it has delivered.
    Stats(Reply<QueueStats>),
    /// Tell what each key holds, from so many on, at most so many.
    KeyStats(usize, usize, Reply<Vec<KeyStats>>),
    /// Name the next messages.
    Peek(usize, Reply<Vec<(KeyId, Arc<str>, MessageMeta)>>),
    /// Say why a message is where it is.
    Explain(MessageId, Reply<Explanation>),
    /// End.
    Close,
}

/// One answer for each that was asked about.
pub(crate) type ReceiptResults = Vec<Result<(), Rejection>>;

pub(crate) struct ReceiveRequest {
    pub(crate) max: usize,
    pub(crate) lease: Option<Duration>,
    pub(crate) line: WhenEmpty,
    pub(crate) reply: Reply<Result<LeaseGuard, Rejection>>,
}

/// Whether a consumer waits when there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    Wait,
    Return,
}

/// An acknowledgement that is being written down.
pub(crate) struct PendingAck {
    seqs: Vec<Seq>,
    answers: ReceiptResults,
    result: Result<(), StoreError>,
    reply: Reply<ReceiptResults>,
}

/// What a keeper is made of.
pub(crate) struct QueueActor {
    pub(crate) queue: QueueId,
    pub(crate) epoch: Epoch,
    pub(crate) settings: Arc<QueueSettings>,
    pub(crate) store: Arc<dyn Store>,
    /// Queues that messages may be moved to.
    pub(crate) known: KnownQueues,
    pub(crate) clock: WallClock,
    pub(crate) book: QueueState,
    pub(crate) gauge: Arc<QueueGauge>,
    /// Messages in its mailbox.
    pub(crate) mail: Arc<AtomicTotals>,
    /// Consumers for whom there was nothing, the longest waiting first.
    pub(crate) waiting: VecDeque<ReceiveRequest>,
    /// When the timer fires that is set.
    pub(crate) timer: Option<UnixMillis>,
    /// Feeds the jitter of backoffs; any start will do.
    pub(crate) random: u64,
    /// How many keys the store is being asked for.
    pub(crate) refilling: usize,
    /// Messages and bytes that were taken in and not shown yet.
    pub(crate) arrived: (u64, u64),
    /// Keys that had neither messages nor a rule when the queue was read.
    pub(crate) unused: Vec<KeyId>,
    /// Says so when the keeper is no more, however that came.
    pub(crate) _vigil: DropNotifier,
}

/// Which queues there are.
pub(crate) type KnownQueues = Arc<RwLock<HashSet<QueueId>>>;

/// Tells, when it is dropped, that a keeper is no more.
pub(crate) struct DropNotifier {
    pub(crate) fallen: ActorStopped,
    pub(crate) tell: UnboundedSender<ActorStopped>,
}

/// A keeper that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActorStopped {
    pub(crate) queue: QueueId,
    pub(crate) epoch: Epoch,
}

impl Drop for DropNotifier {
    fn drop(&mut self) {
        // When all queues end, nobody wants to know.
        self.tell.send(self.fallen).ok();
    }
}

impl Actor for QueueActor {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            // Not before: a lease that ends may move a message to a queue whose keeper was not told yet.
            Msg::Start => self.begin(ctx),
            Msg::Appended(appended) => self.append(appended),
            Msg::Receive(receive) => self.enqueue_receive(receive, &ctx.me()),
            Msg::Ack(claims, reply) => self.ack(claims, reply, ctx.me()),
            Msg::Acked(acking) => self.acked(acking),
            Msg::Move(job) => self.move_on(job, ctx.me()),
            Msg::MoveFound(job, key, found) => self.move_found(job, key, found, ctx.me()),
            Msg::Removed(seqs, result, job) => {
                self.on_removed(seqs, &result);
                if let Some(job) = job {
                    job.end(result);
                }
            }
            Msg::Nack(which, reply) => self.nack(&which, reply, &ctx.me()),
            Msg::Abandon(which, reply) => self.give_up(&which, reply, &ctx.me()),
            Msg::Extend(which, reply) => self.extend(&which, reply),
            Msg::Release(claims, reply) => self.take_back(&claims, reply),
            Msg::LeaseDropped(which) => self.give_back(&which),
            Msg::Prefetched(ask, found) => self.on_prefetched(ask, found),
            Msg::Purge(reply) => {
                let me = ctx.me();
                self.store.purge(self.queue, Box::new(move |below| me.tell(Msg::Purged(below, reply))));
            }
            Msg::Purged(below, reply) => {
                let purged = below.map(|below| self.book.clear(self.clock.now(), below));
                answer(reply, purged.map_err(Rejection::Store));
            }
            Msg::RuleChanged(key, name, rule) => self.book.set_rule(self.clock.now(), key, &name, rule),
            Msg::GetRule(name, reply) => answer(reply, self.book.rule(&name)),
            Msg::Settings(settings) => {
                self.book.set_limits(&settings);
                self.settings = settings;
            }
            Msg::Stats(reply) => answer(reply, self.book.stats()),
            Msg::KeyStats(skip, max, reply) => answer(reply, self.book.key_stats(skip, max)),
            Msg::Peek(max, reply) => {
                self.book.set_now(self.clock.now());
                answer(reply, self.book.peek(max));
            }
            Msg::Explain(id, reply) => {
                self.book.set_now(self.clock.now());
                answer(reply, self.book.explain(id, self.queue));
            }
            Msg::Close => return Ok(Flow::Stop),
        }
        self.after_message(ctx);
        Ok(Flow::Continue)
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match signal {
            Signal::Timer(DUE) => {
                self.timer = None;
                self.tick(&ctx.me());
            }
            Signal::Timer(SWEEP | SWEEP_ON) => self.sweep(ctx),
            _ => {}
        }
        self.after_message(ctx);
        Ok(Flow::Continue)
    }
}

impl QueueActor {
    fn begin(&mut self, ctx: &mut Context<'_, Self>) {
        let unused = core::mem::take(&mut self.unused);
        self.commit_relaxed(unused.into_iter().map(MessageChange::KeyRemoved).collect());
        if !ctx.set_timer(SWEEP, SWEEP_EVERY, Repeat::Every(SWEEP_EVERY)) {
            tracing::warn!(queue = self.queue.0, "no timer is free: keys without messages are kept");
        }
    }

    fn append(&mut self, appended: Vec<AppendedMessage>) {
        let now = self.clock.now();
        let (count, bytes) = gauge::weigh(&appended);
        self.arrived = (self.arrived.0 + count, self.arrived.1 + bytes);
        for message in appended {
            let seq = message.header.seq;
            if let Err(why) = self.book.append(now, message) {
                // It stays in the store and is found at the next start.
                tracing::error!(queue = self.queue.0, seq = seq.0, %why, "message could not be taken in");
            }
        }
    }

    fn enqueue_receive(&mut self, receive: ReceiveRequest, me: &ActorRef<Msg>) {
        if self.book.has_ready() {
            self.deliver(receive, me);
        } else if receive.line == WhenEmpty::Return && !self.book.is_prefetching() {
            answer(receive.reply, Ok(LeaseGuard::empty()));
        } else if WAITING_MAX <= self.waiting.len() {
            self.waiting.retain(|receive| receive.reply.is_awaited());
            if WAITING_MAX <= self.waiting.len() {
                return answer(receive.reply, Err(Rejection::Busy));
            }
            self.waiting.push_back(receive);
        } else {
            self.waiting.push_back(receive);
        }
    }

    /// Leases to one consumer what is its turn now.
    fn deliver(&mut self, receive: ReceiveRequest, me: &ActorRef<Msg>) {
        let lease = receive.lease.unwrap_or(self.settings.lease());
        let taken = match self.book.lease_messages(self.clock.now(), receive.max, lease) {
            Ok(taken) => taken,
            Err(why) => return answer(receive.reply, Err(why)),
        };
        let leased = taken.leased.iter();
        self.commit_relaxed(
            leased.map(|leased| MessageChange::Leased(self.written(leased), leased.until)).collect(),
        );
        self.remove(taken.expired, me);
        if taken.leased.is_empty() && (receive.line == WhenEmpty::Wait || self.book.is_prefetching()) {
            return self.waiting.push_front(receive);
        }
        LeaseGuard::deliver(taken.leased, receive.reply, me.clone(), &self.store, self.queue);
    }

    fn written(&self, leased: &LeasedMessage) -> RedeliveryRecord {
        RedeliveryRecord {
            key: leased.key,
            header: leased.header,
            delivered: leased.delivered,
            first_delivered_at: Some(leased.first_delivered_at),
            not_before: None,
            epoch: self.epoch,
        }
    }

    fn ack(&mut self, claims: Vec<DeliveryId>, reply: Reply<ReceiptResults>, me: ActorRef<Msg>) {
        let mut seqs = Vec::with_capacity(claims.len());
        let mut changes = Vec::with_capacity(claims.len());
        let mut answers = ReceiptResults::with_capacity(claims.len());
        self.book.set_now(self.clock.now());
        for claim in claims {
            answers.push(match self.book.ack(claim) {
                Ok(header) => {
                    seqs.push(claim.seq);
                    changes.push(MessageChange::Removed(claim.key, header));
                    Ok(())
                }
                // Named twice, it is answered twice.
                Err(Rejection::Busy) if seqs.contains(&claim.seq) => Ok(()),
                Err(why) => Err(why),
            });
        }
        if seqs.is_empty() {
            return answer(reply, answers);
        }
        let done = move |result| me.tell(Msg::Acked(PendingAck { seqs, answers, result, reply }));
        self.store.commit(self.commit(changes), Box::new(done));
    }

    fn acked(&mut self, acking: PendingAck) {
        let PendingAck { seqs, mut answers, result, reply } = acking;
        match result {
            Ok(()) => seqs.into_iter().for_each(|seq| self.book.confirm_removal(seq)),
            Err(why) => {
                seqs.into_iter().for_each(|seq| self.book.revert_removal(seq));
                for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                    *answer = Err(Rejection::Store(why.clone()));
                }
            }
        }
        answer(reply, answers);
    }

    fn nack(
        &mut self,
        which: &[(DeliveryId, Option<Duration>)],
        reply: Reply<ReceiptResults>,
        me: &ActorRef<Msg>,
    ) {
        let now = self.clock.now();
        let mut answers = ReceiptResults::with_capacity(which.len());
        let mut ended = Vec::new();
        for &(claim, delay) in which {
            let delay = delay.unwrap_or_else(|| self.backoff(self.book.attempts(claim.seq)));
            answers.push(self.book.nack(now, claim, delay).map(|how| ended.push(how)));
        }
        self.write_dispositions(ended, me);
        answer(reply, answers);
    }

    fn give_up(
        &mut self,
        which: &[(DeliveryId, AbandonMode)],
        reply: Reply<ReceiptResults>,
        me: &ActorRef<Msg>,
    ) {
        let now = self.clock.now();
        let mut answers = ReceiptResults::with_capacity(which.len());
        let mut ended = Vec::new();
        for &(claim, how) in which {
            answers.push(self.book.abandon(now, claim, how).map(|how| ended.push(how)));
        }
        self.write_dispositions(ended, me);
        answer(reply, answers);
    }

    fn extend(&mut self, which: &[(DeliveryId, Duration)], reply: Reply<ReceiptResults>) {
        let now = self.clock.now();
        let mut answers = ReceiptResults::with_capacity(which.len());
        let mut changes = Vec::new();
        for &(claim, lease) in which {
            let extended = self.book.extend(now, claim, lease);
            answers.push(extended.map(|(state, until)| changes.push(MessageChange::Leased(state, until))));
        }
        self.commit_relaxed(changes);
        answer(reply, answers);
    }

    fn take_back(&mut self, claims: &[DeliveryId], reply: Reply<ReceiptResults>) {
        let mut answers = ReceiptResults::with_capacity(claims.len());
        let mut changes = Vec::new();
        for &claim in claims {
            let taken = self.book.release(claim);
            answers.push(taken.map(|returned| changes.extend(returned.map(MessageChange::Requeued))));
        }
        self.commit_relaxed(changes);
        answer(reply, answers);
    }

    fn give_back(&mut self, which: &[(Seq, u32)]) {
        let returned = which.iter().filter_map(|&(seq, number)| self.book.release_undelivered(seq, number));
        let changes = returned.map(MessageChange::Requeued).collect();
        self.commit_relaxed(changes);
    }

    /// Answers those who wait only while a turn waits for the store.
    fn answer_empty_receives(&mut self) {
        // Wherever they are in line: one who waits may stand before them.
        let (leaving, staying) =
            self.waiting.drain(..).partition(|receive| receive.line == WhenEmpty::Return);
        self.waiting = staying;
        let leaving: VecDeque<ReceiveRequest> = leaving;
        for receive in leaving {
            answer(receive.reply, Ok(LeaseGuard::empty()));
        }
    }

    fn on_prefetched(
        &mut self,
        ask: PrefetchRequest,
        found: Result<Vec<(MessageMeta, Payload)>, StoreError>,
    ) {
        self.refilling = self.refilling.saturating_sub(1);
        match found {
            Ok(found) => {
                let missing = self.book.apply_prefetch(ask, found);
                if missing > 0 {
                    tracing::error!(
                        queue = self.queue.0,
                        key = ask.key.0,
                        missing,
                        "messages are not in the store"
                    );
                }
            }
            Err(why) => {
                let queue = self.queue.0;
                let key = ask.key.0;
                tracing::warn!(queue, key, %why, "messages could not be read, trying again");
                self.book.fail_prefetch(ask);
            }
        }
    }

    fn on_removed(&mut self, seqs: Vec<Seq>, result: &Result<(), StoreError>) {
        let count = seqs.len();
        self.book.set_now(self.clock.now());
        match result {
            Ok(()) => seqs.into_iter().for_each(|seq| self.book.confirm_removal(seq)),
            Err(why) => {
                tracing::warn!(queue = self.queue.0, count, %why, "messages could not leave, trying again");
                seqs.into_iter().for_each(|seq| self.book.revert_removal(seq));
            }
        }
    }

    /// Brings back what is due.
    fn tick(&mut self, me: &ActorRef<Msg>) {
        let ended = self.book.expire_leases(self.clock.now(), TICK_MAX);
        self.write_dispositions(ended, me);
    }

    fn sweep(&mut self, ctx: &mut Context<'_, Self>) {
        let now = self.clock.now();
        let forgotten = self.book.forget_idle(now);
        // Others are heard in between; without a timer the next round goes on.
        if self.book.has_idle(now) {
            ctx.set_timer(SWEEP_ON, SWEEP_ON_AFTER, Repeat::Once);
        }
        self.commit_relaxed(forgotten.into_iter().map(MessageChange::KeyRemoved).collect());
        self.waiting.retain(|receive| receive.reply.is_awaited());
    }

    fn write_dispositions(&mut self, ended: Vec<Disposition>, me: &ActorRef<Msg>) {
        let mut changes = Vec::with_capacity(ended.len());
        let mut over = Vec::new();
        for how in ended {
            match (how, self.settings.redrive) {
                (Disposition::Requeued(returned), _) => changes.push(MessageChange::Requeued(returned)),
                (Disposition::Expired { key, header }, _) => over.push((key, header)),
                (Disposition::DeadLetter { key, header, .. }, Some(redrive)) => {
                    let me = me.clone();
                    let seq = header.seq;
                    let commit = self.commit(vec![MessageChange::Moved(key, header, redrive.to)]);
                    self.store.commit(
                        commit,
                        Box::new(move |result| me.tell(Msg::Removed(vec![seq], result, None))),
                    );
                }
                // The settings changed meanwhile; it comes back in a second.
                (Disposition::DeadLetter { header, .. }, None) => self.book.revert_removal(header.seq),
            }
        }
        self.commit_relaxed(changes);
        self.remove(over, me);
    }

    /// Removes what is over; lost in a crash, that is found out once more.
    fn remove(&self, over: Vec<(KeyId, MessageMeta)>, me: &ActorRef<Msg>) {
        if over.is_empty() {
            return;
        }
        let seqs = over.iter().map(|(_, header)| header.seq).collect();
        let changes = over.into_iter().map(|(key, header)| MessageChange::Removed(key, header)).collect();
        let commit = self.commit_later(changes);
        let me = me.clone();
        self.store.commit(commit, Box::new(move |result| me.tell(Msg::Removed(seqs, result, None))));
    }

    /// Has something written down that nobody waits for; lost in a crash, a message is delivered once more.
    fn commit_relaxed(&self, changes: Vec<MessageChange>) {
        if changes.is_empty() {
            return;
        }
        let queue = self.queue;
        self.store.commit(
            self.commit_later(changes),
            Box::new(move |result| {
                if let Err(why) = result {
                    tracing::warn!(queue = queue.0, %why, "a lease was not written down");
                }
            }),
        );
    }

    /// Makes a commit that may be lost in a crash.
    fn commit_later(&self, changes: Vec<MessageChange>) -> Commit {
        Commit { durability: crate::settings::Durability::Os, ..self.commit(changes) }
    }

    fn commit(&self, changes: Vec<MessageChange>) -> Commit {
        Commit { queue: self.queue, epoch: self.epoch, changes, durability: self.settings.durability }
    }

    /// How long a message waits that was given back without saying how long.
    fn backoff(&mut self, attempt: u32) -> Duration {
        let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
        let whole = self.settings.backoff_ms_min.saturating_mul(doubled).min(self.settings.backoff_ms_max);
        // A fifth less at random, so that what failed together does not come back together.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let cut = (whole / 5).saturating_mul(self.random >> 33) >> 31;
        Duration::from_millis(whole - cut)
    }

    /// Serves who waits, asks for what is missing, and sets the timer.
    fn after_message(&mut self, ctx: &mut Context<'_, Self>) {
        while self.book.has_ready() {
            let Some(receive) = self.waiting.pop_front() else { break };
            if receive.reply.is_awaited() {
                let before = self.waiting.len();
                self.deliver(receive, &ctx.me());
                // Put back: there was nothing after all.
                if before < self.waiting.len() {
                    break;
                }
            }
        }
        if !self.book.has_ready() && !self.book.is_prefetching() {
            self.answer_empty_receives();
        }
        while self.refilling < REFILLS_MAX {
            let Some(ask) = self.book.poll_prefetch() else { break };
            self.refilling += 1;
            let me = ctx.me();
            let fetch = Fetch {
                queue: self.queue,
                key: ask.key,
                after: ask.after,
                count_max: ask.count,
                bytes_max: REFILL_BYTES_MAX,
            };
            self.store.fetch(fetch, Box::new(move |found| me.tell(Msg::Prefetched(ask, found))));
        }
        self.gauge.show(self.book.totals());
        let (count, bytes) = core::mem::take(&mut self.arrived);
        if count > 0 {
            self.mail.take(count, bytes);
        }
        // One that fires too early is set again; most leases end before their time.
        let earlier = self.book.next_due().filter(|&due| self.timer.is_none_or(|timer| due < timer));
        if let Some(due) = earlier {
            let after = due.since(self.clock.now()).max(Duration::from_millis(1));
            if ctx.set_timer(DUE, after, Repeat::Once) {
                self.timer = Some(due);
            }
        }
    }
}

/// Answers; nobody may be waiting any more.
fn answer<T>(reply: Reply<T>, value: T) {
    drop(reply.send(value));
}
