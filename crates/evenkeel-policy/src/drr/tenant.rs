//! Two levels of deficit round robin: tenants share, and a tenant's keys share what it gets.
//!
//! Bound: the bounds of [`drr`](crate::drr) hold between tenants whatever keys they use, so a tenant cannot
//! multiply its share by inventing keys; and they hold between the keys of one tenant.

use alloc::vec::Vec;
use core::fmt;

use super::account::{KeyAccounts, KeyLocation, NIL};
use super::level::{DrrLevel, units};
use super::{DrrConfig, KeyStatus, NewKey, Settlement};
use crate::cost::Cost;
use crate::id::{Key, TenantId};
use crate::setting::SettingOutOfRange;
use crate::weight::Weight;

/// Whose turn it is, on both levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The tenant in turn.
    pub tenant: TenantId,
    /// That tenant's key in turn.
    pub key: Key,
}

/// A tenant's key, with the weights both have among their like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedKey {
    /// The tenant the key belongs to.
    pub tenant: TenantId,
    /// Its weight among the tenants.
    pub tenant_weight: Weight,
    /// The key.
    pub key: Key,
    /// Its weight among the tenant's keys.
    pub weight: Weight,
}

/// Schedules tenants, and within each the keys it owns, by deficit round robin.
///
/// New tenants and keys go first ([`NewKey::First`]). A key belongs to the tenant that first added it.
#[derive(Clone, Debug)]
pub struct TenantDrr {
    quantum: Cost,
    keys_max: u32,
    tenants: DrrLevel,
    tenant_slots: KeyAccounts,
    groups: Vec<TenantKeys>,
    key_slots: KeyAccounts,
    owners: Vec<u32>,
}

/// The keys of one tenant.
#[derive(Clone, Debug)]
struct TenantKeys {
    keys: DrrLevel,
    /// How many keys belong to it.
    owned: u32,
    hold: Hold,
}

/// Whether a tenant as a whole is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Free,
    Parked,
}

impl TenantDrr {
    /// Makes a scheduler without tenants; `keys_max` limits tenants and keys each.
    pub fn new(quantum: Cost, keys_max: u32) -> Result<Self, SettingOutOfRange> {
        DrrConfig { quantum, keys_max, new_key: NewKey::First }.check()?;
        Ok(Self {
            quantum,
            keys_max,
            tenants: DrrLevel::new(NewKey::First, quantum),
            tenant_slots: KeyAccounts::default(),
            groups: Vec::new(),
            key_slots: KeyAccounts::default(),
            owners: Vec::new(),
        })
    }

    /// Makes a tenant's key active that now has something to serve.
    ///
    /// Weights count when the tenant or key was idle; active and parked ones are left as they are.
    pub fn add_key(&mut self, lane: WeightedKey) -> Result<(), AddKeyError> {
        self.reach(lane)?;
        let group = &mut self.groups[lane.tenant.index()];
        group.keys.add(&mut self.key_slots, lane.key.0, lane.weight);
        self.sync_tenant(lane.tenant.0);
        Ok(())
    }

    /// Makes a tenant's key known as having something to serve that must wait until it is woken.
    pub fn add_parked(&mut self, lane: WeightedKey) -> Result<(), AddKeyError> {
        self.reach(lane)?;
        let group = &mut self.groups[lane.tenant.index()];
        group.keys.add_parked(&mut self.key_slots, lane.key.0, lane.weight);
        self.sync_tenant(lane.tenant.0);
        Ok(())
    }

