//! Deficit round robin (DRR): selects the next key to serve, by weight and by the real cost of its work.
//!
//! Guarantees, for keys `i` and `j` that both have work throughout an interval without settlements:
//! `|served_i / w_i − served_j / w_j| ≤ quantum + cost_max / w_i + cost_max / w_j`; under [`NewKey::NextRound`] this
//! holds from the first round that opens with both keys active. Under [`NewKey::First`] a key that becomes active after
//! being idle for at least a round is served within (other prioritized keys + 1) picks. While any key is active, some
//! key is served.
//!
//! Limits: peeking is O(1) and every change is O(1), except that opening a round sorts the keys that join or rejoin
//! it. Memory is allocated when a key is first added, or when more keys are in debt than ever before.

mod account;
mod debt_wheel;
mod level;
mod ring;
mod tenant;

use crate::cost::Cost;
use crate::id::Key;
use crate::setting::{self, SettingOutOfRange};
use crate::weight::Weight;
use account::KeyAccounts;
use level::{DrrLevel, milli, units};

pub use tenant::{AddKeyError, TenantDrr, Turn, WeightedKey};

/// Treatment of a key that just became active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewKey {
    /// The key is served from the next round on; the caller opens rounds.
    NextRound,
    /// The key is served before all others, for one message, unless its grant of the current round is used up. It
    /// spends the rest of the grant at the end of the round. Rounds open by themselves.
    #[default]
    First,
}

/// Kind of a settlement: interim or final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The work continues: the charge can only rise.
    Running,
    /// The work has ended or was cancelled: an excess charge is refunded.
    Final,
}

impl Settlement {
    /// Returns the refund (a charge if negative) for work charged at `charged`; `None` leaves the charge as it is.
    fn correction(self, charged: Cost, actual: Cost) -> Option<i64> {
        if self == Self::Running && actual <= charged {
            return None;
        }
        Some(milli(charged) - milli(actual))
    }
}

/// Scheduling state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// Nothing to serve.
    Idle,
    /// Excluded from scheduling until it is woken.
    Parked,
    /// The next key to be served.
    Next,
    /// Served before the ring, behind other prioritized keys.
    Prioritized,
    /// Waiting in the ring.
    InRing,
    /// Not served until later rounds have paid off its debt.
    InDebt {
        /// Rounds until its grants exceed its debt.
        rounds: u64,
    },
}

/// Settings of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrrConfig {
    /// Grant per round of a key of weight 1.
    pub quantum: Cost,
    /// Treatment of a key that just became active.
    pub new_key: NewKey,
    /// Maximum number of keys; a key must be below this number.
    pub keys_max: u32,
}

impl DrrConfig {
    /// Largest allowed quantum, far above the cost of a real request.
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

/// Deficit round robin over one set of keys.
///
/// Peek with [`next_key`](Self::next_key), do the work, charge it with
/// [`consume_deficit`](Self::consume_deficit): only charging advances to another key. A key is served until its deficit
/// is used up; an overdraft becomes debt, which its later grants pay off.
#[derive(Clone, Debug)]
pub struct DrrScheduler {
    level: DrrLevel,
    accounts: KeyAccounts,
    keys_max: u32,
}

impl DrrScheduler {
    /// Creates a scheduler without keys.
    pub fn new(config: DrrConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self {
            level: DrrLevel::new(config.new_key, config.quantum),
            accounts: KeyAccounts::default(),
            keys_max: config.keys_max,
        })
    }

    /// Activates a key that has work to serve.
    ///
    /// An active or parked key keeps its deficit and its weight.
    pub fn add_key(&mut self, key: Key, weight: Weight) -> Result<(), TooManyKeys> {
        self.ensure_key(key)?;
        self.level.add(&mut self.accounts, key.0, weight);
        Ok(())
    }

    /// Adds a key that has work to serve but must wait until it is woken.
    ///
    /// An active or parked key is left unchanged. This differs from [`add_key`](Self::add_key) followed by
    /// [`park`](Self::park): if the key were the only active one, even for an instant, rounds would open and pay its
    /// debt.
    pub fn add_parked(&mut self, key: Key, weight: Weight) -> Result<(), TooManyKeys> {
        self.ensure_key(key)?;
        self.level.add_parked(&mut self.accounts, key.0, weight);
        Ok(())
    }

