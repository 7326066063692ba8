//! Applications of a flow of datagrams: one sends numbered datagrams, the other checks their order.

use std::collections::BTreeSet;

use bytes::Bytes;
use evenkeel_link::flow::FlowId;
use evenkeel_policy::time::{Duration, Instant};

use super::traffic::WRITE_BYTES;

/// Bytes of a datagram's number and time.
const HEADER_BYTES: usize = 16;

/// Sender of numbered datagrams of [`WRITE_BYTES`].
#[derive(Debug)]
pub(super) struct DatagramSource {
    pub(super) flow: FlowId,
    next: u64,
    total: u64,
}

impl DatagramSource {
    pub(super) fn new(flow: FlowId, bytes: u64) -> Self {
        Self { flow, next: 0, total: bytes / WRITE_BYTES }
    }

    /// Returns the next datagram; `None` after the last one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Bytes> {
        if self.next == self.total {
            return None;
        }
        let mut data = vec![0; WRITE_BYTES as usize];
        data[..8].copy_from_slice(&self.next.to_le_bytes());
        data[8..HEADER_BYTES].copy_from_slice(&now.as_nanos().to_le_bytes()[..8]);
        self.next += 1;
        Some(data.into())
    }
}

/// Result of a flow of datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatagramRun {
    /// Numbers that arrived.
    pub received: BTreeSet<u64>,
    /// Datagrams that arrived after a later one.
    pub disordered: u64,
    /// Datagrams that arrived twice.
    pub repeated: u64,
    /// Longest time from sending to delivery.
    pub delay_max: Duration,
    /// Longest time between two deliveries.
    pub gap_max: Duration,
    last_at: Option<Instant>,
}

impl DatagramRun {
    pub(super) fn record(&mut self, now: Instant, data: &[u8]) {
        let number = |from: usize| data.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
        let sequence = number(0).map_or(u64::MAX, u64::from_le_bytes);
        let sent_at = number(8).map_or(0, u64::from_le_bytes);
        self.disordered += u64::from(self.received.last().is_some_and(|last| sequence < *last));
        self.repeated += u64::from(!self.received.insert(sequence));
        let sent_at = Instant::ORIGIN + Duration::from_nanos(sent_at);
        self.delay_max = self.delay_max.max(now.since(sent_at));
        let last_at = self.last_at.replace(now).unwrap_or(now);
        self.gap_max = self.gap_max.max(now.since(last_at));
    }
}
