//! One node: its slots, its health, and its statistics for node selection.
//!
//! Guarantees: a request is sent only while the node has a free slot; cached statistics are at most a second old when
//! the node is chosen.

use evenkeel_policy::concurrency_limit::{Departure, PromptClass};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{LatencyWindow, Outcome, RatioWindow};
use evenkeel_policy::id::{ModelId, NodeId, RequestId, TenantId};
use evenkeel_policy::path::PathRule;
use evenkeel_policy::score::{Candidate, Comparison, NodeStats, RequestKind, Status};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::acceptance::Acceptance;
use super::capacity::{Capacity, EngineLoad, Slots};
use super::circuit_breaker::CircuitBreaker;
use super::cooldown::Cooldown;
use super::first_token::{FirstToken, ModelEstimates, PromptCache, ResponseForm};
use super::tenant_health::TenantHealth;
use super::transaction_places::TransactionPlaces;
use crate::accept::{Arrival, RequestRecord};
use crate::options::BreakerOptions;
use crate::pick_path::{PathSpec, Paths};

/// Maximum age of a node's cached statistics when it is chosen.
pub(crate) const STATS_AGE_MAX: Duration = Duration::from_secs(1);

/// Definition of a node to add.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Number of requests it serves at once.
    pub slots: Slots,
    /// Maximum number of slots that `BeginTx` requests hold at once; `None` for no limit besides the slots.
    ///
    /// Under [`GateRule::Quality`](evenkeel_policy::score::GateRule) the specification's gate refuses new transactions
    /// earlier: while less than `tx_free_min` of this number is free.
    pub transactions_max: Option<u32>,
    /// Share of the work it should get, relative to the other nodes.
    pub weight: Weight,
    /// Models it serves.
    pub models: Vec<ModelId>,
    /// Paths to choose from; empty if there is only one way to reach the node.
    pub paths: Vec<PathSpec>,
}

/// State of a node as set by the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// In rotation.
    Serving,
    /// Finishes its requests and gets no new ones.
    Draining,
    /// Finishes its requests, then is removed.
    Removing,
}

/// Settings that all nodes of a pool share.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeDefaults {
    pub(super) breaker: BreakerOptions,
    /// Backoff of an open circuit breaker.
    pub(super) backoff: PathRule,
}

/// Time since which a node could not be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreachable {
    pub(crate) since: Instant,
    /// End of the time for which requests wait; `None` once it has passed.
    pub(crate) hold_ends_at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) capacity: Capacity,
    /// Load last reported by its engine.
    pub(crate) engine: Option<EngineLoad>,
    /// Requests of other clients at that time.
    external: u32,
    weight: Weight,
    /// Sorted.
    models: Vec<ModelId>,
    /// In the order of `models`.
    estimates: Vec<ModelEstimates>,
    pub(crate) paths: Paths,
    pub(crate) admin_state: AdminState,
    /// Starts when the node answers 429 or 503.
    pub(crate) cooldown: Cooldown,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) tenants: TenantHealth,
    pub(crate) acceptance: Acceptance,
    /// Waiting tenants that did not open its breaker probe it.
    pub(super) is_probe_reserved: bool,
    /// `None` while it can be reached.
    pub(crate) unreachable: Option<Unreachable>,
    pub(crate) busy: u32,
    pub(crate) transactions: TransactionPlaces,
    pub(crate) in_flight: Cost,
    /// Model of the last request sent to it; the other models come first next time.
    last_model: Option<ModelId>,
    latency: LatencyWindow,
    timeouts: RatioWindow,
    /// Uptime of its engine when it was last known, at first 0 when the node was added.
    uptime: Duration,
    uptime_at: Instant,
    cached_stats: CachedStats,
}

/// Statistics that are costly to compute and change slowly.
#[derive(Clone, Copy, Debug, Default)]
struct CachedStats {
    at: Instant,
    p95_latency_ms: f64,
    latency_samples: u32,
    error_rate_1m: f64,
    timeouts_1m: u32,
    uptime_sec: u64,
}

