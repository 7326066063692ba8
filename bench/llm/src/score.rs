//! Results of one workload, and ratios to the baseline.

use bench_support::{Quartiles, RowSamples, get};

use crate::contender::Contender;
use crate::workload::LlmWorkload;

/// All rounds of one workload.
pub(crate) struct Score {
    pub(crate) workload: LlmWorkload,
    pub(crate) rows: Vec<RowSamples>,
    /// Label of the row that the others are compared with.
    pub(crate) baseline: String,
}

impl Score {
    pub(crate) fn row(&self, label: &str) -> Option<&RowSamples> {
        self.rows.iter().find(|row| row.label == label)
    }

    pub(crate) fn ratio(&self, row: &RowSamples, metric: &str) -> Option<Quartiles> {
        row.ratio(self.row(&self.baseline)?, metric)
    }

    /// Adds the overhead, which is the latency above that of `direct`, to the samples of the last round.
    pub(crate) fn record_overhead(&mut self) {
        let direct = self.row(Contender::DIRECT).and_then(|row| row.last().cloned());
        let Some(direct) = direct else { return };
        for row in self.rows.iter_mut().filter(|row| row.label != Contender::DIRECT) {
            let Some(sample) = row.last_mut() else { continue };
            for (total, added) in [("p50_us", "added_p50_us"), ("p99_us", "added_p99_us")] {
                if let (Some(own), Some(direct)) = (get(sample, total), get(&direct, total)) {
                    sample.push((added, own - direct));
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_overhead_is_the_latency_above_direct() {
        let mut score = score("p50_us", &[("direct", &[30.0]), ("haproxy", &[70.0])]);
        score.record_overhead();
        assert_eq!(score.rows[1].quartiles("added_p50_us").map(|added| added.median), Some(40.0));
        assert_eq!(score.rows[0].quartiles("added_p50_us"), None);
    }

    pub(crate) fn score(metric: &'static str, rows: &[(&str, &[f64])]) -> Score {
        let row = |(label, values): &(&str, &[f64])| {
            let mut row = RowSamples::new(label);
            values.iter().for_each(|value| row.record(Ok(vec![(metric, *value)])));
            row
        };
        Score {
            workload: LlmWorkload::Load,
            rows: rows.iter().map(row).collect(),
            baseline: "haproxy".to_owned(),
        }
    }
}
