//! Admission: take a request, slow it, or turn it away now.
//!
//! Bounds: the load alone decides between [`BackpressureState`]s, and the delay rises from zero to `max_delay`
//! over the Warning band. With [`FairAdmission`] no more than `max_queue_size` ever wait, only a tenant above its
//! fair share is pushed out, and a tenant below its share is turned away only when the queue is full and nobody who
//! may be pushed out is above theirs.

mod config;
mod deadline;
mod fair_admission;

use crate::time::Duration;

pub use config::{
    BackpressureConfig, ConnectionPoolConfig, InvalidConfig, LoadManagerConfig, NodeCacheConfig,
    WaitQueueConfig,
};
pub use deadline::{WouldMissDeadline, admit_by_deadline, expected_wait, retry_after};
pub use fair_admission::{Admission, FairAdmission, TooManyTenants, WaiterState};

/// How loaded the queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackpressureState {
    /// Below the warning threshold: requests are taken at once.
    Normal,
    /// From the warning to below the overload threshold: requests are taken after a delay.
    Warning,
    /// From the overload threshold on: requests are turned away.
    Overloaded,
}

/// What to do with a request that arrives now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackpressureDecision {
    /// How loaded the queue is.
    pub state: BackpressureState,
    /// How long the request waits before it takes its place; it counts as waiting meanwhile.
    pub delay: Duration,
    /// Whether the request is taken.
    pub accept: bool,
    /// Waiting requests as a fraction of the places.
    pub load_ratio: f64,
}

/// Decides by the number of waiting requests.
#[derive(Clone, Debug)]
pub struct BackpressureController {
    config: BackpressureConfig,
}

impl BackpressureController {
    /// Makes a controller from a config whose rules hold.
    pub fn new(config: BackpressureConfig) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self { config })
    }

    /// The config it decides by.
    pub fn config(&self) -> &BackpressureConfig {
        &self.config
    }

    /// Decides on one more request when `waiting` wait already.
    pub fn decide(&self, waiting: usize) -> BackpressureDecision {
        let BackpressureConfig { max_queue_size, warning_threshold, overload_threshold, max_delay } =
            self.config;
        let load_ratio = waiting as f64 / max_queue_size as f64;
        if load_ratio < warning_threshold {
            let state = BackpressureState::Normal;
            return BackpressureDecision { state, delay: Duration::ZERO, accept: true, load_ratio };
        }
        if load_ratio < overload_threshold {
            let depth = (load_ratio - warning_threshold) / (overload_threshold - warning_threshold);
            let state = BackpressureState::Warning;
            return BackpressureDecision { state, delay: max_delay.mul_f64(depth), accept: true, load_ratio };
        }
        let state = BackpressureState::Overloaded;
        BackpressureDecision { state, delay: Duration::ZERO, accept: false, load_ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_warning_threshold_requests_are_taken_at_once() {
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
    fn from_the_overload_threshold_on_requests_are_turned_away() {
        for waiting in [80, 99, 100, 500] {
            let decision = decide(waiting);
            assert_eq!((decision.state, decision.accept), (BackpressureState::Overloaded, false));
            assert_eq!(decision.delay, Duration::ZERO);
        }
    }

    #[test]
    fn the_load_ratio_is_waiting_over_places() {
        assert_eq!(decide(37).load_ratio.to_bits(), 0.37_f64.to_bits());
        assert_eq!(decide(150).load_ratio.to_bits(), 1.5_f64.to_bits());
    }

    #[test]
    fn a_config_that_breaks_a_rule_makes_no_controller() {
        let config = BackpressureConfig { overload_threshold: 0.5, ..BackpressureConfig::default() };
        assert_eq!(BackpressureController::new(config).unwrap_err(), InvalidConfig::OverloadThreshold);
    }

    fn decide(waiting: usize) -> BackpressureDecision {
        let controller = BackpressureController::new(BackpressureConfig::default()).unwrap();
        assert_eq!(controller.config().max_queue_size, 100);
        controller.decide(waiting)
    }
}
