//! Exponentially weighted moving average (EWMA) with its mean deviation.

use super::Outcome;
use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Weights of a new sample in an [`Ewma`]: one gain for the mean, one for the deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    mean: f64,
    deviation: f64,
}

impl Gains {
    /// TCP's gains for round trips: 1/8 for the mean, 1/4 for the deviation.
    pub const RTT: Self = Self { mean: 0.125, deviation: 0.25 };
    /// Gains for loss rates: 0.1 for both.
    pub const LOSS: Self = Self { mean: 0.1, deviation: 0.1 };
    /// Gains for baselines that are measured rarely: 1/4 for both.
    pub const BASELINE: Self = Self { mean: 0.25, deviation: 0.25 };

    /// Creates gains, each 0.001..=1.
    pub fn new(mean: f64, deviation: f64) -> Result<Self, SettingOutOfRange> {
        Self::checked("mean gain", mean, "deviation gain", deviation)
    }

    /// Creates gains, naming the offending setting in the error.
    pub(crate) fn checked(
        mean_setting: &'static str,
        mean: f64,
        deviation_setting: &'static str,
        deviation: f64,
    ) -> Result<Self, SettingOutOfRange> {
        check(mean_setting, mean, 0.001..=1.0)?;
        check(deviation_setting, deviation, 0.001..=1.0)?;
        Ok(Self { mean, deviation })
    }
}

/// Exponentially weighted moving average with its mean deviation.
///
/// Each sample has the same gain regardless of time, so old samples decay faster at a higher sample rate.
#[derive(Clone, Copy, Debug)]
pub struct Ewma {
    gains: Gains,
    moments: Option<Moments>,
}

#[derive(Clone, Copy, Debug)]
struct Moments {
    mean: f64,
    deviation: f64,
}

impl Ewma {
    /// Creates an EWMA without samples.
    pub const fn new(gains: Gains) -> Self {
        Self { gains, moments: None }
    }

    /// Records a sample; rejects NaN, infinite and negative ones.
    ///
    /// The first sample becomes the mean, and half of it the deviation (as in RFC 6298), so that one sample does not
    /// imply zero deviation.
    pub fn record(&mut self, sample: f64) -> Result<(), BadSample> {
        if !sample.is_finite() || sample < 0.0 {
            return Err(BadSample { sample });
        }
        self.record_valid(sample);
        Ok(())
    }

    /// Records a time span, in fractional milliseconds.
    pub fn record_millis(&mut self, span: Duration) {
        self.record_valid(span.as_secs_f64() * 1_000.0);
    }

    /// Records 1 for a bad outcome and 0 for a good one, so that the mean is the recent ratio of bad ones.
    pub fn record_outcome(&mut self, outcome: Outcome) {
        self.record_valid(match outcome {
            Outcome::Good => 0.0,
            Outcome::Bad => 1.0,
        });
    }

    /// Records `total` outcomes of which `bad` were bad, as one sample that counts as much as all of them.
    ///
    /// The more outcomes, the closer the mean comes to their ratio; it does not depend on their order.
    pub fn record_ratio(&mut self, bad: u64, total: u64) {
        if total == 0 {
            return;
        }
        let repeated = |gain: f64| 1.0 - libm::pow(1.0 - gain, total as f64);
        let gains = Gains { mean: repeated(self.gains.mean), deviation: repeated(self.gains.deviation) };
        self.record_with(gains, bad.min(total) as f64 / total as f64);
    }

    /// Records a sample known to be finite and not negative.
    pub(crate) fn record_valid(&mut self, sample: f64) {
        self.record_with(self.gains, sample);
    }

    fn record_with(&mut self, gains: Gains, sample: f64) {
        let Some(moments) = &mut self.moments else {
            self.moments = Some(Moments { mean: sample, deviation: sample / 2.0 });
            return;
        };
        let error = sample - moments.mean;
        // The deviation is measured from the mean before this sample moves it.
        moments.deviation += gains.deviation * (error.abs() - moments.deviation);
        moments.mean += gains.mean * error;
    }

    /// Returns the mean, in the unit of the samples.
    pub fn mean(&self) -> Option<f64> {
        self.moments.map(|moments| moments.mean)
    }

