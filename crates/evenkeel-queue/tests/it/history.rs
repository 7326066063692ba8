//! Random histories of the queue state, compared with a simple model.

mod expiry;
mod late;
mod rules;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue_state::{AbandonMode, Disposition, PrefetchRequest, QueueState};
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::rule::KeyRule;
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, Epoch, KeyId, QueueId, QueueSettings, Seq, UnixMillis};
use proptest::prelude::*;

const LEASE: Duration = Duration::from_millis(100);
const ATTEMPTS_MAX: u32 = 4;
/// Maximum number of expired messages whose delete is pending.
const EXPIRING_MAX: usize = 1_024;
/// The minimum retention.
const RETENTION_MS: u64 = 60_000;
/// Names that may get limits: two keys and a tenant.
const LIMITED: [&str; 3] = ["tenant0/0", "tenant1/1", "tenant0"];

#[derive(Clone, Debug)]
enum Step {
    Append {
        key: u32,
        delay: u64,
        ttl: Option<u64>,
        count: u64,
    },
    /// Appends the stored messages to the state, as the store's listener does.
    AppendStored,
    Receive(usize),
    Ack(usize),
    FailAck(usize),
    Nack {
        which: usize,
        delay: u64,
    },
    Extend {
        which: usize,
        lease: u64,
    },
    Release(usize),
    AckStale(usize),
    /// Uses the last receipt of a message that is not in flight.
    AckLate(usize),
    ExtendLate(usize),
    /// Uses a receipt of a message that was delivered again later.
    UseOutdated(usize),
    Read,
    ApplyReads,
    AdvanceTime(u64),
    Purge,
    Move(usize),
    Rule {
        name: usize,
        max: u32,
        rate: u32,
        burst: u32,
    },
    /// The store confirms or rejects the deletes of expired messages.
    FinishDeletes {
        is_rejected: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (
            0..4_u32,
            prop_oneof![4 => Just(0), 1 => 1..300_u64],
            prop_oneof![2 => Just(None), 1 => (1..600_u64).prop_map(Some)],
            prop_oneof![4 => Just(1), 1 => 100..400_u64],
        ).prop_map(|(key, delay, ttl, count)| Step::Append { key, delay, ttl, count }),
        6 => Just(Step::AppendStored),
        5 => prop_oneof![3 => 1..6_usize, 2 => 100..300_usize].prop_map(Step::Receive),
        4 => any::<usize>().prop_map(Step::Ack),
        1 => any::<usize>().prop_map(Step::FailAck),
        2 => (any::<usize>(), 0..200_u64).prop_map(|(which, delay)| Step::Nack { which, delay }),
        1 => (any::<usize>(), 0..1_000_u64).prop_map(|(which, lease)| Step::Extend { which, lease }),
        1 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::AckStale),
        1 => any::<usize>().prop_map(Step::AckLate),
        2 => any::<usize>().prop_map(Step::ExtendLate),
        1 => any::<usize>().prop_map(Step::UseOutdated),
        2 => Just(Step::Read),
        4 => Just(Step::ApplyReads),
        2 => (1..150_u64).prop_map(Step::AdvanceTime),
        1 => (1..RETENTION_MS).prop_map(Step::AdvanceTime),
        1 => Just(Step::Purge),
        1 => any::<usize>().prop_map(Step::Move),
        1 => (0..LIMITED.len(), 0..4_u32, 0..3_u32, 1..20_u32)
            .prop_map(|(name, max, rate, burst)| Step::Rule { name, max, rate: 200 * rate, burst }),
        3 => any::<bool>().prop_map(|is_rejected| Step::FinishDeletes { is_rejected }),
    ]
}

