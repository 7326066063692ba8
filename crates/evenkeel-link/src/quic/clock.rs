//! Conversion of the system's instants to those of the policies.

use evenkeel_policy::time::Instant;

/// Clock of a link; its origin is the instant at which it was started.
#[derive(Clone, Copy, Debug)]
pub struct LinkClock {
    pub(super) origin: std::time::Instant,
}

impl LinkClock {
    /// Starts the clock; needs no Tokio runtime.
    pub fn start() -> Self {
        Self { origin: now() }
    }

    /// Returns the current instant.
    pub fn now(&self) -> Instant {
        self.at(now())
    }

    /// Converts an instant of the system; one before the origin becomes the origin.
    pub fn at(&self, instant: std::time::Instant) -> Instant {
        Instant::ORIGIN + instant.saturating_duration_since(self.origin)
    }
}

/// Returns Tokio's time, which tests can pause.
fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}
