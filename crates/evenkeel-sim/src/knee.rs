//! Simulates a node that runs one engine with continuous batching, and whose concurrency limit adapts to the engine's
//! knee: the load beyond which latency grows and throughput does not.
//!
//! The engine processes `batch` requests at once and queues the rest internally, first come, first served. Up to
//! `batch` requests, the time to first token is the prefill time; beyond that it includes the wait in the engine's
//! queue. The limit has to find that point by itself.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_pipeline::{
    Arrival, EngineLoad, Event, ModelId, NodeSpec, OptimizedLoadManager, PipelineOptions, Priority,
    RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use crate::event_queue::EventQueue;
use crate::record::nearest_rank;
use crate::rng::Rng;
use crate::simulation::{SimError, load_config};

const MODEL: ModelId = ModelId(0);
const NODE: NodeId = NodeId(0);
/// Base duration of a step, in which every response grows by one token.
const STEP_BASE_TIME: Duration = Duration::from_millis(20);
/// Additional duration of a step per response.
const STEP_TIME_PER_SEQUENCE: Duration = Duration::from_micros(300);
/// Additional duration of a step per prompt token processed in it.
const PREFILL_TIME_PER_TOKEN: Duration = Duration::from_micros(100);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(2);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Setup of a run.
#[derive(Clone, Debug)]
pub struct KneePlan {
    pub seed: u64,
    pub duration: Duration,
    /// Number of closed-loop clients: each sends its next request when the last one ends.
    pub clients: u32,
    /// Concurrency limit of the node: fixed or adaptive.
    pub slots: Slots,
    pub scrapes: Scraping,
    /// Batch sizes of the engine, each with the time from which it applies.
    pub batches: Vec<(Duration, u32)>,
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
    /// The node's concurrency limit.
    pub limit: u32,
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

    fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &KneeSample> {
        self.samples.iter().filter(move |sample| (from..to).contains(&sample.at))
    }
}

/// Runs a plan to its end.
pub fn run_knee(plan: &KneePlan) -> Result<KneeRun, SimError> {
    let mut sim = KneeSim::new(plan)?;
    let end = Instant::ORIGIN + plan.duration;
    for _ in 0..plan.clients {
        sim.submit();
    }
    sim.apply_events();
    while let Some(event) = sim.event_queue.next_until(end) {
        sim.handle(event);
        sim.apply_events();
    }
    Ok(sim.run)
}

enum KneeEvent {
    StepEnded,
    Sample,
    Scrape,
    SetBatchSize(u32),
}

#[derive(Clone, Copy)]
struct Sequence {
    request: RequestId,
    prompt: u64,
    output: u64,
    generated: u64,
    sent_at: Instant,
}

struct KneeSim {
    event_queue: EventQueue<KneeEvent>,
    rng: Rng,
    pipeline: OptimizedLoadManager,
    /// Prompt and response lengths of requests that are not sent yet.
    pending: BTreeMap<RequestId, (u64, u64)>,
    batch: usize,
    queue: VecDeque<Sequence>,
    running: Vec<Sequence>,
    is_stepping: bool,
    run: KneeRun,
}

impl KneeSim {
    fn new(plan: &KneePlan) -> Result<Self, SimError> {
        let capacity = plan.clients as usize + 1;
        let backpressure = BackpressureConfig {
            max_queue_size: capacity,
            warning_threshold: 0.99,
            overload_threshold: 1.0,
            ..BackpressureConfig::default()
        };
        let load = load_config(backpressure);
        let mut pipeline = OptimizedLoadManager::new(PipelineOptions { load, ..PipelineOptions::default() })?;
        let spec = NodeSpec {
            slots: plan.slots,
            transactions_max: None,
            weight: Weight::ONE,
            models: vec![MODEL],
            paths: vec![],
        };
        pipeline.add_node(Instant::ORIGIN, &spec)?;
        let mut event_queue = EventQueue::new();
        plan.batches
            .iter()
            .for_each(|(at, batch)| event_queue.schedule(*at, KneeEvent::SetBatchSize(*batch)));
        event_queue.schedule(SAMPLE_INTERVAL, KneeEvent::Sample);
        if plan.scrapes == Scraping::Enabled {
            event_queue.schedule(SCRAPE_INTERVAL, KneeEvent::Scrape);
        }
        Ok(Self {
            event_queue,
            rng: Rng::new(plan.seed),
            pipeline,
            pending: BTreeMap::new(),
            batch: 1,
            queue: VecDeque::new(),
            running: Vec::new(),
            is_stepping: false,
            run: KneeRun::default(),
        })
    }

