//! Authentication: the tenant table, and the mapping from a request's API key to its caller.
//!
//! Limits: at most 10 000 tenants with 16 API keys each.
//! Guarantees: a reload is all or nothing, and a tenant that keeps its name keeps its id and its rate usage, a key that is
//! kept the time of its last use. Without
//! tenants every caller is served (open mode); start and reload reject that unless the listener is on loopback or the
//! operator allows it explicitly.

mod authenticator;

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::account::AccountNumber;
use evenkeel_policy::class::{Class, ClassRule};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::interner::Interner;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;
use http::HeaderMap;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::api_error::{ApiError, RateLimitKind};
use crate::api_key::{KeyHash, credential};
use crate::budget::Budgets;
use crate::rate_window::{MinuteWindow, RateDecision};
use crate::tenant_key::{LastUse, TenantKey};
use crate::unix_seconds::UnixSeconds;

pub use authenticator::{Authenticator, Exposure, InsecurePolicy, check_exposure};

pub const TENANTS_MAX: usize = 10_000;
/// API keys per tenant.
pub const KEYS_MAX: usize = 16;
/// Entry of [`TenantSettings::act_for`] that covers every first level.
pub const ACT_FOR_ALL: &str = "*";
/// Queues that a tenant may own unless its settings have another limit.
pub const QUEUES_MAX: u32 = 1_000;
/// Tenant of every caller while no tenants are configured. Its id is reserved, so that no configured tenant gets it.
const OPEN: &str = "open";

/// Administrative state of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantState {
    #[default]
    Active,
    /// The tenant's requests are rejected.
    Disabled,
}

/// Configuration of a tenant.
#[derive(Clone, Debug, Default)]
pub struct TenantSettings {
    /// Unique name.
    pub name: String,
    /// The oldest first.
    pub keys: Vec<TenantKey>,
    /// Relative share of capacity.
    pub weight: Weight,
    /// Requests per minute; `None` means no limit, 0 acts like [`TenantState::Disabled`].
    pub rpm: Option<u64>,
    /// Tokens per minute; `None` means no limit.
    pub tpm: Option<u64>,
    /// Tokens and money per day and month.
    pub budgets: Budgets,
    /// Requests in flight; `None` means no limit.
    pub concurrency_max: Option<u32>,
    /// Class of requests that name none; see [`ClassRule`].
    pub priority: Option<Class>,
    /// Highest class of a request.
    pub priority_max: Option<Class>,
    /// Allowed models; empty means all.
    pub models: Vec<String>,
    pub sql: TenantSql,
    /// First levels of fairness keys under which the tenant may send to queues of others; `*` means all.
    pub act_for: Vec<String>,
    /// Number of queues that the tenant may own; `None` means [`QUEUES_MAX`].
    pub queues_max: Option<u32>,
    /// Number that names the tenant's queues, drawn once and never reused; `None` means that it owns no queues.
    pub account: Option<AccountNumber>,
    pub state: TenantState,
}

impl TenantSettings {
    /// Returns the classes that the tenant's requests may have; the configuration rejects a `priority` above
    /// `priority_max`.
    fn class_rule(&self) -> ClassRule {
        ClassRule::new(self.priority, self.priority_max).unwrap_or_default()
    }
}

/// Settings of a tenant for the SQL API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSql {
    /// Allowed datasources; empty means all.
    pub datasources: Vec<String>,
    /// Role that the tenant's statements run as; `None` means that of the datasource.
    pub role: Option<String>,
    /// Settings of the tenant's sessions, such as `app.tenant` for row-level security.
    pub settings: Vec<(String, String)>,
}

/// A tenant of a table, and the key by which it authenticated.
#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    pub settings: Arc<TenantSettings>,
    /// Short hash of the name, which identifies the tenant across reloads and nodes; an id may pass to another tenant.
    pub name_hash: [u8; 8],
    usage: Arc<Mutex<RateUsage>>,
    /// `None` if the tenant did not authenticate itself: in open mode, for jobs, and if a peer authenticated it.
    key: Option<UsedKey>,
}

/// The key by which a tenant authenticated.
#[derive(Clone, Debug)]
struct UsedKey {
    /// Position in the settings.
    index: usize,
    last_use: LastUse,
}

