//! Redirects to peer gateways: room, choice, correction for requests handed over, and the budget.

use evenkeel_pipeline::{
    Event, NoPeerReason, NoRoomReason, NodeSpec, PeerFigures, PeerGate, PeerId, RedirectDecision,
    RedirectMode, RedirectOptions, RedirectRequest, Redirector,
};
use evenkeel_policy::id::{NodeId, RequestId, TenantId};
use evenkeel_policy::score::{Gate, Limits, LimitsConfig, NodeStats, RequestKind, ScoreConfig, Status};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::driver::{Driver, MODEL, arrival_of, spec};

const NODE: NodeId = NodeId(0);
const REQUEST: RequestId = RequestId(7);
const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const SLOTS: u32 = 4;

#[test]
fn with_room_a_request_is_served_here_and_no_peer_is_scored() {
    let mut gateway = Gateway::idle();
    for kind in RequestKind::ALL {
        let decision = gateway.decide(kind, &[idle_peer(A)]);
        assert_eq!(decision, RedirectDecision::ServeHere);
    }
    let counts = gateway.driver.pipeline.status().counts;
    assert_eq!((counts.no_room, counts.peers_scored, counts.redirected), (0, 0, 0));
}

#[test]
fn without_room_a_request_goes_to_the_better_peer_and_the_step_reports_it() {
    let mut gateway = Gateway::full();
    let RedirectDecision::Redirect { peer, reason } = gateway.decide(RequestKind::Query, &[idle_peer(A)])
    else {
        panic!("not redirected")
    };
    assert_eq!((peer, reason.no_room), (A, NoRoomReason::ConnectionsFull));
    let text = reason.to_string();
    assert!(
        text.starts_with("no database connection is free for this request; best of 1 by score 0."),
        "{text}"
    );
    gateway.driver.drain_events();
    let event =
        Event::Redirected { request: REQUEST, tenant: TenantId(0), peer, kind: RequestKind::Query, reason };
    assert_eq!(gateway.driver.events.last(), Some(&event));
    let counts = gateway.driver.pipeline.status().counts;
    assert_eq!((counts.no_room, counts.peers_scored, counts.redirected), (1, 1, 1));
}

#[test]
fn room_is_a_free_session_a_free_slot_and_for_a_begin_a_free_place() {
    let mut gateway = Gateway::idle();
    let own = NodeStats { running_http_session: 100, ..gateway.own };
    gateway.own = own;
    assert_eq!(gateway.no_room(RequestKind::Query), Some(NoRoomReason::SessionsFull));
    gateway.own = NodeStats { running_http_session: 99, ..own };
    assert_eq!(gateway.no_room(RequestKind::Query), None);
    gateway.submit(SLOTS - 1, RequestKind::Query);
    assert_eq!(gateway.no_room(RequestKind::Query), None, "the last slot is free");
    gateway.submit(1, RequestKind::Query);
    assert_eq!(gateway.no_room(RequestKind::Query), Some(NoRoomReason::ConnectionsFull));

    let mut gateway = Gateway::with_places(1);
    gateway.submit(1, RequestKind::BeginTx);
    assert_eq!(gateway.no_room(RequestKind::BeginTx), Some(NoRoomReason::TransactionsFull));
    assert_eq!(gateway.no_room(RequestKind::Execute), None);
}

#[test]
fn begins_that_wait_for_a_place_and_capped_tenants_leave_room_for_statements() {
    let mut gateway = Gateway::with_places(1);
    gateway.submit(6, RequestKind::BeginTx);
    assert_eq!(gateway.no_room(RequestKind::Query), None, "five begins wait, and three slots are free");
    gateway.driver.set_rule(1, 1.0, 0);
    (0..6).for_each(|_| {
        gateway.driver.submit(1);
    });
    assert_eq!(gateway.no_room(RequestKind::Query), None, "a tenant at its limit uses no slot");
}

