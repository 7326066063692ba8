//! One request's walk, again and again, on a virtual clock.

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_policy::backpressure::{
    BackpressureController, FairAdmission, InvalidConfig, TooManyTenants, Waiter,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::AddKeyError;
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrError;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use crate::agenda::Agenda;
use crate::nodes::{Nodes, Sent};
use crate::record::{Event, Run, Stamped};
use crate::rng::Rng;
use crate::scenario::{Admit, Change, Demand, Scenario};
use crate::waiting::{Lanes, Waiting};

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario) -> Result<Run, SimError> {
    let mut world = World::new(scenario)?;
    world.start()?;
    let end = Instant::ORIGIN + scenario.duration;
    while let Some(due) = world.agenda.next_until(end) {
        world.happen(due)?;
    }
    Ok(Run {
        events: world.events,
        left_waiting: world.lanes.len(),
        idle_while_waiting: world.idle_while_waiting,
    })
}

/// Something that is due.
enum Due {
    Arrival(TenantId),
    Enter(Waiting),
    Done { ticket: u32, sent: Sent },
    Change(Change),
}

/// What is known of a request, whatever becomes of it.
#[derive(Clone, Copy)]
struct Ticket {
    tenant: TenantId,
    key: Key,
    arrived: Instant,
    actual: Cost,
}

/// Who is turned away, and what that is decided by.
enum Admission {
    Everybody,
    ByLoad { controller: BackpressureController, waiting: usize },
    ByShare(FairAdmission),
}

impl Admission {
    /// Notes that a request of `tenant` has a slot and waits no more.
    fn leave(&mut self, tenant: TenantId) {
        match self {
            Self::Everybody => {}
            Self::ByLoad { waiting, .. } => *waiting -= 1,
            Self::ByShare(fair) => {
                fair.reserve(tenant);
                fair.leave(tenant, Waiter::Reserved);
            }
        }
    }
}

