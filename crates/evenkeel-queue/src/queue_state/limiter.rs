//! Per-key and per-tenant limits: concurrent deliveries, and deliveries per second by a token bucket.
//!
//! A throttled key is parked in the scheduler, so it neither runs into debt nor blocks other keys.
//!
//! Guarantees: never more than `concurrency_max` messages are outstanding; over any `t` seconds at most
//! `rate × t + burst` deliveries are made.

use core::fmt;
use core::num::NonZeroU32;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_policy::id::{Key, TenantId};

use super::key_table::{is_tenant_name, tenant_name};
use super::schedule::Schedule;
use crate::id::KeyId;
use crate::rule::{KeyRule, Rate};
use crate::time::{TimeUntil, UnixMillis};

const NS_PER_MS: u64 = 1_000_000;

/// Index of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimiterId(NonZeroU32);

/// The limiters that apply to a key.
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

/// Reason why ready messages of a key are not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    pub scope: ThrottleScope,
    pub reason: ThrottleReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleScope {
    Key,
    /// The tenant, with all its keys.
    Tenant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleReason {
    /// As many messages are in flight as the limit allows.
    Concurrency { max: u32 },
    /// On a FIFO queue: an earlier message of the key is in flight or delayed.
    Order,
    /// The token bucket is empty.
    Rate { until: UnixMillis },
}

impl ThrottleReason {
    /// Returns when the throttle ends, if that is known.
    pub const fn until(self) -> Option<UnixMillis> {
        match self {
            Self::Concurrency { .. } | Self::Order => None,
            Self::Rate { until } => Some(until),
        }
    }
}

impl Throttle {
    /// Describes the throttle as seen at `now`.
    pub(super) fn describe(self, f: &mut fmt::Formatter<'_>, now: UnixMillis) -> fmt::Result {
        f.write_str(match self.scope {
            ThrottleScope::Key => "its key is throttled: ",
            ThrottleScope::Tenant => "its tenant is throttled: ",
        })?;
        match self.reason {
            ThrottleReason::Concurrency { max } => write!(f, "{max} in flight, the maximum"),
            ThrottleReason::Order => f.write_str("an earlier message is unfinished"),
            ThrottleReason::Rate { until } => {
                write!(f, "rate limit reached, next delivery {}", TimeUntil { at: until, now })
            }
        }
    }
}

/// The limits of one key or tenant, and their use.
#[derive(Debug)]
struct Limiter {
    name: Arc<str>,
    key: KeyId,
    concurrency_max: Option<NonZeroU32>,
    bucket: Option<TokenBucket>,
    /// Outstanding messages of a tenant; a key's are counted by its [`KeyQueue`](super::key_queue::KeyQueue).
    tenant_outstanding: u64,
    /// Time under which the limiter is listed in `wakes`.
    wakes_at: Option<UnixMillis>,
}

/// A token bucket, represented by the time at which it will be full again.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    rate: Rate,
    full_at_ns: u64,
}

impl TokenBucket {
    /// Returns when the next delivery is allowed; a past time means at once.
    fn next(self) -> UnixMillis {
        let interval = self.rate.interval_ns();
        let depth = interval.saturating_mul(u64::from(self.rate.burst().get()));
        // The clock has a resolution of a millisecond: deliveries due within one may be made at its start.
        let depth = depth.max(NS_PER_MS);
        let from = self.full_at_ns.saturating_add(interval).saturating_sub(depth);
        UnixMillis(from.div_ceil(NS_PER_MS))
    }

    /// Changes the rate; the bucket still lacks the same number of tokens and refills at the new rate.
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
    /// Returns the concurrency limit if it is reached with `outstanding` messages under way.
    fn reached(&self, outstanding: u64) -> Option<u32> {
        self.concurrency_max.map(NonZeroU32::get).filter(|max| outstanding >= u64::from(*max))
    }

    /// Returns why a delivery is not allowed now, with `outstanding` messages under way.
    fn throttle(&self, now: UnixMillis, outstanding: u64) -> Option<ThrottleReason> {
        if let Some(max) = self.reached(outstanding) {
            return Some(ThrottleReason::Concurrency { max });
        }
        let until = self.bucket.map(TokenBucket::next).filter(|next| now < *next)?;
        Some(ThrottleReason::Rate { until })
    }
}

/// All limiters of a queue.
#[derive(Debug, Default)]
pub(super) struct Limiters {
    all: Vec<Option<Limiter>>,
    free: Vec<LimiterId>,
    by_name: HashMap<Arc<str>, LimiterId>,
    /// Limiters whose token bucket allows a delivery again at a known time.
    wakes: BTreeSet<(UnixMillis, LimiterId)>,
}

impl Limiters {
    fn find(&self, name: &str) -> Option<LimiterId> {
        self.by_name.get(name).copied()
    }