    /// Deactivates a key that has nothing left to serve.
    ///
    /// The key forfeits its remaining deficit, so that no key saves up service while idle. Its debt stays and is paid
    /// off as rounds pass.
    pub fn remove_key(&mut self, key: Key) {
        if self.is_known(key) {
            self.level.remove(&mut self.accounts, key.0);
        }
    }

    /// Returns the next key to serve, without advancing.
    ///
    /// `None` when no key is active or, under [`NewKey::NextRound`], once every deficit of the round is used up.
    pub fn next_key(&self) -> Option<Key> {
        self.level.next().map(Key)
    }

    /// Charges a key for its work; once its deficit is used up, another key is next.
    pub fn consume_deficit(&mut self, key: Key, cost: Cost) {
        if self.is_known(key) {
            self.level.consume(&mut self.accounts, key.0, cost);
        }
    }

    /// Replaces the charge for some work by its real cost and returns the resulting charge.
    ///
    /// A refund to an idle key cancels debt and nothing more.
    pub fn settle(&mut self, key: Key, charged: Cost, actual: Cost, settlement: Settlement) -> Cost {
        let Some(amount) = settlement.correction(charged, actual).filter(|_| self.is_known(key)) else {
            return charged;
        };
        self.level.adjust(&mut self.accounts, key.0, amount);
        actual
    }

    /// Opens the next round, which grants every active key `weight × quantum`.
    ///
    /// Rounds in which every active key would still be in debt are skipped. Under [`NewKey::First`] rounds open by
    /// themselves and this does nothing.
    pub fn start_new_round(&mut self) {
        if self.level.new_key() == NewKey::NextRound {
            self.level.start_new_round(&mut self.accounts);
        }
    }

    /// Reports whether any key is active.
    pub fn has_active_keys(&self) -> bool {
        self.level.active() > 0
    }

    /// Sets a key's weight, which applies from its next grant on, also to work that is already waiting.
    pub fn update_weight(&mut self, key: Key, weight: Weight) {
        if self.is_known(key) {
            self.level.update_weight(&mut self.accounts, key.0, weight);
        }
    }

    /// Excludes an active key from scheduling (throttled, at a limit, first message delayed) until it is woken.
    ///
    /// The key keeps the rest of this round's grant until the next round ends. Idle keys cannot be parked.
    pub fn park(&mut self, key: Key) {
        if self.is_known(key) {
            self.level.park(&mut self.accounts, key.0);
        }
    }

    /// Resumes a parked key; any other key is left unchanged.
    pub fn wake(&mut self, key: Key) {
        if self.is_known(key) {
            self.level.wake(&mut self.accounts, key.0);
        }
    }

    /// Forgets an idle key, its debt included, so that its number can be reused; returns `false` if it is not idle.
    pub fn forget_key(&mut self, key: Key) -> bool {
        self.accounts.forget(key.0)
    }

    /// Returns a key's remaining deficit, in whole units.
    pub fn deficit(&self, key: Key) -> Cost {
        let balance = self.level.balance(&self.accounts, key.0);
        units(balance.max(0).unsigned_abs())
    }

    /// Returns a key's debt, in whole units.
    pub fn debt(&self, key: Key) -> Cost {
        let balance = self.level.balance(&self.accounts, key.0);
        units(balance.min(0).unsigned_abs())
    }

    /// Returns a key's weight; `None` if the key was never added.
    pub fn weight(&self, key: Key) -> Option<Weight> {
        self.accounts.get(key.0).map(|account| account.weight)
    }

    /// Returns a key's scheduling state.
    pub fn key_status(&self, key: Key) -> KeyStatus {
        self.level.key_status(&self.accounts, key.0)
    }

    /// Returns the number of rounds opened so far.
    pub fn round(&self) -> u64 {
        self.level.round()
    }

    /// Returns the number of active keys.
    pub fn active_len(&self) -> usize {
        self.level.active() as usize
    }

    /// Returns the number of parked keys.
    pub fn parked_len(&self) -> usize {
        self.level.parked() as usize
    }

    fn ensure_key(&mut self, key: Key) -> Result<(), TooManyKeys> {
        if key.0 >= self.keys_max {
            return Err(TooManyKeys { keys_max: self.keys_max });
        }
        self.accounts.ensure_known(key.0);
        Ok(())
    }

    fn is_known(&self, key: Key) -> bool {
        self.accounts.get(key.0).is_some()
    }
}

/// Error for a key that is not below `keys_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {keys_max} keys")]
pub struct TooManyKeys {
    /// Maximum number of keys.
    pub keys_max: u32,
}

#[cfg(test)]
mod tests;
