//! What the rounds gave, contender by contender, and how each compares with the baseline.

use bench_support::{Quartiles, RowSamples, get};

use crate::contender::Contender;
use crate::workload::LlmWorkload;

/// All rounds of one workload.
pub(crate) struct Score {
    pub(crate) workload: LlmWorkload,
    pub(crate) lines: Vec<RowSamples>,
    /// The label of whom the others are compared with.
    pub(crate) baseline: String,
}

impl Score {
    pub(crate) fn line(&self, label: &str) -> Option<&RowSamples> {
        self.lines.iter().find(|line| line.label == label)
    }

    pub(crate) fn ratio(&self, line: &RowSamples, figure: &str) -> Option<Quartiles> {
        line.ratio(self.line(&self.baseline)?, figure)
    }

    /// Writes down, for the round that just ended, what everybody added to the delay without anybody.
    pub(crate) fn note_added(&mut self) {
        let direct = self.line(Contender::DIRECT).and_then(|line| line.last().cloned());
        let Some(direct) = direct else { return };
        for line in self.lines.iter_mut().filter(|line| line.label != Contender::DIRECT) {
            let Some(sample) = line.last_mut() else { continue };
            for (whole, added) in [("p50_us", "added_p50_us"), ("p99_us", "added_p99_us")] {
                if let (Some(own), Some(least)) = (get(sample, whole), get(&direct, whole)) {
                    sample.push((added, own - least));
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_what_nobody_would_have_taken_off() {
        let mut score = score("p50_us", &[("direct", &[30.0]), ("haproxy", &[70.0])]);
        score.note_added();
        assert_eq!(score.lines[1].quartiles("added_p50_us").map(|added| added.median), Some(40.0));
        assert_eq!(score.lines[0].quartiles("added_p50_us"), None);
    }

    pub(crate) fn score(figure: &'static str, lines: &[(&str, &[f64])]) -> Score {
        let line = |(label, figures): &(&str, &[f64])| {
            let mut line = RowSamples::new(label);
            figures.iter().for_each(|number| line.note(Ok(vec![(figure, *number)])));
            line
        };
        Score {
            workload: LlmWorkload::Load,
            lines: lines.iter().map(line).collect(),
            baseline: "haproxy".to_owned(),
        }
    }
}
