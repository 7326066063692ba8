//! One path of a scheduler: its smoothed measurements and the weight derived from them.
//!
//! Guarantees: a smoothed value lies between the smallest and the largest sample.

use super::SwrrRules;
use super::weight::{PathWeight, Reweight};
use crate::estimate::Ewma;
use crate::id::PathId;
use crate::time::{Duration, Instant, fractional_millis};

/// Maximum RTT sample, ten minutes; longer ones count as this much. With the default `weight_scale` the weight of such
/// a path is the smallest anyway.
const RTT_MS_MAX: f64 = 600_000.0;

#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) id: PathId,
    pub(super) active: bool,
    /// In milliseconds.
    rtt: Ewma,
    loss: Ewma,
    pub(super) weight: PathWeight,
}

impl Path {
    pub(super) fn new(id: PathId, rules: &SwrrRules) -> Self {
        let rtt = Ewma::new(rules.rtt_gains);
        let loss = Ewma::new(rules.loss_gains);
        Self { id, active: false, rtt, loss, weight: PathWeight::unknown() }
    }

    /// Records an RTT known to be finite and not negative.
    pub(super) fn record_rtt(&mut self, rtt_ms: f64) {
        self.rtt.record_valid(rtt_ms.min(RTT_MS_MAX));
    }

    /// Records a loss rate known to lie in 0..=1.
    pub(super) fn record_loss(&mut self, loss_rate: f64) {
        self.loss.record_valid(loss_rate);
    }

    /// Updates the weight's goal from the samples; does nothing before the first RTT sample.
    pub(super) fn measure(&mut self, rules: &SwrrRules) -> Reweight {
        let Some(rtt_ms) = self.rtt.mean() else {
            return Reweight::Settled;
        };
        self.weight.measure(rtt_ms, self.loss_rate(), rules)
    }

    /// Moves the weight in force towards its target as far as the limits on increases allow.
    pub(super) fn step(&mut self, now: Instant, rules: &SwrrRules) -> Reweight {
        self.weight.step_towards_target(now, self.rtt(), rules)
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.mean().map(fractional_millis)
    }

    pub(super) fn rtt_deviation(&self) -> Option<Duration> {
        self.rtt.deviation().map(fractional_millis)
    }

    /// Returns the smoothed loss rate; 0 without samples.
    pub(super) fn loss_rate(&self) -> f64 {
        self.loss.mean().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SwrrConfig;
    use super::*;

    /// Creates a path with samples given as pairs of RTT and loss.
    fn sampled(config: &SwrrConfig, samples: &[(f64, f64)]) -> Path {
        let mut path = Path::new(PathId(1), &SwrrRules::new(config).unwrap());
        for &(rtt_ms, loss_rate) in samples {
            path.record_rtt(rtt_ms);
            path.record_loss(loss_rate);
        }
        path
    }

    #[test]
    fn a_path_without_samples_has_no_rtt_and_no_loss() {
        let path = sampled(&SwrrConfig::default(), &[]);
        assert_eq!((path.rtt(), path.rtt_deviation(), Some(path.loss_rate())), (None, None, Some(0.0)));
    }

    #[test]
    fn the_first_sample_sets_each_average_and_the_next_moves_it_by_its_own_gain() {
        let config = SwrrConfig { rtt_alpha: 0.25, deviation_beta: 0.5, ..SwrrConfig::default() };
        let seen = |samples| {
            let path = sampled(&config, samples);
            let micros = |span: Option<Duration>| span.unwrap().as_micros();
            (micros(path.rtt()), micros(path.rtt_deviation()), libm::round(path.loss_rate() * 1_000.0))
        };
        assert_eq!(seen(&[(10.0, 0.5)]), (10_000, 5_000, 500.0));
        assert_eq!(seen(&[(10.0, 0.5), (18.5, 0.0)]), (12_125, 6_750, 450.0));
    }

    #[test]
    fn a_longer_sample_counts_as_ten_minutes() {
        let path = sampled(&SwrrConfig::default(), &[(f64::MAX, 0.0)]);
        assert_eq!(path.rtt(), Some(Duration::from_secs(600)));
    }
}
