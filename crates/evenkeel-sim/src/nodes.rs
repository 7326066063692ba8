//! The nodes of a simulation: slots that take time, and the paths to them.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{Ewma, Gains, LatencyWindow};
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::score::{Candidate, Chooser, HotColdConfig, NodeStats, Picker, Request, Status};
use evenkeel_policy::swrr::{SwrrConfig, SwrrRules, SwrrScheduler};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use crate::scenario::NodePlan;
use crate::world::SimError;

/// Every node, and who chooses among them.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    picker: Picker,
    candidates: Vec<Candidate>,
}

struct Node {
    plan: NodePlan,
    busy: u32,
    in_flight: Cost,
    latency: LatencyWindow,
    latency_mean: Ewma,
    paths: SwrrScheduler,
}

/// A request that is on its way.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) node: NodeId,
    pub(crate) path: Option<PathId>,
    pub(crate) takes: Duration,
}

impl Nodes {
    pub(crate) fn new(plans: &[NodePlan]) -> Result<Self, SimError> {
        let nodes = plans.iter().cloned().map(Node::new).collect::<Result<_, _>>()?;
        let picker = Picker::new(Chooser::HotCold(HotColdConfig::default()))?;
        Ok(Self { nodes, picker, candidates: vec![] })
    }

    pub(crate) fn has_room(&self) -> bool {
        self.nodes.iter().any(|node| node.busy < node.plan.slots)
    }

    /// Sends a request to the node and over the path that policy chooses; `None` when no node takes it.
    ///
    /// Only the estimate is known to whoever chooses; how long it takes follows from the actual cost.
    pub(crate) fn send(&mut self, now: Instant, estimate: Cost, actual: Cost, random: f64) -> Option<Sent> {
        self.candidates.clear();
        for (id, node) in (0..).zip(&self.nodes) {
            self.candidates.push(Candidate { node: NodeId(id), weight: Weight::ONE, stats: node.stats(now) });
        }
        let choice = self.picker.pick(&self.candidates, Request::Infer, random)?;
        let node = &mut self.nodes[choice.node.index()];
        let path = node.paths.pick();
        node.busy += 1;
        node.in_flight += estimate;
        let takes = node.rtt(path) + node.service_time(actual);
        Some(Sent { node: choice.node, path, takes })
    }

    /// Frees the slot a request had, and learns from how it went.
    pub(crate) fn finish(&mut self, now: Instant, sent: Sent, estimate: Cost) -> Result<(), SimError> {
        let node = &mut self.nodes[sent.node.index()];
        node.busy -= 1;
        node.in_flight = node.in_flight - estimate;
        node.latency.record(now, sent.takes);
        node.latency_mean.record_millis(sent.takes);
        if let Some(path) = sent.path {
            let rtt = node.rtt(sent.path);
            node.paths.update_path_rtt(path, now, 1_000.0 * rtt.as_secs_f64())?;
        }
        node.paths.refresh(now);
        Ok(())
    }
}

impl Node {
    fn new(plan: NodePlan) -> Result<Self, SimError> {
        let mut paths = SwrrScheduler::new(SwrrRules::new(&SwrrConfig::default())?);
        for (id, path) in (0..).zip(&plan.paths) {
            paths.add_path(PathId(id))?;
            paths.update_path_rtt(PathId(id), Instant::ORIGIN, 1_000.0 * path.rtt.as_secs_f64())?;
            paths.activate(PathId(id), Instant::ORIGIN)?;
        }
        Ok(Self {
            plan,
            busy: 0,
            in_flight: Cost::ZERO,
            latency: LatencyWindow::default(),
            latency_mean: Ewma::new(Gains::RTT),
            paths,
        })
    }

    fn rtt(&self, path: Option<PathId>) -> Duration {
        path.map_or(Duration::ZERO, |path| self.plan.paths[path.index()].rtt)
    }

    fn service_time(&self, cost: Cost) -> Duration {
        self.plan.message_time.mul_f64(cost.0 as f64 / Cost::MESSAGE.0 as f64)
    }

    fn stats(&self, now: Instant) -> NodeStats {
        NodeStats {
            running_http_session: self.busy,
            max_http_sessions: i32::try_from(self.plan.slots).unwrap_or(i32::MAX),
            p95_latency_ms: self.latency.p95(now).unwrap_or_default().as_secs_f64() * 1_000.0,
            latency_samples: u32::try_from(self.latency.samples(now)).unwrap_or(u32::MAX),
            latency_estimate_ms: self.latency_mean.mean().unwrap_or(0.0),
            in_flight: self.in_flight,
            status: Status::Serving,
            ..NodeStats::default()
        }
    }
}