    /// Takes out a key that has nothing left to serve; it forfeits credit and keeps debt.
    pub fn remove_key(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.groups[tenant as usize].keys.remove(&mut self.key_slots, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Names the tenant and key whose turn it is, without moving the turn.
    pub fn next_key(&self) -> Option<Turn> {
        let tenant = self.tenants.next()?;
        let key = self.groups[tenant as usize].keys.next()?;
        Some(Turn { tenant: TenantId(tenant), key: Key(key) })
    }

    /// Charges a key, and with it its tenant, for work it was given.
    pub fn consume_deficit(&mut self, key: Key, cost: Cost) {
        if let Some(tenant) = self.owner(key) {
            self.groups[tenant as usize].keys.consume(&mut self.key_slots, key.0, cost);
            self.tenants.consume(&mut self.tenant_slots, tenant, cost);
        }
    }

    /// Replaces what was charged for some work by what it really cost, on both levels, and returns what is charged now.
    pub fn settle(&mut self, key: Key, charged: Cost, actual: Cost, settlement: Settlement) -> Cost {
        let (Some(tenant), Some(amount)) = (self.owner(key), settlement.correction(charged, actual)) else {
            return charged;
        };
        self.groups[tenant as usize].keys.shift(&mut self.key_slots, key.0, amount);
        self.tenants.shift(&mut self.tenant_slots, tenant, amount);
        actual
    }

    /// Tells whether any key of any tenant can be served now.
    pub fn has_active_keys(&self) -> bool {
        self.tenants.active() > 0
    }

    /// Gives a key another weight among its tenant's keys.
    pub fn update_weight(&mut self, key: Key, weight: Weight) {
        if let Some(tenant) = self.owner(key) {
            self.groups[tenant as usize].keys.update_weight(&mut self.key_slots, key.0, weight);
        }
    }

    /// Gives a tenant another weight among the tenants.
    pub fn update_tenant_weight(&mut self, tenant: TenantId, weight: Weight) {
        if self.knows(tenant) {
            self.tenants.update_weight(&mut self.tenant_slots, tenant.0, weight);
        }
    }

    /// Sets an active key aside until it is woken; its tenant's other keys go on.
    pub fn park(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.groups[tenant as usize].keys.park(&mut self.key_slots, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Brings a parked key back.
    pub fn wake(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.groups[tenant as usize].keys.wake(&mut self.key_slots, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Sets a whole tenant aside until it is woken, with or without work; its keys may come and go meanwhile.
    pub fn park_tenant(&mut self, tenant: TenantId) -> Result<(), AddKeyError> {
        self.reach_tenant(tenant)?;
        self.hold(tenant, Hold::Parked);
        Ok(())
    }

    /// Brings a parked tenant back.
    pub fn wake_tenant(&mut self, tenant: TenantId) {
        if self.knows(tenant) {
            self.hold(tenant, Hold::Free);
        }
    }

    /// Forgets an idle key altogether, so that its number may mean another; `false` when it is not idle.
    pub fn forget_key(&mut self, key: Key) -> bool {
        if !self.key_slots.forget(key.0) {
            return false;
        }
        if let Some(owner) = self.owner(key) {
            self.groups[owner as usize].owned -= 1;
            self.owners[key.index()] = NIL;
        }
        true
    }

    /// Forgets a tenant altogether, so that its number may mean another; `false` while it owns a key.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> bool {
        if !self.knows(tenant) {
            return true;
        }
        if self.groups[tenant.index()].owned > 0 || !self.tenant_slots.forget(tenant.0) {
            return false;
        }
        self.groups[tenant.index()] = TenantKeys::new(self.quantum);
        true
    }

    /// Tells what a key still owes within its tenant.
    pub fn debt(&self, key: Key) -> Cost {
        let Some(tenant) = self.owner(key) else { return Cost::ZERO };
        let balance = self.groups[tenant as usize].keys.balance(&self.key_slots, key.0);
        units(balance.min(0).unsigned_abs())
    }

    /// Tells what a tenant still owes.
    pub fn tenant_debt(&self, tenant: TenantId) -> Cost {
        units(self.tenants.balance(&self.tenant_slots, tenant.0).min(0).unsigned_abs())
    }

    /// Tells where a key stands among its tenant's keys.
    pub fn standing(&self, key: Key) -> KeyStatus {
        match self.owner(key) {
            Some(tenant) => self.groups[tenant as usize].keys.standing(&self.key_slots, key.0),
            None => KeyStatus::Idle,
        }
    }

    /// Tells where a tenant stands among the tenants.
    pub fn tenant_status(&self, tenant: TenantId) -> KeyStatus {
        self.tenants.standing(&self.tenant_slots, tenant.0)
    }

    /// Makes a tenant and a key of its own known.
    fn reach(&mut self, lane: WeightedKey) -> Result<(), AddKeyError> {
        let WeightedKey { tenant, tenant_weight, key, .. } = lane;
        if self.keys_max <= key.0 {
            return Err(AddKeyError::TooMany { keys_max: self.keys_max });
        }
        self.reach_tenant(tenant)?;
        if self.owners.len() <= key.index() {
            self.owners.resize(key.index() + 1, NIL);
        }
        match self.owners[key.index()] {
            NIL => {
                self.owners[key.index()] = tenant.0;
                self.groups[tenant.index()].owned += 1;
            }
            owner if owner == tenant.0 => {}
            owner => return Err(AddKeyError::OtherTenant { key, owner: TenantId(owner) }),
        }
        self.key_slots.reach(key.0);
        if self.tenant_slots[tenant.0].place == KeyLocation::Idle {
            self.tenants.update_weight(&mut self.tenant_slots, tenant.0, tenant_weight);
        }
        Ok(())
    }

    fn reach_tenant(&mut self, tenant: TenantId) -> Result<(), AddKeyError> {
        if self.keys_max <= tenant.0 {
            return Err(AddKeyError::TooMany { keys_max: self.keys_max });
        }
        self.tenant_slots.reach(tenant.0);
        if self.groups.len() <= tenant.index() {
            let quantum = self.quantum;
            self.groups.resize_with(tenant.index() + 1, || TenantKeys::new(quantum));
        }
        Ok(())
    }

    fn owner(&self, key: Key) -> Option<u32> {
        self.owners.get(key.index()).copied().filter(|&owner| owner != NIL)
    }

    fn knows(&self, tenant: TenantId) -> bool {
        self.tenant_slots.get(tenant.0).is_some()
    }

    fn hold(&mut self, tenant: TenantId, hold: Hold) {
        self.groups[tenant.index()].hold = hold;
        self.sync_tenant(tenant.0);
    }

    /// Lets a tenant stand as its keys do: active while one of them is, parked while one waits, else idle.
    fn sync_tenant(&mut self, tenant: u32) {
        let TenantKeys { keys, hold, .. } = &self.groups[tenant as usize];
        let slots = &mut self.tenant_slots;
        let weight = slots[tenant].weight;
        if keys.active() > 0 && *hold == Hold::Free {
            self.tenants.add(slots, tenant, weight);
            self.tenants.wake(slots, tenant);
        } else if keys.active() + keys.parked() > 0 {
            self.tenants.add_parked(slots, tenant, weight);
            self.tenants.park(slots, tenant);
        } else {
            self.tenants.remove(slots, tenant);
        }
    }
}

impl TenantKeys {
    fn new(quantum: Cost) -> Self {
        Self { keys: DrrLevel::new(NewKey::First, quantum), owned: 0, hold: Hold::Free }
    }
}

/// Why a key could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddKeyError {
    /// The key or tenant is beyond what the scheduler was set up for.
    TooMany {
        /// How many keys, and how many tenants, there may be.
        keys_max: u32,
    },
    /// The key belongs to another tenant until it is forgotten.
    OtherTenant {
        /// The key in question.
        key: Key,
        /// The tenant it belongs to.
        owner: TenantId,
    },
}

impl fmt::Display for AddKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { keys_max } => write!(f, "more than {keys_max} keys or tenants"),
            Self::OtherTenant { key, owner } => write!(f, "key {} belongs to tenant {}", key.0, owner.0),
        }
    }
}

impl core::error::Error for AddKeyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const ACME: TenantId = TenantId(0);
    const BYTE: TenantId = TenantId(1);