struct World<'a> {
    scenario: &'a Scenario,
    agenda: Agenda<Due>,
    /// Draws for what is decided.
    rng: Rng,
    /// Draws for each tenant's requests, so that they do not depend on what is decided.
    tenant_rngs: Vec<Rng>,
    weights: Vec<Weight>,
    first_keys: Vec<u32>,
    tickets: Vec<Ticket>,
    admission: Admission,
    /// Requests in their Warning delay.
    entering: BTreeSet<Waiting>,
    lanes: Lanes,
    nodes: Nodes,
    events: Vec<Stamped>,
    idle_while_waiting: usize,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, SimError> {
        let admission = match scenario.admit {
            Admit::Everybody => Admission::Everybody,
            Admit::ByLoad(config) => {
                Admission::ByLoad { controller: BackpressureController::new(config)?, waiting: 0 }
            }
            Admit::ByShare(config) => {
                let tenants = u32::try_from(scenario.tenants.len()).unwrap_or(u32::MAX);
                Admission::ByShare(FairAdmission::new(BackpressureController::new(config)?, tenants))
            }
        };
        let mut rng = Rng::new(scenario.seed);
        let mut first_keys = vec![];
        let mut next = 0;
        for tenant in &scenario.tenants {
            first_keys.push(next);
            next += tenant.keys;
        }
        Ok(Self {
            scenario,
            agenda: Agenda::new(),
            tenant_rngs: scenario.tenants.iter().map(|_| Rng::new(rng.next_u64())).collect(),
            rng,
            weights: scenario.tenants.iter().map(|tenant| tenant.weight).collect(),
            first_keys,
            tickets: vec![],
            admission,
            entering: BTreeSet::new(),
            lanes: Lanes::new(scenario.order, scenario.quantum)?,
            nodes: Nodes::new(&scenario.nodes)?,
            events: vec![],
            idle_while_waiting: 0,
        })
    }

    fn start(&mut self) -> Result<(), SimError> {
        for (id, tenant) in (0_u32..).zip(&self.scenario.tenants) {
            match tenant.demand {
                Demand::Every(mean) => {
                    let first = self.tenant_rngs[id as usize].exponential(mean);
                    self.agenda.note(first, Due::Arrival(TenantId(id)));
                }
                Demand::Backlog(depth) => {
                    for _ in 0..depth {
                        self.accept(TenantId(id))?;
                    }
                }
            }
        }
        for &(at, change) in &self.scenario.changes {
            self.agenda.note(at, Due::Change(change));
        }
        self.dispatch()
    }

    fn happen(&mut self, due: Due) -> Result<(), SimError> {
        match due {
            Due::Arrival(tenant) => {
                if let Demand::Every(mean) = self.scenario.tenants[tenant.index()].demand {
                    let next = self.tenant_rngs[tenant.index()].exponential(mean);
                    self.agenda.note(next, Due::Arrival(tenant));
                }
                self.accept(tenant)?;
            }
            Due::Enter(request) if self.entering.remove(&request) => self.enter(request)?,
            // Pushed out meanwhile.
            Due::Enter(_) => {}
            Due::Done { ticket, sent } => self.observe(ticket, sent)?,
            Due::Change(change) => self.change(change),
        }
        self.dispatch()
    }

    /// Accept: a request of `tenant` arrives.
    fn accept(&mut self, tenant: TenantId) -> Result<(), SimError> {
        let plan = &self.scenario.tenants[tenant.index()];
        let rng = &mut self.tenant_rngs[tenant.index()];
        let (least, most) = plan.actual;
        let actual = least + Cost(rng.below(most.0.saturating_sub(least.0) + 1));
        let key = Key(self.first_keys[tenant.index()] + rng.below(u64::from(plan.keys)) as u32);
        let ticket = u32::try_from(self.tickets.len()).map_err(|_| SimError::TooManyRequests)?;
        self.tickets.push(Ticket { tenant, key, arrived: self.agenda.now(), actual });
        self.tell(Event::Arrived { ticket, tenant, key });
        self.admit(Waiting { ticket, tenant, key })
    }

    /// Admit: take it, slow it, or turn it away.
    fn admit(&mut self, request: Waiting) -> Result<(), SimError> {
        let weight = self.weights[request.tenant.index()];
        let (decision, push_out) = match &mut self.admission {
            Admission::Everybody => return self.enter(request),
            Admission::ByLoad { controller, waiting } => {
                let decision = controller.decide(*waiting);
                *waiting += usize::from(decision.accept);
                (decision, None)
            }
            Admission::ByShare(fair) => {
                let admission = fair.admit(request.tenant, weight)?;
                (admission.decision, admission.push_out)
            }
        };
        if !decision.accept {
            self.tell(Event::Rejected { ticket: request.ticket, tenant: request.tenant });
            return Ok(());
        }
        if let Some(victim) = push_out {
            self.push_out(victim);
        }
        if decision.delay > Duration::ZERO {
            self.entering.insert(request);
            self.agenda.note(decision.delay, Due::Enter(request));
            return Ok(());
        }
        self.enter(request)
    }

    /// Turns the victim's newest request away, wherever it waits.
    fn push_out(&mut self, victim: TenantId) {
        let entering = self.entering.iter().rev().find(|request| request.tenant == victim).copied();
        let newest = entering.max(self.lanes.newest(victim));
        let Some(pushed) = newest else { return };
        if !self.entering.remove(&pushed) {
            self.lanes.remove_newest(pushed);
        }
        self.tell(Event::PushedOut { ticket: pushed.ticket, tenant: victim });
    }

    /// Queue: wait for a turn.
    fn enter(&mut self, request: Waiting) -> Result<(), SimError> {
        self.lanes.push(request, self.weights[request.tenant.index()])
    }

    /// Pick node, pick path, send: as long as there is a slot and somebody whose turn it is.
    fn dispatch(&mut self) -> Result<(), SimError> {
        while self.nodes.has_room() {
            let plans = &self.scenario.tenants;
            let Some(request) = self.lanes.pop(|tenant| plans[tenant.index()].estimate) else { break };
            self.admission.leave(request.tenant);
            let ticket = self.tickets[request.ticket as usize];
            let now = self.agenda.now();
            let estimate = plans[request.tenant.index()].estimate;
            let Some(sent) = self.nodes.send(now, estimate, ticket.actual, self.rng.unit()) else {
                return Err(SimError::NoNode);
            };
            self.agenda.note(sent.takes, Due::Done { ticket: request.ticket, sent });
            self.tell(Event::Dispatched {
                ticket: request.ticket,
                tenant: request.tenant,
                key: request.key,
                node: sent.node,
                path: sent.path,
                waited: now.since(ticket.arrived),
            });
            if matches!(plans[request.tenant.index()].demand, Demand::Backlog(_)) {
                self.accept(request.tenant)?;
            }
        }
        if self.nodes.has_room() && self.lanes.somebody_could_be_served() {
            self.idle_while_waiting += 1;
        }
        Ok(())
    }

    /// Observe: what it cost, fed back to whoever decided.
    fn observe(&mut self, number: u32, sent: Sent) -> Result<(), SimError> {
        let ticket = self.tickets[number as usize];
        let estimate = self.scenario.tenants[ticket.tenant.index()].estimate;
        self.nodes.finish(self.agenda.now(), sent, estimate)?;
        self.lanes.settle(ticket.key, estimate, ticket.actual);
        let node = sent.node;
        self.tell(Event::Finished { ticket: number, tenant: ticket.tenant, node, actual: ticket.actual });
        Ok(())
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Weight(tenant, weight) => {
                self.weights[tenant.index()] = weight;
                self.lanes.update_weight(tenant, weight);
                if let Admission::ByShare(fair) = &mut self.admission {
                    fair.update_weight(tenant, weight);
                }
                self.tell(Event::Reweighed { tenant, weight });
            }
            Change::ParkSome(tenant) => {
                let key = self.some_key(tenant);
                self.lanes.park(key);
                self.tell(Event::Parked { key });
            }
            Change::WakeSome(tenant) => {
                let key = self.some_key(tenant);
                self.wake(key);
            }
            Change::WakeAll(tenant) => {
                let first = self.first_keys[tenant.index()];
                for key in first..first + self.scenario.tenants[tenant.index()].keys {
                    self.wake(Key(key));
                }
            }
        }
    }

    fn some_key(&mut self, tenant: TenantId) -> Key {
        let keys = u64::from(self.scenario.tenants[tenant.index()].keys);
        Key(self.first_keys[tenant.index()] + self.rng.below(keys) as u32)
    }

    fn wake(&mut self, key: Key) {
        if self.lanes.wake(key) {
            self.tell(Event::Woken { key });
        }
    }

    fn tell(&mut self, event: Event) {
        self.events.push(Stamped { at: self.agenda.now(), event });
    }
}

/// Why a scenario cannot be run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimError {
    /// The admission settings break a rule.
    Admission(InvalidConfig),
    /// More tenants than the admission takes.
    Tenants(TooManyTenants),
    /// A key cannot be added to the scheduler.
    Key(AddKeyError),
    /// A setting of the node chooser or of the paths is out of range.
    Setting(SettingOutOfRange),
    /// A path cannot be used as planned.
    Path(SwrrError),
    /// No node would take a request although one had room.
    NoNode,
    /// More requests than tickets can number.
    TooManyRequests,
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admission(error) => error.fmt(f),
            Self::Tenants(error) => error.fmt(f),
            Self::Key(error) => error.fmt(f),
            Self::Setting(error) => error.fmt(f),
            Self::Path(error) => error.fmt(f),
            Self::NoNode => f.write_str("no node takes a request although one has room"),
            Self::TooManyRequests => f.write_str("more requests than can be numbered"),
        }
    }
}

impl std::error::Error for SimError {}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {
        $(impl From<$error> for SimError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from!(InvalidConfig => Admission, TooManyTenants => Tenants, AddKeyError => Key, SettingOutOfRange => Setting);
from!(SwrrError => Path);