#[test]
fn a_gateway_that_does_not_serve_hands_over_to_any_open_peer() {
    for status in [Status::Draining, Status::Down] {
        let mut gateway = Gateway::idle();
        gateway.own.status = status;
        assert_eq!(gateway.no_room(RequestKind::Query), Some(NoRoomReason::NotServing(status)));
        let poor = NodeStats { error_rate_1m: 0.04, timeouts_1m: 19, uptime_sec: 0, ..busy_peer_stats(9) };
        let decision = gateway.decide(RequestKind::Query, &[figures(A, poor)]);
        assert_eq!(peer_of(decision), Some(A), "{decision:?}");
        let full = figures(A, busy_peer_stats(10));
        assert_eq!(gateway.no_peer(RequestKind::Query, &[full]), NoPeerReason::AllGated { peers: 1 });
    }
    let mut gateway = Gateway::idle();
    gateway.driver.pipeline.drain_node(gateway.driver.now, NODE).unwrap();
    assert_eq!(gateway.no_room(RequestKind::Query), Some(NoRoomReason::NotServing(Status::Draining)));
}

#[test]
fn a_request_waits_if_no_peer_is_better() {
    let mut gateway = Gateway::full();
    assert_eq!(gateway.no_peer(RequestKind::Query, &[]), NoPeerReason::NoPeer);
    let slow_and_failing = NodeStats {
        p95_latency_ms: 500.0,
        error_rate_1m: 0.049,
        timeouts_1m: 20,
        running_http_session: 99,
        ..busy_peer_stats(9)
    };
    let reason = gateway.no_peer(RequestKind::Query, &[figures(A, slow_and_failing)]);
    assert!(matches!(reason, NoPeerReason::NoneBetter { .. }), "{reason:?}");
    let down = NodeStats { status: Status::Down, ..idle_stats() };
    assert_eq!(
        gateway.no_peer(RequestKind::Query, &[figures(A, down), figures(B, busy_peer_stats(10))]),
        NoPeerReason::AllGated { peers: 2 }
    );
    let request = RedirectRequest { excluded: &[A], ..gateway.request(RequestKind::Query, &[]) };
    let peers = [idle_peer(A)];
    let request = RedirectRequest { peers: &peers, ..request };
    let now = gateway.driver.now;
    let decision = gateway.driver.pipeline.decide_redirect(now, &mut gateway.redirector, request, 0.0);
    assert!(
        matches!(decision, RedirectDecision::Wait(reason) if reason.no_peer == NoPeerReason::NoPeer),
        "{decision:?}"
    );
}

/// Both peers have two free connections. The fifth request of a burst waits: it would find no room there either.
#[test]
fn a_burst_between_two_reports_is_spread_over_the_free_connections() {
    for mode in [RedirectMode::Forward, RedirectMode::ByClient] {
        let mut gateway = Gateway { mode, ..Gateway::full_with(without_budget()) };
        let peers = [figures(A, busy_peer_stats(8)), figures(B, busy_peer_stats(8))];
        let chosen = [0.0, 0.9, 0.1, 0.8]
            .map(|random| peer_of(gateway.decide_with(RequestKind::Query, &peers, random)).unwrap());
        assert_eq!(chosen.iter().filter(|peer| **peer == A).count(), 2, "{chosen:?}");
        assert_eq!(peer_of(gateway.decide(RequestKind::Query, &peers)), None);

        gateway.driver.advance(Duration::from_millis(250));
        let mut newer = peers;
        newer[1].measured_at = gateway.driver.now;
        gateway.redirector.handle_returned(gateway.driver.now, B, RequestKind::Query);
        assert_eq!(
            peer_of(gateway.decide(RequestKind::Query, &newer)),
            Some(B),
            "newer figures contain the burst"
        );
    }
}

#[test]
fn a_forwarded_request_that_returns_makes_room() {
    let mut gateway = Gateway::full_with(without_budget());
    let peer = figures(A, busy_peer_stats(9));
    assert_eq!(peer_of(gateway.decide(RequestKind::Query, &[peer])), Some(A));
    assert_eq!(peer_of(gateway.decide(RequestKind::Query, &[peer])), None);
    gateway.redirector.handle_returned(gateway.driver.now, A, RequestKind::Query);
    assert_eq!(peer_of(gateway.decide(RequestKind::Query, &[peer])), Some(A));
}

