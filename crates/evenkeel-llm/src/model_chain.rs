//! The models that may serve one request: the one that it names, then the fallbacks of that.
//!
//! Guarantees: a request falls back only before the first byte of a response, and only to models that the tenant may use.
//! After a failed attempt, trying another model spends a retry from the budget, like any other retry.

use core::mem;
use std::sync::Arc;

use evenkeel_pipeline::{
    AttemptFailure, ModelId, NoRetryReason, OptimizedLoadManager, OutageRule, Rejection,
};
use evenkeel_policy::id::TenantId;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use evenkeel_telemetry::FallbackReason;

use crate::api::LlmApi;
use crate::model_table::FallbackOn;
use crate::request::LlmRequest;

/// A model that may serve a request.
#[derive(Clone, Debug)]
pub(crate) struct ChainModel {
    pub(crate) id: ModelId,
    /// The model's name, if the request names another; it replaces `model` in the body.
    pub(crate) renamed: Option<Arc<str>>,
}

/// The models that may serve one request, in the order in which they are tried.
pub(crate) struct ModelChain {
    models: Vec<ChainModel>,
    current: usize,
    fallback_on: FallbackOn,
    /// Reason why the current model is tried, unless it is the one that the request names.
    fallback: Option<FallbackReason>,
    /// No later model had a usable node when those of the current model could not be reached.
    is_held: bool,
}

impl ModelChain {
    /// Chooses the models for a request, and begins with the first that has a usable node; `None` if no node serves any.
    ///
    /// If no model has a usable node, the first one is chosen, and the pipeline queues or rejects the request. With
    /// `extra_path`, a path that nodes must list in `extra_paths`, models with a node that does not list it are left out.
    pub(crate) fn select(
        llm: &LlmApi,
        tenant: &Tenant,
        request: &LlmRequest,
        extra_path: Option<&str>,
    ) -> Result<Option<Self>, ApiError> {
        let accepts = |model: &str| extra_path.is_none_or(|path| llm.nodes.all_accept(model, path));
        let table = llm.model_table();
        let Some(route) = table.route(&request.model) else {
            tenant.check_model(&request.model)?;
            if !accepts(&request.model) {
                return Err(ApiError::NoRoute);
            }
            let model = llm.nodes.model(&request.model).map(|id| ChainModel { id, renamed: None });
            return Ok(model.map(|model| Self::new(vec![model], FallbackOn::Outage)));
        };
        let mut allowed = route.allowed(&request.model, tenant);
        if allowed.is_empty() {
            return Err(ApiError::ModelForbidden { model: request.model.clone() });
        }
        let first = llm.nodes.model(&allowed[0].model);
        allowed.retain(|candidate| accepts(&candidate.model));
        if allowed.is_empty() {
            return Err(ApiError::NoRoute);
        }
        let served = allowed.into_iter().filter_map(|candidate| {
            let renamed = (*candidate.model != *request.model).then(|| candidate.model.clone());
            Some(ChainModel { id: llm.nodes.model(&candidate.model)?, renamed })
        });
        let mut chain = Self::new(served.collect(), route.fallback_on);
        if chain.models.len() > 1 {
            chain.current = llm.scheduler.inspect(|pipeline| chain.usable_from(0, pipeline)).unwrap_or(0);
        }
        let is_other = chain.models.get(chain.current).is_some_and(|model| first != Some(model.id));
        chain.fallback = is_other.then_some(FallbackReason::NoNode);
        Ok(Some(chain).filter(|chain| !chain.models.is_empty()))
    }

    fn new(models: Vec<ChainModel>, fallback_on: FallbackOn) -> Self {
        Self { models, current: 0, fallback_on, fallback: None, is_held: false }
    }

    /// Returns the model to try.
    pub(crate) fn model(&self) -> &ChainModel {
        &self.models[self.current]
    }

    /// Returns the reason why the current model is tried, unless it is the one that the request names.
    pub(crate) fn fallback(&self) -> Option<FallbackReason> {
        self.fallback
    }

    /// Returns whether the request waits for unreachable nodes of the current model: only if no fallback has a usable
    /// node.
    pub(crate) fn outage_rule(&self) -> OutageRule {
        let is_last = self.models.len() <= self.current + 1;
        if is_last || self.is_held { OutageRule::Hold } else { OutageRule::Reject }
    }

