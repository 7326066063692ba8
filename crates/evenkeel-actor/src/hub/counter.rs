//! A count of 64 bits with one writer and any number of readers.
//!
//! Bound: adding is loads and stores, never a locked operation; readers see a count that was true at
//! some moment of their reading, and never one that shrinks.

#[cfg(not(target_has_atomic = "64"))]
use narrow::Word;
#[cfg(target_has_atomic = "64")]
use wide::Word;

/// A count that one thread adds to and every thread may read.
///
/// If two threads add at once, counts get lost; nothing worse.
#[derive(Debug, Default)]
pub struct Counter(Word);

impl Counter {
    /// Makes a count of zero.
    pub const fn new() -> Self {
        Self(Word::new())
    }

    /// Adds to the count.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.set(self.0.own().wrapping_add(more));
    }

    /// Reads the count.
    pub fn get(&self) -> u64 {
        self.0.read()
    }
}

#[cfg(target_has_atomic = "64")]
mod wide {
    use portable_atomic::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug, Default)]
    pub(super) struct Word(AtomicU64);

    impl Word {
        pub(super) const fn new() -> Self {
            Self(AtomicU64::new(0))
        }

        #[inline]
        pub(super) fn own(&self) -> u64 {
            self.0.load(Relaxed)
        }

        #[inline]
        pub(super) fn set(&self, count: u64) {
            self.0.store(count, Relaxed);
        }

        pub(super) fn read(&self) -> u64 {
            self.0.load(Relaxed)
        }
    }
}

/// Two halves, for machines whose atomics end at 32 bits.
///
/// The writer stores the upper half, the lower, and the upper once more; a reader reads them the other
/// way round. Equal upper halves then belong to the lower half between them: a lower half of a later
/// carry brings its upper half along, for it was released after it. Unequal ones mean that the count
/// passed the larger of them, with nothing below, while it was read.
#[cfg(any(test, not(target_has_atomic = "64")))]
mod narrow {
    use portable_atomic::AtomicU32;
    use portable_atomic::Ordering::{Acquire, Relaxed, Release};

    #[derive(Debug, Default)]
    pub(super) struct Word {
        upper: AtomicU32,
        lower: AtomicU32,
        upper_again: AtomicU32,
    }

    impl Word {
        pub(super) const fn new() -> Self {
            Self { upper: AtomicU32::new(0), lower: AtomicU32::new(0), upper_again: AtomicU32::new(0) }
        }

        #[inline]
        pub(super) fn own(&self) -> u64 {
            join(self.upper.load(Relaxed), self.lower.load(Relaxed))
        }

        #[inline]
        pub(super) fn set(&self, count: u64) {
            let upper = (count >> u32::BITS) as u32;
            let lower = count as u32;
            let carried = upper != self.upper.load(Relaxed);
            if carried {
                self.upper.store(upper, Relaxed);
            }
            self.lower.store(lower, Release);
            if carried {
                self.upper_again.store(upper, Release);
            }
        }

        pub(super) fn read(&self) -> u64 {
            let upper_again = self.upper_again.load(Acquire);
            let lower = self.lower.load(Acquire);
            let upper = self.upper.load(Relaxed);
            join(upper, if upper == upper_again { lower } else { 0 })
        }
    }

    fn join(upper: u32, lower: u32) -> u64 {
        (u64::from(upper) << u32::BITS) + u64::from(lower)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::thread;

    #[test]
    fn a_counter_adds_up() {
        let counter = Counter::new();
        counter.add(2);
        counter.add(u64::from(u32::MAX));
        assert_eq!(counter.get(), 2 + u64::from(u32::MAX));
    }

    #[test]
    fn two_halves_carry_as_one_word_does() {
        let word = narrow::Word::new();
        for count in [1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, (7 << 32) - 1, u64::MAX] {
            word.set(count);
            assert_eq!((word.own(), word.read()), (count, count));
        }
    }

    #[test]
    fn two_halves_never_shrink_under_a_reader() {
        const STEP: u64 = 3 << 30;
        let word = narrow::Word::new();
        thread::scope(|scope| {
            let writer = scope.spawn(|| (1..=2_000).for_each(|step| word.set(step * STEP)));
            let mut last = 0;
            while !writer.is_finished() {
                let count = word.read();
                assert!(last <= count && count <= 2_000 * STEP, "{count:#x} after {last:#x}");
                last = count;
                thread::yield_now();
            }
        });
        assert_eq!(word.read(), 2_000 * STEP);
    }
}
