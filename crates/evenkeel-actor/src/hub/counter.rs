//! A 64-bit counter with one writer and any number of readers.
//!
//! Guarantees: adding is loads and stores, never an atomic read-modify-write; a reader sees a value that was current at
//! some time during the read, and values never decrease.

#[cfg(not(target_has_atomic = "64"))]
use narrow::Word;
#[cfg(target_has_atomic = "64")]
use wide::Word;

/// A counter that one thread increments and any thread reads.
///
/// If two threads increment at the same time, increments may be lost; there is no undefined behaviour.
#[derive(Debug, Default)]
pub struct Counter(Word);

impl Counter {
    /// Returns a counter at zero.
    pub const fn new() -> Self {
        Self(Word::new())
    }

    /// Adds to the counter.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.set(self.0.get_own().wrapping_add(more));
    }

    /// Returns the value.
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
        pub(super) fn get_own(&self) -> u64 {
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

/// A counter in two halves, for targets without 64-bit atomics.
///
/// The writer stores the upper half, the lower, and a copy of the upper; a reader loads them in the opposite order. If
/// the upper half and its copy are equal, they belong to the lower half read in between: a lower half stored after a
/// later carry is released after the new upper half, so the reader would have seen that one too. If they differ, the
/// counter passed `upper << 32` during the read, so that value was current.
#[cfg(any(test, not(target_has_atomic = "64")))]
mod narrow {
    use portable_atomic::AtomicU32;
    use portable_atomic::Ordering::{Acquire, Relaxed, Release};

    #[derive(Debug, Default)]
    pub(super) struct Word {
        upper: AtomicU32,
        lower: AtomicU32,
        upper_copy: AtomicU32,
    }

    impl Word {
        pub(super) const fn new() -> Self {
            Self { upper: AtomicU32::new(0), lower: AtomicU32::new(0), upper_copy: AtomicU32::new(0) }
        }

        #[inline]
        pub(super) fn get_own(&self) -> u64 {
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
                self.upper_copy.store(upper, Release);
            }
        }

        pub(super) fn read(&self) -> u64 {
            let upper_copy = self.upper_copy.load(Acquire);
            let lower = self.lower.load(Acquire);
            let upper = self.upper.load(Relaxed);
            join(upper, if upper == upper_copy { lower } else { 0 })
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
    fn a_counter_counts_past_32_bits() {
        let counter = Counter::new();
        counter.add(2);
        counter.add(u64::from(u32::MAX));
        assert_eq!(counter.get(), 2 + u64::from(u32::MAX));
    }

    #[test]
    fn two_halves_carry_like_one_word() {
        let word = narrow::Word::new();
        for count in [1, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, (7 << 32) - 1, u64::MAX] {
            word.set(count);
            assert_eq!((word.get_own(), word.read()), (count, count));
        }
    }

    #[test]
    fn a_reader_of_two_halves_never_sees_a_decrease() {
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
