//! Random histories of a state, beside a plain list of what must be true.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_queue::message::{AppendedMessage, MessageMeta, Payload};
use evenkeel_queue::queue_state::{AbandonMode, Disposition, PrefetchRequest, QueueState};
use evenkeel_queue::receipt::DeliveryId;
use evenkeel_queue::rule::{KeyRule, Rate};
use evenkeel_queue::settings::RedrivePolicy;
use evenkeel_queue::{DeliveryOrder, Epoch, KeyId, QueueId, QueueSettings, Seq, UnixMillis};
use proptest::prelude::*;

const LEASE: Duration = Duration::from_millis(100);
const ATTEMPTS_MAX: u32 = 4;
/// So many are being removed at once.
const EXPIRING_MAX: usize = 1_024;
/// The shortest there is.
const RETENTION_MS: u64 = 60_000;
/// Names that are given limits: two keys and a tenant.
const RULED: [&str; 3] = ["tenant0/0", "tenant1/1", "tenant0"];

#[derive(Clone, Debug)]
enum Step {
    Append {
        key: u32,
        delay: u64,
        ttl: Option<u64>,
        count: u64,
    },
    Tell,
    Take(usize),
    Ack(usize),
    LoseAck(usize),
    Nack {
        which: usize,
        delay: u64,
    },
    Extend(usize),
    GiveBack(usize),
    AckStale(usize),
    Look,
    Answer,
    Pass(u64),
    Purge,
    Move(usize),
    Rule {
        name: usize,
        max: u32,
        rate: u32,
        burst: u32,
    },
    /// What is over is gone from the store, or could not be removed.
    Remove {
        is_refused: bool,
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
        6 => Just(Step::Tell),
        5 => prop_oneof![3 => 1..6_usize, 2 => 100..300_usize].prop_map(Step::Take),
        4 => any::<usize>().prop_map(Step::Ack),
        1 => any::<usize>().prop_map(Step::LoseAck),
        2 => (any::<usize>(), 0..200_u64).prop_map(|(which, delay)| Step::Nack { which, delay }),
        1 => any::<usize>().prop_map(Step::Extend),
        1 => any::<usize>().prop_map(Step::GiveBack),
        1 => any::<usize>().prop_map(Step::AckStale),
        2 => Just(Step::Look),
        4 => Just(Step::Answer),
        2 => (1..150_u64).prop_map(Step::Pass),
        1 => (1..RETENTION_MS).prop_map(Step::Pass),
        1 => Just(Step::Purge),
        1 => any::<usize>().prop_map(Step::Move),
        1 => (0..RULED.len(), 0..4_u32, 0..3_u32, 1..20_u32)
            .prop_map(|(name, max, rate, burst)| Step::Rule { name, max, rate: 200 * rate, burst }),
        3 => any::<bool>().prop_map(|is_refused| Step::Remove { is_refused }),
    ]
}

/// What the store would hold, and who has what.
struct World {
    order: DeliveryOrder,
    state: QueueState,
    now: u64,
    seq: u64,
    /// Everything that was written down and is not gone.
    stored: BTreeMap<(u32, u64), MessageMeta>,
    /// Of that, what the state was not told yet.
    untold: VecDeque<AppendedMessage>,
    /// What the store found and has not answered yet.
    found: Vec<(PrefetchRequest, Vec<(MessageMeta, Payload)>)>,
    /// Deliveries under way.
    held: Vec<DeliveryId>,
    /// Receipts that are good for nothing any more.
    stale: Vec<DeliveryId>,
    dead: BTreeSet<u64>,
    /// What is over and not gone yet; and of that, what the store is removing.
    over: BTreeSet<Seq>,
    removing: Vec<(KeyId, Seq)>,
    /// How many ended by themselves.
    expired: u64,
    /// What is set for a name, and when messages were delivered under it.
    rules: BTreeMap<&'static str, (KeyRule, Vec<u64>)>,
}

