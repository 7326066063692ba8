//! A queue's book: whose turn it is, and who has which message until when.
//!
//! Values in, values out: time is handed in, and what must be written down is handed out. Bound: every message
//! that was told is exactly one of waiting, delayed, in flight, being acknowledged, being moved or over, until it is
//! gone; a message is delivered to one consumer at a time; between two keys with messages waiting, deliveries
//! differ by at most a quantum and a message each, over any interval.

mod abandon;
mod cost;
mod expiry;
mod key_queue;
mod leases;
mod limiter;
mod moves;
mod recovery;
mod stats;
mod wait_histogram;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use core::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{TenantDrr, WeightedKey as Turns};
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::interner::Interner;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::weight::Weight;

use crate::id::{Epoch, KeyId, Seq};
use crate::message::{AppendedMessage, MessageMeta, Payload};
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::settings::{CostMode, DeliveryOrder, KEYS_MAX, QueueSettings};
use crate::time::UnixMillis;
use cost::ServiceTime;
use expiry::ExpiryIndex;
use key_queue::{KeyQueue, MessageEntry, PAYLOAD_BYTES_MAX};
use limiter::Limiters;
use wait_histogram::WaitHistogram;

pub use abandon::AbandonMode;
pub use leases::{Disposition, RedeliveryRecord};
pub use limiter::{Throttle, ThrottleReason, ThrottleScope};
pub use moves::{MoveCursor, MoveStep};
pub use recovery::{StoredKey, StoredMessage, StoredState};
pub use stats::{Explanation, KeyStats, QueueStats, QueueTotals};
pub use wait_histogram::WaitPercentiles;

/// A turn waits this long for the store; then others go on, and the lane takes part again when it was answered.
const PREFETCH_WAIT_MAX: Duration = Duration::from_millis(5);
/// A key that holds nothing is forgotten after this long.
const IDLE_KEY: Duration = Duration::from_secs(60);

/// The book of one queue.
#[derive(Debug)]
pub struct QueueState {
    epoch: Epoch,
    limits: Limits,
    order: DeliveryOrder,
    /// Counts the takes.
    takes: u64,
    drr: TenantDrr,
    /// By the number the scheduler knows them by.
    lanes: Vec<Option<KeyQueue>>,
    /// Numbers of lanes that were forgotten.
    free: Vec<Key>,
    keys: HashMap<KeyId, Key>,
    tenants: Interner<TenantId>,
    /// How many lanes each tenant has.
    tenant_lanes: Vec<u32>,
    /// What was set for a key or tenant, by its name.
    rules: HashMap<Arc<str>, KeyRule>,
    gates: Limiters,
    /// What is not waiting: in flight, delayed, being acknowledged, being moved, over.
    out: HashMap<Seq, InvisibleMessage>,
    /// When what is in flight or delayed comes back, and what could not be removed is tried again.
    due: BTreeSet<(UnixMillis, Seq)>,
    /// When messages end by themselves.
    ends: ExpiryIndex,
    refills: VecDeque<PrefetchRequest>,
    /// Lanes whose refill failed.
    starved: Vec<Key>,
    /// Lanes whose turn waits for the store, and until when; some may have been answered.
    starving: VecDeque<(UnixMillis, Key)>,
    /// Lanes that hold nothing, the longest first.
    idle: VecDeque<(UnixMillis, Key)>,
    payload_bytes: usize,
    totals: QueueTotals,
    delivered: u64,
    redelivered: u64,
    waits: WaitHistogram,
    /// How long messages of all keys took lately, where that is what they cost.
    took: ServiceTime,
    /// The latest time it was handed.
    now: UnixMillis,
    /// The last message it was told of; the store may have found later ones.
    told: Seq,
}

/// What of a queue's settings the book keeps to.
#[derive(Clone, Copy, Debug)]
struct Limits {
    retention: Duration,
    in_flight_max: u64,
    attempts_max: Option<u32>,
    cost_mode: CostMode,
}

