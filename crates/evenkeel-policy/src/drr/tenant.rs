//! Two-level deficit round robin: the tenants share the service, and the keys of a tenant share the tenant's part.
//!
//! Guarantees: those of [`drr`](crate::drr) hold between tenants whatever keys they use, so a tenant cannot multiply
//! its share by inventing keys; and they hold between the keys of one tenant.

use alloc::vec::Vec;

use super::account::{KeyAccounts, KeyLocation, NIL};
use super::level::{DrrLevel, units};
use super::{DrrConfig, KeyStatus, NewKey, Settlement};
use crate::cost::Cost;
use crate::id::{Key, TenantId};
use crate::setting::SettingOutOfRange;
use crate::weight::Weight;

/// Next tenant and key to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The next tenant.
    pub tenant: TenantId,
    /// That tenant's next key.
    pub key: Key,
}

/// A tenant's key with both weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedKey {
    /// Tenant that owns the key.
    pub tenant: TenantId,
    /// The tenant's weight among the tenants.
    pub tenant_weight: Weight,
    /// The key.
    pub key: Key,
    /// The key's weight among the tenant's keys.
    pub weight: Weight,
}

/// Two-level deficit round robin over tenants and, within each, its keys.
///
/// New tenants and keys are served first ([`NewKey::First`]). A key belongs to the tenant that first added it.
#[derive(Clone, Debug)]
pub struct TenantDrr {
    quantum: Cost,
    keys_max: u32,
    tenants: DrrLevel,
    tenant_accounts: KeyAccounts,
    keys_by_tenant: Vec<TenantKeys>,
    key_accounts: KeyAccounts,
    owners: Vec<u32>,
}

/// The keys of one tenant.
#[derive(Clone, Debug)]
struct TenantKeys {
    keys: DrrLevel,
    /// Number of keys that belong to the tenant.
    owned: u32,
    park_state: ParkState,
}

/// Parking state of a tenant as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParkState {
    Awake,
    Parked,
}

impl TenantDrr {
    /// Creates a scheduler without tenants; `keys_max` limits the tenants and the keys separately.
    pub fn new(quantum: Cost, keys_max: u32) -> Result<Self, SettingOutOfRange> {
        DrrConfig { quantum, keys_max, new_key: NewKey::First }.check()?;
        Ok(Self {
            quantum,
            keys_max,
            tenants: DrrLevel::new(NewKey::First, quantum),
            tenant_accounts: KeyAccounts::default(),
            keys_by_tenant: Vec::new(),
            key_accounts: KeyAccounts::default(),
            owners: Vec::new(),
        })
    }

    /// Activates a tenant's key that has work to serve.
    ///
    /// Weights take effect if the tenant or key was idle; active and parked ones are left unchanged.
    pub fn add_key(&mut self, weighted_key: WeightedKey) -> Result<(), AddKeyError> {
        self.ensure_key(weighted_key)?;
        let tenant_keys = &mut self.keys_by_tenant[weighted_key.tenant.index()];
        tenant_keys.keys.add(&mut self.key_accounts, weighted_key.key.0, weighted_key.weight);
        self.sync_tenant(weighted_key.tenant.0);
        Ok(())
    }

    /// Adds a tenant's key that has work to serve but must wait until it is woken.
    pub fn add_parked(&mut self, weighted_key: WeightedKey) -> Result<(), AddKeyError> {
        self.ensure_key(weighted_key)?;
        let tenant_keys = &mut self.keys_by_tenant[weighted_key.tenant.index()];
        tenant_keys.keys.add_parked(&mut self.key_accounts, weighted_key.key.0, weighted_key.weight);
        self.sync_tenant(weighted_key.tenant.0);
        Ok(())
    }