#[test]
fn a_begin_handed_over_takes_a_transaction_place_of_the_peer() {
    let mut gateway = Gateway::full_with(without_budget());
    gateway.own.running_tx = 10;
    let peer = figures(A, NodeStats { running_tx: 3, max_transaction_conns: 5, ..idle_stats() });
    for _ in 0..2 {
        assert_eq!(peer_of(gateway.decide(RequestKind::BeginTx, &[peer])), Some(A));
    }
    assert_eq!(gateway.no_peer(RequestKind::BeginTx, &[peer]), NoPeerReason::BudgetSpent);
    assert_eq!(peer_of(gateway.decide(RequestKind::Query, &[peer])), Some(A));
    gateway.redirector.handle_returned(gateway.driver.now, A, RequestKind::BeginTx);
    assert_eq!(peer_of(gateway.decide(RequestKind::BeginTx, &[peer])), Some(A));
}

/// A gate closes by figures alone: a peer that is full by estimate gets requests within the budget.
#[test]
fn redirects_to_a_peer_that_is_full_by_estimate_use_the_budget() {
    let options = RedirectOptions { budget: 0.0, redirects_min: 2, ..RedirectOptions::default() };
    let mut gateway = Gateway::full_with(options);
    gateway.own.wait_conn_count = 10;
    let peer = figures(A, busy_peer_stats(9));
    for _ in 0..3 {
        assert_eq!(peer_of(gateway.decide(RequestKind::Query, &[peer])), Some(A));
    }
    assert_eq!(gateway.no_peer(RequestKind::Query, &[peer]), NoPeerReason::BudgetSpent);
}

#[test]
fn stale_figures_do_not_close_capacity_gates_and_old_ones_count_as_down() {
    let mut gateway = Gateway::full();
    let full = figures(A, NodeStats { wait_conn_count: 50, running_tx: 10, ..busy_peer_stats(10) });
    for (millis, result) in [
        (1_000, Err(PeerGate::Closed(Gate::DbFull))),
        (1_001, Ok(())),
        (3_000, Ok(())),
        (3_001, Err(PeerGate::Silent { age: Duration::from_millis(3_001) })),
    ] {
        gateway.driver.now = Instant::from_millis(millis);
        for kind in [RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx] {
            assert_eq!(gateway.assess(kind, full).map(|_| ()), result, "{kind:?} after {millis} ms");
        }
    }
    gateway.driver.now = Instant::from_millis(2_000);
    let failing = figures(A, NodeStats { error_rate_1m: 0.05, ..idle_stats() });
    assert_eq!(gateway.assess(RequestKind::Query, failing), Err(PeerGate::Closed(Gate::ErrorsTooMany)));
}

#[test]
fn redirects_to_stale_peers_are_at_most_a_fifth_of_the_requests_without_room() {
    let mut gateway = Gateway::full();
    gateway.driver.now = Instant::from_millis(2_900);
    let redirected =
        (0..1_000).filter(|_| peer_of(gateway.decide(RequestKind::Query, &[idle_peer(A)])).is_some());
    assert_eq!(redirected.count(), 200);
    assert_eq!(gateway.no_peer(RequestKind::Query, &[idle_peer(A)]), NoPeerReason::BudgetSpent);
    assert_eq!(gateway.driver.pipeline.status().counts.redirect_budget_spent, 801);
    let mut fresh = idle_peer(B);
    fresh.measured_at = gateway.driver.now;
    let decision = gateway.decide(RequestKind::Query, &[idle_peer(A), fresh]);
    assert_eq!(peer_of(decision), Some(B), "a peer with fresh figures and room needs no budget");
}

