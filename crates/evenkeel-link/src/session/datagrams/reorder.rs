//! Reorder buffer of a striped flow: holds datagrams until the earlier ones have arrived, or can be given up.
//!
//! Guarantees: datagrams leave in the order of their sequence numbers, each once; none is held for longer than the deadline,
//! provided that [`ReorderBuffer::release`] is called at [`ReorderBuffer::due_at`].
//!
//! Limits: [`HELD_MAX`] datagrams of [`HELD_BYTES_MAX`] bytes together; beyond them, the first gap is given up.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};

/// Maximum number of datagrams that wait for earlier ones.
pub(super) const HELD_MAX: usize = 1_024;

/// Maximum number of bytes of those datagrams.
pub(super) const HELD_BYTES_MAX: usize = 1 << 20;

/// Shortest and longest time that a datagram waits for earlier ones.
pub(in crate::session) const DEADLINE_MIN: Duration = Duration::from_millis(5);
pub(in crate::session) const DEADLINE_MAX: Duration = Duration::from_millis(250);

/// Returns the time for which a datagram waits for earlier ones, given the difference between the delays of the paths and
/// the deviation of these delays.
pub(in crate::session) fn deadline(spread: Duration, jitter: Duration) -> Duration {
    spread.saturating_add(jitter.saturating_mul(4)).clamp(DEADLINE_MIN, DEADLINE_MAX)
}

/// Conditions under which missing datagrams are given up.
#[derive(Clone, Debug)]
pub(in crate::session) struct ReleaseRule {
    /// Paths that may still deliver missing datagrams.
    pub(in crate::session) paths: Vec<PathId>,
    /// Time that a datagram waits at most.
    pub(in crate::session) deadline: Duration,
}

/// Datagrams of one flow that wait for earlier ones.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    /// Sequence number of the datagram to deliver next.
    next_sequence: u64,
    held: BTreeMap<u64, HeldDatagram>,
    held_bytes: usize,
    /// The held datagrams by arrival.
    arrivals: BTreeSet<HeldArrival>,
    /// Highest sequence number that arrived on each path.
    highest_by_path: BTreeMap<PathId, u64>,
    lost: u64,
}

#[derive(Debug)]
struct HeldDatagram {
    data: Bytes,
    arrived_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldArrival {
    at: Instant,
    sequence: u64,
}

/// Datagram that leaves the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReleasedDatagram {
    pub(super) sequence: u64,
    pub(super) data: Bytes,
    /// Time that it waited for earlier ones.
    pub(super) waited: Duration,
}

impl ReorderBuffer {
    /// Records that a path has delivered a datagram, or a fragment of it.
    pub(super) fn record_path(&mut self, path: PathId, sequence: u64) {
        let highest = self.highest_by_path.entry(path).or_insert(sequence);
        *highest = sequence.max(*highest);
    }

