//! The simulated gateway: drives the pipeline on a virtual clock, with simulated clients and nodes.

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    AdmitRule, Arrival, InvalidOptions, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PathSpec,
    PipelineOptions, Priority, RegistryError, Rejection, RequestEnd, RequestId, Slots, TenantFlow,
    TenantRule,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{Key, NodeId, PathId, TenantId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use crate::event_queue::{EventQueue, Step};
use crate::record::{SimRun, TimedEvent, TraceEvent};
use crate::rng::Rng;
use crate::scenario::{AdmitPolicy, Demand, NodePlan, Scenario, ServiceOrder, TenantAction};

const MODEL: ModelId = ModelId(0);

/// Wait timeout of the pipeline, longer than any wait in a scenario.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario) -> Result<SimRun, SimError> {
    let mut simulation = Simulation::new(scenario)?;
    simulation.start()?;
    let end = Instant::ORIGIN + scenario.duration;
    while let Some(step) = simulation.event_queue.next_step(simulation.pipeline.poll_timeout(), end) {
        match step {
            Step::Timer(due) => simulation.pipeline.handle_time(due),
            Step::Event(event) => simulation.handle(event)?,
        }
        simulation.apply_events()?;
    }
    let status = simulation.pipeline.status();
    Ok(SimRun {
        events: simulation.events,
        still_waiting: status.waiting,
        idle_while_waiting: simulation.idle_while_waiting,
        cache_hits: status.cache.hits,
    })
}

enum SimEvent {
    Arrival(TenantId),
    FirstByte(RequestId),
    /// Half of the response has been generated.
    Half(RequestId),
    Done(RequestId),
    Change(TenantAction),
}

/// A simulated request.
#[derive(Clone, Copy)]
struct SimRequest {
    number: u32,
    tenant: TenantId,
    key: Key,
    actual: Cost,
    sent: Option<(NodeId, Option<PathId>)>,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    event_queue: EventQueue<SimEvent>,
    /// Picks the tenants to park and wake.
    rng: Rng,
    /// One per tenant, so that arrivals do not depend on scheduling decisions.
    tenant_rngs: Vec<Rng>,
    rules: Vec<TenantRule>,
    /// First affinity key of each tenant; its other keys follow.
    first_keys: Vec<u32>,
    pipeline: OptimizedLoadManager,
    requests: BTreeMap<RequestId, SimRequest>,
    arrived: u32,
    /// Waiting requests per tenant and, below, busy slots per node; both are counted from the events alone.
    waiting: Vec<usize>,
    busy: Vec<u32>,
    events: Vec<TimedEvent>,
    idle_while_waiting: usize,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, SimError> {
        let mut rng = Rng::new(scenario.seed);
        let mut first_keys = vec![];
        let mut next = 0;
        for tenant in &scenario.tenants {
            first_keys.push(next);
            next += tenant.keys;
        }
        let tenant_rngs = scenario.tenants.iter().map(|_| Rng::new(rng.next_u64())).collect();
        let rule = |weight| TenantRule { weight, ..TenantRule::default() };
        Ok(Self {
            scenario,
            event_queue: EventQueue::new(),
            tenant_rngs,
            rules: scenario.tenants.iter().map(|tenant| rule(tenant.weight)).collect(),
            first_keys,
            pipeline: OptimizedLoadManager::new(options(scenario, rng.next_u64()))?,
            requests: BTreeMap::new(),
            arrived: 0,
            waiting: vec![0; scenario.tenants.len()],
            busy: vec![0; scenario.nodes.len()],
            events: vec![],
            idle_while_waiting: 0,
            rng,
        })
    }

    fn start(&mut self) -> Result<(), SimError> {
        for node in &self.scenario.nodes {
            let paths = node.paths.iter().map(|path| PathSpec { rtt: Some(path.rtt) }).collect();
            let spec = NodeSpec {
                slots: Slots::Fixed(node.slots),
                transactions_max: None,
                weight: Weight::ONE,
                models: vec![MODEL],
                paths,
            };
            self.pipeline.add_node(Instant::ORIGIN, &spec)?;
        }
        for id in 0..self.rules.len() {
            self.set_rule(TenantId(id as u32))?;
        }
        for (id, tenant) in (0_u32..).zip(&self.scenario.tenants) {
            match tenant.demand {
                Demand::Every(mean) => {
                    let first = self.tenant_rngs[id as usize].exponential(mean);
                    self.event_queue.schedule(first, SimEvent::Arrival(TenantId(id)));
                }
                Demand::Backlog(depth) => {
                    for _ in 0..depth {
                        self.accept(TenantId(id))?;
                    }
                }
            }
        }
        for &(at, change) in &self.scenario.changes {
            self.event_queue.schedule(at, SimEvent::Change(change));
        }
        self.apply_events()
    }

