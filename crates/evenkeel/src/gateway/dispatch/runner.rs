//! One dispatched queue: takes jobs in the queue's turns, as many at once as it says.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::weight::Weight;
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::settings::DispatchSettings as Settings;
use evenkeel_queue::{Delivery, DeliveryOrder, KeyRule, Queue, Rejection};
use evenkeel_server::tenant::Tenant;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::job::{JobAttempt, tenant_of};
use super::{DispatchContext, StopPhase};

/// How long one question for jobs lasts.
const WAIT: Duration = Duration::from_secs(20);
/// When a job is looked at again whose tenant may have none at once.
const NONE_WAIT: Duration = Duration::from_secs(5);
/// How long to wait when the queue refuses.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// Jobs that were asked for.
type ReceiveFuture = Pin<Box<dyn Future<Output = ReceiveResult> + Send>>;
/// Jobs, and for how long they are leased.
type ReceiveResult = (Duration, Result<Vec<Delivery>, Rejection>);

pub(super) struct QueueRunner {
    dispatch: Arc<DispatchContext>,
    queue: Queue,
    phase: watch::Receiver<StopPhase>,
    /// The weights and limits that the queue was told.
    told: HashMap<String, (Weight, Option<u32>)>,
}

impl QueueRunner {
    pub(super) fn new(
        dispatch: Arc<DispatchContext>,
        queue: Queue,
        phase: watch::Receiver<StopPhase>,
    ) -> Self {
        Self { dispatch, queue, phase, told: HashMap::new() }
    }

    /// Runs jobs until the queue is told otherwise, or the gateway stops; then waits for those under way.
    pub(super) async fn run(mut self) {
        let name = self.queue.descriptor().name.clone();
        tracing::info!(target: "evenkeel", queue = name, "dispatch begins");
        let mut changes = self.dispatch.queues.changes();
        let mut jobs = JoinSet::new();
        let mut receiving: Option<ReceiveFuture> = None;
        while *self.phase.borrow_and_update() == StopPhase::Serving {
            let settings = self.queue.descriptor().settings.dispatch.clone();
            if settings.is_none() {
                // Told to go on before the last job ends, it goes on at once.
                receiving = None;
                if jobs.is_empty() {
                    break;
                }
            }
            let concurrency = settings.as_ref().map_or(0, |settings| settings.concurrency as usize);
            let free = concurrency.saturating_sub(jobs.len());
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
                (lease, received) = wait_for(&mut receiving) => {
                    receiving = None;
                    match received {
                        Ok(deliveries) => {
                            let mut begun = HashMap::new();
                            for delivery in deliveries {
                                let Some(settings) = settings.clone() else { break };
                                let attempt = self.attempt(delivery, settings, lease).await;
                                match beyond_limit(&attempt, &mut begun) {
                                    Some(after) => jobs.spawn(attempt.give_back(after)),
                                    None => jobs.spawn(attempt.run()),
                                };
                            }
                        }
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

    async fn attempt(&mut self, delivery: Delivery, settings: Settings, lease: Duration) -> JobAttempt {
        let tenant = tenant_of(&self.dispatch.gate.tenants(), &delivery);
        if let Ok(tenant) = &tenant {
            self.sync_tenant_limits(tenant, &delivery.key).await;
        }
        let dispatch = self.dispatch.clone();
        let queue = self.queue.clone();
        let phase = self.phase.clone();
        JobAttempt { dispatch, queue, settings, delivery, lease, tenant, phase }
    }

    /// Has the queue hand out a tenant's jobs as often as its weight says, and no more than it may have at once: they
    /// would hold the places of others and wait.
    async fn sync_tenant_limits(&mut self, tenant: &Tenant, key: &str) {
        let name = &tenant.settings.name;
        let wanted = (tenant.settings.weight, tenant.settings.concurrency_max);
        let is_of_key = key.split('/').next() == Some(name);
        if !is_of_key || self.told.get(name) == Some(&wanted) {
            return;
        }
        match tell(&self.queue, name, wanted).await {
            Ok(()) => drop(self.told.insert(name.clone(), wanted)),
            Err(why) => {
                tracing::warn!(target: "evenkeel", tenant = name, %why, "weight not told to the queue");
            }
        }
    }
}

/// Tells when a job is to be taken again whose tenant has begun as many of these as it may: they were taken before the
/// queue was told so.
fn beyond_limit(attempt: &JobAttempt, begun: &mut HashMap<String, u32>) -> Option<Duration> {
    let tenant = attempt.tenant.as_ref().ok()?;
    let max = tenant.settings.concurrency_max?;
    let begun = begun.entry(tenant.settings.name.clone()).or_default();
    *begun += 1;
    // Of a tenant that may have none the queue cannot be told, and would hand them out again at once.
    (max < *begun).then_some(if max == 0 { NONE_WAIT } else { Duration::ZERO })
}

/// Sets a weight, and a limit if there is one, and leaves what else is set.
async fn tell(queue: &Queue, name: &str, (weight, limit): (Weight, Option<u32>)) -> Result<(), Rejection> {
    let ruling = queue.lock_rule(name).await?;
    let before = ruling.rule();
    let concurrency_max = limit.and_then(NonZeroU32::new).or(before.concurrency_max);
    let rule = KeyRule { weight: Some(weight), concurrency_max, ..before };
    if rule == before { Ok(()) } else { ruling.set(rule).await }
}

async fn receive(queue: Queue, free: usize) -> ReceiveResult {
    // Several of a group may come at once, for a consumer that takes them in order; jobs run beside each other.
    let max = match queue.descriptor().settings.order {
        DeliveryOrder::Fifo => 1,
        DeliveryOrder::Fair => free,
    };
    let lease = super::job::lease_of(&queue);
    (lease, queue.receive(ReceiveOptions { max, lease: Some(lease), wait: WAIT }).await)
}

/// Waits for jobs that were asked for; for ever if none were.
async fn wait_for(receiving: &mut Option<ReceiveFuture>) -> ReceiveResult {
    match receiving {
        Some(receiving) => receiving.await,
        None => std::future::pending().await,
    }
}