    /// Returns the limiters that apply to a key.
    pub(super) fn of_key(&self, name: &str) -> KeyLimiters {
        let own = if is_tenant_name(name) { None } else { self.find(name) };
        KeyLimiters { own, tenant: self.find(tenant_name(name)) }
    }

    fn get(&self, id: LimiterId) -> Option<&Limiter> {
        self.all.get(id.0.get() as usize - 1)?.as_ref()
    }

    fn get_mut(&mut self, id: LimiterId) -> Option<&mut Limiter> {
        self.all.get_mut(id.0.get() as usize - 1)?.as_mut()
    }

    /// Creates, changes or removes the limiter of a name; a change adds no tokens to its bucket.
    fn set(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: &KeyRule) -> Option<LimiterId> {
        let known = self.find(name);
        if !rule.has_limits() {
            self.remove(name);
            return None;
        }
        let id = known.or_else(|| self.insert(key, name))?;
        let limiter = self.get_mut(id)?;
        limiter.concurrency_max = rule.concurrency_max;
        let before = limiter.bucket;
        limiter.bucket = rule.rate.map(|rate| match before {
            Some(bucket) => bucket.at_rate(now, rate),
            None => TokenBucket { rate, full_at_ns: 0 },
        });
        Some(id)
    }

    fn insert(&mut self, key: KeyId, name: &Arc<str>) -> Option<LimiterId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.all.push(None);
                LimiterId(NonZeroU32::new(u32::try_from(self.all.len()).ok()?)?)
            }
        };
        self.by_name.insert(name.clone(), id);
        self.all[id.0.get() as usize - 1] = Some(Limiter {
            name: name.clone(),
            key,
            concurrency_max: None,
            bucket: None,
            tenant_outstanding: 0,
            wakes_at: None,
        });
        Some(id)
    }

    fn remove(&mut self, name: &str) {
        let Some(id) = self.by_name.remove(name) else { return };
        let limiter = self.all[id.0.get() as usize - 1].take();
        if let Some(at) = limiter.and_then(|limiter| limiter.wakes_at) {
            self.wakes.remove(&(at, id));
        }
        self.free.push(id);
    }

    fn wake_at(&mut self, id: LimiterId, at: UnixMillis) {
        let Some(limiter) = self.get_mut(id) else { return };
        let before = limiter.wakes_at.replace(at);
        if before == Some(at) {
            return;
        }
        if let Some(before) = before {
            self.wakes.remove(&(before, id));
        }
        self.wakes.insert((at, id));
    }

    /// Returns when the next token bucket allows a delivery again.
    pub(super) fn next_wake(&self) -> Option<UnixMillis> {
        self.wakes.first().map(|(at, _)| *at)
    }

    fn pop_due(&mut self, now: UnixMillis) -> Option<LimiterId> {
        let &(at, id) = self.wakes.first().filter(|(at, _)| *at <= now)?;
        self.wakes.remove(&(at, id));
        self.get_mut(id)?.wakes_at = None;
        Some(id)
    }

    /// Resets the counts of outstanding messages, after a purge.
    pub(super) fn clear(&mut self) {
        self.all.iter_mut().flatten().for_each(|limiter| limiter.tenant_outstanding = 0);
    }
}

impl Schedule {
    /// Sets the rule of a key, or of a tenant if the name has no `/`; applies to waiting messages too.
    pub(super) fn set_rule(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: KeyRule) {
        let before =
            if rule.is_empty() { self.rules.remove(name) } else { self.rules.insert(name.clone(), rule) };
        if before.and_then(|before| before.weight) != rule.weight {
            self.set_weight(key, name, rule.weight.unwrap_or_default());
        }
        self.set_limits(now, key, name, &rule);
    }

    fn set_limits(&mut self, now: UnixMillis, key: KeyId, name: &Arc<str>, rule: &KeyRule) {
        let before = self.limiters.find(name);
        let limiter = self.limiters.set(now, key, name, rule);
        if limiter.is_none() && before.is_none() {
            return;
        }
        if !is_tenant_name(name) {
            if let Some(index) = self.keys.find(key) {
                self.key_mut(index).limiters.own = limiter;
                self.update(index, now);
            }
            return;
        }
        let Some(tenant) = self.keys.tenant(name) else { return };
        if before != limiter {
            self.bind_tenant(tenant, limiter);
        }
        self.update_tenant(tenant, limiter, now);
    }

    /// Attaches a limiter to all keys of a tenant, or detaches it.
    fn bind_tenant(&mut self, tenant: TenantId, limiter: Option<LimiterId>) {
        let mut outstanding = 0;
        for queue in self.keys.iter_mut().filter(|queue| queue.tenant == tenant) {
            queue.limiters.tenant = limiter;
            outstanding += queue.outstanding();
        }
        if let Some(limiter) = limiter.and_then(|limiter| self.limiters.get_mut(limiter)) {
            limiter.tenant_outstanding = outstanding;
        }
    }