    #[test]
    fn inventing_keys_does_not_multiply_a_tenants_share() {
        let mut drr = scheduler();
        for key in 0..10 {
            add(&mut drr, ACME, Key(key));
        }
        add(&mut drr, BYTE, Key(10));
        assert_eq!(serve(&mut drr, 1_000), [500, 500]);

        // One level gives ten keys ten shares.
        let mut flat = super::super::DrrScheduler::new(DrrConfig::default()).unwrap();
        for key in 0..=10 {
            flat.add_key(Key(key), Weight::ONE).unwrap();
        }
        let mut lone = 0;
        for _ in 0..1_100 {
            let key = flat.next_key().unwrap();
            lone += usize::from(key == Key(10));
            flat.consume_deficit(key, Cost::MESSAGE);
        }
        assert_eq!(lone, 100);
    }

    #[test]
    fn weights_count_on_both_levels() {
        let mut drr = scheduler();
        let three = Weight::whole(3).unwrap();
        drr.add_key(lane(ACME, three, Key(0), Weight::ONE)).unwrap();
        drr.add_key(lane(ACME, three, Key(1), three)).unwrap();
        drr.add_key(lane(BYTE, Weight::ONE, Key(2), Weight::ONE)).unwrap();
        let mut keys = [0; 3];
        for _ in 0..1_600 {
            let turn = drr.next_key().unwrap();
            keys[turn.key.index()] += 1;
            drr.consume_deficit(turn.key, Cost::MESSAGE);
        }
        assert_eq!(keys, [300, 900, 400]);
        drr.update_tenant_weight(BYTE, three);
        drr.update_weight(Key(0), three);
        let mut keys = [0; 3];
        for _ in 0..1_200 {
            let turn = drr.next_key().unwrap();
            keys[turn.key.index()] += 1;
            drr.consume_deficit(turn.key, Cost::MESSAGE);
        }
        assert_eq!(keys, [300, 300, 600]);
        assert!(drr.has_active_keys());
    }

