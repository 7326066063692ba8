//! Admit: take a request, slow it, or turn it away at once.
//!
//! Bound: no more than `max_waiting` requests with somebody behind them ever wait for one model, delayed ones included; a tenant below its share
//! of the places is turned away only when nobody is above theirs and the queue is full.

use evenkeel_policy::backpressure::{
    Admission, BackpressureController, BackpressureDecision, FairAdmission, TooManyTenants, WaiterState,
    admit_by_deadline, retry_after,
};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

use crate::OptimizedLoadManager;
use crate::accept::{Arrival, ModelQueueId, Priority, RequestId, RequestState};
use crate::options::AdmitRule;
use crate::rejection::Rejection;

impl OptimizedLoadManager {
    /// Decides on a request that has just arrived.
    pub(crate) fn admit(&mut self, request: RequestId) {
        let Some(arrival) = self.requests.get(request).map(|ticket| ticket.arrival) else { return };
        match self.decide(&arrival) {
            Ok(delay) => self.wait(request, delay),
            Err(rejection) => self.reject(request, rejection),
        }
    }

    /// Takes a place for the arrival and says how long it is slowed, or says why not.
    fn decide(&mut self, arrival: &Arrival) -> Result<Duration, Rejection> {
        let Arrival { tenant, model, .. } = *arrival;
        let limits = &self.options.limits;
        if limits.tenants_max <= tenant.0 {
            return Err(Rejection::UnknownTenant { tenant });
        }
        if limits.models_max <= model.0 {
            return Err(Rejection::UnknownModel { model });
        }
        if !self.nodes.serves(model) {
            return Err(Rejection::NoNode { model });
        }
        let line = arrival.line();
        let expected = self.wait_queue.expected_wait(line, tenant);
        let timeout = arrival.deadline.unwrap_or(self.options.load.wait_queue.default_timeout);
        // In the background it is known that others go first, and no wait is too long.
        if line.urgency == Priority::Interactive
            && let Err(late) = admit_by_deadline(expected, timeout)
        {
            return Err(Rejection::WouldMissDeadline { retry_after: late.retry_after });
        }
        let rested_at = self.nodes.cooldown_ends_at(self.now, model, &[]);
        if self.now < rested_at && self.now + timeout <= rested_at {
            return Err(Rejection::WouldMissDeadline {
                retry_after: retry_after(Some(rested_at.since(self.now))),
            });
        }
        let admission =
            self.wait_queue.admit(self.now, line, tenant).map_err(|_| Rejection::UnknownTenant { tenant })?;
        if let Some(victim) = admission.evict {
            self.evict(line, victim);
        }
        if !admission.decision.accept {
            let (current_size, max_size) = self.places(line);
            return Err(Rejection::QueueFull { current_size, max_size, retry_after: retry_after(expected) });
        }
        Ok(admission.decision.delay)
    }

    /// Puts a request that has its place where it waits.
    fn wait(&mut self, request: RequestId, delay: Duration) {
        let now = self.now;
        let Some(ticket) = self.requests.get_mut(request) else { return };
        if delay > Duration::ZERO {
            ticket.stage = RequestState::Delayed { enters_at: now + delay };
        }
        self.wait_queue.add_waiting(request, ticket);
        if delay == Duration::ZERO {
            self.enter(request);
        }
    }

    /// Turns the tenant's newest waiter away; its place is already given to the arrival.
    fn evict(&mut self, line: ModelQueueId, victim: TenantId) {
        let Some(request) = self.wait_queue.newest(line, victim) else { return };
        self.leave_queue(request);
        let (current_size, max_size) = self.places(line);
        let retry_after = retry_after(self.wait_queue.expected_wait(line, victim));
        self.reject(request, Rejection::Evicted { current_size, max_size, retry_after });
    }

    /// How many wait in a line, and how many may.
    fn places(&self, line: ModelQueueId) -> (usize, usize) {
        (self.wait_queue.waiting(line), self.options.load.wait_queue.max_waiting)
    }
}

/// The waiting places of one model, and who holds them.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionControl {
    rule: AdmitRule,
    controller: BackpressureController,
    holders: FairAdmission,
}

impl AdmissionControl {
    pub(crate) fn new(rule: AdmitRule, controller: BackpressureController, tenants_max: u32) -> Self {
        let holders = FairAdmission::new(controller.clone(), tenants_max);
        Self { rule, controller, holders }
    }

    /// Decides on an arrival and keeps the books of it.
    pub(crate) fn admit(&mut self, tenant: TenantId, weight: Weight) -> Result<Admission, TooManyTenants> {
        match self.rule {
            AdmitRule::ByShare => self.holders.admit(tenant, weight),
            AdmitRule::ByLoad => {
                let decision = self.pressure();
                if decision.accept {
                    self.holders.join(tenant, weight)?;
                }
                Ok(Admission { decision, evict: None })
            }
        }
    }

    /// Takes in a request that is let wait however many do: whoever sends such limits how many there are.
    pub(crate) fn admit_background(
        &mut self,
        tenant: TenantId,
        weight: Weight,
    ) -> Result<Admission, TooManyTenants> {
        self.holders.join(tenant, weight)?;
        let decision = BackpressureDecision { accept: true, delay: Duration::ZERO, ..self.pressure() };
        Ok(Admission { decision, evict: None })
    }

    /// Takes a place for a request that comes back from a node; `false` when there is none.
    pub(crate) fn readmit(&mut self, tenant: TenantId, weight: Weight) -> bool {
        self.holders.waiting() < self.controller.config().max_queue_size
            && self.holders.join(tenant, weight).is_ok()
    }

    /// Gives a place back.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        self.holders.leave(tenant, WaiterState::Queued);
    }

    pub(crate) fn update_weight(&mut self, tenant: TenantId, weight: Weight) {
        self.holders.update_weight(tenant, weight);
    }

    pub(crate) fn weight_share(&self, tenant: TenantId, weight: Weight) -> f64 {
        self.holders.weight_share(tenant, weight)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.holders.waiting()
    }

    pub(crate) fn waiting_of(&self, tenant: TenantId) -> usize {
        self.holders.waiting_of(tenant)
    }

    /// How loaded the queue is, whoever asks.
    pub(crate) fn pressure(&self) -> BackpressureDecision {
        self.controller.decide(self.holders.waiting())
    }
}