impl Node {
    pub(super) fn new(
        spec: &NodeSpec,
        capacity: Capacity,
        paths: Paths,
        defaults: &NodeDefaults,
        now: Instant,
    ) -> Self {
        let models = sorted(&spec.models);
        Self {
            capacity,
            engine: None,
            external: 0,
            weight: spec.weight,
            estimates: vec![ModelEstimates::new(); models.len()],
            models,
            paths,
            admin_state: AdminState::Serving,
            cooldown: Cooldown::new(defaults.breaker.cooldown),
            breaker: CircuitBreaker::new(defaults.breaker, defaults.backoff),
            tenants: TenantHealth::new(*defaults),
            acceptance: Acceptance::default(),
            is_probe_reserved: false,
            unreachable: None,
            busy: 0,
            transactions: TransactionPlaces::new(spec.transactions_max),
            in_flight: Cost::ZERO,
            last_model: None,
            latency: LatencyWindow::default(),
            timeouts: RatioWindow::default(),
            uptime: Duration::ZERO,
            uptime_at: now,
            cached_stats: CachedStats { at: now, ..CachedStats::default() },
        }
    }

    pub(crate) fn serves(&self, model: ModelId) -> bool {
        self.models.binary_search(&model).is_ok()
    }

    pub(crate) fn models(&self) -> &[ModelId] {
        &self.models
    }

    pub(super) fn set_models(&mut self, models: &[ModelId]) {
        let models = sorted(models);
        let known = |model: &ModelId| self.models.binary_search(model).ok().map(|at| self.estimates[at]);
        let estimates = models.iter().map(|model| known(model).unwrap_or_else(ModelEstimates::new)).collect();
        self.estimates = estimates;
        self.models = models;
    }

    /// Returns the first-token estimates of a model; `None` if it does not serve the model.
    pub(super) fn first_token(&self, model: ModelId, mode: ResponseForm) -> Option<&FirstToken> {
        let at = self.models.binary_search(&model).ok()?;
        Some(self.estimates[at].get(mode))
    }

    pub(super) fn first_token_mut(&mut self, model: ModelId, mode: ResponseForm) -> Option<&mut FirstToken> {
        let at = self.models.binary_search(&model).ok()?;
        Some(self.estimates[at].get_mut(mode))
    }

    /// Returns its models, starting after that of its last request.
    pub(crate) fn models_round_robin(&self) -> impl Iterator<Item = ModelId> {
        let next = self.last_model.map_or(0, |last| self.models.partition_point(|model| *model <= last));
        self.models[next..].iter().chain(&self.models[..next]).copied()
    }

    /// Reports whether it may get new requests, regardless of free slots.
    pub(crate) fn is_available(&self) -> bool {
        self.admin_state == AdminState::Serving && self.cooldown.allows() && self.breaker.allows()
    }

    /// Reports whether a request may use it: it has not failed the request, nor refused it just before, and it is open to
    /// the request's tenant.
    pub(super) fn is_open_to(&self, id: NodeId, record: &RequestRecord) -> bool {
        let tenant = record.arrival.tenant;
        let is_held = record.holds.iter().any(|hold| {
            // A node that serves others meanwhile may be asked again at once.
            hold.node == id && !self.acceptance.has_served_since(hold.since)
        });
        let is_reserved = self.is_probe_reserved && self.tenants.is_blamed(tenant);
        let is_avoided = record.tried.contains(&id) || is_held || is_reserved;
        !is_avoided && self.tenants.allows(tenant)
    }

    /// Returns the end of its cooldown for a tenant.
    pub(crate) fn cooldown_until(&self, tenant: TenantId) -> Option<Instant> {
        self.cooldown.until().max(self.tenants.cooldown_until(tenant))
    }

