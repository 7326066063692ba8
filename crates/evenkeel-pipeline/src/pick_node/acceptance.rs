//! Loads at which a node recently served requests. They show whether a refusal is about the request or means that the
//! node is full: a node that serves others at the same load is not full.
//!
//! A request that is about to be refused is in flight without being served, so it does not count in the loads at which
//! others were sent meanwhile.
//!
//! Limits: at most [`LEVELS_MAX`] levels and [`REFUSALS_MAX`] refusals.

use std::collections::VecDeque;

use evenkeel_policy::time::{Duration, Instant};

use super::tenant_health::SERVED_AGE_MAX;

const LEVELS_MAX: usize = 16;
const REFUSALS_MAX: usize = 64;

/// Time within which an engine frees the slot of a request whose response has ended.
const RELEASE_MAX: Duration = Duration::from_millis(20);

/// Refusals among the last eight responses from which on the node may be full.
const FULL_REFUSALS_MIN: u32 = 2;

/// Reason for which a node refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// The request: the node recently served others at the same load.
    Request,
    /// The load: the node may be full.
    Load,
    /// Either of them: the refusal is evidence against neither.
    Unclear,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Acceptance {
    /// Served requests, the newest last; older ones were sent at higher levels.
    levels: VecDeque<ServedAttempt>,
    /// Send time of the most recently sent request that was served.
    sent_at: Option<Instant>,
    /// The latest refusals, the newest last.
    refusals: VecDeque<RefusedAttempt>,
    /// The last eight responses, the newest in the lowest bit; a set bit is a refusal.
    responses: u8,
    /// Latest time at which a response ended.
    ended_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct ServedAttempt {
    sent_at: Instant,
    served_at: Instant,
    level: u32,
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
        self.responses <<= 1;
        let attempt = ServedAttempt { sent_at, served_at: now, level };
        let level = self.served_level(sent_at, level);
        while self.levels.back().is_some_and(|known| self.served_level(known.sent_at, known.level) <= level) {
            self.levels.pop_back();
        }
        if self.levels.len() == LEVELS_MAX {
            self.levels.pop_front();
        }
        self.levels.push_back(attempt);
        let latest = self.refusals.back();
        latest.is_some_and(|latest| self.served_level(latest.sent_at, latest.level) <= level)
    }

    /// Records a refusal of a request that was sent when `level` requests were in flight, itself included.
    pub(crate) fn record_refusal(&mut self, now: Instant, sent_at: Instant, level: u32) -> RefusalCause {
        let may_be_full = FULL_REFUSALS_MIN <= self.responses.count_ones();
        let is_after_end = self.ended_at.is_some_and(|at| sent_at.since(at) < RELEASE_MAX);
        let served_level = self.served_level(sent_at, level);
        self.responses = self.responses << 1 | 1;
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        self.refusals.push_back(RefusedAttempt { sent_at, refused_at: now, level });
        // Refusals of requests that were sent before a served one may have arrived since.
        let is_as_high =
            |known: &ServedAttempt| served_level <= self.served_level(known.sent_at, known.level);
        let mut recent = self.levels.iter().filter(|known| now.since(known.served_at) < SERVED_AGE_MAX);
        match recent.any(is_as_high) {
            // The engine may not have freed the slot of the request that ended just before.
            true if may_be_full && is_after_end => RefusalCause::Unclear,
            true => RefusalCause::Request,
            false => RefusalCause::Load,
        }
    }

    /// Records that a response ended.
    pub(crate) fn on_end(&mut self, now: Instant) {
        self.ended_at = Some(now);
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
    pub(crate) fn has_served_since(&self, at: Instant) -> bool {
        self.sent_at.is_some_and(|sent_at| at <= sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_counts_for_ten_seconds_and_for_lower_ones() {
        for (level, second, cause) in [
            (8, 6, RefusalCause::Request),
            (9, 6, RefusalCause::Load),
            (3, 15, RefusalCause::Request),
            (4, 15, RefusalCause::Load),
        ] {
            let mut acceptance = Acceptance::default();
            acceptance.record(at(0), at(0), 8);
            acceptance.record(at(6), at(5), 3);
            assert!(acceptance.has_served_since(at(5)) && !acceptance.has_served_since(at(6)));
            assert_eq!(
                acceptance.record_refusal(at(second), at(second), level),
                cause,
                "{level} at {second}"
            );
        }
    }

    #[test]
    fn requests_that_are_about_to_be_refused_do_not_count() {
        let mut acceptance = Acceptance::default();
        acceptance.record_refusal(at(3), at(1), 5);
        assert!(!acceptance.record(at(3), at(2), 5), "it was sent at level 4");
        assert_eq!(acceptance.record_refusal(at(3), at(3), 5), RefusalCause::Load);
        assert_eq!(acceptance.record_refusal(at(4), at(4), 4), RefusalCause::Request);
    }

    #[test]
    fn a_refusal_that_arrives_after_a_later_request_was_served_lowers_the_level_of_that() {
        let mut acceptance = Acceptance::default();
        acceptance.record(at(2), at(1), 2);
        acceptance.record_refusal(at(3), at(1), 1);
        assert_eq!(
            acceptance.record_refusal(at(4), at(4), 2),
            RefusalCause::Load,
            "the served request was alone"
        );
        assert_eq!(acceptance.record_refusal(at(5), at(5), 1), RefusalCause::Request);
    }

    #[test]
    fn the_slot_of_a_request_that_just_ended_may_be_in_use_on_a_node_that_refuses_often() {
        for (refusals, delay_ms, cause) in
            [(0, 0, RefusalCause::Request), (2, 0, RefusalCause::Unclear), (2, 20, RefusalCause::Request)]
        {
            let mut acceptance = Acceptance::default();
            (0..refusals).for_each(|_| {
                acceptance.record_refusal(at(1), at(1), 2);
            });
            acceptance.record(at(3), at(2), 1);
            acceptance.on_end(at(4));
            let sent_at = at(4) + Duration::from_millis(delay_ms);
            assert_eq!(acceptance.record_refusal(at(5), sent_at, 1), cause, "{refusals} {delay_ms}");
        }
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
