//! A door for tests: hands in, takes out, audits after every step, and remembers who is where.

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, AttemptFailure, Event, ModelId, NodeSpec, OptimizedLoadManager, PathSpec, PipelineOptions,
    Priority, Rejection, RequestEnd, RequestId, Slots, TenantRule,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

pub(crate) const MODEL: ModelId = ModelId(0);
pub(crate) const OTHER: ModelId = ModelId(1);

pub(crate) struct Door {
    pub(crate) walk: OptimizedLoadManager,
    pub(crate) now: Instant,
    /// Where every request in flight is.
    pub(crate) flying: BTreeMap<RequestId, Flying>,
    pub(crate) rejected: BTreeMap<RequestId, Rejection>,
    pub(crate) dispatches: Vec<(RequestId, TenantId, NodeId)>,
    pub(crate) events: Vec<Event>,
    waiting: BTreeMap<RequestId, TenantId>,
    audits: Audits,
}

/// When everything is counted again, which takes as long as there is much to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audits {
    EveryStep,
    AtTheEnd,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) node: NodeId,
    pub(crate) path: Option<PathId>,
}

impl Door {
    pub(crate) fn new(options: PipelineOptions) -> Self {
        Self {
            walk: OptimizedLoadManager::new(options).unwrap(),
            now: Instant::ORIGIN,
            flying: BTreeMap::new(),
            rejected: BTreeMap::new(),
            dispatches: vec![],
            events: vec![],
            waiting: BTreeMap::new(),
            audits: Audits::EveryStep,
        }
    }

    pub(crate) fn audited(self, audits: Audits) -> Self {
        Self { audits, ..self }
    }

    /// A door to nodes of so many slots, each of which serves [`MODEL`].
    pub(crate) fn to(slots: &[u32]) -> Self {
        let mut door = Self::new(PipelineOptions::default());
        slots.iter().for_each(|slots| {
            door.add(*slots, &[MODEL]);
        });
        door
    }

    pub(crate) fn add(&mut self, slots: u32, models: &[ModelId]) -> NodeId {
        self.add_spec(&spec(slots, models))
    }

    pub(crate) fn add_spec(&mut self, spec: &NodeSpec) -> NodeId {
        let node = self.walk.add_node(self.now, spec).unwrap();
        self.settle();
        node
    }

    pub(crate) fn arrive(&mut self, arrival: Arrival) -> RequestId {
        let request = self.walk.handle_arrival(self.now, arrival);
        self.waiting.insert(request, arrival.tenant);
        self.settle();
        request
    }

    pub(crate) fn ask(&mut self, tenant: u32) -> RequestId {
        self.arrive(asks(tenant))
    }

    pub(crate) fn end(&mut self, request: RequestId, actual: u64) {
        let end = RequestEnd { actual: Cost(actual), outcome: Outcome::Good };
        self.walk.handle_end(self.now, request, end);
        self.settle();
    }

    pub(crate) fn fail(&mut self, request: RequestId, failure: AttemptFailure) {
        self.walk.handle_failure(self.now, request, failure);
        self.settle();
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        self.walk.handle_cancel(self.now, request);
        self.settle();
    }

    pub(crate) fn first_byte(&mut self, request: RequestId) {
        self.walk.handle_first_byte(self.now, request);
        self.settle();
    }

    pub(crate) fn progress(&mut self, request: RequestId, actual_so_far: u64) {
        self.walk.handle_progress(self.now, request, Cost(actual_so_far));
        self.settle();
    }

    pub(crate) fn rule(&mut self, tenant: u32, weight: f64, concurrency_max: u32) {
        let rule = TenantRule { weight: Weight::new(weight).unwrap(), concurrency_max };
        self.walk.set_tenant(self.now, TenantId(tenant), rule).unwrap();
        self.settle();
    }

    /// Lets time pass, stopping whenever something is due.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(due) = self.walk.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.walk.handle_time(self.now);
            self.settle();
        }
        self.now = end;
        self.walk.handle_time(end);
        self.settle();
    }

    pub(crate) fn is_flying(&self, request: RequestId) -> bool {
        self.flying.contains_key(&request)
    }

    pub(crate) fn node_of(&self, request: RequestId) -> NodeId {
        self.flying[&request].node
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes every event, checks that it fits what went before, and audits.
    pub(crate) fn settle(&mut self) {
        while let Some(event) = self.walk.poll_event() {
            self.follow(&event);
            self.events.push(event);
        }
        if self.audits == Audits::EveryStep {
            self.audit();
        }
    }

    pub(crate) fn audit(&self) {
        if let Err(fault) = self.walk.audit() {
            panic!("{fault}");
        }
        let status = self.walk.status();
        let behind: usize = status.models.iter().map(|model| model.background).sum();
        assert_eq!((status.waiting + behind, status.in_flight), (self.waiting.len(), self.flying.len()));
    }

    fn follow(&mut self, event: &Event) {
        match *event {
            Event::Dispatch { request, tenant, node, path, .. } => {
                assert_eq!(self.waiting.remove(&request), Some(tenant), "only who waits is sent");
                assert!(self.flying.insert(request, Flying { node, path }).is_none());
                self.dispatches.push((request, tenant, node));
            }
            Event::Retry { request, tenant, .. } => {
                assert!(self.flying.remove(&request).is_some(), "only who flies can fail");
                self.waiting.insert(request, tenant);
            }
            Event::Done { request, .. } => {
                assert!(self.flying.remove(&request).is_some(), "only who flies can land, and once");
            }
            Event::Reject { request, rejection, .. } => {
                let flew = self.flying.remove(&request).is_some();
                let waited = self.waiting.remove(&request).is_some();
                assert!(flew != waited, "who is turned away was somewhere");
                assert!(self.rejected.insert(request, rejection).is_none(), "turned away twice");
            }
            Event::AdminState { .. }
            | Event::NodeRemoved { .. }
            | Event::Breaker { .. }
            | Event::Cooldown { .. }
            | Event::Path { .. } => {}
        }
    }
}

pub(crate) fn asks(tenant: u32) -> Arrival {
    Arrival {
        tenant: TenantId(tenant),
        model: MODEL,
        cost: Cost(500),
        upfront: Cost::MAX,
        affinity: None,
        deadline: None,
        request: RequestKind::Infer,
        urgency: Priority::Interactive,
    }
}

pub(crate) fn spec(slots: u32, models: &[ModelId]) -> NodeSpec {
    NodeSpec { slots: Slots::Fixed(slots), weight: Weight::ONE, models: models.to_vec(), paths: vec![] }
}

pub(crate) fn with_paths(slots: u32, rtts: &[u64]) -> NodeSpec {
    let path = |rtt: &u64| PathSpec { rtt: Some(Duration::from_millis(*rtt)) };
    NodeSpec { paths: rtts.iter().map(path).collect(), ..spec(slots, &[MODEL]) }
}
