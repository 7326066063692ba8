//! Who waits for the engine, and who goes next: one face for the orders that are compared.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_pipeline::{
    Arrival, Event, ModelId, NodeSpec, OptimizedLoadManager, PipelineOptions, Priority, RequestEnd,
    RequestId, Slots,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::engine::{SLOTS, Sequence};
use super::vtc::Vtc;
use super::{ClientPlan, SchedulingPolicy};
use crate::SimError;

const MODEL: ModelId = ModelId(0);

/// After how many tokens the pipeline is told, as the door does it.
const COST_REPORT_STEP: u64 = 16;

/// Room for everybody's share to wait, for as long as that takes.
const PLACES: usize = 200;
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Requests that wait, and those that were told to go.
pub(super) struct EngineDispatcher {
    order: DispatchOrder,
    free: u32,
    going: VecDeque<usize>,
    refused: VecDeque<usize>,
}

enum DispatchOrder {
    Evenkeel {
        walk: Box<OptimizedLoadManager>,
        requests: Vec<RequestId>,
        tickets: BTreeMap<RequestId, usize>,
    },
    Vtc(Vtc),
    Fifo(VecDeque<usize>),
}

impl EngineDispatcher {
    pub(super) fn new(turns: SchedulingPolicy, clients: usize, seed: u64) -> Result<Self, SimError> {
        let order = match turns {
            SchedulingPolicy::Evenkeel => {
                let mut walk = OptimizedLoadManager::new(options(seed))?;
                let spec = NodeSpec {
                    slots: Slots::Fixed(SLOTS),
                    weight: Weight::ONE,
                    models: vec![MODEL],
                    paths: vec![],
                };
                walk.add_node(Instant::ORIGIN, &spec)?;
                DispatchOrder::Evenkeel { walk: Box::new(walk), requests: vec![], tickets: BTreeMap::new() }
            }
            SchedulingPolicy::Vtc => DispatchOrder::Vtc(Vtc::new(clients)),
            SchedulingPolicy::Fifo => DispatchOrder::Fifo(VecDeque::new()),
        };
        Ok(Self { order, free: SLOTS, going: VecDeque::new(), refused: VecDeque::new() })
    }

    /// Takes in a request; tickets are numbered as they come.
    pub(super) fn arrive(&mut self, now: Instant, ticket: usize, client: usize, plan: &ClientPlan) {
        match &mut self.order {
            DispatchOrder::Evenkeel { walk, requests, tickets } => {
                let arrival = Arrival {
                    tenant: TenantId(client as u32),
                    model: MODEL,
                    cost: plan.cost(),
                    upfront: Cost(plan.input),
                    affinity: None,
                    deadline: None,
                    request: RequestKind::Infer,
                    urgency: Priority::Interactive,
                };
                let request = walk.handle_arrival(now, arrival);
                requests.push(request);
                tickets.insert(request, ticket);
            }
            DispatchOrder::Vtc(vtc) => vtc.arrive(client, ticket),
            DispatchOrder::Fifo(waiting) => waiting.push_back(ticket),
        }
    }

    /// Takes in that an answer has grown.
    pub(super) fn progress(&mut self, now: Instant, sequence: &Sequence) {
        match &mut self.order {
            DispatchOrder::Evenkeel { walk, requests, .. } => {
                let request = requests[sequence.ticket];
                if sequence.has_just_begun() {
                    walk.handle_first_byte(now, request);
                }
                if sequence.said % COST_REPORT_STEP == 1 {
                    walk.handle_progress(now, request, Cost(sequence.input + 2 * sequence.said));
                }
            }
            DispatchOrder::Vtc(vtc) => vtc.count(sequence.client, 2),
            DispatchOrder::Fifo(_) => {}
        }
    }

    /// Takes in that an answer is complete.
    pub(super) fn end(&mut self, now: Instant, sequence: &Sequence) {
        self.free += 1;
        if let DispatchOrder::Evenkeel { walk, requests, .. } = &mut self.order {
            let actual = Cost(sequence.input + 2 * sequence.output);
            walk.handle_end(now, requests[sequence.ticket], RequestEnd { actual, outcome: Outcome::Good });
        }
    }

    /// Takes out a request that goes to the engine now.
    pub(super) fn next(&mut self) -> Option<usize> {
        if let DispatchOrder::Evenkeel { .. } = self.order {
            self.follow();
            return self.going.pop_front();
        }
        if self.free == 0 {
            return None;
        }
        let ticket = match &mut self.order {
            DispatchOrder::Vtc(vtc) => vtc.next(),
            DispatchOrder::Fifo(waiting) => waiting.pop_front(),
            DispatchOrder::Evenkeel { .. } => None,
        }?;
        self.free -= 1;
        Some(ticket)
    }

    /// Notes that a request's prompt is about to be read.
    pub(super) fn begin(&mut self, client: usize, input: u64) {
        if let DispatchOrder::Vtc(vtc) = &mut self.order {
            vtc.count(client, input);
        }
    }

    /// Takes out a request that was turned away.
    pub(super) fn next_refused(&mut self) -> Option<usize> {
        self.refused.pop_front()
    }

    /// When time alone changes something.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.order {
            DispatchOrder::Evenkeel { walk, .. } => walk.poll_timeout(),
            DispatchOrder::Vtc(_) | DispatchOrder::Fifo(_) => None,
        }
    }

    pub(super) fn pass(&mut self, now: Instant) {
        if let DispatchOrder::Evenkeel { walk, .. } = &mut self.order {
            walk.handle_time(now);
        }
    }

    fn follow(&mut self) {
        let DispatchOrder::Evenkeel { walk, tickets, .. } = &mut self.order else { return };
        while let Some(event) = walk.poll_event() {
            match event {
                Event::Dispatch { request, .. } => self.going.extend(tickets.remove(&request)),
                Event::Reject { request, .. } => self.refused.extend(tickets.remove(&request)),
                _ => {}
            }
        }
    }
}

fn options(seed: u64) -> PipelineOptions {
    let wait_queue =
        WaitQueueConfig { max_waiting: PLACES, default_timeout: WAIT_MAX, ..WaitQueueConfig::default() };
    let backpressure = BackpressureConfig { max_queue_size: PLACES, ..BackpressureConfig::default() };
    PipelineOptions {
        load: LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() },
        seed,
        ..PipelineOptions::default()
    }
}
