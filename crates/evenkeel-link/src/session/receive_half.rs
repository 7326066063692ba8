//! Data of a flow that this side receives: reassembly, and the credit that bounds it.
//!
//! Guarantees: every byte is delivered once and in order, however chunks are cut, repeated or reordered; the bytes
//! stored never exceed the window.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use evenkeel_policy::time::{Duration, Instant};

use super::acks::Urgency;
use super::byte_queue::ByteQueue;
use super::config::CREDIT_INITIAL;
use crate::frame::{CHUNK_BYTES_MAX, Chunk, FlowAck, OffsetRange};

/// Data received by one side of a flow.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    /// Data in order that the application has not read.
    ready: ByteQueue,
    /// Offset before which the application has read everything.
    read: u64,
    /// Offset before which everything has arrived.
    next: u64,
    /// Data beyond a gap, by offset; runs do not overlap.
    runs: BTreeMap<u64, Run>,
    run_bytes: u64,
    /// Offset after the last byte, once known.
    end: Option<u64>,
    /// Number of bytes after `read` that the peer may send, and that may have to be stored.
    window: u64,
    /// Credit that was last sent to the peer.
    advertised: u64,
}

/// Consecutive bytes beyond a gap.
#[derive(Debug)]
struct Run {
    data: BytesMut,
    /// Arrival of the first bytes.
    arrived_at: Instant,
}

/// Effect of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkReceipt {
    /// Bytes that had arrived before.
    pub(super) duplicate: u64,
    /// Reports whether the application can read something new: data, or the end.
    pub(super) is_readable: bool,
    /// Times that data had to wait for this chunk.
    pub(super) delays: Vec<Duration>,
}

/// Chunk that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadChunk {
    BeyondCredit,
    AfterEnd,
}

impl ReceiveHalf {
    /// Creates an empty half whose window is [`CREDIT_INITIAL`], which the peer uses before it hears of it.
    pub(super) fn new() -> Self {
        Self {
            ready: ByteQueue::default(),
            read: 0,
            next: 0,
            runs: BTreeMap::new(),
            run_bytes: 0,
            end: None,
            window: CREDIT_INITIAL,
            advertised: CREDIT_INITIAL,
        }
    }

    /// Stores the bytes of a chunk that have not arrived before.
    pub(super) fn receive(&mut self, now: Instant, chunk: Chunk) -> Result<ChunkReceipt, BadChunk> {
        let end = chunk.offset + chunk.data.len() as u64;
        if self.credit() < end {
            return Err(BadChunk::BeyondCredit);
        }
        if self.end.is_some_and(|known| known < end || (chunk.fin && known != end))
            || (chunk.fin && end < self.highest())
        {
            return Err(BadChunk::AfterEnd);
        }
        let before = self.cumulative();
        if chunk.fin {
            self.end = Some(end);
        }
        let stored = self.next + self.run_bytes;
        let len = chunk.data.len() as u64;
        let delays = if chunk.offset <= self.next {
            self.append(now, chunk)
        } else {
            self.store_beyond_gap(now, chunk);
            Vec::new()
        };
        let duplicate = len - (self.next + self.run_bytes - stored);
        Ok(ChunkReceipt { duplicate, is_readable: before < self.cumulative(), delays })
    }

    /// Returns the offset after the last byte that has arrived.
    fn highest(&self) -> u64 {
        self.runs.last_key_value().map_or(self.next, |(start, run)| start + run.data.len() as u64)
    }

    /// Delivers a chunk that starts at or before the first missing byte, and the runs that it reaches.
    fn append(&mut self, now: Instant, mut chunk: Chunk) -> Vec<Duration> {
        let known = (self.next - chunk.offset).min(chunk.data.len() as u64);
        chunk.data.advance(known as usize);
        self.next += chunk.data.len() as u64;
        self.ready.push(chunk.data);
        let mut delays = Vec::new();
        while let Some(entry) = self.runs.first_entry()
            && *entry.key() <= self.next
        {
            let start = *entry.key();
            let mut run = entry.remove();
            self.run_bytes -= run.data.len() as u64;
            let known = (self.next - start).min(run.data.len() as u64);
            run.data.advance(known as usize);
            if !run.data.is_empty() {
                self.next += run.data.len() as u64;
                self.ready.push(run.data.freeze());
                delays.push(now.since(run.arrived_at));
            }
        }
        delays
    }

