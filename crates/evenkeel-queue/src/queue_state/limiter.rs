//! What holds a key back, or a tenant with all its keys: how many of its messages may be out, and how many per second.
//!
//! Bound: never more than `concurrency_max` are out; over any span of `t` seconds at most `rate × t + burst`
//! deliveries. A key that is held back takes no part in the turns, so it neither falls into debt nor holds up others.

use core::fmt;
use core::num::NonZeroU32;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_policy::id::{Key, TenantId};

use super::{LeasedMessage, QueueState};
use crate::id::KeyId;
use crate::rule::{KeyRule, Rate};
use crate::settings::DeliveryOrder;
use crate::time::UnixMillis;

const NS_PER_MS: u64 = 1_000_000;

/// Names a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimiterId(NonZeroU32);

/// The gates of a lane: its own, and its tenant's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyLimiters {
    pub(super) own: Option<LimiterId>,
    pub(super) tenant: Option<LimiterId>,
}

impl KeyLimiters {
    pub(super) fn is_none(self) -> bool {
        self.own.is_none() && self.tenant.is_none()
    }
}

/// Why messages of a key wait although it could be their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Who is held back.
    pub who: ThrottleScope,
    /// By what.
    pub by: ThrottleReason,
}

/// Who is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleScope {
    /// The key.
    Key,
    /// Its tenant, with all its keys.
    Tenant,
}

/// What holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleReason {
    /// So many are in consumers' hands, which is the most.
    Concurrency {
        /// The most.
        max: u32,
    },
    /// An earlier message of it is not done with, on a FIFO queue.
    Order,
    /// The rate is used up.
    Rate {
        /// Until then.
        until: UnixMillis,
    },
}

impl ThrottleReason {
    /// Until when, if that is known.
    pub const fn until(self) -> Option<UnixMillis> {
        match self {
            Self::Concurrency { .. } | Self::Order => None,
            Self::Rate { until } => Some(until),
        }
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.who {
            ThrottleScope::Key => "its key ",
            ThrottleScope::Tenant => "its tenant ",
        })?;
        match self.by {
            ThrottleReason::Concurrency { max } => {
                write!(f, "has {max} messages in flight, which is its most")
            }
            ThrottleReason::Order => f.write_str("has an earlier message that is not done with"),
            ThrottleReason::Rate { until } => write!(f, "has used up its rate until {until}"),
        }
    }
}

/// One gate: its limits and how far they are used.
#[derive(Debug)]
struct Limiter {
    name: Arc<str>,
    key: KeyId,
    concurrency_max: Option<NonZeroU32>,
    bucket: Option<TokenBucket>,
    /// Messages of a tenant that are out; a key's are counted by its lane.
    tenant_out: u64,
    /// When it is listed to be looked at again.
    wakes_at: Option<UnixMillis>,
}

/// A token bucket as one number: when it will be full again.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    rate: Rate,
    full_at_ns: u64,
}

impl TokenBucket {
    /// When the next delivery may be; now or earlier when it may be at once.
    fn next(self) -> UnixMillis {
        let interval = self.rate.interval_ns();
        let depth = interval.saturating_mul(u64::from(self.rate.burst().get()));
        // Time is told in milliseconds: what fits into one may come at its beginning.
        let depth = depth.max(NS_PER_MS);
        let from = self.full_at_ns.saturating_add(interval).saturating_sub(depth);
        UnixMillis(from.div_ceil(NS_PER_MS))
    }

    /// The same bucket at another rate: it lacks as many deliveries, which come back as fast as that says.
    fn at_rate(self, now: UnixMillis, rate: Rate) -> Self {
        if rate == self.rate {
            return self;
        }
        let now_ns = now.0.saturating_mul(NS_PER_MS);
        let missing = self.full_at_ns.saturating_sub(now_ns).div_ceil(self.rate.interval_ns());
        let missing = missing.min(u64::from(rate.burst().get()));
        Self { rate, full_at_ns: now_ns.saturating_add(missing.saturating_mul(rate.interval_ns())) }
    }

    fn take(&mut self, now: UnixMillis) {
        let now_ns = now.0.saturating_mul(NS_PER_MS);
        self.full_at_ns = self.full_at_ns.max(now_ns).saturating_add(self.rate.interval_ns());
    }
}

impl Limiter {
    /// What holds back at this time, when so many are out.
    fn holds(&self, now: UnixMillis, out: u64) -> Option<ThrottleReason> {
        if let Some(max) = self.concurrency_max.filter(|max| u64::from(max.get()) <= out) {
            return Some(ThrottleReason::Concurrency { max: max.get() });
        }
        let until = self.bucket.map(TokenBucket::next).filter(|next| now < *next)?;
        Some(ThrottleReason::Rate { until })
    }
}

