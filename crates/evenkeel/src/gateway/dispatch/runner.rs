//! Runner of one dispatched queue: receives jobs in the queue's fair order and runs up to `concurrency` at once.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::weight::Weight;
use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::settings::DispatchSettings as Settings;
use evenkeel_queue::{Delivery, DeliveryOrder, KeyRule, Queue, Rejection};
use evenkeel_server::tenant::{Tenant, TenantSettings};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::job::{JobAttempt, job_tenant};
use super::{DispatchContext, StopPhase};

/// Long-polling time of one receive.
const RECEIVE_WAIT: Duration = Duration::from_secs(20);
/// Delay of a job whose tenant has a concurrency limit of 0.
const ZERO_LIMIT_DELAY: Duration = Duration::from_secs(5);
/// Pause after a failed receive.
const RECEIVE_RETRY: Duration = Duration::from_secs(1);

/// A pending receive.
type ReceiveFuture = Pin<Box<dyn Future<Output = ReceiveResult> + Send>>;
/// Duration of the leases, and the jobs.
type ReceiveResult = (Duration, Result<Vec<Delivery>, Rejection>);

/// Weight and limit of a tenant in a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TenantShare {
    weight: Weight,
    concurrency_max: Option<u32>,
}

pub(super) struct QueueRunner {
    dispatch: Arc<DispatchContext>,
    queue: Queue,
    phase: watch::Receiver<StopPhase>,
    /// Weights and limits last written to the queue, by tenant.
    synced: HashMap<String, TenantShare>,
}

impl QueueRunner {
    pub(super) fn new(
        dispatch: Arc<DispatchContext>,
        queue: Queue,
        phase: watch::Receiver<StopPhase>,
    ) -> Self {
        Self { dispatch, queue, phase, synced: HashMap::new() }
    }

    /// Runs jobs until dispatch is turned off or the gateway stops, then waits for the running ones.
    pub(super) async fn run(mut self) {
        let name = self.queue.descriptor().name.clone();
        tracing::info!(target: "evenkeel", queue = name, "dispatch started");
        let mut changes = self.dispatch.queues.changes();
        let mut jobs = JoinSet::new();
        let mut receiving: Option<ReceiveFuture> = None;
        while *self.phase.borrow_and_update() == StopPhase::Serving {
            let settings = self.queue.descriptor().settings.dispatch.clone();
            if settings.is_none() {
                // Keeps looping while jobs run, so that dispatch resumes at once if it is turned on again.
                receiving = None;
                if jobs.is_empty() {
                    break;
                }
            }
            let concurrency = settings.as_ref().map_or(0, |settings| settings.concurrency as usize);
            let free = concurrency.saturating_sub(jobs.len());
            if receiving.is_none() && free > 0 {
                receiving = Some(Box::pin(receive(self.queue.clone(), free)));
            }
            tokio::select! {
                changed = self.phase.changed() => if changed.is_err() { break },
                changed = changes.changed() => if changed.is_err() { break },
                Some(ended) = jobs.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(target: "evenkeel", queue = name, %error, "a job panicked or was aborted");
                    }
                }
                (lease, received) = pending_receive(&mut receiving) => {
                    receiving = None;
                    match received {
                        Ok(deliveries) => {
                            let mut started = HashMap::new();
                            for delivery in deliveries {
                                let Some(settings) = settings.clone() else { break };
                                let attempt = self.attempt(delivery, settings, lease).await;
                                match over_limit(&attempt, &mut started) {
                                    Some(delay) => jobs.spawn(async move { attempt.release(delay).await }),
                                    None => jobs.spawn(attempt.run()),
                                };
                            }
                        }
                        Err(error) => {
                            tracing::warn!(target: "evenkeel", queue = name, %error, "could not receive jobs, retrying in 1 s");
                            sleep(RECEIVE_RETRY).await;
                            if matches!(error, Rejection::QueueDeleted | Rejection::Stopping) {
                                break;
                            }
                        }
                    }
                }
            }
        }
        // Jobs received meanwhile are released without counting an attempt.
        drop(receiving);
        while jobs.join_next().await.is_some() {}
        tracing::info!(target: "evenkeel", queue = name, "dispatch stopped");
    }

    async fn attempt(&mut self, delivery: Delivery, settings: Settings, lease: Duration) -> JobAttempt {
        let tenant = job_tenant(&self.dispatch.auth.tenants(), &self.queue, &delivery);
        if let Ok(tenant) = &tenant {
            self.sync_tenant_limits(tenant, &delivery.key).await;
        }
        let dispatch = self.dispatch.clone();
        let queue = self.queue.clone();
        let phase = self.phase.clone();
        JobAttempt { dispatch, queue, settings, delivery, lease, tenant, phase }
    }

    /// Writes a tenant's weight and concurrency limit to the queue if they changed.
    ///
    /// Without the limit on the queue, jobs that exceed it would occupy the queue's concurrency while they wait.
    async fn sync_tenant_limits(&mut self, tenant: &Tenant, key: &str) {
        let name = &tenant.settings.name;
        let TenantSettings { weight, concurrency_max, .. } = *tenant.settings;
        let share = TenantShare { weight, concurrency_max };
        let owns_key = key.split('/').next() == Some(name);
        if !owns_key || self.synced.get(name) == Some(&share) {
            return;
        }
        match write_share(&self.queue, name, share).await {
            Ok(()) => drop(self.synced.insert(name.clone(), share)),
            Err(error) => {
                let queue = &self.queue.descriptor().name;
                tracing::warn!(target: "evenkeel", queue, tenant = name, %error, "could not set the tenant's weight and limit on the queue; retrying with its next job");
            }
        }
    }
}

/// Returns the delay of a job whose tenant has already started `concurrency_max` jobs of this batch.
///
/// The batch was received before the limit was written to the queue.
fn over_limit(attempt: &JobAttempt, started: &mut HashMap<String, u32>) -> Option<Duration> {
    let tenant = attempt.tenant.as_ref().ok()?;
    let max = tenant.settings.concurrency_max?;
    let started = started.entry(tenant.settings.name.clone()).or_default();
    *started += 1;
    // A queue cannot have a limit of 0, so without a long delay it would redeliver such jobs at once.
    (*started > max).then_some(if max == 0 { ZERO_LIMIT_DELAY } else { Duration::ZERO })
}

/// Sets the weight of a key, and its limit if the tenant has one; keeps the key's other rules.
async fn write_share(queue: &Queue, key: &str, share: TenantShare) -> Result<(), Rejection> {
    let guard = queue.lock_rule(key).await?;
    let before = guard.rule();
    let concurrency_max = share.concurrency_max.and_then(NonZeroU32::new).or(before.concurrency_max);
    let rule = KeyRule { weight: Some(share.weight), concurrency_max, ..before };
    if rule == before { Ok(()) } else { guard.set(rule).await }
}

async fn receive(queue: Queue, free: usize) -> ReceiveResult {
    // A batch may hold several messages of one FIFO group, which must not run concurrently.
    let max = match queue.descriptor().settings.order {
        DeliveryOrder::Fifo => 1,
        DeliveryOrder::Fair => free,
    };
    let lease = super::job::lease_duration(&queue);
    (lease, queue.receive(ReceiveOptions { max, lease: Some(lease), wait: RECEIVE_WAIT }).await)
}

/// Waits for the pending receive, or forever if there is none.
async fn pending_receive(receiving: &mut Option<ReceiveFuture>) -> ReceiveResult {
    match receiving {
        Some(receiving) => receiving.await,
        None => std::future::pending().await,
    }
}
