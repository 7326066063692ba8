//! Replacement of a path's route by one that was probed.

use super::Loss;
use crate::time::Duration;

/// Round trip and loss of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteFigures {
    /// Round trip: in a comparison the shortest of the round, which contains the least queueing; for the hop rule the
    /// smoothed one.
    pub rtt: Duration,
    /// Fraction of packets lost.
    pub loss: Loss,
}

impl RouteFigures {
    /// Returns the cost in milliseconds: the inverse of the weight that a path with these figures gets.
    fn cost(&self) -> f64 {
        let rtt_ms = (self.rtt.as_secs_f64() * 1_000.0).max(1.0);
        rtt_ms / (1.0 - self.loss.as_f64()).max(0.05)
    }
}

/// Decision after a round of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteVerdict {
    /// The candidate is not better by the margin: drop it.
    Keep,
    /// It is better, but not in enough rounds yet: probe it again; carries the number of rounds so far.
    ProbeAgain(u32),
    /// It was better in every round: use it.
    Swap,
}

/// Rule that replaces a route only by one that is clearly better for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    /// Fraction of the current route's cost by which a candidate must be better (default 0.15).
    pub margin: f64,
    /// Consecutive rounds in which it must be better (default 3).
    pub rounds: u32,
}

impl Default for RouteRule {
    fn default() -> Self {
        Self { margin: 0.15, rounds: 3 }
    }
}

impl RouteRule {
    /// Judges a candidate that was better in `rounds_before` rounds running, by the figures of one more round.
    ///
    /// A round trip below a millisecond counts as one, as in the weight of a path.
    pub fn judge(
        &self,
        rounds_before: u32,
        current: &RouteFigures,
        candidate: &RouteFigures,
    ) -> RouteVerdict {
        if candidate.cost() > current.cost() * (1.0 - self.margin) {
            return RouteVerdict::Keep;
        }
        let rounds = rounds_before.saturating_add(1);
        if rounds < self.rounds { RouteVerdict::ProbeAgain(rounds) } else { RouteVerdict::Swap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_better_by_the_margin_in_three_rounds_running_is_taken() {
        let rule = RouteRule::default();
        let judge = |before| rule.judge(before, &figures(100.0, 0.0), &figures(85.0, 0.0));
        assert_eq!(judge(0), RouteVerdict::ProbeAgain(1));
        assert_eq!(judge(1), RouteVerdict::ProbeAgain(2));
        assert_eq!(judge(2), RouteVerdict::Swap);
    }

    #[test]
    fn a_single_round_below_the_margin_ends_the_trial() {
        let rule = RouteRule::default();
        for before in 0..3 {
            let verdict = rule.judge(before, &figures(100.0, 0.0), &figures(85.1, 0.0));
            assert_eq!(verdict, RouteVerdict::Keep);
        }
    }

    #[test]
    fn loss_counts_like_a_longer_round_trip() {
        let rule = RouteRule::default();
        let take = |current, candidate| rule.judge(2, &current, &candidate) == RouteVerdict::Swap;
        assert!(take(figures(100.0, 0.2), figures(100.0, 0.0)));
        assert!(!take(figures(100.0, 0.0), figures(80.0, 0.1)));
        assert!(take(figures(100.0, 1.0), figures(500.0, 0.0)));
    }

    #[test]
    fn differences_below_a_millisecond_never_swap() {
        let verdict = RouteRule::default().judge(2, &figures(0.9, 0.0), &figures(0.1, 0.0));
        assert_eq!(verdict, RouteVerdict::Keep);
    }

    fn figures(rtt_ms: f64, loss: f64) -> RouteFigures {
        RouteFigures { rtt: Duration::from_secs_f64(rtt_ms / 1_000.0), loss: Loss::new(loss).unwrap() }
    }
}
