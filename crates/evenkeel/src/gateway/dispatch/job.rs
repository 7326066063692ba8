//! One attempt at one job: runs it while extending its lease, then acknowledges, retries or defers it.

use std::pin::pin;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_llm::{Job, JobTarget as Route};
use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::job_result::{JobResult, ResultHead, ResultState};
use evenkeel_queue::job_status::JobStatus;
use evenkeel_queue::settings::DispatchSettings as Settings;
use evenkeel_queue::{Delivery, Namespace, Queue, Rejection};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::{Tenant, TenantState, Tenants};
use evenkeel_sqs::{owner_name, tenant_to_charge};
use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

use super::outcome::{JobOutcome, JobReply};
use super::target::{DispatchTarget, Url};
use super::{DispatchContext, StopPhase};

/// Minimum lease; a shorter one could expire before it is extended.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Delay before storing a result again after an error.
const STORE_RETRY: Duration = Duration::from_secs(5);
/// Minimum delay after a `Retry-After`, unless the queue's minimum backoff is lower.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Returns the duration of a job's lease, which is extended while the job runs.
pub(super) fn lease_duration(queue: &Queue) -> Duration {
    queue.descriptor().settings.lease().max(LEASE_MIN)
}

/// Returns the tenant that a job runs as and that is charged for it, the first of these that is a tenant: the first level of
/// its fairness key if its sender may act for it, its sender, the owner of the queue.
pub(super) fn job_tenant(
    tenants: &Tenants,
    queue: &Queue,
    delivery: &Delivery,
) -> Result<Arc<Tenant>, ApiError> {
    let charged = tenant_to_charge(tenants, &delivery.payload.headers, &delivery.key);
    let owner = || match queue.descriptor().namespace {
        Namespace::Account(account) => tenants.with_account(account),
        Namespace::Shared => None,
    };
    // Without configured tenants there is a single built-in one.
    let open = || tenants.is_empty().then(|| tenants.all().pop()).flatten();
    charged.or_else(owner).cloned().or_else(open).ok_or_else(|| {
        let key = &delivery.key;
        ApiError::invalid(format!(
            "no tenant to run the job as: its sender is not a tenant, the queue has no owner, and the fairness key \
             {key:?} names no tenant that the sender may act for"
        ))
    })
}

/// One attempt at one job.
pub(super) struct JobAttempt {
    pub(super) dispatch: Arc<DispatchContext>,
    pub(super) queue: Queue,
    pub(super) settings: Settings,
    pub(super) delivery: Delivery,
    /// Duration of the lease and of each extension.
    pub(super) lease: Duration,
    pub(super) tenant: Result<Arc<Tenant>, ApiError>,
    pub(super) phase: watch::Receiver<StopPhase>,
}

/// End of an attempt, before the job is acknowledged or released.
enum AttemptEnd {
    Finished(JobOutcome),
    /// The gateway is shutting down.
    Stopping,
    /// The lease expired or the job was deleted.
    LeaseLost,
}

impl JobAttempt {
    /// Runs the job, then acknowledges, retries or defers it.
    pub(super) async fn run(self) {
        let descriptor = self.queue.descriptor();
        let name = &descriptor.name;
        let owner = owner_name(&self.dispatch.auth.tenants(), descriptor.namespace).unwrap_or_default();
        let running = self.dispatch.metrics.start(name, &owner);
        let ended = match DispatchTarget::parse(&self.settings.target) {
            Ok(DispatchTarget::Route(route)) => self.run_on_model(route).await,
            Ok(DispatchTarget::Url(url)) => self.post_webhook(&url).await,
            // The target was valid when the queue was configured.
            Err(_) => Err(ApiError::NoRoute),
        };
        let ended = ended.unwrap_or_else(|error| AttemptEnd::Finished(JobOutcome::new(Err(error))));
        let label = match ended {
            AttemptEnd::Finished(outcome) => {
                let label = outcome.as_str();
                self.extend_lease_during(self.settle(outcome)).await;
                label
            }
            AttemptEnd::Stopping => {
                self.release(Duration::ZERO).await;
                "deferred"
            }
            AttemptEnd::LeaseLost => {
                self.queue.forget_job(self.delivery.id);
                "lost"
            }
        };
        drop(running);
        self.dispatch.metrics.count_attempt(name, &owner, label);
    }

