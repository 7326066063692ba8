//! Who asks: the table of tenants, and the one function from a request's headers to a caller.
//!
//! Bound: at most 10 000 tenants with 16 keys each. A reload is all or nothing, and a tenant whose name stays keeps its
//! id and what it used of its minute. Without tenants everybody is served, which is refused at start and at reload
//! unless the listener is on loopback or a flag says so.

use core::fmt;
use core::net::SocketAddr;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::id::TenantId;
use evenkeel_policy::interner::Interner;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;
use http::HeaderMap;
use parking_lot::{Mutex, RwLock};

use crate::api_error::{ApiError, RateLimitKind};
use crate::api_key::{KeyHash, credential};
use crate::rate_window::{MinuteWindow, RateDecision};

/// How many tenants a table holds at most.
pub const TENANTS_MAX: usize = 10_000;
/// How many keys a tenant has at most.
pub const KEYS_MAX: usize = 16;
/// Who everybody is while there are no tenants; has an id of its own, so that a reload confuses it with nobody.
const OPEN: &str = "open";

/// Whether a tenant is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantState {
    /// It is.
    #[default]
    Active,
    /// Its keys are known and refused.
    Disabled,
}

/// A tenant as configured.
#[derive(Clone, Debug, Default)]
pub struct TenantSettings {
    /// Its name, unique in the table.
    pub name: String,
    /// The hashes of its keys.
    pub key_hashes: Vec<KeyHash>,
    /// Its share.
    pub weight: Weight,
    /// Requests per minute; `None` is no limit, 0 is like [`Standing::Disabled`].
    pub rpm: Option<u64>,
    /// Tokens per minute; `None` is no limit.
    pub tpm: Option<u64>,
    /// Requests in flight; `None` is no limit.
    pub concurrency_max: Option<u32>,
    /// The models it may use; none named is all.
    pub models: Vec<String>,
    /// Whether it is served.
    pub state: TenantState,
}

/// A tenant as the doors see it.
#[derive(Debug)]
pub struct Tenant {
    /// Names it to every decision.
    pub id: TenantId,
    /// What it was configured with.
    pub settings: TenantSettings,
    used: Arc<Mutex<RateUsage>>,
}

/// What a tenant used of its minute; outlives reloads.
#[derive(Debug, Default)]
struct RateUsage {
    requests: MinuteWindow,
    tokens: MinuteWindow,
}

impl Tenant {
    fn new(id: TenantId, settings: TenantSettings) -> Self {
        Self { id, settings, used: Arc::default() }
    }

    /// Counts a request against the requests per minute.
    pub fn take_request(&self, now: Instant) -> Result<(), ApiError> {
        let Some(limit) = self.settings.rpm else { return Ok(()) };
        refused(RateLimitKind::Requests, self.used.lock().requests.take(1, limit, now))
    }

    /// Gives back a request that was counted and not served, for nobody's fault.
    pub fn give_request_back(&self, taken_at: Instant, now: Instant) {
        if self.settings.rpm.is_some() {
            self.used.lock().requests.settle(1, 0, taken_at, now);
        }
    }

    /// Counts the tokens a request will probably cost against the tokens per minute.
    pub fn take_tokens(&self, estimate: u64, now: Instant) -> Result<(), ApiError> {
        let Some(limit) = self.settings.tpm else { return Ok(()) };
        refused(RateLimitKind::Tokens, self.used.lock().tokens.take(estimate, limit, now))
    }

    /// Replaces the estimate that was taken by the tokens the request truly cost.
    pub fn settle_tokens(&self, estimate: u64, truly: u64, taken_at: Instant, now: Instant) {
        if self.settings.tpm.is_some() {
            self.used.lock().tokens.settle(estimate, truly, taken_at, now);
        }
    }

    /// Refuses a model that the tenant may not use.
    pub fn check_model(&self, model: &str) -> Result<(), ApiError> {
        let models = &self.settings.models;
        if models.is_empty() || models.iter().any(|allowed| allowed == model) {
            return Ok(());
        }
        Err(ApiError::ModelForbidden { model: model.to_owned() })
    }
}

fn refused(rate: RateLimitKind, verdict: RateDecision) -> Result<(), ApiError> {
    match (verdict, rate) {
        (RateDecision::Allowed, _) => Ok(()),
        (RateDecision::Limited { retry_after }, _) => Err(ApiError::RateLimited { rate, retry_after }),
        // Coming back would not help, so nothing tells a client to.
        (RateDecision::TooLarge, RateLimitKind::Tokens) => {
            Err(ApiError::invalid("the request needs more tokens than this API key has per minute"))
        }
        (RateDecision::TooLarge, RateLimitKind::Requests) => Err(ApiError::TenantDisabled),
    }
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody: probes, and routes whose door looks at credentials itself.
    Public,
    /// A tenant, or anybody while there are none.
    Tenant,
    /// Who holds the admin key; without one, who is on this machine.
    Admin,
    /// Either; whoever shows a tenant's key is that tenant.
    TenantOrAdmin,
}

