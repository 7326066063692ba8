//! Times that survive a restart.

use core::fmt;
use core::ops::Add;
use core::time::Duration;
use std::time::{Instant, SystemTime};

/// A moment, in milliseconds since 1970.
///
/// What is written down must mean the same after a restart, so the queue counts in wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// How long ago `earlier` was; zero when it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for UnixMillis {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// Reads wall time that never runs backwards within a process.
///
/// It is the machine's wall time at the start and the machine's steady clock from there on: an operator
/// who sets the clock back neither prolongs leases nor ends them.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    started: Instant,
    at: UnixMillis,
}

impl WallClock {
    /// Starts from the machine's wall time.
    pub fn start() -> Self {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self { started: Instant::now(), at: UnixMillis::default() + since_1970 }
    }

    /// Reads the time.
    pub fn now(&self) -> UnixMillis {
        self.at + self.started.elapsed()
    }
}
