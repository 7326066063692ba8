//! Loads at which a node lately served requests: they tell a request that is refused for what it is from one that is
//! refused because the node is full.
//!
//! Limits: at most [`LEVELS_MAX`] levels.

use std::collections::VecDeque;

use evenkeel_policy::time::Instant;

use super::tenant_health::SERVED_AGE_MAX;

const LEVELS_MAX: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// Levels with the time at which a request sent at this level was served; older ones are higher.
    levels: VecDeque<(Instant, u32)>,
    /// Latest time at which a request was sent that was served.
    sent_at: Option<Instant>,
}

impl Acceptance {
    /// Records that a request was served that was sent with `level` requests in flight.
    pub(crate) fn record(&mut self, now: Instant, sent_at: Instant, level: u32) {
        self.sent_at = self.sent_at.max(Some(sent_at));
        while self.levels.back().is_some_and(|(_, known)| *known <= level) {
            self.levels.pop_back();
        }
        if self.levels.len() == LEVELS_MAX {
            self.levels.pop_front();
        }
        self.levels.push_back((now, level));
    }

    /// Reports whether a request sent at this level or a higher one was served lately.
    pub(crate) fn covers(&self, now: Instant, level: u32) -> bool {
        self.levels.iter().any(|(at, known)| level <= *known && now.since(*at) < SERVED_AGE_MAX)
    }

    /// Reports whether a request was served that was sent at this time or later.
    pub(crate) fn is_since(&self, at: Instant) -> bool {
        self.sent_at.is_some_and(|sent_at| at <= sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_covered_for_ten_seconds_by_the_same_or_a_higher_one() {
        let mut acceptance = Acceptance::default();
        acceptance.record(at(0), at(0), 8);
        acceptance.record(at(6), at(5), 3);
        assert!(acceptance.covers(at(6), 8) && !acceptance.covers(at(6), 9));
        assert!(acceptance.covers(at(15), 3) && !acceptance.covers(at(15), 4));
        assert!(acceptance.is_since(at(5)) && !acceptance.is_since(at(6)));
    }

    #[test]
    fn the_number_of_levels_is_limited() {
        let mut acceptance = Acceptance::default();
        (0..100).rev().for_each(|level| acceptance.record(at(0), at(0), level));
        assert_eq!(acceptance.levels.len(), LEVELS_MAX);
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
