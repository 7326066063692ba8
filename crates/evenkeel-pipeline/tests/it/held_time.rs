//! Charges by the time that a slot is held: shares follow weights, also with transactions that report progress.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use evenkeel_pipeline::{Arrival, Event, RequestId};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};

use crate::driver::{Audits, Driver, arrival_of};
use crate::transactions::driver_with_places;

/// Three tenants of weights 1, 2 and 3 that always have requests waiting, on one node.
#[derive(Clone, Copy, Debug)]
struct Workload {
    slots: u32,
    places: Option<u32>,
    backlog: Backlog,
    transaction_ms_max: u64,
}

/// Requests that each tenant keeps waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backlog {
    /// A plain statement, a transaction, a plain statement and so on.
    Alternating,
    /// Plain statements and transactions, each at the same number.
    BothKinds,
    /// Transactions only.
    Begins,
}

/// The places of the first workload are more than the transactions need, so that neither kind piles up.
#[test]
fn held_time_follows_weights_within_2_percent_for_plain_statements_and_transactions() {
    let workload =
        |slots, places, backlog, transaction_ms_max| Workload { slots, places, backlog, transaction_ms_max };
    for workload in [
        workload(8, Some(6), Backlog::Alternating, 50),
        workload(4, None, Backlog::Alternating, 50),
        workload(4, Some(2), Backlog::BothKinds, 50),
        workload(12, Some(6), Backlog::BothKinds, 50),
        workload(8, Some(2), Backlog::BothKinds, 2_000),
        workload(8, None, Backlog::BothKinds, 2_000),
        // A slot is always free here, so that each call of the pipeline finds requests that it cannot send.
        workload(4, Some(1), Backlog::Begins, 50),
        workload(8, Some(6), Backlog::Begins, 2_000),
    ] {
        let per_weight = HeldTime::measure(workload);
        println!(
            "{workload:?}, seed {:#x}: held time per weight, 1 is fair: {per_weight:.4?}",
            HeldTime::SEED
        );
        assert!(per_weight.iter().all(|share| (0.98..1.02).contains(share)), "{workload:?}: {per_weight:?}");
    }
}

/// A run of a [`Workload`] in virtual time.
struct HeldTime {
    driver: Driver,
    workload: Workload,
    random: u64,
    submitted: [u32; 3],
    kinds: BTreeMap<RequestId, RequestKind>,
    /// Next progress report or end of each running request, earliest first.
    due: BinaryHeap<Reverse<(Instant, RequestId)>>,
    running: BTreeMap<RequestId, Running>,
}

#[derive(Clone, Copy)]
struct Running {
    tenant: TenantId,
    since: Instant,
    until: Instant,
}

impl HeldTime {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    const REQUESTS: usize = 20_000;
    /// Interval at which an open transaction reports its progress.
    const PROGRESS: Duration = Duration::from_millis(10);

    /// Returns each tenant's part of the held time, divided by its part of the weights.
    fn measure(workload: Workload) -> [f64; 3] {
        let driver = driver_with_places(workload.slots, workload.places).with_audits(Audits::Manual);
        let mut run = Self {
            driver,
            workload,
            random: Self::SEED,
            submitted: [0; 3],
            kinds: BTreeMap::new(),
            due: BinaryHeap::new(),
            running: BTreeMap::new(),
        };
        (0..3).for_each(|tenant| run.driver.set_rule(tenant, f64::from(tenant + 1), u32::MAX));
        for kind in [RequestKind::Query, RequestKind::BeginTx].repeat(4) {
            (0..3).for_each(|tenant| run.submit(TenantId(tenant), kind));
        }
        let mut held = [0; 3];
        for _ in 0..Self::REQUESTS {
            let ended = run.next_end();
            held[ended.tenant.index()] += ended.until.since(ended.since).as_micros();
        }
        run.driver.audit();
        assert!(run.driver.rejected.is_empty());
        let total: u128 = held.iter().sum();
        [0, 1, 2].map(|tenant| held[tenant] as f64 / total as f64 * 6.0 / (tenant + 1) as f64)
    }

    /// Runs until a request ends.
    fn next_end(&mut self) -> Running {
        loop {
            self.start_dispatched();
            let Reverse((at, request)) = self.due.pop().unwrap();
            let running = self.running[&request];
            let micros = u64::try_from(at.since(running.since).as_micros()).unwrap();
            self.driver.now = at;
            if at == running.until {
                self.running.remove(&request);
                self.driver.end(request, micros);
                return running;
            }
            self.driver.progress(request, micros);
            self.due.push(Reverse((running.until.min(at + Self::PROGRESS), request)));
        }
    }

    /// Starts the requests that were sent, and replaces each by a waiting one.
    fn start_dispatched(&mut self) {
        while !self.driver.events.is_empty() {
            for event in core::mem::take(&mut self.driver.events) {
                let Event::Dispatch { request, tenant, .. } = event else { continue };
                let kind = self.kinds.remove(&request).unwrap();
                let since = self.driver.now;
                let until = since + self.service_time(kind);
                let reports = kind == RequestKind::BeginTx;
                let next = if reports { until.min(since + Self::PROGRESS) } else { until };
                self.running.insert(request, Running { tenant, since, until });
                self.due.push(Reverse((next, request)));
                self.submit(tenant, kind);
            }
        }
    }

    /// Submits a request after one of `kind` was sent.
    fn submit(&mut self, tenant: TenantId, kind: RequestKind) {
        let submitted = &mut self.submitted[tenant.index()];
        *submitted += 1;
        let request = match self.workload.backlog {
            Backlog::Alternating if submitted.is_multiple_of(2) => RequestKind::BeginTx,
            Backlog::Alternating => RequestKind::Query,
            Backlog::BothKinds => kind,
            Backlog::Begins => RequestKind::BeginTx,
        };
        let upfront = if request == RequestKind::BeginTx { Cost::ZERO } else { Cost::MAX };
        let arrival = Arrival { request, cost: Cost(25_000), upfront, ..arrival_of(tenant.0) };
        let request_id = self.driver.arrive(arrival);
        self.kinds.insert(request_id, request);
    }

    fn service_time(&mut self, kind: RequestKind) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let is_begin = kind == RequestKind::BeginTx;
        let millis_max = if is_begin { self.workload.transaction_ms_max } else { 50 };
        Duration::from_micros(1_000 + self.random % (millis_max * 1_000 - 1_000))
    }
}