/// A message that is not waiting for its turn.
#[derive(Debug)]
struct InvisibleMessage {
    lane: Key,
    handle: MessageEntry,
    how: InvisibleState,
}

/// Why a message is not waiting for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InvisibleState {
    /// A consumer has it.
    Leased { until: UnixMillis, epoch: Epoch },
    /// It is not to be delivered before then.
    Delayed { until: UnixMillis },
    /// It is acknowledged once that is written down.
    Acking { was: PriorState },
    /// It is in another queue once that is written down.
    Moving,
    /// Its time is over, and it is gone once that is written down; if that failed, it is tried again then.
    Expired { again: Option<UnixMillis> },
}

impl InvisibleState {
    /// Whether it holds up others of its key: what is over holds up nobody, for it never comes back.
    const fn is_out(self) -> bool {
        matches!(self, Self::Leased { .. } | Self::Acking { .. } | Self::Moving)
    }
}

/// What a message was before somebody acknowledged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PriorState {
    Leased { until: UnixMillis, epoch: Epoch },
    Delayed { until: UnixMillis },
    Waiting,
}

/// How often a message was delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCount {
    /// Deliveries that count.
    pub attempts: u32,
    /// Deliveries that reached nobody, and do not.
    pub taken_back: u32,
}

impl DeliveryCount {
    /// Numbers the last delivery; no two of a message have the same.
    pub const fn number(self) -> u32 {
        self.attempts.saturating_add(self.taken_back)
    }
}

/// A message leased to a consumer.
#[derive(Clone, Debug)]
pub struct LeasedMessage {
    /// Its key.
    pub key: KeyId,
    /// What its key is called.
    pub name: Arc<str>,
    /// What is known of it.
    pub header: MessageMeta,
    /// How often it was delivered, this time included.
    pub delivered: DeliveryCount,
    /// When it was first delivered.
    pub first_delivered_at: UnixMillis,
    /// Until when.
    pub until: UnixMillis,
    /// What was sent, unless it must be read.
    pub payload: Option<Payload>,
}

/// What a take brought.
#[derive(Debug, Default)]
pub struct LeaseBatch {
    /// For the consumer.
    pub leased: Vec<LeasedMessage>,
    /// Their time is over: to be removed, and [`acked`](Book::acked) or [`undo_ack`](Book::undo_ack) must follow.
    pub expired: Vec<(KeyId, MessageMeta)>,
}

/// What the store is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchRequest {
    /// Of which key.
    pub key: KeyId,
    /// After which message.
    pub after: Seq,
    /// How many.
    pub count: usize,
}

impl QueueState {
    /// Opens an empty book; `secret` is a random number nobody else knows.
    pub fn new(
        epoch: Epoch,
        settings: &QueueSettings,
        secret: (u64, u64),
    ) -> Result<Self, SettingOutOfRange> {
        Ok(Self {
            epoch,
            limits: Limits::of(settings),
            order: settings.order,
            // Lanes that are read from the store were taken from in no take of this book.
            takes: 1,
            // The store keeps to the queue's own limit, which may change while messages wait.
            drr: TenantDrr::new(Cost(settings.quantum), KEYS_MAX)?,
            lanes: Vec::new(),
            free: Vec::new(),
            keys: HashMap::new(),
            tenants: Interner::new(KEYS_MAX, secret),
            tenant_lanes: Vec::new(),
            rules: HashMap::new(),
            gates: Limiters::default(),
            out: HashMap::new(),
            due: BTreeSet::new(),
            ends: ExpiryIndex::default(),
            refills: VecDeque::new(),
            starved: Vec::new(),
            starving: VecDeque::new(),
            idle: VecDeque::new(),
            payload_bytes: 0,
            totals: QueueTotals::default(),
            delivered: 0,
            redelivered: 0,
            waits: WaitHistogram::EMPTY,
            took: ServiceTime::default(),
            now: UnixMillis::default(),
            told: Seq(0),
        })
    }