/// All gates of a queue.
#[derive(Debug, Default)]
pub(super) struct Limiters {
    all: Vec<Option<Limiter>>,
    free: Vec<LimiterId>,
    by_name: HashMap<Arc<str>, LimiterId>,
    /// Gates that open by themselves, and when.
    wakes: BTreeSet<(UnixMillis, LimiterId)>,
}

impl Limiters {
    pub(super) fn get(&self, name: &str) -> Option<LimiterId> {
        self.by_name.get(name).copied()
    }

    fn gate(&self, id: LimiterId) -> Option<&Limiter> {
        self.all.get(id.0.get() as usize - 1)?.as_ref()
    }

    fn gate_mut(&mut self, id: LimiterId) -> Option<&mut Limiter> {
        self.all.get_mut(id.0.get() as usize - 1)?.as_mut()
    }

    /// Makes, changes or removes the gate of a name; a bucket lacks as many deliveries as before.
    fn set(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: &KeyRule) -> Option<LimiterId> {
        let known = self.get(name);
        if !rule.has_limits() {
            self.remove(name);
            return None;
        }
        let id = known.or_else(|| self.make(key, name))?;
        let gate = self.gate_mut(id)?;
        gate.concurrency_max = rule.concurrency_max;
        let before = gate.bucket;
        gate.bucket = rule.rate.map(|rate| match before {
            Some(bucket) => bucket.at_rate(now, rate),
            None => TokenBucket { rate, full_at_ns: 0 },
        });
        Some(id)
    }

    fn make(&mut self, key: KeyId, name: &Arc<str>) -> Option<LimiterId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.all.push(None);
                LimiterId(NonZeroU32::new(u32::try_from(self.all.len()).ok()?)?)
            }
        };
        let name = name.clone();
        self.by_name.insert(name.clone(), id);
        let gate = Limiter { name, key, concurrency_max: None, bucket: None, tenant_out: 0, wakes_at: None };
        self.all[id.0.get() as usize - 1] = Some(gate);
        Some(id)
    }

    fn remove(&mut self, name: &str) {
        let Some(id) = self.by_name.remove(name) else { return };
        let gate = self.all[id.0.get() as usize - 1].take();
        if let Some(at) = gate.and_then(|gate| gate.wakes_at) {
            self.wakes.remove(&(at, id));
        }
        self.free.push(id);
    }

    /// Lists a gate that opens by itself.
    fn wake_at(&mut self, id: LimiterId, at: UnixMillis) {
        let Some(gate) = self.gate_mut(id) else { return };
        let before = gate.wakes_at.replace(at);
        if before == Some(at) {
            return;
        }
        if let Some(before) = before {
            self.wakes.remove(&(before, id));
        }
        self.wakes.insert((at, id));
    }

    /// Names the moment at which the next gate opens by itself.
    pub(super) fn next_wake(&self) -> Option<UnixMillis> {
        self.wakes.first().map(|(at, _)| *at)
    }

    fn pop_awake(&mut self, now: UnixMillis) -> Option<LimiterId> {
        let &(at, id) = self.wakes.first().filter(|(at, _)| *at <= now)?;
        self.wakes.remove(&(at, id));
        self.gate_mut(id)?.wakes_at = None;
        Some(id)
    }

    /// Forgets what is out, after a purge.
    pub(super) fn clear(&mut self) {
        self.all.iter_mut().flatten().for_each(|gate| gate.tenant_out = 0);
    }
}

impl QueueState {
    /// Sets what a key, or a tenant with all its keys, is bound to; acts on what waits.
    ///
    /// Of a name without `/` it is the tenant's, of another the key's.
    pub fn set_rule(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: KeyRule) {
        self.now = now;
        let before =
            if rule.is_empty() { self.rules.remove(name) } else { self.rules.insert(name.clone(), rule) };
        if before.and_then(|before| before.weight) != rule.weight {
            self.set_weight(key, name, rule.weight.unwrap_or_default());
        }
        self.set_limits_of(key, name, &rule);
    }

    /// Reads what was set for a key or tenant.
    pub fn rule(&self, name: &str) -> KeyRule {
        self.rules.get(name).copied().unwrap_or_default()
    }

    fn set_limits_of(&mut self, key: KeyId, name: &Arc<str>, rule: &KeyRule) {
        let known = self.gates.get(name);
        let gate = self.gates.set(self.now, key, name, rule);
        if gate.is_none() && known.is_none() {
            return;
        }
        if name.contains('/') {
            if let Some(&at) = self.keys.get(&key) {
                self.at(at).gates.own = gate;
                self.update_schedule(at);
            }
            return;
        }
        let Some(tenant) = self.tenants.get(name) else { return };
        if known != gate {
            self.bind_tenant(tenant, gate);
        }
        self.follow_tenant(tenant, gate);
    }

