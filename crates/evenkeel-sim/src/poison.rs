//! Simulates requests that their node always fails (poison) beside ordinary ones, engines at their limit, and nodes that
//! go down, to measure what the others notice.

mod plans;

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, AttemptFailure, Event, ModelId, NoRetryReason, NodeSpec, OptimizedLoadManager, OutageRule,
    PipelineOptions, Priority, Rejection, RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

pub use plans::{
    PoisonCell, PoisonCellResult, at_the_limit, measure_poison_cell, outage, poison_cells, refusing,
};

use crate::event_queue::{EventQueue, Step};
use crate::rng::Rng;
use crate::simulation::{SimError, load_config};

const MODEL: ModelId = ModelId(0);
const VICTIM: TenantId = TenantId(0);
const POISONER: TenantId = TenantId(1);
const LOAD: TenantId = TenantId(2);
const FIRST_TOKEN: Duration = Duration::from_millis(100);
const GENERATION: Duration = Duration::from_millis(400);
/// Time after which the gateway gives up on a node that does not respond.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_millis(1);

/// Response of a node to poison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Status 500.
    ServerError,
    /// The connection is closed without a response.
    Close,
    /// There is no response.
    Hang,
    /// Status 429 with `Retry-After: 30`.
    Refuse,
}

/// Setup of a run.
#[derive(Clone, Debug)]
pub struct PoisonPlan {
    pub seed: u64,
    pub duration: Duration,
    pub nodes: u32,
    /// Slots per node.
    pub slots: u32,
    /// Requests that an engine serves at once; it refuses others.
    pub knee: u32,
    pub fault: Fault,
    /// Time between two poison requests; `None` for none.
    pub poison_every: Option<Duration>,
    /// Mean time between two requests of the victim, which arrive at random.
    pub victim_every: Duration,
    /// Number of closed-loop clients that keep slots busy.
    pub load_clients: u32,
    /// All requests belong to one tenant.
    pub is_one_tenant: bool,
    /// Part of all requests that the first node refuses.
    pub refused_ratio: f64,
    /// Time during which connections to all nodes are refused.
    pub down: Option<(Duration, Duration)>,
}

/// A request of the victim.
#[derive(Clone, Copy, Debug)]
pub struct VictimRequest {
    pub at: Duration,
    /// Time until its first token or its rejection.
    pub latency: Duration,
    pub rejection: Option<Rejection>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct PoisonRun {
    /// Ended requests of the victim.
    pub victims: Vec<VictimRequest>,
    /// Responses to the clients that keep slots busy, and their rejections.
    pub load_served: u32,
    pub load_rejected: u32,
    /// Poison requests that ended.
    pub poison_ended: u32,
    /// Refusals of nodes that clients other than the poisoner got to see.
    pub refusals_shown: u32,
}

impl PoisonRun {
    /// Returns the number of requests of the victim that were not served.
    pub fn lost(&self) -> usize {
        self.victims.iter().filter(|victim| victim.rejection.is_some()).count()
    }

    /// Returns the 95th percentile of the victim's times to the first token.
    pub fn p95(&self) -> Duration {
        let mut latencies: Vec<Duration> = self.victims.iter().map(|victim| victim.latency).collect();
        latencies.sort_unstable();
        latencies.get(latencies.len() * 95 / 100).copied().unwrap_or_default()
    }
}

/// Runs a plan to its end.
pub fn run_poison(plan: &PoisonPlan) -> Result<PoisonRun, SimError> {
    let mut sim = PoisonSim::new(plan)?;
    let end = Instant::ORIGIN + plan.duration;
    while let Some(step) = sim.event_queue.next_step(sim.pipeline.poll_timeout(), end) {
        match step {
            Step::Timer(due) => sim.pipeline.handle_time(due),
            Step::Event(event) => sim.handle(event),
        }
        sim.apply_events();
    }
    Ok(sim.run)
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoisonClient {
    Victim,
    Poisoner,
    Load,
}

enum PoisonEvent {
    Submit(PoisonClient),
    FirstToken(RequestId),
    Done(RequestId, NodeId),
    Fail(RequestId, AttemptFailure),
    Check(NodeId),
}

struct PoisonSim<'a> {
    plan: &'a PoisonPlan,
    event_queue: EventQueue<PoisonEvent>,
    rng: Rng,
    pipeline: OptimizedLoadManager,
    requests: BTreeMap<RequestId, (PoisonClient, Instant)>,
    /// Requests that each engine serves.
    running: Vec<u32>,
    run: PoisonRun,
}

impl<'a> PoisonSim<'a> {
    fn new(plan: &'a PoisonPlan) -> Result<Self, SimError> {
        let load = load_config(BackpressureConfig::default());
        let mut pipeline = OptimizedLoadManager::new(PipelineOptions {
            load,
            seed: plan.seed,
            ..PipelineOptions::default()
        })?;
        let mut event_queue = EventQueue::new();
        for _ in 0..plan.nodes {
            let spec = NodeSpec {
                slots: Slots::Fixed(plan.slots),
                transactions_max: None,
                weight: Weight::ONE,
                models: vec![MODEL],
                paths: vec![],
            };
            let node = pipeline.add_node(Instant::ORIGIN, &spec)?;
            event_queue.schedule(CHECK_INTERVAL, PoisonEvent::Check(node));
        }
        event_queue.schedule(Duration::ZERO, PoisonEvent::Submit(PoisonClient::Victim));
        if let Some(every) = plan.poison_every {
            event_queue.schedule(every, PoisonEvent::Submit(PoisonClient::Poisoner));
        }
        for _ in 0..plan.load_clients {
            event_queue.schedule(Duration::ZERO, PoisonEvent::Submit(PoisonClient::Load));
        }
        Ok(Self {
            plan,
            event_queue,
            rng: Rng::new(plan.seed),
            pipeline,
            requests: BTreeMap::new(),
            running: vec![0; plan.nodes as usize],
            run: PoisonRun::default(),
        })
    }

