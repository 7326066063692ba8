//! One table row: the samples of one contender over all rounds, and its ratio to another row.

use std::io;

use crate::Quartiles;

/// Named metrics of one turn: one contender running one workload once.
pub type TurnSample = Vec<(&'static str, f64)>;

/// A turn that produced no sample.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// All rounds of one contender in one workload.
pub struct RowSamples {
    /// First cell of the row.
    pub label: String,
    /// One per round, in order; `None` for a failed turn.
    samples: Vec<Option<TurnSample>>,
    pub last_error: Option<RunError>,
}

impl RowSamples {
    /// Creates a row without samples.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), samples: Vec::new(), last_error: None }
    }

    /// Records the outcome of the next round.
    pub fn record(&mut self, outcome: Result<TurnSample, RunError>) {
        match outcome {
            Ok(sample) => self.samples.push(Some(sample)),
            Err(error) => {
                self.samples.push(None);
                self.last_error = Some(error);
            }
        }
    }

    /// Returns the sample of the last round.
    pub fn last(&self) -> Option<&TurnSample> {
        self.samples.last()?.as_ref()
    }

    /// Returns the sample of the last round for adding metrics.
    pub fn last_mut(&mut self) -> Option<&mut TurnSample> {
        self.samples.last_mut()?.as_mut()
    }

    /// Returns the quartiles of a metric over all rounds.
    pub fn quartiles(&self, metric: &str) -> Option<Quartiles> {
        Quartiles::from_values(self.samples.iter().flatten().filter_map(|sample| get(sample, metric)))
    }

    /// Returns the largest value of a metric over all rounds.
    pub fn max(&self, metric: &str) -> Option<f64> {
        self.samples.iter().flatten().filter_map(|sample| get(sample, metric)).reduce(f64::max)
    }

    /// Returns the quartiles of the ratio to `other`, round by round; below 1 means less than `other`.
    pub fn ratio(&self, other: &Self, metric: &str) -> Option<Quartiles> {
        let pairs = self.samples.iter().zip(&other.samples);
        let ratios = pairs
            .filter_map(|(own, other)| Some(get(own.as_ref()?, metric)? / get(other.as_ref()?, metric)?));
        // An overhead of zero or less has no meaningful ratio.
        Quartiles::from_values(ratios.filter(|ratio| *ratio > 0.0))
    }
}

/// Returns a metric of a sample.
pub fn get(sample: &TurnSample, name: &str) -> Option<f64> {
    sample.iter().find(|(own, _)| *own == name).map(|(_, metric)| *metric)
}

/// Returns the p50 and p99 in microseconds; an empty sample if there are no latencies.
pub fn latency_percentiles(mut latencies_ns: Vec<u64>) -> TurnSample {
    latencies_ns.sort_unstable();
    let Some(last) = latencies_ns.len().checked_sub(1) else { return TurnSample::new() };
    let percentile = |percent: usize| latencies_ns[last * percent / 100] as f64 / 1e3;
    vec![("p50_us", percentile(50)), ("p99_us", percentile(99))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        // The machine is ten times slower for every contender in the second round.
        let baseline = row(&[1.0, 10.0, 1.0]);
        let own = row(&[2.0, 20.0, 2.0]);
        let ratio = own.ratio(&baseline, "cpu_us").unwrap();
        assert_eq!((ratio.lower, ratio.median, ratio.upper), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_failed_round_is_left_out_of_the_ratio() {
        let mut baseline = row(&[1.0]);
        let mut own = row(&[2.0]);
        baseline.record(Err(RunError("crashed".to_owned())));
        own.record(Ok(vec![("cpu_us", 100.0)]));
        assert_eq!(own.ratio(&baseline, "cpu_us").map(|ratio| ratio.upper), Some(2.0));
    }

    #[test]
    fn percentiles_are_latencies_that_were_measured() {
        let sample = latency_percentiles((1..=1000).rev().map(|us| us * 1000).collect());
        assert_eq!(sample, [("p50_us", 500.0), ("p99_us", 990.0)]);
        assert_eq!(latency_percentiles(Vec::new()), []);
    }

    fn row(values: &[f64]) -> RowSamples {
        let mut row = RowSamples::new("own");
        values.iter().for_each(|value| row.record(Ok(vec![("cpu_us", *value)])));
        row
    }
}
