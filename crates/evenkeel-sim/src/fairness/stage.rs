//! One run: clients that ask, a line in which they wait, an engine that answers.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::{Duration, Instant};

use super::dispatcher::EngineDispatcher;
use super::engine::{Sequence, TokenEngine};
use super::gap::{Accounts, Gap};
use super::{ArrivalPattern, ClientPlan, SchedulingPolicy, Workload};
use crate::event_queue::EventQueue;
use crate::{Rng, SimError};

/// From when the engine is busy with everybody.
const WARM_UP: Instant = Instant::from_secs(30);

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairnessResult {
    /// How far apart clients drifted once the engine was busy: after half a minute, as VTC's authors count, too, at
    /// least with two and with eight clients that are alike.
    pub gap: Gap,
    /// How far apart they drifted with the first half minute, in which whoever asks most has most of the slots.
    pub from_start: Gap,
    /// What each client got once the engine was busy.
    pub service: Vec<Cost>,
    /// How many requests of each client were turned away.
    pub refused: Vec<usize>,
}

/// Runs a workload to its end.
pub fn measure(workload: &Workload, turns: SchedulingPolicy, seed: u64) -> Result<FairnessResult, SimError> {
    let mut stage = FairnessRun::new(workload, turns, seed)?;
    let end = Instant::ORIGIN + workload.duration;
    loop {
        let due = stage.line.due().filter(|due| *due <= end);
        if let Some(due) = due.filter(|due| stage.agenda.next_at().is_none_or(|next| *due <= next)) {
            stage.agenda.wait_until(due);
            stage.line.pass(due);
        } else if let Some(due) = stage.agenda.next_until(end) {
            stage.handle(due);
        } else {
            break;
        }
        stage.follow();
    }
    let service = (0..workload.clients.len()).map(|client| stage.settled.service(client)).collect();
    let gap = stage.settled.worst();
    let from_start = stage.from_start.worst();
    Ok(FairnessResult { gap, from_start, service, refused: stage.refused })
}

enum FairnessEvent {
    Arrival(usize),
    StepEnds,
}

struct FairnessRun<'a> {
    workload: &'a Workload,
    agenda: EventQueue<FairnessEvent>,
    rngs: Vec<Rng>,
    line: EngineDispatcher,
    engine: TokenEngine,
    is_stepping: bool,
    /// Whose each ticket is.
    tickets: Vec<usize>,
    waiting: Vec<usize>,
    refused: Vec<usize>,
    from_start: Accounts,
    settled: Accounts,
}

impl<'a> FairnessRun<'a> {
    fn new(workload: &'a Workload, turns: SchedulingPolicy, seed: u64) -> Result<Self, SimError> {
        let mut rng = Rng::new(seed);
        let clients = workload.clients.len();
        let mut stage = Self {
            workload,
            agenda: EventQueue::new(),
            rngs: workload.clients.iter().map(|_| Rng::new(rng.next_u64())).collect(),
            line: EngineDispatcher::new(turns, clients, rng.next_u64())?,
            engine: TokenEngine::default(),
            is_stepping: false,
            tickets: vec![],
            waiting: vec![0; clients],
            refused: vec![0; clients],
            from_start: Accounts::new(clients),
            settled: Accounts::new(clients),
        };
        for (client, plan) in workload.clients.iter().enumerate() {
            let first = apart(plan).mul_f64(stage.rngs[client].unit());
            stage.agenda.schedule(first, FairnessEvent::Arrival(client));
        }
        Ok(stage)
    }

    fn handle(&mut self, due: FairnessEvent) {
        match due {
            FairnessEvent::Arrival(client) => self.arrive(client),
            FairnessEvent::StepEnds => self.end_step(),
        }
    }

    fn arrive(&mut self, client: usize) {
        let plan = &self.workload.clients[client];
        let now = self.agenda.now();
        let next = match plan.rhythm {
            ArrivalPattern::Even | ArrivalPattern::OnOff(_) => apart(plan),
            ArrivalPattern::Random => self.rngs[client].exponential(apart(plan)),
        };
        self.agenda.schedule(next, FairnessEvent::Arrival(client));
        if is_off(plan.rhythm, now) {
            return;
        }
        let ticket = self.tickets.len();
        self.tickets.push(client);
        self.waiting[client] += 1;
        self.line.arrive(now, ticket, client, plan);
    }

    fn end_step(&mut self) {
        let now = self.agenda.now();
        self.is_stepping = false;
        let stepped = self.engine.end();
        for sequence in &stepped {
            self.serve(sequence.client, Cost(2));
        }
        self.from_start.compare();
        if WARM_UP <= now {
            self.settled.compare();
        }
        for sequence in &stepped {
            self.line.progress(now, sequence);
        }
        for sequence in stepped.iter().filter(|sequence| sequence.is_done()) {
            self.line.end(now, sequence);
        }
    }

    /// Notes service for a client, in the account of the whole run and, once the engine is busy, in the other.
    fn serve(&mut self, client: usize, service: Cost) {
        self.from_start.serve(client, service);
        if WARM_UP <= self.agenda.now() {
            self.settled.serve(client, service);
        }
    }

    /// Does what the line says, and lets the engine go on.
    fn follow(&mut self) {
        while let Some(ticket) = self.line.next() {
            let client = self.tickets[ticket];
            let ClientPlan { input, output, .. } = self.workload.clients[client];
            self.waiting[client] -= 1;
            self.line.begin(client, input);
            self.serve(client, Cost(input));
            self.engine.join(Sequence { ticket, client, input, output, said: 0 });
        }
        while let Some(ticket) = self.line.next_refused() {
            let client = self.tickets[ticket];
            self.waiting[client] -= 1;
            self.refused[client] += 1;
        }
        for (client, waiting) in self.waiting.iter().enumerate() {
            self.from_start.record_waiting(client, *waiting);
            if WARM_UP <= self.agenda.now() {
                self.settled.record_waiting(client, *waiting);
            }
        }
        if !self.is_stepping
            && let Some(takes) = self.engine.begin()
        {
            self.is_stepping = true;
            self.agenda.schedule(takes, FairnessEvent::StepEnds);
        }
    }
}

/// How far apart a client's requests are, on average.
fn apart(plan: &ClientPlan) -> Duration {
    Duration::from_secs(60) / plan.rpm
}

fn is_off(rhythm: ArrivalPattern, now: Instant) -> bool {
    match rhythm {
        ArrivalPattern::Even | ArrivalPattern::Random => false,
        ArrivalPattern::OnOff(span) => (now.since(Instant::ORIGIN).as_nanos() / span.as_nanos()) % 2 == 1,
    }
}