    /// Runs the job on a model, through the LLM API.
    async fn run_on_model(&self, route: Route) -> Result<AttemptEnd, ApiError> {
        let (job, sent) = self.build_job(route)?;
        let attempt = self.delivery.attempt;
        let since = self.queue.now();
        self.record(JobStatus::Admitted { attempt, since });
        Ok(self.run_with_lease(async { JobOutcome::new(self.dispatch.llm.run_job(job).await) }, &sent).await)
    }

    /// Posts the job to a URL. Only a disabled tenant is rejected, because tenant limits apply to models.
    async fn post_webhook(&self, url: &Url) -> Result<AttemptEnd, ApiError> {
        let state = self.tenant.as_ref().map(|tenant| tenant.settings.state);
        if state.is_ok_and(|state| state == TenantState::Disabled) {
            return Err(ApiError::TenantDisabled);
        }
        let attempt = self.delivery.attempt;
        let since = self.queue.now();
        self.record(JobStatus::Posted { to: url.to_string(), attempt, since });
        let tenant = self.tenant.as_ref().ok().map(|tenant| tenant.settings.name.as_str());
        let posting = self.dispatch.webhooks.post(url, &self.queue, tenant, &self.delivery);
        Ok(self.run_with_lease(posting, &AtomicBool::new(true)).await)
    }

    /// Builds the request; the returned flag is set once it is sent to a node.
    fn build_job(&self, target: Route) -> Result<(Job, Arc<AtomicBool>), ApiError> {
        let tenant = self.tenant.clone()?;
        let queue = self.queue.clone();
        let id = self.delivery.id;
        let attempt = self.delivery.attempt;
        let sent = Arc::new(AtomicBool::new(false));
        let sent_flag = sent.clone();
        let reader = self.reader();
        let job = Job {
            target,
            tenant,
            id: HeaderValue::try_from(self.public_id()).map_err(|_| ApiError::Internal)?,
            body: self.delivery.payload.body.clone(),
            accepted_at: self.dispatch.auth.now(),
            on_dispatch: Box::new(move |node, path| {
                sent_flag.store(true, Ordering::Relaxed);
                let node = node.to_owned();
                let path = path.to_owned();
                let since = queue.now();
                queue.record_job(id, reader, JobStatus::Sent { node, path, attempt, since });
            }),
        };
        Ok((job, sent))
    }

    /// Waits for the outcome of the job while extending its lease.
    async fn run_with_lease(
        &self,
        running: impl Future<Output = JobOutcome>,
        sent: &AtomicBool,
    ) -> AttemptEnd {
        let mut extension = interval_at(Instant::now() + self.lease / 3, self.lease / 3);
        let mut running = pin!(running);
        let mut phase = self.phase.clone();
        let must_stop = |phase: &StopPhase| match phase {
            StopPhase::Serving => false,
            StopPhase::Stopping => !sent.load(Ordering::Relaxed),
            StopPhase::Aborting => true,
        };
        let mut stopping = pin!(async { drop(phase.wait_for(must_stop).await) });
        loop {
            tokio::select! {
                outcome = &mut running => return AttemptEnd::Finished(outcome),
                () = &mut stopping => return AttemptEnd::Stopping,
                _ = extension.tick() => if self.extend().await.is_err() { return AttemptEnd::LeaseLost },
            }
        }
    }

    /// Extends the lease while the outcome is stored, because the disk may be slow.
    async fn extend_lease_during(&self, settling: impl Future<Output = ()>) {
        let mut extension = interval_at(Instant::now() + self.lease / 3, self.lease / 3);
        let mut settling = pin!(settling);
        loop {
            tokio::select! {
                () = &mut settling => return,
                // If the lease is lost, the acknowledgement fails and logs it.
                _ = extension.tick() => drop(self.extend().await),
            }
        }
    }

