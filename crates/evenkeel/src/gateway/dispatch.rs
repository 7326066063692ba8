//! Dispatched queues: the gateway itself runs their messages as jobs, through the LLM API or as webhooks.
//!
//! Guarantees: at-least-once. A job is acknowledged after its result is durable, so a crash loses no job but may run one
//! twice.
//!
//! Limits: at most `concurrency` jobs of a queue run at a time.

mod job;
mod metrics;
mod outcome;
mod runner;
mod target;
mod webhook;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_llm::LlmApi;
use evenkeel_queue::{QueueId, Queues};
use evenkeel_server::tenant::Authenticator;
use evenkeel_telemetry::{RegisterError, Registry};
use evenkeel_upstream::LinkLocalPolicy;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{interval, timeout};

use metrics::DispatchMetrics;
use runner::QueueRunner;
use target::DispatchTarget;

pub(super) use target::BadTarget;
pub(super) use webhook::WebhookClient;

const EXPIRE_RESULTS_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time for releasing jobs during shutdown.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// State shared by all dispatched queues.
pub(super) struct DispatchContext {
    queues: Arc<Queues>,
    llm: Arc<LlmApi>,
    auth: Arc<Authenticator>,
    webhooks: WebhookClient,
    metrics: DispatchMetrics,
}

/// Rejects invalid dispatch targets.
pub(super) fn check_target(target: &str, link_local: LinkLocalPolicy) -> Result<(), BadTarget> {
    match DispatchTarget::parse(target)? {
        DispatchTarget::Route(_) => Ok(()),
        DispatchTarget::Url(url) => Ok(url.origin.check_literal(link_local)?),
    }
}

/// Phase of the graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopPhase {
    Serving,
    /// No job starts; jobs that were sent to a node continue, and all others are released.
    Stopping,
    /// All jobs are released.
    Aborting,
}

/// Runs the jobs of all dispatched queues.
#[derive(Debug)]
pub(super) struct Dispatcher {
    phase: watch::Sender<StopPhase>,
    serving: JoinHandle<()>,
}

impl Dispatcher {
    /// Starts a runner for every dispatched queue, and for those that are added later.
    pub(super) fn start(
        queues: Arc<Queues>,
        llm: Arc<LlmApi>,
        auth: Arc<Authenticator>,
        webhooks: WebhookClient,
        registry: &Registry,
        queues_max: usize,
    ) -> Result<Self, RegisterError> {
        let metrics = DispatchMetrics::new(registry, queues_max)?;
        let dispatch = Arc::new(DispatchContext { queues, llm, auth, webhooks, metrics });
        let (phase, receiver) = watch::channel(StopPhase::Serving);
        Ok(Self { phase, serving: tokio::spawn(dispatch.serve(receiver)) })
    }

    /// Stops starting jobs, waits up to `drain_max` for jobs on nodes, and releases all others without counting an
    /// attempt.
    pub(super) async fn stop(mut self, drain_max: Duration) {
        self.phase.send_replace(StopPhase::Stopping);
        if timeout(drain_max, &mut self.serving).await.is_ok() {
            return;
        }
        self.phase.send_replace(StopPhase::Aborting);
        if timeout(RELEASE_MAX, &mut self.serving).await.is_err() {
            tracing::warn!(target: "evenkeel", "could not release all jobs in time; they are redelivered when their leases end");
        }
    }
}

impl DispatchContext {
    async fn serve(self: Arc<Self>, mut phase: watch::Receiver<StopPhase>) {
        let mut changes = self.queues.changes();
        let mut runners = JoinSet::new();
        let mut running = HashMap::<QueueId, AbortHandle>::new();
        let mut expire_results = interval(EXPIRE_RESULTS_INTERVAL);
        while *phase.borrow_and_update() == StopPhase::Serving {
            running.retain(|_, runner| !runner.is_finished());
            for queue in self.queues.all() {
                if queue.descriptor().settings.dispatch.is_some() && !running.contains_key(&queue.id()) {
                    let runner = QueueRunner::new(self.clone(), queue.clone(), phase.clone());
                    running.insert(queue.id(), runners.spawn(runner.run()));
                }
            }
            tokio::select! {
                // An error means that the gateway was dropped.
                changed = phase.changed() => if changed.is_err() { return },
                changed = changes.changed() => if changed.is_err() { return },
                Some(ended) = runners.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(target: "evenkeel", %error, "the runner of a dispatched queue stopped unexpectedly, restarting it");
                    }
                }
                _ = expire_results.tick() => {
                    if let Err(error) = self.queues.expire_results().await {
                        tracing::warn!(target: "evenkeel", %error, "could not delete expired job results, retrying in 10 s");
                    }
                }
            }
        }
        while runners.join_next().await.is_some() {}
    }
}
