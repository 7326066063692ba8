//! Datagrams of a flow that this side receives: drops copies, restores the order of a striped flow.
//!
//! Limits: those of the [reorder buffer](super::reorder) and the [fragments](super::fragments); [`READY_MAX`] datagrams of
//! [`READY_BYTES_MAX`] bytes together wait for the application, the oldest are dropped.

use std::collections::VecDeque;

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};

use super::fragments::{Assembly, FragmentBuffer};
use super::reorder::{HELD_BYTES_MAX, HELD_MAX, ReleaseRule, ReorderBuffer};
use super::sequence_window::{Novelty, SequenceWindow};
use crate::flow::DatagramMode;
use crate::frame::Message;

/// Maximum number of datagrams that wait for the application.
const READY_MAX: usize = 1_024;

/// Maximum number of bytes that wait for the application.
const READY_BYTES_MAX: usize = 512 * 1024;

/// Receiving half of a flow of datagrams.
#[derive(Debug)]
pub(in crate::session) struct DatagramReceiver {
    /// Buffer of a striped flow.
    order: Option<ReorderBuffer>,
    arrived: SequenceWindow,
    fragments: FragmentBuffer,
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    delivered: u64,
    duplicates: u64,
    late: u64,
    dropped: u64,
}

impl DatagramReceiver {
    pub(super) fn new(mode: DatagramMode) -> Self {
        Self {
            order: (mode == DatagramMode::Stripe).then(ReorderBuffer::default),
            arrived: SequenceWindow::new(),
            fragments: FragmentBuffer::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            delivered: 0,
            duplicates: 0,
            late: 0,
            dropped: 0,
        }
    }

