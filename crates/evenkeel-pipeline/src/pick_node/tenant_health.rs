//! Health of a node as each tenant sees it, so that the requests of one tenant do not take the node from the others.
//!
//! Guarantees: refusals (429, 503, 529) and failed responses of a tenant close the node only to that tenant. It is closed
//! to all once a second tenant has the same trouble, unless the node serves a third one meanwhile. Connection errors and health checks are evidence for
//! all and are not counted here.
//!
//! Limits: an entry only per tenant with evidence, at most [`TENANTS_MAX`]; the one unused for longest makes room.

use std::collections::BTreeMap;

use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{RequestId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, TripReason};
use evenkeel_policy::time::{Duration, Instant};

use super::circuit_breaker::{BreakerState, CircuitBreaker};
use super::cooldown::{Cooldown, Room};
use super::node::NodeDefaults;

/// Tenants of which a node keeps evidence.
const TENANTS_MAX: usize = 64;

/// Number of refusals among a tenant's last eight responses at which the node is closed to it.
const REFUSALS_TO_CLOSE: u32 = 4;

/// A tenant's failures older than this do not corroborate those of another tenant.
const EVIDENCE_AGE_MAX: Duration = Duration::from_secs(60);

/// A request served longer ago than this is no evidence that the node works.
pub(super) const SERVED_AGE_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct TenantHealth {
    defaults: NodeDefaults,
    tenants: BTreeMap<TenantId, Evidence>,
    /// The last two tenants that the node served although it was not closed to them, the latest first.
    served: [Option<(TenantId, Instant)>; 2],
}

#[derive(Clone, Debug)]
struct Evidence {
    used_at: Instant,
    /// The last eight responses, the newest in the lowest bit; a set bit is a refusal.
    refusals: u8,
    cooldown: Cooldown,
    breaker: CircuitBreaker,
    /// Start of the current run of failures.
    failing_since: Instant,
    /// Last time that the tenant's failures tripped its breaker, even if the node was kept open for lack of an alternative.
    failed_at: Option<Instant>,
    /// The tenant's failures helped to open the breaker for all.
    is_blamed: bool,
    /// The node was reported as closed to the tenant.
    is_reported: bool,
}

/// A node closed to a tenant, or opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantChange {
    Closed { until: Instant, reason: TripReason },
    Opened,
}

impl Evidence {
    fn is_blocked(&self) -> bool {
        self.breaker.state() != BreakerState::Closed || self.cooldown.is_cooling()
    }

    /// Returns the end of the closure, when a request may probe the node, and the reason.
    fn closure(&self) -> Option<(Instant, TripReason)> {
        match self.breaker.state() {
            BreakerState::Open { until, reason } => Some((until, reason)),
            BreakerState::Closed | BreakerState::HalfOpen => {
                self.cooldown.until().map(|until| (until, TripReason::Refusals))
            }
        }
    }

    /// Replaces its closure; no report of its end follows, because the node is closed to all.
    fn replace_closure(&mut self, cooldown: Cooldown, breaker: CircuitBreaker) {
        self.cooldown = cooldown;
        self.breaker = breaker;
        self.is_reported &= self.is_blocked();
    }

    fn is_clean(&self) -> bool {
        self.refusals == 0
            && !self.is_reported
            && !self.is_blocked()
            && !self.is_blamed
            && !self.breaker.is_failing()
            && self.failed_at.is_none()
    }
}

/// Responses that a tenant's failures can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corroboration {
    /// Another healthy node could serve the request, or this node serves other tenants.
    Others,
    /// Nothing: the tenant keeps this node, because without it its requests would wait instead of failing at once.
    Nothing,
}

/// Consequence of a tenant's failed response for its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is too little evidence.
    Undecided,
    /// The node is closed to the tenant.
    BlockTenant,
    /// Two tenants agree, and no other one was served meanwhile.
    TripBreaker(TripReason),
}

/// Reports whether the node had room when it last refused a request: it served one at the same load or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HadRoom {
    Yes,
    Unknown,
}

impl TenantHealth {
    pub(super) fn new(defaults: NodeDefaults) -> Self {
        Self { defaults, tenants: BTreeMap::new(), served: [None; 2] }
    }

    /// Reports whether one more request of a tenant may be sent.
    pub(crate) fn allows(&self, tenant: TenantId) -> bool {
        self.tenants.get(&tenant).is_none_or(|known| known.cooldown.allows() && known.breaker.allows())
    }

