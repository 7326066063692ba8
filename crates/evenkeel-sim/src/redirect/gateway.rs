//! One simulated gateway: its pipeline, its figures, and the figures of its peers as it knows them.

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PeerFigures, PeerId, PipelineOptions,
    Priority, RedirectDecision, RedirectMode, RedirectRequest, Redirector, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{Ewma, Gains, LatencyWindow};
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::{
    GateRule, Limits, LimitsConfig, NodeStats, RequestKind, ScoreConfig, SelectionPolicy, Status,
};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::{GatewayLife, GatewayPlan, RedirectPlan, RedirectRule};
use crate::simulation::{SimError, load_config};

/// Connections of a gateway to the database.
pub(super) const SLOTS: u32 = 8;
/// Slots that transactions may hold.
const TRANSACTIONS_MAX: u32 = 6;
const SESSIONS_MAX: i32 = 200;
const MODEL: ModelId = ModelId(0);
/// Constant uptime of a gateway that was not restarted, in seconds.
const UPTIME_BEFORE: u64 = 10_000;
/// Time after a restart until a gateway is as fast as before, and its slowness right after it.
const WARM_UP: Duration = Duration::from_secs(60);
const COLD_SLOWNESS: f64 = 8.0;

/// A request that a gateway decides about.
pub(super) struct UndecidedRequest<'a> {
    pub(super) now: Instant,
    /// Figures of the gateway.
    pub(super) own: NodeStats,
    pub(super) kind: RequestKind,
    pub(super) excluded: &'a [PeerId],
    pub(super) random: f64,
}

pub(super) struct Gateway {
    pub(super) pipeline: OptimizedLoadManager,
    pub(super) redirector: Redirector,
    node: NodeId,
    /// Last figures of the peers.
    peers: BTreeMap<PeerId, PeerFigures>,
    /// Numbers in the run of the requests in the pipeline.
    pub(super) running: BTreeMap<RequestId, usize>,
    transactions: u32,
    /// Time of the next timer event.
    pub(super) timer_at: Option<Instant>,
    latency: LatencyWindow,
    latency_mean: Ewma,
}

impl Gateway {
    pub(super) fn new(plan: &RedirectPlan, rule: RedirectRule) -> Result<Self, SimError> {
        let mut options = plan.options;
        if rule == RedirectRule::HardGates {
            options.stale_after = options.down_after;
        }
        let mut pipeline = OptimizedLoadManager::new(pipeline_options())?;
        let spec = NodeSpec {
            slots: Slots::Fixed(SLOTS),
            transactions_max: Some(TRANSACTIONS_MAX),
            weight: Weight::ONE,
            models: vec![MODEL],
            paths: vec![],
        };
        let node = pipeline.add_node(Instant::ORIGIN, &spec)?;
        Ok(Self {
            pipeline,
            redirector: Redirector::new(options)?,
            node,
            peers: BTreeMap::new(),
            running: BTreeMap::new(),
            transactions: 0,
            timer_at: None,
            latency: LatencyWindow::default(),
            latency_mean: Ewma::new(Gains::LOSS),
        })
    }

    /// Returns the figures of this gateway, without a request that is being decided about.
    pub(super) fn figures(&self, plan: &GatewayPlan, now: Instant) -> NodeStats {
        let sessions = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let waiting = u32::try_from(self.pipeline.waiting(MODEL)).unwrap_or(u32::MAX);
        let busy = sessions.saturating_sub(waiting);
        NodeStats {
            running_http_session: sessions,
            running_sql: busy,
            running_tx: self.transactions,
            max_http_sessions: SESSIONS_MAX,
            max_open_conns: SLOTS as i32,
            max_transaction_conns: TRANSACTIONS_MAX as i32,
            open_conns: SLOTS,
            idle_conns: SLOTS.saturating_sub(busy),
            wait_conn_count: waiting,
            p95_latency_ms: self.latency.p95(now).unwrap_or_default().as_secs_f64() * 1_000.0,
            latency_samples: u32::try_from(self.latency.samples(now)).unwrap_or(u32::MAX),
            uptime_sec: uptime_sec(plan, now),
            status: Status::Serving,
            latency_estimate_ms: self.latency_mean.mean().unwrap_or(0.0),
            ..NodeStats::default()
        }
    }

    pub(super) fn on_report(&mut self, figures: PeerFigures) {
        self.peers.insert(figures.peer, figures);
    }

