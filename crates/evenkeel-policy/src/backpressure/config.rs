//! Settings of the load manager.
//!
//! Defaults, validation rules and error messages are exactly those of the specification (see `docs/specs.md`, router
//! load optimization).

use core::ops::{Not as _, RangeInclusive};

use crate::time::Duration;

const MAX_WAITING: RangeInclusive<usize> = 1..=1000;
const DEFAULT_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
const MAX_IDLE_PER_HOST: RangeInclusive<usize> = 1..=100;
const TTL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Limits of the queue in which requests wait for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitQueueConfig {
    /// Maximum number of waiting requests.
    pub max_waiting: usize,
    /// Maximum wait of a request without a deadline of its own.
    pub default_timeout: Duration,
    /// Load from which requests are delayed.
    pub warning_threshold: f64,
    /// Load from which requests are rejected.
    pub overload_threshold: f64,
}

impl WaitQueueConfig {
    /// Checks these fields against the specification's rules.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        self.violations().next().map_or(Ok(()), Err)
    }

    /// Lists the rules that these fields violate, in the specification's order.
    pub fn violations(&self) -> impl Iterator<Item = InvalidConfig> + use<> {
        let waiting = MAX_WAITING.contains(&self.max_waiting).not().then_some(InvalidConfig::MaxWaiting);
        let is_allowed = DEFAULT_TIMEOUT.contains(&self.default_timeout);
        let timeout = is_allowed.not().then_some(InvalidConfig::DefaultTimeout);
        let thresholds = check_thresholds(self.warning_threshold, self.overload_threshold);
        waiting.into_iter().chain(timeout).chain(thresholds)
    }
}

impl Default for WaitQueueConfig {
    fn default() -> Self {
        Self {
            max_waiting: 100,
            default_timeout: Duration::from_secs(30),
            warning_threshold: 0.5,
            overload_threshold: 0.8,
        }
    }
}

/// Connection pool settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPoolConfig {
    /// Maximum number of idle connections per host.
    pub max_idle_per_host: usize,
    /// Time after which an idle connection is closed.
    pub idle_timeout: Duration,
    /// Maximum time to establish a connection.
    pub connect_timeout: Duration,
    /// Maximum time for a node to respond.
    pub request_timeout: Duration,
    /// Interval of TCP keep-alive probes.
    pub tcp_keepalive: Duration,
    /// Sets `TCP_NODELAY`: small writes are sent at once.
    pub tcp_nodelay: bool,
}

impl ConnectionPoolConfig {
    /// Checks these fields against the specification's rules.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !MAX_IDLE_PER_HOST.contains(&self.max_idle_per_host) {
            return Err(InvalidConfig::MaxIdlePerHost);
        }
        Ok(())
    }
}

impl Default for ConnectionPoolConfig {
    fn default() -> Self {
        Self {
            max_idle_per_host: 32,
            idle_timeout: Duration::from_secs(90),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(120),
            tcp_keepalive: Duration::from_secs(30),
            tcp_nodelay: true,
        }
    }
}

/// Settings of the node selection cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCacheConfig {
    /// Maximum number of cached selections.
    pub max_capacity: u64,
    /// Time to live of a cached selection.
    pub ttl: Duration,
}

impl NodeCacheConfig {
    /// Checks these fields against the specification's rules.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !TTL.contains(&self.ttl) {
            return Err(InvalidConfig::Ttl);
        }
        Ok(())
    }
}

impl Default for NodeCacheConfig {
    fn default() -> Self {
        Self { max_capacity: 1000, ttl: Duration::from_secs(5) }
    }
}

/// Backpressure thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackpressureConfig {
    /// Maximum number of waiting requests.
    pub max_queue_size: usize,
    /// Load from which requests are delayed.
    pub warning_threshold: f64,
    /// Load from which requests are rejected.
    pub overload_threshold: f64,
    /// Maximum delay of a request.
    pub max_delay: Duration,
}

impl BackpressureConfig {
    /// Checks these fields against the specification's rules; `max_queue_size` has the range of `max_waiting`.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !MAX_WAITING.contains(&self.max_queue_size) {
            return Err(InvalidConfig::MaxWaiting);
        }
        check_thresholds(self.warning_threshold, self.overload_threshold).next().map_or(Ok(()), Err)
    }
}

impl Default for BackpressureConfig {
    fn default() -> Self {
        Self {
            max_queue_size: 100,
            warning_threshold: 0.5,
            overload_threshold: 0.8,
            max_delay: Duration::from_millis(100),
        }
    }
}

/// All settings of the load manager.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadManagerConfig {
    /// Limits of the queue in which requests wait for a node.
    pub wait_queue: WaitQueueConfig,
    /// Connection pool settings.
    pub connection_pool: ConnectionPoolConfig,
    /// Settings of the node selection cache.
    pub node_cache: NodeCacheConfig,
    /// Backpressure thresholds.
    pub backpressure: BackpressureConfig,
}

impl LoadManagerConfig {
    /// Checks every rule, in the specification's order.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        self.wait_queue.validate()?;
        self.backpressure.validate()?;
        self.connection_pool.validate()?;
        self.node_cache.validate()
    }
}