    fn handle(&mut self, due: SimEvent) -> Result<(), SimError> {
        let now = self.event_queue.now();
        match due {
            SimEvent::Arrival(tenant) => {
                if let Demand::Every(mean) = self.scenario.tenants[tenant.index()].demand {
                    let next = self.tenant_rngs[tenant.index()].exponential(mean);
                    self.event_queue.schedule(next, SimEvent::Arrival(tenant));
                }
                self.accept(tenant)?;
            }
            SimEvent::FirstByte(request) => self.pipeline.handle_first_byte(now, request),
            SimEvent::Half(request) => {
                let half =
                    self.requests.get(&request).map_or(Cost::ZERO, |request| Cost(request.actual.0 / 2));
                self.pipeline.handle_progress(now, request, half);
            }
            SimEvent::Done(request) => self.finish(request),
            SimEvent::Change(change) => self.change(change)?,
        }
        Ok(())
    }

    /// Submits a request of `tenant`.
    fn accept(&mut self, tenant: TenantId) -> Result<(), SimError> {
        let plan = &self.scenario.tenants[tenant.index()];
        let rng = &mut self.tenant_rngs[tenant.index()];
        let (least, most) = plan.actual;
        let actual = least + Cost(rng.below(most.0.saturating_sub(least.0) + 1));
        let key = Key(self.first_keys[tenant.index()] + rng.below(u64::from(plan.keys)) as u32);
        let number = self.arrived;
        self.arrived = number.checked_add(1).ok_or(SimError::TooManyRequests)?;
        self.record(TraceEvent::Arrived { request: number, tenant, key });
        let arrival = Arrival {
            tenant: self.pipeline_tenant(tenant),
            model: MODEL,
            cost: plan.estimate,
            upfront: plan.estimate,
            affinity: (plan.keys > 1).then_some(u64::from(key.0)),
            deadline: None,
            request: self.scenario.request,
            priority: Priority::Interactive,
            flow: match self.scenario.order {
                ServiceOrder::Drr => plan.flow,
                ServiceOrder::Fifo => TenantFlow::default(),
            },
            outage: OutageRule::Hold,
        };
        let request = self.pipeline.handle_arrival(self.event_queue.now(), arrival);
        self.requests.insert(request, SimRequest { number, tenant, key, actual, sent: None });
        self.waiting[tenant.index()] += 1;
        Ok(())
    }

    /// Returns the tenant id to use in the pipeline; with FIFO, all tenants have the same one.
    fn pipeline_tenant(&self, tenant: TenantId) -> TenantId {
        match self.scenario.order {
            ServiceOrder::Drr => self.scenario.tenants[tenant.index()].team.unwrap_or(tenant),
            ServiceOrder::Fifo => TenantId(0),
        }
    }

    /// Applies and records the pipeline's events.
    fn apply_events(&mut self) -> Result<(), SimError> {
        while let Some(event) = self.pipeline.poll_event() {
            match event {
                evenkeel_pipeline::Event::Dispatch { request, node, path, waited, .. } => {
                    self.send(request, node, path, waited)?;
                }
                evenkeel_pipeline::Event::Reject { request, rejection, .. } => {
                    self.reject(request, &rejection);
                }
                // Simulated nodes neither fail nor are removed, and `finish` has recorded the end of requests.
                _ => {}
            }
        }
        let admits_all = matches!(self.scenario.admit, AdmitPolicy::All);
        if admits_all && self.has_free_slot() && self.has_servable_request() {
            self.idle_while_waiting += 1;
        }
        Ok(())
    }

    fn send(
        &mut self,
        request: RequestId,
        node: NodeId,
        path: Option<PathId>,
        waited: Duration,
    ) -> Result<(), SimError> {
        let Some(record) = self.requests.get_mut(&request) else { return Ok(()) };
        record.sent = Some((node, path));
        let SimRequest { number, tenant, key, actual, .. } = *record;
        self.waiting[tenant.index()] -= 1;
        self.busy[node.index()] += 1;
        let plan = &self.scenario.nodes[node.index()];
        let first_byte = rtt(plan, path) + plan.first_byte;
        let total = first_byte + plan.message_time.mul_f64(actual.0 as f64 / Cost::MESSAGE.0 as f64);
        if plan.first_byte > Duration::ZERO {
            self.event_queue.schedule(first_byte, SimEvent::FirstByte(request));
            self.event_queue.schedule((first_byte + total) / 2, SimEvent::Half(request));
        }
        self.event_queue.schedule(total, SimEvent::Done(request));
        self.record(TraceEvent::Dispatched { request: number, tenant, key, node, path, waited });
        if matches!(self.scenario.tenants[tenant.index()].demand, Demand::Backlog(_)) {
            self.accept(tenant)?;
        }
        Ok(())
    }

