//! Authenticates the callers of a listener against the current tenant table.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::{Duration, Instant};
use http::{HeaderMap, Uri};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Access, Caller, OPEN, Tenant, TenantSettings, Tenants, TenantsError};
use crate::api_error::ApiError;
use crate::api_key::{KeyHash, check_length, credential, has_credential};
use crate::audit_trail::{AuditGuard, AuditSink};
use crate::origin::{TrustedSites, is_api, is_local};
use crate::unix_seconds::UnixSeconds;

/// Longest and shortest wait until a caller is checked again without a reload.
const RECHECK_MAX: Duration = Duration::from_secs(60);
const RECHECK_MIN: Duration = Duration::from_millis(100);

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
pub struct Authenticator {
    origin: std::time::Instant,
    tenants: RwLock<Arc<Tenants>>,
    exposure: Exposure,
    insecure: InsecurePolicy,
    sites: TrustedSites,
    /// Notified after each reload.
    reloaded: watch::Sender<()>,
    audit: OnceLock<AuditSink>,
}

impl Authenticator {
    /// Creates the authenticator of a listener; fails if that would be insecure and `insecure` refuses it.
    pub fn new(tenants: Tenants, exposure: Exposure, insecure: InsecurePolicy) -> Result<Self, TenantsError> {
        check_exposure(tenants.len(), exposure, insecure)?;
        let origin = std::time::Instant::now();
        let tenants = RwLock::new(Arc::new(tenants));
        let sites = TrustedSites::default();
        let reloaded = watch::Sender::new(());
        Ok(Self { origin, tenants, exposure, insecure, sites, reloaded, audit: OnceLock::new() })
    }

    /// Sets the names of this server and the sites whose pages may use it.
    pub fn with_sites(self, sites: TrustedSites) -> Self {
        Self { sites, ..self }
    }

    pub(crate) fn sites(&self) -> &TrustedSites {
        &self.sites
    }

    /// Sets the sink of audit records; only the first call has an effect.
    pub fn set_audit_sink(&self, sink: AuditSink) {
        self.audit.get_or_init(|| sink);
    }

    /// Begins an audit record; `None` without a sink.
    pub fn audit(&self, address: IpAddr, request_id: String, action: String) -> Option<AuditGuard> {
        let sink = self.audit.get()?.clone();
        Some(AuditGuard::new(sink, address, request_id, action))
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
            Caller::Tenant(tenant) => self.tenants().is_current(tenant, UnixSeconds::now()),
            Caller::Admin(key) => self.tenants().is_admin(&key.hash),
            Caller::Public => true,
        }
    }

    /// Waits until a reload, or the expiry of its key, makes a caller invalid.
    pub async fn until_invalid(&self, caller: &Caller) {
        let mut reloaded = self.reloaded.subscribe();
        while self.is_current(caller) {
            tokio::select! {
                // The sender lives as long as `self`, so that this is no error.
                _ = reloaded.changed() => {}
                () = sleep(self.recheck_after(caller)) => {}
            }
        }
    }

    /// Returns the time after which a caller may have become invalid without a reload.
    fn recheck_after(&self, caller: &Caller) -> Duration {
        let Caller::Tenant(tenant) = caller else { return RECHECK_MAX };
        let Some(at) = self.tenants().expires_at(tenant) else { return RECHECK_MAX };
        // The system clock may be set meanwhile, so a long wait is divided.
        Duration::from_secs(at.0.saturating_sub(UnixSeconds::now().0)).clamp(RECHECK_MIN, RECHECK_MAX)
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
            Access::Tenant => Caller::Tenant(self.tenant(headers)?),
            Access::Admin => return self.admin(headers),
            Access::TenantOrAdmin => self.tenant_or_admin(headers)?,
        };
        if !matches!(caller, Caller::Admin(_)) {
            self.check_local(headers, peer)?;
        }
        Ok(caller)
    }

    /// Authenticates a tenant by the API key in one of the usual headers.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, ApiError> {
        self.tenants().tenant(headers, UnixSeconds::now())
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
        tenants.tenant_with_key(check_length(key)?, UnixSeconds::now())
    }

    fn tenant_or_admin(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let tenants = self.tenants();
        if tenants.is_empty() && !has_credential(headers) {
            return Ok(Caller::Tenant(tenants.open.clone()));
        }
        let key = credential(headers)?;
        match (tenants.tenant_with_key(key, UnixSeconds::now()), tenants.admin_key(key)) {
            (Err(ApiError::Unauthenticated), Some(admin)) => Ok(Caller::Admin(admin)),
            (result, _) => result.map(Caller::Tenant),
        }
    }

    fn admin(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let key = self.tenants().admin_key(credential(headers)?);
        key.map(Caller::Admin).ok_or(ApiError::AdminOnly)
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").field("tenants", &self.tenants()).finish_non_exhaustive()
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
