//! One tenant's requests that wait for one model: classes, then sessions, then order of arrival.
//!
//! A flow is the requests of one session in one class. The classes share the tenant's service by their weights, and the
//! flows of a class share it equally, both by [`TenantDrr`]: the classes take the place of its tenants, the flows that of
//! its keys. A flow is charged what its tenant is charged, so the order within a tenant has no effect on other tenants.
//!
//! Guarantees: a waiting class gets at least its minimum share of what the tenant gets. A flow keeps its account while
//! one of its requests waits or is in flight, and afterwards until its debt is paid off or the tenant has no request
//! left, so that a session gains nothing by pausing.
//!
//! Limits: at most `sessions_max` flows have an account of their own; requests of further sessions share the account of
//! those without a session. A session that is new with every request therefore cannot displace the others: its accounts
//! are in debt until the others have been served as much.

use std::collections::BTreeMap;

use evenkeel_policy::class::{Class, ClassShares, SessionId, TenantFlow};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{KeyStatus, Settlement, TenantDrr, WeightedKey};
use evenkeel_policy::id::{Key, RequestId, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::weight::Weight;

use super::QueueEnd;
use super::flow_queue::{FlowQueue, Removed};
use crate::accept::RequestRecord;
use crate::audit::check;

/// Largest number of flows with which a cleared queue is kept.
const IDLE_FLOWS_MAX: usize = 8;

/// Requests of one tenant for one model that wait or are in flight.
#[derive(Clone, Debug)]
pub(crate) struct TenantQueue {
    shares: ClassShares,
    sessions_max: usize,
    drr: TenantDrr,
    /// Set once a second flow appears. Until then the only flow is not scheduled and its charges are not recorded: most
    /// tenants name neither classes nor sessions.
    is_contested: bool,
    /// By key; entries in `free` are unused.
    flows: Vec<FlowQueue>,
    free: Vec<Key>,
    /// Flows with an account; those of one session are neighbours.
    keys: BTreeMap<TenantFlow, Key>,
    /// Scheduled requests, by class number.
    queued: [usize; Class::COUNT],
    /// Requests that wait or are in flight.
    live: u32,
    cost: Cost,
}

/// A request that gives up its place to another one of the same tenant.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    session: Option<SessionId>,
    /// Waiting requests of its session.
    places: usize,
    class: Class,
    order: u64,
    request: RequestId,
}

impl TenantQueue {
    pub(super) fn new(
        quantum: Cost,
        shares: ClassShares,
        sessions_max: u32,
    ) -> Result<Self, SettingOutOfRange> {
        // Each class may also have a flow without a session.
        let keys_max = sessions_max + Class::COUNT as u32;
        Ok(Self {
            shares,
            sessions_max: sessions_max as usize,
            drr: TenantDrr::new(quantum, keys_max)?,
            is_contested: false,
            flows: Vec::new(),
            free: Vec::new(),
            keys: BTreeMap::new(),
            queued: [0; Class::COUNT],
            live: 0,
            cost: Cost::ZERO,
        })
    }

    /// Returns the account of a request's flow, which the request holds until [`close`](Self::close).
    pub(super) fn open(&mut self, flow: TenantFlow) -> Key {
        let flow = self.account_of(flow);
        let key = self.keys.get(&flow).copied().unwrap_or_else(|| self.create(flow));
        self.flows[key.index()].live += 1;
        self.live += 1;
        key
    }

    /// Releases the account of a request that has ended; returns `false` once the tenant has none left.
    pub(super) fn close(&mut self, key: Key) -> bool {
        self.live -= 1;
        self.flows[key.index()].live -= 1;
        if self.is_settled(key) {
            self.release(key);
        }
        self.live > 0
    }

    /// Clears a queue without requests, so that it can serve another tenant; returns `false` if it has grown too large to
    /// be kept.
    pub(super) fn clear(&mut self) -> bool {
        if IDLE_FLOWS_MAX < self.flows.len() || !self.drr.clear() {
            return false;
        }
        self.free.clear();
        self.free.extend((0..self.flows.len()).map(|index| Key(index as u32)));
        self.keys.clear();
        self.is_contested = false;
        true
    }

