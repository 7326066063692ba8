//! Authentication: the tenant table, and the mapping from a request's API key to its caller.
//!
//! Limits: at most 10 000 tenants with 16 API keys each.
//! Guarantees: a reload is all or nothing, and a tenant that keeps its name keeps its id and its rate usage. Without
//! tenants every caller is served (open mode); start and reload reject that unless the listener is on loopback or the
//! operator allows it explicitly.

use core::net::SocketAddr;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::account::AccountNumber;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::interner::Interner;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;
use http::HeaderMap;
use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};

use crate::api_error::{ApiError, RateLimitKind};
use crate::api_key::{KeyHash, check_length, credential};
use crate::rate_window::{MinuteWindow, RateDecision};

pub const TENANTS_MAX: usize = 10_000;
/// API keys per tenant.
pub const KEYS_MAX: usize = 16;
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
    pub key_hashes: Vec<KeyHash>,
    /// Relative share of capacity.
    pub weight: Weight,
    /// Requests per minute; `None` means no limit, 0 acts like [`TenantState::Disabled`].
    pub rpm: Option<u64>,
    /// Tokens per minute; `None` means no limit.
    pub tpm: Option<u64>,
    /// Requests in flight; `None` means no limit.
    pub concurrency_max: Option<u32>,
    /// Allowed models; empty means all.
    pub models: Vec<String>,
    pub sql: TenantSql,
    /// Number of queues that the tenant may own; `None` means [`QUEUES_MAX`].
    pub queues_max: Option<u32>,
    /// Number that names the tenant's queues, drawn once and never reused; `None` means that it owns no queues.
    pub account: Option<AccountNumber>,
    pub state: TenantState,
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

/// A tenant of the current table.
#[derive(Debug)]
pub struct Tenant {
    pub id: TenantId,
    pub settings: TenantSettings,
    /// Short hash of the name, which identifies the tenant across reloads and nodes; an id may pass to another tenant.
    pub name_hash: [u8; 8],
    usage: Arc<Mutex<RateUsage>>,
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
        Self { id, settings, name_hash, usage: Arc::default() }
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
    /// No authentication: probes, and routes whose API checks credentials itself.
    Public,
    /// A tenant's API key; not required in open mode.
    Tenant,
    /// An admin key; without configured admin keys, a connection from this machine.
    Admin,
    /// A tenant's API key or an admin key.
    TenantOrAdmin,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The route requires no authentication.
    Public,
    /// A tenant; in open mode the tenant `open`.
    Tenant(Arc<Tenant>),
    Admin,
}

/// The tenants and API keys of one configuration.
#[derive(Debug)]
pub struct Tenants {
    names: Interner<TenantId>,
    by_name: HashMap<String, Arc<Tenant>>,
    by_account: HashMap<AccountNumber, Arc<Tenant>>,
    /// Sorted by [`KeyHash::lookup_prefix`].
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
            if settings.key_hashes.len() > KEYS_MAX {
                return Err(TenantsError::TooManyKeys { name });
            }
            let id = names.intern(&name).map_err(|_| TenantsError::TooMany)?;
            let mut tenant = Tenant::new(id, settings);
            if let Some(previous) = self.by_name.get(&name) {
                tenant.usage = previous.usage.clone();
            }
            let tenant = Arc::new(tenant);
            keys.extend(tenant.settings.key_hashes.iter().map(|hash| (*hash, tenant.clone())));
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

    fn tenant(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, ApiError> {
        if self.is_empty() {
            return Ok(self.open.clone());
        }
        self.tenant_with_key(credential(headers)?)
    }

    fn tenant_with_key(&self, key: &str) -> Result<Arc<Tenant>, ApiError> {
        let hash = KeyHash::of(key);
        let from = self.keys.partition_point(|(known, _)| known.lookup_prefix() < hash.lookup_prefix());
        let candidates =
            self.keys[from..].iter().take_while(|(known, _)| known.lookup_prefix() == hash.lookup_prefix());
        let mut matching = candidates.filter(|(known, _)| known.matches(&hash));
        let (_, tenant) = matching.next().ok_or(ApiError::Unauthenticated)?;
        tenant.check_active()
    }

    fn is_admin(&self, headers: &HeaderMap) -> Result<bool, ApiError> {
        let hash = KeyHash::of(credential(headers)?);
        Ok(self.admin.iter().fold(false, |found, known| known.matches(&hash) | found))
    }
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

/// Reachability of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// From this machine only.
    Loopback,
    /// From other machines, encrypted.
    Tls,
    /// From other machines, in clear text.
    Clear,
}

/// Policy for a listener that other machines reach without TLS or without tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsecurePolicy {
    Refuse,
    /// The operator allows it explicitly.
    Allow,
}

