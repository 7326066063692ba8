//! Results of one workload, and ratios to the baseline.

use bench_support::Quartiles;

use super::child::ChildError;
use super::table::short;
use crate::sample::Sample;
use crate::workload::{Better, Contender, MetricSpec, Workload};

/// A contender with its settings and the label of its row.
#[derive(Clone)]
pub(super) struct Entrant {
    pub(super) label: String,
    pub(super) contender: &'static Contender,
    /// `key=value` arguments of the child process.
    pub(super) settings: Vec<String>,
}

/// Samples of one entrant over all rounds.
pub(super) struct RowSamples {
    pub(super) entrant: Entrant,
    /// One per round, in order; `None` for a failed round.
    samples: Vec<Option<Sample>>,
    last_error: Option<ChildError>,
}

impl RowSamples {
    pub(super) fn new(entrant: Entrant) -> Self {
        Self { entrant, samples: Vec::new(), last_error: None }
    }

    /// Reports whether the last error is permanent.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self.last_error, Some(ChildError::Unsupported(_)))
    }

    /// Records the outcome of a round, counted from 1.
    pub(super) fn record(&mut self, round: usize, outcome: Result<Sample, ChildError>) {
        self.samples.resize(round - 1, None);
        match outcome {
            Ok(sample) => self.samples.push(Some(sample)),
            Err(error) => {
                self.samples.push(None);
                self.last_error = Some(error);
            }
        }
    }

    /// Returns the number of rounds with a sample.
    pub(super) fn count(&self) -> usize {
        self.samples.iter().flatten().count()
    }

    /// Returns the last error and how many rounds failed, if any did.
    pub(super) fn error(&self) -> Option<String> {
        let last = self.last_error.as_ref()?;
        let rounds = self.samples.len();
        let failed = self.samples.len() - self.count();
        if self.is_unsupported() {
            return Some(last.to_string());
        }
        Some(format!("{last} ({failed} of {rounds} rounds)"))
    }

    pub(super) fn quartiles(&self, metric: &str) -> Option<Quartiles> {
        Quartiles::from_values(self.samples.iter().flatten().filter_map(|sample| sample.get(metric)))
    }

    /// Returns the names of the metrics.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &str> {
        self.samples.iter().flatten().take(1).flat_map(Sample::names)
    }

    /// Returns the ratio to the baseline, round by round; above 1 is better than the baseline for every metric.
    pub(super) fn ratio(&self, baseline: &Self, metric: MetricSpec) -> Option<Quartiles> {
        let pairs = self.samples.iter().zip(&baseline.samples);
        Quartiles::from_values(pairs.filter_map(|(own, base)| {
            let own = own.as_ref()?.get(metric.name)?;
            let base = base.as_ref()?.get(metric.name)?;
            Some(match metric.better {
                Better::Higher => own / base,
                Better::Lower => base / own,
            })
        }))
    }
}

/// Results of one workload; the first row is the baseline.
pub(super) struct Score {
    pub(super) workload: Workload,
    pub(super) rows: Vec<RowSamples>,
}

impl Score {
    pub(super) fn ratio(&self, row: &RowSamples) -> Option<Quartiles> {
        self.rows.first().and_then(|baseline| row.ratio(baseline, self.workload.metric()))
    }

    /// Describes the outcome of one turn in a line of progress.
    pub(super) fn describe(&self, row_index: usize, outcome: &Result<Sample, ChildError>) -> String {
        let workload = self.workload.name();
        let label = &self.rows[row_index].entrant.label;
        let MetricSpec { name, unit, .. } = self.workload.metric();
        match outcome {
            Ok(sample) => {
                let value = sample.get(name).map_or("no result".to_owned(), short);
                format!("{workload}, {label}: {value} {unit}")
            }
            Err(error) => format!("{workload}, {label}: {error}"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        // The machine is ten times slower for every contender in the second round.
        let score = score(Workload::Tell1, &[("base", &[10.0, 1.0, 12.0]), ("own", &[20.0, 2.0, 36.0])]);
        assert_eq!(
            score.ratio(&score.rows[1]),
            Some(Quartiles { lower: 2.0, median: 2.0, upper: 2.5 }),
            "a higher rate is better"
        );
        assert_eq!(score.ratio(&score.rows[0]).map(|ratio| ratio.median), Some(1.0));
    }

    #[test]
    fn half_the_latency_is_twice_as_good() {
        let score = score(Workload::Wake, &[("base", &[10.0]), ("own", &[5.0])]);
        assert_eq!(score.ratio(&score.rows[1]).map(|ratio| ratio.median), Some(2.0));
    }

    #[test]
    fn a_round_without_both_samples_is_left_out() {
        let mut score = score(Workload::Tell1, &[("base", &[10.0]), ("own", &[20.0])]);
        score.rows[0].record(2, Err(ChildError::TimedOut(Duration::from_secs(9))));
        score.rows[1].record(2, Ok(Sample::default().with("rate", 70.0)));
        score.rows[0].record(3, Ok(Sample::default().with("rate", 10.0)));
        score.rows[1].record(3, Err(ChildError::Failed("broken".to_owned())));
        assert_eq!(score.ratio(&score.rows[1]).map(|ratio| ratio.median), Some(2.0));
        assert_eq!(score.rows[0].error().as_deref(), Some("timed out after 9 s (1 of 3 rounds)"));
        assert_eq!(score.rows[1].error().as_deref(), Some("broken (1 of 3 rounds)"));
        assert!(!score.rows[1].is_unsupported());
    }

    #[test]
    fn an_unsupported_contender_is_not_retried() {
        let mut score = score(Workload::Tell1, &[("base", &[10.0]), ("own", &[])]);
        score.rows[1].record(1, Err(ChildError::Unsupported("unsupported: no skynet".to_owned())));
        assert!(score.rows[1].is_unsupported());
        assert_eq!(score.rows[1].error().as_deref(), Some("unsupported: no skynet"));
        assert_eq!(score.ratio(&score.rows[1]), None);
    }

    /// Builds a score with the given values of the headline metric, one per round.
    pub(in super::super) fn score(workload: Workload, rows: &[(&str, &[f64])]) -> Score {
        let row = |(label, values): &(&str, &[f64])| {
            let contender = &workload.contenders()[0];
            let mut row =
                RowSamples::new(Entrant { label: (*label).to_owned(), contender, settings: Vec::new() });
            for (index, value) in values.iter().enumerate() {
                let sample =
                    Sample::default().with(workload.metric().name, *value).with("cpu_ns_per_op", 123.4);
                row.record(index + 1, Ok(sample));
            }
            row
        };
        Score { workload, rows: rows.iter().map(row).collect() }
    }
}