#[test]
fn options_out_of_range_are_rejected() {
    let options = RedirectOptions::default();
    let score = ScoreConfig { top_k: 0, ..options.score };
    for bad in [
        RedirectOptions { budget: 1.1, ..options },
        RedirectOptions { window: Duration::ZERO, ..options },
        RedirectOptions { stale_after: Duration::ZERO, ..options },
        RedirectOptions { down_after: Duration::from_millis(999), ..options },
        RedirectOptions { score, ..options },
    ] {
        assert!(Redirector::new(bad).is_err(), "{bad:?}");
    }
}

/// Each pair of gateways differs in one setting only, and decides differently about the same peers.
#[test]
fn every_setting_of_the_score_reaches_the_decision() {
    let limits = |change: fn(&mut LimitsConfig)| {
        let mut config = LimitsConfig::default();
        change(&mut config);
        ScoreConfig { limits: Limits::new(config).unwrap(), ..ScoreConfig::default() }
    };
    let default = ScoreConfig::default();
    let query = RequestKind::Query;
    let begin = RequestKind::BeginTx;
    let idle = idle_stats();
    let slow = NodeStats { p95_latency_ms: 500.0, ..idle };
    let failing = NodeStats { error_rate_1m: 0.04, ..idle };
    let timing_out = NodeStats { timeouts_1m: 10, ..idle };
    let with_queue = NodeStats { wait_conn_count: 5, ..idle };
    let young = NodeStats { uptime_sec: 30, ..idle };
    let few_places = NodeStats { running_tx: 9, ..idle };
    let half_busy = busy_peer_stats(5);
    let cases: [(&str, ScoreConfig, RequestKind, NodeStats, NodeStats); 10] = [
        ("lat_bad_ms", limits(|config| config.lat_bad_ms = 400.0), query, slow, half_busy),
        ("err_bad", limits(|config| config.err_bad = 0.03), query, failing, half_busy),
        ("to_bad", limits(|config| config.to_bad = 1), query, timing_out, half_busy),
        ("wait_bad", limits(|config| config.wait_bad = 1), query, with_queue, half_busy),
        ("uptime_ok_sec", limits(|config| config.uptime_ok_sec = 30), query, young, half_busy),
        ("tx_free_min", limits(|config| config.tx_free_min = 0.2), begin, few_places, half_busy),
        ("tx_wait_max", limits(|config| config.tx_wait_max = 5), begin, with_queue, half_busy),
        ("top_k", ScoreConfig { top_k: 1, ..default }, query, idle, half_busy),
        ("relative_k", ScoreConfig { relative_k: 3.0, ..default }, query, slow, half_busy),
        ("power", ScoreConfig { power: 16, ..default }, query, idle, half_busy),
    ];
    for (setting, score, kind, first, second) in cases {
        let peers = [figures(A, first), figures(B, second)];
        let decide = |score: ScoreConfig, random: f64| {
            let mut gateway = Gateway::full_with(RedirectOptions { score, ..RedirectOptions::default() });
            gateway.own.running_tx = 10;
            peer_of(gateway.decide_with(kind, &peers, random))
        };
        let differs = (0..1_000).any(|step| {
            let random = f64::from(step) / 1_000.0;
            decide(default, random) != decide(score, random)
        });
        assert!(differs, "{setting} has no effect");
    }
}