    /// Keeps to other settings from here on; the quantum stays as it is.
    pub fn set_limits(&mut self, settings: &QueueSettings) {
        self.limits = Limits::of(settings);
    }

    /// Tells the time, for what follows and is not told it itself.
    pub fn set_now(&mut self, now: UnixMillis) {
        self.now = now;
    }

    /// Takes in a message that was written down; messages are told in order.
    pub fn append(&mut self, now: UnixMillis, message: AppendedMessage) -> Result<(), Rejection> {
        self.now = now;
        let lane = self.lane_of(message.key, &message.name)?;
        if let Some(weight) = message.weight.filter(|_| self.rule(&message.name).weight.is_none()) {
            self.weigh(lane, weight);
        }
        let AppendedMessage { header, payload, not_before, .. } = message;
        self.told = header.seq;
        let mut handle = MessageEntry::new(header);
        self.totals.bytes += u64::from(header.size);
        if let Some(until) = not_before.filter(|&until| now < until) {
            self.at(lane).pass_over(header.seq);
            self.hide(lane, handle, InvisibleState::Delayed { until });
            self.update_schedule(lane);
            return Ok(());
        }
        self.totals.pending += 1;
        self.ends.list(lane, &header);
        if self.payload_bytes + payload.size() <= PAYLOAD_BYTES_MAX {
            self.payload_bytes += payload.size();
            handle.payload = Some(payload);
        }
        let window = self.lane(lane).window_len(self.keys.len());
        let without_place = self.at(lane).append(handle, window);
        self.drop_payload(without_place);
        self.update_schedule(lane);
        Ok(())
    }

    /// Leases up to `max` messages, in turns, until `lease` from now.
    pub fn lease_messages(
        &mut self,
        now: UnixMillis,
        max: usize,
        lease: Duration,
    ) -> Result<LeaseBatch, Rejection> {
        self.now = now;
        let room = self.limits.in_flight_max.saturating_sub(self.totals.in_flight);
        if room == 0 {
            return Err(Rejection::TooManyInFlight { max: self.limits.in_flight_max });
        }
        let max = usize::try_from(room).unwrap_or(usize::MAX).min(max);
        let mut taken = LeaseBatch::default();
        while taken.leased.len() < max {
            let Some(turn) = self.drr.next_key() else { break };
            // Without a next one, it is on its way from the store.
            let Some(is_over) = self.lane(turn.key).next().map(|header| self.is_expired(header)) else {
                break;
            };
            if is_over && self.room_for_ends() == 0 {
                self.park_until_expiry_room(turn.key);
                continue;
            }
            let Some(mut handle) = self.at(turn.key).pop() else { break };
            self.totals.pending -= 1;
            let payload = handle.payload.take();
            self.payload_bytes -= payload.as_ref().map_or(0, Payload::size);
            if is_over {
                taken.expired.push(self.expire(turn.key, handle));
                self.update_schedule(turn.key);
                continue;
            }
            (handle.charged, handle.leased_at) = (self.charge(turn.key, &handle.header), now);
            self.drr.consume_deficit(turn.key, handle.charged);
            self.take_token(turn.key);
            taken.leased.push(self.lease(now, turn.key, handle, payload, lease));
            self.update_schedule(turn.key);
        }
        self.end_take(&taken.leased);
        Ok(taken)
    }

