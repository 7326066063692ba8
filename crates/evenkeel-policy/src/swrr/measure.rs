//! What the samples of one path say: smoothed RTT, its deviation, smoothed loss rate.
//!
//! Bound: a smoothed value lies between the smallest and the largest sample, and a steady sample is
//! reproduced to 2⁻¹⁶ µs: nothing is cut to whole milliseconds.

use super::config::SwrrRules;
use crate::time::Duration;

const FRACTION_BITS: u32 = 16;

/// Longer samples count as this much: the formula gives such a path the least weight either way.
const RTT_MS_MAX: f64 = 600_000.0;

/// The smoothed measurements of one path, in fixed point.
#[derive(Clone, Debug, Default)]
pub(super) struct Measure {
    rtt: Option<Smoothed>,
    loss: Option<i64>,
}

/// Microseconds with [`FRACTION_BITS`] fractional bits.
#[derive(Clone, Debug)]
struct Smoothed {
    mean: i64,
    deviation: i64,
}

impl Measure {
    /// Takes in an RTT already known to be finite and not negative.
    pub(super) fn rtt_sample(&mut self, rtt_ms: f64, rules: &SwrrRules) {
        let sample = fixed(rtt_ms.min(RTT_MS_MAX) * 1_000.0);
        match &mut self.rtt {
            None => self.rtt = Some(Smoothed { mean: sample, deviation: sample / 2 }),
            Some(Smoothed { mean, deviation }) => {
                *deviation += rules.deviation_gain.of((sample - *mean).abs() - *deviation);
                *mean += rules.rtt_gain.of(sample - *mean);
            }
        }
    }

    /// Takes in a loss rate already known to lie in 0..=1.
    pub(super) fn loss_sample(&mut self, loss_rate: f64, rules: &SwrrRules) {
        // Parts per million with 16 fractional bits.
        let sample = fixed(loss_rate * 1e6);
        self.loss = Some(match self.loss {
            None => sample,
            Some(loss) => loss + rules.loss_gain.of(sample - loss),
        });
    }

    pub(super) fn rtt_ms(&self) -> Option<f64> {
        self.rtt.as_ref().map(|rtt| float(rtt.mean) / 1_000.0)
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.as_ref().map(|rtt| span(rtt.mean))
    }

    pub(super) fn rtt_deviation(&self) -> Option<Duration> {
        self.rtt.as_ref().map(|rtt| span(rtt.deviation))
    }

    /// The smoothed loss rate; a path without samples has lost nothing yet.
    pub(super) fn loss_rate(&self) -> f64 {
        self.loss.map_or(0.0, |loss| float(loss) / 1e6)
    }
}

fn fixed(value: f64) -> i64 {
    libm::round(value * f64::from(1 << FRACTION_BITS)) as i64
}

fn float(value: i64) -> f64 {
    value as f64 / f64::from(1 << FRACTION_BITS)
}

fn span(micros: i64) -> Duration {
    Duration::from_nanos((micros.unsigned_abs() * 1_000) >> FRACTION_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rtts_ms: &[f64]) -> Measure {
        let mut measure = Measure::default();
        for &rtt_ms in rtts_ms {
            measure.rtt_sample(rtt_ms, &SwrrRules::default());
        }
        measure
    }

    #[test]
    fn the_first_sample_is_the_mean_and_twice_the_deviation() {
        let measure = after(&[10.0]);
        assert_eq!(measure.rtt(), Some(Duration::from_millis(10)));
        assert_eq!(measure.rtt_deviation(), Some(Duration::from_millis(5)));
    }

    #[test]
    fn a_sample_moves_the_mean_by_an_eighth_and_the_deviation_by_a_quarter() {
        let measure = after(&[10.0, 18.0]);
        assert_eq!(measure.rtt(), Some(Duration::from_millis(11)));
        assert_eq!(measure.rtt_deviation(), Some(Duration::from_micros(5_750)));
    }

    #[test]
    fn fractions_of_a_millisecond_are_kept() {
        let steady = after(&[0.125; 50]);
        assert_eq!(steady.rtt(), Some(Duration::from_nanos(125_000)));
        assert!(steady.rtt_deviation().unwrap() < Duration::from_nanos(100));
    }

    #[test]
    fn loss_follows_its_samples_by_a_tenth() {
        let rules = SwrrRules::default();
        let mut measure = Measure::default();
        assert!(measure.loss_rate() < 1e-9);
        measure.loss_sample(0.5, &rules);
        assert!((measure.loss_rate() - 0.5).abs() < 1e-9);
        measure.loss_sample(0.0, &rules);
        assert!((measure.loss_rate() - 0.45).abs() < 1e-5, "{}", measure.loss_rate());
    }

    #[test]
    fn the_longest_sample_is_ten_minutes() {
        let measure = after(&[f64::MAX, 0.0, f64::MAX]);
        assert!(measure.rtt().unwrap() <= Duration::from_secs(600));
        assert!(measure.rtt().unwrap() > Duration::from_secs(500));
    }
}
