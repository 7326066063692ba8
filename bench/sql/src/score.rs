//! The samples of all contenders in one case, and their ratios.

use bench_support::{Quartiles, RowSamples};

use crate::case::{SqlCase, SqlMetric};
use crate::contender::BASELINE;

/// All rounds of one case.
pub(crate) struct CaseScore {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) metrics: &'static [SqlMetric],
    /// Label of the row that the others are compared with.
    pub(crate) baseline: &'static str,
    pub(crate) rows: Vec<RowSamples>,
}

impl CaseScore {
    /// Creates the score of a case in which every query is sent as soon as the one before has ended.
    pub(crate) fn new(case: SqlCase, rows: Vec<RowSamples>) -> Self {
        Self { name: case.name(), about: case.about(), metrics: case.metrics(), baseline: BASELINE, rows }
    }

    /// Returns the ratio to the baseline.
    pub(crate) fn ratio(&self, row: &RowSamples, metric: &str) -> Option<Quartiles> {
        row.ratio(self.row(self.baseline)?, metric)
    }

    pub(crate) fn row(&self, label: &str) -> Option<&RowSamples> {
        self.rows.iter().find(|row| row.label == label)
    }
}
