//! Simulates the choice of a node: closed-loop clients, nodes whose time to the first token may change, and engines that
//! count hits of their prefix caches.
//!
//! A request that finds its conversation in the engine's prefix cache skips `prefill`. The engines' caches evict the
//! least recently used conversation.

mod plans;

use std::collections::{BTreeMap, VecDeque};

use evenkeel_pipeline::{
    Arrival, Event, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PipelineOptions, Priority,
    RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::{RequestKind, SelectionPolicy};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

pub use plans::{ChoiceRow, SLOW_UNTIL, choice_rows, conversations, fast_and_slow, nine_to_one, recovery};

use crate::event_queue::{EventQueue, Step};
use crate::rng::Rng;
use crate::simulation::{SimError, load_config};

const MODEL: ModelId = ModelId(0);

/// Conversations that an engine's prefix cache holds.
const PREFIXES_MAX: usize = 8;

/// Setup of a run.
#[derive(Clone, Debug)]
pub struct ChoicePlan {
    pub seed: u64,
    pub duration: Duration,
    /// Number of closed-loop clients: each sends its next request after the last one ended and it has thought.
    pub clients: u32,
    /// Longest time for which a client thinks; the shortest is none.
    pub think_max: Duration,
    pub keys: AffinityKeys,
    pub mode: ChoiceMode,
    pub selection: SelectionPolicy,
    pub nodes: Vec<ChoiceNode>,
}

/// Affinity keys of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityKeys {
    /// Requests have no key.
    None,
    /// Every request has a key of its own.
    Distinct,
    /// Every client has one conversation.
    PerClient,
}

/// Mode of the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceMode {
    /// A chat whose tokens arrive as they are generated.
    Stream,
    /// A response in one piece, such as an embedding.
    Whole,
}

/// A simulated node.
#[derive(Clone, Debug)]
pub struct ChoiceNode {
    pub slots: u32,
    pub weight: Weight,
    /// Times to the first token, each with the time from which it applies.
    pub first_token: Vec<(Duration, Duration)>,
    /// Largest relative deviation from these times.
    pub jitter: f64,
    /// Additional time of a request whose conversation is not in the prefix cache.
    pub prefill: Duration,
    /// Mean time from the first token to the end of a response; exponentially distributed.
    pub generation: Duration,
}

impl ChoiceNode {
    /// Creates a node that always takes the same time to the first token.
    pub fn steady(slots: u32, first_token: Duration) -> Self {
        Self {
            slots,
            weight: Weight::ONE,
            first_token: vec![(Duration::ZERO, first_token)],
            jitter: 0.0,
            prefill: Duration::ZERO,
            generation: Duration::ZERO,
        }
    }

    fn first_token_at(&self, now: Instant) -> Duration {
        let elapsed = now.since(Instant::ORIGIN);
        let current = self.first_token.iter().rev().find(|(from, _)| *from <= elapsed);
        current.map_or(Duration::ZERO, |(_, time)| *time)
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct ChoiceRun {
    /// Every request, in the order in which they were sent.
    pub sent: Vec<ChoiceSent>,
}

/// A request that was sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceSent {
    pub at: Duration,
    pub node: NodeId,
    pub key: u64,
    /// The engine had the conversation in its prefix cache.
    pub prefix_hit: bool,
}

impl ChoiceRun {
    /// Returns the part of the requests in a period that went to a node.
    pub fn share(&self, node: NodeId, from: Duration, to: Duration) -> f64 {
        let period = self.sent.iter().filter(|sent| (from..to).contains(&sent.at));
        let (all, there) =
            period.fold((0_u32, 0_u32), |(all, there), sent| (all + 1, there + u32::from(sent.node == node)));
        f64::from(there) / f64::from(all.max(1))
    }

    /// Returns the part of the requests that hit the prefix cache of their engine.
    pub fn prefix_hit_ratio(&self) -> f64 {
        let hits = self.sent.iter().filter(|sent| sent.prefix_hit).count();
        hits as f64 / self.sent.len().max(1) as f64
    }

    /// Returns the number of times that a conversation continued on another node.
    pub fn moves(&self) -> usize {
        let mut homes: BTreeMap<u64, NodeId> = BTreeMap::new();
        let moved =
            |sent: &&ChoiceSent| homes.insert(sent.key, sent.node).is_some_and(|home| home != sent.node);
        self.sent.iter().filter(moved).count()
    }
}

/// Runs a plan to its end.
pub fn run_choice(plan: &ChoicePlan) -> Result<ChoiceRun, SimError> {
    let mut sim = ChoiceSim::new(plan)?;
    let end = Instant::ORIGIN + plan.duration;
    for client in 0..plan.clients {
        sim.submit(client);
    }
    while let Some(step) = sim.event_queue.next_step(sim.pipeline.poll_timeout(), end) {
        match step {
            Step::Timer(due) => sim.pipeline.handle_time(due),
            Step::Event(event) => sim.handle(event),
        }
        sim.apply_events();
    }
    Ok(sim.run)
}

enum ChoiceEvent {
    Submit(u32),
    FirstToken(RequestId),
    Done(RequestId, u32),
}

struct ChoiceSim<'a> {
    plan: &'a ChoicePlan,
    event_queue: EventQueue<ChoiceEvent>,
    rng: Rng,
    pipeline: OptimizedLoadManager,
    /// Client and key of requests that are not sent yet.
    pending: BTreeMap<RequestId, (u32, u64)>,
    /// Conversations in the prefix cache of each engine, the least recently used first.
    prefixes: Vec<VecDeque<u64>>,
    submitted: u64,
    run: ChoiceRun,
}

