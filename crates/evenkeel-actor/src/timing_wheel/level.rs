//! One level of the timing wheel: its buckets, and a bitmap of those that hold timers.

use alloc::boxed::Box;
use alloc::vec;

use super::timers::TimerSlot;

/// The buckets for one digit of the tick.
#[derive(Debug)]
pub(super) struct Level {
    /// Bit n is set while bucket n holds timers.
    occupied: u64,
    pub(super) buckets: Box<[Bucket]>,
}

/// A list of timers in order of insertion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    pub(super) first: Option<TimerSlot>,
    pub(super) last: Option<TimerSlot>,
    /// Lower bound of the bucket's ticks; exact unless a timer was cancelled.
    pub(super) earliest: u64,
}

impl Level {
    pub(super) fn new(buckets: usize) -> Self {
        Self { occupied: 0, buckets: vec![Bucket::default(); buckets].into_boxed_slice() }
    }

    pub(super) fn first_occupied(&self) -> Option<usize> {
        (self.occupied != 0).then(|| self.occupied.trailing_zeros() as usize)
    }

    /// Returns the bucket to which a timer of `tick` is about to be appended.
    pub(super) fn occupy(&mut self, digit: usize, tick: u64) -> &mut Bucket {
        let bucket = &mut self.buckets[digit];
        bucket.earliest = if bucket.first.is_none() { tick } else { bucket.earliest.min(tick) };
        self.occupied |= 1 << digit;
        bucket
    }

    /// Takes the bucket, leaving an empty one.
    pub(super) fn take(&mut self, digit: usize) -> Bucket {
        self.occupied &= !(1 << digit);
        core::mem::take(&mut self.buckets[digit])
    }

    /// Updates the bitmap after a timer was removed from the bucket.
    pub(super) fn record_removed(&mut self, digit: usize) {
        if self.buckets[digit].first.is_none() {
            self.occupied &= !(1 << digit);
        }
    }
}
