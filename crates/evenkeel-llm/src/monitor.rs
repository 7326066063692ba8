//! Nodes looked after: whether they are well, what they are, what they serve.
//!
//! An actor per node asks what it is and serves; a child of it per path checks whether the node answers, and another how
//! loaded the engine is, if it is one that says so. What they find out is told as it is, and decides nothing here: the walk and whoever sets it up make of it what they want.
//!
//! Bounds: an actor has one question open at a time, for `timeout` at most; an answer is at most 4 MiB, a node's models
//! at most 1024. An actor that fails is made again, after half a minute at most.

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

/// The most actors: a node and its paths each count as one.
const ACTORS_MAX: u32 = 1 << 16;

/// A node to be looked after.
#[derive(Clone, Debug)]
pub struct MonitorTarget {
    /// Names it in what is told.
    pub node: NodeId,
    /// Where it listens; more than one are its paths, by [`PathId`].
    pub origins: Vec<Origin>,
    /// What it is called with, if it wants a key.
    pub authorization: Option<HeaderValue>,
}

/// What was found out about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// What about it.
    pub finding: Finding,
}

/// What was found out.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// A check of one of its paths; told every `interval`.
    Checked {
        /// The path; `None` for a node with one only.
        path: Option<PathId>,
        /// How it went.
        check: HealthCheckResult,
    },
    /// What it serves; told when that changes.
    Models(Vec<String>),
    /// What it is; told when that changes.
    Engine(Engine),
    /// How many requests it says it works on at once; told when that changes.
    Slots(u32),
    /// How loaded it says it is; told every `load_interval` while it says so, and once when it does not any more.
    Load(Option<EngineLoad>),
}

/// The actors that look after nodes; when it is dropped, they end.
pub struct Monitors {
    system: ReadyQueueScheduler,
    health: HealthOptions,
    upstream: Upstream,
    tell: Arc<dyn Fn(Report) + Send + Sync>,
    nodes: Mutex<HashMap<NodeId, MonitorEntry>>,
}

struct MonitorEntry {
    actor: ActorRef<NodeMonitorMsg>,
    voice: Arc<ReportSink>,
}

impl Monitors {
    /// Starts without nodes, on the Tokio runtime it is called in; `tell` hears of everything, from tasks of that runtime.
    pub fn start(
        upstream: Upstream,
        health: HealthOptions,
        tell: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<Self, MonitorStartError> {
        let runtime = TokioRuntime::current().ok_or(MonitorStartError::NoRuntime)?;
        let config = ActorSystemConfig {
            workers_max: NonZeroUsize::MIN,
            actors_max: ACTORS_MAX,
            supervision: supervision(),
            ..ActorSystemConfig::with_workers(NonZeroUsize::MIN)
        };
        let system = ActorSystemRunner::new(config).start(runtime).map_err(MonitorStartError::Actors)?;
        Ok(Self { system, health, upstream, tell: Arc::new(tell), nodes: Mutex::default() })
    }

    /// Looks after a node from here on; one that is looked after already is looked after anew.
    pub fn watch(&self, watched: MonitorTarget) -> Result<(), SpawnError> {
        let node = watched.node;
        let voice = Arc::new(ReportSink { node, tell: self.tell.clone(), silenced: AtomicBool::new(false) });
        let caller = NodeClient {
            upstream: self.upstream.clone(),
            authorization: watched.authorization,
            time_max: self.health.timeout,
        };
        let health = self.health;
        let origins = Arc::from(watched.origins);
        let told = voice.clone();
        let props =
            Props::new(move || NodeMonitor::new(told.clone(), caller.clone(), Arc::clone(&origins), health));
        let actor = self.system.spawn(&props.supervise(supervision()).build())?;
        self.leave(self.nodes.lock().insert(node, MonitorEntry { actor, voice }));
        Ok(())
    }

    /// Looks after a node no longer; what is found out from here on is not told.
    pub fn forget(&self, node: NodeId) {
        self.leave(self.nodes.lock().remove(&node));
    }

    fn leave(&self, attended: Option<MonitorEntry>) {
        let Some(attended) = attended else { return };
        attended.voice.silenced.store(true, Ordering::Release);
        attended.actor.stop(StopMode::Now);
    }

    /// Prints what the actors count, as Prometheus reads it.
    pub fn write_metrics(&self, out: &mut String) -> fmt::Result {
        self.system.metrics().write_prometheus(out)
    }

    /// Ends all of it; nothing is told afterwards.
    pub fn stop(&self) {
        let nodes = core::mem::take(&mut *self.nodes.lock());
        for attended in nodes.into_values() {
            self.leave(Some(attended));
        }
        self.system.force_stop();
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

/// An actor that fails comes back for ever: its first ten delays add up to more than the minute they are counted in.
fn supervision() -> Supervision {
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 2, 20);
    Supervision::default().with_backoff(backoff.unwrap_or(Backoff::DOUBLING))
}

/// Says what was found out about one node, until that is asked for no longer.
struct ReportSink {
    node: NodeId,
    tell: Arc<dyn Fn(Report) + Send + Sync>,
    silenced: AtomicBool,
}

impl ReportSink {
    fn report(&self, finding: Finding) {
        if !self.silenced.load(Ordering::Acquire) {
            (self.tell)(Report { node: self.node, finding });
        }
    }
}

/// Why nobody looks after nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorStartError {
    /// There is no Tokio runtime to run on.
    NoRuntime,
    /// The actors did not start.
    Actors(StartError),
}

impl fmt::Display for MonitorStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => f.write_str("no runtime to look after nodes on"),
            Self::Actors(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MonitorStartError {}