    /// Extends the lease; fails only if the lease is lost.
    async fn extend(&self) -> Result<(), Rejection> {
        let extended = self.queue.extend(&[(self.delivery.receipt.clone(), self.lease)]).await;
        match extended.into_iter().next() {
            Some(Err(error)) if is_lease_lost(&error) => return Err(error),
            Some(Err(error)) => {
                let queue = &self.queue.descriptor().name;
                tracing::warn!(target: "evenkeel", queue, id = self.public_id(), %error, "could not extend the lease of a job, retrying");
            }
            Some(Ok(())) | None => {}
        }
        Ok(())
    }

    async fn settle(&self, outcome: JobOutcome) {
        let attempt = self.delivery.attempt;
        let redrive = self.queue.descriptor().settings.in_queue(self.queue.id()).redrive;
        match outcome {
            JobOutcome::Done(reply) => {
                if self.store_result(ResultState::Done, reply).await {
                    self.ack().await;
                }
            }
            JobOutcome::Failed(reply) => {
                let queue = &self.queue.descriptor().name;
                tracing::warn!(target: "evenkeel", queue, id = self.public_id(), reason = reply.summary(), "job failed permanently");
                if !self.store_result(ResultState::Failed, reply).await {
                    return;
                }
                match redrive {
                    Some(_) => {
                        self.log_ack_errors(self.queue.dead_letter(from_ref(&self.delivery.receipt)).await);
                    }
                    None => self.ack().await,
                }
            }
            JobOutcome::Retry(reply, delay) => {
                let reason = reply.summary();
                let queue = &self.queue.descriptor().name;
                tracing::info!(target: "evenkeel", queue, id = self.public_id(), attempt, reason, "attempt at a job failed");
                let is_last = redrive.is_some_and(|redrive| attempt >= redrive.attempts_max);
                if is_last && !self.store_result(ResultState::Failed, reply).await {
                    return;
                }
                self.record(self.failed_status(reason));
                let backoff_min = Duration::from_millis(self.queue.descriptor().settings.backoff_ms_min);
                let delay = delay.map(|delay| delay.max(backoff_min.min(RETRY_AFTER_MIN)));
                self.log_ack_errors(self.queue.nack(&[(self.delivery.receipt.clone(), delay)]).await);
            }
            JobOutcome::Deferred(reason, delay) => {
                let queue = &self.queue.descriptor().name;
                tracing::debug!(target: "evenkeel", queue, id = self.public_id(), reason, "job deferred");
                let status = StatusRecord { reader: self.reader(), status: self.failed_status(reason) };
                self.log_ack_errors(defer(&self.queue, &self.delivery, delay, Some(status)).await);
            }
        }
    }

    fn failed_status(&self, reason: String) -> JobStatus {
        JobStatus::Failed { attempt: self.delivery.attempt, reason, at: self.queue.now() }
    }

    /// Stores the result durably; reports whether it was stored.
    ///
    /// Retries until the gateway stops, because running the job again would repeat its effects. Meanwhile the job occupies
    /// the queue's concurrency. If the gateway stops first, the job is released and runs again.
    async fn store_result(&self, state: ResultState, reply: JobReply) -> bool {
        let Delivery { id, attempt, .. } = &self.delivery;
        let JobReply { status, content_type, body } = reply;
        let finished_at_ms = self.queue.now().0;
        let reader = self.reader();
        let head = ResultHead { state, status, content_type, attempt: *attempt, finished_at_ms, reader };
        let result = JobResult { head, body };
        let ttl = self.settings.result_ttl();
        let max = self.settings.results_max as usize;
        let mut phase = self.phase.clone();
        loop {
            let Err(error) = self.queue.put_result(*id, &result, ttl, max).await else { return true };
            let queue = &self.queue.descriptor().name;
            tracing::error!(target: "evenkeel", queue, id = self.public_id(), %error, "could not store the result of a job, retrying in 5 s");
            let stops = phase.wait_for(|phase| *phase != StopPhase::Serving);
            if tokio::time::timeout(STORE_RETRY, stops).await.is_ok() {
                self.release(Duration::ZERO).await;
                return false;
            }
        }
    }