/// Who called.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Nobody asked who.
    Public,
    /// A tenant; in open mode the one that is called `open`.
    Tenant(Arc<Tenant>),
    /// An administrator.
    Admin,
}

/// The tenants and keys of one configuration.
#[derive(Debug)]
pub struct Tenants {
    names: Interner<TenantId>,
    by_name: HashMap<String, Arc<Tenant>>,
    /// Sorted by [`KeyHash::shelf`].
    keys: Vec<(KeyHash, Arc<Tenant>)>,
    admin: Vec<KeyHash>,
    open: Arc<Tenant>,
}

impl Tenants {
    /// Makes a first table; `admin` are the hashes of the admin keys.
    pub fn new(tenants: Vec<TenantSettings>, admin: Vec<KeyHash>) -> Result<Self, TenantsError> {
        // Names come from the operator, so the hash needs no secret; old and new ones are held at once.
        let mut names = Interner::new(2 * TENANTS_MAX as u32 + 1, (0, 0));
        let id = names.intern(OPEN).map_err(|_| TenantsError::TooMany)?;
        let open = TenantSettings { name: OPEN.to_owned(), ..TenantSettings::default() };
        let none = Self {
            names,
            by_name: HashMap::new(),
            keys: Vec::new(),
            admin: Vec::new(),
            open: Arc::new(Tenant::new(id, open)),
        };
        none.next(tenants, admin).map(|(tenants, _)| tenants)
    }

    /// Makes the table that follows this one, and lists the ids of tenants that left.
    ///
    /// An id that left is not given to another tenant by the same reload; whoever keeps something under it forgets it
    /// before the next.
    pub fn next(
        &self,
        tenants: Vec<TenantSettings>,
        admin: Vec<KeyHash>,
    ) -> Result<(Self, Vec<TenantId>), TenantsError> {
        if TENANTS_MAX < tenants.len() {
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
            if KEYS_MAX < settings.key_hashes.len() {
                return Err(TenantsError::TooManyKeys { name });
            }
            let id = names.intern(&name).map_err(|_| TenantsError::TooMany)?;
            let mut tenant = Tenant::new(id, settings);
            if let Some(before) = self.by_name.get(&name) {
                tenant.used = before.used.clone();
            }
            let tenant = Arc::new(tenant);
            keys.extend(tenant.settings.key_hashes.iter().map(|hash| (*hash, tenant.clone())));
            if by_name.insert(name.clone(), tenant).is_some() {
                return Err(TenantsError::TwiceNamed { name });
            }
        }
        keys.sort_by_key(|(hash, _)| hash.lookup_prefix());
        check_distinct(&keys, &admin)?;
        let mut left = Vec::new();
        for (name, tenant) in &self.by_name {
            if !by_name.contains_key(name) && names.release(tenant.id) {
                left.push(tenant.id);
            }
        }
        left.sort_unstable();
        Ok((Self { names, by_name, keys, admin, open: self.open.clone() }, left))
    }

    /// Finds a tenant by name.
    pub fn get(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.by_name.get(name)
    }

    /// Lists the tenants by id, the one included that everybody is while there are none.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self.by_name.values().chain([&self.open]).cloned().collect();
        all.sort_unstable_by_key(|tenant| tenant.id);
        all
    }

    /// Counts the tenants.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Tells whether there are none, so that everybody is served.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn tenant(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, ApiError> {
        if self.is_empty() {
            return Ok(self.open.clone());
        }
        let hash = KeyHash::of(credential(headers)?);
        let from = self.keys.partition_point(|(known, _)| known.lookup_prefix() < hash.lookup_prefix());
        let shelf =
            self.keys[from..].iter().take_while(|(known, _)| known.lookup_prefix() == hash.lookup_prefix());
        let mut matching = shelf.filter(|(known, _)| known.matches(&hash));
        let (_, tenant) = matching.next().ok_or(ApiError::Unauthenticated)?;
        match tenant.settings.state {
            TenantState::Active => Ok(tenant.clone()),
            TenantState::Disabled => Err(ApiError::TenantDisabled),
        }
    }

    fn is_admin(&self, headers: &HeaderMap) -> Result<bool, ApiError> {
        let hash = KeyHash::of(credential(headers)?);
        Ok(self.admin.iter().fold(false, |found, known| known.matches(&hash) | found))
    }
}

/// Refuses a key that two tenants have, or that is an admin key too.
fn check_distinct(keys: &[(KeyHash, Arc<Tenant>)], admin: &[KeyHash]) -> Result<(), TenantsError> {
    let pairs = keys.windows(2).filter(|pair| pair[0].0.matches(&pair[1].0)).map(|pair| &pair[1].1);
    let both = keys.iter().filter(|(hash, _)| admin.iter().any(|known| known.matches(hash))).map(|(_, t)| t);
    match pairs.chain(both).next() {
        Some(tenant) => Err(TenantsError::KeyTwice { name: tenant.settings.name.clone() }),
        None => Ok(()),
    }
}

