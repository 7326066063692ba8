//! Deadline admission: rejects at once a request that would be served too late.
//!
//! Guarantees: a tenant with nothing queued is never rejected here, and no request is rejected while the pool's service
//! rate is unknown.

use crate::cost::Cost;
use crate::time::Duration;

const RETRY_AFTER_SECS_MIN: u64 = 1;
const RETRY_AFTER_SECS_MAX: u64 = 60;

/// Estimates how long a tenant's next request waits behind the work the tenant has queued.
///
/// `pool_rate` is the pool's measured service rate in units per second, `share` the tenant's fraction of the waiting
/// tenants' weights (0 to 1). The tenant's own service rate would be misleading: it is close to zero for a tenant that
/// rarely sends. Returns `None` while the pool's rate is unknown.
pub fn expected_wait(queued: Cost, pool_rate: f64, share: f64) -> Option<Duration> {
    let rate = pool_rate * share;
    if !rate.is_finite() || rate <= 0.0 {
        return None;
    }
    let secs = queued.0 as f64 / rate;
    Some(Duration::try_from_secs_f64(secs).unwrap_or(Duration::MAX))
}

/// Rejects a request whose expected wait exceeds the time remaining until its deadline.
pub fn admit_by_deadline(expected: Option<Duration>, remaining: Duration) -> Result<(), WouldMissDeadline> {
    match expected {
        Some(wait) if remaining < wait => Err(WouldMissDeadline { retry_after: retry_after(expected) }),
        _ => Ok(()),
    }
}

/// Returns the `Retry-After` value: the expected wait in whole seconds, rounded up, 1 to 60.
pub fn retry_after(expected: Option<Duration>) -> Duration {
    let wait = expected.unwrap_or(Duration::ZERO);
    let secs = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    Duration::from_secs(secs.clamp(RETRY_AFTER_SECS_MIN, RETRY_AFTER_SECS_MAX))
}

/// Error for a request whose deadline would pass while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("would wait past its deadline, retry after {retry_after:?}")]
pub struct WouldMissDeadline {
    /// Time until the queue ahead is expected to have drained.
    pub retry_after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_wait_is_the_queued_cost_over_the_tenants_share_of_the_rate() {
        assert_eq!(expected_wait(Cost(6_000), 1_000.0, 0.5), Some(12 * SECOND));
        assert_eq!(expected_wait(Cost(0), 1_000.0, 0.5), Some(Duration::ZERO));
        assert_eq!(expected_wait(Cost(u64::MAX), 1e-300, 1.0), Some(Duration::MAX));
    }

    #[test]
    fn nothing_is_rejected_while_the_rate_is_unknown() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(expected_wait(Cost(1_000_000), rate, 1.0), None);
        }
        assert_eq!(admit_by_deadline(None, Duration::ZERO), Ok(()));
        assert_eq!(retry_after(None), SECOND);
    }

    /// A tenant's own service rate is close to zero when it sends one request an hour.
    #[test]
    fn a_quiet_tenant_is_not_rejected_for_its_low_rate() {
        let one_request = Cost(1_000);
        let deadline = 30 * SECOND;
        let own_rate = 1_000.0 / 3_600.0;
        let by_own_rate = expected_wait(one_request, own_rate, 1.0);
        assert!(admit_by_deadline(by_own_rate, deadline).is_err(), "by its own rate it waits an hour");

        let by_pool_rate = expected_wait(one_request, 5_000.0, 0.1);
        assert_eq!(admit_by_deadline(by_pool_rate, deadline), Ok(()));
    }

    #[test]
    fn a_request_that_would_miss_its_deadline_is_rejected_with_a_retry_time() {
        let expected = expected_wait(Cost(20_500), 1_000.0, 1.0);
        assert_eq!(admit_by_deadline(expected, 21 * SECOND), Ok(()));
        let error = admit_by_deadline(expected, 20 * SECOND).unwrap_err();
        assert_eq!(error.retry_after, 21 * SECOND);
        assert_eq!(error.to_string(), "would wait past its deadline, retry after 21s");
        assert_eq!(
            admit_by_deadline(Some(20 * SECOND), 20 * SECOND),
            Ok(()),
            "a wait equal to the remaining time is accepted"
        );
    }

    #[test]
    fn retry_after_is_whole_seconds_from_1_to_60() {
        for (millis, secs) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_001, 60), (600_000, 60)] {
            assert_eq!(retry_after(Some(Duration::from_millis(millis))), Duration::from_secs(secs));
        }
        assert_eq!(retry_after(Some(Duration::MAX)), 60 * SECOND);
    }
}