    /// Returns the moving average of each sample's absolute deviation from the mean before it.
    pub fn deviation(&self) -> Option<f64> {
        self.moments.map(|moments| moments.deviation)
    }
}

/// Error for a sample that is NaN, infinite or negative.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("sample {sample} is not a finite, non-negative number")]
pub struct BadSample {
    /// The rejected number.
    pub sample: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_first_sample_is_the_mean_and_half_of_it_the_deviation() {
        assert_eq!(record_all(&[10.0]), Some((10.0, 5.0)));
        assert_eq!(record_all(&[]), None);
    }

    #[test]
    fn zero_is_a_sample() {
        assert_eq!(record_all(&[0.0]), Some((0.0, 0.0)));
        assert_eq!(record_all(&[8.0, 0.0]), Some((7.0, 5.0)));
    }

    #[test]
    fn mean_and_deviation_each_use_their_own_gain() {
        assert_eq!(record_all(&[10.0, 18.0]), Some((11.0, 5.75)));
    }

    #[test]
    fn fractions_of_a_millisecond_are_kept() {
        let mut rtt = Ewma::new(Gains::RTT);
        rtt.record_millis(Duration::from_micros(990));
        assert!(rtt.mean().is_some_and(|mean| (mean - 0.99).abs() < 1e-12));
    }

    #[test]
    fn the_mean_of_outcomes_is_the_ratio_of_bad_ones() {
        let mut loss = Ewma::new(Gains::LOSS);
        loss.record_outcome(Outcome::Good);
        assert_eq!(loss.mean(), Some(0.0));
        loss.record_outcome(Outcome::Bad);
        assert_eq!(loss.mean(), Some(0.1));
    }

    #[test]
    fn many_outcomes_at_once_count_as_much_as_one_after_the_other() {
        let mut at_once = Ewma::new(Gains::LOSS);
        let mut single = Ewma::new(Gains::LOSS);
        for loss in [&mut at_once, &mut single] {
            loss.record_outcome(Outcome::Good);
        }
        at_once.record_ratio(3, 3);
        (0..3).for_each(|_| single.record_outcome(Outcome::Bad));
        assert!((at_once.mean().unwrap() - single.mean().unwrap()).abs() < 1e-12);
        at_once.record_ratio(2, 100);
        assert!(
            (at_once.mean().unwrap() - 0.02).abs() < 1e-4,
            "a hundred outcomes outweigh the three before"
        );
        let before = at_once.mean();
        at_once.record_ratio(0, 0);
        assert_eq!(at_once.mean(), before);
        at_once.record_ratio(u64::MAX, 1);
        assert!(at_once.mean() < Some(0.2), "more bad outcomes than outcomes count as all of them");
    }

    #[test]
    fn an_invalid_sample_is_rejected_and_changes_nothing() {
        let mut rtt = Ewma::new(Gains::RTT);
        rtt.record(10.0).unwrap();
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1] {
            assert!(rtt.record(bad).is_err(), "{bad} was accepted");
        }
        assert_eq!((rtt.mean(), rtt.deviation()), (Some(10.0), Some(5.0)));
        let error = rtt.record(-1.0).unwrap_err();
        assert_eq!(error.to_string(), "sample -1 is not a finite, non-negative number");
    }

    #[test]
    fn a_gain_is_at_least_a_thousandth_and_at_most_one() {
        for bad in [0.0, 0.0009, -0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Gains::new(bad, 0.5).is_err(), "{bad} was accepted");
            assert!(Gains::new(0.5, bad).is_err(), "{bad} was accepted");
        }
        assert!(Gains::new(0.001, 1.0).is_ok());
        let error = Gains::new(0.5, 2.0).unwrap_err();
        assert_eq!(error.to_string(), "deviation gain 2 is not between 0.001 and 1");
    }

    fn record_all(samples: &[f64]) -> Option<(f64, f64)> {
        let mut ewma = Ewma::new(Gains::RTT);
        for &sample in samples {
            ewma.record(sample).unwrap();
        }
        ewma.mean().zip(ewma.deviation())
    }
}
