//! What the rounds gave a contender, and how it compares with another.

use std::io;

use crate::Quartiles;

/// Named figures of one turn.
pub type TurnSample = Vec<(&'static str, f64)>;

/// Why a turn gave no sample.
#[derive(Clone, Debug)]
pub struct RunError(pub String);

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// All rounds of one contender in one workload.
pub struct RowSamples {
    /// What its row is called.
    pub label: String,
    /// In the order of the rounds; `None` where there was trouble.
    samples: Vec<Option<TurnSample>>,
    /// The last trouble it had.
    pub trouble: Option<RunError>,
}

impl RowSamples {
    /// Begins without rounds.
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), samples: Vec::new(), trouble: None }
    }

    /// Writes down how the next round ended.
    pub fn note(&mut self, outcome: Result<TurnSample, RunError>) {
        match outcome {
            Ok(sample) => self.samples.push(Some(sample)),
            Err(trouble) => {
                self.samples.push(None);
                self.trouble = Some(trouble);
            }
        }
    }

    /// What the last round gave.
    pub fn last(&self) -> Option<&TurnSample> {
        self.samples.last()?.as_ref()
    }

    /// What the last round gave, to add to it.
    pub fn last_mut(&mut self) -> Option<&mut TurnSample> {
        self.samples.last_mut()?.as_mut()
    }

    /// The middle of a figure over all rounds.
    pub fn quartiles(&self, figure: &str) -> Option<Quartiles> {
        Quartiles::of(self.samples.iter().flatten().filter_map(|sample| get(sample, figure)))
    }

    /// Compares with another's figure of the same round; below 1 is less than the other.
    pub fn ratio(&self, other: &Self, figure: &str) -> Option<Quartiles> {
        let pairs = self.samples.iter().zip(&other.samples);
        let ratios = pairs
            .filter_map(|(own, other)| Some(get(own.as_ref()?, figure)? / get(other.as_ref()?, figure)?));
        // Where nothing was added, there is nothing to be a part of.
        Quartiles::of(ratios.filter(|ratio| 0.0 < *ratio))
    }
}

/// Reads a figure of a sample.
pub fn get(sample: &TurnSample, name: &str) -> Option<f64> {
    sample.iter().find(|(own, _)| *own == name).map(|(_, figure)| *figure)
}

/// Half and 99 of 100 delays, in microseconds; nothing of no delays.
pub fn delays(mut delays_ns: Vec<u64>) -> TurnSample {
    delays_ns.sort_unstable();
    let Some(last) = delays_ns.len().checked_sub(1) else { return TurnSample::new() };
    let at = |percent: usize| delays_ns[last * percent / 100] as f64 / 1e3;
    vec![("p50_us", at(50)), ("p99_us", at(99))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_baseline_of_the_same_round() {
        // The machine is ten times slower in the second round, for everybody.
        let baseline = line(&[1.0, 10.0, 1.0]);
        let own = line(&[2.0, 20.0, 2.0]);
        let ratio = own.ratio(&baseline, "cpu_us").unwrap();
        assert_eq!((ratio.lower, ratio.median, ratio.upper), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_round_with_trouble_compares_with_nothing() {
        let mut baseline = line(&[1.0]);
        let mut own = line(&[2.0]);
        baseline.note(Err(RunError("fell".to_owned())));
        own.note(Ok(vec![("cpu_us", 100.0)]));
        assert_eq!(own.ratio(&baseline, "cpu_us").map(|ratio| ratio.upper), Some(2.0));
    }

    #[test]
    fn percentiles_are_delays_that_were_seen() {
        let sample = delays((1..=1000).rev().map(|us| us * 1000).collect());
        assert_eq!(sample, [("p50_us", 500.0), ("p99_us", 990.0)]);
        assert_eq!(delays(Vec::new()), []);
    }

    fn line(figures: &[f64]) -> RowSamples {
        let mut line = RowSamples::new("own");
        figures.iter().for_each(|number| line.note(Ok(vec![("cpu_us", *number)])));
        line
    }
}
