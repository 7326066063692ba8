//! Data of a flow that this side sends: what waits, what is on its way, what must be sent again.
//!
//! Guarantees: a byte is retained until it is acknowledged; data is sent only within the peer's credit; a chunk sent
//! again covers the same bytes as before, or their unacknowledged rest.
//!
//! Limits: at most [`CHUNKS_MAX`] chunks lie beyond the acknowledged offset, so that the receiver never has to store
//! more separate ranges than that.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::RateWindow;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};

use super::byte_queue::ByteQueue;
use super::config::CREDIT_INITIAL;
use crate::flow::FlowId;
use crate::frame::{CHUNK_BYTES_MAX, Chunk, FlowAck, NUMBER_MAX};

/// Maximum number of chunks of a flow beyond the acknowledged offset.
pub(super) const CHUNKS_MAX: usize = 4_096;

/// Window over which a flow's throughput is measured.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Data sent by one side of a flow.
#[derive(Debug)]
pub(super) struct SendHalf {
    /// Data that was not sent yet.
    queue: ByteQueue,
    end: End,
    /// Offset after everything sent.
    next: u64,
    /// Offset before which everything is acknowledged.
    acked: u64,
    credit: u64,
    /// Chunks sent and not acknowledged, by offset.
    sent: BTreeMap<u64, SentChunk>,
    sent_bytes: u64,
    /// Offsets of the chunks acknowledged beyond `acked`.
    ahead: BTreeSet<u64>,
    /// Offsets of the chunks of `sent` that must be sent again.
    lost: BTreeSet<u64>,
    /// Offsets of the chunks of `sent` that must take a second path too.
    uncopied: BTreeSet<u64>,
    rate: RateWindow,
}

/// End of a flow's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The application may write more.
    Open,
    /// The application finished.
    Finished,
    /// The end was sent.
    Sent,
}

/// Chunk that is not acknowledged.
#[derive(Debug)]
pub(super) struct SentChunk {
    data: Bytes,
    fin: bool,
    pub(super) path: PathId,
    pub(super) sent_at: Instant,
    /// Second path of a redundant flow.
    copy: Option<PathId>,
}

impl SentChunk {
    /// Returns the number of offsets that the chunk occupies.
    fn span(&self) -> u64 {
        self.data.len() as u64 + u64::from(self.fin)
    }
}

/// Reports whether a chunk was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmission {
    First,
    Again,
}

/// Error for an acknowledgement of data that was not sent.
#[derive(Debug)]
pub(super) struct UnsentData;

impl SendHalf {
    pub(super) fn new() -> Self {
        Self {
            queue: ByteQueue::default(),
            end: End::Open,
            next: 0,
            acked: 0,
            credit: CREDIT_INITIAL,
            sent: BTreeMap::new(),
            sent_bytes: 0,
            ahead: BTreeSet::new(),
            lost: BTreeSet::new(),
            uncopied: BTreeSet::new(),
            rate: RateWindow::new(RATE_WINDOW).unwrap_or_default(),
        }
    }

    /// Appends data; the caller limits its amount. Ignored after the end.
    pub(super) fn push(&mut self, data: Bytes) {
        if self.end == End::Open && self.written() + (data.len() as u64) < NUMBER_MAX {
            self.queue.push(data);
        }
    }

