//! What a scheduler remembers of one key: 40 bytes.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::weight::Weight;

/// Marks "no key".
pub(super) const NIL: u32 = u32::MAX;

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLocation {
    /// Nobody has named it yet.
    Unknown,
    /// Has nothing to serve.
    Idle,
    /// Has something to serve, but not now; waits for a wake.
    Parked,
    /// Just became active; goes first, for one message.
    Fast,
    /// In the ring.
    Ring,
    /// Joins the ring in this round or the next.
    Due,
    /// In debt beyond the next round; in the calendar.
    Calendar,
}

/// One key's account. Amounts are thousandths of a unit, so that a weight of 0.01 still grants exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyAccount {
    /// What it may still spend; negative is debt.
    pub(super) deficit: i64,
    /// The last round whose grant is in `deficit`.
    pub(super) granted: u64,
    /// Its place in the order of a round.
    pub(super) label: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) weight: Weight,
    /// Which list of the calendar it is in, while it is in the calendar.
    pub(super) bucket: u16,
    pub(super) place: KeyLocation,
}

impl KeyAccount {
    const NEW: Self = Self {
        deficit: 0,
        granted: 0,
        label: 0,
        prev: NIL,
        next: NIL,
        weight: Weight::ONE,
        bucket: 0,
        place: KeyLocation::Unknown,
    };
}

/// Every key's account, indexed by key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyAccounts(Vec<KeyAccount>);

impl KeyAccounts {
    /// Makes a key known.
    pub(super) fn reach(&mut self, key: u32) {
        if self.0.len() <= key as usize {
            self.0.resize(key as usize + 1, KeyAccount::NEW);
        }
        if self[key].place == KeyLocation::Unknown {
            self[key].place = KeyLocation::Idle;
        }
    }

    /// Reads a known key's account.
    pub(super) fn get(&self, key: u32) -> Option<&KeyAccount> {
        self.0.get(key as usize).filter(|slot| slot.place != KeyLocation::Unknown)
    }

    /// Forgets everything about a key that is idle or unknown; `false` when it is neither.
    pub(super) fn forget(&mut self, key: u32) -> bool {
        match self.get(key).map(|slot| slot.place) {
            None => true,
            Some(KeyLocation::Idle) => {
                self[key] = KeyAccount::NEW;
                true
            }
            Some(_) => false,
        }
    }
}

impl Index<u32> for KeyAccounts {
    type Output = KeyAccount;

    fn index(&self, key: u32) -> &KeyAccount {
        &self.0[key as usize]
    }
}

impl IndexMut<u32> for KeyAccounts {
    fn index_mut(&mut self, key: u32) -> &mut KeyAccount {
        &mut self.0[key as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_costs_forty_bytes() {
        assert_eq!(size_of::<KeyAccount>(), 40);
    }
}
