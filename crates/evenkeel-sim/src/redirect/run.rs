//! Runs a plan: clients send, gateways decide, slots serve, figures travel.

use evenkeel_pipeline::{Event, PeerFigures, PeerId, RedirectMode, RequestEnd, RequestId};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::gateway::{Gateway, SLOTS, UndecidedRequest, is_reachable, service_time};
use super::ideal::{self, Demand};
use super::{GatewayLife, RedirectPlan, RedirectRule, RedirectRun};
use crate::event_queue::EventQueue;
use crate::rng::Rng;
use crate::simulation::SimError;

/// Mean service time.
const WORK_MEAN: Duration = Duration::from_millis(20);
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Time from a gateway to another, or back to the client that follows a redirect.
const HOP_TIME: Duration = Duration::from_micros(500);
const HOPS_MAX: usize = 2;
/// Time after the end of the arrivals in which the rest is served.
const REST: Duration = Duration::from_secs(300);

enum ClusterEvent {
    /// Request `number` reaches a gateway.
    Reaches {
        gateway: usize,
        number: usize,
    },
    Served {
        gateway: usize,
        request: RequestId,
        took: Duration,
    },
    /// A gateway sends its figures to its peers.
    Report {
        gateway: usize,
    },
    ReportArrives {
        gateway: usize,
        figures: PeerFigures,
    },
    Timer {
        gateway: usize,
    },
    Restart {
        gateway: usize,
    },
}

/// A request of a client.
struct ClientRequest {
    demand: Demand,
    kind: RequestKind,
    /// Gateways that handed it over, or failed to take it.
    excluded: Vec<PeerId>,
    hops: Vec<Hop>,
}

/// Hand-over of a request from one gateway to another.
#[derive(Clone, Copy)]
struct Hop {
    from: usize,
    to: usize,
}

struct Cluster<'a> {
    plan: &'a RedirectPlan,
    rule: RedirectRule,
    event_queue: EventQueue<ClusterEvent>,
    rng: Rng,
    gateways: Vec<Gateway>,
    requests: Vec<ClientRequest>,
    run: RedirectRun,
}

/// Runs a plan with one rule, and the ideal beside it.
pub fn run_redirect(plan: &RedirectPlan, rule: RedirectRule) -> Result<RedirectRun, SimError> {
    let mut cluster = Cluster::new(plan, rule)?;
    let end = Instant::ORIGIN + plan.duration + REST;
    while let Some(event) = cluster.event_queue.next_until(end) {
        cluster.handle(event);
    }
    let mut run = cluster.run;
    run.latencies.sort_unstable();
    let demands: Vec<Demand> = cluster.requests.iter().map(|request| request.demand).collect();
    Ok(RedirectRun { ideal: ideal::latencies(plan, &demands), ..run })
}

impl<'a> Cluster<'a> {
    fn new(plan: &'a RedirectPlan, rule: RedirectRule) -> Result<Self, SimError> {
        let gateways: Result<Vec<Gateway>, SimError> =
            plan.gateways.iter().map(|_| Gateway::new(plan, rule)).collect();
        let mut cluster = Self {
            plan,
            rule,
            event_queue: EventQueue::new(),
            // Other numbers than those of the arrivals, which are the same under every rule.
            rng: Rng::new(plan.seed ^ 0x5eed),
            gateways: gateways?,
            requests: vec![],
            run: RedirectRun {
                latencies: vec![],
                ideal: vec![],
                redirected: 0,
                refused: 0,
                rejected: 0,
                served: vec![0; plan.gateways.len()],
                received: vec![0; plan.gateways.len()],
            },
        };
        cluster.schedule_arrivals();
        for gateway in 0..plan.gateways.len() {
            let offset = REPORT_INTERVAL.mul_f64(cluster.rng.unit());
            cluster.event_queue.schedule(offset, ClusterEvent::Report { gateway });
            if let GatewayLife::Restarted(at) = plan.gateways[gateway].life {
                cluster.event_queue.schedule(at, ClusterEvent::Restart { gateway });
            }
        }
        Ok(cluster)
    }

    /// Draws the requests of all clients, in order of arrival.
    fn schedule_arrivals(&mut self) {
        let mut rng = Rng::new(self.plan.seed);
        let mut arrivals: Vec<(Instant, usize)> = vec![];
        for (gateway, plan) in self.plan.gateways.iter().enumerate() {
            if plan.load <= 0.0 {
                continue;
            }
            let interval = WORK_MEAN.div_f64(f64::from(SLOTS) * plan.load);
            let mut at = Instant::ORIGIN + rng.exponential(interval);
            while at < Instant::ORIGIN + self.plan.duration {
                arrivals.push((at, gateway));
                at += rng.exponential(interval);
            }
        }
        arrivals.sort_unstable();
        for (number, (at, gateway)) in arrivals.into_iter().enumerate() {
            let demand = Demand { at, work: rng.exponential(WORK_MEAN) };
            let kind = match rng.below(10) {
                0 => RequestKind::BeginTx,
                1..=3 => RequestKind::Execute,
                _ => RequestKind::Query,
            };
            let request = ClientRequest { demand, kind, excluded: vec![], hops: vec![] };
            self.requests.push(request);
            self.event_queue.schedule(at.since(Instant::ORIGIN), ClusterEvent::Reaches { gateway, number });
        }
    }

