//! What a request takes of its tenant's tokens per minute, from the guess at its arrival to the truth at its end.
//!
//! Bound: what was taken is settled exactly once, however the request ends; one that no node began to answer costs
//! nothing.

use std::sync::Arc;

use evenkeel_pipeline::ModelId;
use evenkeel_policy::time::Instant;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;

use crate::api::LlmApi;
use crate::request::LlmRequest;
use crate::trace::RequestTrace;
use crate::usage::Usage;

/// A request's open bill; dropped, it is settled with what is known.
pub(crate) struct TokenReservation {
    llm: Arc<LlmApi>,
    tenant: Arc<Tenant>,
    model: ModelId,
    guess: Usage,
    so_far: Usage,
    taken_at: Instant,
    /// Goes on as long as the answer does.
    pub(crate) trace: RequestTrace,
}

impl TokenReservation {
    /// Takes what the request will probably need, if the tenant's minute has room for it.
    pub(crate) fn reserve(
        llm: &Arc<LlmApi>,
        tenant: &Arc<Tenant>,
        model: ModelId,
        ask: &LlmRequest,
    ) -> Result<Self, ApiError> {
        let guess = llm.forecast.lock().usage(tenant.id, model, ask);
        let taken_at = llm.walk.now();
        if let Err(refusal) = tenant.take_tokens(guess.tokens(), taken_at) {
            llm.walk.tell_rate_limited(tenant.id);
            return Err(refusal);
        }
        let llm = llm.clone();
        let tenant = tenant.clone();
        let so_far = Usage::default();
        Ok(Self { llm, tenant, model, guess, so_far, taken_at, trace: RequestTrace::default() })
    }

    /// What the request was thought to take.
    pub(crate) fn estimate(&self) -> Usage {
        self.guess
    }

    /// What it is known to have taken.
    pub(crate) fn so_far(&self) -> Usage {
        self.so_far
    }

    /// Notes what it has taken.
    pub(crate) fn note(&mut self, so_far: Usage) {
        self.so_far = so_far;
    }

    /// Learns from a request that was answered to its end.
    pub(crate) fn record_actual(&self) {
        self.llm.forecast.lock().learn(self.tenant.id, self.model, self.so_far);
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        self.trace.used(self.so_far);
        if self.tenant.settings.tpm.is_some() {
            let guess = self.guess.tokens();
            let truly = self.so_far.tokens();
            self.tenant.settle_tokens(guess, truly, self.taken_at, self.llm.walk.now());
        }
    }
}
