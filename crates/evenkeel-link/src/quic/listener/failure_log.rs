//! Log lines of failed connections: one per source and minute.

use std::collections::HashMap;

use evenkeel_policy::time::{Duration, Instant};

use super::admission::SourceNetwork;

const INTERVAL: Duration = Duration::from_secs(60);
/// Sources that get a line per interval.
const SOURCES_MAX: usize = 64;

/// Sources with a line within the last interval, and the number of failures without one.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    logged: HashMap<SourceNetwork, Instant>,
    unlogged: u64,
}

impl FailureLog {
    /// Records a failure; returns the number of failures without a line so far if this one is to be logged.
    pub(crate) fn record(&mut self, now: Instant, source: SourceNetwork) -> Option<u64> {
        self.logged.retain(|_, at| now.since(*at) < INTERVAL);
        if self.logged.contains_key(&source) || SOURCES_MAX <= self.logged.len() {
            self.unlogged += 1;
            return None;
        }
        self.logged.insert(source, now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gets_a_line_per_minute() {
        let mut log = FailureLog::default();
        assert_eq!(log.record(Instant::from_secs(0), host(1)), Some(0));
        assert_eq!(log.record(Instant::from_secs(59), host(1)), None);
        assert_eq!(log.record(Instant::from_secs(59), host(2)), Some(1));
        assert_eq!(log.record(Instant::from_secs(60), host(1)), Some(0));
        assert_eq!(log.record(Instant::from_secs(119), host(1)), None);
    }

    #[test]
    fn lines_and_memory_are_limited_whatever_the_number_of_sources() {
        let mut log = FailureLog::default();
        let lines = (0..10_000).filter(|n| log.record(Instant::from_millis(*n), host(*n as u32)).is_some());
        assert_eq!(lines.count(), SOURCES_MAX);
        assert_eq!(log.logged.len(), SOURCES_MAX);
        assert_eq!(log.record(Instant::from_secs(60), host(0)), Some(10_000 - SOURCES_MAX as u64));
    }

    fn host(number: u32) -> SourceNetwork {
        SourceNetwork::of(std::net::Ipv4Addr::from_bits(number).into())
    }
}