    #[test]
    fn a_tenant_is_parked_while_all_its_keys_are() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        add(&mut drr, ACME, Key(1));
        add(&mut drr, BYTE, Key(2));
        drr.park(Key(0));
        assert_eq!(serve(&mut drr, 10), [5, 5]);
        drr.park(Key(1));
        assert_eq!(drr.tenant_status(ACME), KeyStatus::Parked);
        assert_eq!(serve(&mut drr, 10), [0, 10]);
        drr.wake(Key(0));
        assert_eq!(serve(&mut drr, 10), [5, 5]);
        drr.remove_key(Key(0));
        assert_eq!(drr.tenant_status(ACME), KeyStatus::Parked);
        drr.remove_key(Key(1));
        assert_eq!(drr.tenant_status(ACME), KeyStatus::Idle);
    }

    #[test]
    fn a_parked_tenants_keys_come_and_go_without_waking_it() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        drr.park_tenant(ACME).unwrap();
        add(&mut drr, ACME, Key(1));
        drr.remove_key(Key(0));
        assert!(!drr.has_active_keys());
        assert_eq!(drr.next_key(), None);
        drr.wake_tenant(ACME);
        assert_eq!(drr.next_key(), Some(Turn { tenant: ACME, key: Key(1) }));
        drr.remove_key(Key(1));
        drr.park_tenant(ACME).unwrap();
        add(&mut drr, ACME, Key(1));
        assert_eq!(drr.next_key(), None, "parked while it had no work");
    }

    #[test]
    fn debt_is_kept_on_both_levels() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        add(&mut drr, BYTE, Key(1));
        add(&mut drr, BYTE, Key(2));
        drr.consume_deficit(Key(1), Cost(3_000));
        assert_eq!((drr.debt(Key(1)), drr.tenant_debt(BYTE)), (Cost(2_000), Cost(2_000)));
        assert_eq!(drr.settle(Key(1), Cost(3_000), Cost(4_000), Settlement::Running), Cost(4_000));
        assert_eq!((drr.debt(Key(1)), drr.tenant_debt(BYTE)), (Cost(3_000), Cost(3_000)));
        assert_eq!(drr.settle(Key(1), Cost(4_000), Cost(1_000), Settlement::Final), Cost(1_000));
        assert_eq!((drr.debt(Key(1)), drr.tenant_debt(BYTE)), (Cost(0), Cost(0)));
    }

    #[test]
    fn a_key_belongs_to_one_tenant_until_forgotten() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        let refused = drr.add_key(lane(BYTE, Weight::ONE, Key(0), Weight::ONE)).unwrap_err();
        assert_eq!(refused.to_string(), "key 0 belongs to tenant 0");
        assert!(!drr.forget_key(Key(0)));
        drr.remove_key(Key(0));
        assert!(drr.forget_key(Key(0)));
        assert_eq!((drr.standing(Key(0)), drr.debt(Key(0))), (KeyStatus::Idle, Cost::ZERO));
        add(&mut drr, BYTE, Key(0));
        assert_eq!(drr.next_key(), Some(Turn { tenant: BYTE, key: Key(0) }));
        assert_eq!(drr.standing(Key(0)), KeyStatus::InTurn);
        assert!(drr.forget_key(Key(99)));
    }

    #[test]
    fn a_tenant_is_parked_before_its_first_work() {
        let mut drr = scheduler();
        drr.park_tenant(BYTE).unwrap();
        add(&mut drr, BYTE, Key(0));
        assert_eq!(drr.next_key(), None);
        drr.wake_tenant(BYTE);
        assert_eq!(drr.next_key(), Some(Turn { tenant: BYTE, key: Key(0) }));
    }

    #[test]
    fn work_for_a_parked_tenant_wipes_no_debt() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        add(&mut drr, BYTE, Key(1));
        drr.consume_deficit(Key(0), Cost(1_000_000));
        drr.remove_key(Key(0));
        drr.remove_key(Key(1));
        drr.park_tenant(ACME).unwrap();
        let owed = drr.tenant_debt(ACME);
        assert!(owed > Cost(900_000));
        add(&mut drr, ACME, Key(0));
        drr.add_parked(lane(ACME, Weight::ONE, Key(2), Weight::ONE)).unwrap();
        assert_eq!((drr.tenant_debt(ACME), drr.standing(Key(2))), (owed, KeyStatus::Parked));
    }

    #[test]
    fn a_forgotten_tenants_number_means_another() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        add(&mut drr, BYTE, Key(1));
        drr.consume_deficit(Key(0), Cost(1_000_000));
        drr.park_tenant(ACME).unwrap();
        assert!(!drr.forget_tenant(ACME), "it has work");
        drr.remove_key(Key(0));
        assert!(!drr.forget_tenant(ACME), "it still owns a key");
        assert!(drr.forget_key(Key(0)) && drr.forget_tenant(ACME) && drr.forget_tenant(TenantId(9)));
        add(&mut drr, ACME, Key(0));
        assert_eq!((drr.tenant_status(ACME), drr.tenant_debt(ACME)), (KeyStatus::GoesFirst, Cost::ZERO));
    }

    #[test]
    fn limits_hold_for_tenants_and_keys() {
        let mut drr = TenantDrr::new(Cost::MESSAGE, 2).unwrap();
        for (tenant, key) in [(2, 0), (0, 2)] {
            let refused =
                drr.add_key(lane(TenantId(tenant), Weight::ONE, Key(key), Weight::ONE)).unwrap_err();
            assert_eq!(refused.to_string(), "more than 2 keys or tenants");
        }
        drr.consume_deficit(Key(5), Cost(1));
        assert!(drr.park_tenant(TenantId(5)).is_err());
        drr.wake_tenant(TenantId(5));
        drr.update_tenant_weight(TenantId(5), Weight::MAX);
        assert_eq!(drr.settle(Key(5), Cost(1), Cost(2), Settlement::Final), Cost(1));
        assert_eq!(drr.next_key(), None);
    }

    fn scheduler() -> TenantDrr {
        TenantDrr::new(Cost::MESSAGE, 1_000).unwrap()
    }

    fn lane(tenant: TenantId, tenant_weight: Weight, key: Key, weight: Weight) -> WeightedKey {
        WeightedKey { tenant, tenant_weight, key, weight }
    }

    fn add(drr: &mut TenantDrr, tenant: TenantId, key: Key) {
        drr.add_key(lane(tenant, Weight::ONE, key, Weight::ONE)).unwrap();
    }

    /// Serves plain messages and counts them per tenant.
    fn serve(drr: &mut TenantDrr, messages: usize) -> [usize; 2] {
        let mut served = [0; 2];
        for _ in 0..messages {
            let turn = drr.next_key().unwrap();
            served[turn.tenant.index()] += 1;
            drr.consume_deficit(turn.key, Cost::MESSAGE);
        }
        served
    }
}
