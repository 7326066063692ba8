//! Reservation of a request's tokens in its tenant's limit of tokens per minute, and of tokens and money in its budgets:
//! the estimate is reserved on arrival and corrected to the actual usage at the end.
//!
//! Guarantees: a reservation is settled exactly once, however the request ends; a request without a first byte uses
//! nothing.

use std::sync::Arc;

use evenkeel_pipeline::ModelId;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::Instant;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::budget::Spending;
use evenkeel_server::tenant::Tenant;
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_server::usage_ledger::UsageRow;
use evenkeel_telemetry::{RejectReason, RequestName, Step};

use crate::api::LlmApi;
use crate::request::LlmRequest;
use crate::trace::RequestTrace;
use crate::usage::{GeneratedText, Usage};

/// Reserved tokens of a request. Dropping the reservation settles it with the usage known by then.
pub(crate) struct TokenReservation {
    llm: Arc<LlmApi>,
    tenant: Arc<Tenant>,
    model: ModelId,
    estimate: Usage,
    /// The part of the estimate that is reserved in the tenant's budgets.
    budgeted: Spending,
    /// The request determines its output, so that the response's text does not.
    has_exact_output: bool,
    /// Average length of the model's tokens.
    token_bytes: f64,
    usage: Usage,
    /// A node has responded, so the usage is recorded.
    is_served: bool,
    reserved_at: Instant,
    /// Ends with the response body.
    pub(crate) trace: RequestTrace,
}

impl TokenReservation {
    /// Reserves the estimated tokens of a request, unless the tenant's rate limit or one of its budgets is reached.
    pub(crate) fn reserve(
        llm: &Arc<LlmApi>,
        tenant: &Arc<Tenant>,
        model: ModelId,
        request: &LlmRequest,
        name: RequestName<'_>,
    ) -> Result<Self, ApiError> {
        let forecast = llm.forecast.lock();
        let estimate = forecast.usage(tenant.id, model, request);
        let token_bytes = forecast.token_bytes(model);
        drop(forecast);
        let reject = |reason, error| {
            let step = Step::Rejected { reason };
            llm.scheduler.record_outside(llm.scheduler.outside_id(), tenant.id, name, step);
            error
        };
        // The request may name an alias, or have fallen back.
        let served_model = llm.nodes.model_name(model).unwrap_or_default();
        let budgeted = reserve_budget(llm, tenant, &served_model, estimate)
            .map_err(|error| reject(RejectReason::BudgetReached, error))?;
        let reserved_at = llm.scheduler.now();
        tenant.take_tokens(estimate.tokens(), reserved_at).map_err(|error| {
            llm.ledger.release(&tenant.settings.name, budgeted);
            reject(RejectReason::RateLimited, error)
        })?;
        Ok(Self {
            llm: llm.clone(),
            tenant: tenant.clone(),
            model,
            estimate,
            budgeted,
            has_exact_output: request.output_tokens_exact.is_some() || request.output_tokens_max == Some(0),
            token_bytes,
            usage: Usage::default(),
            is_served: false,
            reserved_at,
            trace: RequestTrace::default(),
        })
    }

    /// Returns the cost of the estimated usage.
    pub(crate) fn estimated_cost(&self) -> Cost {
        self.estimate.cost(self.llm.cached_cost)
    }

    /// Returns the cost of the estimated prompt, which an attempt uses even if it fails.
    pub(crate) fn input_cost(&self) -> Cost {
        Usage { output: 0, ..self.estimate }.cost(self.llm.cached_cost)
    }

    /// Returns the cost of the usage known so far.
    pub(crate) fn cost(&self) -> Cost {
        self.usage.cost(self.llm.cached_cost)
    }

    /// Updates the usage of a response that is being received. Until the node reports it, the prompt is as estimated.
    pub(crate) fn update(&mut self, reported: Option<Usage>, text: GeneratedText) {
        self.is_served = true;
        let known = reported.unwrap_or(Usage { output: 0, ..self.estimate });
        // Some engines report the output only at the end.
        let output = if known.output > 0 { known.output } else { text.tokens(self.token_bytes) };
        self.usage = Usage { output, ..known };
    }

    /// Sets the usage of a complete response, and updates the forecasts. `text` is `None` if the body was not read.
    pub(crate) fn finish(&mut self, reported: Option<Usage>, text: Option<GeneratedText>) {
        self.is_served = true;
        let reported_output = reported.map(|usage| usage.output).filter(|output| *output > 0);
        let estimated = match text {
            Some(text) if !self.has_exact_output => text.tokens(self.token_bytes),
            Some(_) | None => self.estimate.output,
        };
        let output = reported_output.unwrap_or(estimated);
        self.usage = Usage { output, ..reported.unwrap_or(self.estimate) };
        let Some(text) = text.filter(|_| !self.has_exact_output) else { return };
        let mut forecast = self.llm.forecast.lock();
        forecast.record(self.tenant.id, self.model, self.usage);
        if let Some(tokens) = reported_output.or(text.single_token_deltas()) {
            forecast.record_text(self.model, text.bytes, tokens);
        }
    }
}

/// Reserves the estimate in the budgets of the tenant; returns what it reserved.
fn reserve_budget(llm: &LlmApi, tenant: &Tenant, model: &str, estimate: Usage) -> Result<Spending, ApiError> {
    let budgets = &tenant.settings.budgets;
    if budgets.is_empty() {
        return Ok(Spending::default());
    }
    if budgets.has_money() {
        llm.prices.warn_if_unpriced(model, &tenant.settings.name);
    }
    let estimate = Spending { tokens: estimate.tokens(), money: llm.prices.cost(model, estimate) };
    let reserved = llm.ledger.reserve(&tenant.settings.name, budgets, estimate, UnixSeconds::now());
    reserved.map(|()| estimate).map_err(|reached| ApiError::BudgetReached(Box::new(reached)))
}

impl TokenReservation {
    /// Records the usage for the tenant's budgets and statement.
    fn record_usage(&self) {
        let model = self.llm.nodes.model_name(self.model).unwrap_or_default();
        let Usage { input, cached, output } = self.usage;
        let row = UsageRow {
            requests: 1,
            input_tokens: input,
            cached_tokens: cached,
            output_tokens: output,
            cost: self.llm.prices.cost(&model, self.usage),
        };
        self.llm.ledger.record(&self.tenant.settings.name, &model, row, UnixSeconds::now());
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        self.trace.set_usage(self.usage);
        if self.is_served {
            self.record_usage();
        }
        if self.budgeted != Spending::default() {
            self.llm.ledger.release(&self.tenant.settings.name, self.budgeted);
        }
        if self.tenant.settings.tpm.is_some() {
            let estimate = self.estimate.tokens();
            let actual = self.usage.tokens();
            self.tenant.settle_tokens(estimate, actual, self.reserved_at, self.llm.scheduler.now());
        }
    }
}
