//! Simulates a node that runs one engine, and whose concurrency limit adapts to the engine's knee: the load beyond which
//! latency grows and throughput does not.
//!
//! The engine is one of several shapes ([`EngineShape`]); the limit has to find the knee by itself, at any demand.

mod engine;
mod matrix;

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, EngineLoad, Event, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PipelineOptions,
    Priority, RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::concurrency_limit::ResponseDelivery;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

pub use engine::EngineShape;
use engine::{EngineProgress, Job, JobId, KneeEngine, TIME_PER_TOKEN, prefill_time};
pub use matrix::{KneeCell, KneeCellResult, Prompts, Service, knee_cells, measure_knee_cell};

use crate::event_queue::{EventQueue, Step};
use crate::record::nearest_rank;
use crate::rng::Rng;
use crate::simulation::{SimError, load_config};

const MODEL: ModelId = ModelId(0);
const NODE: NodeId = NodeId(0);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(2);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the driver looks at the responses in progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Tokens of a response after which its progress is reported, as the scheduler does.
const REPORT_TOKENS: u64 = 16;
/// Relative deviation of a prompt's processing time from its mean.
const PREFILL_JITTER: f64 = 0.1;

/// Setup of a run.
#[derive(Clone, Debug)]
pub struct KneePlan {
    pub seed: u64,
    pub duration: Duration,
    pub demand: KneeDemand,
    /// Prompt lengths, each equally likely.
    pub prompts: Vec<u64>,
    /// Mean length of a response; lengths are uniform between half and one and a half times that.
    pub output: u64,
    pub delivery: ResponseDelivery,
    /// Concurrency limit of the node: fixed or adaptive.
    pub slots: Slots,
    pub scrapes: Scraping,
    pub shape: EngineShape,
    /// Knees of the engine, each with the time from which it applies.
    pub knees: Vec<(Duration, u32)>,
}

/// Load that the clients offer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KneeDemand {
    /// Closed-loop clients: each sends its next request when the last one ends.
    Clients(u32),
    /// Requests per second, as a Poisson process; arrivals that find `waiting_max` others waiting are rejected.
    Rate { per_second: f64, waiting_max: usize },
}

/// Scraping of the engine's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scraping {
    /// Every two seconds.
    Enabled,
    Disabled,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct KneeRun {
    /// One sample per second.
    pub samples: Vec<KneeSample>,
    /// Times at which responses ended.
    pub finished: Vec<Duration>,
    /// For each first token, the time at which it was generated and the time to first token.
    pub first_tokens: Vec<(Duration, Duration)>,
}

/// The node's limit and the engine's queue at one point in time.
#[derive(Clone, Copy, Debug)]
pub struct KneeSample {
    pub at: Duration,
    /// The node's concurrency limit, apart from probes.
    pub limit: u32,
    /// Time to first token without a queue, as the limit knows it for the last prompt's length.
    pub baseline_ms: Option<f64>,
    /// Requests queued inside the engine.
    pub queued: usize,
}

impl KneeRun {
    /// Returns the median limit in a period.
    pub fn median_limit(&self, from: Duration, to: Duration) -> u32 {
        let mut limits: Vec<u32> = self.between(from, to).map(|sample| sample.limit).collect();
        limits.sort_unstable();
        nearest_rank(&limits, 50)
    }

    /// Returns the mean length of the engine's queue in a period.
    pub fn mean_queue_len(&self, from: Duration, to: Duration) -> f64 {
        let (count, sum) =
            self.between(from, to).fold((0, 0), |(n, sum), sample| (n + 1, sum + sample.queued));
        sum as f64 / f64::from(count.max(1))
    }

    /// Returns the responses completed per second in a period.
    pub fn throughput(&self, from: Duration, to: Duration) -> f64 {
        let ended = self.finished.iter().filter(|at| (from..to).contains(*at)).count();
        ended as f64 / (to.saturating_sub(from)).as_secs_f64()
    }

    /// Returns the 95th percentile of the time to first token in a period.
    pub fn first_token_p95(&self, from: Duration, to: Duration) -> Duration {
        let in_period = self.first_tokens.iter().filter(|(at, _)| (from..to).contains(at));
        let mut took: Vec<Duration> = in_period.map(|(_, took)| *took).collect();
        took.sort_unstable();
        nearest_rank(&took, 95)
    }