/// A key that was right but has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyExpired {
    pub(crate) at: UnixSeconds,
}

/// Usage of a tenant's rate limits; survives reloads.
#[derive(Debug, Default)]
struct RateUsage {
    requests: MinuteWindow,
    tokens: MinuteWindow,
}

impl Tenant {
    fn new(id: TenantId, settings: TenantSettings) -> Self {
        let mut name_hash = [0; 8];
        name_hash.copy_from_slice(&digest(&SHA256, settings.name.as_bytes()).as_ref()[..8]);
        Self { id, settings: Arc::new(settings), name_hash, usage: Arc::default(), key: None }
    }

    /// Returns the tenant as one of its keys authenticates it.
    fn with_key(&self, index: usize, last_use: LastUse) -> Self {
        Self {
            id: self.id,
            settings: self.settings.clone(),
            name_hash: self.name_hash,
            usage: self.usage.clone(),
            key: Some(UsedKey { index, last_use }),
        }
    }

    /// Returns the key by which the tenant authenticated.
    pub fn key(&self) -> Option<&TenantKey> {
        self.key.as_ref().and_then(|used| self.settings.keys.get(used.index))
    }

    /// Returns the classes that its requests may have. A key's priority is their class and the highest that they may
    /// name, up to the tenant's maximum.
    pub fn class_rule(&self) -> ClassRule {
        let rule = self.settings.class_rule();
        match self.key().and_then(|key| key.priority) {
            Some(priority) => {
                let max = priority.min(rule.max);
                ClassRule { default: max, max }
            }
            None => rule,
        }
    }

    /// Records a use of the key by which the tenant authenticated; an expired key is rejected.
    pub(crate) fn use_key(&self, now: UnixSeconds) -> Result<(), KeyExpired> {
        if let Some(at) = self.key().and_then(|key| key.expires_at).filter(|at| *at <= now) {
            return Err(KeyExpired { at });
        }
        if let Some(used) = &self.key {
            used.last_use.record(now);
        }
        Ok(())
    }

    /// Rejects a disabled tenant.
    fn check_active(self: &Arc<Self>) -> Result<Arc<Self>, ApiError> {
        match self.settings.state {
            TenantState::Active => Ok(self.clone()),
            TenantState::Disabled => Err(ApiError::TenantDisabled),
        }
    }

    /// Counts a request against the requests per minute.
    pub fn take_request(&self, now: Instant) -> Result<(), ApiError> {
        let Some(limit) = self.settings.rpm else { return Ok(()) };
        check_rate(RateLimitKind::Requests, self.usage.lock().requests.try_acquire(1, limit, now))
    }

    /// Refunds a request that was counted but not served, through no fault of the tenant.
    pub fn refund_request(&self, taken_at: Instant, now: Instant) {
        if self.settings.rpm.is_some() {
            self.usage.lock().requests.settle(1, 0, taken_at, now);
        }
    }

    /// Counts a request's estimated tokens against the tokens per minute.
    pub fn take_tokens(&self, estimate: u64, now: Instant) -> Result<(), ApiError> {
        let Some(limit) = self.settings.tpm else { return Ok(()) };
        check_rate(RateLimitKind::Tokens, self.usage.lock().tokens.try_acquire(estimate, limit, now))
    }

    /// Replaces a request's estimated tokens with the actual ones.
    pub fn settle_tokens(&self, estimate: u64, actual: u64, taken_at: Instant, now: Instant) {
        if self.settings.tpm.is_some() {
            self.usage.lock().tokens.settle(estimate, actual, taken_at, now);
        }
    }

    /// Rejects a model that the tenant may not use.
    pub fn check_model(&self, model: &str) -> Result<(), ApiError> {
        let models = &self.settings.models;
        if models.is_empty() || models.iter().any(|allowed| allowed == model) {
            return Ok(());
        }
        Err(ApiError::ModelForbidden { model: model.to_owned() })
    }

    /// Reports whether this is the tenant of open mode.
    pub fn is_open(&self) -> bool {
        self.settings.name == OPEN
    }