/// Who can reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// This machine only.
    Loopback,
    /// Others, encrypted.
    Tls,
    /// Others, in the clear.
    Clear,
}

/// Whether the operator wants others to reach what is not protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsecurePolicy {
    /// That is refused.
    Refuse,
    /// The operator said so explicitly.
    Allow,
}

/// Decides who a caller is, by the tenants of the moment.
#[derive(Debug)]
pub struct Authenticator {
    origin: std::time::Instant,
    tenants: RwLock<Arc<Tenants>>,
    exposure: Exposure,
    unprotected: InsecurePolicy,
}

impl Authenticator {
    /// Puts tenants in front of a listener, unless that leaves it unprotected.
    pub fn new(
        tenants: Tenants,
        exposure: Exposure,
        unprotected: InsecurePolicy,
    ) -> Result<Self, TenantsError> {
        check_exposure(&tenants, exposure, unprotected)?;
        let origin = std::time::Instant::now();
        let tenants = RwLock::new(Arc::new(tenants));
        Ok(Self { origin, tenants, exposure, unprotected })
    }

    /// The time by which the requests of tenants are counted, wherever they come from.
    pub fn now(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }

    /// The tenants of the moment.
    pub fn tenants(&self) -> Arc<Tenants> {
        self.tenants.read().clone()
    }

    /// Replaces the tenants, and lists the ids of those that left; on an error the old ones stay.
    pub fn reload(
        &self,
        tenants: Vec<TenantSettings>,
        admin: Vec<KeyHash>,
    ) -> Result<Vec<TenantId>, TenantsError> {
        let mut current = self.tenants.write();
        let (next, left) = current.next(tenants, admin)?;
        check_exposure(&next, self.exposure, self.unprotected)?;
        *current = Arc::new(next);
        Ok(left)
    }

    /// Finds out who calls a route with this access.
    pub fn caller(&self, access: Access, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        match access {
            Access::Public => Ok(Caller::Public),
            Access::Tenant => self.tenants().tenant(headers).map(Caller::Tenant),
            Access::Admin => self.admin(headers, peer),
            Access::TenantOrAdmin => self.tenant_or_admin(headers, peer),
        }
    }

    fn tenant_or_admin(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        // Everybody is the open tenant, also whoever could be more.
        if tenants.is_empty() {
            return self.admin(headers, peer).or_else(|_| tenants.tenant(headers).map(Caller::Tenant));
        }
        match tenants.tenant(headers) {
            Ok(tenant) => Ok(Caller::Tenant(tenant)),
            Err(ApiError::TenantDisabled) => Err(ApiError::TenantDisabled),
            // A wrong key is a mistake, also of somebody who would be served without one.
            Err(stranger) if tenants.admin.is_empty() && credential(headers).is_ok() => Err(stranger),
            Err(stranger) => self.admin(headers, peer).map_err(|_| stranger),
        }
    }

    fn admin(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        let allowed = if tenants.admin.is_empty() {
            // A listener that others reach may be behind a proxy on this machine.
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
    unprotected: InsecurePolicy,
) -> Result<(), TenantsError> {
    match (exposure, unprotected) {
        (Exposure::Loopback, _) | (_, InsecurePolicy::Allow) => Ok(()),
        (Exposure::Clear | Exposure::Tls, InsecurePolicy::Refuse) if tenants.is_empty() => {
            Err(TenantsError::Open)
        }
        (Exposure::Clear, InsecurePolicy::Refuse) => Err(TenantsError::Clear),
        (Exposure::Tls, InsecurePolicy::Refuse) => Ok(()),
    }
}

/// Tenants that cannot be put to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantsError {
    /// More than [`TENANTS_MAX`].
    TooMany,
    /// More than [`KEYS_MAX`] keys.
    TooManyKeys {
        /// Whose.
        name: String,
    },
    /// A tenant has no name.
    NoName,
    /// The name means something else.
    Reserved {
        /// The name.
        name: String,
    },
    /// Two tenants have one name.
    TwiceNamed {
        /// The name.
        name: String,
    },
    /// A key is listed twice.
    KeyTwice {
        /// A tenant that has it.
        name: String,
    },
    /// Without tenants, others would be served too.
    Open,
    /// Without TLS, keys would travel in the clear.
    Clear,
}

impl fmt::Display for TenantsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "more than {TENANTS_MAX} tenants"),
            Self::TooManyKeys { name } => write!(f, "tenant {name:?} has more than {KEYS_MAX} keys"),
            Self::NoName => f.write_str("a tenant has no name"),
            Self::Reserved { name } => write!(f, "no tenant may be named {name:?}"),
            Self::TwiceNamed { name } => write!(f, "two tenants are named {name:?}"),
            Self::KeyTwice { name } => write!(f, "a key of tenant {name:?} is listed twice"),
            Self::Open => f.write_str("no tenants, and the listener is not on loopback"),
            Self::Clear => f.write_str("no TLS, and the listener is not on loopback"),
        }
    }
}

impl core::error::Error for TenantsError {}

#[cfg(test)]
mod tests;