/// The tested state, with the store's contents and the deliveries that are expected.
struct Model {
    order: DeliveryOrder,
    state: QueueState,
    now: u64,
    seq: u64,
    /// Messages that are stored and not removed.
    stored: BTreeMap<(u32, u64), MessageMeta>,
    /// Stored messages that were not appended to the state yet.
    unappended: VecDeque<AppendedMessage>,
    /// Reads of the store whose results were not applied yet.
    found: Vec<(PrefetchRequest, Vec<(MessageMeta, Payload)>)>,
    in_flight: Vec<DeliveryId>,
    /// End of the lease and attempts of the messages in flight.
    leases: BTreeMap<Seq, (u64, u32)>,
    /// Last deliveries of messages that are not in flight.
    ended: BTreeMap<Seq, DeliveryId>,
    /// Exhausted messages, with the time at which they move to the dead-letter queue.
    exhausted: BTreeMap<Seq, u64>,
    /// Deliveries of messages that were delivered again later.
    outdated: Vec<DeliveryId>,
    /// Moves to the dead-letter queue; every third fails.
    moves: u32,
    /// Receipts that are no longer valid.
    stale: Vec<DeliveryId>,
    dead: BTreeSet<u64>,
    /// Expired messages that are still stored.
    expiring: BTreeSet<Seq>,
    /// Expired messages whose delete the store has neither confirmed nor rejected.
    deleting: Vec<(KeyId, Seq)>,
    /// Messages removed by expiry.
    expired: u64,
    /// Rules by name, with the times of deliveries under them.
    rules: BTreeMap<&'static str, (KeyRule, Vec<u64>)>,
}

impl Model {
    fn new(order: DeliveryOrder) -> Self {
        let redrive = Some(RedrivePolicy { to: QueueId(9), attempts_max: ATTEMPTS_MAX });
        let settings =
            QueueSettings { redrive, order, retention_ms: RETENTION_MS, ..QueueSettings::default() };
        Self {
            order,
            state: QueueState::new(Epoch(1), &settings, (1, 2)).unwrap(),
            now: 1,
            seq: 0,
            stored: BTreeMap::new(),
            unappended: VecDeque::new(),
            found: Vec::new(),
            in_flight: Vec::new(),
            leases: BTreeMap::new(),
            ended: BTreeMap::new(),
            exhausted: BTreeMap::new(),
            outdated: Vec::new(),
            moves: 0,
            stale: Vec::new(),
            dead: BTreeSet::new(),
            expiring: BTreeSet::new(),
            deleting: Vec::new(),
            expired: 0,
            rules: BTreeMap::new(),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append { key, delay, ttl, count } => {
                (0..count).for_each(|_| self.append(key, delay, ttl));
            }
            Step::AppendStored => self.append_stored(),
            Step::Receive(max) => self.receive(max),
            Step::Ack(which) => self.with_delivery(which, |model, delivery| {
                model.state.ack(delivery).unwrap();
                model.state.confirm_removal(delivery.seq);
                model.stored.remove(&(delivery.key.0, delivery.seq.0));
                model.stale.push(delivery);
            }),
            Step::FailAck(which) => {
                // The write failed: the delivery continues as before.
                if let Some(&delivery) = pick(&self.in_flight, which) {
                    self.state.ack(delivery).unwrap();
                    self.state.revert_removal(delivery.seq);
                }
            }
            Step::Nack { which, delay } => self.with_delivery(which, |model, delivery| {
                let mode = AbandonMode::Retry(Duration::from_millis(delay));
                let ended = model.state.abandon(UnixMillis(model.now), delivery, mode).unwrap();
                model.ended.insert(delivery.seq, delivery);
                model.apply_disposition(ended);
            }),
            Step::Extend { which, lease } => {
                if let Some(&delivery) = pick(&self.in_flight, which) {
                    let lease = Duration::from_millis(lease);
                    let (_, until) = self.state.extend(UnixMillis(self.now), delivery, lease).unwrap();
                    self.leases.entry(delivery.seq).and_modify(|held| held.0 = until.0);
                }
            }
            Step::Release(which) => self.with_delivery(which, |model, delivery| {
                assert!(model.state.release_undelivered(delivery.seq, delivery.attempt).is_some());
                model.ended.insert(delivery.seq, delivery);
            }),
            Step::AckLate(which) => self.ack_late(which),
            Step::ExtendLate(which) => self.extend_late(which),
            Step::UseOutdated(which) => self.use_outdated(which),
            Step::AckStale(which) => {
                if let Some(&delivery) = pick(&self.stale, which) {
                    assert!(
                        self.state.ack(delivery).is_err(),
                        "{delivery:?} of a removed message was accepted"
                    );
                }
            }
            Step::Read => self.read(),
            Step::ApplyReads => self.apply_reads(),
            Step::AdvanceTime(span) => self.advance_time(span),
            Step::Move(which) => self.move_one(which),
            Step::Rule { name, max, rate, burst } => self.set_rule(name, max, rate, burst),
            Step::FinishDeletes { is_rejected: false } => self.finish_deletes(),
            Step::FinishDeletes { is_rejected: true } => {
                self.deleting.drain(..).for_each(|(_, seq)| self.state.revert_removal(seq));
            }
            Step::Purge => self.purge(),
        }
        self.check();
    }

