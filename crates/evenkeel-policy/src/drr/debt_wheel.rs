//! Keys in debt, by the round in which their grants will have paid it off.
//!
//! Bound: a key is touched once when it comes in, once when it is due, and at most once per level of the
//! wheel in between (a level covers 64 times the rounds of the one below), however far off its round is.

use alloc::vec::Vec;

use super::account::KeyAccounts;
use super::ring::Ring;

const BITS: u32 = 6;
const SPAN: usize = 1 << BITS;
const MASK: u64 = SPAN as u64 - 1;

/// A wheel of rounds. Levels are added when a debt first reaches that far.
#[derive(Clone, Debug, Default)]
pub(super) struct DebtWheel {
    levels: Vec<Level>,
    /// Where the keys of one round are put in order; empty in between, kept for its memory.
    pub(super) scratch: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Level {
    occupied: u64,
    rings: [Ring; SPAN],
}

impl DebtWheel {
    /// Puts `key` where it is found once the round is `due`, which lies after `now`.
    pub(super) fn insert(&mut self, slots: &mut KeyAccounts, key: u32, due: u64, now: u64) {
        debug_assert!(now < due);
        let level = ((u64::BITS - 1 - (due ^ now).leading_zeros()) / BITS) as usize;
        while self.levels.len() <= level {
            self.levels.push(Level { occupied: 0, rings: [Ring::EMPTY; SPAN] });
        }
        let at = digit(due, level);
        let target = &mut self.levels[level];
        target.rings[at].push_back(slots, key);
        target.occupied |= 1 << at;
        // 11 levels of 64: the number fits in ten bits.
        slots[key].bucket = (level * SPAN + at) as u16;
    }

    pub(super) fn remove(&mut self, slots: &mut KeyAccounts, key: u32) {
        let bucket = slots[key].bucket as usize;
        let level = &mut self.levels[bucket / SPAN];
        let at = bucket % SPAN;
        level.rings[at].remove(slots, key);
        if level.rings[at].is_empty() {
            level.occupied &= !(1 << at);
        }
    }

    /// Names the first round after `now` at which a key is due or moves to a finer level.
    pub(super) fn next_event(&self, now: u64) -> Option<u64> {
        for (index, level) in self.levels.iter().enumerate() {
            let here = digit(now, index);
            let later = level.occupied & u64::MAX.checked_shl(here as u32 + 1).unwrap_or(0);
            if later != 0 {
                let shift = index as u32 * BITS;
                let above = (now >> shift) & !MASK;
                return Some((above | u64::from(later.trailing_zeros())) << shift);
            }
        }
        None
    }

    /// Takes one key out of the lists that `now` opens; the caller puts it where it belongs.
    ///
    /// Called until it gives `None` whenever the round has moved on to `now`.
    pub(super) fn pop_opened(&mut self, slots: &mut KeyAccounts, now: u64) -> Option<u32> {
        for level in (0..self.levels.len()).rev() {
            // A list of a coarser level opens when every finer digit of the round is zero.
            if now & ((1 << (level as u32 * BITS)) - 1) != 0 {
                continue;
            }
            if let Some(key) = self.levels[level].rings[digit(now, level)].head() {
                self.remove(slots, key);
                return Some(key);
            }
        }
        None
    }
}

fn digit(round: u64, level: usize) -> usize {
    ((round >> (level as u32 * BITS)) & MASK) as usize
}
