//! One attempt at one job: run while its lease is kept, then settled.

use std::pin::pin;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_llm::{Job, JobTarget as Route};
use evenkeel_queue::job_result::{JobResult, ResultHead, ResultState};
use evenkeel_queue::job_status::JobStatus;
use evenkeel_queue::settings::DispatchSettings as Settings;
use evenkeel_queue::{Delivery, Queue, Rejection};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::{Tenant, TenantState, Tenants};
use evenkeel_sqs::sender_of;
use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

use super::outcome::{JobOutcome, JobReply};
use super::target::{DispatchTarget, Url};
use super::{DispatchContext, StopPhase};

/// The shortest lease of a job, which must be extended in time.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// When the disk is tried again that did not take a result.
const UNKEPT_AFTER: Duration = Duration::from_secs(5);
/// An answer that asks for another attempt at once has it no sooner than this, or the queue's shortest backoff.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// How long a job is leased at a time; it is extended while the job is under way.
pub(super) fn lease_of(queue: &Queue) -> Duration {
    queue.descriptor().settings.lease().max(LEASE_MIN)
}

/// Finds who a job belongs to: the first level of its key, else its sender.
pub(super) fn tenant_of(tenants: &Tenants, delivery: &Delivery) -> Result<Arc<Tenant>, ApiError> {
    let named = delivery.key.split('/').next().unwrap_or_default();
    let sender = sender_of(&delivery.payload.headers);
    let found = tenants.get(named).or_else(|| tenants.get(sender?)).cloned();
    // Without tenants there is one, whom everybody is.
    let open = || tenants.is_empty().then(|| tenants.all().pop()).flatten();
    found.or_else(open).ok_or_else(|| {
        let sender = sender.unwrap_or("nobody");
        ApiError::invalid(format!(
            "neither the fairness key's {named:?} nor the sender {sender:?} is a tenant"
        ))
    })
}

/// One attempt at one job.
pub(super) struct JobAttempt {
    pub(super) dispatch: Arc<DispatchContext>,
    pub(super) queue: Queue,
    pub(super) settings: Settings,
    pub(super) delivery: Delivery,
    /// For how long it was leased, and is each time it is extended.
    pub(super) lease: Duration,
    pub(super) tenant: Result<Arc<Tenant>, ApiError>,
    pub(super) phase: watch::Receiver<StopPhase>,
}

/// How an attempt ended before it was settled.
enum AttemptEnd {
    Answered(JobOutcome),
    /// The gateway stops.
    Stopping,
    /// The job is somebody else's, or gone.
    LeaseLost,
}

impl JobAttempt {
    /// Runs the job and settles what came of it.
    pub(super) async fn run(self) {
        let name = self.queue.descriptor().name.clone();
        let running = self.dispatch.meters.begin(&name);
        let ended = match DispatchTarget::parse(&self.settings.target) {
            Ok(DispatchTarget::Route(route)) => self.ask(route).await,
            Ok(DispatchTarget::Url(url)) => self.post(&url).await,
            // It was one when the queue was told.
            Err(_) => Err(ApiError::NoRoute),
        };
        let ended = ended.unwrap_or_else(|refusal| AttemptEnd::Answered(JobOutcome::of(Err(refusal))));
        let word = match ended {
            AttemptEnd::Answered(outcome) => {
                let word = outcome.as_str();
                self.leased(self.settle(outcome)).await;
                word
            }
            AttemptEnd::Stopping => {
                self.defer(Duration::ZERO).await;
                "deferred"
            }
            AttemptEnd::LeaseLost => {
                self.queue.forget_job(self.delivery.id);
                "lost"
            }
        };
        drop(running);
        self.dispatch.meters.ended(&name, word);
    }

    /// Gives the job back as if nobody had taken it, to be taken again after so long.
    pub(super) async fn give_back(self, after: Duration) {
        self.defer(after).await;
    }