    /// Records a failed connection or health check.
    pub(crate) fn on_unreachable(&mut self, now: Instant, hold: Duration) {
        let hold_ends_at = Some(now + hold);
        self.unreachable.get_or_insert(Unreachable { since: now, hold_ends_at });
    }

    /// Reports whether the time for which requests wait for it has passed just now.
    pub(crate) fn end_hold(&mut self, now: Instant) -> bool {
        let Some(unreachable) = &mut self.unreachable else { return false };
        unreachable.hold_ends_at.take_if(|at| *at <= now).is_some()
    }

    pub(crate) fn has_free_slot(&self) -> bool {
        self.is_available() && self.busy < self.slots()
    }

    /// Reports whether it has room for a request of this kind.
    pub(crate) fn has_room_for(&self, request: RequestKind) -> bool {
        self.has_free_slot() && (request != RequestKind::BeginTx || self.transactions.has_free())
    }

    pub(crate) fn slots(&self) -> u32 {
        self.capacity.slots()
    }

    /// Returns the number of requests from other clients, according to its engine.
    pub(crate) fn external_load(&self) -> u32 {
        self.external
    }

    /// Records the load reported by its engine; `None` when it stops reporting.
    pub(crate) fn on_engine_load(&mut self, now: Instant, load: Option<EngineLoad>) {
        self.engine = load;
        // Compared with the requests in flight now: later, those that have ended would count as other clients'.
        self.external =
            load.map_or(0, |load| load.running.saturating_add(load.waiting).saturating_sub(self.busy));
        if let Some(uptime) = load.and_then(|load| load.uptime) {
            self.uptime = uptime;
            self.uptime_at = now;
        }
        self.capacity.on_engine_load(now, load, self.busy);
    }

    /// Reserves a slot; returns what the concurrency limit has to know when the response arrives.
    pub(crate) fn reserve_slot(&mut self, now: Instant, request: RequestId, work: &SlotRequest) -> Departure {
        self.busy += 1;
        if work.request == RequestKind::BeginTx {
            self.transactions.reserve(work.tenant);
        }
        self.in_flight += work.cost;
        self.last_model = Some(work.model);
        if let Some(first_token) = self.first_token_mut(work.model, work.mode) {
            first_token.on_send(now, request, work.prompt_cache);
        }
        self.breaker.on_send(request);
        self.cooldown.on_send(now, request);
        self.tenants.on_send(now, work.tenant, request);
        self.capacity.on_send(now, self.busy, work.prompt)
    }

    /// Replaces the estimated cost of a request in flight.
    pub(crate) fn reprice(&mut self, before: Cost, after: Cost) {
        self.in_flight = self.in_flight - before + after;
    }

    pub(crate) fn release_slot(
        &mut self,
        now: Instant,
        request: RequestId,
        work: &SlotRequest,
        sent: Departure,
    ) {
        self.busy -= 1;
        self.capacity.on_end(now, sent, self.busy);
        if work.request == RequestKind::BeginTx {
            self.transactions.release(work.tenant);
        }
        self.in_flight = self.in_flight - work.cost;
        if let Some(first_token) = self.first_token_mut(work.model, work.mode) {
            first_token.on_release(request);
        }
        self.breaker.on_release(request);
        self.cooldown.on_release(request);
        self.tenants.on_release(work.tenant, request);
    }

    /// Records the time to the first byte of a response to a request.
    pub(crate) fn on_latency(&mut self, now: Instant, latency: Duration, work: &SlotRequest) {
        self.latency.record(now, latency);
        self.timeouts.record(now, Outcome::Good);
        if let Some(first_token) = self.first_token_mut(work.model, work.mode) {
            first_token.record(now, work.prompt_cache, latency);
        }
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.timeouts.record(now, Outcome::Bad);
    }

    /// Refreshes the cached statistics if they are older than [`STATS_AGE_MAX`].
    pub(crate) fn refresh_if_old(&mut self, now: Instant) {
        if now.since(self.cached_stats.at) >= STATS_AGE_MAX {
            self.refresh(now);
        }
    }