    fn purge(&mut self) {
        self.append_stored();
        self.state.clear(UnixMillis(self.now));
        self.stored.clear();
        self.stale.append(&mut self.in_flight);
        self.stale.append(&mut self.outdated);
        self.stale.extend(core::mem::take(&mut self.ended).into_values());
        self.leases.clear();
        self.exhausted.clear();
        self.dead.clear();
        self.expiring.clear();
        self.deleting.clear();
    }

    /// Drops a message that was removed from the store.
    fn forget(&mut self, seq: Seq) {
        self.stored.retain(|(_, stored), _| *stored != seq.0);
        self.ended.remove(&seq);
        self.exhausted.remove(&seq);
    }

    /// Moves a stored message out of order, if it is ready; every second move fails and is reverted.
    fn move_one(&mut self, which: usize) {
        let stored: Vec<((u32, u64), MessageMeta)> =
            self.stored.iter().map(|(key, meta)| (*key, *meta)).collect();
        let Some(&((key, seq), meta)) = pick(&stored, which) else { return };
        if !self.state.begin_move(KeyId(key), meta) {
            return;
        }
        assert!(
            !self.in_flight.iter().any(|delivery| delivery.seq.0 == seq),
            "{seq} was moved while in flight"
        );
        assert!(!self.state.begin_move(KeyId(key), meta), "{seq} was moved twice");
        if which.is_multiple_of(2) {
            self.state.confirm_removal(meta.seq);
            self.forget(meta.seq);
        } else {
            self.state.revert_removal(meta.seq);
        }
    }

    fn append(&mut self, key: u32, delay: u64, ttl: Option<u64>) {
        self.seq += 1;
        let meta = MessageMeta {
            seq: Seq(self.seq),
            sent_at: UnixMillis(self.now),
            size: 3,
            cost: Cost::MESSAGE,
            from: None,
            expires_at: ttl.map(|ttl| UnixMillis(self.now + ttl)),
        };
        self.stored.insert((key, self.seq), meta);
        let name: Arc<str> = format!("tenant{}/{key}", key % 2).into();
        let not_before = (delay > 0).then(|| UnixMillis(self.now + delay));
        let payload = Payload { headers: "".into(), body: "abc".into() };
        let message = AppendedMessage { key: KeyId(key), name, weight: None, meta, not_before, payload };
        self.unappended.push_back(message);
    }

    fn append_stored(&mut self) {
        for message in self.unappended.drain(..) {
            self.state.append(UnixMillis(self.now), message).unwrap();
        }
    }

    fn receive(&mut self, max: usize) {
        let ended = self.state.prepare_receive(UnixMillis(self.now), usize::MAX);
        self.record_exhausted();
        ended.into_iter().for_each(|disposition| self.apply_disposition(disposition));
        assert_eq!(self.exhausted, BTreeMap::new(), "a receive left exhausted messages");
        let received = self.state.lease_messages(UnixMillis(self.now), max, LEASE).unwrap();
        assert!(received.leased.len() <= max);
        for (key, meta) in received.expired {
            self.record_expiry(key, &meta);
        }
        let before = self.in_flight.len();
        for leased in received.leased {
            let key = leased.key;
            let seq = leased.meta.seq;
            assert!(self.stored.contains_key(&(key.0, seq.0)), "{seq:?} was delivered after its removal");
            assert!(
                !self.in_flight.iter().any(|delivery| delivery.seq == seq),
                "{seq:?} was delivered to two consumers"
            );
            assert!(!self.dead.contains(&seq.0), "{seq:?} was delivered after it was dead-lettered");
            assert!(!self.expiring.contains(&seq), "{seq:?} was delivered while it was being removed");
            assert!(!self.is_expired(&leased.meta), "{seq:?} was delivered after it expired");
            assert!(leased.deliveries.attempts <= ATTEMPTS_MAX);
            let attempt = leased.deliveries.number();
            self.check_rules(&leased.name, seq);
            self.check_order(before, key, seq);
            self.outdated.extend(self.ended.remove(&seq));
            self.leases.insert(seq, (leased.until.0, leased.deliveries.attempts));
            self.in_flight.push(DeliveryId { queue: QueueId(1), key, seq, epoch: Epoch(1), attempt });
        }
    }