    /// Returns the paths that have delivered datagrams of a striped flow.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathId> {
        self.order.iter().flat_map(ReorderBuffer::paths)
    }

    /// Takes a datagram, or a fragment of one. [`Self::release`] follows.
    pub(super) fn receive(&mut self, now: Instant, path: PathId, message: Message) {
        let Message { sequence, fragment, data, .. } = message;
        if let Some(order) = &mut self.order {
            order.record_path(path, sequence);
        }
        let is_done = self.order.as_ref().is_some_and(|order| order.is_done(sequence));
        match self.arrived.novelty(sequence) {
            Novelty::Copy => self.duplicates += 1,
            Novelty::TooOld => self.late += 1,
            Novelty::New => match self.fragments.insert(sequence, fragment, data) {
                Assembly::Incomplete => {}
                Assembly::Copy => self.duplicates += 1,
                Assembly::Complete(data) => {
                    self.arrived.insert(sequence);
                    match &mut self.order {
                        Some(_) if is_done => self.late += 1,
                        Some(order) => order.insert(now, sequence, data),
                        None => self.deliver(data),
                    }
                }
            },
        }
    }

    /// Lets the datagrams that do not have to wait any longer be read; returns the times that some have waited.
    pub(super) fn release(&mut self, now: Instant, rule: &ReleaseRule) -> Vec<Duration> {
        let Some(order) = &mut self.order else { return Vec::new() };
        let mut delays = Vec::new();
        for release in order.release(now, rule) {
            if !release.waited.is_zero() {
                delays.push(release.waited);
            }
            self.deliver(release.data);
        }
        delays
    }

    fn deliver(&mut self, data: Bytes) {
        self.delivered += 1;
        self.ready_bytes += data.len();
        self.ready.push_back(data);
        while READY_MAX < self.ready.len() || READY_BYTES_MAX < self.ready_bytes {
            self.read();
            self.delivered -= 1;
            self.dropped += 1;
        }
    }

    /// Counts a datagram for which there is no memory.
    pub(super) fn record_dropped(&mut self) {
        self.dropped += 1;
    }

    /// Removes the next datagram for the application.
    pub(super) fn read(&mut self) -> Option<Bytes> {
        let data = self.ready.pop_front()?;
        self.ready_bytes -= data.len();
        Some(data)
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the time at which datagrams have waited for the deadline; `None` if none waits.
    pub(super) fn due_at(&self, deadline: Duration) -> Option<Instant> {
        self.order.as_ref()?.due_at(deadline)
    }

    /// Returns the number of bytes stored.
    pub(super) fn bytes(&self) -> usize {
        self.order.as_ref().map_or(0, ReorderBuffer::bytes) + self.fragments.bytes() + self.ready_bytes
    }

    /// Returns the number of datagrams that wait for earlier ones.
    pub(super) fn held(&self) -> usize {
        self.order.as_ref().map_or(0, ReorderBuffer::len)
    }

    /// Returns the number of bytes that wait for earlier ones.
    pub(super) fn held_bytes(&self) -> usize {
        self.order.as_ref().map_or(0, ReorderBuffer::bytes)
    }

    /// Returns the fraction of the reorder buffer in use.
    pub(super) fn utilisation(&self) -> f64 {
        let by_count = self.held() as f64 / HELD_MAX as f64;
        by_count.max(self.held_bytes() as f64 / HELD_BYTES_MAX as f64)
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of datagrams that were given up, or are missing in a flow that does not wait for them.
    pub(super) fn lost(&self) -> u64 {
        self.order.as_ref().map_or_else(|| self.arrived.missing(), ReorderBuffer::lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::FlowId;
    use crate::frame::{Fragment, SendTime};

    const NOW: Instant = Instant::from_secs(1);

    #[test]
    fn of_several_copies_the_first_is_delivered_at_once() {
        let mut receiver = DatagramReceiver::new(DatagramMode::Duplicate);
        for (path, sequence) in [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (0, 1)] {
            receiver.receive(NOW, PathId(path), message(sequence, &[sequence as u8]));
        }
        assert_eq!(read_all(&mut receiver), [&[0][..], &[2], &[1]]);
        let counts = (receiver.delivered(), receiver.duplicates(), receiver.late(), receiver.lost());
        assert_eq!(counts, (3, 3, 0, 0));
        receiver.receive(NOW, PathId(0), message(5, b"x"));
        assert_eq!(receiver.lost(), 2, "3 and 4 are missing");
    }

    #[test]
    fn a_copy_beyond_the_window_is_late() {
        let mut receiver = DatagramReceiver::new(DatagramMode::Duplicate);
        receiver.receive(NOW, PathId(0), message(10_000, b"new"));
        receiver.receive(NOW, PathId(0), message(1, b"old"));
        assert_eq!((receiver.delivered(), receiver.late()), (1, 1));
    }

    #[test]
    fn a_late_datagram_of_a_striped_flow_is_dropped_and_counted() {
        let mut receiver = DatagramReceiver::new(DatagramMode::Stripe);
        let rule = ReleaseRule { paths: vec![PathId(0)], deadline: Duration::from_millis(5) };
        receiver.receive(NOW, PathId(0), message(1, b"second"));
        receiver.release(NOW, &rule);
        receiver.receive(NOW, PathId(1), message(0, b"first"));
        receiver.receive(NOW, PathId(1), message(0, b"first"));
        receiver.receive(NOW, PathId(1), message(1, b"second"));
        receiver.release(NOW, &rule);
        assert_eq!(read_all(&mut receiver), ["second"]);
        assert_eq!((receiver.late(), receiver.duplicates(), receiver.lost()), (1, 2, 1));
    }

    #[test]
    fn an_application_that_does_not_read_loses_the_oldest() {
        let mut receiver = DatagramReceiver::new(DatagramMode::Pin);
        for sequence in 0..2_000 {
            receiver.receive(NOW, PathId(0), message(sequence, &[0; 400]));
        }
        assert_eq!((receiver.delivered(), receiver.dropped()), (READY_MAX as u64, 976));
        for sequence in 2_000..2_020 {
            receiver.receive(NOW, PathId(0), message(sequence, &[0; 60_000]));
            assert!(receiver.bytes() <= READY_BYTES_MAX);
        }
    }

    fn message(sequence: u64, data: &[u8]) -> Message {
        Message {
            flow: FlowId(2),
            sequence,
            sent_at: SendTime(0),
            fragment: Fragment::WHOLE,
            data: Bytes::copy_from_slice(data),
        }
    }

    fn read_all(receiver: &mut DatagramReceiver) -> Vec<Bytes> {
        std::iter::from_fn(|| receiver.read()).collect()
    }
}
