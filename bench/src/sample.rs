//! Metrics of one run, printed as one line of `key=value` pairs.

use std::fmt;
use std::time::Duration;

/// Named metrics, in the order they are printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<(String, f64)>);

impl Sample {
    /// Creates a sample with the metrics that every workload has: operations, time, rate and CPU time.
    pub fn new(ops: u64, wall: Duration, cpu: Duration) -> Self {
        let secs = wall.as_secs_f64();
        Self::default()
            .with("ops", ops as f64)
            .with("secs", secs)
            .with("rate", ops as f64 / secs)
            .with("cpu_ns_per_op", cpu.as_secs_f64() * 1e9 / ops as f64)
    }

    /// Adds a metric; its name ends with its unit.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.0.push((name.to_owned(), value));
        self
    }

    /// Adds the p50, p95 and p99 of `latencies` (in nanoseconds), if there are any.
    #[must_use]
    pub fn with_latencies(mut self, prefix: &str, mut latencies: Vec<u64>) -> Self {
        latencies.sort_unstable();
        let Some(last) = latencies.len().checked_sub(1) else { return self };
        for percent in [50, 95, 99] {
            let us = latencies[last * percent / 100] as f64 / 1e3;
            self = self.with(&format!("{prefix}p{percent}_us"), us);
        }
        self
    }

    /// Returns a metric by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Returns the names of the metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Parses the output of [`Display`](fmt::Display); `None` if `line` is anything else.
    pub fn parse(line: &str) -> Option<Self> {
        let metrics: Option<Vec<_>> = line
            .split_whitespace()
            .map(|word| {
                let (name, value) = word.split_once('=')?;
                let value: f64 = value.parse().ok()?;
                value.is_finite().then(|| (name.to_owned(), value))
            })
            .collect();
        metrics.filter(|metrics| !metrics.is_empty()).map(Self)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{name}={value:.6}")?;
        }
        Ok(())
    }
}

/// A run that produced no sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The runtime does not support the workload or a setting; retrying is pointless.
    #[error("unsupported: {0}")]
    Unsupported(&'static str),
    #[error("{0}")]
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_sample_parses_back() {
        let sample = Sample::new(2_000_000, Duration::from_millis(500), Duration::from_secs(1));
        let line = sample.to_string();
        assert_eq!(line, "ops=2000000.000000 secs=0.500000 rate=4000000.000000 cpu_ns_per_op=500.000000");
        assert_eq!(Sample::parse(&line), Some(sample));
    }

    #[test]
    fn anything_else_is_not_a_sample() {
        for line in ["", "hello", "ops=many", "ops=1 and", "rate=NaN", "rate=inf"] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
    }

    #[test]
    fn percentiles_are_latencies_that_were_measured() {
        let sample =
            Sample::default().with_latencies("echo_", (1..=1000).rev().map(|us| us * 1000).collect());
        let names: Vec<_> = sample.names().collect();
        assert_eq!(names, ["echo_p50_us", "echo_p95_us", "echo_p99_us"]);
        let values: Vec<_> = names.iter().filter_map(|name| sample.get(name)).collect();
        assert_eq!(values, [500.0, 950.0, 990.0]);
        assert_eq!(Sample::default().with_latencies("", Vec::new()), Sample::default());
    }
}