    fn handle(&mut self, event: ClusterEvent) {
        let now = self.event_queue.now();
        match event {
            ClusterEvent::Reaches { gateway, number } => self.reach(gateway, number),
            ClusterEvent::Served { gateway, request, took } => self.end(gateway, request, took),
            ClusterEvent::Report { gateway } => self.report(gateway),
            ClusterEvent::ReportArrives { gateway, figures } => self.gateways[gateway].on_report(figures),
            ClusterEvent::Restart { gateway } => self.gateways[gateway].forget_latencies(),
            ClusterEvent::Timer { gateway } => {
                self.gateways[gateway].timer_at = None;
                self.gateways[gateway].pipeline.handle_time(now);
                self.apply_events(gateway);
            }
        }
    }

    fn reach(&mut self, gateway: usize, number: usize) {
        let now = self.event_queue.now();
        let request = &mut self.requests[number];
        let kind = request.kind;
        if let Some(hop) = request.hops.last().copied()
            && !is_reachable(&self.plan.gateways[gateway], now)
        {
            request.hops.pop();
            request.excluded.push(peer(gateway));
            self.run.refused += 1;
            self.gateways[hop.from].redirector.handle_returned(now, peer(gateway), kind);
            self.event_queue.schedule(HOP_TIME, ClusterEvent::Reaches { gateway: hop.from, number });
            return;
        }
        self.run.received[gateway] += usize::from(!request.hops.is_empty());
        if request.hops.len() < HOPS_MAX && self.redirect(gateway, number) {
            return;
        }
        self.gateways[gateway].enqueue(now, kind, number);
        self.apply_events(gateway);
    }

    /// Asks the step about a request; returns `false` if it stays here.
    fn redirect(&mut self, gateway: usize, number: usize) -> bool {
        let now = self.event_queue.now();
        let random = self.rng.unit();
        let request = &mut self.requests[number];
        let own = self.gateways[gateway].figures(&self.plan.gateways[gateway], now);
        let undecided =
            UndecidedRequest { now, own, kind: request.kind, excluded: &request.excluded, random };
        let decided = self.gateways[gateway].decide(self.plan, self.rule, &undecided);
        while self.gateways[gateway].pipeline.poll_event().is_some() {}
        let Some(chosen) = decided else { return false };
        self.run.redirected += usize::from(request.hops.is_empty() && request.demand.is_measured());
        request.excluded.push(peer(gateway));
        request.hops.push(Hop { from: gateway, to: chosen.index() });
        let gateway = chosen.index();
        self.event_queue.schedule(HOP_TIME, ClusterEvent::Reaches { gateway, number });
        true
    }

    /// Starts the requests that got a slot, and sets the pipeline's timer.
    fn apply_events(&mut self, gateway: usize) {
        let now = self.event_queue.now();
        let plan = &self.plan.gateways[gateway];
        while let Some(event) = self.gateways[gateway].pipeline.poll_event() {
            match event {
                Event::Dispatch { request, .. } => {
                    let Some(number) = self.gateways[gateway].running.get(&request) else { continue };
                    let client_request = &self.requests[*number];
                    let took = service_time(plan, now, client_request.demand.work);
                    self.gateways[gateway].on_start(client_request.kind);
                    self.event_queue.schedule(took, ClusterEvent::Served { gateway, request, took });
                }
                Event::Reject { request, .. } => {
                    self.gateways[gateway].running.remove(&request);
                    self.run.rejected += 1;
                }
                _ => {}
            }
        }
        let due = self.gateways[gateway].pipeline.poll_timeout();
        if due.is_some_and(|due| self.gateways[gateway].timer_at.is_none_or(|at| due < at)) {
            self.gateways[gateway].timer_at = due;
            let after = due.map_or(Duration::ZERO, |due| due.since(now));
            self.event_queue.schedule(after, ClusterEvent::Timer { gateway });
        }
    }

    fn end(&mut self, gateway: usize, request: RequestId, took: Duration) {
        let now = self.event_queue.now();
        let Some(number) = self.gateways[gateway].running.remove(&request) else { return };
        let served = &self.requests[number];
        let kind = served.kind;
        if served.demand.is_measured() {
            self.run.latencies.push(now.since(served.demand.at));
        }
        self.run.served[gateway] += 1;
        if self.plan.mode == RedirectMode::Forward && self.rule.counts_handed_over() {
            for hop in &served.hops {
                self.gateways[hop.from].redirector.handle_returned(now, peer(hop.to), kind);
            }
        }
        self.gateways[gateway].on_end(now, kind, took);
        let end = RequestEnd { actual: Cost::MESSAGE, outcome: Outcome::Good };
        self.gateways[gateway].pipeline.handle_end(now, request, end);
        self.apply_events(gateway);
    }

    fn report(&mut self, gateway: usize) {
        let now = self.event_queue.now();
        let plan = &self.plan.gateways[gateway];
        let jitter = 0.8 + 0.4 * self.rng.unit();
        self.event_queue.schedule(REPORT_INTERVAL.mul_f64(jitter), ClusterEvent::Report { gateway });
        if !is_reachable(plan, now) {
            return;
        }
        let stats = self.gateways[gateway].figures(plan, now);
        let figures = PeerFigures { peer: peer(gateway), weight: Weight::ONE, stats, measured_at: now };
        for other in (0..self.gateways.len()).filter(|other| *other != gateway) {
            let delay = self.plan.report_delay.mul_f64(0.9 + 0.2 * self.rng.unit());
            self.event_queue.schedule(delay, ClusterEvent::ReportArrives { gateway: other, figures });
        }
    }
}

fn peer(gateway: usize) -> PeerId {
    PeerId(u32::try_from(gateway).unwrap_or(u32::MAX))
}
