//! The configuration of an actor system.

use core::num::NonZeroUsize;
use core::time::Duration;

use crate::guardian::Supervision;
use crate::hub::Labels;
use crate::mailbox::{InvalidMailbox, MailboxOptions};
use crate::raw::slab::SLOTS_MAX;

/// The configuration of an actor system.
#[derive(Clone, Copy, Debug)]
pub struct ActorSystemConfig {
    /// The number of worker tasks that run actors; `None` for the number that suits the runtime
    /// ([`RuntimeHandle::workers_default`](crate::runtime::RuntimeHandle::workers_default)), at most `workers_max`.
    pub workers: Option<NonZeroUsize>,
    /// The upper limit for changing the number of workers later. Each possible worker takes a kilobyte of memory, and
    /// more once it has run.
    pub workers_max: NonZeroUsize,
    /// The number of cells a worker takes from its queue at once. More than one suits only short handlers, because
    /// taken cells cannot be stolen.
    pub worker_batch: NonZeroUsize,
    /// The maximum number of actors alive at the same time.
    pub actors_max: u32,
    /// The maximum number of pending timers and deadlines.
    pub timers_max: u32,
    /// The maximum number of registered actor names; used with the feature `patterns`.
    pub names_max: usize,
    /// The mailbox, middleware included, of actors whose props set none.
    pub mailbox: MailboxOptions,
    /// The maximum number of stored dead letters; all are counted.
    pub dead_letters_max: usize,
    /// The maximum number of actor labels in metrics; the rest share the label `other`.
    pub labels_max: u16,
    /// Turns the timing of runs and waits on or off.
    pub metrics: Metrics,
    /// The longest suspension until [`WhenCapacityAvailable`](crate::ResumeCondition::WhenCapacityAvailable); then the
    /// actor resumes with [`Signal::CapacityTimeout`](crate::Signal::CapacityTimeout). With `std`, also the limit of a
    /// [`send`](crate::ActorRef::send) that an actor awaits directly in its future.
    pub capacity_wait_max: Duration,
    /// The supervision of actors without a parent.
    pub supervision: Supervision,
}

/// Timing of runs and waits; counters are always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    /// Times one run in 64 and one wait in 64.
    #[default]
    On,
    /// Times nothing.
    Off,
}

impl ActorSystemConfig {
    /// The maximum number of workers of a system.
    pub const WORKERS_MAX: usize = 1024;

    /// The default of [`workers_max`](Self::workers_max); one without std.
    pub const WORKERS_MAX_DEFAULT: NonZeroUsize = if cfg!(feature = "std") {
        NonZeroUsize::new(64).expect("64 is not zero")
    } else {
        NonZeroUsize::MIN
    };

    /// Returns the default configuration with `workers` workers, and `workers_max` raised to them if needed.
    pub fn with_workers(workers: NonZeroUsize) -> Self {
        Self {
            workers: Some(workers),
            workers_max: workers.max(Self::WORKERS_MAX_DEFAULT),
            ..Self::default()
        }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidConfig> {
        let workers = self.workers.map_or(1, NonZeroUsize::get);
        let limit = if cfg!(feature = "std") { Self::WORKERS_MAX } else { 1 };
        if workers > limit {
            return Err(InvalidConfig::Workers { workers });
        }
        if self.workers_max.get() < workers || self.workers_max.get() > limit {
            let workers_max = self.workers_max.get();
            return Err(InvalidConfig::WorkersMax { workers, workers_max, limit });
        }
        if self.actors_max == 0 || self.actors_max > SLOTS_MAX {
            return Err(InvalidConfig::ActorsMax { actors_max: self.actors_max });
        }
        if self.capacity_wait_max.is_zero() {
            return Err(InvalidConfig::CapacityWaitMax);
        }
        self.mailbox.validate().map_err(InvalidConfig::Mailbox)
    }
}

impl Default for ActorSystemConfig {
    fn default() -> Self {
        Self {
            workers: None,
            workers_max: Self::WORKERS_MAX_DEFAULT,
            worker_batch: NonZeroUsize::MIN,
            actors_max: 10_000_000,
            timers_max: 1_000_000,
            names_max: 65_536,
            mailbox: MailboxOptions::default(),
            dead_letters_max: 256,
            labels_max: Labels::MAX_DEFAULT,
            metrics: Metrics::On,
            capacity_wait_max: Duration::from_secs(5),
            supervision: Supervision::default(),
        }
    }
}

/// Reason a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// More workers than the limit: 1024, or 1 without `std`.
    #[error("workers is {workers}, above the limit of {}", if cfg!(feature = "std") { ActorSystemConfig::WORKERS_MAX } else { 1 })]
    Workers {
        /// The configured number.
        workers: usize,
    },
    /// `workers_max` is below `workers`, or above the limit.
    #[error("workers_max is {workers_max}, not from {workers} to {limit}")]
    WorkersMax {
        /// The configured number of workers.
        workers: usize,
        /// The configured maximum.
        workers_max: usize,
        /// The limit for the maximum.
        limit: usize,
    },
    /// `actors_max` is zero or above the limit.
    #[error("actors_max is {actors_max}, not from 1 to {SLOTS_MAX}")]
    ActorsMax {
        /// The configured maximum.
        actors_max: u32,
    },
    /// `capacity_wait_max` is zero.
    #[error("capacity_wait_max is zero")]
    CapacityWaitMax,
    /// The default mailbox is invalid.
    #[error("invalid mailbox: {0}")]
    Mailbox(#[source] InvalidMailbox),
}
