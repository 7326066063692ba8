//! Options of a pipeline.
//!
//! Guarantees: [`OptimizedLoadManager::new`](crate::OptimizedLoadManager::new) accepts only options that are within the
//! ranges stated at their fields.

use evenkeel_policy::backpressure::{InvalidConfig, LoadManagerConfig};
use evenkeel_policy::class::ClassShares;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::path::PathConfig;
use evenkeel_policy::score::{HotColdConfig, SelectionPolicy};
use evenkeel_policy::setting::{SettingOutOfRange, check};
use evenkeel_policy::swrr::SwrrConfig;
use evenkeel_policy::time::Duration;

use crate::budget::BudgetRule;

/// Options of a pipeline; the default is an inference pool charged in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// Settings of the router specification (docs/specs.md); `wait_queue` and `backpressure` must have the same size
    /// and thresholds.
    pub load: LoadManagerConfig,
    /// Admission rule of a loaded queue.
    pub admit: AdmitRule,
    /// Cost of a typical request, 1 to 1 000 000 000; a DRR round grants a twentieth of it to a tenant of weight 1.
    pub quantum: Cost,
    /// Minimum shares of the classes of a tenant.
    pub class_shares: ClassShares,
    /// Selection policy among the nodes with a free slot.
    pub selection: SelectionPolicy,
    /// Size limits.
    pub limits: PipelineLimits,
    /// Retries after a failed attempt.
    pub retry: RetryOptions,
    /// Circuit breakers and cooldowns.
    pub breaker: BreakerOptions,
    /// Preference for nodes with a warm cache.
    pub affinity: AffinityOptions,
    /// Weighting of paths.
    pub swrr: SwrrConfig,
    /// Health of paths.
    pub path: PathConfig,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            load: LoadManagerConfig::default(),
            admit: AdmitRule::default(),
            quantum: Cost(500),
            class_shares: ClassShares::default(),
            selection: SelectionPolicy::HotCold(HotColdConfig::default()),
            limits: PipelineLimits::default(),
            retry: RetryOptions::default(),
            breaker: BreakerOptions::default(),
            affinity: AffinityOptions::default(),
            swrr: SwrrConfig::default(),
            path: PathConfig::default(),
            seed: 0,
        }
    }
}

impl PipelineOptions {
    /// Checks the options that no component checks itself.
    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        self.load.validate()?;
        let queue = &self.load.wait_queue;
        let pressure = &self.load.backpressure;
        let queue_settings = (queue.max_waiting, queue.warning_threshold, queue.overload_threshold);
        let backpressure_settings =
            (pressure.max_queue_size, pressure.warning_threshold, pressure.overload_threshold);
        if queue_settings != backpressure_settings {
            return Err(InvalidOptions::QueuesDiffer);
        }
        self.limits.check()?;
        self.retry.check()?;
        self.breaker.check()?;
        self.affinity.check()?;
        Ok(())
    }
}

/// Admission rule of a loaded queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmitRule {
    /// By the tenant's share of the queue capacity: only tenants above their share are rejected.
    #[default]
    ByShare,
    /// By the number of waiting requests, regardless of tenant.
    ByLoad,
}

/// Size limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineLimits {
    /// Tenants, 1 to 1 000 000; ids are below this number.
    pub tenants_max: u32,
    /// Models, 1 to 100 000; ids are below this number. Each has a queue capacity of `max_waiting`.
    pub models_max: u32,
    /// Nodes, 1 to 10 000.
    pub nodes_max: usize,
    /// Requests in flight, 1 to 10 000 000.
    pub in_flight_max: usize,
    /// Sessions of one tenant with an account of their own per model, counted once for each class that they use,
    /// 1 to 10 000; requests of further sessions share the account of the requests without a session.
    pub sessions_max: u32,
}

impl PipelineLimits {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("tenants_max", f64::from(self.tenants_max), 1.0..=1e6)?;
        check("models_max", f64::from(self.models_max), 1.0..=1e5)?;
        check("nodes_max", self.nodes_max as f64, 1.0..=1e4)?;
        check("in_flight_max", self.in_flight_max as f64, 1.0..=1e7)?;
        check("sessions_max", f64::from(self.sessions_max), 1.0..=1e4)
    }
}

impl Default for PipelineLimits {
    fn default() -> Self {
        Self {
            tenants_max: 10_000,
            models_max: 1_000,
            nodes_max: 256,
            in_flight_max: 100_000,
            sessions_max: 128,
        }
    }
}