    /// Checks on a FIFO queue that all earlier messages of the key are removed, expired, or in the same batch.
    fn check_order(&self, before: usize, key: KeyId, seq: Seq) {
        if self.order == DeliveryOrder::Fair {
            return;
        }
        let same_batch: Vec<u64> = self.in_flight[before..].iter().map(|delivery| delivery.seq.0).collect();
        for (&(_, earlier), _) in self.stored.range((key.0, 0)..(key.0, seq.0)) {
            let is_done = same_batch.contains(&earlier) || self.expiring.contains(&Seq(earlier));
            assert!(is_done, "{seq:?} of {key:?} was delivered before {earlier}");
        }
        // A redelivery may overtake later messages that were delivered before.
        let is_first = !self.ended.contains_key(&seq);
        let others = self.in_flight[..before].iter().filter(|delivery| delivery.key == key);
        let earlier = others.filter(|delivery| is_first || delivery.seq < seq).count();
        assert_eq!(earlier, 0, "{seq:?} was delivered while others of {key:?} are in flight");
    }

    /// Reads the messages that the state requested.
    fn read(&mut self) {
        while let Some(request) = self.state.poll_prefetch() {
            let after = (request.key.0, request.after.0 + 1)..=(request.key.0, u64::MAX);
            let found = self.stored.range(after).take(request.count);
            let payload = Payload { headers: "".into(), body: "abc".into() };
            let found = found.map(|(_, meta)| (*meta, payload.clone())).collect();
            self.found.push((request, found));
        }
    }

    /// Applies the results of the reads, some of which are outdated.
    fn apply_reads(&mut self) {
        self.read();
        for (request, found) in self.found.drain(..) {
            assert_eq!(
                self.state.apply_prefetch(request, found),
                0,
                "the state counts messages that are not stored"
            );
        }
    }

    fn advance_time(&mut self, span: u64) {
        self.now += span;
        loop {
            let ended = self.state.expire_leases(UnixMillis(self.now), usize::MAX);
            self.record_exhausted();
            for disposition in ended {
                if let Disposition::DeadLetter { meta, .. } = disposition {
                    let move_at = self.exhausted.get(&meta.seq);
                    assert!(move_at.is_none_or(|at| *at <= self.now), "{meta:?} moved before {move_at:?}");
                }
                self.apply_disposition(disposition);
            }
            let late: Vec<_> = self.exhausted.iter().filter(|(_, at)| **at <= self.now).collect();
            assert!(late.is_empty(), "{late:?} should have moved by {}", self.now);
            if self.expiring.len() < EXPIRING_MAX || self.deleting.is_empty() {
                break;
            }
            self.finish_deletes();
        }
        // Earlier deletes must complete first.
        if EXPIRING_MAX <= self.expiring.len() {
            return;
        }
        // This includes messages that are only on disk, and keys without consumers.
        let unappended: BTreeSet<Seq> = self.unappended.iter().map(|message| message.meta.seq).collect();
        let held: BTreeSet<Seq> = self.in_flight.iter().map(|delivery| delivery.seq).collect();
        for meta in self.stored.values().filter(|meta| self.is_past_ttl(meta)) {
            let seq = &meta.seq;
            let may_be_stored = unappended.contains(seq) || held.contains(seq) || self.expiring.contains(seq);
            assert!(may_be_stored, "{meta:?} is kept after its TTL");
        }
    }

    fn apply_disposition(&mut self, ended: Disposition) {
        let (seq, is_dead) = match ended {
            Disposition::Requeued(returned) => (returned.meta.seq, false),
            Disposition::DeadLetter { meta, .. } => (meta.seq, true),
            Disposition::Expired { key, meta } => {
                self.record_expiry(key, &meta);
                (meta.seq, false)
            }
        };
        let ended = self.in_flight.iter().position(|delivery| delivery.seq == seq);
        self.ended.extend(ended.map(|index| (seq, self.in_flight.swap_remove(index))));
        self.exhausted.remove(&seq);
        if !is_dead {
            return;
        }
        self.moves += 1;
        if self.moves.is_multiple_of(3) {
            // The write failed: the move is repeated.
            self.state.revert_removal(seq);
        } else {
            self.dead.insert(seq.0);
            self.state.confirm_removal(seq);
            self.forget(seq);
        }
    }

