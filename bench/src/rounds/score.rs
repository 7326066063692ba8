//! What the rounds of one workload gave, contender by contender, and how each compares with the baseline.

use bench_support::Quartiles;

use super::child::ChildError;
use super::table::short;
use crate::sample::Sample;
use crate::workload::{Better, Contender, MetricSpec, Workload};

/// A contender with the settings it runs under, as the rows of a table name it.
#[derive(Clone)]
pub(super) struct Entrant {
    pub(super) label: String,
    pub(super) contender: &'static Contender,
    /// `key=value` words for the child.
    pub(super) settings: Vec<String>,
}

/// All rounds of one entrant.
pub(super) struct RowSamples {
    pub(super) entrant: Entrant,
    /// In the order of the rounds; `None` where there was trouble.
    samples: Vec<Option<Sample>>,
    last_trouble: Option<ChildError>,
}

impl RowSamples {
    pub(super) fn new(entrant: Entrant) -> Self {
        Self { entrant, samples: Vec::new(), last_trouble: None }
    }

    /// Tells whether another try would end as the last one did.
    pub(super) fn never_again(&self) -> bool {
        matches!(self.last_trouble, Some(ChildError::Unsupported(_)))
    }

    /// Writes down how a round, counted from 1, ended.
    pub(super) fn note(&mut self, round: usize, outcome: Result<Sample, ChildError>) {
        self.samples.resize(round - 1, None);
        match outcome {
            Ok(sample) => self.samples.push(Some(sample)),
            Err(trouble) => {
                self.samples.push(None);
                self.last_trouble = Some(trouble);
            }
        }
    }

    /// How many rounds gave figures.
    pub(super) fn count(&self) -> usize {
        self.samples.iter().flatten().count()
    }

    /// Says what went wrong, and how often, if anything did.
    pub(super) fn trouble(&self) -> Option<String> {
        let last = self.last_trouble.as_ref()?;
        let rounds = self.samples.len();
        let troubled = self.samples.len() - self.count();
        if self.never_again() {
            return Some(last.to_string());
        }
        Some(format!("{last} ({troubled} of {rounds} rounds)"))
    }

    pub(super) fn quartiles(&self, figure: &str) -> Option<Quartiles> {
        Quartiles::from_values(self.samples.iter().flatten().filter_map(|sample| sample.get(figure)))
    }

    /// Names the figures of its samples.
    pub(super) fn figures(&self) -> impl Iterator<Item = &str> {
        self.samples.iter().flatten().take(1).flat_map(Sample::names)
    }

    /// Compares with the baseline of the same round; more than 1 is better than the baseline, whatever is compared.
    pub(super) fn ratio(&self, baseline: &Self, figure: MetricSpec) -> Option<Quartiles> {
        let pairs = self.samples.iter().zip(&baseline.samples);
        Quartiles::from_values(pairs.filter_map(|(own, base)| {
            let own = own.as_ref()?.get(figure.name)?;
            let base = base.as_ref()?.get(figure.name)?;
            Some(match figure.better {
                Better::Higher => own / base,
                Better::Lower => base / own,
            })
        }))
    }
}

/// All rounds of one workload; its first line is the baseline.
pub(super) struct Score {
    pub(super) workload: Workload,
    pub(super) lines: Vec<RowSamples>,
}

impl Score {
    pub(super) fn ratio(&self, line: &RowSamples) -> Option<Quartiles> {
        self.lines.first().and_then(|baseline| line.ratio(baseline, self.workload.figure()))
    }

    /// Says in a line how one turn went, for whoever waits for the end.
    pub(super) fn tell(&self, place: usize, outcome: &Result<Sample, ChildError>) -> String {
        let workload = self.workload.name();
        let label = &self.lines[place].entrant.label;
        let MetricSpec { name, unit, .. } = self.workload.figure();
        match outcome {
            Ok(sample) => {
                let figure = sample.get(name).map_or("no figure".to_owned(), short);
                format!("{workload}, {label}: {figure} {unit}")
            }
            Err(trouble) => format!("{workload}, {label}: {trouble}"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        // The machine is ten times slower in the second round, for everybody.
        let score = score(Workload::Tell1, &[("base", &[10.0, 1.0, 12.0]), ("own", &[20.0, 2.0, 36.0])]);
        assert_eq!(
            score.ratio(&score.lines[1]),
            Some(Quartiles { lower: 2.0, median: 2.0, upper: 2.5 }),
            "a higher rate is better"
        );
        assert_eq!(score.ratio(&score.lines[0]).map(|ratio| ratio.median), Some(1.0));
    }

    #[test]
    fn half_the_delay_is_twice_as_good() {
        let score = score(Workload::Wake, &[("base", &[10.0]), ("own", &[5.0])]);
        assert_eq!(score.ratio(&score.lines[1]).map(|ratio| ratio.median), Some(2.0));
    }

    #[test]
    fn a_round_without_a_figure_of_both_is_left_out() {
        let mut score = score(Workload::Tell1, &[("base", &[10.0]), ("own", &[20.0])]);
        score.lines[0].note(2, Err(ChildError::TimedOut(Duration::from_secs(9))));
        score.lines[1].note(2, Ok(Sample::default().with("rate", 70.0)));
        score.lines[0].note(3, Ok(Sample::default().with("rate", 10.0)));
        score.lines[1].note(3, Err(ChildError::Failed("broken".to_owned())));
        assert_eq!(score.ratio(&score.lines[1]).map(|ratio| ratio.median), Some(2.0));
        assert_eq!(score.lines[0].trouble().as_deref(), Some("timed out after 9 s (1 of 3 rounds)"));
        assert_eq!(score.lines[1].trouble().as_deref(), Some("broken (1 of 3 rounds)"));
        assert!(!score.lines[1].never_again());
    }

    #[test]
    fn what_is_unsupported_is_not_tried_again() {
        let mut score = score(Workload::Tell1, &[("base", &[10.0]), ("own", &[])]);
        score.lines[1].note(1, Err(ChildError::Unsupported("unsupported: no wings".to_owned())));
        assert!(score.lines[1].never_again());
        assert_eq!(score.lines[1].trouble().as_deref(), Some("unsupported: no wings"));
        assert_eq!(score.ratio(&score.lines[1]), None);
    }

    /// A score whose rounds gave `figures` of what the workload compares.
    pub(in super::super) fn score(workload: Workload, lines: &[(&str, &[f64])]) -> Score {
        let line = |(label, figures): &(&str, &[f64])| {
            let contender = &workload.contenders()[0];
            let mut line =
                RowSamples::new(Entrant { label: (*label).to_owned(), contender, settings: Vec::new() });
            for (at, figure) in figures.iter().enumerate() {
                let sample =
                    Sample::default().with(workload.figure().name, *figure).with("cpu_ns_per_op", 123.4);
                line.note(at + 1, Ok(sample));
            }
            line
        };
        Score { workload, lines: lines.iter().map(line).collect() }
    }
}