    /// Returns the samples of a period.
    pub fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &KneeSample> {
        self.samples.iter().filter(move |sample| (from..to).contains(&sample.at))
    }
}

/// Runs a plan to its end.
pub fn run_knee(plan: &KneePlan) -> Result<KneeRun, SimError> {
    let mut sim = KneeSim::new(plan)?;
    let end = Instant::ORIGIN + plan.duration;
    while let Some(step) = sim.event_queue.next_step(sim.engine.next_at(), end) {
        match step {
            Step::Timer(_) => sim.follow_engine(),
            Step::Event(event) => sim.handle(event),
        }
        sim.apply_events();
    }
    Ok(sim.run)
}

enum KneeEvent {
    Arrival,
    Report,
    Sample,
    Scrape,
    SetKnee(u32),
}

/// A request and what is known about its response.
#[derive(Clone, Copy)]
struct KneeRequest {
    id: RequestId,
    prompt: u64,
    output: u64,
    sent_at: Instant,
    reported: u64,
}

struct KneeSim<'a> {
    plan: &'a KneePlan,
    event_queue: EventQueue<KneeEvent>,
    /// Independent of the engine's, so that the arrivals do not depend on the limit.
    arrivals_rng: Rng,
    engine_rng: Rng,
    pipeline: OptimizedLoadManager,
    waiting: BTreeMap<RequestId, KneeRequest>,
    /// By [`JobId`].
    sent: Vec<KneeRequest>,
    engine: KneeEngine,
    run: KneeRun,
}

impl<'a> KneeSim<'a> {
    fn new(plan: &'a KneePlan) -> Result<Self, SimError> {
        let waiting_max = match plan.demand {
            KneeDemand::Clients(clients) => clients as usize,
            KneeDemand::Rate { waiting_max, .. } => waiting_max,
        };
        let backpressure = BackpressureConfig {
            max_queue_size: waiting_max + 1,
            warning_threshold: 0.99,
            overload_threshold: 1.0,
            ..BackpressureConfig::default()
        };
        let load = load_config(backpressure);
        let options = PipelineOptions { load, seed: plan.seed, ..PipelineOptions::default() };
        let mut pipeline = OptimizedLoadManager::new(options)?;
        let spec = NodeSpec {
            slots: plan.slots,
            transactions_max: None,
            weight: Weight::ONE,
            models: vec![MODEL],
            paths: vec![],
        };
        pipeline.add_node(Instant::ORIGIN, &spec)?;
        let mut event_queue = EventQueue::new();
        for (at, knee) in &plan.knees {
            event_queue.schedule(*at, KneeEvent::SetKnee(*knee));
        }
        let clients = match plan.demand {
            KneeDemand::Clients(clients) => clients,
            KneeDemand::Rate { .. } => 1,
        };
        (0..clients).for_each(|_| event_queue.schedule(Duration::ZERO, KneeEvent::Arrival));
        event_queue.schedule(SAMPLE_INTERVAL, KneeEvent::Sample);
        event_queue.schedule(REPORT_INTERVAL, KneeEvent::Report);
        if plan.scrapes == Scraping::Enabled {
            event_queue.schedule(SCRAPE_INTERVAL, KneeEvent::Scrape);
        }
        Ok(Self {
            plan,
            event_queue,
            arrivals_rng: Rng::new(plan.seed),
            engine_rng: Rng::new(!plan.seed),
            pipeline,
            waiting: BTreeMap::new(),
            sent: Vec::new(),
            engine: KneeEngine::new(plan.shape, 1.0),
            run: KneeRun::default(),
        })
    }

    fn handle(&mut self, event: KneeEvent) {
        let now = self.event_queue.now();
        match event {
            KneeEvent::SetKnee(knee) => self.engine.set_knee(now, f64::from(knee)),
            KneeEvent::Arrival => self.arrive(),
            KneeEvent::Report => {
                self.report();
                self.event_queue.schedule(REPORT_INTERVAL, KneeEvent::Report);
            }
            KneeEvent::Sample => {
                let status = self.pipeline.status();
                let node = &status.nodes[0];
                self.run.samples.push(KneeSample {
                    at: now.since(Instant::ORIGIN),
                    limit: node.limit.map_or(node.slots, |limit| limit.limit),
                    baseline_ms: node.limit.and_then(|limit| limit.baseline_ms),
                    queued: self.engine.queued(),
                });
                self.event_queue.schedule(SAMPLE_INTERVAL, KneeEvent::Sample);
            }
            KneeEvent::Scrape => {
                let running = self.engine.running() as u32;
                let load =
                    EngineLoad { running, waiting: self.engine.queued() as u32, ..EngineLoad::default() };
                self.pipeline.handle_engine_load(now, NODE, Some(load));
                self.event_queue.schedule(SCRAPE_INTERVAL, KneeEvent::Scrape);
            }
        }
    }

