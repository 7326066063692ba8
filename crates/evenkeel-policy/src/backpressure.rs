//! Admission control by load shedding: accept a request, delay it (backpressure), or reject it at once.
//!
//! Guarantees: the load alone selects the [`BackpressureState`], and the delay rises from zero to `max_delay` over the
//! Warning band. [`FairAdmission::admit`] lets at most `max_queue_size` requests wait and evicts requests only of a
//! tenant above its fair share. It rejects a tenant below its share only when the queue is full and no tenant above its
//! own share has a queued request to evict. [`FairBudget`] shares bytes in the same way.

mod config;
mod deadline;
mod fair_admission;
mod fair_budget;

use crate::time::Duration;

pub use config::{
    BackpressureConfig, ConnectionPoolConfig, InvalidConfig, LoadManagerConfig, NodeCacheConfig,
    WaitQueueConfig,
};
pub use deadline::{WouldMissDeadline, admit_by_deadline, expected_wait, retry_after};
pub use fair_admission::{Admission, FairAdmission, TooManyTenants, WaiterState};
pub use fair_budget::{BudgetDecision, BytesState, FairBudget};

/// Load level of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackpressureState {
    /// Below the warning threshold: requests are accepted at once.
    Normal,
    /// From the warning to below the overload threshold: requests are accepted after a delay.
    Warning,
    /// From the overload threshold on: requests are rejected.
    Overloaded,
}

/// Decision on a request that arrives now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackpressureDecision {
    /// Load level of the queue.
    pub state: BackpressureState,
    /// Delay before the request is queued; a delayed request counts as waiting.
    pub delay: Duration,
    /// `true` when the request is accepted.
    pub accept: bool,
    /// Waiting requests as a fraction of the queue capacity.
    pub load_ratio: f64,
}

/// Admission control by the number of waiting requests alone.
#[derive(Clone, Debug)]
pub struct BackpressureController {
    config: BackpressureConfig,
}

impl BackpressureController {
    /// Creates a controller; rejects an invalid config.
    pub fn new(config: BackpressureConfig) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self { config })
    }

    /// Returns the config.
    pub fn config(&self) -> &BackpressureConfig {
        &self.config
    }

    /// Decides on one more request when `waiting` requests are already waiting.
    pub fn decide(&self, waiting: usize) -> BackpressureDecision {
        let BackpressureConfig { max_queue_size, warning_threshold, overload_threshold, max_delay } =
            self.config;
        let load_ratio = waiting as f64 / max_queue_size as f64;
        if load_ratio < warning_threshold {
            let state = BackpressureState::Normal;
            return BackpressureDecision { state, delay: Duration::ZERO, accept: true, load_ratio };
        }
        if load_ratio < overload_threshold {
            let band_fraction = (load_ratio - warning_threshold) / (overload_threshold - warning_threshold);
            let state = BackpressureState::Warning;
            return BackpressureDecision {
                state,
                delay: max_delay.mul_f64(band_fraction),
                accept: true,
                load_ratio,
            };
        }
        let state = BackpressureState::Overloaded;
        BackpressureDecision { state, delay: Duration::ZERO, accept: false, load_ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_warning_threshold_requests_are_accepted_at_once() {
        for waiting in [0, 1, 49] {
            let decision = decide(waiting);
            assert_eq!((decision.state, decision.accept), (BackpressureState::Normal, true));
            assert_eq!(decision.delay, Duration::ZERO);
        }
    }

    #[test]
    fn in_the_warning_band_the_delay_rises_to_its_maximum() {
        for (waiting, millis) in [(50, 0), (65, 50), (77, 90)] {
            let decision = decide(waiting);
            assert_eq!((decision.state, decision.accept), (BackpressureState::Warning, true));
            assert_eq!(decision.delay.as_micros().div_ceil(1_000), millis, "{waiting} waiting");
        }
        assert!(decide(79).delay > Duration::from_millis(96) && decide(79).delay < Duration::from_millis(97));
    }

    #[test]
    fn from_the_overload_threshold_on_requests_are_rejected() {
        for waiting in [80, 99, 100, 500] {
            let decision = decide(waiting);
            assert_eq!((decision.state, decision.accept), (BackpressureState::Overloaded, false));
            assert_eq!(decision.delay, Duration::ZERO);
        }
    }

    #[test]
    fn the_load_ratio_is_waiting_over_capacity() {
        assert_eq!(decide(37).load_ratio.to_bits(), 0.37_f64.to_bits());
        assert_eq!(decide(150).load_ratio.to_bits(), 1.5_f64.to_bits());
    }

    #[test]
    fn an_invalid_config_is_rejected() {
        let config = BackpressureConfig { overload_threshold: 0.5, ..BackpressureConfig::default() };
        assert_eq!(BackpressureController::new(config).unwrap_err(), InvalidConfig::OverloadThreshold);
    }

    fn decide(waiting: usize) -> BackpressureDecision {
        let controller = BackpressureController::new(BackpressureConfig::default()).unwrap();
        assert_eq!(controller.config().max_queue_size, 100);
        controller.decide(waiting)
    }
}
