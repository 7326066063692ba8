//! Adaptive number of workers, driven by the number of ready actors and by how long they wait.
//!
//! Limits: from `workers_min` to `workers_max`. Guarantees: workers are added after `grow_after` samples under pressure
//! in a row, and removed one by one, each after `shrink_after` calm samples in a row; samples in between change nothing
//! (hysteresis). Removing a worker that must be added again doubles the calm samples needed for the next removal, up to
//! [`SHRINK_BACKOFF_MAX`] times, so the number settles under a steady load.

#[cfg(feature = "std")]
mod driver;

#[cfg(feature = "std")]
pub use driver::AdaptiveHandle;
#[cfg(feature = "std")]
pub(crate) use driver::adapt;

use core::num::{NonZeroU32, NonZeroUsize};
use core::time::Duration;

/// The maximum factor by which the calm samples needed to remove a worker grow.
pub const SHRINK_BACKOFF_MAX: u32 = 32;

/// Thresholds for adding and removing workers; see [`AdaptiveOptions::up_to`] for the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveOptions {
    /// The minimum number of workers.
    pub workers_min: NonZeroUsize,
    /// The maximum number of workers; more workers than threads of the runtime are useless.
    pub workers_max: NonZeroUsize,
    /// The number of ready actors per worker above which the load is pressure.
    pub depth_high: usize,
    /// The number of ready actors per worker below which the load is calm, if the wait is short as well.
    pub depth_low: usize,
    /// The mean wait from ready to run above which the load is pressure.
    pub wait_high: Duration,
    /// The mean wait up to which the load is calm, if few actors are ready as well.
    pub wait_low: Duration,
    /// The number of samples under pressure in a row before workers are added.
    pub grow_after: NonZeroU32,
    /// The number of calm samples in a row before a worker is removed.
    pub shrink_after: NonZeroU32,
    /// The sampling interval.
    pub period: Duration,
}

impl AdaptiveOptions {
    /// Returns the defaults for one to `workers_max` workers.
    ///
    /// Pressure is more than 4 ready actors per worker or a mean wait above 1 ms; calm is fewer than 1 ready actor per
    /// worker and a mean wait of at most 100 µs. A sample is taken every 100 ms; two under pressure add workers, 50
    /// calm ones remove one.
    pub const fn up_to(workers_max: NonZeroUsize) -> Self {
        Self {
            workers_min: NonZeroUsize::MIN,
            workers_max,
            depth_high: 4,
            depth_low: 1,
            wait_high: Duration::from_millis(1),
            wait_low: Duration::from_micros(100),
            grow_after: NonZeroU32::MIN.saturating_add(1),
            shrink_after: NonZeroU32::MIN.saturating_add(49),
            period: Duration::from_millis(100),
        }
    }
}

/// The load of the workers at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSample {
    /// The current target number of workers.
    pub workers: NonZeroUsize,
    /// The number of actors that wait for a worker.
    pub ready_depth: usize,
    /// The mean wait since the last sample; `None` if no wait was measured.
    pub wait: Option<Duration>,
}

/// Decision about the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Leaves the number as it is.
    Keep,
    /// Changes the number to this.
    Change(NonZeroUsize),
}