    pub(crate) fn refresh(&mut self, now: Instant) {
        self.cached_stats = CachedStats {
            at: now,
            p95_latency_ms: self.latency.p95(now).unwrap_or_default().as_secs_f64() * 1_000.0,
            latency_samples: u32::try_from(self.latency.samples(now)).unwrap_or(u32::MAX),
            error_rate_1m: self.breaker.error_rate(now),
            timeouts_1m: u32::try_from(self.timeouts.bad(now)).unwrap_or(u32::MAX),
            uptime_sec: (self.uptime + now.since(self.uptime_at)).as_secs(),
        };
    }

    /// Returns the selection policy's view of the node; a database connection and a transaction are both a slot.
    pub(crate) fn stats(&self) -> NodeStats {
        let slots = i32::try_from(self.slots()).unwrap_or(i32::MAX);
        let transactions_max = self.transactions.max.map(|max| i32::try_from(max).unwrap_or(i32::MAX));
        let CachedStats { p95_latency_ms, latency_samples, error_rate_1m, timeouts_1m, uptime_sec, .. } =
            self.cached_stats;
        NodeStats {
            running_http_session: self.busy,
            running_sql: self.busy,
            running_tx: self.transactions.in_use(),
            max_http_sessions: slots,
            max_open_conns: slots,
            // 0 would mean that the node is not configured for statements either.
            max_transaction_conns: transactions_max.map_or(slots, |max| max.min(slots).max(1)),
            open_conns: self.busy,
            p95_latency_ms,
            latency_samples,
            error_rate_1m,
            timeouts_1m,
            uptime_sec,
            status: self.status(),
            in_flight: self.in_flight,
            ..NodeStats::default()
        }
    }

    pub(super) fn candidate(&self, node: NodeId, comparison: Comparison) -> Candidate {
        let comparison = Comparison {
            load: self.busy.saturating_add(self.external),
            external: self.external,
            capacity: self.capacity.status().is_none().then(|| self.slots()),
            ..comparison
        };
        Candidate { node, weight: self.weight, stats: self.stats(), comparison }
    }

    pub(crate) fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
    }

    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn p95(&self, now: Instant) -> Option<Duration> {
        self.latency.p95(now)
    }

    /// Returns the time at which its cooldown, circuit breaker, a path or its state for a tenant next changes by itself.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let hold = self.unreachable.and_then(|unreachable| unreachable.hold_ends_at);
        let due = [
            self.cooldown.timeout(),
            self.breaker.timeout(),
            self.paths.timeout(),
            self.tenants.timeout(),
            hold,
        ];
        due.into_iter().flatten().min()
    }

    pub(crate) fn status(&self) -> Status {
        match self.admin_state {
            AdminState::Serving if self.is_available() => Status::Serving,
            AdminState::Serving => Status::Down,
            AdminState::Draining | AdminState::Removing => Status::Draining,
        }
    }
}

/// Work that a slot is reserved for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRequest {
    pub(crate) tenant: TenantId,
    pub(crate) model: ModelId,
    pub(crate) request: RequestKind,
    pub(crate) mode: ResponseForm,
    /// Expected state of the node's prompt cache.
    pub(crate) prompt_cache: PromptCache,
    /// Its estimated cost.
    pub(crate) cost: Cost,
    /// Its prompt.
    pub(crate) prompt: PromptClass,
}

impl SlotRequest {
    pub(crate) fn new(arrival: &Arrival, prompt_cache: PromptCache, cost: Cost) -> Self {
        let Arrival { tenant, model, request, .. } = *arrival;
        let prompt = PromptClass::new(arrival.upfront.0, prompt_cache);
        Self { tenant, model, request, mode: ResponseForm::of(arrival), prompt_cache, prompt, cost }
    }
}

fn sorted(models: &[ModelId]) -> Vec<ModelId> {
    let mut models = models.to_vec();
    models.sort_unstable();
    models.dedup();
    models
}