impl<'a> ChoiceSim<'a> {
    fn new(plan: &'a ChoicePlan) -> Result<Self, SimError> {
        let load = load_config(BackpressureConfig {
            max_queue_size: plan.clients as usize + 1,
            warning_threshold: 0.99,
            overload_threshold: 1.0,
            ..BackpressureConfig::default()
        });
        let options = PipelineOptions { load, selection: plan.selection, ..PipelineOptions::default() };
        let mut pipeline = OptimizedLoadManager::new(options)?;
        for node in &plan.nodes {
            let spec = NodeSpec {
                slots: Slots::Fixed(node.slots),
                transactions_max: None,
                weight: node.weight,
                models: vec![MODEL],
                paths: vec![],
            };
            pipeline.add_node(Instant::ORIGIN, &spec)?;
        }
        Ok(Self {
            plan,
            event_queue: EventQueue::new(),
            rng: Rng::new(plan.seed),
            pipeline,
            pending: BTreeMap::new(),
            prefixes: vec![VecDeque::new(); plan.nodes.len()],
            submitted: 0,
            run: ChoiceRun::default(),
        })
    }

    fn submit(&mut self, client: u32) {
        let key = match self.plan.keys {
            AffinityKeys::None | AffinityKeys::Distinct => self.submitted.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            AffinityKeys::PerClient => u64::from(client),
        };
        self.submitted += 1;
        let cost = Cost(500);
        let arrival = Arrival {
            tenant: TenantId(0),
            model: MODEL,
            cost,
            upfront: match self.plan.mode {
                ChoiceMode::Stream => Cost(cost.0 / 2),
                ChoiceMode::Whole => cost,
            },
            affinity: (self.plan.keys != AffinityKeys::None).then_some(key),
            deadline: None,
            request: RequestKind::Infer,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        };
        let request = self.pipeline.handle_arrival(self.event_queue.now(), arrival);
        self.pending.insert(request, (client, key));
        self.apply_events();
    }

    fn handle(&mut self, event: ChoiceEvent) {
        let now = self.event_queue.now();
        match event {
            ChoiceEvent::Submit(client) => self.submit(client),
            ChoiceEvent::FirstToken(request) => self.pipeline.handle_first_byte(now, request),
            ChoiceEvent::Done(request, client) => {
                let end = RequestEnd { actual: Cost(500), outcome: Outcome::Good };
                self.pipeline.handle_end(now, request, end);
                let think = self.plan.think_max.mul_f64(self.rng.unit());
                self.event_queue.schedule(think, ChoiceEvent::Submit(client));
            }
        }
    }

    fn apply_events(&mut self) {
        while let Some(event) = self.pipeline.poll_event() {
            if let Event::Dispatch { request, node, .. } = event
                && let Some((client, key)) = self.pending.remove(&request)
            {
                self.send(request, node, client, key);
            }
        }
    }

    fn send(&mut self, request: RequestId, node: NodeId, client: u32, key: u64) {
        let now = self.event_queue.now();
        let prefix_hit = self.use_prefix(node, key);
        self.run.sent.push(ChoiceSent { at: now.since(Instant::ORIGIN), node, key, prefix_hit });
        let plan = &self.plan.nodes[node.index()];
        let deviation = plan.jitter * (2.0 * self.rng.unit() - 1.0);
        let mut first_token = plan.first_token_at(now).mul_f64(1.0 + deviation);
        if !prefix_hit {
            first_token += plan.prefill;
        }
        let total = first_token + self.rng.exponential(plan.generation);
        if self.plan.mode == ChoiceMode::Stream {
            self.event_queue.schedule(first_token, ChoiceEvent::FirstToken(request));
        }
        self.event_queue.schedule(total, ChoiceEvent::Done(request, client));
    }

    /// Moves a conversation to the front of the engine's prefix cache; reports whether it was there.
    fn use_prefix(&mut self, node: NodeId, key: u64) -> bool {
        let prefixes = &mut self.prefixes[node.index()];
        let at = prefixes.iter().position(|prefix| *prefix == key);
        if let Some(at) = at {
            prefixes.remove(at);
        } else if PREFIXES_MAX <= prefixes.len() {
            prefixes.pop_front();
        }
        prefixes.push_back(key);
        at.is_some()
    }
}
