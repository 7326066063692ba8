//! What the rounds gave, contender by contender, and how each compares with the baseline.

use bench_figures::Quartiles;

use crate::contender::Contender;
use crate::workload::{Sample, Trouble, Workload};

/// All rounds of one workload.
pub(crate) struct Score {
    pub(crate) workload: Workload,
    pub(crate) lines: Vec<Line>,
    /// The label of whom the others are compared with.
    pub(crate) baseline: String,
}

/// All rounds of one contender in one workload.
pub(crate) struct Line {
    pub(crate) label: String,
    /// In the order of the rounds; `None` where there was trouble.
    samples: Vec<Option<Sample>>,
    pub(crate) trouble: Option<Trouble>,
}

impl Line {
    pub(crate) fn new(label: &str) -> Self {
        Self { label: label.to_owned(), samples: Vec::new(), trouble: None }
    }

    /// Writes down how the next round ended.
    pub(crate) fn note(&mut self, outcome: Result<Sample, Trouble>) {
        match outcome {
            Ok(sample) => self.samples.push(Some(sample)),
            Err(trouble) => {
                self.samples.push(None);
                self.trouble = Some(trouble);
            }
        }
    }

    pub(crate) fn quartiles(&self, figure: &str) -> Option<Quartiles> {
        Quartiles::of(self.samples.iter().flatten().filter_map(|sample| get(sample, figure)))
    }

    /// Compares with another's figure of the same round; below 1 is less than the other.
    fn ratio(&self, other: &Self, figure: &str) -> Option<Quartiles> {
        let pairs = self.samples.iter().zip(&other.samples);
        let ratios = pairs
            .filter_map(|(own, other)| Some(get(own.as_ref()?, figure)? / get(other.as_ref()?, figure)?));
        // Where nothing was added, there is nothing to be a part of.
        Quartiles::of(ratios.filter(|ratio| 0.0 < *ratio))
    }
}

impl Score {
    pub(crate) fn line(&self, label: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.label == label)
    }

    pub(crate) fn ratio(&self, line: &Line, figure: &str) -> Option<Quartiles> {
        line.ratio(self.line(&self.baseline)?, figure)
    }

    /// Writes down, for the round that just ended, what everybody added to the delay without anybody.
    pub(crate) fn note_added(&mut self) {
        let direct = self.line(Contender::DIRECT).and_then(|line| line.samples.last().cloned().flatten());
        let Some(direct) = direct else { return };
        for line in self.lines.iter_mut().filter(|line| line.label != Contender::DIRECT) {
            let Some(Some(sample)) = line.samples.last_mut() else { continue };
            for (whole, added) in [("p50_us", "added_p50_us"), ("p99_us", "added_p99_us")] {
                if let (Some(own), Some(least)) = (get(sample, whole), get(&direct, whole)) {
                    sample.push((added, own - least));
                }
            }
        }
    }
}

fn get(sample: &Sample, name: &str) -> Option<f64> {
    sample.iter().find(|(own, _)| *own == name).map(|(_, figure)| *figure)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        // The machine is ten times slower in the second round, for everybody.
        let score = score("cpu_us", &[("haproxy", &[1.0, 10.0, 1.0]), ("own", &[2.0, 20.0, 2.0])]);
        let ratio = score.ratio(&score.lines[1], "cpu_us").unwrap();
        assert_eq!((ratio.lower, ratio.median, ratio.upper), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_round_with_trouble_compares_with_nothing() {
        let mut score = score("cpu_us", &[("haproxy", &[1.0]), ("own", &[2.0])]);
        score.lines[0].note(Err(Trouble("fell".to_owned())));
        score.lines[1].note(Ok(vec![("cpu_us", 100.0)]));
        assert_eq!(score.ratio(&score.lines[1], "cpu_us").map(|ratio| ratio.upper), Some(2.0));
    }

    #[test]
    fn what_is_added_is_what_nobody_would_have_taken_off() {
        let mut score = score("p50_us", &[("direct", &[30.0]), ("haproxy", &[70.0])]);
        score.note_added();
        assert_eq!(score.lines[1].quartiles("added_p50_us").map(|added| added.median), Some(40.0));
        assert_eq!(score.lines[0].quartiles("added_p50_us"), None);
    }

    pub(crate) fn score(figure: &'static str, lines: &[(&str, &[f64])]) -> Score {
        let line = |(label, figures): &(&str, &[f64])| {
            let mut line = Line::new(label);
            figures.iter().for_each(|number| line.note(Ok(vec![(figure, *number)])));
            line
        };
        Score {
            workload: Workload::Load,
            lines: lines.iter().map(line).collect(),
            baseline: "haproxy".to_owned(),
        }
    }
}
