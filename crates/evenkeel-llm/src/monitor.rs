//! Monitoring of nodes: active health checks, discovery of engine and models, scraping of engine load.
//!
//! One actor per node runs discovery; it has a child per path for health checks and one for load scrapes, if the engine
//! reports its load. The actors only report findings; the pipeline and the node registry act on them.
//!
//! Guarantees: an actor that fails is restarted within half a minute.
//!
//! Limits: one open request per actor, for at most `timeout`; 4 MiB per response; 1024 models per node.

mod discovery;
mod engine;
mod engine_metrics;
mod health_check;
mod node_client;
mod node_monitor;
mod prober;
mod scraper;

pub use engine::Engine;
pub use engine_metrics::{read_metrics, read_slots};
pub use health_check::HealthCheckResult;

use core::fmt;
use core::num::NonZeroUsize;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{
    ActorRef, ActorSystemConfig, ActorSystemRunner, Props, ReadyQueueScheduler, SpawnError, StartError,
    StopMode,
};
use evenkeel_pipeline::EngineLoad;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::time::Duration;
use http::HeaderValue;
use parking_lot::Mutex;

use crate::options::HealthOptions;
use evenkeel_upstream::{Origin, Upstream};
use node_client::NodeClient;
use node_monitor::{NodeMonitor, NodeMonitorMsg};

/// Maximum number of actors: one per node, one per path and one per scraper.
const ACTORS_MAX: u32 = 1 << 16;

/// A node to monitor.
#[derive(Clone, Debug)]
pub struct MonitorTarget {
    pub node: NodeId,
    /// One origin per path, by [`PathId`].
    pub origins: Vec<Origin>,
    pub authorization: Option<HeaderValue>,
}

/// A finding about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub node: NodeId,
    pub finding: Finding,
}

/// Result of monitoring.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Health check of a path; reported every `interval`.
    Checked {
        /// `None` for a node with one path.
        path: Option<PathId>,
        check: HealthCheckResult,
    },
    /// Models that the node serves; reported on change.
    Models(Vec<String>),
    /// Reported on change.
    Engine(Engine),
    /// Concurrency that the node reports; reported on change.
    Slots(u32),
    /// Load of the engine; reported every `load_interval`, and once as `None` when the engine stops reporting it.
    Load(Option<EngineLoad>),
}

/// Monitors of all nodes. Dropping it stops their actors.
pub struct Monitors {
    system: ReadyQueueScheduler,
    health: HealthOptions,
    upstream: Upstream,
    on_report: Arc<dyn Fn(Report) + Send + Sync>,
    nodes: Mutex<HashMap<NodeId, MonitorEntry>>,
}

struct MonitorEntry {
    actor: ActorRef<NodeMonitorMsg>,
    sink: Arc<ReportSink>,
}

impl Monitors {
    /// Starts without nodes, on the current Tokio runtime; `on_report` is called from tasks of that runtime.
    pub fn start(
        upstream: Upstream,
        health: HealthOptions,
        on_report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<Self, MonitorStartError> {
        let runtime = TokioRuntime::current().ok_or(MonitorStartError::NoRuntime)?;
        let config = ActorSystemConfig {
            workers_max: NonZeroUsize::MIN,
            actors_max: ACTORS_MAX,
            supervision: supervision(),
            ..ActorSystemConfig::with_workers(NonZeroUsize::MIN)
        };
        let system = ActorSystemRunner::new(config).start(runtime).map_err(MonitorStartError::Actors)?;
        Ok(Self { system, health, upstream, on_report: Arc::new(on_report), nodes: Mutex::default() })
    }

    /// Starts monitoring a node; an existing monitor of it is replaced.
    pub fn watch(&self, target: MonitorTarget) -> Result<(), SpawnError> {
        let node = target.node;
        let on_report = self.on_report.clone();
        let sink = Arc::new(ReportSink { node, on_report, is_closed: AtomicBool::new(false) });
        let client = NodeClient {
            upstream: self.upstream.clone(),
            authorization: target.authorization,
            time_max: self.health.timeout,
        };
        let health = self.health;
        let origins = Arc::from(target.origins);
        let reports = sink.clone();
        let props = Props::new(move || {
            NodeMonitor::new(reports.clone(), client.clone(), Arc::clone(&origins), health)
        });
        let actor = self.system.spawn(&props.supervise(supervision()).build())?;
        let replaced = self.nodes.lock().insert(node, MonitorEntry { actor, sink });
        if let Some(entry) = replaced {
            entry.stop();
        }
        Ok(())
    }

    /// Stops monitoring a node; later findings are not reported.
    pub fn forget(&self, node: NodeId) {
        let removed = self.nodes.lock().remove(&node);
        if let Some(entry) = removed {
            entry.stop();
        }
    }

    /// Writes the metrics of the actor system in Prometheus' text format.
    pub fn write_metrics(&self, out: &mut String) -> fmt::Result {
        self.system.metrics().write_prometheus(out)
    }

    /// Stops all monitors; nothing is reported afterwards.
    pub fn stop(&self) {
        let nodes = core::mem::take(&mut *self.nodes.lock());
        nodes.into_values().for_each(MonitorEntry::stop);
        self.system.force_stop();
    }
}

impl MonitorEntry {
    fn stop(self) {
        self.sink.is_closed.store(true, Ordering::Release);
        self.actor.stop(StopMode::Now);
    }
}

impl Drop for Monitors {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Monitors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitors").field("nodes", &self.nodes.lock().len()).finish_non_exhaustive()
    }
}

/// Restarts a failing actor forever: ten delays take longer than the window of a minute, so the limit is never reached.
fn supervision() -> Supervision {
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 2, 20);
    Supervision::default().with_backoff(backoff.unwrap_or(Backoff::DOUBLING))
}

/// Passes on the findings about one node until it is closed.
struct ReportSink {
    node: NodeId,
    on_report: Arc<dyn Fn(Report) + Send + Sync>,
    is_closed: AtomicBool,
}

impl ReportSink {
    fn report(&self, finding: Finding) {
        if !self.is_closed.load(Ordering::Acquire) {
            (self.on_report)(Report { node: self.node, finding });
        }
    }
}

/// Failure to start the monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MonitorStartError {
    #[error("monitors need a Tokio runtime")]
    NoRuntime,
    #[error(transparent)]
    Actors(#[from] StartError),
}