    fn with_delivery(&mut self, which: usize, then: impl FnOnce(&mut Self, DeliveryId)) {
        if !self.in_flight.is_empty() {
            let delivery = self.in_flight.swap_remove(which % self.in_flight.len());
            then(self, delivery);
        }
    }

    /// Checks that no message is counted twice or missing.
    fn check(&self) {
        assert_eq!(self.state.audit(), Ok(()));
        let totals = self.state.totals();
        assert_eq!(totals.in_flight, self.in_flight.len() as u64);
        let appended = self.stored.len() - self.unappended.len();
        let live = appended - self.expiring.len();
        assert_eq!(totals.pending + totals.in_flight + totals.delayed, live as u64);
        assert_eq!((totals.bytes, totals.expired), (3 * appended as u64, self.expired));
    }

    /// Checks that every message is delivered in the end.
    fn drain(&mut self) {
        for _ in 0..100_000 {
            if self.stored.is_empty() {
                return;
            }
            self.apply_reads();
            self.append_stored();
            self.finish_deletes();
            self.receive(10);
            while !self.in_flight.is_empty() {
                self.with_delivery(0, |model, delivery| {
                    model.state.ack(delivery).unwrap();
                    model.state.confirm_removal(delivery.seq);
                    model.stored.remove(&(delivery.key.0, delivery.seq.0));
                });
            }
            self.advance_time(5);
            self.check();
        }
        panic!("{} messages were never delivered: {:?}", self.stored.len(), self.state);
    }
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which.checked_rem(all.len())?)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_in_exactly_one_state_until_it_is_removed(steps in prop::collection::vec(step(), 1..300)) {
        let mut model = Model::new(DeliveryOrder::Fair);
        for step in steps {
            model.run(step);
        }
        model.drain();
    }

    #[test]
    fn a_fifo_key_continues_when_earlier_messages_are_done(steps in prop::collection::vec(step(), 1..300)) {
        let mut model = Model::new(DeliveryOrder::Fifo);
        for step in steps {
            model.run(step);
        }
        model.drain();
    }

    /// With one consumer that acknowledges, each key's messages come in the order they were sent.
    #[test]
    fn a_key_is_first_in_first_out(keys in prop::collection::vec(0..3_u32, 1..2_000), max in 1..20_usize) {
        let mut model = Model::new(DeliveryOrder::Fair);
        for key in keys {
            model.append(key, 0, None);
        }
        model.append_stored();
        let mut last = BTreeMap::new();
        while !model.stored.is_empty() {
            model.apply_reads();
            model.receive(max);
            for delivery in core::mem::take(&mut model.in_flight) {
                let before = last.insert(delivery.key, delivery.seq);
                prop_assert!(before.is_none_or(|before| before < delivery.seq));
                model.state.ack(delivery).unwrap();
                model.state.confirm_removal(delivery.seq);
                model.stored.remove(&(delivery.key.0, delivery.seq.0));
            }
            model.advance_time(1);
        }
    }
}

#[test]
fn a_prefetch_from_before_a_purge_loses_no_later_message() {
    let mut model = Model::new(DeliveryOrder::Fair);
    (0..400).for_each(|_| model.append(0, 0, None));
    model.append_stored();
    model.receive(300);
    let request = model.state.poll_prefetch().unwrap();
    model.run(Step::Purge);
    (0..400).for_each(|_| model.append(0, 0, None));
    model.append_stored();
    // The store reads after the purge and finds nothing.
    assert_eq!(model.state.apply_prefetch(request, Vec::new()), 0);
    model.check();
    model.drain();
}

#[test]
fn idle_keys_are_removed_in_batches() {
    let mut model = Model::new(DeliveryOrder::Fair);
    for key in 0..5_000 {
        model.append(key, 0, None);
    }
    model.append_stored();
    model.receive(5_000);
    while !model.in_flight.is_empty() {
        model.with_delivery(0, |model, delivery| {
            model.state.ack(delivery).unwrap();
            model.state.confirm_removal(delivery.seq);
        });
    }
    assert_eq!(model.state.stats().keys, 5_000);
    let later = UnixMillis(model.now + 60_000);
    assert!(!model.state.has_idle(UnixMillis(model.now + 59_999)));
    let mut rounds = 0;
    while model.state.has_idle(later) {
        model.state.forget_idle(later);
        rounds += 1;
    }
    assert_eq!((model.state.stats().keys, rounds), (0, 5));
}
