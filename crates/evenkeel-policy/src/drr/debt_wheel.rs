//! Timing wheel of keys in debt, by the round in which their grants will have paid off the debt.
//!
//! Limits: a key is moved once when it is inserted, once when it is due, and at most once per level of the wheel in
//! between. A level covers 64 times as many rounds as the one below it.

use alloc::vec::Vec;

use super::account::KeyAccounts;
use super::ring::Ring;

const BITS: u32 = 6;
const SPAN: usize = 1 << BITS;
const MASK: u64 = SPAN as u64 - 1;

/// Hierarchical timing wheel over rounds. A level is added when a key is first due that far in the future.
#[derive(Clone, Debug, Default)]
pub(super) struct DebtWheel {
    levels: Vec<Level>,
    /// Buffer in which the keys of one round are sorted; kept to reuse its allocation.
    pub(super) scratch: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Level {
    /// One bit per list; 1 if the list is not empty.
    occupied: u64,
    rings: [Ring; SPAN],
}

impl DebtWheel {
    /// Inserts a key that is due in round `due`, which must be after the current round `now`.
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
        // At most 11 levels of 64 lists, so the index fits in ten bits.
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

    /// Returns the first round after `now` in which a key is due or must move to a finer level.
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

    /// Removes one key that is due in round `now` or must move to a finer level; the caller inserts it elsewhere.
    ///
    /// Must be called until it returns `None` whenever the round has advanced to `now`.
    pub(super) fn pop_reached(&mut self, accounts: &mut KeyAccounts, now: u64) -> Option<u32> {
        for level in (0..self.levels.len()).rev() {
            // A list of a coarser level is reached when every finer digit of the round is zero.
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