    /// Stores the parts of a chunk that lie between the runs.
    fn store_beyond_gap(&mut self, now: Instant, chunk: Chunk) {
        let mut offset = chunk.offset;
        let mut rest = chunk.data;
        while !rest.is_empty() {
            let before = self.runs.range(..=offset).next_back();
            let known_end = before.map_or(0, |(start, run)| start + run.data.len() as u64);
            if offset < known_end {
                let known = (known_end - offset).min(rest.len() as u64);
                rest.advance(known as usize);
                offset += known;
                continue;
            }
            let run_start = before.map(|(start, _)| *start).filter(|_| known_end == offset);
            let free = match self.runs.range(offset..).next() {
                Some((start, _)) => (start - offset).min(rest.len() as u64) as usize,
                None => rest.len(),
            };
            let new = rest.split_to(free);
            offset += new.len() as u64;
            self.store_run(now, offset - new.len() as u64, run_start, &new);
        }
    }

    /// Stores bytes at `offset`, in the run that ends there unless it is long.
    fn store_run(&mut self, now: Instant, offset: u64, run_start: Option<u64>, data: &[u8]) {
        self.run_bytes += data.len() as u64;
        if let Some(run) = run_start.and_then(|start| self.runs.get_mut(&start))
            && run.data.len() < CHUNK_BYTES_MAX
        {
            run.data.extend_from_slice(data);
            return;
        }
        self.runs.insert(offset, Run { data: BytesMut::from(data), arrived_at: now });
    }

    /// Removes at most `max` bytes that the application reads; they leave the window.
    pub(super) fn read(&mut self, max: usize) -> Bytes {
        let data = self.ready.pop(max);
        self.read += data.len() as u64;
        self.window -= data.len() as u64;
        data
    }