/// The policy that decides the number of workers, sample by sample.
#[derive(Clone, Debug)]
pub struct AdaptiveDispatcher {
    options: AdaptiveOptions,
    /// The number of samples at the same level in a row, the last one included.
    streak: u32,
    last: LoadLevel,
    last_step: ScaleStep,
    /// The factor by which the calm samples needed to remove a worker have grown.
    shrink_backoff: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadLevel {
    Pressure,
    Steady,
    Calm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleStep {
    Up,
    Down,
}

impl AdaptiveDispatcher {
    /// Returns a dispatcher without history.
    pub fn new(options: AdaptiveOptions) -> Result<Self, InvalidAdaptive> {
        let AdaptiveOptions { workers_min, workers_max, .. } = options;
        if workers_max < workers_min {
            return Err(InvalidAdaptive::Workers { workers_min, workers_max });
        }
        if options.depth_high < options.depth_low {
            return Err(InvalidAdaptive::Depth { low: options.depth_low, high: options.depth_high });
        }
        if options.wait_high < options.wait_low {
            return Err(InvalidAdaptive::Wait { low: options.wait_low, high: options.wait_high });
        }
        if options.period.is_zero() {
            return Err(InvalidAdaptive::Period);
        }
        Ok(Self { options, streak: 0, last: LoadLevel::Steady, last_step: ScaleStep::Up, shrink_backoff: 1 })
    }

    /// Returns the thresholds.
    pub fn options(&self) -> &AdaptiveOptions {
        &self.options
    }

    /// Decides on a sample; a number of workers outside the limits is corrected at once.
    pub fn decide(&mut self, sample: &LoadSample) -> Decision {
        let AdaptiveOptions { workers_min, workers_max, .. } = self.options;
        let within = sample.workers.clamp(workers_min, workers_max);
        if within != sample.workers {
            self.streak = 0;
            return Decision::Change(within);
        }
        let level = self.level(sample);
        self.streak = if level == self.last { self.streak.saturating_add(1) } else { 1 };
        self.last = level;
        let target = match level {
            LoadLevel::Pressure if self.streak >= self.options.grow_after.get() => {
                self.step_up(sample.workers)
            }
            LoadLevel::Calm if self.streak >= self.calm_needed() => {
                NonZeroUsize::new(sample.workers.get() - 1).unwrap_or(workers_min)
            }
            _ => return Decision::Keep,
        };
        let target = target.clamp(workers_min, workers_max);
        if target == sample.workers {
            return Decision::Keep;
        }
        self.record_step(if sample.workers < target { ScaleStep::Up } else { ScaleStep::Down });
        Decision::Change(target)
    }

    fn level(&self, sample: &LoadSample) -> LoadLevel {
        let AdaptiveOptions { depth_high, depth_low, wait_high, wait_low, .. } = self.options;
        let per_worker = |depth: usize| depth.saturating_mul(sample.workers.get());
        let wait = sample.wait.unwrap_or_default();
        if sample.ready_depth > per_worker(depth_high) || wait > wait_high {
            return LoadLevel::Pressure;
        }
        if sample.ready_depth < per_worker(depth_low) && wait <= wait_low {
            return LoadLevel::Calm;
        }
        LoadLevel::Steady
    }

    /// Returns the number of calm samples needed to remove a worker; after an increase, multiplied by the backoff.
    fn calm_needed(&self) -> u32 {
        match self.last_step {
            ScaleStep::Up => self.options.shrink_after.get().saturating_mul(self.shrink_backoff),
            ScaleStep::Down => self.options.shrink_after.get(),
        }
    }

    /// Returns the number of workers increased by half, or by one if the last step removed a worker.
    fn step_up(&self, workers: NonZeroUsize) -> NonZeroUsize {
        match self.last_step {
            ScaleStep::Up => workers.saturating_add((workers.get() / 2).max(1)),
            ScaleStep::Down => workers.saturating_add(1),
        }
    }

    fn record_step(&mut self, step: ScaleStep) {
        self.shrink_backoff = match (self.last_step, step) {
            (ScaleStep::Down, ScaleStep::Up) => (self.shrink_backoff * 2).min(SHRINK_BACKOFF_MAX),
            // The load has changed, so the backoff learned for the old one is reset.
            (ScaleStep::Up, ScaleStep::Up) | (ScaleStep::Down, ScaleStep::Down) => 1,
            (ScaleStep::Up, ScaleStep::Down) => self.shrink_backoff,
        };
        self.last_step = step;
        self.streak = 0;
    }
}

/// Reason [`AdaptiveOptions`] are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAdaptive {
    /// The minimum number of workers is above the maximum.
    #[error("workers_min is {workers_min}, above workers_max {workers_max}")]
    Workers {
        /// The minimum.
        workers_min: NonZeroUsize,
        /// The maximum.
        workers_max: NonZeroUsize,
    },
    /// The depth thresholds overlap.
    #[error("depth_low is {low}, above depth_high {high}")]
    Depth {
        /// The threshold for calm.
        low: usize,
        /// The threshold for pressure.
        high: usize,
    },
    /// The wait thresholds overlap.
    #[error("wait_low is {low:?}, above wait_high {high:?}")]
    Wait {
        /// The threshold for calm.
        low: Duration,
        /// The threshold for pressure.
        high: Duration,
    },
    /// The sampling interval is zero.
    #[error("period is zero")]
    Period,
}

#[cfg(all(test, feature = "std"))]
mod tests;