    /// Decides about a request by the product's step, or by a rule that replaces it.
    pub(super) fn decide(
        &mut self,
        plan: &RedirectPlan,
        rule: RedirectRule,
        request: &UndecidedRequest<'_>,
    ) -> Option<PeerId> {
        let UndecidedRequest { now, own, kind, excluded, random } = *request;
        let mut peers: Vec<PeerFigures> = self.peers.values().copied().collect();
        if rule == RedirectRule::NoSlowStart {
            peers.iter_mut().for_each(|peer| peer.stats.uptime_sec = UPTIME_BEFORE);
        }
        let mode = if rule.counts_handed_over() { plan.mode } else { RedirectMode::Forward };
        let request = RedirectRequest {
            // Only the event of a redirect has it, and the simulator does not read that.
            request: RequestId(0),
            tenant: TenantId(0),
            node: self.node,
            model: MODEL,
            kind,
            mode,
            own,
            peers: &peers,
            excluded,
        };
        let decision = self.pipeline.decide_redirect(now, &mut self.redirector, request, random);
        let peer = match decision {
            RedirectDecision::ServeHere => return None,
            RedirectDecision::Redirect { peer, .. } => Some(peer),
            RedirectDecision::Wait(_) => None,
        };
        match rule {
            RedirectRule::Product | RedirectRule::NoSlowStart => peer,
            RedirectRule::NoCorrection | RedirectRule::HardGates => {
                if let Some(peer) = peer {
                    self.redirector.handle_returned(now, peer, kind);
                }
                peer
            }
            RedirectRule::Never => None,
            RedirectRule::WorstPeer => {
                let candidates = peers.iter().filter(|peer| !excluded.contains(&peer.peer));
                candidates.min_by_key(|peer| peer.stats.idle_conns).map(|peer| peer.peer)
            }
        }
    }

    pub(super) fn enqueue(&mut self, now: Instant, kind: RequestKind, number: usize) {
        let arrival = Arrival {
            tenant: TenantId(0),
            model: MODEL,
            cost: Cost::MESSAGE,
            upfront: Cost::MAX,
            affinity: None,
            deadline: None,
            request: kind,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        };
        let request = self.pipeline.handle_arrival(now, arrival);
        self.running.insert(request, number);
    }

    pub(super) fn forget_latencies(&mut self) {
        self.latency = LatencyWindow::default();
        self.latency_mean = Ewma::new(Gains::LOSS);
    }

    pub(super) fn on_start(&mut self, kind: RequestKind) {
        self.transactions += u32::from(kind == RequestKind::BeginTx);
    }

    pub(super) fn on_end(&mut self, now: Instant, kind: RequestKind, took: Duration) {
        self.transactions -= u32::from(kind == RequestKind::BeginTx);
        self.latency.record(now, took);
        self.latency_mean.record_millis(took);
    }
}

/// Returns the service time of a request that starts now.
pub(super) fn service_time(plan: &GatewayPlan, now: Instant, work: Duration) -> Duration {
    let warmth = match plan.life {
        GatewayLife::Restarted(at) if Instant::ORIGIN + at <= now => {
            let warmed_for = now.since(Instant::ORIGIN + at).as_secs_f64();
            (warmed_for / WARM_UP.as_secs_f64()).min(1.0)
        }
        GatewayLife::Steady | GatewayLife::Flapping(_) | GatewayLife::Restarted(_) => 1.0,
    };
    work.mul_f64(plan.slowness * (COLD_SLOWNESS + (1.0 - COLD_SLOWNESS) * warmth))
}

pub(super) fn is_reachable(plan: &GatewayPlan, now: Instant) -> bool {
    match plan.life {
        GatewayLife::Steady | GatewayLife::Restarted(_) => true,
        GatewayLife::Flapping(period) => {
            (now.as_nanos() / (period.as_nanos() as u64).max(1)).is_multiple_of(2)
        }
    }
}

fn uptime_sec(plan: &GatewayPlan, now: Instant) -> u64 {
    match plan.life {
        GatewayLife::Restarted(at) if Instant::ORIGIN + at <= now => {
            now.since(Instant::ORIGIN + at).as_secs()
        }
        GatewayLife::Steady | GatewayLife::Flapping(_) | GatewayLife::Restarted(_) => UPTIME_BEFORE,
    }
}

fn pipeline_options() -> PipelineOptions {
    let backpressure = BackpressureConfig {
        max_queue_size: 1_000,
        warning_threshold: 0.99,
        overload_threshold: 1.0,
        ..BackpressureConfig::default()
    };
    let limits = LimitsConfig { gates: GateRule::CapacityOnly, ..LimitsConfig::default() };
    let limits = Limits::new(limits).unwrap_or_default();
    PipelineOptions {
        load: load_config(backpressure),
        selection: SelectionPolicy::Score(ScoreConfig { limits, ..ScoreConfig::default() }),
        quantum: Cost::MESSAGE,
        ..PipelineOptions::default()
    }
}
