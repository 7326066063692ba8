//! Applications at both ends: they write patterns and check every byte that arrives.

use bytes::{Bytes, BytesMut};
use evenkeel_policy::time::{Duration, Instant};

use crate::rng::Rng;

/// Bytes per write of a paced flow.
pub(super) const WRITE_BYTES: u64 = 1_000;

/// Bytes per write of a flow that writes as much as it can.
const BLOCK_BYTES: u64 = 64 * 1024;

/// Writer of a pattern.
#[derive(Debug)]
pub(super) struct PatternSource {
    seed: u64,
    total: u64,
    written: u64,
    /// Bytes that it may have written so far.
    allowed: u64,
    pub(super) is_finished: bool,
}

impl PatternSource {
    pub(super) fn new(seed: u64, total: u64, permission: WritePermission) -> Self {
        let allowed = match permission {
            WritePermission::Everything => total,
            WritePermission::Nothing => 0,
        };
        Self { seed, total, written: 0, allowed, is_finished: false }
    }

    /// Allows to write everything.
    pub(super) fn allow_all(&mut self) {
        self.allowed = self.total;
    }

    /// Allows another write of a paced flow; reports whether more follow.
    pub(super) fn allow_write(&mut self) -> bool {
        self.allowed = (self.allowed + WRITE_BYTES).min(self.total);
        self.allowed < self.total
    }

    /// Returns the next bytes to write.
    pub(super) fn next(&self) -> Bytes {
        pattern(self.seed, self.written, BLOCK_BYTES.min(self.allowed - self.written))
    }

    pub(super) fn record_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.written == self.total && self.allowed == self.total
    }
}

/// Bytes that a writer may write from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePermission {
    Everything,
    Nothing,
}

/// Reader that checks a pattern.
#[derive(Debug)]
pub(super) struct PatternSink {
    seed: u64,
    total: u64,
    pub(super) received: u64,
    pub(super) wrong_bytes: u64,
    last_at: Instant,
    pub(super) gap_max: Duration,
    pub(super) completed_at: Option<Instant>,
}

impl PatternSink {
    pub(super) fn new(now: Instant, seed: u64, total: u64) -> Self {
        Self {
            seed,
            total,
            received: 0,
            wrong_bytes: 0,
            last_at: now,
            gap_max: Duration::ZERO,
            completed_at: None,
        }
    }

    pub(super) fn check(&mut self, now: Instant, data: &[u8]) {
        let expected = pattern(self.seed, self.received, data.len() as u64);
        self.wrong_bytes += data.iter().zip(&expected).filter(|(got, sent)| got != sent).count() as u64;
        self.received += data.len() as u64;
        self.gap_max = self.gap(now);
        self.last_at = now;
        if self.total == self.received {
            self.completed_at = Some(now);
        }
    }

    /// Returns the longest time between two arrivals; until everything has arrived, the time since the last counts.
    pub(super) fn gap(&self, now: Instant) -> Duration {
        if self.completed_at.is_some() { self.gap_max } else { self.gap_max.max(now.since(self.last_at)) }
    }
}

/// Returns bytes of a pattern, in which no block of eight is repeated.
fn pattern(seed: u64, offset: u64, len: u64) -> Bytes {
    let end = offset + len;
    let mut bytes = BytesMut::with_capacity(len as usize + 16);
    for block in offset / 8..end.div_ceil(8) {
        bytes.extend_from_slice(
            &Rng::new(seed ^ block.wrapping_mul(0x2545_f491_4f6c_dd1d)).next_u64().to_le_bytes(),
        );
    }
    let skipped = (offset % 8) as usize;
    bytes.freeze().slice(skipped..skipped + len as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_wherever_it_is_cut() {
        let whole = pattern(7, 0, 1_000);
        for (offset, len) in [(0, 1), (3, 20), (8, 8), (13, 0), (991, 9)] {
            assert_eq!(pattern(7, offset, len), whole[offset as usize..(offset + len) as usize]);
        }
        assert_ne!(whole, pattern(8, 0, 1_000));
    }

    #[test]
    fn a_wrong_byte_is_counted() {
        let mut sink = PatternSink::new(Instant::ORIGIN, 7, 100);
        let mut data = pattern(7, 0, 100).to_vec();
        data[50] ^= 1;
        sink.check(Instant::from_secs(2), &data);
        assert_eq!((sink.wrong_bytes, sink.received), (1, 100));
        assert_eq!((sink.gap_max, sink.completed_at), (Duration::from_secs(2), Some(Instant::from_secs(2))));
    }
}