impl World {
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
            untold: VecDeque::new(),
            found: Vec::new(),
            held: Vec::new(),
            stale: Vec::new(),
            dead: BTreeSet::new(),
            over: BTreeSet::new(),
            removing: Vec::new(),
            expired: 0,
            rules: BTreeMap::new(),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append { key, delay, ttl, count } => {
                (0..count).for_each(|_| self.append(key, delay, ttl));
            }
            Step::Tell => self.tell(),
            Step::Take(max) => self.take(max),
            Step::Ack(which) => self.with_held(which, |world, delivery| {
                world.state.ack(delivery).unwrap();
                world.state.confirm_removal(delivery.seq);
                world.stored.remove(&(delivery.key.0, delivery.seq.0));
                world.stale.push(delivery);
            }),
            Step::LoseAck(which) => {
                // Not written down: the delivery goes on as if nothing had been said.
                if let Some(&delivery) = pick(&self.held, which) {
                    self.state.ack(delivery).unwrap();
                    self.state.revert_removal(delivery.seq);
                }
            }
            Step::Nack { which, delay } => self.with_held(which, |world, delivery| {
                let ended = world
                    .state
                    .abandon(
                        UnixMillis(world.now),
                        delivery,
                        AbandonMode::Retry(Duration::from_millis(delay)),
                    )
                    .unwrap();
                world.ended(ended);
            }),
            Step::Extend(which) => {
                if let Some(&delivery) = pick(&self.held, which) {
                    self.state.extend(UnixMillis(self.now), delivery, 10 * LEASE).unwrap();
                }
            }
            Step::GiveBack(which) => self.with_held(which, |world, delivery| {
                assert!(world.state.release_undelivered(delivery.seq, delivery.attempt).is_some());
            }),
            Step::AckStale(which) => {
                if let Some(&delivery) = pick(&self.stale, which) {
                    assert!(
                        self.state.ack(delivery).is_err(),
                        "{delivery:?} of a message that is gone was taken"
                    );
                }
            }
            Step::Look => self.look(),
            Step::Answer => self.answer(),
            Step::Pass(span) => self.pass(span),
            Step::Move(which) => self.move_one(which),
            Step::Rule { name, max, rate, burst } => self.set_rule(name, max, rate, burst),
            Step::Remove { is_refused: false } => self.remove(),
            Step::Remove { is_refused: true } => {
                self.removing.drain(..).for_each(|(_, seq)| self.state.revert_removal(seq));
            }
            Step::Purge => {
                self.tell();
                self.state.clear(UnixMillis(self.now), Seq(self.seq + 1));
                self.stored.clear();
                self.stale.append(&mut self.held);
                self.dead.clear();
                self.over.clear();
                self.removing.clear();
            }
        }
        self.check();
    }

    /// Takes a stored message out of turn, if it waits: half of them are moved, the others come back.
    fn move_one(&mut self, which: usize) {
        let stored: Vec<((u32, u64), MessageMeta)> =
            self.stored.iter().map(|(place, meta)| (*place, *meta)).collect();
        let Some(&((key, seq), meta)) = pick(&stored, which) else { return };
        if !self.state.begin_move(KeyId(key), meta) {
            return;
        }
        assert!(!self.held.iter().any(|held| held.seq.0 == seq), "a consumer has {seq}, and it was moved");
        assert!(!self.state.begin_move(KeyId(key), meta), "{seq} was moved twice");
        if which.is_multiple_of(2) {
            self.state.confirm_removal(meta.seq);
            self.stored.remove(&(key, seq));
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
        self.untold.push_back(message);
    }

    fn tell(&mut self) {
        for message in self.untold.drain(..) {
            self.state.append(UnixMillis(self.now), message).unwrap();
        }
    }

    fn take(&mut self, max: usize) {
        let taken = self.state.lease_messages(UnixMillis(self.now), max, LEASE).unwrap();
        assert!(taken.leased.len() <= max);
        for (key, meta) in taken.expired {
            self.end(key, &meta);
        }
        let before = self.held.len();
        for leased in taken.leased {
            let key = leased.key;
            let seq = leased.meta.seq;
            assert!(self.stored.contains_key(&(key.0, seq.0)), "{seq:?} was delivered after it was gone");
            assert!(!self.held.iter().any(|held| held.seq == seq), "{seq:?} was delivered to two consumers");
            assert!(!self.dead.contains(&seq.0), "{seq:?} was delivered from the dead letters");
            assert!(!self.over.contains(&seq), "{seq:?} was delivered while it was being removed");
            assert!(!self.is_over(&leased.meta), "{seq:?} was delivered after its time");
            assert!(leased.deliveries.attempts <= ATTEMPTS_MAX);
            let attempt = leased.deliveries.number();
            self.heed_rules(&leased.name, seq);
            self.heed_order(before, key, seq);
            self.held.push(DeliveryId { queue: QueueId(1), key, seq, epoch: Epoch(1), attempt });
        }
    }

    /// On a FIFO queue everything earlier of the key is gone, over, or delivered with it.
    fn heed_order(&self, before: usize, key: KeyId, seq: Seq) {
        if self.order == DeliveryOrder::Fair {
            return;
        }
        let with_it: Vec<u64> = self.held[before..].iter().map(|held| held.seq.0).collect();
        for (&(_, earlier), _) in self.stored.range((key.0, 0)..(key.0, seq.0)) {
            let is_done = with_it.contains(&earlier) || self.over.contains(&Seq(earlier));
            assert!(is_done, "{seq:?} of {key:?} was delivered before {earlier}");
        }
        let others = self.held[..before].iter().filter(|held| held.key == key).count();
        assert_eq!(others, 0, "{seq:?} was delivered while others of {key:?} are out");
    }

    fn set_rule(&mut self, name: usize, max: u32, rate: u32, burst: u32) {
        let rate = Rate::new(f64::from(rate), NonZeroU32::new(burst)).ok();
        let rule = KeyRule { concurrency_max: NonZeroU32::new(max), rate, ..KeyRule::default() };
        // A tenant's own number is nobody's key here.
        let key = KeyId([0, 1, 99][name]);
        self.state.set_rule(UnixMillis(self.now), key, &RULED[name].into(), rule);
        self.rules.insert(RULED[name], (rule, Vec::new()));
    }

    /// Whatever is delivered is within what its key and its tenant are bound to.
    fn heed_rules(&mut self, name: &str, seq: Seq) {
        for (ruled, (rule, delivered)) in &mut self.rules {
            let is_its = |key: u32| format!("tenant{}/{key}", key % 2).starts_with(ruled);
            if !name.starts_with(ruled) {
                continue;
            }
            let out = self.held.iter().filter(|held| is_its(held.key.0)).count() as u32;
            let max = rule.concurrency_max.map_or(u32::MAX, NonZeroU32::get);
            assert!(out < max, "{seq:?} of {ruled} was delivered beside {out} others of at most {max}");
            delivered.push(self.now);
            let Some(rate) = rule.rate else { continue };
            for (at, since) in delivered.iter().enumerate() {
                let count = (delivered.len() - at) as f64;
                let most =
                    (self.now - since) as f64 / 1_000.0 * rate.per_second() + f64::from(rate.burst().get());
                assert!(
                    count <= most + 1e-6,
                    "{ruled} had {count} deliveries in {} ms, {rate:?}",
                    self.now - since
                );
            }
        }
    }

    /// The store looks for what it was asked, a little at a time.
    fn look(&mut self) {
        while let Some(ask) = self.state.poll_prefetch() {
            let after = (ask.key.0, ask.after.0 + 1)..=(ask.key.0, u64::MAX);
            let found = self.stored.range(after).take(ask.count);
            let payload = Payload { headers: "".into(), body: "abc".into() };
            let found = found.map(|(_, meta)| (*meta, payload.clone())).collect();
            self.found.push((ask, found));
        }
    }

    /// It answers with what it found; some of that may have been a while ago.
    fn answer(&mut self) {
        self.look();
        for (ask, found) in self.found.drain(..) {
            assert_eq!(self.state.apply_prefetch(ask, found), 0, "the state counts what is not there");
        }
    }

    fn pass(&mut self, span: u64) {
        self.now += span;
        loop {
            let ended = self.state.expire_leases(UnixMillis(self.now), usize::MAX);
            for how in ended {
                self.ended(how);
            }
            if self.over.len() < EXPIRING_MAX || self.removing.is_empty() {
                break;
            }
            self.remove();
        }
        // Others are to be gone first.
        if EXPIRING_MAX <= self.over.len() {
            return;
        }
        // Also what is far behind a key's window, and whoever receives or not.
        let untold: BTreeSet<Seq> = self.untold.iter().map(|message| message.meta.seq).collect();
        let held: BTreeSet<Seq> = self.held.iter().map(|delivery| delivery.seq).collect();
        for meta in self.stored.values().filter(|meta| self.has_expired(meta)) {
            let seq = &meta.seq;
            let is_elsewhere = untold.contains(seq) || held.contains(seq) || self.over.contains(seq);
            assert!(is_elsewhere, "{meta:?} is kept after its time");
        }
    }

    fn has_expired(&self, meta: &MessageMeta) -> bool {
        meta.expires_at.is_some_and(|at| at.0 <= self.now)
    }

    fn is_over(&self, meta: &MessageMeta) -> bool {
        self.has_expired(meta) || meta.sent_at.0 + RETENTION_MS <= self.now
    }

    /// Only what is over ends, and again only if it could not be removed.
    fn end(&mut self, key: KeyId, meta: &MessageMeta) {
        assert!(self.is_over(meta), "{meta:?} ended before its time");
        assert!(self.stored.contains_key(&(key.0, meta.seq.0)), "{meta:?} ended after it was gone");
        assert!(!self.removing.contains(&(key, meta.seq)), "{meta:?} ended twice");
        self.over.insert(meta.seq);
        self.removing.push((key, meta.seq));
    }

    fn remove(&mut self) {
        for (key, seq) in self.removing.drain(..) {
            self.state.confirm_removal(seq);
            self.stored.remove(&(key.0, seq.0));
            self.over.remove(&seq);
            self.expired += 1;
        }
    }

    fn ended(&mut self, ended: Disposition) {
        let (seq, is_dead) = match ended {
            Disposition::Requeued(returned) => (returned.meta.seq, false),
            Disposition::DeadLetter { meta, .. } => (meta.seq, true),
            Disposition::Expired { key, meta } => {
                self.end(key, &meta);
                (meta.seq, false)
            }
        };
        self.held.retain(|delivery| delivery.seq != seq);
        if is_dead {
            self.dead.insert(seq.0);
            self.state.confirm_removal(seq);
            self.stored.retain(|(_, stored), _| *stored != seq.0);
        }
    }

    fn with_held(&mut self, which: usize, then: impl FnOnce(&mut Self, DeliveryId)) {
        if !self.held.is_empty() {
            let delivery = self.held.swap_remove(which % self.held.len());
            then(self, delivery);
        }
    }

    /// Nothing is counted twice, and nothing is missing.
    fn check(&self) {
        assert_eq!(self.state.audit(), Ok(()));
        let totals = self.state.totals();
        assert_eq!(totals.in_flight, self.held.len() as u64);
        let told = self.stored.len() - self.untold.len();
        let here = told - self.over.len();
        assert_eq!(totals.pending + totals.in_flight + totals.delayed, here as u64);
        assert_eq!((totals.bytes, totals.expired), (3 * told as u64, self.expired));
    }

    /// Everything that was sent comes out in the end.
    fn drain(&mut self) {
        for _ in 0..100_000 {
            if self.stored.is_empty() {
                return;
            }
            self.answer();
            self.tell();
            self.remove();
            self.take(10);
            while !self.held.is_empty() {
                self.with_held(0, |world, delivery| {
                    world.state.ack(delivery).unwrap();
                    world.state.confirm_removal(delivery.seq);
                    world.stored.remove(&(delivery.key.0, delivery.seq.0));
                });
            }
            self.pass(5);
            self.check();
        }
        panic!("{} messages never came out: {:?}", self.stored.len(), self.state);
    }
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which.checked_rem(all.len())?)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_somewhere_once_until_it_is_gone(steps in prop::collection::vec(step(), 1..300)) {
        let mut world = World::new(DeliveryOrder::Fair);
        for step in steps {
            world.run(step);
        }
        world.drain();
    }

    #[test]
    fn a_fifo_key_goes_on_when_what_came_before_is_done(steps in prop::collection::vec(step(), 1..300)) {
        let mut world = World::new(DeliveryOrder::Fifo);
        for step in steps {
            world.run(step);
        }
        world.drain();
    }

    /// One consumer that acknowledges: each key's messages come in the order they were sent.
    #[test]
    fn a_key_is_first_in_first_out(keys in prop::collection::vec(0..3_u32, 1..2_000), max in 1..20_usize) {
        let mut world = World::new(DeliveryOrder::Fair);
        for key in keys {
            world.append(key, 0, None);
        }
        world.tell();
        let mut last = BTreeMap::new();
        while !world.stored.is_empty() {
            world.answer();
            world.take(max);
            for delivery in core::mem::take(&mut world.held) {
                let before = last.insert(delivery.key, delivery.seq);
                prop_assert!(before.is_none_or(|before| before < delivery.seq));
                world.state.ack(delivery).unwrap();
                world.state.confirm_removal(delivery.seq);
                world.stored.remove(&(delivery.key.0, delivery.seq.0));
            }
            world.pass(1);
        }
    }
}

