//! Deficit round robin: whose turn it is, when everybody pays for what they use.
//!
//! Bounds, for keys `i` and `j` that both have work throughout an interval (settlement apart):
//! `|served_i / w_i − served_j / w_j| ≤ quantum + cost_max / w_i + cost_max / w_j`; under
//! [`NewKey::NextRound`] from the first round on that was opened with both in it.
//! Under [`NewKey::First`] a key that becomes active after at least a round of idleness is served within
//! (other keys going first + 1) picks. Somebody is served as long as somebody is active. Peeking is O(1), every
//! change O(1), except that opening a round sorts the keys that join or come back in it. Memory is taken when a key
//! is first known, or when more keys are in debt than ever before.

mod account;
mod debt_wheel;
mod level;
mod ring;
mod tenant;

use core::fmt;

use crate::cost::Cost;
use crate::id::Key;
use crate::setting::{self, SettingOutOfRange};
use crate::weight::Weight;
use account::KeyAccounts;
use level::{DrrLevel, milli, units};

pub use tenant::{AddKeyError, TenantDrr, Turn, WeightedKey};

/// What a key that just became active may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewKey {
    /// It is served from the next round on, and rounds are opened by the caller.
    NextRound,
    /// It goes first for one message, if the present round's grant is not used up, and has the rest of the grant at
    /// the round's end; rounds open by themselves.
    #[default]
    First,
}

/// Whether the true cost of some work is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The work goes on: the charge can only rise.
    Running,
    /// The work has ended or was cancelled: what was charged too much is given back.
    Final,
}

impl Settlement {
    /// What to give back (or, negative, to take) for work charged at `charged`; `None` leaves the charge as it is.
    fn correction(self, charged: Cost, actual: Cost) -> Option<i64> {
        if self == Self::Running && actual <= charged {
            return None;
        }
        Some(milli(charged) - milli(actual))
    }
}

/// Where a key stands, in the words an explanation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// Has nothing to serve.
    Idle,
    /// Set aside until it is woken.
    Parked,
    /// It is its turn.
    InTurn,
    /// Goes before the ring, behind others that do.
    GoesFirst,
    /// Waits in the ring.
    InRing,
    /// Pays off earlier work for so many rounds more.
    InDebt {
        /// Rounds until its grants outweigh its debt.
        rounds: u64,
    },
}

/// How a scheduler is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrrConfig {
    /// What a key of weight 1 may spend per round.
    pub quantum: Cost,
    /// What a key that just became active may do.
    pub new_key: NewKey,
    /// How many keys there may be; keys are below this number.
    pub keys_max: u32,
}

impl DrrConfig {
    /// The largest quantum, far above any request's cost.
    pub const QUANTUM_MAX: Cost = Cost(1_000_000_000);

    fn check(&self) -> Result<(), SettingOutOfRange> {
        setting::check("quantum", self.quantum.0 as f64, 1.0..=Self::QUANTUM_MAX.0 as f64)
    }
}

impl Default for DrrConfig {
    fn default() -> Self {
        Self { quantum: Cost(1_000), new_key: NewKey::First, keys_max: 1 << 20 }
    }
}

/// Schedules one set of keys by deficit round robin.
///
/// Peek with [`next_key`](Self::next_key), do the work, charge it with
/// [`consume_deficit`](Self::consume_deficit): only charging moves the turn on. A key is served until its deficit
/// is used up; what it overdraws is debt, paid from its later grants.
#[derive(Clone, Debug)]
pub struct DrrScheduler {
    level: DrrLevel,
    slots: KeyAccounts,
    keys_max: u32,
}