    fn lease(
        &mut self,
        now: UnixMillis,
        at: Key,
        mut handle: MessageEntry,
        payload: Option<Payload>,
        lease: Duration,
    ) -> LeasedMessage {
        handle.delivered.attempts = handle.delivered.attempts.saturating_add(1);
        self.count(now, at, &handle);
        let first_delivered_at = *handle.first_delivered_at.get_or_insert(now);
        let until = now + lease;
        let epoch = self.epoch;
        let take = self.takes;
        let lane = self.at(at);
        if let Some(in_order) = &mut lane.in_order {
            in_order.taken_in = take;
        }
        let leased = LeasedMessage {
            key: lane.key,
            name: lane.name.clone(),
            header: handle.header,
            delivered: handle.delivered,
            first_delivered_at,
            until,
            payload,
        };
        self.hide(at, handle, InvisibleState::Leased { until, epoch });
        leased
    }

    fn count(&mut self, now: UnixMillis, at: Key, handle: &MessageEntry) {
        let again = u64::from(1 < handle.delivered.attempts);
        self.delivered += 1;
        self.redelivered += again;
        // When a message was moved here is not known.
        let is_counted = handle.first_delivered_at.is_none() && handle.header.from.is_none();
        let wait = is_counted.then(|| now.since(handle.ready_at));
        let lane = self.lanes[at.index()].as_mut().expect("a lane that delivers is known");
        lane.delivered += 1;
        lane.redelivered += again;
        if let Some(wait) = wait {
            self.waits.record(wait);
            lane.waits.get_or_insert_with(|| Box::new(WaitHistogram::EMPTY)).record(wait);
        }
    }

    /// Names what the store is to be asked for next.
    pub fn poll_prefetch(&mut self) -> Option<PrefetchRequest> {
        self.refills.pop_front()
    }

    /// Takes in what the store found, and counts messages that it should have found.
    pub fn apply_prefetch(&mut self, ask: PrefetchRequest, found: Vec<(MessageMeta, Payload)>) -> u64 {
        let Some(at) = self.awaiting(ask) else { return 0 };
        let is_empty = found.is_empty();
        let told = self.told;
        let mut room = PAYLOAD_BYTES_MAX.saturating_sub(self.payload_bytes);
        // What was not told yet will be, and is taken in then.
        let known = found.into_iter().filter(|(header, _)| header.seq <= told);
        let handles = known.map(|(header, payload)| {
            let payload = Some(payload).filter(|payload| payload.size() <= room);
            room -= payload.as_ref().map_or(0, Payload::size);
            MessageEntry { payload, ..MessageEntry::new(header) }
        });
        let lane = self.lanes[at.index()].as_mut().expect("a key that is known has a lane");
        self.payload_bytes += lane.apply_prefetch(handles);
        let missing = if is_empty { lane.forget_beyond() } else { 0 };
        if missing > 0 {
            // How large they were is not known.
            self.totals.bytes -= missing * self.mean_bytes();
            self.totals.pending -= missing;
            self.unlist_missing(at);
        }
        self.update_schedule(at);
        missing
    }

    fn mean_bytes(&self) -> u64 {
        let QueueTotals { pending, in_flight, delayed, bytes, .. } = self.totals;
        bytes / (pending + in_flight + delayed + self.ends.over as u64).max(1)
    }

    /// Notes that the store could not be read; it is asked again at the next tick.
    pub fn fail_prefetch(&mut self, ask: PrefetchRequest) {
        if let Some(at) = self.awaiting(ask) {
            self.starved.push(at);
        }
    }

    /// Finds the lane that waits for this answer; one that was emptied meanwhile does not.
    fn awaiting(&self, ask: PrefetchRequest) -> Option<Key> {
        let at = *self.keys.get(&ask.key)?;
        self.lane(at).awaits(ask.after).then_some(at)
    }

    /// Gives a key, or a tenant and its key of the same name, another weight; acts on what waits.
    fn set_weight(&mut self, key: KeyId, name: &str, weight: Weight) {
        if let Some(tenant) = self.tenants.get(name) {
            self.drr.update_tenant_weight(tenant, weight);
        }
        if let Some(&at) = self.keys.get(&key) {
            self.weigh(at, weight);
        }
    }

