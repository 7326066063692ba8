//! The policy under test: Evenkeel's pipeline, VTC or FIFO behind one interface.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_pipeline::{
    Arrival, Event, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PipelineOptions, Priority,
    RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;

use super::engine::{SLOTS, Sequence};
use super::vtc::Vtc;
use super::{ClientPlan, SchedulingPolicy};
use crate::simulation::{SimError, load_config};

const MODEL: ModelId = ModelId(0);

/// Number of tokens between two progress reports, as in the LLM API.
const COST_REPORT_STEP: u64 = 16;

/// Capacity of the pipeline's queue, which all clients share.
const QUEUE_CAPACITY: usize = 200;

/// Queues requests and dispatches them to the engine.
pub(super) struct EngineDispatcher {
    order: DispatchOrder,
    free: u32,
    dispatched: VecDeque<usize>,
    rejected: VecDeque<usize>,
}

enum DispatchOrder {
    Evenkeel {
        pipeline: Box<OptimizedLoadManager>,
        /// Id of each request in the pipeline, by its number.
        requests: Vec<RequestId>,
        /// Numbers of the waiting requests.
        numbers: BTreeMap<RequestId, usize>,
    },
    Vtc(Vtc),
    Fifo(VecDeque<usize>),
}

impl EngineDispatcher {
    pub(super) fn new(policy: SchedulingPolicy, clients: usize, seed: u64) -> Result<Self, SimError> {
        let order = match policy {
            SchedulingPolicy::Evenkeel => {
                let mut pipeline = OptimizedLoadManager::new(options(seed))?;
                let spec = NodeSpec {
                    slots: Slots::Fixed(SLOTS),
                    transactions_max: None,
                    weight: Weight::ONE,
                    models: vec![MODEL],
                    paths: vec![],
                };
                pipeline.add_node(Instant::ORIGIN, &spec)?;
                DispatchOrder::Evenkeel {
                    pipeline: Box::new(pipeline),
                    requests: vec![],
                    numbers: BTreeMap::new(),
                }
            }
            SchedulingPolicy::Vtc => DispatchOrder::Vtc(Vtc::new(clients)),
            SchedulingPolicy::Fifo => DispatchOrder::Fifo(VecDeque::new()),
        };
        Ok(Self { order, free: SLOTS, dispatched: VecDeque::new(), rejected: VecDeque::new() })
    }

    /// Adds a request; callers number requests consecutively from 0.
    pub(super) fn arrive(&mut self, now: Instant, number: usize, client: usize, plan: &ClientPlan) {
        match &mut self.order {
            DispatchOrder::Evenkeel { pipeline, requests, numbers } => {
                let arrival = Arrival {
                    tenant: TenantId(client as u32),
                    model: MODEL,
                    cost: plan.cost(),
                    upfront: Cost(plan.input),
                    affinity: None,
                    deadline: None,
                    request: RequestKind::Infer,
                    priority: Priority::Interactive,
                    flow: TenantFlow::default(),
                    outage: OutageRule::Hold,
                };
                let request = pipeline.handle_arrival(now, arrival);
                requests.push(request);
                numbers.insert(request, number);
            }
            DispatchOrder::Vtc(vtc) => vtc.arrive(client, number),
            DispatchOrder::Fifo(waiting) => waiting.push_back(number),
        }
    }

    /// Records a generated token.
    pub(super) fn progress(&mut self, now: Instant, sequence: &Sequence) {
        match &mut self.order {
            DispatchOrder::Evenkeel { pipeline, requests, .. } => {
                let request = requests[sequence.number];
                if sequence.has_just_started() {
                    pipeline.handle_first_byte(now, request);
                }
                if sequence.generated % COST_REPORT_STEP == 1 {
                    pipeline.handle_progress(now, request, Cost(sequence.input + 2 * sequence.generated));
                }
            }
            DispatchOrder::Vtc(vtc) => vtc.count(sequence.client, 2),
            DispatchOrder::Fifo(_) => {}
        }
    }

    /// Records the end of a response.
    pub(super) fn end(&mut self, now: Instant, sequence: &Sequence) {
        self.free += 1;
        if let DispatchOrder::Evenkeel { pipeline, requests, .. } = &mut self.order {
            let actual = Cost(sequence.input + 2 * sequence.output);
            pipeline.handle_end(
                now,
                requests[sequence.number],
                RequestEnd { actual, outcome: Outcome::Good },
            );
        }
    }

    /// Returns the next request to send to the engine.
    pub(super) fn next(&mut self) -> Option<usize> {
        if let DispatchOrder::Evenkeel { .. } = self.order {
            self.drain_events();
            return self.dispatched.pop_front();
        }
        if self.free == 0 {
            return None;
        }
        let number = match &mut self.order {
            DispatchOrder::Vtc(vtc) => vtc.next(),
            DispatchOrder::Fifo(waiting) => waiting.pop_front(),
            DispatchOrder::Evenkeel { .. } => None,
        }?;
        self.free -= 1;
        Some(number)
    }

    /// Records that the engine is about to process a prompt.
    pub(super) fn begin(&mut self, client: usize, input: u64) {
        if let DispatchOrder::Vtc(vtc) = &mut self.order {
            vtc.count(client, input);
        }
    }

    /// Returns the next request that was rejected.
    pub(super) fn next_rejected(&mut self) -> Option<usize> {
        self.rejected.pop_front()
    }

    /// Returns the time of the pipeline's next timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        match &self.order {
            DispatchOrder::Evenkeel { pipeline, .. } => pipeline.poll_timeout(),
            DispatchOrder::Vtc(_) | DispatchOrder::Fifo(_) => None,
        }
    }

    pub(super) fn advance_time(&mut self, now: Instant) {
        if let DispatchOrder::Evenkeel { pipeline, .. } = &mut self.order {
            pipeline.handle_time(now);
        }
    }

    fn drain_events(&mut self) {
        let DispatchOrder::Evenkeel { pipeline, numbers, .. } = &mut self.order else { return };
        while let Some(event) = pipeline.poll_event() {
            match event {
                Event::Dispatch { request, .. } => self.dispatched.extend(numbers.remove(&request)),
                Event::Reject { request, .. } => self.rejected.extend(numbers.remove(&request)),
                _ => {}
            }
        }
    }
}

fn options(seed: u64) -> PipelineOptions {
    let backpressure = BackpressureConfig { max_queue_size: QUEUE_CAPACITY, ..BackpressureConfig::default() };
    PipelineOptions { load: load_config(backpressure), seed, ..PipelineOptions::default() }
}