    fn handle(&mut self, event: PoisonEvent) {
        let now = self.event_queue.now();
        match event {
            PoisonEvent::Submit(sender) => self.submit(sender),
            PoisonEvent::FirstToken(request) => {
                self.pipeline.handle_first_byte(now, request);
                self.record_victim(request, None);
            }
            PoisonEvent::Done(request, node) => {
                self.running[node.index()] -= 1;
                let end = RequestEnd { actual: Cost(500), outcome: Outcome::Good };
                self.pipeline.handle_end(now, request, end);
            }
            PoisonEvent::Fail(request, failure) => self.pipeline.handle_failure(now, request, failure),
            PoisonEvent::Check(node) => {
                let probe = if self.is_down() { Probe::Failed } else { Probe::Answered { rtt: CONNECT } };
                self.pipeline.handle_probe(now, node, None, probe);
                self.event_queue.schedule(CHECK_INTERVAL, PoisonEvent::Check(node));
            }
        }
    }

    fn submit(&mut self, sender: PoisonClient) {
        let now = self.event_queue.now();
        let tenant = match sender {
            _ if self.plan.is_one_tenant => VICTIM,
            PoisonClient::Victim => VICTIM,
            PoisonClient::Poisoner => POISONER,
            PoisonClient::Load => LOAD,
        };
        let arrival = Arrival {
            tenant,
            model: MODEL,
            cost: Cost(500),
            upfront: Cost(250),
            affinity: None,
            deadline: None,
            request: RequestKind::Infer,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        };
        let next = match sender {
            PoisonClient::Victim => Some(self.rng.exponential(self.plan.victim_every)),
            PoisonClient::Poisoner => self.plan.poison_every,
            PoisonClient::Load => None,
        };
        if let Some(next) = next {
            self.event_queue.schedule(next, PoisonEvent::Submit(sender));
        }
        let request = self.pipeline.handle_arrival(now, arrival);
        self.requests.insert(request, (sender, now));
    }

    fn apply_events(&mut self) {
        while let Some(event) = self.pipeline.poll_event() {
            match event {
                Event::Dispatch { request, node, .. } => self.send(request, node),
                Event::Reject { request, rejection, .. } => {
                    self.record_victim(request, Some(rejection));
                    self.end(request, Some(rejection));
                }
                Event::Done { request, .. } => self.end(request, None),
                _ => {}
            }
        }
    }

    fn is_down(&self) -> bool {
        let elapsed = self.event_queue.now().since(Instant::ORIGIN);
        self.plan.down.is_some_and(|(from, to)| (from..to).contains(&elapsed))
    }

    fn send(&mut self, request: RequestId, node: NodeId) {
        let Some((sender, _)) = self.requests.get(&request).copied() else { return };
        let refused = AttemptFailure::Busy { retry_after: None };
        let is_unlucky = node.0 == 0 && self.rng.unit() < self.plan.refused_ratio;
        let (after, failure) = match (sender, self.plan.fault) {
            _ if self.is_down() => (CONNECT, AttemptFailure::Unreachable),
            (PoisonClient::Poisoner, Fault::ServerError) => (20 * CONNECT, AttemptFailure::BadResponse),
            (PoisonClient::Poisoner, Fault::Close) => (CONNECT, AttemptFailure::BadResponse),
            (PoisonClient::Poisoner, Fault::Hang) => (FIRST_BYTE_MAX, AttemptFailure::TimedOut),
            (PoisonClient::Poisoner, Fault::Refuse) => {
                (2 * CONNECT, AttemptFailure::Busy { retry_after: Some(Duration::from_secs(30)) })
            }
            _ if is_unlucky || self.plan.knee <= self.running[node.index()] => (2 * CONNECT, refused),
            (PoisonClient::Victim | PoisonClient::Load, _) => {
                self.running[node.index()] += 1;
                let total = FIRST_TOKEN + self.rng.exponential(GENERATION);
                self.event_queue.schedule(FIRST_TOKEN, PoisonEvent::FirstToken(request));
                self.event_queue.schedule(total, PoisonEvent::Done(request, node));
                return;
            }
        };
        self.event_queue.schedule(after, PoisonEvent::Fail(request, failure));
    }

    fn record_victim(&mut self, request: RequestId, rejection: Option<Rejection>) {
        let Some((PoisonClient::Victim, at)) = self.requests.get(&request).copied() else { return };
        let latency = self.event_queue.now().since(at);
        self.run.victims.push(VictimRequest { at: at.since(Instant::ORIGIN), latency, rejection });
    }

    fn end(&mut self, request: RequestId, rejection: Option<Rejection>) {
        let Some((sender, _)) = self.requests.remove(&request) else { return };
        let is_refusal =
            matches!(rejection, Some(Rejection::Failed { no_retry: NoRetryReason::RefusedTwice, .. }));
        self.run.refusals_shown += u32::from(is_refusal && sender != PoisonClient::Poisoner);
        match sender {
            PoisonClient::Victim => {}
            PoisonClient::Poisoner => self.run.poison_ended += 1,
            PoisonClient::Load => {
                self.run.load_served += u32::from(rejection.is_none());
                self.run.load_rejected += u32::from(rejection.is_some());
                // A rejected client retries after a second.
                let pause = if rejection.is_some() { Duration::from_secs(1) } else { Duration::ZERO };
                self.event_queue.schedule(pause, PoisonEvent::Submit(PoisonClient::Load));
            }
        }
    }
}
