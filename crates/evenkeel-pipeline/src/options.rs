//! What a walk is set up with, refused as a whole when one number is out of range.
//!
//! Bound: past [`OptimizedLoadManager::new`](crate::OptimizedLoadManager::new) every option is in the range its field
//! names.

use std::fmt;

use evenkeel_policy::backpressure::{InvalidConfig, LoadManagerConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::path::PathConfig;
use evenkeel_policy::score::{HotColdConfig, SelectionPolicy};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrConfig;
use evenkeel_policy::time::Duration;

/// Everything a walk is set up with; the default is an inference pool charged in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// The seed's settings; `wait_queue` and `backpressure` must agree on size and thresholds.
    pub load: LoadManagerConfig,
    /// By what an arrival at a loaded queue is judged.
    pub admit: AdmitRule,
    /// What a usual request costs, 1 to 1 000 000 000; a tenant of weight 1 may spend a twentieth of it per round.
    pub quantum: Cost,
    /// How a node is chosen among those with a slot.
    pub chooser: SelectionPolicy,
    /// How much there may be of everything.
    pub limits: PipelineLimits,
    /// When a failed request is tried elsewhere.
    pub retry: RetryOptions,
    /// When a node is left alone.
    pub breaker: BreakerOptions,
    /// How far a warm node is preferred.
    pub affinity: AffinityOptions,
    /// How paths are weighed.
    pub swrr: SwrrConfig,
    /// When a path is left alone.
    pub path: PathConfig,
    /// What the random numbers start from.
    pub seed: u64,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            load: LoadManagerConfig::default(),
            admit: AdmitRule::default(),
            quantum: Cost(500),
            chooser: SelectionPolicy::HotCold(HotColdConfig::default()),
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
    /// Checks what no part of the walk checks when it is made.
    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        self.load.validate()?;
        let queue = &self.load.wait_queue;
        let pressure = &self.load.backpressure;
        let of_queue = (queue.max_waiting, queue.warning_threshold, queue.overload_threshold);
        let of_pressure = (pressure.max_queue_size, pressure.warning_threshold, pressure.overload_threshold);
        if of_queue != of_pressure {
            return Err(InvalidOptions::QueuesDiffer);
        }
        self.limits.check()?;
        self.retry.check()?;
        self.breaker.check()?;
        self.affinity.check()?;
        Ok(())
    }
}

/// By what an arrival at a loaded queue is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmitRule {
    /// By its tenant's share of the places: a flood is turned away, not everybody else.
    #[default]
    ByShare,
    /// By the number that wait, whoever they are.
    ByLoad,
}

/// How much there may be of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineLimits {
    /// Tenants, 1 to 1 000 000; ids are below this number.
    pub tenants_max: u32,
    /// Models, 1 to 100 000; ids are below this number. Each has `max_waiting` places.
    pub models_max: u32,
    /// Nodes, 1 to 10 000.
    pub nodes_max: usize,
    /// Requests on nodes at once, 1 to 10 000 000.
    pub in_flight_max: usize,
}

impl PipelineLimits {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("tenants_max", f64::from(self.tenants_max), 1.0, 1e6)?;
        check("models_max", f64::from(self.models_max), 1.0, 1e5)?;
        check("nodes_max", self.nodes_max as f64, 1.0, 1e4)?;
        check("in_flight_max", self.in_flight_max as f64, 1.0, 1e7)
    }
}

impl Default for PipelineLimits {
    fn default() -> Self {
        Self { tenants_max: 10_000, models_max: 1_000, nodes_max: 256, in_flight_max: 100_000 }
    }
}

/// When a failed request is tried elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryOptions {
    /// Retries per first attempt within the window, 0 to 1.
    pub budget: f64,
    /// Retries per window that are granted however few first attempts there were.
    pub retries_min: u32,
    /// The window, 1 to 600 s.
    pub window: Duration,
    /// Attempts at one request, 1 to 16.
    pub attempts_max: u32,
}

impl RetryOptions {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("budget", self.budget, 0.0, 1.0)?;
        check("window", self.window.as_secs_f64(), 1.0, 600.0)?;
        check("attempts_max", f64::from(self.attempts_max), 1.0, 16.0)
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { budget: 0.1, retries_min: 3, window: Duration::from_secs(10), attempts_max: 3 }
    }
}

/// When a node is left alone, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerOptions {
    /// Failures without a success in between that break a node, 1 to 1000.
    pub failures_max: u32,
    /// The part of a minute's requests that went wrong from which a node is broken, 0.01 to 1.
    pub error_ratio_max: f64,
    /// How many requests of a minute it takes to judge by their part, 1 to 1 000 000.
    pub samples_min: u32,
    /// How long a node is left alone at first, 1 ms at least; doubles with each time in a row.
    pub backoff_min: Duration,
    /// The longest a node is left alone, a day at most.
    pub backoff_max: Duration,
    /// How long a busy node is spared that does not say how long, 1 ms to `spare_max`.
    pub cooldown: Duration,
    /// The longest a busy node is spared, whatever it says; an hour at most.
    pub cooldown_max: Duration,
}

impl BreakerOptions {
    /// Says how long a node is to rest that has no room and asks for `retry_after`.
    pub(crate) fn rest(&self, retry_after: Option<Duration>) -> Duration {
        retry_after.unwrap_or(self.cooldown).min(self.cooldown_max)
    }

    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("failures_max", f64::from(self.failures_max), 1.0, 1e3)?;
        check("error_ratio_max", self.error_ratio_max, 0.01, 1.0)?;
        check("samples_min", f64::from(self.samples_min), 1.0, 1e6)?;
        check("cooldown_max", self.cooldown_max.as_secs_f64(), 0.001, 3_600.0)?;
        check("cooldown", self.cooldown.as_secs_f64(), 0.001, self.cooldown_max.as_secs_f64())
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
        }
    }
}

/// How far a warm node is preferred to a free one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffinityOptions {
    /// How many times the mean load a node may have that a key's hash prefers, 1 to 10.
    pub load_max: f64,
    /// How many of a lane are looked at for one whose node is warm, 1 to 64.
    pub lookahead_max: usize,
    /// How often the head of a lane is passed over for such a one, 0 to 64.
    pub skips_max: u32,
}

impl AffinityOptions {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("load_max", self.load_max, 1.0, 10.0)?;
        check("lookahead_max", self.lookahead_max as f64, 1.0, 64.0)?;
        check("skips_max", f64::from(self.skips_max), 0.0, 64.0)
    }
}

impl Default for AffinityOptions {
    fn default() -> Self {
        Self { load_max: 1.25, lookahead_max: 8, skips_max: 4 }
    }
}

fn check(setting: &'static str, value: f64, min: f64, max: f64) -> Result<(), SettingOutOfRange> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SettingOutOfRange { setting, value, min, max })
}

/// Why options make no walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InvalidOptions {
    /// A rule of the seed's table is broken.
    Load(InvalidConfig),
    /// `wait_queue` and `backpressure` name different sizes or thresholds.
    QueuesDiffer,
    /// A number is out of its range.
    Setting(SettingOutOfRange),
}

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(error) => error.fmt(f),
            Self::QueuesDiffer => f.write_str("wait queue and backpressure differ in size or thresholds"),
            Self::Setting(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidOptions {}

impl From<InvalidConfig> for InvalidOptions {
    fn from(error: InvalidConfig) -> Self {
        Self::Load(error)
    }
}

impl From<SettingOutOfRange> for InvalidOptions {
    fn from(error: SettingOutOfRange) -> Self {
        Self::Setting(error)
    }
}