    /// Gives a lane a weight: among the tenants if it is all its tenant has, else among its tenant's keys.
    fn weigh(&mut self, at: Key, weight: Weight) {
        let lane = self.at(at);
        lane.weight = weight;
        let tenant = lane.tenant;
        if lane.name.contains('/') {
            self.drr.update_weight(at, weight);
        } else {
            self.drr.update_tenant_weight(tenant, weight);
        }
    }

    /// Tells whether a message could be delivered now.
    pub fn has_ready(&self) -> bool {
        self.in_turn().is_some_and(KeyQueue::is_ready)
    }

    /// Tells whether a turn waits for the store, a few milliseconds at most.
    pub fn is_prefetching(&self) -> bool {
        self.in_turn().is_some_and(|lane| !lane.is_ready())
    }

    fn in_turn(&self) -> Option<&KeyQueue> {
        self.lanes[self.drr.next_key()?.key.index()].as_ref()
    }

    /// Finds or makes the lane of a key.
    fn lane_of(&mut self, key: KeyId, name: &Arc<str>) -> Result<Key, Rejection> {
        if let Some(&at) = self.keys.get(&key) {
            return Ok(at);
        }
        let full = |max| Rejection::TooManyKeys { max: u64::from(max) };
        let tenant_name = name.split('/').next().unwrap_or(name);
        let tenant = self.tenants.intern(tenant_name).map_err(|error| full(error.names_max))?;
        if self.tenant_lanes.len() <= tenant.index() {
            self.tenant_lanes.resize(tenant.index() + 1, 0);
        }
        self.tenant_lanes[tenant.index()] += 1;
        let weight = self.rule(name).weight.unwrap_or_default();
        let gates = self.gates_of(name);
        let mut lane = KeyQueue::new(key, name.clone(), tenant, weight);
        lane.gates = gates;
        lane.in_order = (self.order == DeliveryOrder::Fifo).then(Box::default);
        let at = self.free.pop().unwrap_or(Key(self.lanes.len() as u32));
        if at.index() == self.lanes.len() {
            self.lanes.push(None);
        }
        self.lanes[at.index()] = Some(lane);
        self.keys.insert(key, at);
        Ok(at)
    }

    /// Lets a lane stand among the turns as its messages do: active, parked while a gate or the store holds it, or idle.
    fn update_schedule(&mut self, at: Key) {
        let lanes = self.keys.len();
        let lane = self.lanes[at.index()].as_mut().expect("a lane that is followed is known");
        let window = lane.window_len(lanes);
        let ask = lane.refill_len(window).map(|count| PrefetchRequest {
            key: lane.key,
            after: lane.cursor(),
            count,
        });
        if let Some(ask) = ask {
            lane.begin_prefetch();
            self.refills.push_back(ask);
        }
        let waits_for_store = !lane.is_ready() && lane.on_disk_len() > 0;
        let began = lane.starved_since.filter(|_| waits_for_store);
        lane.starved_since = waits_for_store.then(|| began.unwrap_or(self.now));
        if waits_for_store && began.is_none() {
            self.starving.push_back((self.now + PREFETCH_WAIT_MAX, at));
        }
        let lane = self.lanes[at.index()].as_ref().expect("a lane that is followed is known");
        let is_patient = lane.starved_since.is_some_and(|since| self.now < since + PREFETCH_WAIT_MAX);
        let is_whole = !lane.name.contains('/');
        let tenant_name = lane.name.split('/').next().unwrap_or_default();
        let tenant_weight =
            if is_whole { lane.weight } else { self.rule(tenant_name).weight.unwrap_or_default() };
        let turns = Turns {
            tenant: lane.tenant,
            tenant_weight,
            key: at,
            weight: if is_whole { Weight::ONE } else { lane.weight },
        };
        let is_ready = lane.is_ready();
        let has_beyond = lane.on_disk_len() > 0;
        let gates = lane.gates;
        if gates.tenant.is_some() {
            self.follow_tenant(turns.tenant, gates.tenant);
        }
        let stood = if (is_ready || has_beyond) && self.is_throttled(at) {
            self.drr.park(at);
            self.drr.add_parked(turns)
        } else if is_ready || is_patient {
            self.drr.wake(at);
            self.drr.add_key(turns)
        } else if has_beyond {
            self.drr.park(at);
            self.drr.add_parked(turns)
        } else {
            self.drr.remove_key(at);
            Ok(())
        };
        self.list_first(at);
        self.list_idle(at);
        debug_assert!(stood.is_ok(), "a lane that was made has its place: {stood:?}");
    }