impl DrrScheduler {
    /// Makes a scheduler without keys.
    pub fn new(config: DrrConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self {
            level: DrrLevel::new(config.new_key, config.quantum),
            slots: KeyAccounts::default(),
            keys_max: config.keys_max,
        })
    }

    /// Makes a key active that now has something to serve.
    ///
    /// An active or parked key is left as it is, its weight too: a deficit is never reset.
    pub fn add_key(&mut self, key: Key, weight: Weight) -> Result<(), TooManyKeys> {
        self.ensure_key(key)?;
        self.level.add(&mut self.slots, key.0, weight);
        Ok(())
    }

    /// Makes a key known as having something to serve that must wait until it is woken.
    ///
    /// An active or parked key is left as it is. This is not [`add_key`](Self::add_key) and then
    /// [`park`](Self::park): a key that is active for an instant may be the only one, and rounds would open for it.
    pub fn add_parked(&mut self, key: Key, weight: Weight) -> Result<(), TooManyKeys> {
        self.ensure_key(key)?;
        self.level.add_parked(&mut self.slots, key.0, weight);
        Ok(())
    }

    /// Takes out a key that has nothing left to serve.
    ///
    /// It forfeits what it could still spend, so nobody saves up service while idle; its debt stays, and is
    /// paid by the rounds that pass.
    pub fn remove_key(&mut self, key: Key) {
        if self.knows(key) {
            self.level.remove(&mut self.slots, key.0);
        }
    }

    /// Names the key whose turn it is, without moving the turn.
    ///
    /// `None` when no key is active or, under [`NewKey::NextRound`], once every deficit of the round is used up.
    pub fn next_key(&self) -> Option<Key> {
        self.level.next().map(Key)
    }

    /// Charges a key for work it was given; past the end of its deficit the turn moves on.
    pub fn consume_deficit(&mut self, key: Key, cost: Cost) {
        if self.knows(key) {
            self.level.consume(&mut self.slots, key.0, cost);
        }
    }

    /// Replaces what was charged for some work by what it really cost, and returns what is charged now.
    ///
    /// A refund to an idle key cancels debt and nothing more.
    pub fn settle(&mut self, key: Key, charged: Cost, actual: Cost, settlement: Settlement) -> Cost {
        let Some(amount) = settlement.correction(charged, actual).filter(|_| self.knows(key)) else {
            return charged;
        };
        self.level.shift(&mut self.slots, key.0, amount);
        actual
    }

    /// Opens the next round: every active key is granted `weight × quantum`.
    ///
    /// Rounds in which every active key would still be in debt are passed over. Under [`NewKey::First`] rounds
    /// open by themselves and this does nothing.
    pub fn start_new_round(&mut self) {
        if self.level.new_key() == NewKey::NextRound {
            self.level.start_new_round(&mut self.slots);
        }
    }

    /// Tells whether any key has something to serve and is not parked.
    pub fn has_active_keys(&self) -> bool {
        self.level.active() > 0
    }

    /// Gives a key another weight, which counts from its next grant on, also for the work it has waiting.
    pub fn update_weight(&mut self, key: Key, weight: Weight) {
        if self.knows(key) {
            self.level.update_weight(&mut self.slots, key.0, weight);
        }
    }

    /// Sets an active key aside (throttled, at its cap, head delayed) until it is woken.
    ///
    /// It keeps what is left of this round's grant until the next round is over. Idle keys cannot be parked.
    pub fn park(&mut self, key: Key) {
        if self.knows(key) {
            self.level.park(&mut self.slots, key.0);
        }
    }

    /// Brings a parked key back; one that was not parked is left as it is.
    pub fn wake(&mut self, key: Key) {
        if self.knows(key) {
            self.level.wake(&mut self.slots, key.0);
        }
    }

    /// Forgets an idle key altogether, debt included, so that its number may mean another; `false` when it is not idle.
    pub fn forget_key(&mut self, key: Key) -> bool {
        self.slots.forget(key.0)
    }

    /// Tells what a key may still spend, in whole units.
    pub fn deficit(&self, key: Key) -> Cost {
        let balance = self.level.balance(&self.slots, key.0);
        units(balance.max(0).unsigned_abs())
    }

    /// Tells what a key still owes, in whole units.
    pub fn debt(&self, key: Key) -> Cost {
        let balance = self.level.balance(&self.slots, key.0);
        units(balance.min(0).unsigned_abs())
    }

    /// Tells a key's weight; `None` when the key was never added.
    pub fn weight(&self, key: Key) -> Option<Weight> {
        self.slots.get(key.0).map(|slot| slot.weight)
    }

    /// Tells where a key stands.
    pub fn key_status(&self, key: Key) -> KeyStatus {
        self.level.standing(&self.slots, key.0)
    }

    /// Counts the rounds opened so far.
    pub fn round(&self) -> u64 {
        self.level.round()
    }

    /// Counts the active keys.
    pub fn active_len(&self) -> usize {
        self.level.active() as usize
    }

    /// Counts the parked keys.
    pub fn parked_len(&self) -> usize {
        self.level.parked() as usize
    }

    fn ensure_key(&mut self, key: Key) -> Result<(), TooManyKeys> {
        if self.keys_max <= key.0 {
            return Err(TooManyKeys { keys_max: self.keys_max });
        }
        self.slots.reach(key.0);
        Ok(())
    }

    fn knows(&self, key: Key) -> bool {
        self.slots.get(key.0).is_some()
    }
}

/// A key beyond what the scheduler was set up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys {
    /// How many keys there may be.
    pub keys_max: u32,
}

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} keys", self.keys_max)
    }
}

impl core::error::Error for TooManyKeys {}

#[cfg(test)]
mod tests;