    /// Returns the paths that have delivered datagrams of the flow.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathId> {
        self.highest_by_path.keys().copied()
    }

    /// Reports whether a sequence number has been delivered or given up.
    pub(super) fn is_done(&self, sequence: u64) -> bool {
        sequence < self.next_sequence
    }

    /// Stores a datagram, which must be neither done nor stored already.
    pub(super) fn insert(&mut self, now: Instant, sequence: u64, data: Bytes) {
        self.held_bytes += data.len();
        self.held.insert(sequence, HeldDatagram { data, arrived_at: now });
        self.arrivals.insert(HeldArrival { at: now, sequence });
    }

    /// Removes the datagrams that do not have to wait any longer, in order.
    pub(super) fn release(&mut self, now: Instant, rule: &ReleaseRule) -> Vec<ReleasedDatagram> {
        let give_up_to = self.min_highest(&rule.paths).max(self.expired(now, rule.deadline));
        let mut released = Vec::new();
        while let Some((&sequence, _)) = self.held.first_key_value()
            && (sequence == self.next_sequence || sequence <= give_up_to || self.is_over_limit())
        {
            self.give_up_before(sequence);
            self.next_sequence = sequence + 1;
            released.extend(self.remove(now, sequence));
        }
        self.give_up_before(give_up_to);
        released
    }

    /// Returns the smallest of the paths' highest sequence numbers; 0 if a path has delivered nothing.
    fn min_highest(&self, paths: &[PathId]) -> u64 {
        let highest = paths.iter().map(|path| self.highest_by_path.get(path).copied().unwrap_or_default());
        highest.min().unwrap_or_default()
    }

    /// Returns the highest sequence number whose datagram has waited for the deadline.
    fn expired(&self, now: Instant, deadline: Duration) -> u64 {
        let expired = self.arrivals.iter().take_while(|arrival| arrival.at + deadline <= now);
        expired.map(|arrival| arrival.sequence).max().unwrap_or_default()
    }

    fn is_over_limit(&self) -> bool {
        HELD_MAX < self.held.len() || HELD_BYTES_MAX < self.held_bytes
    }

    /// Gives up the missing datagrams before a sequence number; none before it is held.
    fn give_up_before(&mut self, sequence: u64) {
        self.lost += sequence.saturating_sub(self.next_sequence);
        self.next_sequence = self.next_sequence.max(sequence);
    }

    fn remove(&mut self, now: Instant, sequence: u64) -> Option<ReleasedDatagram> {
        let HeldDatagram { data, arrived_at } = self.held.remove(&sequence)?;
        self.held_bytes -= data.len();
        self.arrivals.remove(&HeldArrival { at: arrived_at, sequence });
        Some(ReleasedDatagram { sequence, data, waited: now.since(arrived_at) })
    }

    /// Returns the time at which the first datagram has waited for the deadline; `None` if none waits.
    pub(super) fn due_at(&self, deadline: Duration) -> Option<Instant> {
        Some(self.arrivals.first()?.at + deadline)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the number of datagrams that were given up.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(1);
    const DEADLINE: Duration = Duration::from_millis(20);
    const NONE: [u64; 0] = [];

    #[test]
    fn the_deadline_is_the_spread_and_four_times_the_jitter_from_5_to_250_ms() {
        let ms = Duration::from_millis;
        assert_eq!(deadline(ms(30), ms(2)), ms(38));
        assert_eq!(deadline(ms(0), ms(1)), ms(5));
        assert_eq!(deadline(ms(245), ms(2)), ms(250));
        assert_eq!(deadline(Duration::MAX, Duration::MAX), ms(250));
    }

    #[test]
    fn datagrams_wait_for_earlier_ones_until_the_deadline_and_not_longer() {
        let mut buffer = ReorderBuffer::default();
        assert_eq!(arrive(&mut buffer, 0, A, 0), [0]);
        assert_eq!(arrive(&mut buffer, 1, A, 2), NONE);
        assert_eq!(arrive(&mut buffer, 9, A, 3), NONE);
        assert_eq!(buffer.due_at(DEADLINE), Some(at(21)));
        assert_eq!(release(&mut buffer, 20), NONE);
        assert_eq!(release(&mut buffer, 21), [2, 3], "sequence number 3 waits for nothing else");
        assert_eq!((buffer.lost(), buffer.is_done(1), buffer.due_at(DEADLINE)), (1, true, None));
    }

    #[test]
    fn the_deadline_of_a_later_sequence_number_gives_up_every_gap_before_it() {
        let mut buffer = ReorderBuffer::default();
        assert_eq!(arrive(&mut buffer, 0, A, 7), NONE);
        assert_eq!(arrive(&mut buffer, 15, A, 2), NONE);
        assert_eq!(arrive(&mut buffer, 16, A, 9), NONE);
        assert_eq!(release(&mut buffer, 20), [2, 7]);
        assert_eq!(buffer.lost(), 6, "0, 1 and 3 to 6");
        assert_eq!(release(&mut buffer, 36), [9]);
    }

    #[test]
    fn a_gap_that_every_path_has_passed_is_given_up_at_once() {
        let mut buffer = ReorderBuffer::default();
        assert_eq!(arrive(&mut buffer, 0, A, 1), NONE);
        assert_eq!(arrive(&mut buffer, 0, A, 3), NONE);
        assert_eq!(arrive(&mut buffer, 1, B, 2), [1, 2, 3], "both paths have passed 0");
        assert_eq!(buffer.lost(), 1);
        assert_eq!(arrive(&mut buffer, 2, A, 6), NONE);
        assert_eq!(arrive(&mut buffer, 2, B, 7), [6, 7], "both paths have passed 4 and 5");
        assert_eq!(buffer.lost(), 3);
    }

    #[test]
    fn a_path_that_has_delivered_nothing_has_passed_nothing() {
        let mut buffer = ReorderBuffer::default();
        for sequence in 1..10 {
            assert_eq!(arrive(&mut buffer, 0, A, sequence), NONE);
        }
        let without_b = ReleaseRule { paths: vec![A], deadline: DEADLINE };
        assert_eq!(numbers(buffer.release(at(0), &without_b)), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn an_incomplete_datagram_does_not_let_later_ones_pass() {
        let mut buffer = ReorderBuffer::default();
        buffer.record_path(A, 2);
        buffer.record_path(B, 2);
        assert_eq!(release(&mut buffer, 0), NONE);
        assert_eq!(buffer.lost(), 2, "0 and 1 cannot arrive any more");
        assert_eq!(arrive(&mut buffer, 1, A, 3), NONE, "sequence number 2 may become complete");
        assert_eq!(arrive(&mut buffer, 2, B, 2), [2, 3]);
    }

    #[test]
    fn beyond_1024_datagrams_or_1_mib_the_first_gap_is_given_up() {
        let mut buffer = ReorderBuffer::default();
        for sequence in 1..=HELD_MAX as u64 {
            assert_eq!(arrive(&mut buffer, 0, A, sequence), NONE, "{sequence}");
        }
        let released = arrive(&mut buffer, 0, A, 5_000);
        assert_eq!(released.len(), HELD_MAX, "up to the second gap");
        assert_eq!((buffer.len(), buffer.lost()), (1, 1));

        let mut buffer = ReorderBuffer::default();
        let large = Bytes::from(vec![0; 60_000]);
        for sequence in [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33] {
            buffer.insert(at(0), sequence, large.clone());
            assert_eq!(release(&mut buffer, 0), NONE);
        }
        buffer.insert(at(0), 35, large);
        assert_eq!(release(&mut buffer, 0), [1]);
        assert!(buffer.bytes() <= HELD_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn datagrams_leave_once_in_order_and_in_time(
            arrivals in proptest::collection::vec((0_u64..60, 0_u32..3, 0_u64..15), 1..200),
            deadline_ms in 5_u64..40,
        ) {
            let rule = ReleaseRule { paths: vec![A, B], deadline: Duration::from_millis(deadline_ms) };
            let mut buffer = ReorderBuffer::default();
            let mut now = at(0);
            let mut seen = BTreeSet::new();
            let mut left: Vec<u64> = Vec::new();
            for (sequence, path, pause) in arrivals {
                let until = now + Duration::from_millis(pause);
                while let Some(due) = buffer.due_at(rule.deadline).filter(|due| *due <= until) {
                    now = due;
                    left.extend(checked(buffer.release(now, &rule), &rule)?);
                }
                now = until;
                buffer.record_path(PathId(path), sequence);
                if !buffer.is_done(sequence) && seen.insert(sequence) {
                    buffer.insert(now, sequence, Bytes::new());
                }
                left.extend(checked(buffer.release(now, &rule), &rule)?);
                prop_assert!(buffer.due_at(rule.deadline).is_none_or(|due| now < due));
            }
            while let Some(due) = buffer.due_at(rule.deadline) {
                left.extend(checked(buffer.release(due, &rule), &rule)?);
            }
            prop_assert!(left.is_sorted_by(|one, next| one < next), "{left:?}");
            prop_assert_eq!(left.into_iter().collect::<BTreeSet<_>>(), seen, "everything stored leaves");
            prop_assert_eq!((buffer.len(), buffer.bytes()), (0, 0));
        }
    }

    fn checked(released: Vec<ReleasedDatagram>, rule: &ReleaseRule) -> Result<Vec<u64>, TestCaseError> {
        for release in &released {
            prop_assert!(release.waited <= rule.deadline, "{release:?}");
        }
        Ok(numbers(released))
    }

    fn arrive(buffer: &mut ReorderBuffer, millis: u64, path: PathId, sequence: u64) -> Vec<u64> {
        buffer.record_path(path, sequence);
        buffer.insert(at(millis), sequence, Bytes::new());
        release(buffer, millis)
    }

    fn release(buffer: &mut ReorderBuffer, millis: u64) -> Vec<u64> {
        numbers(buffer.release(at(millis), &ReleaseRule { paths: vec![A, B], deadline: DEADLINE }))
    }

    fn numbers(released: Vec<ReleasedDatagram>) -> Vec<u64> {
        released.into_iter().map(|release| release.sequence).collect()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(1_000 + millis)
    }
}