    fn reject(&mut self, request: RequestId, rejection: &Rejection) {
        let Some(SimRequest { number, tenant, .. }) = self.requests.remove(&request) else { return };
        self.waiting[tenant.index()] -= 1;
        self.record(match rejection {
            Rejection::Evicted { .. } => TraceEvent::Evicted { request: number, tenant },
            _ => TraceEvent::Rejected { request: number, tenant },
        });
    }

    /// Ends a request that its node has served.
    fn finish(&mut self, request: RequestId) {
        let Some(record) = self.requests.remove(&request) else { return };
        let Some((node, path)) = record.sent else { return };
        let now = self.event_queue.now();
        self.busy[node.index()] -= 1;
        let SimRequest { number, tenant, actual, .. } = record;
        self.record(TraceEvent::Finished { request: number, tenant, node, actual });
        if path.is_some() {
            let rtt = rtt(&self.scenario.nodes[node.index()], path);
            self.pipeline.handle_probe(now, node, path, Probe::Answered { rtt });
        }
        self.pipeline.handle_end(now, request, RequestEnd { actual, outcome: Outcome::Good });
    }

    fn change(&mut self, change: TenantAction) -> Result<(), SimError> {
        match change {
            TenantAction::Weight(tenant, weight) => {
                self.rules[tenant.index()].weight = weight;
                self.set_rule(tenant)?;
                self.record(TraceEvent::WeightChanged { tenant, weight });
            }
            TenantAction::ParkSome => {
                let tenant = self.random_tenant();
                self.rules[tenant.index()].concurrency_max = 0;
                self.set_rule(tenant)?;
                self.record(TraceEvent::Parked { tenant });
            }
            TenantAction::WakeSome => {
                let tenant = self.random_tenant();
                self.wake(tenant)?;
            }
            TenantAction::WakeAll => {
                for tenant in 0..self.rules.len() {
                    self.wake(TenantId(tenant as u32))?;
                }
            }
        }
        Ok(())
    }

    fn random_tenant(&mut self) -> TenantId {
        TenantId(self.rng.below(self.rules.len() as u64) as u32)
    }

    fn wake(&mut self, tenant: TenantId) -> Result<(), SimError> {
        if self.rules[tenant.index()].concurrency_max > 0 {
            return Ok(());
        }
        self.rules[tenant.index()].concurrency_max = u32::MAX;
        self.set_rule(tenant)?;
        self.record(TraceEvent::Woken { tenant });
        Ok(())
    }

    fn set_rule(&mut self, tenant: TenantId) -> Result<(), SimError> {
        let rule = self.rules[tenant.index()];
        Ok(self.pipeline.set_tenant(self.event_queue.now(), self.pipeline_tenant(tenant), rule)?)
    }

    fn has_free_slot(&self) -> bool {
        self.busy.iter().zip(&self.scenario.nodes).any(|(busy, node)| *busy < node.slots)
    }

    /// Reports whether a tenant that is not parked has a waiting request.
    ///
    /// It relies on the events rather than on the pipeline, which is under test.
    fn has_servable_request(&self) -> bool {
        self.waiting.iter().zip(&self.rules).any(|(waiting, rule)| *waiting > 0 && rule.concurrency_max > 0)
    }

    fn record(&mut self, event: TraceEvent) {
        self.events.push(TimedEvent { at: self.event_queue.now(), event });
    }
}

fn rtt(plan: &NodePlan, path: Option<PathId>) -> Duration {
    path.map_or(Duration::ZERO, |path| plan.paths[path.index()].rtt)
}

fn options(scenario: &Scenario, seed: u64) -> PipelineOptions {
    let (admit, backpressure) = match scenario.admit {
        AdmitPolicy::All => {
            let config = BackpressureConfig {
                max_queue_size: 1_000,
                warning_threshold: 0.99,
                overload_threshold: 1.0,
                ..BackpressureConfig::default()
            };
            (AdmitRule::ByLoad, config)
        }
        AdmitPolicy::ByLoad(config) => (AdmitRule::ByLoad, config),
        AdmitPolicy::ByShare(config) => (AdmitRule::ByShare, config),
    };
    PipelineOptions {
        load: load_config(backpressure),
        admit,
        quantum: scenario.quantum,
        selection: scenario.selection,
        seed,
        ..PipelineOptions::default()
    }
}

/// Returns settings whose wait queue has the capacity and thresholds of `backpressure`.
pub(crate) fn load_config(backpressure: BackpressureConfig) -> LoadManagerConfig {
    let wait_queue = WaitQueueConfig {
        max_waiting: backpressure.max_queue_size,
        default_timeout: WAIT_MAX,
        warning_threshold: backpressure.warning_threshold,
        overload_threshold: backpressure.overload_threshold,
    };
    LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() }
}

/// Reason why a scenario cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The pipeline's options are invalid.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    /// A node or a tenant of the scenario cannot be added.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// More requests than a `u32` can number.
    #[error("more requests than can be numbered")]
    TooManyRequests,
}