    /// Parks a tenant in the scheduler if its limiter throttles it, otherwise wakes it.
    pub(super) fn update_tenant(&mut self, tenant: TenantId, limiter: Option<LimiterId>, now: UnixMillis) {
        let throttled = limiter.and_then(|limiter| Some((limiter, self.tenant_throttle(limiter, now)?)));
        let Some((limiter, reason)) = throttled else { return self.drr.wake_tenant(tenant) };
        let parked = self.drr.park_tenant(tenant);
        debug_assert!(parked.is_ok(), "the scheduler has room for every known tenant: {parked:?}");
        if let ThrottleReason::Rate { until } = reason {
            self.limiters.wake_at(limiter, until);
        }
    }

    fn tenant_throttle(&self, limiter: LimiterId, now: UnixMillis) -> Option<ThrottleReason> {
        let limiter = self.limiters.get(limiter)?;
        limiter.throttle(now, limiter.tenant_outstanding)
    }

    /// Reports whether FIFO order or the key's own limiter forbids a delivery; schedules a wake-up for a rate limit.
    pub(super) fn is_throttled(&mut self, index: Key, now: UnixMillis) -> bool {
        let queue = self.key(index);
        if queue.is_blocked(self.receives) {
            return true;
        }
        let Some(own) = queue.limiters.own else { return false };
        let reason = self.limiters.get(own).and_then(|limiter| limiter.throttle(now, queue.outstanding()));
        if let Some(ThrottleReason::Rate { until }) = reason {
            self.limiters.wake_at(own, until);
        }
        reason.is_some()
    }

    /// Returns why a key is not served, if it is throttled.
    pub(super) fn throttle(&self, index: Key, now: UnixMillis) -> Option<Throttle> {
        let queue = self.key(index);
        if queue.is_blocked(self.receives) {
            return Some(Throttle { scope: ThrottleScope::Key, reason: ThrottleReason::Order });
        }
        let own =
            queue.limiters.own.and_then(|own| self.limiters.get(own)?.throttle(now, queue.outstanding()));
        let own = own.map(|reason| Throttle { scope: ThrottleScope::Key, reason });
        own.or_else(|| {
            let reason = queue.limiters.tenant.and_then(|limiter| self.tenant_throttle(limiter, now))?;
            Some(Throttle { scope: ThrottleScope::Tenant, reason })
        })
    }

    /// Returns the concurrency limit that the key or its tenant has reached, if any.
    pub(super) fn reached_concurrency(&self, index: Key) -> Option<u32> {
        let queue = self.key(index);
        let own = queue.limiters.own.and_then(|own| self.limiters.get(own)?.reached(queue.outstanding()));
        own.or_else(|| {
            let tenant = self.limiters.get(queue.limiters.tenant?)?;
            tenant.reached(tenant.tenant_outstanding)
        })
    }

    /// Takes a token for a delivery from the buckets of the key and of its tenant.
    pub(super) fn take_token(&mut self, index: Key, now: UnixMillis) {
        let KeyLimiters { own, tenant } = self.key(index).limiters;
        for limiter in [own, tenant].into_iter().flatten() {
            if let Some(bucket) = self.limiters.get_mut(limiter).and_then(|limiter| limiter.bucket.as_mut()) {
                bucket.take(now);
            }
        }
    }

    /// Adds `change` to the outstanding messages that the limiter of the key's tenant counts.
    pub(super) fn count_outstanding(&mut self, index: Key, change: i64) {
        let limiter = self.key(index).limiters.tenant;
        if let Some(limiter) = limiter.and_then(|limiter| self.limiters.get_mut(limiter)) {
            limiter.tenant_outstanding = limiter.tenant_outstanding.saturating_add_signed(change);
        }
    }

    /// Updates the keys and tenants whose token bucket allows a delivery again.
    pub(super) fn wake_limiters(&mut self, now: UnixMillis) {
        while let Some(id) = self.limiters.pop_due(now) {
            let Some(limiter) = self.limiters.get(id) else { continue };
            if is_tenant_name(&limiter.name) {
                if let Some(tenant) = self.keys.tenant(&limiter.name) {
                    self.update_tenant(tenant, Some(id), now);
                }
            } else if let Some(index) = self.keys.find(limiter.key) {
                self.update(index, now);
            }
        }
    }

    pub(super) fn audit_limiters(&self) -> Result<(), String> {
        for limiter in self.limiters.all.iter().flatten().filter(|limiter| is_tenant_name(&limiter.name)) {
            let Some(tenant) = self.keys.tenant(&limiter.name) else { continue };
            let keys = self.keys.iter().filter(|(_, queue)| queue.tenant == tenant);
            let outstanding: u64 = keys.map(|(_, queue)| queue.outstanding()).sum();
            if outstanding != limiter.tenant_outstanding {
                let counted = limiter.tenant_outstanding;
                return Err(format!("{} has {outstanding} outstanding, counted {counted}", limiter.name));
            }
        }
        Ok(())
    }
}
