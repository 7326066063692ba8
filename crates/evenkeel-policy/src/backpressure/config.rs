//! The settings of seed 001, with its defaults, its rules and its messages.

use core::fmt;
use core::ops::RangeInclusive;

use crate::time::Duration;

const MAX_WAITING: RangeInclusive<usize> = 1..=1000;
const DEFAULT_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
const MAX_IDLE_PER_HOST: RangeInclusive<usize> = 1..=100;
const TTL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// How requests wait for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitQueueConfig {
    /// How many may wait.
    pub max_waiting: usize,
    /// How long one waits that names no deadline of its own.
    pub default_timeout: Duration,
    /// The load from which requests are slowed.
    pub warning_threshold: f64,
    /// The load from which requests are turned away.
    pub overload_threshold: f64,
}

impl WaitQueueConfig {
    /// Checks every rule of the seed's table that concerns these fields.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !MAX_WAITING.contains(&self.max_waiting) {
            return Err(InvalidConfig::MaxWaiting);
        }
        if !DEFAULT_TIMEOUT.contains(&self.default_timeout) {
            return Err(InvalidConfig::DefaultTimeout);
        }
        check_thresholds(self.warning_threshold, self.overload_threshold)
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

/// How connections to nodes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPoolConfig {
    /// How many idle connections to one host are kept.
    pub max_idle_per_host: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a node may take to answer.
    pub request_timeout: Duration,
    /// How often an open connection is probed.
    pub tcp_keepalive: Duration,
    /// Whether small writes go out at once.
    pub tcp_nodelay: bool,
}

impl ConnectionPoolConfig {
    /// Checks every rule of the seed's table that concerns these fields.
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

/// How long a chosen node is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCacheConfig {
    /// How many choices are remembered.
    pub max_capacity: u64,
    /// How long a choice is remembered.
    pub ttl: Duration,
}

impl NodeCacheConfig {
    /// Checks every rule of the seed's table that concerns these fields.
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

/// When requests are slowed and turned away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackpressureConfig {
    /// How many may wait.
    pub max_queue_size: usize,
    /// The load from which requests are slowed.
    pub warning_threshold: f64,
    /// The load from which requests are turned away.
    pub overload_threshold: f64,
    /// The longest a request is slowed.
    pub max_delay: Duration,
}

impl BackpressureConfig {
    /// Checks every rule of the seed's table that concerns these fields; `max_queue_size` follows `max_waiting`.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !MAX_WAITING.contains(&self.max_queue_size) {
            return Err(InvalidConfig::MaxWaiting);
        }
        check_thresholds(self.warning_threshold, self.overload_threshold)
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

/// Everything the load manager is set up with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadManagerConfig {
    /// How requests wait for a node.
    pub wait_queue: WaitQueueConfig,
    /// How connections to nodes are kept.
    pub connection_pool: ConnectionPoolConfig,
    /// How long a chosen node is remembered.
    pub node_cache: NodeCacheConfig,
    /// When requests are slowed and turned away.
    pub backpressure: BackpressureConfig,
}

impl LoadManagerConfig {
    /// Checks every rule of the seed's table, in its order.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        self.wait_queue.validate()?;
        self.backpressure.validate()?;
        self.connection_pool.validate()?;
        self.node_cache.validate()
    }
}

fn check_thresholds(warning: f64, overload: f64) -> Result<(), InvalidConfig> {
    if !(0.0..1.0).contains(&warning) {
        return Err(InvalidConfig::WarningThreshold);
    }
    // Written so that NaN breaks the rule.
    if !(warning < overload && overload <= 1.0) {
        return Err(InvalidConfig::OverloadThreshold);
    }
    Ok(())
}