    /// Asks a model.
    async fn ask(&self, route: Route) -> Result<AttemptEnd, ApiError> {
        let (job, sent) = self.job(route)?;
        let attempt = self.delivery.attempt;
        let since = self.queue.now();
        self.queue.record_job(self.delivery.id, JobStatus::Admitted { attempt, since });
        Ok(self.run_with_lease(async { JobOutcome::of(self.dispatch.llm.run_job(job).await) }, &sent).await)
    }

    /// Posts the job, whoever it belongs to: what tenants may ask is said of models.
    async fn post(&self, url: &Url) -> Result<AttemptEnd, ApiError> {
        let standing = self.tenant.as_ref().map(|tenant| tenant.settings.state);
        if standing.is_ok_and(|standing| standing == TenantState::Disabled) {
            return Err(ApiError::TenantDisabled);
        }
        let attempt = self.delivery.attempt;
        let since = self.queue.now();
        self.queue.record_job(self.delivery.id, JobStatus::Posted { to: url.to_string(), attempt, since });
        let name = &self.queue.descriptor().name;
        let posting = self.dispatch.poster.post(url, name, &self.delivery);
        Ok(self.run_with_lease(posting, &AtomicBool::new(true)).await)
    }

    /// Makes the request, and what says whether it was sent.
    fn job(&self, target: Route) -> Result<(Job, Arc<AtomicBool>), ApiError> {
        let tenant = self.tenant.clone()?;
        let queue = self.queue.clone();
        let id = self.delivery.id;
        let attempt = self.delivery.attempt;
        let sent = Arc::new(AtomicBool::new(false));
        let told = sent.clone();
        let job = Job {
            target,
            tenant,
            id: HeaderValue::try_from(id.to_string()).map_err(|_| ApiError::Internal)?,
            body: self.delivery.payload.body.clone(),
            accepted_at: self.dispatch.gate.now(),
            on_dispatch: Box::new(move |node, path| {
                told.store(true, Ordering::Relaxed);
                let node = node.to_owned();
                let path = path.to_owned();
                let since = queue.now();
                queue.record_job(id, JobStatus::Sent { node, path, attempt, since });
            }),
        };
        Ok((job, sent))
    }

    /// Waits for what becomes of the job, and keeps its lease.
    async fn run_with_lease(
        &self,
        running: impl Future<Output = JobOutcome>,
        sent: &AtomicBool,
    ) -> AttemptEnd {
        let mut extending = interval_at(Instant::now() + self.lease / 3, self.lease / 3);
        let mut running = pin!(running);
        let mut phase = self.phase.clone();
        let ends = |phase: &StopPhase| match phase {
            StopPhase::Serving => false,
            StopPhase::Stopping => !sent.load(Ordering::Relaxed),
            StopPhase::Aborting => true,
        };
        let mut ending = pin!(async { drop(phase.wait_for(ends).await) });
        loop {
            tokio::select! {
                outcome = &mut running => return AttemptEnd::Answered(outcome),
                () = &mut ending => return AttemptEnd::Stopping,
                _ = extending.tick() => if self.extend().await.is_err() { return AttemptEnd::LeaseLost },
            }
        }
    }

    /// Keeps the lease while a job is settled, which may have to wait for the disk.
    async fn leased(&self, settling: impl Future<Output = ()>) {
        let mut extending = interval_at(Instant::now() + self.lease / 3, self.lease / 3);
        let mut settling = pin!(settling);
        loop {
            tokio::select! {
                () = &mut settling => return,
                // Whose it is now, it is told when it is settled.
                _ = extending.tick() => drop(self.extend().await),
            }
        }
    }

    /// Extends the lease; an error if it is lost.
    async fn extend(&self) -> Result<(), Rejection> {
        let Delivery { id, receipt, .. } = &self.delivery;
        let extended = self.queue.extend(&[(receipt.clone(), self.lease)]).await;
        match extended.into_iter().next() {
            Some(Err(why)) if is_lost(&why) => return Err(why),
            Some(Err(why)) => tracing::warn!(target: "evenkeel", %id, %why, "lease not extended"),
            Some(Ok(())) | None => {}
        }
        Ok(())
    }