    fn arrive(&mut self) {
        let prompts = &self.plan.prompts;
        let prompt = prompts[self.arrivals_rng.below(prompts.len() as u64) as usize];
        let output = (self.plan.output / 2 + self.arrivals_rng.below(self.plan.output + 1)).max(1);
        if let KneeDemand::Rate { per_second, waiting_max } = self.plan.demand {
            let interval = self.arrivals_rng.exponential(Duration::from_secs_f64(1.0 / per_second));
            self.event_queue.schedule(interval, KneeEvent::Arrival);
            if waiting_max <= self.waiting.len() {
                return;
            }
        }
        let cost = Cost(prompt + 2 * output);
        let arrival = Arrival {
            tenant: TenantId(0),
            model: MODEL,
            cost,
            upfront: match self.plan.delivery {
                ResponseDelivery::Stream => Cost(prompt),
                ResponseDelivery::Whole => cost,
            },
            affinity: None,
            deadline: Some(self.plan.duration),
            request: RequestKind::Infer,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        };
        let id = self.pipeline.handle_arrival(self.event_queue.now(), arrival);
        let sent_at = Instant::ORIGIN;
        self.waiting.insert(id, KneeRequest { id, prompt, output, sent_at, reported: 0 });
    }

    /// Sends the requests that the pipeline dispatches.
    fn apply_events(&mut self) {
        let now = self.event_queue.now();
        while let Some(event) = self.pipeline.poll_event() {
            match event {
                Event::Dispatch { request, .. } => {
                    let Some(request) = self.waiting.remove(&request) else { continue };
                    let jitter = 1.0 + PREFILL_JITTER * (2.0 * self.engine_rng.unit() - 1.0);
                    let prefill = prefill_time(request.prompt).mul_f64(jitter);
                    let decode = TIME_PER_TOKEN * request.output as u32;
                    self.engine.submit(now, Job { prefill, decode });
                    self.sent.push(KneeRequest { sent_at: now, ..request });
                }
                Event::Reject { request, .. } => {
                    self.waiting.remove(&request);
                }
                _ => {}
            }
        }
    }

    /// Reports the progress of responses that grew by enough tokens.
    fn report(&mut self) {
        if self.plan.delivery == ResponseDelivery::Whole {
            return;
        }
        let now = self.event_queue.now();
        let responses: Vec<(JobId, u64)> = self.engine.responses(now).collect();
        for (job, generated) in responses {
            let request = &mut self.sent[job.0];
            if request.reported + REPORT_TOKENS <= generated {
                request.reported = generated;
                let actual = Cost(request.prompt + 2 * generated);
                self.pipeline.handle_progress(now, request.id, actual);
            }
        }
    }

    /// Reports the first tokens and ends that are due.
    fn follow_engine(&mut self) {
        let now = self.event_queue.now();
        let at = now.since(Instant::ORIGIN);
        while let Some(progress) = self.engine.poll(now) {
            match progress {
                EngineProgress::FirstToken(job) => {
                    let request = self.sent[job.0];
                    self.run.first_tokens.push((at, now.since(request.sent_at)));
                    if self.plan.delivery == ResponseDelivery::Stream {
                        self.pipeline.handle_first_byte(now, request.id);
                    }
                }
                EngineProgress::Ended(job) => {
                    let request = self.sent[job.0];
                    let actual = Cost(request.prompt + 2 * request.output);
                    self.pipeline.handle_end(now, request.id, RequestEnd { actual, outcome: Outcome::Good });
                    self.run.finished.push(at);
                    if let KneeDemand::Clients(_) = self.plan.demand {
                        self.event_queue.schedule(Duration::ZERO, KneeEvent::Arrival);
                    }
                }
            }
            self.apply_events();
        }
    }
}
