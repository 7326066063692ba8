//! DRR account of one key: 40 bytes.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::weight::Weight;

/// Null index, for a key that does not exist.
pub(super) const NIL: u32 = u32::MAX;

/// List that holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLocation {
    /// Never added.
    Unknown,
    /// Nothing to serve.
    Idle,
    /// Work is waiting, but the key is excluded until it is woken.
    Parked,
    /// Just became active; served first, for one message.
    New,
    /// In the ring.
    Ring,
    /// Joins the ring in this round or the next.
    Joining,
    /// In debt beyond the next round.
    DebtWheel,
}

/// One key's account. Amounts are in thousandths of a unit, so that the grant of a weight of 0.01 is exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyAccount {
    /// Remaining grant; negative is debt.
    pub(super) deficit: i64,
    /// Last round whose grant is included in `deficit`.
    pub(super) granted: u64,
    /// Sort key in the order of a round.
    pub(super) label: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) weight: Weight,
    /// Index of the debt wheel's list that holds the key; valid only while it is in the wheel.
    pub(super) bucket: u16,
    pub(super) location: KeyLocation,
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
        location: KeyLocation::Unknown,
    };
}

/// Accounts of all keys, indexed by key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyAccounts(Vec<KeyAccount>);

impl KeyAccounts {
    /// Adds an unknown key as idle; leaves a known one unchanged.
    pub(super) fn ensure_known(&mut self, key: u32) {
        if self.0.len() <= key as usize {
            self.0.resize(key as usize + 1, KeyAccount::NEW);
        }
        if self[key].location == KeyLocation::Unknown {
            self[key].location = KeyLocation::Idle;
        }
    }

    /// Forgets all keys; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns a known key's account.
    pub(super) fn get(&self, key: u32) -> Option<&KeyAccount> {
        self.0.get(key as usize).filter(|account| account.location != KeyLocation::Unknown)
    }

    /// Resets an idle key's account; returns `false` if the key is neither idle nor unknown.
    pub(super) fn forget(&mut self, key: u32) -> bool {
        match self.get(key).map(|account| account.location) {
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
    fn an_account_takes_40_bytes() {
        assert_eq!(size_of::<KeyAccount>(), 40);
    }
}