    async fn settle(&self, outcome: JobOutcome) {
        let Delivery { id, attempt, .. } = &self.delivery;
        let redrive = self.queue.descriptor().settings.redrive;
        match outcome {
            JobOutcome::Done(answer) => {
                if self.store_result(ResultState::Done, answer).await {
                    self.ack().await;
                }
            }
            JobOutcome::Failed(answer) => {
                tracing::warn!(target: "evenkeel", %id, why = answer.words(), "job failed for good");
                if !self.store_result(ResultState::Failed, answer).await {
                    return;
                }
                match redrive {
                    Some(_) => {
                        self.log_ack_errors(self.queue.dead_letter(from_ref(&self.delivery.receipt)).await)
                    }
                    None => self.ack().await,
                }
            }
            JobOutcome::Retry(answer, after) => {
                let why = answer.words();
                tracing::info!(target: "evenkeel", %id, attempt, why, "job failed");
                let is_last = redrive.is_some_and(|redrive| redrive.attempts_max <= *attempt);
                if is_last && !self.store_result(ResultState::Failed, answer).await {
                    return;
                }
                let at = self.queue.now();
                self.queue.record_job(*id, JobStatus::Failed { attempt: *attempt, reason: why, at });
                let backoff_min = Duration::from_millis(self.queue.descriptor().settings.backoff_ms_min);
                let after = after.map(|after| after.max(backoff_min.min(RETRY_AFTER_MIN)));
                self.log_ack_errors(self.queue.nack(&[(self.delivery.receipt.clone(), after)]).await);
            }
            JobOutcome::Deferred(why, after) => {
                tracing::debug!(target: "evenkeel", %id, why, "job deferred");
                self.defer(after).await;
                let at = self.queue.now();
                self.queue.record_job(*id, JobStatus::Failed { attempt: *attempt, reason: why, at });
            }
        }
    }

    /// Keeps the result on disk; a job whose result is not kept when the gateway stops is run again.
    ///
    /// Until then it is not: what a job did, it would do twice. Nor are others begun in its place.
    async fn store_result(&self, state: ResultState, answer: JobReply) -> bool {
        let Delivery { id, attempt, .. } = &self.delivery;
        let JobReply { status, content_type, body } = answer;
        let finished_at_ms = self.queue.now().0;
        let head = ResultHead { state, status, content_type, attempt: *attempt, finished_at_ms };
        let result = JobResult { head, body };
        let ttl = self.settings.result_ttl();
        let max = self.settings.results_max as usize;
        let mut phase = self.phase.clone();
        loop {
            let Err(why) = self.queue.put_result(*id, &result, ttl, max).await else { return true };
            tracing::error!(target: "evenkeel", %id, %why, "result of a job not kept, trying again");
            let stops = phase.wait_for(|phase| *phase != StopPhase::Serving);
            if tokio::time::timeout(UNKEPT_AFTER, stops).await.is_ok() {
                self.defer(Duration::ZERO).await;
                return false;
            }
        }
    }

    async fn ack(&self) {
        self.log_ack_errors(self.queue.ack(from_ref(&self.delivery.receipt)).await);
        self.queue.forget_job(self.delivery.id);
    }

    async fn defer(&self, after: Duration) {
        self.queue.forget_job(self.delivery.id);
        self.log_ack_errors(self.queue.defer(&[(self.delivery.receipt.clone(), after)]).await);
    }

    /// Says so if a job could not be settled: it is delivered once more when its lease ends.
    fn log_ack_errors(&self, answers: Vec<Result<(), Rejection>>) {
        for why in answers.into_iter().filter_map(Result::err) {
            tracing::warn!(target: "evenkeel", id = %self.delivery.id, %why, "job not settled, it may run again");
        }
    }
}

/// Whether a job is somebody else's from now on, or nobody's.
fn is_lost(why: &Rejection) -> bool {
    matches!(
        why,
        Rejection::MessageGone | Rejection::StaleReceipt | Rejection::NotInFlight | Rejection::QueueDeleted
    )
}
