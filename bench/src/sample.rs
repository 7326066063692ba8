//! What one run gave: named figures, as one line of `key=value` words.

use std::fmt;
use std::time::Duration;

/// Named figures in the order they are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<(String, f64)>);

impl Sample {
    /// Starts a sample with what every workload has: how often something was done, and the time it took.
    pub fn new(ops: u64, wall: Duration, cpu: Duration) -> Self {
        let secs = wall.as_secs_f64();
        Self::default()
            .with("ops", ops as f64)
            .with("secs", secs)
            .with("rate", ops as f64 / secs)
            .with("cpu_ns_per_op", cpu.as_secs_f64() * 1e9 / ops as f64)
    }

    /// Adds a figure; its unit ends its name.
    #[must_use]
    pub fn with(mut self, name: &str, figure: f64) -> Self {
        self.0.push((name.to_owned(), figure));
        self
    }

    /// Adds the delays below which half, 95 % and 99 % of all `delays` (in nanoseconds) lie, if there are any.
    #[must_use]
    pub fn with_delays(mut self, prefix: &str, mut delays: Vec<u64>) -> Self {
        delays.sort_unstable();
        let Some(last) = delays.len().checked_sub(1) else { return self };
        for percent in [50, 95, 99] {
            let us = delays[last * percent / 100] as f64 / 1e3;
            self = self.with(&format!("{prefix}p{percent}_us"), us);
        }
        self
    }

    /// Looks a figure up.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, figure)| *figure)
    }

    /// Lists the figures' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Reads back what [`Display`](fmt::Display) wrote; `None` if it did not.
    pub fn parse(line: &str) -> Option<Self> {
        let figures: Option<Vec<_>> = line
            .split_whitespace()
            .map(|word| {
                let (name, figure) = word.split_once('=')?;
                let figure: f64 = figure.parse().ok()?;
                figure.is_finite().then(|| (name.to_owned(), figure))
            })
            .collect();
        figures.filter(|figures| !figures.is_empty()).map(Self)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, figure)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { " " };
            write!(f, "{separator}{name}={figure:.6}")?;
        }
        Ok(())
    }
}

/// Why a run gave no sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSample {
    /// The runtime cannot do what was asked, and never could.
    Unsupported(&'static str),
    /// Something went wrong that goes right on another day, or on another machine.
    Failed(String),
}

impl fmt::Display for NoSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) => write!(f, "unsupported: {what}"),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for NoSample {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_written() {
        let sample = Sample::new(2_000_000, Duration::from_millis(500), Duration::from_secs(1));
        let line = sample.to_string();
        assert_eq!(line, "ops=2000000.000000 secs=0.500000 rate=4000000.000000 cpu_ns_per_op=500.000000");
        assert_eq!(Sample::parse(&line), Some(sample));
    }

    #[test]
    fn a_line_of_something_else_is_no_sample() {
        for line in ["", "hello", "ops=many", "ops=1 and", "rate=NaN", "rate=inf"] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
    }

    #[test]
    fn percentiles_are_delays_that_were_seen() {
        let sample = Sample::default().with_delays("echo_", (1..=1000).rev().map(|us| us * 1000).collect());
        let names: Vec<_> = sample.names().collect();
        assert_eq!(names, ["echo_p50_us", "echo_p95_us", "echo_p99_us"]);
        let figures: Vec<_> = names.iter().filter_map(|name| sample.get(name)).collect();
        assert_eq!(figures, [500.0, 950.0, 990.0]);
        assert_eq!(Sample::default().with_delays("", Vec::new()), Sample::default());
    }
}