    pub(super) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Finished;
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.end != End::Open
    }

    /// Reports whether the end was sent.
    pub(super) fn is_end_sent(&self) -> bool {
        self.end == End::Sent
    }

    /// Reports whether everything is acknowledged, the end included.
    pub(super) fn is_done(&self) -> bool {
        self.end == End::Sent && self.sent.is_empty()
    }

    /// Reports whether only the end itself is not acknowledged, or nothing.
    pub(super) fn is_delivered(&self) -> bool {
        self.queue.is_empty() && self.sent_bytes == 0
    }

    /// Reports whether an acknowledgement must come before the flow is complete or can go on.
    pub(super) fn awaits_ack(&self) -> bool {
        !self.sent.is_empty() || (!self.queue.is_empty() && self.credit <= self.next)
    }

    /// Reports whether data waits to be sent, or all data was written and some is unacknowledged.
    pub(super) fn has_demand(&self) -> bool {
        !self.queue.is_empty() || !self.lost.is_empty() || (self.is_finished() && !self.sent.is_empty())
    }

    /// Returns the bytes that may be sent beyond the acknowledged offset.
    pub(super) fn window(&self) -> u64 {
        self.credit.saturating_sub(self.acked)
    }

    /// Returns the bytes stored until they are acknowledged.
    pub(super) fn retained(&self) -> u64 {
        self.queue.len() as u64 + self.sent_bytes
    }

    /// Returns the number of chunks beyond the acknowledged offset.
    pub(super) fn chunks(&self) -> usize {
        self.sent.len() + self.ahead.len()
    }

    pub(super) fn written(&self) -> u64 {
        self.next - u64::from(self.end == End::Sent) + self.queue.len() as u64
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    /// Returns the acknowledged bytes per second; `None` if unknown.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        self.rate.per_second(now)
    }

    /// Returns the number of data bytes in the chunk that [`take`](Self::take) returns.
    pub(super) fn next_len(&self) -> Option<usize> {
        if let Some(lost) = self.lost.first() {
            return self.sent.get(lost).map(|chunk| chunk.data.len());
        }
        if self.end == End::Sent || CHUNKS_MAX <= self.chunks() {
            return None;
        }
        if self.queue.is_empty() {
            return (self.end == End::Finished).then_some(0);
        }
        let credit = usize::try_from(self.credit.saturating_sub(self.next)).unwrap_or(usize::MAX);
        let len = self.queue.front_len().min(CHUNK_BYTES_MAX).min(credit);
        (len > 0).then_some(len)
    }

    /// Reports whether the next chunk was sent before.
    pub(super) fn next_transmission(&self) -> Transmission {
        if self.lost.is_empty() { Transmission::First } else { Transmission::Again }
    }

    /// Returns the path that did not deliver the next chunk in time; `None` if it was not sent before.
    pub(super) fn next_was_on(&self) -> Option<PathId> {
        Some(self.sent.get(self.lost.first()?)?.path)
    }

    /// Returns the next chunk, which is about to be sent on `path`; lost ones first.
    pub(super) fn take(&mut self, now: Instant, flow: FlowId, path: PathId) -> Option<Chunk> {
        let len = self.next_len()?;
        if let Some(offset) = self.lost.pop_first() {
            let sent = self.sent.get_mut(&offset)?;
            sent.path = path;
            sent.sent_at = now;
            return Some(Chunk { flow, offset, fin: sent.fin, data: sent.data.clone() });
        }
        let data = self.queue.pop(len);
        let fin = self.end == End::Finished && self.queue.is_empty();
        let chunk = Chunk { flow, offset: self.next, fin, data: data.clone() };
        self.next += data.len() as u64 + u64::from(fin);
        self.sent_bytes += data.len() as u64;
        if fin {
            self.end = End::Sent;
        }
        self.sent.insert(chunk.offset, SentChunk { data, fin, path, sent_at: now, copy: None });
        Some(chunk)
    }

    /// Lets the chunk at `offset` take a second path too.
    pub(super) fn request_copy(&mut self, offset: u64) {
        self.uncopied.insert(offset);
    }

    /// Lets all chunks on their way take a second path too.
    pub(super) fn request_copies(&mut self) {
        self.uncopied.extend(self.sent.keys());
    }

    /// Returns offset and length of the first chunk that another path carries and `path` should carry too.
    pub(super) fn next_copy(&self, path: PathId) -> Option<(u64, usize)> {
        let is_elsewhere = |offset: &&u64| {
            self.sent.get(*offset).is_some_and(|chunk| chunk.path != path) && !self.lost.contains(*offset)
        };
        let offset = self.uncopied.iter().find(is_elsewhere)?;
        Some((*offset, self.sent.get(offset)?.data.len()))
    }

    /// Returns the chunk at `offset`, which is about to be sent on `path` too.
    pub(super) fn take_copy(&mut self, flow: FlowId, offset: u64, path: PathId) -> Option<Chunk> {
        let sent = self.sent.get_mut(&offset)?;
        sent.copy = Some(path);
        self.uncopied.remove(&offset);
        Some(Chunk { flow, offset, fin: sent.fin, data: sent.data.clone() })
    }

    /// Records that a path delivers nothing any more: chunks that another path carries get a new second one, the others
    /// must be sent again. Reports whether there are any.
    pub(super) fn leave_path(&mut self, path: PathId) -> bool {
        let mut has_changed = false;
        for (offset, chunk) in &mut self.sent {
            if chunk.copy == Some(path) {
                chunk.copy = None;
                has_changed |= self.uncopied.insert(*offset);
            } else if chunk.path == path {
                has_changed |= match chunk.copy.take() {
                    Some(copy) => {
                        chunk.path = copy;
                        self.uncopied.insert(*offset)
                    }
                    None => self.lost.insert(*offset),
                };
            }
        }
        has_changed
    }

    /// Marks the chunks on their way that fulfil a condition to be sent again; reports whether there are any.
    pub(super) fn resend(&mut self, condition: impl Fn(&SentChunk) -> bool) -> bool {
        let before = self.lost.len();
        let matching = self.sent.iter().filter(|(_, chunk)| condition(chunk)).map(|(offset, _)| *offset);
        self.lost.extend(matching);
        before < self.lost.len()
    }

    /// Reports whether a chunk on its way fulfils a condition.
    pub(super) fn has_sent_where(&self, condition: impl Fn(&SentChunk) -> bool) -> bool {
        self.sent.iter().any(|(offset, chunk)| !self.lost.contains(offset) && condition(chunk))
    }

    /// Records an acknowledgement and returns the number of newly acknowledged bytes; an outdated one changes nothing.
    pub(super) fn acknowledge(&mut self, now: Instant, ack: &FlowAck) -> Result<u64, UnsentData> {
        if self.next < ack.ranges.last().map_or(ack.cumulative, |range| range.end) {
            return Err(UnsentData);
        }
        let before = self.sent_bytes;
        self.credit = self.credit.max(ack.credit);
        self.acknowledge_before(ack.cumulative);
        for range in &ack.ranges {
            let whole =
                |(offset, chunk): (&u64, &SentChunk)| (offset + chunk.span() <= range.end).then_some(*offset);
            let acked: Vec<u64> = self.sent.range(range.start..range.end).filter_map(whole).collect();
            for offset in acked {
                self.remove(offset);
                self.ahead.insert(offset);
            }
        }
        let acked = before - self.sent_bytes;
        if acked > 0 {
            self.rate.record(now, Cost(acked));
        }
        Ok(acked)
    }

    /// Records that everything sent was received.
    pub(super) fn acknowledge_all(&mut self) {
        self.acknowledge_before(self.next);
    }

    fn acknowledge_before(&mut self, cumulative: u64) {
        if cumulative <= self.acked {
            return;
        }
        self.acked = cumulative;
        while let Some((&offset, chunk)) = self.sent.first_key_value()
            && offset + chunk.span() <= cumulative
        {
            self.remove(offset);
        }
        if let Some((&offset, _)) = self.sent.first_key_value()
            && offset < cumulative
        {
            self.trim(offset, cumulative);
        }
        self.ahead = self.ahead.split_off(&cumulative);
    }

    fn remove(&mut self, offset: u64) -> Option<SentChunk> {
        let chunk = self.sent.remove(&offset)?;
        self.sent_bytes -= chunk.data.len() as u64;
        self.lost.remove(&offset);
        self.uncopied.remove(&offset);
        Some(chunk)
    }

    /// Drops the part of a chunk before `start`, which lies inside the chunk.
    fn trim(&mut self, offset: u64, start: u64) {
        let was_lost = self.lost.contains(&offset);
        let was_uncopied = self.uncopied.contains(&offset);
        let Some(mut chunk) = self.remove(offset) else { return };
        chunk.data = chunk.data.slice((start - offset) as usize..);
        self.sent_bytes += chunk.data.len() as u64;
        self.sent.insert(start, chunk);
        if was_lost {
            self.lost.insert(start);
        }
        if was_uncopied {
            self.uncopied.insert(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::OffsetRange;

    const FLOW: FlowId = FlowId(2);
    const A: PathId = PathId(0);
    const B: PathId = PathId(1);
    const NOW: Instant = Instant::from_secs(1);

    #[test]
    fn the_end_travels_with_the_last_data_or_alone() {
        let mut send = SendHalf::new();
        send.push(Bytes::from_static(b"data"));
        send.finish();
        send.push(Bytes::from_static(b"too late"));
        assert_eq!(take(&mut send), Some((0, 4, true)));
        assert_eq!(take(&mut send), None);
        assert_eq!((send.written(), send.is_done()), (4, false));
        acknowledge(&mut send, 5, &[]);
        assert!(send.is_done());

        let mut send = SendHalf::new();
        send.push(Bytes::from_static(b"data"));
        assert_eq!(take(&mut send), Some((0, 4, false)));
        send.finish();
        assert_eq!(take(&mut send), Some((4, 0, true)));
        acknowledge(&mut send, 4, &[]);
        assert!(send.is_delivered() && !send.is_done(), "the end is not acknowledged");
    }

    #[test]
    fn data_is_sent_only_within_the_credit() {
        let mut send = SendHalf::new();
        send.push(Bytes::from(vec![0; CREDIT_INITIAL as usize + 100]));
        let sent: usize = std::iter::from_fn(|| take(&mut send)).map(|(_, len, _)| len).sum();
        assert_eq!(sent as u64, CREDIT_INITIAL);
        assert!(send.awaits_ack());
        let more = FlowAck { credit: CREDIT_INITIAL + 60, ..FlowAck::default() };
        send.acknowledge(NOW, &more).unwrap();
        assert_eq!(take(&mut send), Some((CREDIT_INITIAL, 60, false)));
        let outdated = FlowAck { credit: 5, ..FlowAck::default() };
        send.acknowledge(NOW, &outdated).unwrap();
        assert_eq!(send.credit(), CREDIT_INITIAL + 60);
    }

    #[test]
    fn lost_chunks_are_sent_first_and_without_what_was_acknowledged() {
        let mut send = SendHalf::new();
        for byte in 0..4 {
            send.push(Bytes::from(vec![byte; 5_000]));
            take(&mut send);
        }
        send.push(Bytes::from(vec![4; 5_000]));
        acknowledge(&mut send, 6_000, &[OffsetRange { start: 10_000, end: 15_000 }]);
        assert_eq!(send.retained(), 14_000);
        assert!(send.resend(|chunk| chunk.path == A));
        assert!(!send.resend(|_| true), "they are marked already");
        let mut again = Vec::new();
        while let Some(chunk) = send.take(NOW, FLOW, A) {
            assert!(chunk.data.iter().all(|byte| u64::from(*byte) == chunk.offset / 5_000));
            again.push((chunk.offset, chunk.data.len()));
        }
        assert_eq!(again, [(6_000, 4_000), (15_000, 5_000), (20_000, 5_000)]);
        acknowledge(&mut send, 25_000, &[]);
        assert_eq!((send.retained(), send.chunks()), (0, 0));
    }

    #[test]
    fn a_chunk_takes_a_second_path_unless_it_is_acknowledged_and_another_if_one_of_them_fails() {
        let mut send = SendHalf::new();
        for offset in [0, 4, 8] {
            send.push(Bytes::from_static(b"data"));
            take(&mut send);
            send.request_copy(offset);
        }
        assert_eq!(send.next_copy(A), None, "it has them all");
        acknowledge(&mut send, 6, &[]);
        assert_eq!(send.next_copy(B), Some((6, 2)), "without what was acknowledged");
        assert_eq!(send.take_copy(FLOW, 6, B).unwrap().data, "ta");
        assert_eq!(send.next_copy(B), Some((8, 4)));
        // The first chunk is on B, too; the second was only on A.
        assert!(send.leave_path(A));
        assert_eq!((take(&mut send), take(&mut send)), (Some((8, 4, false)), None));
        let on_a = send.next_copy(A);
        assert_eq!(on_a, Some((6, 2)), "it has only B");
        assert!(!send.leave_path(PathId(7)));
        acknowledge(&mut send, 12, &[]);
        assert_eq!((send.next_copy(A), send.next_copy(B), send.retained()), (None, None, 0));
    }

    #[test]
    fn a_chunk_that_is_acknowledged_while_it_waits_is_not_sent_again() {
        let mut send = SendHalf::new();
        send.push(Bytes::from_static(b"data"));
        take(&mut send);
        send.resend(|_| true);
        acknowledge(&mut send, 4, &[]);
        assert_eq!(take(&mut send), None);
    }

    #[test]
    fn at_most_4096_chunks_lie_beyond_the_acknowledged_offset() {
        let mut send = SendHalf::new();
        let mut sent = 0;
        loop {
            send.push(Bytes::from_static(b"x"));
            if take(&mut send).is_none() {
                break;
            }
            sent += 1;
        }
        assert_eq!(sent, CHUNKS_MAX);
        acknowledge(&mut send, 0, &[OffsetRange { start: 1, end: CHUNKS_MAX as u64 }]);
        assert_eq!(take(&mut send), None, "the receiver still stores them");
        acknowledge(&mut send, CHUNKS_MAX as u64, &[]);
        assert!(take(&mut send).is_some());
    }

    /// Returns offset, length and end of the next chunk.
    fn take(send: &mut SendHalf) -> Option<(u64, usize, bool)> {
        send.take(NOW, FLOW, A).map(|chunk| (chunk.offset, chunk.data.len(), chunk.fin))
    }

    fn acknowledge(send: &mut SendHalf, cumulative: u64, ranges: &[OffsetRange]) {
        let ack = FlowAck { cumulative, credit: 0, ranges: ranges.to_vec() };
        send.acknowledge(NOW, &ack).unwrap();
    }
}
