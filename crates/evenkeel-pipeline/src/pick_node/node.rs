//! One node: its slots, its health, and the figures it is chosen by.
//!
//! Bound: never more requests than slots at the moment one is sent; figures are at most a second old when it is chosen.

use evenkeel_policy::concurrency_limit::Epoch;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{Ewma, Gains, LatencyWindow, Outcome, RatioWindow};
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::PathRule;
use evenkeel_policy::score::{Candidate, NodeStats, RequestKind, Status};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::capacity::{Capacity, EngineLoad, Slots};
use super::circuit_breaker::CircuitBreaker;
use super::cooldown::Cooldown;
use crate::accept::{ModelId, RequestId};
use crate::options::BreakerOptions;
use crate::pick_path::{PathSpec, Paths};

/// How old the slow figures of a node may be when it is chosen.
pub(crate) const FIGURES_AGE_MAX: Duration = Duration::from_secs(1);

/// A node as it is added.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// How many requests it works on at once.
    pub slots: Slots,
    /// How much of the work it should get, relative to the others.
    pub weight: Weight,
    /// What it serves.
    pub models: Vec<ModelId>,
    /// The ways to it; none where there is nothing to choose.
    pub paths: Vec<PathSpec>,
}

/// Whether a node is to take new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// It takes new work.
    Serving,
    /// It finishes what it has.
    Draining,
    /// It finishes what it has and is forgotten then.
    Removing,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) capacity: Capacity,
    /// What it last said of its load.
    pub(crate) engine: Option<EngineLoad>,
    usual_cost: Cost,
    weight: Weight,
    /// In order.
    models: Vec<ModelId>,
    pub(crate) paths: Paths,
    pub(crate) duty: AdminState,
    /// Whether it said it has no room, and for how long.
    pub(crate) rest: Cooldown,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) busy: u32,
    transactions: u32,
    pub(crate) in_flight: Cost,
    /// The model it was last given work of: the others come first next time.
    last_model: Option<ModelId>,
    latency: LatencyWindow,
    latency_mean: Ewma,
    timeouts: RatioWindow,
    added_at: Instant,
    figures: CachedStats,
}