    /// Gives the peer more credit.
    pub(super) fn grow_window(&mut self, bytes: u64) {
        self.window += bytes;
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Returns the offset before which the peer may send.
    pub(super) fn credit(&self) -> u64 {
        self.read + self.window
    }

    /// Reports whether the peer should hear of its new credit.
    pub(super) fn credit_update(&self) -> Option<Urgency> {
        if self.credit() - self.advertised < self.window / 4 {
            return None;
        }
        let is_scarce = self.advertised < self.next + self.window / 4;
        Some(if is_scarce { Urgency::AtOnce } else { Urgency::Soon })
    }

    /// Returns the acknowledgement to send, with at most `ranges_max` ranges.
    pub(super) fn acknowledge(&mut self, ranges_max: usize) -> FlowAck {
        self.advertised = self.credit();
        let mut ranges: Vec<OffsetRange> = Vec::new();
        for (&start, run) in &self.runs {
            let end = start + run.data.len() as u64;
            if let Some(last) = ranges.last_mut().filter(|last| last.end == start) {
                last.end = end;
            } else if ranges.len() < ranges_max {
                ranges.push(OffsetRange { start, end });
            } else {
                break;
            }
        }
        FlowAck { cumulative: self.cumulative(), credit: self.credit(), ranges }
    }

    /// Returns the offset before which everything has arrived, the end included.
    fn cumulative(&self) -> u64 {
        self.next + u64::from(self.is_complete())
    }

    /// Reports whether everything has arrived, the end included.
    pub(super) fn is_complete(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Reports whether the application has read everything.
    pub(super) fn is_read(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Returns the number of bytes stored.
    pub(super) fn buffered(&self) -> u64 {
        self.ready.len() as u64 + self.run_bytes
    }

    /// Returns the number of bytes that wait for earlier ones.
    pub(super) fn reorder_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Returns the number of separately stored pieces beyond gaps.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn received(&self) -> u64 {
        self.next
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::FlowId;
    use crate::frame::ACK_RANGES_MAX;

    const NOW: Instant = Instant::from_secs(1);

    #[test]
    fn an_end_without_data_is_readable() {
        let mut half = ReceiveHalf::new();
        let chunk = Chunk { flow: FlowId(2), offset: 0, fin: true, data: Bytes::new() };
        assert!(half.receive(Instant::ORIGIN, chunk.clone()).unwrap().is_readable);
        assert!(!half.receive(Instant::ORIGIN, chunk).unwrap().is_readable, "a repetition is nothing new");
    }

    #[test]
    fn an_acknowledgement_names_what_has_arrived() {
        let mut receive = ReceiveHalf::new();
        for (offset, len) in [(0, 10), (20, 10), (30, 5), (50, 1), (25, 3)] {
            chunk(&mut receive, offset, len, false);
        }
        let ack = receive.acknowledge(ACK_RANGES_MAX);
        assert_eq!((ack.cumulative, ack.credit), (10, CREDIT_INITIAL));
        let ranges: Vec<_> = ack.ranges.iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(ranges, [(20, 35), (50, 51)]);
        assert_eq!(receive.acknowledge(1).ranges.len(), 1);
        chunk(&mut receive, 51, 0, true);
        chunk(&mut receive, 10, 41, false);
        assert_eq!(receive.acknowledge(ACK_RANGES_MAX).cumulative, 52, "the end has an offset of its own");
        assert!(receive.is_complete() && !receive.is_read());
    }

    #[test]
    fn the_wait_for_an_earlier_chunk_is_measured() {
        let mut receive = ReceiveHalf::new();
        chunk(&mut receive, 10, 10, false);
        let data = Bytes::from(vec![0; 10]);
        let filled = Chunk { flow: FlowId(2), offset: 0, fin: false, data };
        let receipt = receive.receive(NOW + Duration::from_millis(30), filled).unwrap();
        assert_eq!(receipt.delays, [Duration::from_millis(30)]);
        assert!(receipt.is_readable);
    }

    #[test]
    fn bytes_that_arrive_again_are_counted() {
        let mut receive = ReceiveHalf::new();
        assert_eq!(chunk(&mut receive, 5, 10, false).duplicate, 0);
        assert_eq!(chunk(&mut receive, 0, 10, false).duplicate, 5);
        assert_eq!(chunk(&mut receive, 3, 20, false).duplicate, 12);
        assert_eq!(chunk(&mut receive, 0, 23, false).duplicate, 23);
        assert_eq!((receive.buffered(), receive.received()), (23, 23));
    }

    #[test]
    fn credit_is_announced_once_a_quarter_of_the_window_is_new() {
        let mut receive = ReceiveHalf::new();
        chunk(&mut receive, 0, 16_000, false);
        for expected in [None, Some(Urgency::Soon)] {
            let len = receive.read(usize::MAX).len() as u64;
            receive.grow_window(len + if expected.is_some() { CREDIT_INITIAL } else { 0 });
            assert_eq!(receive.credit_update(), expected);
        }
        receive.acknowledge(ACK_RANGES_MAX);
        assert_eq!(receive.credit_update(), None);
        let mut full = ReceiveHalf::new();
        (0..16).for_each(|number| {
            chunk(&mut full, number * 16_384, 16_384, false);
        });
        let len = full.read(usize::MAX).len() as u64;
        full.grow_window(len + CREDIT_INITIAL);
        assert_eq!(full.credit_update(), Some(Urgency::AtOnce), "the sender has no credit left");
    }

    fn chunk(receive: &mut ReceiveHalf, offset: u64, len: usize, fin: bool) -> ChunkReceipt {
        let data = Bytes::from(vec![0; len]);
        receive.receive(NOW, Chunk { flow: FlowId(2), offset, fin, data }).unwrap()
    }
}