    /// Puts a tenant's lanes behind a gate, or takes it away.
    fn bind_tenant(&mut self, tenant: TenantId, gate: Option<LimiterId>) {
        let mut out = 0;
        for lane in self.lanes.iter_mut().flatten().filter(|lane| lane.tenant == tenant) {
            lane.gates.tenant = gate;
            out += lane.out();
        }
        if let Some(gate) = gate.and_then(|gate| self.gates.gate_mut(gate)) {
            gate.tenant_out = out;
        }
    }

    /// Finds the gates of a key that becomes known.
    pub(super) fn gates_of(&self, name: &str) -> KeyLimiters {
        let tenant = name.split('/').next().unwrap_or(name);
        let own = if tenant.len() < name.len() { self.gates.get(name) } else { None };
        KeyLimiters { own, tenant: self.gates.get(tenant) }
    }

    /// Lets a tenant stand among the tenants as its gate does.
    pub(super) fn follow_tenant(&mut self, tenant: TenantId, gate: Option<LimiterId>) {
        let held = gate.and_then(|gate| Some((gate, self.tenant_held(gate)?)));
        let Some((gate, by)) = held else { return self.drr.wake_tenant(tenant) };
        let parked = self.drr.park_tenant(tenant);
        debug_assert!(parked.is_ok(), "a tenant that was made has its place: {parked:?}");
        if let ThrottleReason::Rate { until } = by {
            self.gates.wake_at(gate, until);
        }
    }

    fn tenant_held(&self, gate: LimiterId) -> Option<ThrottleReason> {
        let gate = self.gates.gate(gate)?;
        gate.holds(self.now, gate.tenant_out)
    }

    /// Says whether a lane is held back by its order or a gate of its own, and has it looked at when that opens by itself.
    pub(super) fn is_throttled(&mut self, at: Key) -> bool {
        let lane = self.lane(at);
        if lane.waits_for_earlier(self.takes) {
            return true;
        }
        let Some(own) = lane.gates.own else { return false };
        let by = self.gates.gate(own).and_then(|gate| gate.holds(self.now, lane.out()));
        if let Some(ThrottleReason::Rate { until }) = by {
            self.gates.wake_at(own, until);
        }
        by.is_some()
    }

    /// Says what holds a lane back.
    pub(super) fn throttle(&self, at: Key) -> Option<Throttle> {
        let lane = self.lane(at);
        if lane.waits_for_earlier(self.takes) {
            return Some(Throttle { who: ThrottleScope::Key, by: ThrottleReason::Order });
        }
        let own = lane.gates.own.and_then(|own| self.gates.gate(own)?.holds(self.now, lane.out()));
        let own = own.map(|by| Throttle { who: ThrottleScope::Key, by });
        own.or_else(|| {
            let by = lane.gates.tenant.and_then(|gate| self.tenant_held(gate))?;
            Some(Throttle { who: ThrottleScope::Tenant, by })
        })
    }

    /// Counts a delivery against the rates of its gates.
    pub(super) fn take_token(&mut self, at: Key) {
        let now = self.now;
        let KeyLimiters { own, tenant } = self.lane(at).gates;
        for gate in [own, tenant].into_iter().flatten() {
            if let Some(bucket) = self.gates.gate_mut(gate).and_then(|gate| gate.bucket.as_mut()) {
                bucket.take(now);
            }
        }
    }

    /// Counts a message of a lane as out at its tenant's gate, or no longer.
    pub(super) fn count_out(&mut self, at: Key, by: i64) {
        if let Some(gate) = self.lane(at).gates.tenant.and_then(|gate| self.gates.gate_mut(gate)) {
            gate.tenant_out = gate.tenant_out.saturating_add_signed(by);
        }
    }

    /// Looks again at a lane of which something is out no longer.
    pub(super) fn recheck(&mut self, at: Key) {
        let lane = self.lane(at);
        if lane.gates.is_none() && lane.in_order.is_none() {
            self.list_idle(at);
        } else {
            self.update_schedule(at);
        }
    }

    /// Ends a take: from here on what it leased holds up the rest of a key, where order matters.
    pub(super) fn end_take(&mut self, leased: &[LeasedMessage]) {
        if self.order == DeliveryOrder::Fair {
            return;
        }
        self.takes += 1;
        for leased in leased {
            if let Some(&at) = self.keys.get(&leased.key) {
                self.update_schedule(at);
            }
        }
    }

    /// Looks again at everybody whose gate has opened by itself.
    pub(super) fn open_gates(&mut self) {
        while let Some(id) = self.gates.pop_awake(self.now) {
            let Some(gate) = self.gates.gate(id) else { continue };
            if gate.name.contains('/') {
                if let Some(&at) = self.keys.get(&gate.key) {
                    self.update_schedule(at);
                }
            } else if let Some(tenant) = self.tenants.get(&gate.name) {
                self.follow_tenant(tenant, Some(id));
            }
        }
    }
}
