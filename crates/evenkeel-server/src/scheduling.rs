//! The parts of scheduling that APIs share: the tenants' shares, and the responses to rejected requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_pipeline::{AttemptFailure, RegistryError, Rejection, TenantRule};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_scheduler::RequestScheduler;
use parking_lot::RwLock;

use crate::api_error::ApiError;
use crate::tenant::Tenant;

/// Delay before an overloaded node without `Retry-After` is retried.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// The tenants that a scheduler knows.
#[derive(Debug, Default)]
pub struct ScheduledTenants(RwLock<BTreeMap<TenantId, Arc<Tenant>>>);

impl ScheduledTenants {
    /// Replaces all tenants: sets their weights and concurrency limits. Returns the ids of those that are gone.
    pub fn replace(
        &self,
        scheduler: &RequestScheduler,
        tenants: &[Arc<Tenant>],
    ) -> Result<Vec<TenantId>, RegistryError> {
        let mut known = self.0.write();
        let next: BTreeMap<_, _> = tenants.iter().map(|tenant| (tenant.id, tenant.clone())).collect();
        let removed: Vec<_> = known.keys().filter(|id| !next.contains_key(id)).copied().collect();
        for id in &removed {
            let rule = TenantRule::default();
            scheduler.update(|pipeline, now| pipeline.set_tenant(now, *id, rule))?;
        }
        for (id, tenant) in &next {
            let concurrency_max = tenant.settings.concurrency_max.unwrap_or(u32::MAX);
            let rule = TenantRule { weight: tenant.settings.weight, concurrency_max };
            scheduler.update(|pipeline, now| pipeline.set_tenant(now, *id, rule))?;
            scheduler.observer().metrics().name_tenant(*id, &tenant.settings.name);
        }
        *known = next;
        Ok(removed)
    }

    pub fn get(&self, id: TenantId) -> Option<Arc<Tenant>> {
        self.0.read().get(&id).cloned()
    }
}

/// Maps a rejection to an API error. `waiting` requests are queued; `no_node` is the error if no node could serve it.
pub fn rejection_error(rejection: &Rejection, waiting: usize, no_node: ApiError) -> ApiError {
    let full =
        |queue_size: usize, retry_after| ApiError::QueueFull { queue_size: queue_size as u64, retry_after };
    match *rejection {
        Rejection::QueueFull { current_size, retry_after, .. }
        | Rejection::Evicted { current_size, retry_after, .. } => full(current_size, retry_after),
        Rejection::WouldMissDeadline { retry_after } => full(waiting, retry_after),
        Rejection::Outage { retry_after } => {
            ApiError::Unavailable { message: "no node can be reached".to_owned(), retry_after }
        }
        Rejection::WaitTimeout { .. } => ApiError::WaitTimeout,
        Rejection::NoNode { .. } => no_node,
        // IDs of tenants and models stay within the pipeline's limits; a cancelled request gets no response.
        Rejection::UnknownTenant { .. } | Rejection::UnknownModel { .. } | Rejection::Cancelled => {
            ApiError::Internal
        }
        Rejection::Failed { failure, .. } => match failure {
            AttemptFailure::Unreachable | AttemptFailure::BadResponse => ApiError::Upstream,
            AttemptFailure::TimedOut => ApiError::UpstreamTimeout,
            AttemptFailure::Busy { retry_after } => full(waiting, retry_after.unwrap_or(BUSY_RETRY)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_pipeline::{ModelId, NoRetryReason};

    #[test]
    fn every_rejection_maps_to_a_status() {
        let failed =
            |failure| Rejection::Failed { attempts: 1, failure, no_retry: NoRetryReason::NoOtherNode };
        let waited = Duration::ZERO;
        let timeout = Duration::ZERO;
        let status = |rejection| {
            rejection_error(&rejection, 3, ApiError::NoModel { model: "m".to_owned() }).status().as_u16()
        };
        assert_eq!(status(Rejection::QueueFull { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::Evicted { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::WouldMissDeadline { retry_after: waited }), 503);
        assert_eq!(status(Rejection::Outage { retry_after: waited }), 503);
        assert_eq!(status(Rejection::WaitTimeout { waited, timeout }), 504);
        assert_eq!(status(Rejection::NoNode { model: ModelId(0) }), 404);
        assert_eq!(status(failed(AttemptFailure::Unreachable)), 502);
        assert_eq!(status(failed(AttemptFailure::BadResponse)), 502);
        assert_eq!(status(failed(AttemptFailure::TimedOut)), 504);
        assert_eq!(status(failed(AttemptFailure::Busy { retry_after: None })), 503);
    }
}
