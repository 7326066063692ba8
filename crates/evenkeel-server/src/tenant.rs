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
use evenkeel_policy::class::{Class, ClassRule};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::interner::Interner;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;
use http::{HeaderMap, Uri};
use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};
use tokio::sync::watch;

use crate::api_error::{ApiError, RateLimitKind};
use crate::api_key::{KeyHash, check_length, credential, has_credential};
use crate::origin::{TrustedSites, is_api, is_local};
use crate::rate_window::{MinuteWindow, RateDecision};

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
    pub key_hashes: Vec<KeyHash>,
    /// Relative share of capacity.
    pub weight: Weight,
    /// Requests per minute; `None` means no limit, 0 acts like [`TenantState::Disabled`].
    pub rpm: Option<u64>,
    /// Tokens per minute; `None` means no limit.
    pub tpm: Option<u64>,
    /// Requests in flight; `None` means no limit.
    pub concurrency_max: Option<u32>,
    /// Class of requests that name none; see [`class_rule`](Self::class_rule).
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
    pub fn class_rule(&self) -> ClassRule {
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

    /// Reports whether a tenant that authenticated against an earlier table is still itself: active, with the same account,
    /// and with every key that it had then. The tenant of open mode is, while there are no tenants.
    ///
    /// The key of the request is not recorded, so the loss of any key counts.
    pub fn is_current(&self, tenant: &Tenant) -> bool {
        if tenant.is_open() {
            return self.is_empty();
        }
        let Some(current) = self.get(&tenant.settings.name) else { return false };
        let has_key = |key: &KeyHash| current.settings.key_hashes.iter().any(|known| known.matches(key));
        core::ptr::eq(Arc::as_ptr(current), tenant)
            || current.id == tenant.id
                && current.settings.account == tenant.settings.account
                && current.settings.state == TenantState::Active
                && tenant.settings.key_hashes.iter().all(has_key)
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

    fn is_admin_key(&self, key: &str) -> bool {
        let hash = KeyHash::of(key);
        self.admin.iter().fold(false, |found, known| known.matches(&hash) | found)
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

/// Reachability of a listener, from the safest to the most exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    /// From this machine only.
    Loopback,
    /// From other machines, encrypted.
    Tls,
    /// From other machines, in clear text.
    Clear,
}

/// Insecure listeners that the operator allows explicitly; by default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsecurePolicy {
    /// Serve other machines without tenants, so that everybody who reaches the server is served.
    pub allow_open: bool,
    /// Serve other machines with tenants but without TLS, so that API keys travel in clear text.
    pub allow_plaintext: bool,
}

/// Authenticates callers against the current tenant table.
#[derive(Debug)]
pub struct Authenticator {
    origin: std::time::Instant,
    tenants: RwLock<Arc<Tenants>>,
    exposure: Exposure,
    insecure: InsecurePolicy,
    sites: TrustedSites,
    /// Notified after each reload.
    reloaded: watch::Sender<()>,
}

impl Authenticator {
    /// Creates the authenticator of a listener; fails if that would be insecure and `insecure` refuses it.
    pub fn new(tenants: Tenants, exposure: Exposure, insecure: InsecurePolicy) -> Result<Self, TenantsError> {
        check_exposure(tenants.len(), exposure, insecure)?;
        let origin = std::time::Instant::now();
        let tenants = RwLock::new(Arc::new(tenants));
        let sites = TrustedSites::default();
        Ok(Self { origin, tenants, exposure, insecure, sites, reloaded: watch::Sender::new(()) })
    }

    /// Sets the names of this server and the sites whose pages may use it.
    pub fn with_sites(self, sites: TrustedSites) -> Self {
        Self { sites, ..self }
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
        check_exposure(next.len(), self.exposure, self.insecure)?;
        *current = Arc::new(next);
        drop(current);
        self.reloaded.send_replace(());
        Ok(removed)
    }

    /// Reports whether a caller that authenticated earlier is still valid: see [`Tenants::is_current`].
    pub fn is_current(&self, caller: &Caller) -> bool {
        match caller {
            Caller::Tenant(tenant) => self.tenants().is_current(tenant),
            Caller::Admin | Caller::Public => true,
        }
    }

    /// Waits until a reload makes a caller invalid.
    pub async fn until_invalid(&self, caller: &Caller) {
        let mut reloaded = self.reloaded.subscribe();
        while self.is_current(caller) {
            // The sender lives as long as `self`, so that this is no error.
            drop(reloaded.changed().await);
        }
    }

    /// Rejects a request to a route that a web page of another site may have sent, where no key protects the route, and
    /// on the native API always.
    pub(crate) fn check_site(&self, access: Access, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        match access {
            Access::Unchecked => Ok(()),
            _ if self.tenants().is_empty() || is_api(uri.path()) => self.sites.check(headers, uri),
            _ => Ok(()),
        }
    }

    /// Checks a request of a route with [`Access::Unchecked`] as the server checks those of other routes.
    pub fn check_request(&self, headers: &HeaderMap, uri: &Uri, peer: SocketAddr) -> Result<(), ApiError> {
        self.check_site(Access::Public, headers, uri)?;
        self.check_local(headers, peer)
    }

    /// Rejects a request from another machine if this server has no tenants and is meant for this machine only.
    fn check_local(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<(), ApiError> {
        if self.insecure.allow_open || !self.tenants().is_empty() || is_local(headers, peer) {
            return Ok(());
        }
        Err(ApiError::Forwarded)
    }

    /// Authenticates the caller of a route.
    pub fn caller(&self, access: Access, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        let caller = match access {
            Access::Unchecked => return Ok(Caller::Public),
            Access::Public => Caller::Public,
            Access::Tenant => Caller::Tenant(self.tenants().tenant(headers)?),
            Access::Admin => return self.admin(headers),
            Access::TenantOrAdmin => self.tenant_or_admin(headers)?,
        };
        if !matches!(caller, Caller::Admin) {
            self.check_local(headers, peer)?;
        }
        Ok(caller)
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

    fn tenant_or_admin(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        if tenants.is_empty() && !has_credential(headers) {
            return Ok(Caller::Tenant(tenants.open.clone()));
        }
        let key = credential(headers)?;
        match tenants.tenant_with_key(key) {
            Err(ApiError::Unauthenticated) if tenants.is_admin_key(key) => Ok(Caller::Admin),
            result => result.map(Caller::Tenant),
        }
    }

    fn admin(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.tenants().is_admin_key(credential(headers)?) {
            Ok(Caller::Admin)
        } else {
            Err(ApiError::AdminOnly)
        }
    }
}

/// Rejects a listener that other machines reach without tenants or without TLS, unless the operator allows it.
pub fn check_exposure(
    tenants: usize,
    exposure: Exposure,
    insecure: InsecurePolicy,
) -> Result<(), TenantsError> {
    match exposure {
        Exposure::Loopback => Ok(()),
        Exposure::Tls | Exposure::Clear if tenants == 0 => {
            if insecure.allow_open {
                Ok(())
            } else {
                Err(TenantsError::Open)
            }
        }
        Exposure::Tls => Ok(()),
        Exposure::Clear if insecure.allow_plaintext => Ok(()),
        Exposure::Clear => Err(TenantsError::Clear),
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