/// Lists the violated rules. Beside an invalid warning threshold, the other one must only be possible for a valid one.
fn check_thresholds(warning: f64, overload: f64) -> impl Iterator<Item = InvalidConfig> {
    let has_valid_warning = (0.0..1.0).contains(&warning);
    let overload_min = if has_valid_warning { warning } else { 0.0 };
    // NaN is not above anything.
    let has_valid_overload = overload > overload_min && overload <= 1.0;
    let warning = has_valid_warning.not().then_some(InvalidConfig::WarningThreshold);
    let overload = has_valid_overload.not().then_some(InvalidConfig::OverloadThreshold);
    warning.into_iter().chain(overload)
}

/// Rule that a setting violates, with the specification's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// `max_waiting` is not in 1..=1000.
    #[error("Max waiting must be between 1 and 1000")]
    MaxWaiting,
    /// `default_timeout` is not in 1..=300 seconds.
    #[error("Timeout must be between 1 and 300 seconds")]
    DefaultTimeout,
    /// `warning_threshold` is not in 0.0..1.0.
    #[error("Warning threshold must be between 0.0 and 1.0")]
    WarningThreshold,
    /// `overload_threshold` is not above `warning_threshold` and at most 1.0.
    #[error("Overload threshold must be greater than warning")]
    OverloadThreshold,
    /// `max_idle_per_host` is not in 1..=100.
    #[error("Max idle per host must be between 1 and 100")]
    MaxIdlePerHost,
    /// `ttl` is not in 100 ms..=60 s.
    #[error("TTL must be between 100ms and 60s")]
    Ttl,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const OK: &str = "ok";

    #[test]
    fn max_waiting_must_be_between_1_and_1000() {
        let message = "Max waiting must be between 1 and 1000";
        for (max_waiting, outcome) in [(0, message), (1, OK), (1000, OK), (1001, message)] {
            assert_eq!(validate(|config| config.wait_queue.max_waiting = max_waiting), outcome);
            assert_eq!(validate(|config| config.backpressure.max_queue_size = max_waiting), outcome);
        }
    }

    #[test]
    fn the_timeout_must_be_between_1_and_300_seconds() {
        let message = "Timeout must be between 1 and 300 seconds";
        for (millis, outcome) in
            [(0, message), (999, message), (1_000, OK), (300_000, OK), (300_001, message)]
        {
            let timeout = Duration::from_millis(millis);
            assert_eq!(validate(|config| config.wait_queue.default_timeout = timeout), outcome);
        }
    }

    #[test]
    fn the_warning_threshold_must_be_at_least_0_and_below_1() {
        let message = "Warning threshold must be between 0.0 and 1.0";
        for (warning, outcome) in
            [(-0.1, message), (0.0, OK), (0.79, OK), (1.0, message), (f64::NAN, message)]
        {
            assert_eq!(validate(|config| config.wait_queue.warning_threshold = warning), outcome);
            assert_eq!(validate(|config| config.backpressure.warning_threshold = warning), outcome);
        }
    }

    #[test]
    fn the_overload_threshold_must_be_above_the_warning_threshold_and_at_most_1() {
        let message = "Overload threshold must be greater than warning";
        for (overload, outcome) in
            [(0.5, message), (0.51, OK), (1.0, OK), (1.01, message), (f64::NAN, message)]
        {
            assert_eq!(validate(|config| config.wait_queue.overload_threshold = overload), outcome);
            assert_eq!(validate(|config| config.backpressure.overload_threshold = overload), outcome);
        }
    }

    #[test]
    fn max_idle_per_host_must_be_between_1_and_100() {
        let message = "Max idle per host must be between 1 and 100";
        for (idle, outcome) in [(0, message), (1, OK), (100, OK), (101, message)] {
            assert_eq!(validate(|config| config.connection_pool.max_idle_per_host = idle), outcome);
        }
    }

    #[test]
    fn the_ttl_must_be_between_100_ms_and_60_s() {
        let message = "TTL must be between 100ms and 60s";
        for (millis, outcome) in [(99, message), (100, OK), (60_000, OK), (60_001, message)] {
            assert_eq!(validate(|config| config.node_cache.ttl = Duration::from_millis(millis)), outcome);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let config = LoadManagerConfig::default();
        let pool = config.connection_pool;
        assert_eq!((config.wait_queue.max_waiting, config.wait_queue.default_timeout.as_secs()), (100, 30));
        assert_eq!((pool.max_idle_per_host, pool.idle_timeout.as_secs()), (32, 90));
        assert_eq!((pool.connect_timeout.as_secs(), pool.request_timeout.as_secs()), (5, 120));
        assert_eq!((pool.tcp_keepalive.as_secs(), pool.tcp_nodelay), (30, true));
        assert_eq!((config.node_cache.max_capacity, config.node_cache.ttl.as_secs()), (1000, 5));
        assert_eq!(
            (config.backpressure.max_queue_size, config.backpressure.max_delay.as_millis()),
            (100, 100)
        );
        assert_eq!(validate(|_| {}), OK);
    }

    fn validate(change: impl FnOnce(&mut LoadManagerConfig)) -> alloc::string::String {
        let mut config = LoadManagerConfig::default();
        change(&mut config);
        match config.validate() {
            Ok(()) => OK.to_string(),
            Err(error) => error.to_string(),
        }
    }
}