    /// Reports whether the tenant may send messages under a fairness key with this first level in queues of others.
    pub fn may_act_for(&self, first_level: &str) -> bool {
        let listed = |allowed: &String| allowed == ACT_FOR_ALL || allowed == first_level;
        first_level == self.settings.name || self.settings.act_for.iter().any(listed)
    }

    /// Rejects a datasource that the tenant may not use.
    pub fn check_datasource(&self, datasource: &str) -> Result<(), ApiError> {
        let datasources = &self.settings.sql.datasources;
        if datasources.is_empty() || datasources.iter().any(|allowed| allowed == datasource) {
            return Ok(());
        }
        Err(ApiError::DatasourceForbidden { datasource: datasource.to_owned() })
    }
}

fn check_rate(rate: RateLimitKind, decision: RateDecision) -> Result<(), ApiError> {
    match (decision, rate) {
        (RateDecision::Allowed, _) => Ok(()),
        (RateDecision::Limited { retry_after }, _) => Err(ApiError::RateLimited { rate, retry_after }),
        // A retry would not help, so the response has no Retry-After.
        (RateDecision::TooLarge, RateLimitKind::Tokens) => {
            Err(ApiError::invalid("the request needs more tokens than this API key has per minute"))
        }
        (RateDecision::TooLarge, RateLimitKind::Requests) => Err(ApiError::TenantDisabled),
    }
}

/// Authentication that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The server checks nothing: probes, and routes whose handler checks what the server otherwise does, because the
    /// signature of a peer may replace a key.
    Unchecked,
    /// No authentication: public pages, and routes whose API checks credentials itself.
    Public,
    /// A tenant's API key; not required in open mode.
    Tenant,
    /// An admin key, from any address and in open mode too.
    Admin,
    /// A tenant's API key or an admin key; in open mode a request without a key is the open tenant's.
    TenantOrAdmin,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The route requires no authentication.
    Public,
    /// A tenant; in open mode the tenant `open`.
    Tenant(Arc<Tenant>),
    Admin(AdminKey),
}

/// The admin key by which an administrator authenticated.
#[derive(Clone, Copy, Debug)]
pub struct AdminKey {
    pub hash: KeyHash,
}

/// The tenants and API keys of one configuration.
#[derive(Debug)]
pub struct Tenants {
    names: Interner<TenantId>,
    by_name: HashMap<String, Arc<Tenant>>,
    by_account: HashMap<AccountNumber, Arc<Tenant>>,
    /// Sorted by [`KeyHash::lookup_prefix`]; each tenant is as that key authenticates it.
    keys: Vec<(KeyHash, Arc<Tenant>)>,
    admin: Vec<KeyHash>,
    open: Arc<Tenant>,
}

impl Tenants {
    /// Creates the first table; `admin` holds the hashes of the admin keys.
    pub fn new(tenants: Vec<TenantSettings>, admin: Vec<KeyHash>) -> Result<Self, TenantsError> {
        // Names come from the operator, so the hash needs no secret. A reload interns old and new names at once.
        let mut names = Interner::new(2 * TENANTS_MAX as u32 + 1, (0, 0));
        let id = names.intern(OPEN).map_err(|_| TenantsError::TooMany)?;
        let open = TenantSettings { name: OPEN.to_owned(), ..TenantSettings::default() };
        let empty = Self {
            names,
            by_name: HashMap::new(),
            by_account: HashMap::new(),
            keys: Vec::new(),
            admin: Vec::new(),
            open: Arc::new(Tenant::new(id, open)),
        };
        empty.next(tenants, admin).map(|(tenants, _)| tenants)
    }