    /// Reports whether a tenant's failures helped to open the breaker for all.
    pub(crate) fn is_blamed(&self, tenant: TenantId) -> bool {
        self.tenants.get(&tenant).is_some_and(|known| known.is_blamed)
    }

    /// Returns the tenants to which the node is closed.
    pub(crate) fn blocked_tenants(&self) -> impl Iterator<Item = TenantId> {
        self.tenants.iter().filter(|(_, known)| known.is_blocked()).map(|(tenant, _)| *tenant)
    }

    /// Returns the end of the node's cooldown for a tenant.
    pub(crate) fn cooldown_until(&self, tenant: TenantId) -> Option<Instant> {
        self.tenants.get(&tenant)?.cooldown.until()
    }

    /// Reports whether the node is closed to a tenant, or probed by one, because it refused its requests.
    pub(crate) fn is_cooling(&self, tenant: TenantId) -> bool {
        self.tenants.get(&tenant).is_some_and(|known| known.cooldown.is_cooling())
    }

    /// Reports whether the node is closed to a tenant.
    pub(crate) fn is_blocked(&self, tenant: TenantId) -> bool {
        self.tenants.get(&tenant).is_some_and(Evidence::is_blocked)
    }

    /// Reports whether another tenant, to which the node is not closed, was served lately.
    pub(crate) fn serves_others(&self, now: Instant, tenant: TenantId) -> bool {
        self.served_other_at(tenant).is_some_and(|at| now.since(at) < SERVED_AGE_MAX)
    }

    /// Returns the last time that another tenant was served to which the node is not closed.
    fn served_other_at(&self, tenant: TenantId) -> Option<Instant> {
        let mut served = self.served.iter().flatten();
        served.find(|(other, _)| *other != tenant && !self.is_blocked(*other)).map(|(_, at)| *at)
    }

    fn record_served(&mut self, now: Instant, tenant: TenantId) {
        if self.served[0].is_some_and(|(latest, _)| latest != tenant) {
            self.served[1] = self.served[0];
        }
        self.served[0] = Some((tenant, now));
    }