/// The rule a setting breaks; it reads as the seed's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidConfig {
    /// `max_waiting` is not in 1..=1000.
    MaxWaiting,
    /// `default_timeout` is not in 1..=300 seconds.
    DefaultTimeout,
    /// `warning_threshold` is not in 0.0..1.0.
    WarningThreshold,
    /// `overload_threshold` is not above `warning_threshold` and at most 1.0.
    OverloadThreshold,
    /// `max_idle_per_host` is not in 1..=100.
    MaxIdlePerHost,
    /// `ttl` is not in 100 ms..=60 s.
    Ttl,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxWaiting => "Max waiting must be between 1 and 1000",
            Self::DefaultTimeout => "Timeout must be between 1 and 300 seconds",
            Self::WarningThreshold => "Warning threshold must be between 0.0 and 1.0",
            Self::OverloadThreshold => "Overload threshold must be greater than warning",
            Self::MaxIdlePerHost => "Max idle per host must be between 1 and 100",
            Self::Ttl => "TTL must be between 100ms and 60s",
        })
    }
}

impl core::error::Error for InvalidConfig {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const OK: &str = "ok";

    #[test]
    fn max_waiting_lies_between_1_and_1000() {
        let message = "Max waiting must be between 1 and 1000";
        for (max_waiting, outcome) in [(0, message), (1, OK), (1000, OK), (1001, message)] {
            assert_eq!(verdict(|config| config.wait_queue.max_waiting = max_waiting), outcome);
            assert_eq!(verdict(|config| config.backpressure.max_queue_size = max_waiting), outcome);
        }
    }

    #[test]
    fn the_timeout_lies_between_1_and_300_seconds() {
        let message = "Timeout must be between 1 and 300 seconds";
        for (millis, outcome) in
            [(0, message), (999, message), (1_000, OK), (300_000, OK), (300_001, message)]
        {
            let timeout = Duration::from_millis(millis);
            assert_eq!(verdict(|config| config.wait_queue.default_timeout = timeout), outcome);
        }
    }

    #[test]
    fn the_warning_threshold_lies_between_0_and_1() {
        let message = "Warning threshold must be between 0.0 and 1.0";
        for (warning, outcome) in
            [(-0.1, message), (0.0, OK), (0.79, OK), (1.0, message), (f64::NAN, message)]
        {
            assert_eq!(verdict(|config| config.wait_queue.warning_threshold = warning), outcome);
            assert_eq!(verdict(|config| config.backpressure.warning_threshold = warning), outcome);
        }
    }

    #[test]
    fn the_overload_threshold_lies_above_warning_and_at_most_at_1() {
        let message = "Overload threshold must be greater than warning";
        for (overload, outcome) in
            [(0.5, message), (0.51, OK), (1.0, OK), (1.01, message), (f64::NAN, message)]
        {
            assert_eq!(verdict(|config| config.wait_queue.overload_threshold = overload), outcome);
            assert_eq!(verdict(|config| config.backpressure.overload_threshold = overload), outcome);
        }
    }

    #[test]
    fn max_idle_per_host_lies_between_1_and_100() {
        let message = "Max idle per host must be between 1 and 100";
        for (idle, outcome) in [(0, message), (1, OK), (100, OK), (101, message)] {
            assert_eq!(verdict(|config| config.connection_pool.max_idle_per_host = idle), outcome);
        }
    }

    #[test]
    fn the_ttl_lies_between_100_ms_and_60_s() {
        let message = "TTL must be between 100ms and 60s";
        for (millis, outcome) in [(99, message), (100, OK), (60_000, OK), (60_001, message)] {
            assert_eq!(verdict(|config| config.node_cache.ttl = Duration::from_millis(millis)), outcome);
        }
    }

    #[test]
    fn the_defaults_are_the_seeds() {
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
        assert_eq!(verdict(|_| {}), OK);
    }

    fn verdict(change: impl FnOnce(&mut LoadManagerConfig)) -> alloc::string::String {
        let mut config = LoadManagerConfig::default();
        change(&mut config);
        match config.validate() {
            Ok(()) => OK.to_string(),
            Err(broken) => broken.to_string(),
        }
    }
}