    /// Moves on to the next model with a usable node after the current one rejected the request; `false` if the
    /// rejection is final.
    ///
    /// If no node of any model can be reached, the request begins to wait for the current one.
    pub(crate) fn fall_back(&mut self, llm: &LlmApi, tenant: TenantId, rejection: &Rejection) -> bool {
        let Some(reason) = fallback_reason(rejection).filter(|reason| self.allows(*reason)) else {
            return false;
        };
        let from = self.current + 1;
        if self.models.len() <= from {
            return false;
        }
        let Some(next) = llm.scheduler.inspect(|pipeline| self.usable_from(from, pipeline)) else {
            let is_unreachable = matches!(rejection, Rejection::Outage { .. });
            return is_unreachable && !mem::replace(&mut self.is_held, true);
        };
        let spend = |pipeline: &mut OptimizedLoadManager, now| pipeline.spend_retry(now, tenant);
        if reason == FallbackReason::Failed && !llm.scheduler.update(spend) {
            return false;
        }
        self.current = next;
        self.fallback = Some(reason);
        self.is_held = false;
        true
    }

    fn allows(&self, reason: FallbackReason) -> bool {
        match reason {
            FallbackReason::NoNode | FallbackReason::Failed => true,
            FallbackReason::Capacity => self.fallback_on == FallbackOn::Capacity,
        }
    }

    /// Returns the first model with a usable node, from this index on.
    fn usable_from(&self, from: usize, pipeline: &OptimizedLoadManager) -> Option<usize> {
        (from..self.models.len()).find(|index| pipeline.has_usable_node(self.models[*index].id))
    }
}

/// Returns the reason for which another model may be tried after a rejection, if there is one.
fn fallback_reason(rejection: &Rejection) -> Option<FallbackReason> {
    match rejection {
        Rejection::NoNode { .. } | Rejection::Outage { .. } => Some(FallbackReason::NoNode),
        Rejection::QueueFull { .. } | Rejection::Evicted { .. } | Rejection::WouldMissDeadline { .. } => {
            Some(FallbackReason::Capacity)
        }
        Rejection::Failed {
            no_retry: NoRetryReason::BudgetSpent | NoRetryReason::DeadlinePassed | NoRetryReason::RefusedTwice,
            ..
        } => None,
        Rejection::Failed { failure: AttemptFailure::Busy { .. }, .. } => Some(FallbackReason::Capacity),
        Rejection::Failed { .. } => Some(FallbackReason::Failed),
        // Its time is used up.
        Rejection::WaitTimeout { .. } => None,
        Rejection::UnknownTenant { .. } | Rejection::UnknownModel { .. } | Rejection::Cancelled => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_request_without_time_or_retries_left_does_not_fall_back() {
        let failed = |failure, no_retry| Rejection::Failed { attempts: 1, failure, no_retry };
        let broken = AttemptFailure::BadResponse;
        let busy = AttemptFailure::Busy { retry_after: None };
        let time = Duration::ZERO;
        for (rejection, expected) in [
            (Rejection::NoNode { model: ModelId(0) }, Some(FallbackReason::NoNode)),
            (
                Rejection::QueueFull { current_size: 1, max_size: 1, retry_after: time },
                Some(FallbackReason::Capacity),
            ),
            (Rejection::WouldMissDeadline { retry_after: time }, Some(FallbackReason::Capacity)),
            (Rejection::WaitTimeout { waited: time, timeout: time }, None),
            (failed(broken, NoRetryReason::NoOtherNode), Some(FallbackReason::Failed)),
            (failed(broken, NoRetryReason::AttemptsUsed), Some(FallbackReason::Failed)),
            (failed(broken, NoRetryReason::BudgetSpent), None),
            (failed(broken, NoRetryReason::DeadlinePassed), None),
            (failed(busy, NoRetryReason::NoOtherNode), Some(FallbackReason::Capacity)),
            (failed(busy, NoRetryReason::RefusedTwice), None),
            (Rejection::Outage { retry_after: time }, Some(FallbackReason::NoNode)),
        ] {
            assert_eq!(fallback_reason(&rejection), expected, "{rejection}");
        }
    }
}