    pub(super) fn on_send(&mut self, now: Instant, tenant: TenantId, request: RequestId) {
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.cooldown.on_send(now, request);
            known.breaker.on_send(request);
        }
    }

    /// Lets another request be the probe if this one ended without a verdict on the node.
    pub(super) fn on_release(&mut self, tenant: TenantId, request: RequestId) {
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.cooldown.on_release(request);
            known.breaker.on_release(request);
        }
    }

    /// Records that a request was served to its end, which ends a run of failures.
    pub(crate) fn on_success(&mut self, now: Instant, tenant: TenantId, request: RequestId) {
        let Some(known) = self.tenants.get_mut(&tenant) else { return };
        known.breaker.on_outcome(now, request, Outcome::Good);
        known.failed_at = None;
        if known.is_clean() {
            self.tenants.remove(&tenant);
        }
    }

    /// Records the first byte of a response.
    pub(crate) fn on_served(&mut self, now: Instant, tenant: TenantId, request: RequestId, room: HadRoom) {
        let Some(known) = self.tenants.get_mut(&tenant) else {
            self.record_served(now, tenant);
            return;
        };
        known.refusals <<= 1;
        known.cooldown.on_response(request);
        if room == HadRoom::Yes && known.cooldown.is_cooling() {
            known.refusals = 0;
            known.cooldown = Cooldown::new(self.defaults.breaker.cooldown);
        }
        known.breaker.on_response(now, request);
        known.is_blamed = false;
        let is_blocked = known.is_blocked();
        if known.is_clean() {
            self.tenants.remove(&tenant);
        }
        if !is_blocked {
            self.record_served(now, tenant);
        }
    }

    /// Lets a request probe the node at once in place of waiting for the end of a cooldown, because a slot was freed.
    pub(crate) fn on_room(&mut self) {
        self.tenants.values_mut().for_each(|known| known.cooldown.on_room());
    }

    /// Records a refusal; reports whether half of the tenant's last eight responses were refusals.
    pub(crate) fn on_refusal(&mut self, now: Instant, tenant: TenantId) -> bool {
        let known = self.entry(now, tenant);
        known.refusals = known.refusals << 1 | 1;
        REFUSALS_TO_CLOSE <= known.refusals.count_ones()
    }

    /// Closes the node to a tenant for a cooldown; reports whether it is cooling down for another tenant, too, and
    /// serves no one else.
    pub(crate) fn begin_cooldown(&mut self, now: Instant, tenant: TenantId) -> bool {
        let requested = self.defaults.breaker.cooldown;
        let known = self.entry(now, tenant);
        known.cooldown.begin(now, requested, Room::EndsIt);
        let mut others =
            self.tenants.iter().filter(|(other, known)| **other != tenant && known.cooldown.is_cooling());
        others.next().is_some() && !self.serves_others(now, tenant)
    }

    /// Ends the cooldowns of single tenants, because one for all begins.
    pub(crate) fn clear_cooldowns(&mut self) {
        let probe_timeout = self.defaults.breaker.cooldown;
        for known in self.tenants.values_mut() {
            known.replace_closure(Cooldown::new(probe_timeout), known.breaker.clone());
        }
    }

    /// Returns the tenants to which the node was closed or opened since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<(TenantId, TenantChange)> {
        let mut changes = Vec::new();
        self.tenants.retain(|tenant, known| {
            match (known.is_reported, known.closure()) {
                (false, Some((until, reason))) => {
                    changes.push((*tenant, TenantChange::Closed { until, reason }));
                    known.is_reported = true;
                }
                (true, None) if !known.is_blocked() => {
                    changes.push((*tenant, TenantChange::Opened));
                    known.is_reported = false;
                }
                (true, _) | (false, None) => return true,
            }
            !known.is_clean()
        });
        changes
    }

    /// Records a failed response. `basis` says whether the node can be closed to a single tenant.
    pub(crate) fn on_failure(
        &mut self,
        now: Instant,
        tenant: TenantId,
        attempt: (RequestId, AttemptFailure),
        basis: Corroboration,
    ) -> Verdict {
        let (request, failure) = attempt;
        let new_breaker = CircuitBreaker::new(self.defaults.breaker, self.defaults.backoff);
        let known = self.entry(now, tenant);
        if !known.breaker.is_failing() {
            known.failing_since = now;
        }
        let Some(BreakerState::Open { reason, .. }) = known.breaker.on_failure(now, request, failure) else {
            return Verdict::Undecided;
        };
        known.failed_at = Some(now);
        let since = known.failing_since;
        let has_evidence =
            |known: &Evidence| known.failed_at.is_some_and(|at| now.since(at) < EVIDENCE_AGE_MAX);
        let agrees = self.tenants.iter().any(|(other, known)| *other != tenant && has_evidence(known));
        let is_contradicted = self.served_other_at(tenant).is_some_and(|at| since <= at);
        if agrees && !is_contradicted {
            for known in self.tenants.values_mut() {
                known.is_blamed = has_evidence(known);
                known.failed_at = None;
                known.replace_closure(known.cooldown, new_breaker.clone());
            }
            return Verdict::TripBreaker(reason);
        }
        if basis == Corroboration::Nothing {
            self.entry(now, tenant).breaker = new_breaker;
            return Verdict::Undecided;
        }
        Verdict::BlockTenant
    }

    /// Forgets the failures of a tenant.
    pub(crate) fn forget_failures(&mut self, tenant: TenantId) {
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.breaker = CircuitBreaker::new(self.defaults.breaker, self.defaults.backoff);
            known.failed_at = None;
            if known.is_clean() {
                self.tenants.remove(&tenant);
            }
        }
    }

    pub(crate) fn on_time(&mut self, now: Instant) {
        for known in self.tenants.values_mut() {
            known.cooldown.on_time(now);
            known.breaker.on_time(now);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        let due = |known: &Evidence| [known.cooldown.timeout(), known.breaker.timeout()];
        self.tenants.values().flat_map(due).flatten().min()
    }

    fn entry(&mut self, now: Instant, tenant: TenantId) -> &mut Evidence {
        if TENANTS_MAX <= self.tenants.len() && !self.tenants.contains_key(&tenant) {
            let oldest =
                self.tenants.iter().min_by_key(|(_, known)| known.used_at).map(|(tenant, _)| *tenant);
            oldest.and_then(|oldest| self.tenants.remove(&oldest));
        }
        let NodeDefaults { breaker, backoff } = self.defaults;
        let known = self.tenants.entry(tenant).or_insert_with(|| Evidence {
            used_at: now,
            refusals: 0,
            cooldown: Cooldown::new(breaker.cooldown),
            breaker: CircuitBreaker::new(breaker, backoff),
            failing_since: now,
            failed_at: None,
            is_blamed: false,
            is_reported: false,
        });
        known.used_at = now;
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BreakerOptions;
    use evenkeel_policy::path::PathRule;

    const REQUEST: RequestId = RequestId(1);
    const ALICE: TenantId = TenantId(1);
    const BOB: TenantId = TenantId(2);
    const CAROL: TenantId = TenantId(3);

    #[test]
    fn half_of_the_last_eight_responses_refused_is_evidence() {
        let mut health = health();
        for _ in 0..3 {
            assert!(!health.on_refusal(at(0), ALICE));
        }
        (0..5).for_each(|_| health.on_served(at(0), ALICE, REQUEST, HadRoom::Unknown));
        assert!(!health.on_refusal(at(0), ALICE), "one refusal has left the window");
        assert!(!health.on_refusal(at(0), ALICE) && !health.on_refusal(at(0), ALICE));
        assert!(health.on_refusal(at(0), ALICE));
    }

    #[test]
    fn a_cooldown_for_one_tenant_is_not_one_for_another_and_two_make_one_for_all() {
        let mut health = health();
        assert!(!health.begin_cooldown(at(0), ALICE));
        assert!(!health.allows(ALICE) && health.allows(BOB));
        assert!(health.begin_cooldown(at(0), BOB));
    }

    #[test]
    fn a_cooldown_ends_when_the_refusals_were_not_for_lack_of_room() {
        for (room, is_open) in [(HadRoom::Unknown, false), (HadRoom::Yes, true)] {
            let mut health = health();
            health.begin_cooldown(at(0), ALICE);
            health.on_served(at(0), ALICE, REQUEST, room);
            assert_eq!(health.allows(ALICE), is_open, "{room:?}");
        }
    }

    #[test]
    fn five_failures_running_close_the_node_to_the_tenant_and_a_second_tenants_to_all() {
        let mut health = health();
        assert_eq!(fail(&mut health, ALICE), Verdict::BlockTenant);
        assert!(!health.allows(ALICE) && health.allows(BOB));
        assert!(matches!(
            fail(&mut health, BOB),
            Verdict::TripBreaker(TripReason::Failures { count: 5, .. })
        ));
        assert!(health.is_blamed(ALICE) && health.is_blamed(BOB) && !health.is_blamed(CAROL));
    }

    #[test]
    fn two_tenants_do_not_close_a_node_that_serves_a_third_one_meanwhile() {
        let mut health = health();
        assert_eq!(fail(&mut health, ALICE), Verdict::BlockTenant);
        health.on_served(at(1), CAROL, REQUEST, HadRoom::Unknown);
        assert_eq!(fail(&mut health, BOB), Verdict::BlockTenant);
    }

    #[test]
    fn a_closure_is_reported_once_and_its_end_once_unless_the_node_closes_to_all() {
        let mut health = health();
        assert_eq!(fail(&mut health, ALICE), Verdict::BlockTenant);
        let changes = health.take_changes();
        assert!(matches!(
            changes[..],
            [(ALICE, TenantChange::Closed { reason: TripReason::Failures { count: 5, .. }, .. })]
        ));
        health.on_time(at(60));
        assert!(health.take_changes().is_empty(), "it is half-open");
        health.on_send(at(60), ALICE, REQUEST);
        health.on_served(at(60), ALICE, REQUEST, HadRoom::Unknown);
        assert_eq!(health.take_changes(), [(ALICE, TenantChange::Opened)]);

        health.begin_cooldown(at(61), BOB);
        let until = at(61) + BreakerOptions::default().cooldown;
        let reason = TripReason::Refusals;
        assert_eq!(health.take_changes(), [(BOB, TenantChange::Closed { until, reason })]);
        health.clear_cooldowns();
        assert!(health.take_changes().is_empty());
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let mut health = health();
        for tenant in 0..200 {
            health.on_refusal(at(u64::from(tenant)), TenantId(tenant));
        }
        assert_eq!(health.tenants.len(), TENANTS_MAX);
        assert!(health.tenants.contains_key(&TenantId(199)));
    }

    fn fail(health: &mut TenantHealth, tenant: TenantId) -> Verdict {
        let attempt = (REQUEST, AttemptFailure::BadResponse);
        let verdict = |_| health.on_failure(at(1), tenant, attempt, Corroboration::Others);
        (0..5).map(verdict).last().unwrap()
    }

    fn health() -> TenantHealth {
        TenantHealth::new(NodeDefaults { breaker: BreakerOptions::default(), backoff: PathRule::default() })
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