    /// Creates the table that replaces this one, and returns the ids of removed tenants.
    ///
    /// The same reload does not reuse a removed id; the caller drops its state for the id before the next reload.
    pub fn next(
        &self,
        tenants: Vec<TenantSettings>,
        admin: Vec<KeyHash>,
    ) -> Result<(Self, Vec<TenantId>), TenantsError> {
        if tenants.len() > TENANTS_MAX {
            return Err(TenantsError::TooMany);
        }
        let mut names = self.names.clone();
        let mut by_name = HashMap::new();
        let mut keys: Vec<(KeyHash, Arc<Tenant>)> = Vec::new();
        for settings in tenants {
            let name = settings.name.clone();
            if name.is_empty() {
                return Err(TenantsError::NoName);
            }
            if name == OPEN {
                return Err(TenantsError::Reserved { name });
            }
            if settings.keys.len() > KEYS_MAX {
                return Err(TenantsError::TooManyKeys { name });
            }
            if let Some(key) = duplicate_key_name(&settings.keys) {
                return Err(TenantsError::DuplicateKeyName { name, key });
            }
            let id = names.intern(&name).map_err(|_| TenantsError::TooMany)?;
            let mut tenant = Tenant::new(id, settings);
            if let Some(previous) = self.by_name.get(&name) {
                tenant.usage = previous.usage.clone();
            }
            let tenant = Arc::new(tenant);
            keys.extend(tenant.settings.keys.iter().enumerate().map(|(index, key)| {
                let last_use = self.last_use_of(&key.hash).cloned().unwrap_or_default();
                (key.hash, Arc::new(tenant.with_key(index, last_use)))
            }));
            if by_name.insert(name.clone(), tenant).is_some() {
                return Err(TenantsError::DuplicateName { name });
            }
        }
        keys.sort_by_key(|(hash, _)| hash.lookup_prefix());
        check_distinct(&keys, &admin)?;
        let mut removed = Vec::new();
        for (name, tenant) in &self.by_name {
            if !by_name.contains_key(name) && names.release(tenant.id) {
                removed.push(tenant.id);
            }
        }
        removed.sort_unstable();
        let accounts = by_name.values().filter_map(|tenant| Some((tenant.settings.account?, tenant.clone())));
        let by_account = accounts.collect();
        Ok((Self { names, by_name, by_account, keys, admin, open: self.open.clone() }, removed))
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.by_name.get(name)
    }

    /// Returns the tenant with an account number.
    pub fn with_account(&self, account: AccountNumber) -> Option<&Arc<Tenant>> {
        self.by_account.get(&account)
    }

    /// Returns the tenant as the key with this hash authenticates it.
    pub(crate) fn with_hash(&self, hash: &KeyHash) -> Option<&Arc<Tenant>> {
        let from = self.keys.partition_point(|(known, _)| known.lookup_prefix() < hash.lookup_prefix());
        let candidates =
            self.keys[from..].iter().take_while(|(known, _)| known.lookup_prefix() == hash.lookup_prefix());
        candidates.filter(|(known, _)| known.matches(hash)).map(|(_, tenant)| tenant).next()
    }

    fn last_use_of(&self, hash: &KeyHash) -> Option<&LastUse> {
        self.with_hash(hash)?.key.as_ref().map(|used| &used.last_use)
    }

    /// Returns the time of the last use of a key, to the minute; `None` if it is not known to have been used.
    pub fn last_use(&self, hash: &KeyHash) -> Option<UnixSeconds> {
        self.last_use_of(hash)?.get()
    }

    /// Returns the keys that have been used, with the time of their last use.
    pub fn last_uses(&self) -> Vec<(KeyHash, UnixSeconds)> {
        let used = self.keys.iter().filter_map(|(hash, tenant)| {
            tenant.key.as_ref().and_then(|used| used.last_use.get()).map(|at| (*hash, at))
        });
        used.collect()
    }

    /// Restores the time of a key's last use; ignores a key that no tenant has.
    pub fn restore_last_use(&self, hash: &KeyHash, at: UnixSeconds) {
        if let Some(last_use) = self.last_use_of(hash) {
            last_use.record(at);
        }
    }

    /// Reports whether a tenant that authenticated against an earlier table is still itself: active, with the same account,
    /// and with the key by which it authenticated, not expired. The tenant of open mode is, while there are no tenants.
    ///
    /// If the tenant did not authenticate by a key, the loss of any key counts.
    pub fn is_current(&self, tenant: &Tenant, now: UnixSeconds) -> bool {
        if tenant.is_open() {
            return self.is_empty();
        }
        let Some(current) = self.get(&tenant.settings.name) else { return false };
        let is_valid = |key: &TenantKey| {
            current.settings.keys.iter().any(|known| known.hash.matches(&key.hash) && !known.is_expired(now))
        };
        let has_keys = match tenant.key() {
            Some(key) => is_valid(key),
            None => tenant.settings.keys.iter().filter(|key| !key.is_expired(now)).all(is_valid),
        };
        current.id == tenant.id
            && current.settings.account == tenant.settings.account
            && current.settings.state == TenantState::Active
            && has_keys
    }

