//! One fairness run: clients, the policy under test, and the engine.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::{Duration, Instant};

use super::dispatcher::EngineDispatcher;
use super::engine::{Sequence, TokenEngine};
use super::gap::{Accounts, Gap};
use super::{ArrivalPattern, ClientPlan, SchedulingPolicy, Workload};
use crate::event_queue::{EventQueue, Step};
use crate::{Rng, SimError};

/// End of the warm-up: from then on, the engine is busy with requests of all clients.
const WARM_UP: Instant = Instant::from_secs(30);

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairnessResult {
    /// Largest gap after the warm-up of 30 s. VTC's measurements exclude the warm-up, too, at least those with two and
    /// with eight equal clients.
    pub gap: Gap,
    /// Largest gap including the warm-up, in which the client that sends most has most of the slots.
    pub from_start: Gap,
    /// Service of each client after the warm-up.
    pub service: Vec<Cost>,
    /// Rejected requests of each client.
    pub rejected: Vec<usize>,
}

/// Runs a workload to its end.
pub fn measure(workload: &Workload, policy: SchedulingPolicy, seed: u64) -> Result<FairnessResult, SimError> {
    let mut run = FairnessRun::new(workload, policy, seed)?;
    let end = Instant::ORIGIN + workload.duration;
    while let Some(step) = run.event_queue.next_step(run.dispatcher.next_timer(), end) {
        match step {
            Step::Timer(due) => run.dispatcher.advance_time(due),
            Step::Event(event) => run.handle(event),
        }
        run.apply();
    }
    let service = (0..workload.clients.len()).map(|client| run.after_warm_up.service(client)).collect();
    let gap = run.after_warm_up.worst();
    let from_start = run.from_start.worst();
    Ok(FairnessResult { gap, from_start, service, rejected: run.rejected })
}

enum FairnessEvent {
    Arrival(usize),
    StepEnded,
}

struct FairnessRun<'a> {
    workload: &'a Workload,
    event_queue: EventQueue<FairnessEvent>,
    rngs: Vec<Rng>,
    dispatcher: EngineDispatcher,
    engine: TokenEngine,
    is_stepping: bool,
    /// Client of each request, by its number.
    client_of: Vec<usize>,
    waiting: Vec<usize>,
    rejected: Vec<usize>,
    from_start: Accounts,
    after_warm_up: Accounts,
}

impl<'a> FairnessRun<'a> {
    fn new(workload: &'a Workload, policy: SchedulingPolicy, seed: u64) -> Result<Self, SimError> {
        let mut rng = Rng::new(seed);
        let clients = workload.clients.len();
        let mut run = Self {
            workload,
            event_queue: EventQueue::new(),
            rngs: workload.clients.iter().map(|_| Rng::new(rng.next_u64())).collect(),
            dispatcher: EngineDispatcher::new(policy, clients, rng.next_u64())?,
            engine: TokenEngine::default(),
            is_stepping: false,
            client_of: vec![],
            waiting: vec![0; clients],
            rejected: vec![0; clients],
            from_start: Accounts::new(clients),
            after_warm_up: Accounts::new(clients),
        };
        for (client, plan) in workload.clients.iter().enumerate() {
            let first = interval(plan).mul_f64(run.rngs[client].unit());
            run.event_queue.schedule(first, FairnessEvent::Arrival(client));
        }
        Ok(run)
    }

    fn handle(&mut self, due: FairnessEvent) {
        match due {
            FairnessEvent::Arrival(client) => self.arrive(client),
            FairnessEvent::StepEnded => self.end_step(),
        }
    }

    fn arrive(&mut self, client: usize) {
        let plan = &self.workload.clients[client];
        let now = self.event_queue.now();
        let next = match plan.pattern {
            ArrivalPattern::Even | ArrivalPattern::OnOff(_) => interval(plan),
            ArrivalPattern::Random => self.rngs[client].exponential(interval(plan)),
        };
        self.event_queue.schedule(next, FairnessEvent::Arrival(client));
        if is_off(plan.pattern, now) {
            return;
        }
        let number = self.client_of.len();
        self.client_of.push(client);
        self.waiting[client] += 1;
        self.dispatcher.arrive(now, number, client, plan);
    }

    fn end_step(&mut self) {
        let now = self.event_queue.now();
        self.is_stepping = false;
        let stepped = self.engine.end();
        for sequence in &stepped {
            self.serve(sequence.client, Cost(2));
        }
        self.from_start.compare();
        if WARM_UP <= now {
            self.after_warm_up.compare();
        }
        for sequence in &stepped {
            self.dispatcher.progress(now, sequence);
        }
        for sequence in stepped.iter().filter(|sequence| sequence.is_done()) {
            self.dispatcher.end(now, sequence);
        }
    }

    /// Records service of a client, for the whole run and, once the warm-up is over, for the part after it.
    fn serve(&mut self, client: usize, service: Cost) {
        self.from_start.serve(client, service);
        if WARM_UP <= self.event_queue.now() {
            self.after_warm_up.serve(client, service);
        }
    }

    /// Applies the dispatcher's decisions and starts the engine's next step.
    fn apply(&mut self) {
        while let Some(number) = self.dispatcher.next() {
            let client = self.client_of[number];
            let ClientPlan { input, output, .. } = self.workload.clients[client];
            self.waiting[client] -= 1;
            self.dispatcher.begin(client, input);
            self.serve(client, Cost(input));
            self.engine.join(Sequence { number, client, input, output, generated: 0 });
        }
        while let Some(number) = self.dispatcher.next_rejected() {
            let client = self.client_of[number];
            self.waiting[client] -= 1;
            self.rejected[client] += 1;
        }
        for (client, waiting) in self.waiting.iter().enumerate() {
            self.from_start.record_waiting(client, *waiting);
            if WARM_UP <= self.event_queue.now() {
                self.after_warm_up.record_waiting(client, *waiting);
            }
        }
        if !self.is_stepping
            && let Some(step_time) = self.engine.begin()
        {
            self.is_stepping = true;
            self.event_queue.schedule(step_time, FairnessEvent::StepEnded);
        }
    }
}

/// Returns the mean interval between a client's requests.
fn interval(plan: &ClientPlan) -> Duration {
    Duration::from_secs(60) / plan.rpm
}

fn is_off(pattern: ArrivalPattern, now: Instant) -> bool {
    match pattern {
        ArrivalPattern::Even | ArrivalPattern::Random => false,
        ArrivalPattern::OnOff(duration) => {
            (now.since(Instant::ORIGIN).as_nanos() / duration.as_nanos()) % 2 == 1
        }
    }
}
