//! Timing wheel of keys in debt, by the round in which their grants will have paid it off.
//!
//! Limits: a key is touched once when it is inserted, once when it is due, and at most once per level of the wheel in
//! between (a level covers 64 times the rounds of the one below), however far off its round is.

use alloc::vec::Vec;

use super::account::KeyAccounts;
use super::ring::Ring;

const BITS: u32 = 6;
const SPAN: usize = 1 << BITS;
const MASK: u64 = SPAN as u64 - 1;

/// Hierarchical timing wheel over rounds. Levels are added when a debt first reaches that far.
#[derive(Clone, Debug, Default)]
pub(super) struct DebtWheel {
    levels: Vec<Level>,
    /// Buffer in which the keys of one round are sorted; empty in between, kept for its allocation.
    pub(super) scratch: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Level {
    occupied: u64,
    rings: [Ring; SPAN],
}

impl DebtWheel {
    /// Inserts `key` into the list that opens in round `due`, which must be after `now`.
    pub(super) fn insert(&mut self, accounts: &mut KeyAccounts, key: u32, due: u64, now: u64) {
        debug_assert!(now < due);
        let level = ((u64::BITS - 1 - (due ^ now).leading_zeros()) / BITS) as usize;
        while self.levels.len() <= level {
            self.levels.push(Level { occupied: 0, rings: [Ring::EMPTY; SPAN] });
        }
        let index = digit(due, level);
        let target = &mut self.levels[level];
        target.rings[index].push_back(accounts, key);
        target.occupied |= 1 << index;
        // 11 levels of 64: the number fits in ten bits.
        accounts[key].bucket = (level * SPAN + index) as u16;
    }

    pub(super) fn remove(&mut self, accounts: &mut KeyAccounts, key: u32) {
        let bucket = accounts[key].bucket as usize;
        let level = &mut self.levels[bucket / SPAN];
        let index = bucket % SPAN;
        level.rings[index].remove(accounts, key);
        if level.rings[index].is_empty() {
            level.occupied &= !(1 << index);
        }
    }

    /// Returns the first round after `now` in which a key is due or moves to a finer level.
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

    /// Removes one key from the lists that round `now` opens; the caller relinks it.
    ///
    /// Must be called until it returns `None` whenever the round has advanced to `now`.
    pub(super) fn pop_opened(&mut self, accounts: &mut KeyAccounts, now: u64) -> Option<u32> {
        for level in (0..self.levels.len()).rev() {
            // A list of a coarser level opens when every finer digit of the round is zero.
            if now & ((1 << (level as u32 * BITS)) - 1) != 0 {
                continue;
            }
            if let Some(key) = self.levels[level].rings[digit(now, level)].head() {
                self.remove(accounts, key);
                return Some(key);
            }
        }
        None
    }
}

fn digit(round: u64, level: usize) -> usize {
    ((round >> (level as u32 * BITS)) & MASK) as usize
}
