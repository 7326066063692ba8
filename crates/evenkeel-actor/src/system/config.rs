//! The settings of a system.

use core::fmt;
use core::num::NonZeroUsize;

use crate::guardian::Supervision;
use crate::hub::Labels;
use crate::mailbox::{InvalidMailbox, MailboxOptions};
use crate::raw::slab::SLOTS_MAX;

/// The settings of a system.
#[derive(Clone, Copy, Debug)]
pub struct ActorSystemConfig {
    /// Tasks that run actors; on a runtime with threads, as many as it has.
    pub workers: NonZeroUsize,
    /// How many there may be when their number is changed; each takes a kilobyte also while there are
    /// fewer, and more when it first works.
    pub workers_max: NonZeroUsize,
    /// Cells a worker takes at a time; more than one only for short handlers, because what is taken
    /// cannot be stolen.
    pub worker_batch: NonZeroUsize,
    /// Actors at a time.
    pub actors_max: u32,
    /// Timers and deadlines at a time.
    pub timers_max: u32,
    /// Names of actors at a time.
    pub names_max: usize,
    /// The mailboxes of actors whose props choose none; its middleware surrounds their runs.
    pub mailbox: MailboxOptions,
    /// Dead letters kept for looking at; all are counted.
    pub dead_letters_max: usize,
    /// Actors told apart in metrics.
    pub labels_max: u16,
    /// Whether runs and waits are timed.
    pub metrics: Metrics,
    /// What happens to actors without a parent that fail.
    pub supervision: Supervision,
}

/// Whether a system times what it does; it counts in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    /// One run in 64 is timed, and one wait in 64.
    #[default]
    On,
    /// Nothing is timed.
    Off,
}

impl ActorSystemConfig {
    /// The most workers a system has.
    pub const WORKERS_MAX: usize = 1024;

    /// How many workers there may be unless the settings say otherwise; one without std.
    pub const WORKERS_MAX_DEFAULT: NonZeroUsize = if cfg!(feature = "std") {
        NonZeroUsize::new(64).expect("64 is not zero")
    } else {
        NonZeroUsize::MIN
    };

    /// A system with `workers` workers and everything else as by default, room for them included.
    pub fn with_workers(workers: NonZeroUsize) -> Self {
        Self { workers, workers_max: workers.max(Self::WORKERS_MAX_DEFAULT), ..Self::default() }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidConfig> {
        if Self::WORKERS_MAX < self.workers.get() {
            return Err(InvalidConfig::Workers { workers: self.workers.get() });
        }
        if cfg!(not(feature = "std")) && self.workers.get() != 1 {
            return Err(InvalidConfig::Workers { workers: self.workers.get() });
        }
        let places_max = if cfg!(feature = "std") { Self::WORKERS_MAX } else { 1 };
        if self.workers_max < self.workers || places_max < self.workers_max.get() {
            let workers = self.workers.get();
            let workers_max = self.workers_max.get();
            return Err(InvalidConfig::WorkersMax { workers, workers_max, places_max });
        }
        if self.actors_max == 0 || SLOTS_MAX < self.actors_max {
            return Err(InvalidConfig::ActorsMax { actors_max: self.actors_max });
        }
        self.mailbox.validate().map_err(InvalidConfig::Mailbox)
    }
}

impl Default for ActorSystemConfig {
    fn default() -> Self {
        Self {
            workers: NonZeroUsize::MIN,
            workers_max: Self::WORKERS_MAX_DEFAULT,
            worker_batch: NonZeroUsize::MIN,
            actors_max: 10_000_000,
            timers_max: 1_000_000,
            names_max: 65_536,
            mailbox: MailboxOptions::default(),
            dead_letters_max: 256,
            labels_max: Labels::MAX_DEFAULT,
            metrics: Metrics::On,
            supervision: Supervision::default(),
        }
    }
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidConfig {
    /// More workers than there can be: 1024, or 1 without std.
    Workers {
        /// What was asked for.
        workers: usize,
    },
    /// Fewer places for workers than there are workers, or more than there can be.
    WorkersMax {
        /// How many workers are asked for.
        workers: usize,
        /// How many there may be.
        workers_max: usize,
        /// How many there can be.
        places_max: usize,
    },
    /// No actors, or more than can be counted.
    ActorsMax {
        /// What was asked for.
        actors_max: u32,
    },
    /// The mailboxes of actors whose props choose none make no sense.
    Mailbox(InvalidMailbox),
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { workers } if cfg!(feature = "std") => {
                write!(f, "workers is {workers}, above {}", ActorSystemConfig::WORKERS_MAX)
            }
            Self::Workers { workers } => write!(f, "workers is {workers}; without std there is one"),
            Self::WorkersMax { workers, workers_max, places_max } => {
                write!(f, "workers_max is {workers_max}, not from {workers} to {places_max}")
            }
            Self::ActorsMax { actors_max } => {
                write!(f, "actors_max is {actors_max}, not from 1 to {SLOTS_MAX}")
            }
            Self::Mailbox(error) => write!(f, "invalid mailbox: {error}"),
        }
    }
}

impl core::error::Error for InvalidConfig {}
