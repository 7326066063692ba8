//! Dispatch: queues whose messages are jobs, which this gateway runs itself: through the LLM door, or at a URL.
//!
//! Bound: a queue has as many jobs under way as it says; a job is acknowledged after its result is on disk, so that
//! nothing is lost by an end at any moment, and a job may run twice.

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
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{interval, timeout};

use metrics::DispatchMetrics;
use runner::QueueRunner;
use target::DispatchTarget;

pub(super) use target::BadTarget;
pub(super) use webhook::WebhookClient;

/// How often results that have expired are swept.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How long jobs may take to be handed back.
const HAND_BACK_MAX: Duration = Duration::from_secs(5);

/// What all dispatched queues share.
pub(super) struct DispatchContext {
    queues: Arc<Queues>,
    llm: Arc<LlmApi>,
    gate: Arc<Authenticator>,
    poster: WebhookClient,
    meters: DispatchMetrics,
}

/// Refuses what jobs cannot be sent to.
pub(super) fn check_target(given: &str) -> Result<(), BadTarget> {
    DispatchTarget::parse(given).map(drop)
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopPhase {
    /// Jobs are begun.
    Serving,
    /// No more are begun; those on nodes go on, the others are handed back.
    Stopping,
    /// All are handed back.
    Aborting,
}

/// Whoever runs the jobs of all queues.
#[derive(Debug)]
pub(super) struct Dispatcher {
    phase: watch::Sender<StopPhase>,
    serving: JoinHandle<()>,
}

impl Dispatcher {
    /// Starts with every queue that is dispatched, and follows what queues are told from then on.
    pub(super) fn start(
        queues: Arc<Queues>,
        llm: Arc<LlmApi>,
        gate: Arc<Authenticator>,
        poster: WebhookClient,
        registry: &Registry,
        queues_max: usize,
    ) -> Result<Self, RegisterError> {
        let meters = DispatchMetrics::new(registry, queues_max)?;
        let dispatch = Arc::new(DispatchContext { queues, llm, gate, poster, meters });
        let (phase, told) = watch::channel(StopPhase::Serving);
        Ok(Self { phase, serving: tokio::spawn(dispatch.serve(told)) })
    }

    /// Begins no more jobs, lets those on nodes go on for so long, and hands all others back uncounted.
    pub(super) async fn stop(mut self, within: Duration) {
        self.phase.send_replace(StopPhase::Stopping);
        if timeout(within, &mut self.serving).await.is_ok() {
            return;
        }
        self.phase.send_replace(StopPhase::Aborting);
        if timeout(HAND_BACK_MAX, &mut self.serving).await.is_err() {
            tracing::warn!(target: "evenkeel", "jobs were not handed back in time; they are tried again when their leases end");
        }
    }
}

impl DispatchContext {
    async fn serve(self: Arc<Self>, mut phase: watch::Receiver<StopPhase>) {
        let mut changes = self.queues.changes();
        let mut runners = JoinSet::new();
        let mut running = HashMap::<QueueId, AbortHandle>::new();
        let mut sweep = interval(SWEEP_EVERY);
        while *phase.borrow_and_update() == StopPhase::Serving {
            running.retain(|_, runner| !runner.is_finished());
            for queue in self.queues.list("", None, usize::MAX) {
                if queue.descriptor().settings.dispatch.is_some() && !running.contains_key(&queue.id()) {
                    let runner = QueueRunner::new(self.clone(), queue.clone(), phase.clone());
                    running.insert(queue.id(), runners.spawn(runner.run()));
                }
            }
            tokio::select! {
                // Nobody tells any more when the gateway is gone.
                told = phase.changed() => if told.is_err() { return },
                told = changes.changed() => if told.is_err() { return },
                Some(ended) = runners.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(target: "evenkeel", %error, "a dispatched queue stopped, starting it again");
                    }
                }
                _ = sweep.tick() => {
                    if let Err(error) = self.queues.expire_results().await {
                        tracing::warn!(target: "evenkeel", %error, "expired results stay for now");
                    }
                }
            }
        }
        while runners.join_next().await.is_some() {}
    }
}
