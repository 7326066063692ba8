//! Durations in seconds.

use core::time::Duration;

/// A duration in whole seconds whose range was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) u64);

impl From<Seconds> for Duration {
    fn from(seconds: Seconds) -> Self {
        Self::from_secs(seconds.0)
    }
}