    /// Returns the flow to whose account a flow's requests belong: its own, or that of the requests without a session.
    fn account_of(&self, flow: TenantFlow) -> TenantFlow {
        let has_own = flow.session.is_none()
            || self.keys.contains_key(&flow)
            || self.sessions().len() < self.sessions_max
            || self.settled_session().is_some();
        if has_own { flow } else { TenantFlow { session: None, ..flow } }
    }

    /// Returns the accounts of flows with a session.
    fn sessions(&self) -> impl ExactSizeIterator<Item = Key> {
        // Flows without a session are first, at most one of each class.
        let without_session = self.keys.keys().take_while(|flow| flow.session.is_none()).count();
        self.keys.values().skip(without_session).copied()
    }

    /// Returns a session without requests whose debt is paid off.
    fn settled_session(&self) -> Option<Key> {
        self.sessions().find(|key| self.is_settled(*key))
    }

    fn is_settled(&self, key: Key) -> bool {
        self.flows[key.index()].live == 0 && self.drr.debt(key) == Cost::ZERO
    }

    fn create(&mut self, flow: TenantFlow) -> Key {
        if flow.session.is_some()
            && self.sessions().len() == self.sessions_max
            && let Some(settled) = self.settled_session()
        {
            self.release(settled);
        }
        let key = self.free.pop().unwrap_or_else(|| {
            self.flows.push(FlowQueue::default());
            // At most `sessions_max` and one per class.
            Key(self.flows.len() as u32 - 1)
        });
        if !self.is_contested && !self.keys.is_empty() {
            self.contest();
        }
        self.flows[key.index()].flow = flow;
        self.keys.insert(flow, key);
        key
    }

    /// Starts to schedule the flows. The one that exists has had its turn, so that a new one is served first.
    fn contest(&mut self) {
        self.is_contested = true;
        let Some(key) = self.keys.values().next().copied() else { return };
        self.schedule(key);
        self.drr.consume_deficit(key, Cost(1));
        if self.flows[key.index()].queued_len() == 0 {
            // Its requests in flight are settled later.
            self.drr.remove_key(key);
        }
    }

    /// Adds a flow whose first request is queued to the scheduler.
    fn schedule(&mut self, key: Key) {
        let class = self.flows[key.index()].flow.class;
        self.update_weights();
        let added = self.drr.add_key(WeightedKey {
            tenant: number(class),
            tenant_weight: self.class_weight(class),
            key,
            weight: Weight::ONE,
        });
        debug_assert!(added.is_ok());
    }

    fn release(&mut self, key: Key) {
        self.drr.forget_key(key);
        self.keys.remove(&self.flows[key.index()].flow);
        self.free.push(key);
    }

    /// Registers a request that holds queue capacity and is not queued yet.
    pub(super) fn register(&mut self, request: RequestId, record: &RequestRecord) {
        let Some(key) = record.flow else { return };
        self.flows[key.index()].register(request, record);
        self.cost += record.arrival.cost;
    }

    /// Schedules a registered request; returns whether it is the only one.
    pub(super) fn push(&mut self, request: RequestId, record: &RequestRecord, end: QueueEnd) -> bool {
        let Some(key) = record.flow else { return false };
        let flow_queue = &mut self.flows[key.index()];
        let class = flow_queue.flow.class;
        flow_queue.push(request, record.arrival.request, end);
        let is_first = flow_queue.queued_len() == 1;
        self.queued[class.index()] += 1;
        if is_first && self.is_contested {
            self.schedule(key);
        }
        self.queued_len() == 1
    }

    /// Removes a waiting request; returns `false` if it is not registered.
    pub(super) fn leave(&mut self, request: RequestId, record: &RequestRecord) -> bool {
        let Some(key) = record.flow else { return false };
        let flow_queue = &mut self.flows[key.index()];
        let class = flow_queue.flow.class;
        match flow_queue.remove(request, record) {
            Removed::Unknown => return false,
            Removed::Delayed => {}
            Removed::Queued => {
                let is_last = flow_queue.queued_len() == 0;
                self.queued[class.index()] -= 1;
                if is_last && self.is_contested {
                    self.drr.remove_key(key);
                    self.update_weights();
                }
            }
        }
        self.cost = self.cost - record.arrival.cost;
        true
    }

