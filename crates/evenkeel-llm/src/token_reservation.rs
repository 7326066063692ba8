//! Reservation of a request's tokens in its tenant's limit of tokens per minute: the estimate is reserved on arrival
//! and corrected to the actual usage at the end.
//!
//! Guarantees: a reservation is settled exactly once, however the request ends; a request without a first byte costs
//! nothing.

use std::sync::Arc;

use evenkeel_pipeline::ModelId;
use evenkeel_policy::time::Instant;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use evenkeel_telemetry::{RejectReason, RequestName, Step};

use crate::api::LlmApi;
use crate::request::LlmRequest;
use crate::trace::RequestTrace;
use crate::usage::Usage;

/// Reserved tokens of a request. Dropping the reservation settles it with the usage known by then.
pub(crate) struct TokenReservation {
    llm: Arc<LlmApi>,
    tenant: Arc<Tenant>,
    model: ModelId,
    estimate: Usage,
    usage: Usage,
    reserved_at: Instant,
    /// Ends with the response body.
    pub(crate) trace: RequestTrace,
}

impl TokenReservation {
    /// Reserves the estimated tokens of a request, unless the tenant's rate limit is reached.
    pub(crate) fn reserve(
        llm: &Arc<LlmApi>,
        tenant: &Arc<Tenant>,
        model: ModelId,
        request: &LlmRequest,
        name: RequestName<'_>,
    ) -> Result<Self, ApiError> {
        let estimate = llm.forecast.lock().usage(tenant.id, model, request);
        let reserved_at = llm.scheduler.now();
        if let Err(error) = tenant.take_tokens(estimate.tokens(), reserved_at) {
            let step = Step::Rejected { reason: RejectReason::RateLimited };
            llm.scheduler.record_outside(llm.scheduler.outside_id(), tenant.id, name, step);
            return Err(error);
        }
        Ok(Self {
            llm: llm.clone(),
            tenant: tenant.clone(),
            model,
            estimate,
            usage: Usage::default(),
            reserved_at,
            trace: RequestTrace::default(),
        })
    }

    pub(crate) fn model(&self) -> ModelId {
        self.model
    }

    pub(crate) fn estimate(&self) -> Usage {
        self.estimate
    }

    /// Returns the usage known so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn set_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// Updates the tenant's forecast with the usage of a complete response.
    pub(crate) fn record_actual(&self) {
        self.llm.forecast.lock().record(self.tenant.id, self.model, self.usage);
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        self.trace.set_usage(self.usage);
        if self.tenant.settings.tpm.is_some() {
            let estimate = self.estimate.tokens();
            let actual = self.usage.tokens();
            self.tenant.settle_tokens(estimate, actual, self.reserved_at, self.llm.scheduler.now());
        }
    }
}
