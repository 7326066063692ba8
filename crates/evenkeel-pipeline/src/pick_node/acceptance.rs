//! Loads at which a node recently served requests. They show whether a refusal is about the request or means that the
//! node is full: a node that serves others at the same load is not full.
//!
//! A request that is about to be refused is in flight without being served, so it does not count in the loads at which
//! others were sent meanwhile.
//!
//! Limits: at most [`LEVELS_MAX`] levels and [`REFUSALS_MAX`] refusals.

use std::collections::VecDeque;

use evenkeel_policy::time::Instant;

use super::tenant_health::SERVED_AGE_MAX;

const LEVELS_MAX: usize = 16;
const REFUSALS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// Levels at which requests were served, with the time; the front is the oldest and highest.
    levels: VecDeque<(Instant, u32)>,
    /// Send time of the most recently sent request that was served.
    sent_at: Option<Instant>,
    /// The latest refusals, the newest last.
    refusals: VecDeque<RefusedAttempt>,
}

#[derive(Clone, Copy, Debug)]
struct RefusedAttempt {
    sent_at: Instant,
    refused_at: Instant,
    level: u32,
}

impl Acceptance {
    /// Records a served request, sent when `level` requests were in flight, itself included; reports whether the node must
    /// have had room at its latest refusal.
    pub(crate) fn record(&mut self, now: Instant, sent_at: Instant, level: u32) -> bool {
        self.sent_at = self.sent_at.max(Some(sent_at));
        let level = self.served_level(sent_at, level);
        while self.levels.back().is_some_and(|(_, known)| *known <= level) {
            self.levels.pop_back();
        }
        if self.levels.len() == LEVELS_MAX {
            self.levels.pop_front();
        }
        self.levels.push_back((now, level));
        let latest = self.refusals.back();
        latest.is_some_and(|latest| self.served_level(latest.sent_at, latest.level) <= level)
    }

    /// Records that a request was refused that was sent with `level` requests in flight; reports whether one sent at this
    /// level or a higher one was served lately.
    pub(crate) fn record_refusal(&mut self, now: Instant, sent_at: Instant, level: u32) -> bool {
        let served_level = self.served_level(sent_at, level);
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        self.refusals.push_back(RefusedAttempt { sent_at, refused_at: now, level });
        self.levels.iter().any(|(at, known)| served_level <= *known && now.since(*at) < SERVED_AGE_MAX)
    }

    /// Returns the level without the requests that were about to be refused; the request itself counts.
    fn served_level(&self, sent_at: Instant, level: u32) -> u32 {
        // Of requests sent at the same time, the later one has the higher level.
        let is_unserved = |other: &&RefusedAttempt| {
            (other.sent_at, other.level) < (sent_at, level) && sent_at < other.refused_at
        };
        let unserved = self.refusals.iter().filter(is_unserved).count();
        level.saturating_sub(u32::try_from(unserved).unwrap_or(u32::MAX)).max(1)
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
    fn a_level_counts_for_ten_seconds_and_for_lower_ones() {
        for (level, second, is_served) in [(8, 6, true), (9, 6, false), (3, 15, true), (4, 15, false)] {
            let mut acceptance = Acceptance::default();
            acceptance.record(at(0), at(0), 8);
            acceptance.record(at(6), at(5), 3);
            assert!(acceptance.is_since(at(5)) && !acceptance.is_since(at(6)));
            assert_eq!(
                acceptance.record_refusal(at(second), at(second), level),
                is_served,
                "{level} at {second}"
            );
        }
    }

    #[test]
    fn requests_that_are_about_to_be_refused_do_not_count() {
        let mut acceptance = Acceptance::default();
        acceptance.record_refusal(at(3), at(1), 5);
        assert!(!acceptance.record(at(3), at(2), 5), "it was sent at level 4");
        assert!(!acceptance.record_refusal(at(3), at(3), 5));
        assert!(acceptance.record_refusal(at(4), at(4), 4));
    }

    #[test]
    fn a_request_served_at_the_level_of_a_refusal_shows_that_there_was_room() {
        let mut acceptance = Acceptance::default();
        acceptance.record_refusal(at(1), at(1), 3);
        assert!(!acceptance.record(at(2), at(2), 2));
        assert!(acceptance.record(at(2), at(2), 3));
    }

    #[test]
    fn the_numbers_of_levels_and_refusals_are_limited() {
        let mut acceptance = Acceptance::default();
        for level in (1..100).rev() {
            acceptance.record(at(0), at(0), level);
            acceptance.record_refusal(at(0), at(0), 1);
        }
        assert_eq!((acceptance.levels.len(), acceptance.refusals.len()), (LEVELS_MAX, REFUSALS_MAX));
    }

    fn at(second: u64) -> Instant {
        Instant::from_secs(second)
    }
}