    fn update_weights(&mut self) {
        for class in Class::ALL {
            if self.queued[class.index()] > 0 {
                self.drr.update_tenant_weight(number(class), self.class_weight(class));
            }
        }
    }

    fn class_weight(&self, class: Class) -> Weight {
        self.shares.weight(class, self.queued.map(|queued| queued > 0))
    }

    /// Charges a flow for a request that gets a slot.
    pub(super) fn charge(&mut self, key: Key, charged: Cost) {
        if self.is_contested {
            self.drr.consume_deficit(key, charged);
        }
    }

    /// Replaces the charge for a request.
    pub(super) fn settle(&mut self, key: Key, charged: Cost, actual: Cost, settlement: Settlement) {
        if self.is_contested {
            self.drr.settle(key, charged, actual, settlement);
        }
    }

    /// Returns the flow whose turn it is.
    pub(crate) fn next_flow(&self) -> Option<Key> {
        if self.is_contested {
            return self.drr.next_key().map(|turn| turn.key);
        }
        self.keys.values().next().copied().filter(|_| self.queued_len() > 0)
    }

    /// Excludes a flow until it is woken.
    pub(crate) fn park(&mut self, key: Key) {
        self.drr.park(key);
    }

    pub(crate) fn wake(&mut self, key: Key) {
        self.drr.wake(key);
    }

    pub(crate) fn flow(&self, key: Key) -> Option<&FlowQueue> {
        self.flows.get(key.index())
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &FlowQueue> {
        self.flows.iter()
    }

    /// Returns the flows of the same class that follow a flow, without it, out of the next `searched_max` accounts.
    pub(crate) fn neighbours(&self, key: Key, searched_max: usize) -> impl Iterator<Item = &FlowQueue> {
        let class = self.flow(key).map(|flow_queue| flow_queue.flow.class);
        let following = self.flows.iter().skip(key.index() + 1).chain(self.flows.iter().take(key.index()));
        following.take(searched_max).filter(move |flow_queue| Some(flow_queue.flow.class) == class)
    }

    /// Returns the number of scheduled requests.
    pub(crate) fn queued_len(&self) -> usize {
        self.queued.iter().sum()
    }

    /// Returns all waiting requests, delayed ones included.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.flows.iter().flat_map(FlowQueue::waiting).map(|(_, request)| *request)
    }

    pub(crate) fn waiting_of(&self, class: Class) -> usize {
        let of_class = self.flows.iter().filter(|flow_queue| flow_queue.flow.class == class);
        of_class.map(|flow_queue| flow_queue.waiting().len()).sum()
    }

    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the cost of the waiting requests of a flow.
    pub(super) fn cost_of(&self, flow: TenantFlow) -> Cost {
        self.keys.get(&self.account_of(flow)).map_or(Cost::ZERO, |key| self.flows[key.index()].cost())
    }

    /// Returns the fraction, 0 to 1, of the tenant's service that the next request of a flow can count on.
    pub(super) fn share_of(&self, flow: TenantFlow) -> f64 {
        let flow = self.account_of(flow);
        let waits = |flow_queue: &&FlowQueue| !flow_queue.waiting().is_empty();
        let mut waiting = self.queued.map(|queued| queued > 0);
        waiting[flow.class.index()] = true;
        let others = self.flows.iter().filter(waits).map(|flow_queue| flow_queue.flow);
        let others = others.filter(|other| other.class == flow.class && *other != flow).count();
        self.shares.weight(flow.class, waiting).as_f64() / (others + 1) as f64
    }

    /// Returns the waiting request that makes room if one must: of the session with the most waiting requests, the
    /// newest of its lowest class.
    pub(crate) fn victim(&self) -> Option<RequestId> {
        self.candidate().map(|candidate| candidate.request)
    }