    /// Returns the time at which a tenant ceases to be current, if its key expires.
    fn expires_at(&self, tenant: &Tenant) -> Option<UnixSeconds> {
        let key = tenant.key()?;
        self.with_hash(&key.hash)?.key()?.expires_at
    }

    /// Returns all tenants by id, including the tenant of open mode.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self.by_name.values().chain([&self.open]).cloned().collect();
        all.sort_unstable_by_key(|tenant| tenant.id);
        all
    }

    /// Returns the tenant of every caller in open mode.
    pub(crate) fn open(&self) -> Arc<Tenant> {
        self.open.clone()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Reports whether there are no tenants (open mode).
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn tenant(&self, headers: &HeaderMap, now: UnixSeconds) -> Result<Arc<Tenant>, ApiError> {
        if self.is_empty() {
            return Ok(self.open.clone());
        }
        self.tenant_with_key(credential(headers)?, now)
    }

    fn tenant_with_key(&self, key: &str, now: UnixSeconds) -> Result<Arc<Tenant>, ApiError> {
        let tenant = self.with_hash(&KeyHash::of(key)).ok_or(ApiError::Unauthenticated)?;
        tenant.use_key(now).map_err(|expired| ApiError::KeyExpired { at: expired.at.to_rfc3339() })?;
        tenant.check_active()
    }

    /// Returns the admin key that a key is, if it is one.
    fn admin_key(&self, key: &str) -> Option<AdminKey> {
        let hash = KeyHash::of(key);
        self.is_admin(&hash).then_some(AdminKey { hash })
    }

    fn is_admin(&self, hash: &KeyHash) -> bool {
        self.admin.iter().fold(false, |found, known| known.matches(hash) | found)
    }
}

/// Returns a name that two keys have.
fn duplicate_key_name(keys: &[TenantKey]) -> Option<String> {
    let is_repeated =
        |(index, key): (usize, &TenantKey)| keys[..index].iter().any(|other| other.name == key.name);
    keys.iter().enumerate().find(|(index, key)| is_repeated((*index, key))).map(|(_, key)| key.name.clone())
}

/// Rejects a key that two tenants share, or a tenant and an administrator.
fn check_distinct(keys: &[(KeyHash, Arc<Tenant>)], admin: &[KeyHash]) -> Result<(), TenantsError> {
    let pairs = keys.windows(2).filter(|pair| pair[0].0.matches(&pair[1].0)).map(|pair| &pair[1].1);
    let both = keys.iter().filter(|(hash, _)| admin.iter().any(|known| known.matches(hash))).map(|(_, t)| t);
    match pairs.chain(both).next() {
        Some(tenant) => Err(TenantsError::DuplicateKey { name: tenant.settings.name.clone() }),
        None => Ok(()),
    }
}

/// Reason why a tenant table is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenantsError {
    #[error("more than {TENANTS_MAX} tenants")]
    TooMany,
    #[error("tenant {name:?} has more than {KEYS_MAX} keys")]
    TooManyKeys { name: String },
    #[error("a tenant has no name")]
    NoName,
    #[error("no tenant may be named {name:?}")]
    Reserved { name: String },
    #[error("two tenants are named {name:?}")]
    DuplicateName { name: String },
    #[error("a key of tenant {name:?} is listed twice")]
    DuplicateKey { name: String },
    #[error("two keys of tenant {name:?} are named {key:?}")]
    DuplicateKeyName { name: String, key: String },
    /// Callers on other machines would be served without authentication.
    #[error("no tenants, and the listener is not on loopback; allow_open (--allow-open) allows it")]
    Open,
    /// API keys would be sent in clear text.
    #[error(
        "no TLS, and the listener is not on loopback, so that API keys travel in clear text; allow_plaintext \
         (--allow-plaintext) allows it, allow_open does not"
    )]
    Clear,
}

#[cfg(test)]
mod tests;