/// What takes long to compute and changes slowly.
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
        (capacity, usual_cost): (Capacity, Cost),
        paths: Paths,
        (breaker, backoff): (BreakerOptions, PathRule),
        now: Instant,
    ) -> Self {
        Self {
            capacity,
            engine: None,
            usual_cost,
            weight: spec.weight,
            models: ordered(&spec.models),
            paths,
            duty: AdminState::Serving,
            rest: Cooldown::new(breaker.cooldown),
            breaker: CircuitBreaker::new(breaker, backoff),
            busy: 0,
            transactions: 0,
            in_flight: Cost::ZERO,
            last_model: None,
            latency: LatencyWindow::default(),
            latency_mean: Ewma::new(Gains::RTT),
            timeouts: RatioWindow::default(),
            added_at: now,
            figures: CachedStats { at: now, ..CachedStats::default() },
        }
    }

    pub(crate) fn serves(&self, model: ModelId) -> bool {
        self.models.binary_search(&model).is_ok()
    }

    pub(crate) fn models(&self) -> &[ModelId] {
        &self.models
    }

    pub(super) fn set_models(&mut self, models: &[ModelId]) {
        self.models = ordered(models);
    }

    /// Its models, the one after that of its last work first.
    pub(crate) fn models_in_turn(&self) -> impl Iterator<Item = ModelId> {
        let next = self.last_model.map_or(0, |last| self.models.partition_point(|model| *model <= last));
        self.models[next..].iter().chain(&self.models[..next]).copied()
    }

    /// Tells whether it takes new work, slots apart.
    pub(crate) fn is_open(&self) -> bool {
        self.duty == AdminState::Serving && self.rest.admits() && self.breaker.allows()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.is_open() && self.busy < self.slots()
    }

    pub(crate) fn slots(&self) -> u32 {
        self.capacity.slots()
    }

    /// How many requests of others it has, as far as it says so.
    pub(crate) fn external_load(&self) -> u32 {
        self.engine.map_or(0, |load| load.running.saturating_add(load.waiting).saturating_sub(self.busy))
    }

    /// Takes in what it says of its load; `None` when it does not say any more.
    pub(crate) fn on_engine_load(&mut self, load: Option<EngineLoad>) {
        self.engine = load;
        if let Some(load) = load {
            self.capacity.on_engine_queue(load.waiting, self.busy);
        }
    }

    /// Takes a slot and chooses the way.
    pub(crate) fn reserve_slot(
        &mut self,
        now: Instant,
        request: RequestId,
        work: &SlotRequest,
    ) -> SlotReservation {
        self.busy += 1;
        self.transactions += u32::from(work.request == RequestKind::BeginTx);
        self.in_flight += work.cost;
        self.last_model = Some(work.model);
        self.breaker.on_send(request);
        self.rest.on_send(now, request);
        SlotReservation { path: self.paths.pick(now), epoch: self.capacity.on_send(self.busy) }
    }

    /// Corrects what its work is thought to cost.
    pub(crate) fn reprice(&mut self, before: Cost, now: Cost) {
        self.in_flight = self.in_flight - before + now;
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, request: RequestId, work: &SlotRequest, path: Option<PathId>) {
        self.busy -= 1;
        self.transactions -= u32::from(work.request == RequestKind::BeginTx);
        self.in_flight = self.in_flight - work.cost;
        self.breaker.on_release(request);
        self.rest.on_release(request);
        if let Some(path) = path {
            self.paths.release(path);
        }
    }

    /// Takes in how long the node took to begin its answer.
    pub(crate) fn on_latency(&mut self, now: Instant, latency: Duration) {
        self.latency.record(now, latency);
        self.latency_mean.record_millis(latency);
        self.timeouts.record(now, Outcome::Good);
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.timeouts.record(now, Outcome::Bad);
    }

    /// Brings the slow figures up to date if they are too old to choose by.
    pub(crate) fn refresh_if_old(&mut self, now: Instant) {
        if FIGURES_AGE_MAX <= now.since(self.figures.at) {
            self.refresh(now);
        }
    }

    pub(crate) fn refresh(&mut self, now: Instant) {
        self.figures = CachedStats {
            at: now,
            p95_latency_ms: self.latency.p95(now).unwrap_or_default().as_secs_f64() * 1_000.0,
            latency_samples: u32::try_from(self.latency.samples(now)).unwrap_or(u32::MAX),
            error_rate_1m: self.breaker.error_rate(now),
            timeouts_1m: u32::try_from(self.timeouts.bad(now)).unwrap_or(u32::MAX),
            uptime_sec: now.since(self.added_at).as_secs(),
        };
    }

    /// What a chooser sees of it: a database connection and a transaction are both a slot.
    pub(crate) fn stats(&self) -> NodeStats {
        let slots = i32::try_from(self.slots()).unwrap_or(i32::MAX);
        let CachedStats { p95_latency_ms, latency_samples, error_rate_1m, timeouts_1m, uptime_sec, .. } =
            self.figures;
        NodeStats {
            running_http_session: self.busy,
            running_sql: self.busy,
            running_tx: self.transactions,
            max_http_sessions: slots,
            max_open_conns: slots,
            max_transaction_conns: slots,
            open_conns: self.busy,
            p95_latency_ms,
            latency_samples,
            error_rate_1m,
            timeouts_1m,
            uptime_sec,
            status: self.status(),
            in_flight: self.in_flight + Cost(self.usual_cost.0.saturating_mul(self.external_load().into())),
            latency_estimate_ms: self.latency_mean.mean().unwrap_or(0.0),
            ..NodeStats::default()
        }
    }

    pub(super) fn candidate(&self, node: NodeId) -> Candidate {
        Candidate { node, weight: self.weight, stats: self.stats() }
    }

    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn transactions(&self) -> u32 {
        self.transactions
    }

    pub(crate) fn p95(&self, now: Instant) -> Option<Duration> {
        self.latency.p95(now)
    }

    /// When something about it changes by itself.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        [self.rest.timeout(), self.breaker.timeout(), self.paths.timeout()].into_iter().flatten().min()
    }

    fn status(&self) -> Status {
        match self.duty {
            AdminState::Serving if self.is_open() => Status::Serving,
            AdminState::Serving => Status::Down,
            AdminState::Draining | AdminState::Removing => Status::Draining,
        }
    }
}

/// A slot that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotReservation {
    pub(crate) path: Option<PathId>,
    /// Which of the node's limits it counts for.
    pub(crate) epoch: Epoch,
}

/// What a slot is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRequest {
    pub(crate) model: ModelId,
    pub(crate) request: RequestKind,
    /// What it is charged.
    pub(crate) cost: Cost,
}

fn ordered(models: &[ModelId]) -> Vec<ModelId> {
    let mut models = models.to_vec();
    models.sort_unstable();
    models.dedup();
    models
}