    /// Returns the waiting request that gives up its place to one that arrives.
    ///
    /// Its session must hold at least two places more than the arrival's, or one more at a lower class; among the requests
    /// of one session, its class must be lower.
    pub(crate) fn victim_for(&self, flow: TenantFlow) -> Option<RequestId> {
        let flow = self.account_of(flow);
        let candidate = self.candidate()?;
        let is_lower = candidate.class < flow.class;
        let yields = if candidate.session == flow.session {
            is_lower
        } else {
            let places_after = self.places_of(flow.session) + 1;
            places_after < candidate.places || (places_after == candidate.places && is_lower)
        };
        yields.then_some(candidate.request)
    }

    /// Reports whether a flow's session holds fewer places than the average of the tenant's waiting sessions.
    pub(crate) fn is_below_average(&self, flow: TenantFlow) -> bool {
        let mut places = 0;
        let mut sessions = 0;
        let mut last = None;
        for (flow, key) in &self.keys {
            let waiting = self.flows[key.index()].waiting().len();
            places += waiting;
            if waiting > 0 && last != Some(flow.session) {
                sessions += 1;
                last = Some(flow.session);
            }
        }
        self.places_of(self.account_of(flow).session) * sessions < places
    }

    fn places_of(&self, session: Option<SessionId>) -> usize {
        let flows = Class::ALL.into_iter().map(|class| TenantFlow { session, class });
        let keys = flows.filter_map(|flow| self.keys.get(&flow));
        keys.map(|key| self.flows[key.index()].waiting().len()).sum()
    }

    fn candidate(&self) -> Option<Candidate> {
        let mut best: Option<Candidate> = None;
        let mut session: Option<Candidate> = None;
        // The flows of one session are neighbours, its lowest class first.
        for (flow, key) in &self.keys {
            let waiting = self.flows[key.index()].waiting().len();
            let Some((order, request)) = self.flows[key.index()].newest() else { continue };
            session = Some(match session.filter(|candidate| candidate.session == flow.session) {
                Some(candidate) => Candidate { places: candidate.places + waiting, ..candidate },
                None => {
                    best = better(best, session);
                    Candidate { session: flow.session, places: waiting, class: flow.class, order, request }
                }
            });
        }
        better(best, session)
    }
}

impl TenantQueue {
    /// Recomputes every counter and returns the first mismatch, for tests; the tenant has `live` requests.
    pub(crate) fn audit(&self, live: u32) -> Result<(), String> {
        let counted: u32 = self.flows.iter().map(|flow_queue| flow_queue.live).sum();
        check(self.live == live && counted == live, || format!("{self:?}, expected {live} live requests"))?;
        let accounts = self.flows.len() - self.free.len();
        check(self.keys.len() == accounts, || format!("{accounts} accounts, but {:?}", self.keys))?;
        let sessions = self.keys.keys().filter(|flow| flow.session.is_some()).count();
        check(sessions <= self.sessions_max, || format!("{sessions} sessions"))?;
        for (flow, key) in &self.keys {
            let flow_queue = &self.flows[key.index()];
            let status = self.drr.key_status(*key);
            let is_active = !matches!(status, KeyStatus::Idle | KeyStatus::Parked);
            let is_scheduled = self.is_contested && flow_queue.queued_len() > 0;
            let is_consistent = flow_queue.flow == *flow && is_active == is_scheduled;
            check(is_consistent, || format!("{flow:?} is {status:?}: {flow_queue:?}"))?;
        }
        for class in Class::ALL {
            let of_class = self.flows.iter().filter(|flow_queue| flow_queue.flow.class == class);
            let queued: usize = of_class.map(FlowQueue::queued_len).sum();
            check(self.queued[class.index()] == queued, || format!("{queued} of class {class} are queued"))?;
        }
        check(self.next_flow().is_some() == (self.queued_len() > 0), || "no flow is next".to_owned())
    }
}

/// Returns the candidate whose session holds more places; then the one of the lower class; then the newer one.
fn better(one: Option<Candidate>, other: Option<Candidate>) -> Option<Candidate> {
    let rank =
        |candidate: &Candidate| (candidate.places, core::cmp::Reverse(candidate.class), candidate.order);
    one.into_iter().chain(other).max_by_key(rank)
}

/// Returns the number by which the scheduler knows a class.
fn number(class: Class) -> TenantId {
    TenantId(class as u32)
}