    /// Deactivates a key that has nothing left to serve; it forfeits its deficit and keeps its debt.
    pub fn remove_key(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.keys_by_tenant[tenant as usize].keys.remove(&mut self.key_accounts, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Returns the next tenant and key to serve, without advancing.
    pub fn next_key(&self) -> Option<Turn> {
        let tenant = self.tenants.next()?;
        let key = self.keys_by_tenant[tenant as usize].keys.next()?;
        Some(Turn { tenant: TenantId(tenant), key: Key(key) })
    }

    /// Charges a key, and with it its tenant, for its work.
    pub fn consume_deficit(&mut self, key: Key, cost: Cost) {
        if let Some(tenant) = self.owner(key) {
            self.keys_by_tenant[tenant as usize].keys.consume(&mut self.key_accounts, key.0, cost);
            self.tenants.consume(&mut self.tenant_accounts, tenant, cost);
        }
    }

    /// Replaces the charge for some work by its real cost, on both levels, and returns the resulting charge.
    pub fn settle(&mut self, key: Key, charged: Cost, actual: Cost, settlement: Settlement) -> Cost {
        let (Some(tenant), Some(amount)) = (self.owner(key), settlement.correction(charged, actual)) else {
            return charged;
        };
        self.keys_by_tenant[tenant as usize].keys.adjust(&mut self.key_accounts, key.0, amount);
        self.tenants.adjust(&mut self.tenant_accounts, tenant, amount);
        actual
    }

    /// Reports whether any tenant is active.
    pub fn has_active_keys(&self) -> bool {
        self.tenants.active() > 0
    }

    /// Sets a key's weight among its tenant's keys.
    pub fn update_weight(&mut self, key: Key, weight: Weight) {
        if let Some(tenant) = self.owner(key) {
            self.keys_by_tenant[tenant as usize].keys.update_weight(&mut self.key_accounts, key.0, weight);
        }
    }

    /// Sets a tenant's weight among the tenants.
    pub fn update_tenant_weight(&mut self, tenant: TenantId, weight: Weight) {
        if self.is_known(tenant) {
            self.tenants.update_weight(&mut self.tenant_accounts, tenant.0, weight);
        }
    }

    /// Excludes an active key from scheduling until it is woken; its tenant's other keys continue.
    pub fn park(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.keys_by_tenant[tenant as usize].keys.park(&mut self.key_accounts, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Resumes a parked key.
    pub fn wake(&mut self, key: Key) {
        if let Some(tenant) = self.owner(key) {
            self.keys_by_tenant[tenant as usize].keys.wake(&mut self.key_accounts, key.0);
            self.sync_tenant(tenant);
        }
    }

    /// Excludes a tenant from scheduling until it is woken; its keys may be added and removed meanwhile.
    pub fn park_tenant(&mut self, tenant: TenantId) -> Result<(), AddKeyError> {
        self.ensure_tenant(tenant)?;
        self.set_park_state(tenant, ParkState::Parked);
        Ok(())
    }

    /// Resumes a parked tenant.
    pub fn wake_tenant(&mut self, tenant: TenantId) {
        if self.is_known(tenant) {
            self.set_park_state(tenant, ParkState::Awake);
        }
    }

    /// Forgets an idle key, so that its number can be reused; returns `false` if it is not idle.
    pub fn forget_key(&mut self, key: Key) -> bool {
        if !self.key_accounts.forget(key.0) {
            return false;
        }
        if let Some(owner) = self.owner(key) {
            self.keys_by_tenant[owner as usize].owned -= 1;
            self.owners[key.index()] = NIL;
        }
        true
    }

    /// Forgets a tenant, so that its number can be reused; returns `false` while it owns a key.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> bool {
        if !self.is_known(tenant) {
            return true;
        }
        if self.keys_by_tenant[tenant.index()].owned > 0 || !self.tenant_accounts.forget(tenant.0) {
            return false;
        }
        self.keys_by_tenant[tenant.index()] = TenantKeys::new(self.quantum);
        true
    }

    /// Forgets all keys and tenants, so that the scheduler can be used for others without allocating again; returns
    /// `false` if one has work.
    pub fn clear(&mut self) -> bool {
        let is_idle = |keys: &TenantKeys| keys.keys.active() + keys.keys.parked() == 0;
        if !self.keys_by_tenant.iter().all(is_idle) {
            return false;
        }
        self.tenant_accounts.clear();
        self.key_accounts.clear();
        self.owners.clear();
        for tenant_keys in &mut self.keys_by_tenant {
            tenant_keys.owned = 0;
            tenant_keys.park_state = ParkState::Awake;
        }
        true
    }

    /// Returns a key's debt within its tenant.
    pub fn debt(&self, key: Key) -> Cost {
        let Some(tenant) = self.owner(key) else { return Cost::ZERO };
        let balance = self.keys_by_tenant[tenant as usize].keys.balance(&self.key_accounts, key.0);
        units(balance.min(0).unsigned_abs())
    }

    /// Returns a tenant's debt.
    pub fn tenant_debt(&self, tenant: TenantId) -> Cost {
        units(self.tenants.balance(&self.tenant_accounts, tenant.0).min(0).unsigned_abs())
    }

    /// Returns a key's scheduling state among its tenant's keys.
    pub fn key_status(&self, key: Key) -> KeyStatus {
        match self.owner(key) {
            Some(tenant) => self.keys_by_tenant[tenant as usize].keys.key_status(&self.key_accounts, key.0),
            None => KeyStatus::Idle,
        }
    }

    /// Returns a tenant's scheduling state among the tenants.
    pub fn tenant_status(&self, tenant: TenantId) -> KeyStatus {
        self.tenants.key_status(&self.tenant_accounts, tenant.0)
    }

    /// Ensures that the tenant and the key exist and that the tenant owns the key.
    fn ensure_key(&mut self, weighted_key: WeightedKey) -> Result<(), AddKeyError> {
        let WeightedKey { tenant, tenant_weight, key, .. } = weighted_key;
        if key.0 >= self.keys_max {
            return Err(AddKeyError::TooMany { keys_max: self.keys_max });
        }
        self.ensure_tenant(tenant)?;
        if self.owners.len() <= key.index() {
            self.owners.resize(key.index() + 1, NIL);
        }
        match self.owners[key.index()] {
            NIL => {
                self.owners[key.index()] = tenant.0;
                self.keys_by_tenant[tenant.index()].owned += 1;
            }
            owner if owner == tenant.0 => {}
            owner => return Err(AddKeyError::OtherTenant { key, owner: TenantId(owner) }),
        }
        self.key_accounts.ensure_known(key.0);
        if self.tenant_accounts[tenant.0].location == KeyLocation::Idle {
            self.tenants.update_weight(&mut self.tenant_accounts, tenant.0, tenant_weight);
        }
        Ok(())
    }

    fn ensure_tenant(&mut self, tenant: TenantId) -> Result<(), AddKeyError> {
        if tenant.0 >= self.keys_max {
            return Err(AddKeyError::TooMany { keys_max: self.keys_max });
        }
        self.tenant_accounts.ensure_known(tenant.0);
        if self.keys_by_tenant.len() <= tenant.index() {
            let quantum = self.quantum;
            self.keys_by_tenant.resize_with(tenant.index() + 1, || TenantKeys::new(quantum));
        }
        Ok(())
    }

    fn owner(&self, key: Key) -> Option<u32> {
        self.owners.get(key.index()).copied().filter(|&owner| owner != NIL)
    }

    fn is_known(&self, tenant: TenantId) -> bool {
        self.tenant_accounts.get(tenant.0).is_some()
    }

    fn set_park_state(&mut self, tenant: TenantId, park_state: ParkState) {
        self.keys_by_tenant[tenant.index()].park_state = park_state;
        self.sync_tenant(tenant.0);
    }

    /// Updates a tenant's state: parked while it is parked itself or all its keys with work are, idle without such
    /// keys, otherwise active.
    fn sync_tenant(&mut self, tenant: u32) {
        let TenantKeys { keys, park_state, .. } = &self.keys_by_tenant[tenant as usize];
        let accounts = &mut self.tenant_accounts;
        let weight = accounts[tenant].weight;
        if keys.active() > 0 && *park_state == ParkState::Awake {
            self.tenants.add(accounts, tenant, weight);
            self.tenants.wake(accounts, tenant);
        } else if keys.active() + keys.parked() > 0 {
            self.tenants.add_parked(accounts, tenant, weight);
            self.tenants.park(accounts, tenant);
        } else {
            self.tenants.remove(accounts, tenant);
        }
    }
}

impl TenantKeys {
    fn new(quantum: Cost) -> Self {
        Self { keys: DrrLevel::new(NewKey::First, quantum), owned: 0, park_state: ParkState::Awake }
    }
}

/// Error for a key or tenant that cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddKeyError {
    /// The key or tenant is not below `keys_max`.
    #[error("more than {keys_max} keys or tenants")]
    TooMany {
        /// Maximum number of keys, and of tenants.
        keys_max: u32,
    },
    /// The key belongs to another tenant until it is forgotten.
    #[error("key {} belongs to tenant {}", key.0, owner.0)]
    OtherTenant {
        /// The key that was to be added.
        key: Key,
        /// Tenant that owns it.
        owner: TenantId,
    },
}

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

        // With a single level, ten keys get ten shares.
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
    fn weights_apply_on_both_levels() {
        let mut drr = scheduler();
        let three = Weight::whole(3).unwrap();
        drr.add_key(weighted_key(ACME, three, Key(0), Weight::ONE)).unwrap();
        drr.add_key(weighted_key(ACME, three, Key(1), three)).unwrap();
        drr.add_key(weighted_key(BYTE, Weight::ONE, Key(2), Weight::ONE)).unwrap();
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
    fn a_tenant_is_parked_while_all_its_keys_are_parked() {
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
    fn adding_and_removing_keys_does_not_wake_a_parked_tenant() {
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
    fn a_key_belongs_to_one_tenant_until_it_is_forgotten() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        let error = drr.add_key(weighted_key(BYTE, Weight::ONE, Key(0), Weight::ONE)).unwrap_err();
        assert_eq!(error.to_string(), "key 0 belongs to tenant 0");
        assert!(!drr.forget_key(Key(0)));
        drr.remove_key(Key(0));
        assert!(drr.forget_key(Key(0)));
        assert_eq!((drr.key_status(Key(0)), drr.debt(Key(0))), (KeyStatus::Idle, Cost::ZERO));
        add(&mut drr, BYTE, Key(0));
        assert_eq!(drr.next_key(), Some(Turn { tenant: BYTE, key: Key(0) }));
        assert_eq!(drr.key_status(Key(0)), KeyStatus::Next);
        assert!(drr.forget_key(Key(99)));
    }

    #[test]
    fn a_tenant_can_be_parked_before_it_has_work() {
        let mut drr = scheduler();
        drr.park_tenant(BYTE).unwrap();
        add(&mut drr, BYTE, Key(0));
        assert_eq!(drr.next_key(), None);
        drr.wake_tenant(BYTE);
        assert_eq!(drr.next_key(), Some(Turn { tenant: BYTE, key: Key(0) }));
    }

    #[test]
    fn adding_work_to_a_parked_tenant_does_not_reduce_its_debt() {
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
        drr.add_parked(weighted_key(ACME, Weight::ONE, Key(2), Weight::ONE)).unwrap();
        assert_eq!((drr.tenant_debt(ACME), drr.key_status(Key(2))), (owed, KeyStatus::Parked));
    }

    #[test]
    fn a_forgotten_tenants_number_can_be_reused() {
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
        assert_eq!((drr.tenant_status(ACME), drr.tenant_debt(ACME)), (KeyStatus::Prioritized, Cost::ZERO));
    }

    #[test]
    fn a_cleared_scheduler_has_no_debt_and_serves_as_a_new_one() {
        let mut drr = scheduler();
        add(&mut drr, ACME, Key(0));
        add(&mut drr, BYTE, Key(1));
        drr.consume_deficit(Key(0), Cost(1_000_000));
        assert!(!drr.clear(), "it has work");
        drr.remove_key(Key(0));
        drr.remove_key(Key(1));
        drr.park_tenant(BYTE).unwrap();
        assert!(drr.tenant_debt(ACME) > Cost::ZERO && drr.clear());
        assert_eq!((drr.tenant_debt(ACME), drr.debt(Key(0)), drr.next_key()), (Cost::ZERO, Cost::ZERO, None));
        // A key may now belong to another tenant.
        add(&mut drr, BYTE, Key(0));
        add(&mut drr, ACME, Key(1));
        assert_eq!(serve(&mut drr, 10), [5, 5]);
    }

    #[test]
    fn limits_hold_for_tenants_and_keys() {
        let mut drr = TenantDrr::new(Cost::MESSAGE, 2).unwrap();
        for (tenant, key) in [(2, 0), (0, 2)] {
            let error =
                drr.add_key(weighted_key(TenantId(tenant), Weight::ONE, Key(key), Weight::ONE)).unwrap_err();
            assert_eq!(error.to_string(), "more than 2 keys or tenants");
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

    fn weighted_key(tenant: TenantId, tenant_weight: Weight, key: Key, weight: Weight) -> WeightedKey {
        WeightedKey { tenant, tenant_weight, key, weight }
    }

    fn add(drr: &mut TenantDrr, tenant: TenantId, key: Key) {
        drr.add_key(weighted_key(tenant, Weight::ONE, key, Weight::ONE)).unwrap();
    }

    /// Serves plain messages and returns the count per tenant.
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