proptest! {
    #[test]
    fn a_gated_or_excluded_peer_is_never_chosen_and_the_order_has_no_influence(
        stats in vec(any_stats(), 1..6),
        ages in vec(0_u64..5_000, 6),
        excluded in 0_u32..6,
        kind in prop::sample::select(RequestKind::ALL.to_vec()),
        random in 0.0..1.0_f64,
    ) {
        let now = Instant::from_millis(5_000);
        let peers: Vec<_> = (0..).zip(stats).zip(ages).map(|((id, stats), age)| {
            let measured_at = Instant::from_millis(5_000 - age);
            PeerFigures { measured_at, ..figures(PeerId(id), stats) }
        }).collect();
        let decide = |peers: &[PeerFigures]| {
            let mut gateway = Gateway::full();
            let excluded = [PeerId(excluded)];
            let request = RedirectRequest { excluded: &excluded, ..gateway.request(kind, peers) };
            gateway.driver.pipeline.decide_redirect(now, &mut gateway.redirector, request, random)
        };
        let decision = decide(&peers);
        let reversed: Vec<_> = peers.iter().rev().copied().collect();
        prop_assert_eq!(decide(&reversed), decision);
        if let RedirectDecision::Redirect { peer, reason } = decision {
            prop_assert_ne!(peer, PeerId(excluded));
            let gateway = Gateway::full();
            let assessed = gateway.redirector.assess(now, &gateway.own, kind, &peers);
            let chosen = assessed.iter().find(|assessed| assessed.peer == peer).unwrap();
            prop_assert!(chosen.result.is_ok(), "{:?}", chosen);
            prop_assert!(reason.own_score < reason.breakdown.score);
        }
    }

    #[test]
    fn with_room_nothing_is_scored_whatever_the_figures(
        own in any_stats(),
        stats in vec(any_stats(), 0..4),
        kind in prop::sample::select(RequestKind::ALL.to_vec()),
    ) {
        let mut gateway = Gateway::idle();
        gateway.own = NodeStats { status: Status::Serving, max_http_sessions: 1_000, ..own };
        let peers: Vec<_> = (0..).zip(stats).map(|(id, stats)| figures(PeerId(id), stats)).collect();
        prop_assert_eq!(gateway.decide(kind, &peers), RedirectDecision::ServeHere);
        prop_assert_eq!(gateway.driver.pipeline.status().counts.peers_scored, 0);
    }

    /// Counts the requests of a window without the seconds at its edges, which the budget counts in slices.
    #[test]
    fn the_budget_holds_in_every_window(
        requests in vec((0_u64..50, prop::bool::weighted(0.9)), 1..300),
        budget in 0.0..1.0_f64,
    ) {
        let options = RedirectOptions { budget, ..RedirectOptions::default() };
        let mut gateway = Gateway::full_with(options);
        let mut history = vec![];
        for (millis, is_stale) in requests {
            gateway.driver.now += Duration::from_millis(millis);
            let age = Duration::from_millis(if is_stale { 1_500 } else { 0 });
            let now = Instant::from_millis(10_000) + gateway.driver.now.since(Instant::ORIGIN);
            let measured_at = Instant::from_nanos(now.as_nanos() - age.as_nanos() as u64);
            let peers = [PeerFigures { measured_at, ..idle_peer(A) }];
            let request = gateway.request(RequestKind::Query, &peers);
            let decision = gateway.driver.pipeline.decide_redirect(now, &mut gateway.redirector, request, 0.5);
            let spends = is_stale && peer_of(decision).is_some();
            history.push(spends);
            let spent = history.iter().filter(|spends| **spends).count() as f64;
            prop_assert!(spent <= (budget * history.len() as f64).max(3.0), "{} of {}", spent, history.len());
        }
    }
}

fn any_stats() -> impl Strategy<Value = NodeStats> {
    let counts = (0..130_u32, 0..14_u32, 0..14_u32, 0..14_u32, 0..30_u32);
    let quality = (0.0..2_500.0_f64, 0..40_u32, 0.0..0.1_f64, 0..30_u32, 0..600_u64);
    let status =
        prop::sample::select(vec![Status::Serving, Status::Serving, Status::Serving, Status::Draining]);
    (counts, quality, status).prop_map(|(counts, quality, status)| NodeStats {
        running_http_session: counts.0,
        running_tx: counts.1,
        open_conns: counts.2.max(counts.3),
        idle_conns: counts.3,
        wait_conn_count: counts.4,
        p95_latency_ms: quality.0,
        latency_samples: quality.1,
        error_rate_1m: quality.2,
        timeouts_1m: quality.3,
        uptime_sec: quality.4,
        status,
        ..idle_stats()
    })
}

struct Gateway {
    driver: Driver,
    redirector: Redirector,
    own: NodeStats,
    mode: RedirectMode,
}

