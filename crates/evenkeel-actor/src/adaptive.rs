//! How many workers there should be, by how many actors are ready and how long they wait.
//!
//! Bound: from `workers_min` to `workers_max`. Workers come after `grow_after` readings of pressure in a
//! row and leave one by one, each after `shrink_after` calm readings in a row; between calm and pressure
//! nothing changes. A step down that must be taken back doubles the calm it takes to try again, up to
//! [`SHRINK_BACKOFF_MAX`] times, so a steady load makes the number settle.

#[cfg(feature = "std")]
mod driver;

#[cfg(feature = "std")]
pub use driver::AdaptiveHandle;
#[cfg(feature = "std")]
pub(crate) use driver::adapt;

use core::fmt;
use core::num::{NonZeroU32, NonZeroUsize};
use core::time::Duration;

/// How many times as much calm as at first it may take until a worker leaves.
pub const SHRINK_BACKOFF_MAX: u32 = 32;

/// When workers come and when they leave; see [`AdaptiveOptions::up_to`] for the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveOptions {
    /// There are never fewer workers.
    pub workers_min: NonZeroUsize,
    /// There are never more workers; more than the runtime has threads are of no use.
    pub workers_max: NonZeroUsize,
    /// More ready actors per worker are pressure.
    pub depth_high: usize,
    /// Fewer ready actors per worker are calm, if they do not wait long either.
    pub depth_low: usize,
    /// A longer wait from ready to run is pressure.
    pub wait_high: Duration,
    /// A wait of up to this is calm.
    pub wait_low: Duration,
    /// Readings of pressure in a row until workers come.
    pub grow_after: NonZeroU32,
    /// Calm readings in a row until a worker leaves.
    pub shrink_after: NonZeroU32,
    /// How often a reading is taken.
    pub period: Duration,
}

impl AdaptiveOptions {
    /// From one worker up to so many: pressure is more than 4 ready actors per worker or a mean wait
    /// above 1 ms, calm is less than 1 and up to 100 µs; a reading every 100 ms, two of pressure to
    /// grow, 50 of calm to shrink.
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

/// What the workers have to do at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSample {
    /// How many workers there should be so far.
    pub workers: NonZeroUsize,
    /// Actors that wait for a worker.
    pub ready_depth: usize,
    /// How long actors waited on average since the last reading; `None` if no wait was measured.
    pub wait: Option<Duration>,
}

/// What is to become of the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is as it should be.
    Keep,
    /// There should be so many.
    Change(NonZeroUsize),
}

/// Decides how many workers there should be, from reading to reading.
#[derive(Clone, Debug)]
pub struct AdaptiveDispatcher {
    options: AdaptiveOptions,
    /// Readings of the same kind in a row, the last one included.
    streak: u32,
    last: LoadLevel,
    last_step: ScaleStep,
    /// How many times as much calm as at first it takes.
    patience: u32,
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
    /// Makes one that has seen nothing.
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
        Ok(Self { options, streak: 0, last: LoadLevel::Steady, last_step: ScaleStep::Up, patience: 1 })
    }

    /// Tells by what it decides.
    pub fn options(&self) -> &AdaptiveOptions {
        &self.options
    }

    /// Takes a reading; a number out of bounds is brought back at once.
    pub fn decide(&mut self, reading: &LoadSample) -> Decision {
        let AdaptiveOptions { workers_min, workers_max, .. } = self.options;
        let within = reading.workers.clamp(workers_min, workers_max);
        if within != reading.workers {
            self.streak = 0;
            return Decision::Change(within);
        }
        let load = self.load(reading);
        self.streak = if load == self.last { self.streak.saturating_add(1) } else { 1 };
        self.last = load;
        let wanted = match load {
            LoadLevel::Pressure if self.options.grow_after.get() <= self.streak => {
                self.step_up(reading.workers)
            }
            LoadLevel::Calm if self.calm_needed() <= self.streak => {
                NonZeroUsize::new(reading.workers.get() - 1).unwrap_or(workers_min)
            }
            _ => return Decision::Keep,
        };
        let wanted = wanted.clamp(workers_min, workers_max);
        if wanted == reading.workers {
            return Decision::Keep;
        }
        self.record_step(if reading.workers < wanted { ScaleStep::Up } else { ScaleStep::Down });
        Decision::Change(wanted)
    }

    fn load(&self, reading: &LoadSample) -> LoadLevel {
        let AdaptiveOptions { depth_high, depth_low, wait_high, wait_low, .. } = self.options;
        let per_worker = |depth: usize| depth.saturating_mul(reading.workers.get());
        let wait = reading.wait.unwrap_or_default();
        if per_worker(depth_high) < reading.ready_depth || wait_high < wait {
            return LoadLevel::Pressure;
        }
        if reading.ready_depth < per_worker(depth_low) && wait <= wait_low {
            return LoadLevel::Calm;
        }
        LoadLevel::Steady
    }

    /// A number that proved to be needed is left with patience, one that was stepped down to is not.
    fn calm_needed(&self) -> u32 {
        match self.last_step {
            ScaleStep::Up => self.options.shrink_after.get().saturating_mul(self.patience),
            ScaleStep::Down => self.options.shrink_after.get(),
        }
    }

    /// Half as many more; one more where a step down was one too many.
    fn step_up(&self, workers: NonZeroUsize) -> NonZeroUsize {
        match self.last_step {
            ScaleStep::Up => workers.saturating_add((workers.get() / 2).max(1)),
            ScaleStep::Down => workers.saturating_add(1),
        }
    }

    fn record_step(&mut self, step: ScaleStep) {
        self.patience = match (self.last_step, step) {
            (ScaleStep::Down, ScaleStep::Up) => (self.patience * 2).min(SHRINK_BACKOFF_MAX),
            // The load has changed: what was learned about the one before is of no use.
            (ScaleStep::Up, ScaleStep::Up) | (ScaleStep::Down, ScaleStep::Down) => 1,
            (ScaleStep::Up, ScaleStep::Down) => self.patience,
        };
        self.last_step = step;
        self.streak = 0;
    }
}

/// Why options are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidAdaptive {
    /// The least number of workers is above the greatest.
    Workers {
        /// The least.
        workers_min: NonZeroUsize,
        /// The greatest.
        workers_max: NonZeroUsize,
    },
    /// A depth is both calm and pressure.
    Depth {
        /// Below is calm.
        low: usize,
        /// Above is pressure.
        high: usize,
    },
    /// A wait is both calm and pressure.
    Wait {
        /// Up to it is calm.
        low: Duration,
        /// Above is pressure.
        high: Duration,
    },
    /// No time between two readings.
    Period,
}

impl fmt::Display for InvalidAdaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { workers_min, workers_max } => {
                write!(f, "workers_min is {workers_min}, above workers_max {workers_max}")
            }
            Self::Depth { low, high } => write!(f, "depth_low is {low}, above depth_high {high}"),
            Self::Wait { low, high } => write!(f, "wait_low is {low:?}, above wait_high {high:?}"),
            Self::Period => f.write_str("period is zero"),
        }
    }
}

impl core::error::Error for InvalidAdaptive {}

#[cfg(all(test, feature = "std"))]
mod tests;