/// Authenticates callers against the current tenant table.
#[derive(Debug)]
pub struct Authenticator {
    origin: std::time::Instant,
    tenants: RwLock<Arc<Tenants>>,
    exposure: Exposure,
    insecure: InsecurePolicy,
}

impl Authenticator {
    /// Creates the authenticator of a listener; fails if that would be insecure and `insecure` refuses it.
    pub fn new(tenants: Tenants, exposure: Exposure, insecure: InsecurePolicy) -> Result<Self, TenantsError> {
        check_exposure(&tenants, exposure, insecure)?;
        let origin = std::time::Instant::now();
        let tenants = RwLock::new(Arc::new(tenants));
        Ok(Self { origin, tenants, exposure, insecure })
    }

    /// Returns the current time of the clock that all rate limits use.
    pub fn now(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }

    /// Returns the current tenant table.
    pub fn tenants(&self) -> Arc<Tenants> {
        self.tenants.read().clone()
    }

    /// Replaces the tenant table and returns the ids of removed tenants; on an error the old table stays.
    pub fn reload(
        &self,
        tenants: Vec<TenantSettings>,
        admin: Vec<KeyHash>,
    ) -> Result<Vec<TenantId>, TenantsError> {
        let mut current = self.tenants.write();
        let (next, removed) = current.next(tenants, admin)?;
        check_exposure(&next, self.exposure, self.insecure)?;
        *current = Arc::new(next);
        Ok(removed)
    }

    /// Authenticates the caller of a route.
    pub fn caller(&self, access: Access, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        match access {
            Access::Public => Ok(Caller::Public),
            Access::Tenant => self.tenants().tenant(headers).map(Caller::Tenant),
            Access::Admin => self.admin(headers, peer),
            Access::TenantOrAdmin => self.tenant_or_admin(headers, peer),
        }
    }

    /// Authenticates a tenant by the API key in one of the usual headers.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, ApiError> {
        self.tenants().tenant(headers)
    }

    /// Returns the tenant that another node of the cluster has authenticated.
    pub fn tenant_named(&self, name: &str) -> Result<Arc<Tenant>, ApiError> {
        let tenants = self.tenants();
        if tenants.is_empty() && name == OPEN {
            return Ok(tenants.open.clone());
        }
        let unknown = || ApiError::InvalidTicket {
            reason: format!("this node has no tenant {name:?}; all nodes need the same tenants"),
        };
        tenants.get(name).ok_or_else(unknown)?.check_active()
    }

    /// Authenticates a tenant by an API key that was not sent in one of the usual headers; in open mode any key will do.
    pub fn tenant_with_key(&self, key: &str) -> Result<Arc<Tenant>, ApiError> {
        let tenants = self.tenants();
        if tenants.is_empty() {
            return Ok(tenants.open.clone());
        }
        tenants.tenant_with_key(check_length(key)?)
    }

    fn tenant_or_admin(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        // In open mode a caller that is not an administrator is the open tenant.
        if tenants.is_empty() {
            return self.admin(headers, peer).or_else(|_| tenants.tenant(headers).map(Caller::Tenant));
        }
        match tenants.tenant(headers) {
            Ok(tenant) => Ok(Caller::Tenant(tenant)),
            Err(ApiError::TenantDisabled) => Err(ApiError::TenantDisabled),
            // A wrong key is an error, even where a request without a key would be an administrator's.
            Err(error) if tenants.admin.is_empty() && credential(headers).is_ok() => Err(error),
            Err(error) => self.admin(headers, peer).map_err(|_| error),
        }
    }

    fn admin(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        let allowed = if tenants.admin.is_empty() {
            // On an exposed listener, a local peer may be a proxy for remote callers.
            self.exposure == Exposure::Loopback && peer.ip().is_loopback()
        } else {
            tenants.is_admin(headers)?
        };
        if allowed { Ok(Caller::Admin) } else { Err(ApiError::AdminOnly) }
    }
}

fn check_exposure(
    tenants: &Tenants,
    exposure: Exposure,
    insecure: InsecurePolicy,
) -> Result<(), TenantsError> {
    match (exposure, insecure) {
        (Exposure::Loopback, _) | (_, InsecurePolicy::Allow) => Ok(()),
        (Exposure::Clear | Exposure::Tls, InsecurePolicy::Refuse) if tenants.is_empty() => {
            Err(TenantsError::Open)
        }
        (Exposure::Clear, InsecurePolicy::Refuse) => Err(TenantsError::Clear),
        (Exposure::Tls, InsecurePolicy::Refuse) => Ok(()),
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
    /// Callers on other machines would be served without authentication.
    #[error("no tenants, and the listener is not on loopback")]
    Open,
    /// API keys would be sent in clear text.
    #[error("no TLS, and the listener is not on loopback")]
    Clear,
}

#[cfg(test)]
mod tests;