#[test]
fn an_answer_asked_for_before_a_purge_loses_nothing_sent_after_it() {
    let mut world = World::new(DeliveryOrder::Fair);
    (0..400).for_each(|_| world.append(0, 0, None));
    world.tell();
    world.take(300);
    let asked = world.state.poll_prefetch().unwrap();
    world.run(Step::Purge);
    (0..400).for_each(|_| world.append(0, 0, None));
    world.tell();
    // The store looks after the purge, and finds none of what it was asked for.
    assert_eq!(world.state.apply_prefetch(asked, Vec::new()), 0);
    world.check();
    world.drain();
}

#[test]
fn keys_that_are_gone_are_forgotten_however_many_they_are() {
    let mut world = World::new(DeliveryOrder::Fair);
    for key in 0..5_000 {
        world.append(key, 0, None);
    }
    world.tell();
    world.take(5_000);
    while !world.held.is_empty() {
        world.with_held(0, |world, delivery| {
            world.state.ack(delivery).unwrap();
            world.state.confirm_removal(delivery.seq);
        });
    }
    assert_eq!(world.state.stats().keys, 5_000);
    let later = UnixMillis(world.now + 60_000);
    assert!(!world.state.has_idle(UnixMillis(world.now + 59_999)));
    let mut rounds = 0;
    while world.state.has_idle(later) {
        world.state.forget_idle(later);
        rounds += 1;
    }
    assert_eq!((world.state.stats().keys, rounds), (0, 5));
}