    /// Returns the account that may read the status and the result, besides administrators: that of the job's tenant.
    fn reader(&self) -> Namespace {
        if self.dispatch.auth.tenants().is_empty() {
            return Namespace::Shared;
        }
        let account = self.tenant.as_ref().ok().and_then(|tenant| tenant.settings.account);
        // A webhook also gets jobs of unknown tenants; no tenant has the account number zero.
        Namespace::Account(account.unwrap_or(AccountNumber::ZERO))
    }

    /// Returns the message's id as clients know it.
    fn public_id(&self) -> String {
        self.queue.message_ids().format(self.delivery.id)
    }

    async fn ack(&self) {
        self.log_ack_errors(self.queue.ack(from_ref(&self.delivery.receipt)).await);
        self.queue.forget_job(self.delivery.id);
    }

    /// Releases the job without counting an attempt; it is delivered again after the delay.
    pub(super) async fn release(&self, delay: Duration) {
        self.log_ack_errors(defer(&self.queue, &self.delivery, delay, None).await);
    }

    /// Records the status of the job, for its tenant and administrators.
    fn record(&self, status: JobStatus) {
        self.queue.record_job(self.delivery.id, self.reader(), status);
    }

    /// Logs jobs that could not be acknowledged or released: they are redelivered when their leases end.
    fn log_ack_errors(&self, results: Vec<Result<(), Rejection>>) {
        for error in results.into_iter().filter_map(Result::err) {
            let queue = &self.queue.descriptor().name;
            tracing::warn!(target: "evenkeel", queue, id = self.public_id(), %error, "could not acknowledge or release a job; it may run again when its lease ends");
        }
    }
}

/// Status of a job, and the account that may read it.
struct StatusRecord {
    reader: Namespace,
    status: JobStatus,
}

/// Releases a job without counting an attempt, and sets or clears its status.
///
/// The status is written first: once the job is released, another attempt may start and write its own.
async fn defer(
    queue: &Queue,
    delivery: &Delivery,
    delay: Duration,
    record: Option<StatusRecord>,
) -> Vec<Result<(), Rejection>> {
    match record {
        Some(StatusRecord { reader, status }) => queue.record_job(delivery.id, reader, status),
        None => queue.forget_job(delivery.id),
    }
    queue.defer(&[(delivery.receipt.clone(), delay)]).await
}

/// Reports whether an error means that this attempt no longer holds the lease.
fn is_lease_lost(error: &Rejection) -> bool {
    matches!(
        error,
        Rejection::MessageGone | Rejection::StaleReceipt | Rejection::NotInFlight | Rejection::QueueDeleted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_queue::queue::ReceiveOptions;
    use evenkeel_queue::store::memory::MemoryStore;
    use evenkeel_queue::{NewMessage, QueueSettings, Queues};

    #[tokio::test]
    async fn deferring_a_job_does_not_overwrite_the_status_of_its_next_attempt() {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 1).await.unwrap();
        let created =
            queues.create(Namespace::Shared, "jobs", QueueSettings::default(), String::new()).await.unwrap();
        let queue = created.queue();
        queue.enqueue(vec![NewMessage::new("job")]).await.unwrap();
        let receive = || async {
            let options = ReceiveOptions { max: 1, lease: None, wait: Duration::from_secs(60) };
            queue.receive(options).await.unwrap().pop().unwrap()
        };
        let first = receive().await;
        let at = queue.now();
        let status = |text: &str| JobStatus::Failed { attempt: 1, reason: text.to_owned(), at };
        let next_attempt = async {
            let next = receive().await;
            queue.record_job(next.id, Namespace::Shared, status("next attempt"));
        };
        // The next attempt starts while the first one is still waiting for its release to be confirmed.
        let record = StatusRecord { reader: Namespace::Shared, status: status("deferred") };
        let deferred = defer(&queue, &first, Duration::ZERO, Some(record));
        let (results, ()) = tokio::join!(deferred, next_attempt);
        assert_eq!(results, [Ok(())]);
        assert_eq!(queue.job_status(first.id, |_| true), Some(status("next attempt")));
        queues.shutdown().await;
    }
}
