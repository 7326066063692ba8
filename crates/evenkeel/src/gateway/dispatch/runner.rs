//! One dispatched queue: takes jobs in the queue's turns, as many at once as it says.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_door::tenant::Tenant;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::queue::Want;
use evenkeel_queue::settings::Dispatch as Settings;
use evenkeel_queue::{Delivery, KeyRule, Queue, Rejection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::job::{Attempt, tenant_of};
use super::{Dispatch, Phase};

/// How long one question for jobs lasts.
const WAIT: Duration = Duration::from_secs(20);
/// How long to wait when the queue refuses.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// Jobs that were asked for.
type Receiving = Pin<Box<dyn Future<Output = Result<Vec<Delivery>, Rejection>> + Send>>;

pub(super) struct Runner {
    dispatch: Arc<Dispatch>,
    queue: Queue,
    phase: watch::Receiver<Phase>,
    /// The weights that the queue was told.
    weights: HashMap<String, Weight>,
}

impl Runner {
    pub(super) fn new(dispatch: Arc<Dispatch>, queue: Queue, phase: watch::Receiver<Phase>) -> Self {
        Self { dispatch, queue, phase, weights: HashMap::new() }
    }

    /// Runs jobs until the queue is told otherwise, or the gateway stops; then waits for those under way.
    pub(super) async fn run(mut self) {
        let name = self.queue.body().name.clone();
        tracing::info!(target: "evenkeel", queue = name, "dispatch begins");
        let mut changes = self.dispatch.queues.changes();
        let mut jobs = JoinSet::new();
        let mut receiving: Option<Receiving> = None;
        while *self.phase.borrow_and_update() == Phase::Serving {
            let Some(settings) = self.queue.body().settings.dispatch.clone() else { break };
            let free = (settings.concurrency as usize).saturating_sub(jobs.len());
            if receiving.is_none() && 0 < free {
                receiving = Some(Box::pin(receive(self.queue.clone(), free)));
            }
            tokio::select! {
                told = self.phase.changed() => if told.is_err() { break },
                told = changes.changed() => if told.is_err() { break },
                Some(ended) = jobs.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(target: "evenkeel", queue = name, %error, "a job broke off");
                    }
                }
                received = wait_for(&mut receiving) => {
                    receiving = None;
                    match received {
                        Ok(deliveries) => for delivery in deliveries {
                            jobs.spawn(self.attempt(delivery, settings.clone()).await.run());
                        },
                        Err(why) => {
                            tracing::warn!(target: "evenkeel", queue = name, %why, "no jobs for now");
                            sleep(REFUSED_WAIT).await;
                            if matches!(why, Rejection::QueueDeleted | Rejection::Stopping) {
                                break;
                            }
                        }
                    }
                }
            }
        }
        // What comes meanwhile reaches nobody, and goes back uncounted.
        drop(receiving);
        while jobs.join_next().await.is_some() {}
        tracing::info!(target: "evenkeel", queue = name, "dispatch ends");
    }

    async fn attempt(&mut self, delivery: Delivery, settings: Settings) -> Attempt {
        let tenant = tenant_of(&self.dispatch.gate.tenants(), &delivery);
        if let Ok(tenant) = &tenant {
            self.weigh(tenant, &delivery.key).await;
        }
        let (dispatch, queue, phase) = (self.dispatch.clone(), self.queue.clone(), self.phase.clone());
        Attempt { dispatch, queue, settings, delivery, tenant, phase }
    }

    /// Has the queue hand out a tenant's jobs as often as its weight says.
    async fn weigh(&mut self, tenant: &Tenant, key: &str) {
        let (name, weight) = (&tenant.settings.name, tenant.settings.weight);
        let is_of_key = key.split('/').next() == Some(name);
        if !is_of_key || self.weights.get(name) == Some(&weight) {
            return;
        }
        match set_weight(&self.queue, name, weight).await {
            Ok(()) => drop(self.weights.insert(name.clone(), weight)),
            Err(why) => {
                tracing::warn!(target: "evenkeel", tenant = name, %why, "weight not told to the queue");
            }
        }
    }
}

/// Sets a weight, and leaves what else is set.
async fn set_weight(queue: &Queue, name: &str, weight: Weight) -> Result<(), Rejection> {
    let rule = KeyRule { weight: Some(weight), ..queue.rule(name).await? };
    queue.set_rule(name, rule).await
}

async fn receive(queue: Queue, max: usize) -> Result<Vec<Delivery>, Rejection> {
    let lease = super::job::lease_of(&queue);
    queue.receive(Want { max, lease: Some(lease), wait: WAIT }).await
}

/// Waits for jobs that were asked for; for ever if none were.
async fn wait_for(receiving: &mut Option<Receiving>) -> Result<Vec<Delivery>, Rejection> {
    match receiving {
        Some(receiving) => receiving.await,
        None => std::future::pending().await,
    }
}
