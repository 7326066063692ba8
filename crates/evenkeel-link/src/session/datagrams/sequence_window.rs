//! Numbers that have arrived recently, to recognize copies.

/// Number of the most recent numbers that are remembered.
pub(super) const WINDOW: u64 = 4_096;

const WORD_BITS: u64 = 64;

/// Set of the numbers that have arrived, of the last [`WINDOW`].
#[derive(Debug)]
pub(super) struct SequenceWindow {
    bits: Box<[u64; (WINDOW / WORD_BITS) as usize]>,
    /// Number after the highest that has arrived.
    end: u64,
    /// Number of different numbers that have arrived.
    count: u64,
}

/// Knowledge about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    /// It has arrived before.
    Copy,
    /// It is too old to be remembered.
    TooOld,
}

impl SequenceWindow {
    pub(super) fn new() -> Self {
        Self { bits: Box::new([0; (WINDOW / WORD_BITS) as usize]), end: 0, count: 0 }
    }

    /// Returns what is known about a number.
    pub(super) fn novelty(&self, sequence: u64) -> Novelty {
        if self.end <= sequence {
            Novelty::New
        } else if WINDOW < self.end - sequence {
            Novelty::TooOld
        } else if self.bits[word(sequence)] & bit(sequence) != 0 {
            Novelty::Copy
        } else {
            Novelty::New
        }
    }

    /// Records the arrival of a new number.
    pub(super) fn insert(&mut self, sequence: u64) {
        if WINDOW <= sequence.saturating_sub(self.end) {
            self.bits.fill(0);
            self.end = sequence;
        }
        while self.end <= sequence {
            self.bits[word(self.end)] &= !bit(self.end);
            self.end += 1;
        }
        self.bits[word(sequence)] |= bit(sequence);
        self.count += 1;
    }

    /// Returns how many numbers before the highest have not arrived.
    pub(super) fn missing(&self) -> u64 {
        self.end - self.count
    }
}

fn word(sequence: u64) -> usize {
    (sequence % WINDOW / WORD_BITS) as usize
}

fn bit(sequence: u64) -> u64 {
    1 << (sequence % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_4096_numbers_are_remembered(
            steps in proptest::collection::vec(prop_oneof![0_u64..200, 0_u64..20_000, 0_u64..1 << 61], 1..100),
        ) {
            let mut window = SequenceWindow::new();
            let mut arrived = BTreeSet::new();
            for sequence in steps {
                let highest = arrived.last().copied();
                let expected = match highest {
                    Some(highest) if sequence + WINDOW <= highest => Novelty::TooOld,
                    _ if arrived.contains(&sequence) => Novelty::Copy,
                    _ => Novelty::New,
                };
                prop_assert_eq!(window.novelty(sequence), expected, "{} after {:?}", sequence, highest);
                if expected == Novelty::New {
                    window.insert(sequence);
                    arrived.insert(sequence);
                }
                let end = arrived.last().map_or(0, |highest| highest + 1);
                prop_assert_eq!(window.missing(), end - arrived.len() as u64);
            }
        }
    }
}
