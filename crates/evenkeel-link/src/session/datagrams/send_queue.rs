//! Datagrams of a flow that wait for a path with room.
//!
//! Limits: [`QUEUED_MAX`] datagrams of [`QUEUED_BYTES_MAX`] bytes together, each for [`WAIT_MAX`]; the oldest are dropped,
//! because late datagrams are worth least.

use std::collections::VecDeque;

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};

/// Maximum number of datagrams that wait.
const QUEUED_MAX: usize = 256;

/// Maximum number of bytes that wait.
const QUEUED_BYTES_MAX: usize = 256 * 1024;

/// Longest time that a datagram waits.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Datagrams that wait, and the numbers of those that were sent.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    waiting: VecDeque<WaitingDatagram>,
    bytes: usize,
    next_sequence: u64,
    dropped: u64,
    /// Path of a pinned flow.
    pub(super) pinned: Option<PathId>,
}

#[derive(Debug)]
struct WaitingDatagram {
    data: Bytes,
    since: Instant,
}

/// Datagram with its number, which is about to be sent.
#[derive(Debug)]
pub(super) struct NumberedDatagram {
    pub(super) sequence: u64,
    pub(super) data: Bytes,
}

impl SendQueue {
    pub(super) fn push(&mut self, now: Instant, data: Bytes) {
        self.bytes += data.len();
        self.waiting.push_back(WaitingDatagram { data, since: now });
        while QUEUED_MAX < self.waiting.len() || QUEUED_BYTES_MAX < self.bytes {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.waiting.pop_front() {
            self.bytes -= oldest.data.len();
            self.dropped += 1;
        }
    }

    /// Counts a datagram that cannot be sent.
    pub(super) fn record_dropped(&mut self) {
        self.dropped += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Drops the datagrams that have waited for too long, and returns the length of the next one.
    pub(super) fn next_len(&mut self, now: Instant) -> Option<usize> {
        while self.waiting.front().is_some_and(|oldest| WAIT_MAX < now.since(oldest.since)) {
            self.drop_oldest();
        }
        self.waiting.front().map(|next| next.data.len())
    }

    /// Removes the next datagram and gives it a number.
    pub(super) fn take(&mut self) -> Option<NumberedDatagram> {
        let WaitingDatagram { data, .. } = self.waiting.pop_front()?;
        self.bytes -= data.len();
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Some(NumberedDatagram { sequence, data })
    }

    /// Returns the number of datagrams that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.next_sequence
    }

    /// Returns the number of datagrams that were not sent.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_256_datagrams_or_256_kib_the_oldest_are_dropped_and_numbers_have_no_gap() {
        let mut queue = SendQueue::default();
        for number in 0..300_u32 {
            queue.push(at(0), Bytes::copy_from_slice(&number.to_be_bytes()));
        }
        assert_eq!((queue.waiting.len(), queue.dropped()), (QUEUED_MAX, 44));
        let first = queue.take().unwrap();
        assert_eq!((first.sequence, &first.data[..]), (0, &44_u32.to_be_bytes()[..]));
        for _ in 0..6 {
            queue.push(at(0), Bytes::from(vec![0; 50_000]));
        }
        assert_eq!((queue.waiting.len(), queue.bytes), (5, 250_000));
        assert_eq!(queue.take().unwrap().sequence, 1);
    }

    #[test]
    fn a_datagram_waits_for_1_s_at_most() {
        let mut queue = SendQueue::default();
        queue.push(at(0), Bytes::from_static(b"old"));
        queue.push(at(600), Bytes::from_static(b"younger"));
        assert_eq!(queue.next_len(at(1_000)), Some(3));
        assert_eq!(queue.next_len(at(1_001)), Some(7));
        assert_eq!((queue.next_len(at(2_000)), queue.dropped()), (None, 2));
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(1_000 + millis)
    }
}