/// Retries after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryOptions {
    /// Retries per first attempt within the window, 0 to 1.
    pub budget: f64,
    /// Retries per window that are always allowed, however few first attempts there were.
    pub retries_min: u32,
    /// The window, 1 to 600 s.
    pub window: Duration,
    /// Attempts per request, 1 to 16.
    pub attempts_max: u32,
}

impl RetryOptions {
    pub(crate) fn budget_rule(&self) -> BudgetRule {
        BudgetRule { ratio: self.budget, spends_min: self.retries_min, window: self.window }
    }

    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("budget", self.budget, 0.0..=1.0)?;
        check("window", self.window.as_secs_f64(), 1.0..=600.0)?;
        check("attempts_max", f64::from(self.attempts_max), 1.0..=16.0)
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { budget: 0.1, retries_min: 3, window: Duration::from_secs(10), attempts_max: 3 }
    }
}

/// Circuit breaker and cooldown of every node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerOptions {
    /// Consecutive failures that open the breaker, 1 to 1000.
    pub failures_max: u32,
    /// Fraction of a minute's requests that must fail to open the breaker, 0.01 to 1.
    pub error_ratio_max: f64,
    /// Requests per minute below which the fraction is ignored, 1 to 1 000 000.
    pub samples_min: u32,
    /// First backoff of an open breaker, at least 1 ms; doubles with each failed probe.
    pub backoff_min: Duration,
    /// Longest backoff, at most a day.
    pub backoff_max: Duration,
    /// Cooldown of an overloaded node that sends no `Retry-After`, 1 ms to `cooldown_max`.
    pub cooldown: Duration,
    /// Longest cooldown, whatever `Retry-After` says; at most an hour, and never more than half of `default_timeout`.
    pub cooldown_max: Duration,
    /// Time for which requests wait while no node of their model can be reached, at most an hour; afterwards they are
    /// rejected at once.
    pub hold: Duration,
}

impl BreakerOptions {
    /// Returns the cooldown of an overloaded node; `wait_max` is the default timeout of a request.
    pub(crate) fn cooldown_for(&self, retry_after: Option<Duration>, wait_max: Duration) -> Duration {
        retry_after.unwrap_or(self.cooldown).min(self.cooldown_max).min(wait_max / 2)
    }

    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("failures_max", f64::from(self.failures_max), 1.0..=1e3)?;
        check("error_ratio_max", self.error_ratio_max, 0.01..=1.0)?;
        check("samples_min", f64::from(self.samples_min), 1.0..=1e6)?;
        check("cooldown_max", self.cooldown_max.as_secs_f64(), 0.001..=3_600.0)?;
        check("hold", self.hold.as_secs_f64(), 0.0..=3_600.0)?;
        check("cooldown", self.cooldown.as_secs_f64(), 0.001..=self.cooldown_max.as_secs_f64())
    }
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self {
            failures_max: 5,
            error_ratio_max: 0.5,
            samples_min: 20,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            cooldown: Duration::from_secs(1),
            cooldown_max: Duration::from_secs(60),
            hold: Duration::from_secs(30),
        }
    }
}

/// Preference for nodes with a warm cache over less loaded ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffinityOptions {
    /// Maximum load of a preferred node relative to the mean, 1 to 10.
    pub load_max: f64,
    /// Requests of a tenant queue searched for one whose cached node is free, 1 to 64.
    pub lookahead_max: usize,
    /// Times the head of a tenant queue may be skipped for such a request, 0 to 64.
    pub skips_max: u32,
}

impl AffinityOptions {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("load_max", self.load_max, 1.0..=10.0)?;
        check("lookahead_max", self.lookahead_max as f64, 1.0..=64.0)?;
        check("skips_max", f64::from(self.skips_max), 0.0..=64.0)
    }
}

impl Default for AffinityOptions {
    fn default() -> Self {
        Self { load_max: 1.25, lookahead_max: 8, skips_max: 4 }
    }
}

/// Error of invalid options.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidOptions {
    /// A rule of the router specification's table is violated.
    #[error(transparent)]
    Load(#[from] InvalidConfig),
    /// `wait_queue` and `backpressure` have different sizes or thresholds.
    #[error("wait queue and backpressure differ in size or thresholds")]
    QueuesDiffer,
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingOutOfRange),
}