    fn submit(&mut self) {
        let prompt = 64 + self.rng.below(448);
        let output = 32 + self.rng.below(224);
        let arrival = Arrival {
            tenant: TenantId(0),
            model: MODEL,
            cost: Cost(prompt + 2 * output),
            upfront: Cost(prompt),
            affinity: None,
            deadline: None,
            request: RequestKind::Infer,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
        };
        let request = self.pipeline.handle_arrival(self.event_queue.now(), arrival);
        self.pending.insert(request, (prompt, output));
    }

    fn handle(&mut self, event: KneeEvent) {
        let now = self.event_queue.now();
        match event {
            KneeEvent::StepEnded => self.end_step(),
            KneeEvent::SetBatchSize(batch) => self.batch = batch as usize,
            KneeEvent::Sample => {
                let limit = self.pipeline.status().nodes[0].slots;
                let at = now.since(Instant::ORIGIN);
                self.run.samples.push(KneeSample { at, limit, queued: self.queue.len() });
                self.event_queue.schedule(SAMPLE_INTERVAL, KneeEvent::Sample);
            }
            KneeEvent::Scrape => {
                let running = self.running.len() as u32;
                let waiting = self.queue.len() as u32;
                let load = EngineLoad { running, waiting, ..EngineLoad::default() };
                self.pipeline.handle_engine_load(now, NODE, Some(load));
                self.event_queue.schedule(SCRAPE_INTERVAL, KneeEvent::Scrape);
            }
        }
        self.begin_step();
    }

    /// Sends the requests that the pipeline dispatches.
    fn apply_events(&mut self) {
        while let Some(event) = self.pipeline.poll_event() {
            let Event::Dispatch { request, .. } = event else { continue };
            let Some((prompt, output)) = self.pending.remove(&request) else { continue };
            let sent_at = self.event_queue.now();
            self.queue.push_back(Sequence { request, prompt, output, generated: 0, sent_at });
        }
        self.begin_step();
    }

    fn begin_step(&mut self) {
        if self.is_stepping {
            return;
        }
        let mut prompts = 0;
        while self.running.len() < self.batch
            && let Some(next) = self.queue.pop_front()
        {
            prompts += next.prompt;
            self.running.push(next);
        }
        if self.running.is_empty() {
            return;
        }
        self.is_stepping = true;
        let step_time = STEP_BASE_TIME
            + STEP_TIME_PER_SEQUENCE * self.running.len() as u32
            + PREFILL_TIME_PER_TOKEN * prompts as u32;
        self.event_queue.schedule(step_time, KneeEvent::StepEnded);
    }

    fn end_step(&mut self) {
        self.is_stepping = false;
        let now = self.event_queue.now();
        let at = now.since(Instant::ORIGIN);
        let mut done = Vec::new();
        for sequence in &mut self.running {
            sequence.generated += 1;
            if sequence.generated == 1 {
                self.run.first_tokens.push((at, now.since(sequence.sent_at)));
                self.pipeline.handle_first_byte(now, sequence.request);
            }
            if sequence.output <= sequence.generated {
                done.push(*sequence);
            }
        }
        self.running.retain(|sequence| sequence.generated < sequence.output);
        for sequence in done {
            let actual = Cost(sequence.prompt + 2 * sequence.output);
            self.pipeline.handle_end(now, sequence.request, RequestEnd { actual, outcome: Outcome::Good });
            self.run.finished.push(at);
            self.submit();
        }
    }
}