    /// Lists a lane that holds nothing, to be forgotten if that lasts.
    fn list_idle(&mut self, at: Key) {
        let now = self.now;
        let lane = self.at(at);
        if lane.is_idle() && !lane.is_listed_idle {
            lane.is_listed_idle = true;
            self.idle.push_back((now, at));
        }
    }

    fn hide(&mut self, lane: Key, handle: MessageEntry, how: InvisibleState) {
        let seq = handle.header.seq;
        match how {
            InvisibleState::Leased { until, .. } => {
                self.due.insert((until, seq));
                self.at(lane).in_flight += 1;
                self.totals.in_flight += 1;
            }
            InvisibleState::Delayed { until } => {
                self.due.insert((until, seq));
                self.at(lane).delay(seq);
                self.totals.delayed += 1;
            }
            InvisibleState::Acking { .. } | InvisibleState::Moving => self.at(lane).leaving += 1,
            InvisibleState::Expired { again } => {
                self.due.extend(again.map(|again| (again, seq)));
                self.at(lane).over += 1;
                self.ends.over += 1;
            }
        }
        if matches!(how, InvisibleState::Delayed { .. }) {
            self.ends.list(lane, &handle.header);
        } else {
            self.ends.unlist(&handle.header);
        }
        if how.is_out() {
            self.count_out(lane, 1);
        }
        self.out.insert(seq, InvisibleMessage { lane, handle, how });
    }

    /// Takes a message out of what is not waiting.
    fn take_out(&mut self, seq: Seq) -> Option<InvisibleMessage> {
        let out = self.out.remove(&seq)?;
        match out.how {
            InvisibleState::Leased { until, .. } => {
                self.due.remove(&(until, seq));
                self.at(out.lane).in_flight -= 1;
                self.totals.in_flight -= 1;
            }
            InvisibleState::Delayed { until } => {
                self.due.remove(&(until, seq));
                self.at(out.lane).end_delay(seq);
                self.totals.delayed -= 1;
            }
            InvisibleState::Acking { .. } | InvisibleState::Moving => self.at(out.lane).leaving -= 1,
            InvisibleState::Expired { again } => {
                again.map(|again| self.due.remove(&(again, seq)));
                self.at(out.lane).over -= 1;
                self.ends.over -= 1;
            }
        }
        if out.how.is_out() {
            self.count_out(out.lane, -1);
        }
        Some(out)
    }

    fn lane(&self, lane: Key) -> &KeyQueue {
        self.lanes[lane.index()].as_ref().expect("whoever holds a lane's number keeps it known")
    }

    fn at(&mut self, lane: Key) -> &mut KeyQueue {
        self.lanes[lane.index()].as_mut().expect("whoever holds a lane's number keeps it known")
    }

    fn drop_payload(&mut self, handle: Option<MessageEntry>) {
        let dropped = handle.and_then(|handle| handle.payload);
        self.payload_bytes -= dropped.as_ref().map_or(0, Payload::size);
    }
}

impl Limits {
    fn of(settings: &QueueSettings) -> Self {
        Self {
            retention: Duration::from_millis(settings.retention_ms),
            in_flight_max: settings.in_flight_max,
            attempts_max: settings.redrive.map(|redrive| redrive.attempts_max),
            cost_mode: settings.cost_mode,
        }
    }
}
