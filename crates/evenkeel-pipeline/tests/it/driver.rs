//! Test driver that calls the pipeline, polls its events, audits it after every step, and tracks every request.

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, AttemptFailure, Event, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PathSpec,
    PipelineOptions, Priority, Rejection, RequestEnd, RequestId, Slots, TenantFlow, TenantRule,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

pub(crate) const MODEL: ModelId = ModelId(0);
pub(crate) const OTHER_MODEL: ModelId = ModelId(1);

pub(crate) struct Driver {
    pub(crate) pipeline: OptimizedLoadManager,
    pub(crate) now: Instant,
    /// Node and path of every request in flight.
    pub(crate) in_flight: BTreeMap<RequestId, InFlight>,
    pub(crate) rejected: BTreeMap<RequestId, Rejection>,
    pub(crate) dispatches: Vec<(RequestId, TenantId, NodeId)>,
    pub(crate) events: Vec<Event>,
    waiting: BTreeMap<RequestId, TenantId>,
    audits: Audits,
}

/// Time at which the pipeline is audited; an audit is slow with many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audits {
    EveryStep,
    Manual,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) node: NodeId,
    pub(crate) path: Option<PathId>,
}

impl Driver {
    pub(crate) fn new(options: PipelineOptions) -> Self {
        Self {
            pipeline: OptimizedLoadManager::new(options).unwrap(),
            now: Instant::ORIGIN,
            in_flight: BTreeMap::new(),
            rejected: BTreeMap::new(),
            dispatches: vec![],
            events: vec![],
            waiting: BTreeMap::new(),
            audits: Audits::EveryStep,
        }
    }

    pub(crate) fn with_audits(self, audits: Audits) -> Self {
        Self { audits, ..self }
    }

    /// Creates a driver with one node per entry of `slots`, each serving [`MODEL`].
    pub(crate) fn with_nodes(slots: &[u32]) -> Self {
        let mut driver = Self::new(PipelineOptions::default());
        slots.iter().for_each(|slots| {
            driver.add(*slots, &[MODEL]);
        });
        driver
    }

    pub(crate) fn add(&mut self, slots: u32, models: &[ModelId]) -> NodeId {
        self.add_spec(&spec(slots, models))
    }

    pub(crate) fn add_spec(&mut self, spec: &NodeSpec) -> NodeId {
        let node = self.pipeline.add_node(self.now, spec).unwrap();
        self.drain_events();
        node
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) -> RequestId {
        let request = self.pipeline.handle_arrival(self.now, arrival);
        self.waiting.insert(request, arrival.tenant);
        self.drain_events();
        request
    }

    /// Submits an interactive request of a tenant for [`MODEL`].
    pub(crate) fn submit(&mut self, tenant: u32) -> RequestId {
        self.arrive(arrival_of(tenant))
    }

    pub(crate) fn end(&mut self, request: RequestId, actual: u64) {
        let end = RequestEnd { actual: Cost(actual), outcome: Outcome::Good };
        self.pipeline.handle_end(self.now, request, end);
        self.drain_events();
    }

    pub(crate) fn fail(&mut self, request: RequestId, failure: AttemptFailure) {
        self.pipeline.handle_failure(self.now, request, failure);
        self.drain_events();
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        self.pipeline.handle_cancel(self.now, request);
        self.drain_events();
    }

    pub(crate) fn first_byte(&mut self, request: RequestId) {
        self.pipeline.handle_first_byte(self.now, request);
        self.drain_events();
    }

    pub(crate) fn progress(&mut self, request: RequestId, actual_so_far: u64) {
        self.pipeline.handle_progress(self.now, request, Cost(actual_so_far));
        self.drain_events();
    }

    pub(crate) fn set_rule(&mut self, tenant: u32, weight: f64, concurrency_max: u32) {
        let rule = TenantRule { weight: Weight::new(weight).unwrap(), concurrency_max };
        self.pipeline.set_tenant(self.now, TenantId(tenant), rule).unwrap();
        self.drain_events();
    }

    /// Advances time by `duration`, running every timer when it is due.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(due) = self.pipeline.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.pipeline.handle_time(self.now);
            self.drain_events();
        }
        self.now = end;
        self.pipeline.handle_time(end);
        self.drain_events();
    }

    pub(crate) fn is_in_flight(&self, request: RequestId) -> bool {
        self.in_flight.contains_key(&request)
    }

    pub(crate) fn node_of(&self, request: RequestId) -> NodeId {
        self.in_flight[&request].node
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Polls all events, checks each against the tracked state, and audits the pipeline.
    pub(crate) fn drain_events(&mut self) {
        while let Some(event) = self.pipeline.poll_event() {
            self.apply(&event);
            self.events.push(event);
        }
        if self.audits == Audits::EveryStep {
            self.audit();
        }
    }

    pub(crate) fn audit(&self) {
        if let Err(error) = self.pipeline.audit() {
            panic!("{error}");
        }
        let status = self.pipeline.status();
        let background: usize = status.models.iter().map(|model| model.background).sum();
        assert_eq!(
            (status.waiting + background, status.in_flight),
            (self.waiting.len(), self.in_flight.len())
        );
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Dispatch { request, tenant, node, path, .. } => {
                assert_eq!(
                    self.waiting.remove(&request),
                    Some(tenant),
                    "only a waiting request is dispatched"
                );
                assert!(self.in_flight.insert(request, InFlight { node, path }).is_none());
                self.dispatches.push((request, tenant, node));
            }
            Event::Retry { request, tenant, .. } => {
                assert!(self.in_flight.remove(&request).is_some(), "only a request in flight can be retried");
                self.waiting.insert(request, tenant);
            }
            Event::Done { request, .. } => {
                assert!(
                    self.in_flight.remove(&request).is_some(),
                    "only a request in flight can end, and only once"
                );
            }
            Event::Reject { request, rejection, .. } => {
                let was_in_flight = self.in_flight.remove(&request).is_some();
                let was_waiting = self.waiting.remove(&request).is_some();
                assert!(was_in_flight != was_waiting, "a rejected request was either waiting or in flight");
                assert!(self.rejected.insert(request, rejection).is_none(), "rejected twice");
            }
            Event::Redirected { .. }
            | Event::AdminState { .. }
            | Event::NodeRemoved { .. }
            | Event::Breaker { .. }
            | Event::Cooldown { .. }
            | Event::ClosedToTenant { .. }
            | Event::OpenedToTenant { .. }
            | Event::Path { .. } => {}
        }
    }
}

pub(crate) fn arrival_of(tenant: u32) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        model: MODEL,
        cost: Cost(500),
        upfront: Cost::MAX,
        affinity: None,
        deadline: None,
        request: RequestKind::Infer,
        priority: Priority::Interactive,
        flow: TenantFlow::default(),
        outage: OutageRule::Hold,
    }
}

pub(crate) fn spec(slots: u32, models: &[ModelId]) -> NodeSpec {
    NodeSpec {
        slots: Slots::Fixed(slots),
        transactions_max: None,
        weight: Weight::ONE,
        models: models.to_vec(),
        paths: vec![],
    }
}

/// Returns a node with one path per round-trip time, in milliseconds.
pub(crate) fn with_paths(slots: u32, rtts: &[u64]) -> NodeSpec {
    let path = |rtt: &u64| PathSpec { rtt: Some(Duration::from_millis(*rtt)) };
    NodeSpec { paths: rtts.iter().map(path).collect(), ..spec(slots, &[MODEL]) }
}