impl Gateway {
    fn new(node: &NodeSpec, options: RedirectOptions) -> Self {
        let mut driver = Driver::new(Default::default());
        driver.add_spec(node);
        Self {
            driver,
            redirector: Redirector::new(options).unwrap(),
            own: busy_peer_stats(10),
            mode: RedirectMode::Forward,
        }
    }

    fn idle() -> Self {
        Self::new(&spec(SLOTS, &[MODEL]), RedirectOptions::default())
    }

    fn with_places(places: u32) -> Self {
        let node = NodeSpec { transactions_max: Some(places), ..spec(SLOTS, &[MODEL]) };
        Self::new(&node, RedirectOptions::default())
    }

    fn full() -> Self {
        Self::full_with(RedirectOptions::default())
    }

    fn full_with(options: RedirectOptions) -> Self {
        let mut gateway = Self::new(&spec(SLOTS, &[MODEL]), options);
        gateway.submit(SLOTS, RequestKind::Query);
        gateway
    }

    fn submit(&mut self, count: u32, request: RequestKind) {
        (0..count).for_each(|_| {
            self.driver.arrive(evenkeel_pipeline::Arrival { request, ..arrival_of(0) });
        });
    }

    fn request<'a>(&self, kind: RequestKind, peers: &'a [PeerFigures]) -> RedirectRequest<'a> {
        RedirectRequest {
            request: REQUEST,
            tenant: TenantId(0),
            node: NODE,
            model: MODEL,
            kind,
            mode: self.mode,
            own: self.own,
            peers,
            excluded: &[],
        }
    }

    fn decide_with(&mut self, kind: RequestKind, peers: &[PeerFigures], random: f64) -> RedirectDecision {
        let request = self.request(kind, peers);
        self.driver.pipeline.decide_redirect(self.driver.now, &mut self.redirector, request, random)
    }

    fn decide(&mut self, kind: RequestKind, peers: &[PeerFigures]) -> RedirectDecision {
        self.decide_with(kind, peers, 0.0)
    }

    fn no_room(&mut self, kind: RequestKind) -> Option<NoRoomReason> {
        match self.decide(kind, &[]) {
            RedirectDecision::ServeHere => None,
            RedirectDecision::Wait(reason) => Some(reason.no_room),
            RedirectDecision::Redirect { .. } => panic!("redirected without peers"),
        }
    }

    fn no_peer(&mut self, kind: RequestKind, peers: &[PeerFigures]) -> NoPeerReason {
        match self.decide(kind, peers) {
            RedirectDecision::Wait(reason) => reason.no_peer,
            other => panic!("{other:?}"),
        }
    }

    fn assess(&self, kind: RequestKind, peer: PeerFigures) -> Result<f64, PeerGate> {
        self.redirector.assess(self.driver.now, &self.own, kind, &[peer])[0].result
    }
}

fn without_budget() -> RedirectOptions {
    RedirectOptions { budget: 0.0, redirects_min: 0, ..RedirectOptions::default() }
}

fn peer_of(decision: RedirectDecision) -> Option<PeerId> {
    match decision {
        RedirectDecision::Redirect { peer, .. } => Some(peer),
        RedirectDecision::ServeHere | RedirectDecision::Wait(_) => None,
    }
}

fn figures(peer: PeerId, stats: NodeStats) -> PeerFigures {
    PeerFigures { peer, weight: Weight::ONE, stats, measured_at: Instant::ORIGIN }
}

fn idle_peer(peer: PeerId) -> PeerFigures {
    figures(peer, idle_stats())
}

fn idle_stats() -> NodeStats {
    busy_peer_stats(0)
}

/// Returns the figures of a gateway with `open_conns` of ten connections in use.
fn busy_peer_stats(open_conns: u32) -> NodeStats {
    NodeStats {
        running_http_session: open_conns,
        max_http_sessions: 100,
        max_open_conns: 10,
        max_transaction_conns: 10,
        open_conns,
        p95_latency_ms: 20.0,
        latency_samples: 100,
        uptime_sec: 1_000,
        status: Status::Serving,
        ..NodeStats::default()
    }
}
