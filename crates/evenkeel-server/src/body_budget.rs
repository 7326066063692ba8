//! The budget of bytes that requests hold in memory: request bodies, and responses that are read ahead.
//!
//! Guarantees: bytes count from the moment they are received until their [`BodyPermit`] is dropped. Above 80 % of the
//! budget, the slowest upload of the holder furthest above its share is evicted. The last 20 % are for holders below
//! their share; such a holder is refused only if nobody above its own share is uploading. Read-ahead never evicts: it
//! stops when the budget has no free bytes for it. All unverified callers together have the share of one tenant of
//! weight 1.
//!
//! Limits: `bodies_bytes_max` per listener; `ADDRESS_BYTES_MAX` of one unverified client address.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use evenkeel_policy::backpressure::{BudgetDecision, BytesState, FairBudget};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::RateWindow;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Gauge;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::metrics::BodyMetrics;
use crate::tenant::{Caller, Tenant};

/// Maximum number of bytes of one unverified client address.
pub(crate) const ADDRESS_BYTES_MAX: u64 = 16 << 20;
/// Window over which the progress of an upload is measured.
const PROGRESS_WINDOW: Duration = Duration::from_secs(2);

/// A party that gets a share of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// All callers whose signature is not verified yet, together: an attacker with many addresses gets one share.
    Unverified,
    Admin,
    Tenant(TenantId),
}

/// The party that bytes count against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BytesOwner {
    holder: Holder,
    weight: Weight,
    /// Set while the caller is not verified.
    address: Option<IpAddr>,
}

impl BytesOwner {
    pub(crate) fn new(caller: &Caller, peer: IpAddr) -> Self {
        match caller {
            Caller::Public => {
                let address = Some(network_of(peer));
                Self { holder: Holder::Unverified, weight: Weight::ONE, address }
            }
            Caller::Tenant(tenant) => Self::tenant(tenant),
            Caller::Admin(_) => Self { holder: Holder::Admin, weight: Weight::ONE, address: None },
        }
    }

    fn tenant(tenant: &Tenant) -> Self {
        Self { holder: Holder::Tenant(tenant.id), weight: tenant.settings.weight, address: None }
    }
}

/// Returns the address that limits apply to: one IPv6 customer usually has a whole /64.
pub(crate) fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

/// The bytes do not fit into the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetFull;

/// The budget of one listener.
pub struct BodyBudget {
    started: std::time::Instant,
    state: Mutex<BudgetState>,
    metrics: BodyMetrics,
}

struct BudgetState {
    shares: FairBudget<Holder>,
    /// Bytes of addresses that are not verified.
    addresses: HashMap<IpAddr, u64>,
    /// Bodies that are being received, oldest first.
    uploads: BTreeMap<UploadId, UploadState>,
    next_upload: u64,
    /// Sum over all listeners.
    gauge: Gauge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UploadId(u64);

struct UploadState {
    owner: BytesOwner,
    bytes: u64,
    started: Instant,
    received: RateWindow,
    /// Dropped to evict the upload.
    _evict: oneshot::Sender<()>,
}

impl UploadState {
    /// Returns the bytes per second of the last seconds; a new upload counts as fast.
    fn rate(&self, now: Instant) -> f64 {
        match self.received.per_second(now) {
            Some(rate) => rate,
            None if now.since(self.started) < PROGRESS_WINDOW => f64::MAX,
            None => 0.0,
        }
    }
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: u64, metrics: BodyMetrics) -> Arc<Self> {
        let state = BudgetState {
            shares: FairBudget::new(bytes_max),
            addresses: HashMap::new(),
            uploads: BTreeMap::new(),
            next_upload: 0,
            gauge: metrics.bytes.clone(),
        };
        Arc::new(Self { started: std::time::Instant::now(), state: Mutex::new(state), metrics })
    }

    /// Begins an upload; it is counted from its first bytes on.
    pub(crate) fn begin_upload(self: &Arc<Self>, owner: BytesOwner) -> Upload {
        Upload { permit: self.empty_permit(owner, BytesState::Receiving), id: None, evicted: None }
    }

    /// Returns a permit for bytes that a response keeps for a slow client.
    pub(crate) fn begin_read_ahead(self: &Arc<Self>, owner: BytesOwner) -> BodyPermit {
        self.empty_permit(owner, BytesState::Received)
    }

    fn empty_permit(self: &Arc<Self>, owner: BytesOwner, state: BytesState) -> BodyPermit {
        BodyPermit { budget: self.clone(), owner, bytes: 0, state }
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN + self.started.elapsed()
    }
}

impl BudgetState {
    /// Makes room for more bytes: evicts uploads, at worst `own`, in which case it fails.
    fn make_room(
        &mut self,
        owner: BytesOwner,
        bytes: u64,
        own: Option<UploadId>,
        now: Instant,
        metrics: &BodyMetrics,
    ) -> Result<(), BudgetFull> {
        loop {
            let victim = if self.exceeds_address_max(owner, bytes) {
                self.slowest(own, now, |upload| upload.owner.address == owner.address)
            } else {
                match self.shares.decide(owner.holder, owner.weight, bytes) {
                    BudgetDecision::Grant => return Ok(()),
                    BudgetDecision::Refuse => None,
                    BudgetDecision::Evict(holder) => {
                        self.slowest(own, now, |upload| upload.owner.holder == holder)
                    }
                }
            };
            // A new upload has no id yet, so it is never the victim. It is refused if no other upload can be evicted.
            let Some(victim) = victim.filter(|victim| Some(*victim) != own) else { return Err(BudgetFull) };
            metrics.evictions.count();
            self.evict(victim);
        }
    }

    /// Reports whether more bytes would put an unverified client address above its maximum.
    fn exceeds_address_max(&self, owner: BytesOwner, more: u64) -> bool {
        let Some(address) = owner.address else { return false };
        ADDRESS_BYTES_MAX < self.addresses.get(&address).copied().unwrap_or(0) + more
    }

    /// Returns the slowest upload that matches; `own` only if it is slower than all others.
    fn slowest(
        &self,
        own: Option<UploadId>,
        now: Instant,
        matches: impl Fn(&UploadState) -> bool,
    ) -> Option<UploadId> {
        let rates = self.uploads.iter().filter(|(_, upload)| matches(upload));
        let rates = rates.map(|(id, upload)| (upload.rate(now), Some(*id) == own, *id));
        let slowest = rates.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        slowest.map(|(_, _, id)| id)
    }

    fn evict(&mut self, id: UploadId) {
        if let Some(upload) = self.uploads.remove(&id) {
            self.remove(upload.owner, upload.bytes, BytesState::Receiving);
        }
    }

    fn add(&mut self, owner: BytesOwner, bytes: u64, state: BytesState) {
        self.shares.add(owner.holder, owner.weight, bytes, state);
        self.gauge.add(bytes as i64);
        if let Some(address) = owner.address {
            *self.addresses.entry(address).or_default() += bytes;
        }
    }

    fn remove(&mut self, owner: BytesOwner, bytes: u64, state: BytesState) {
        self.shares.remove(owner.holder, bytes, state);
        self.gauge.add(-(bytes as i64));
        let Some(address) = owner.address else { return };
        if let Some(left) = self.addresses.get_mut(&address) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.addresses.remove(&address);
            }
        }
    }
}

impl fmt::Debug for BodyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyBudget").finish_non_exhaustive()
    }
}

/// A body that is being received. Dropping it returns its bytes.
pub(crate) struct Upload {
    permit: BodyPermit,
    /// `None` until bytes arrived and more are expected.
    id: Option<UploadId>,
    evicted: Option<oneshot::Receiver<()>>,
}

/// Part of a body that follows the bytes just received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRest {
    None,
    Expected,
}

impl Upload {
    /// Counts received bytes. After an error, drop the upload; that returns its bytes.
    pub(crate) fn receive(&mut self, bytes: u64, rest: BodyRest) -> Result<(), BudgetFull> {
        let budget = &self.permit.budget;
        let owner = self.permit.owner;
        let now = budget.now();
        let mut guard = budget.state.lock();
        let state = &mut *guard;
        if self.id.is_some_and(|id| !state.uploads.contains_key(&id)) {
            self.permit.bytes = 0;
            return Err(BudgetFull);
        }
        if state.make_room(owner, bytes, self.id, now, &budget.metrics).is_err() {
            budget.metrics.rejections.count();
            return Err(BudgetFull);
        }
        if self.id.is_none() && rest == BodyRest::None {
            self.permit.state = BytesState::Received;
        }
        state.add(owner, bytes, self.permit.state);
        self.permit.bytes += bytes;
        if self.id.is_none() && rest == BodyRest::Expected {
            let id = UploadId(state.next_upload);
            state.next_upload += 1;
            let (evict, evicted) = oneshot::channel();
            let received = RateWindow::new(PROGRESS_WINDOW).unwrap_or_default();
            let upload = UploadState { owner, bytes: 0, started: now, received, _evict: evict };
            state.uploads.insert(id, upload);
            self.id = Some(id);
            self.evicted = Some(evicted);
        }
        if let Some(upload) = self.id.and_then(|id| state.uploads.get_mut(&id)) {
            upload.bytes += bytes;
            upload.received.record(now, Cost(bytes));
        }
        Ok(())
    }

    /// Waits until the upload is evicted.
    pub(crate) async fn evicted(&mut self) {
        match &mut self.evicted {
            Some(evicted) => drop(evicted.await),
            None => core::future::pending().await,
        }
    }

    /// Turns the complete upload into the permit of its bytes.
    pub(crate) fn finish(mut self) -> Result<BodyPermit, BudgetFull> {
        let empty = self.permit.empty_copy();
        let mut permit = core::mem::replace(&mut self.permit, empty);
        if permit.state == BytesState::Received || permit.bytes == 0 {
            return Ok(permit);
        }
        let budget = permit.budget.clone();
        let mut state = budget.state.lock();
        if let Some(id) = self.id.take()
            && state.uploads.remove(&id).is_none()
        {
            permit.bytes = 0;
            return Err(BudgetFull);
        }
        state.remove(permit.owner, permit.bytes, BytesState::Receiving);
        state.add(permit.owner, permit.bytes, BytesState::Received);
        permit.state = BytesState::Received;
        Ok(permit)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        if self.permit.budget.state.lock().uploads.remove(&id).is_none() {
            // Its bytes were returned when it was evicted.
            self.permit.bytes = 0;
        }
    }
}

/// Bytes in the budget; dropping it returns them.
pub struct BodyPermit {
    budget: Arc<BodyBudget>,
    owner: BytesOwner,
    bytes: u64,
    state: BytesState,
}

impl BodyPermit {
    /// Counts the bytes against a tenant from now on, because the caller has proved to be that tenant.
    pub(crate) fn transfer(&mut self, tenant: &Tenant) -> Result<(), BudgetFull> {
        let owner = BytesOwner::tenant(tenant);
        let now = self.budget.now();
        let mut state = self.budget.state.lock();
        state.remove(self.owner, self.bytes, self.state);
        let room = state.make_room(owner, self.bytes, None, now, &self.budget.metrics);
        if room.is_err() {
            self.bytes = 0;
            self.budget.metrics.rejections.count();
            return room;
        }
        self.owner = owner;
        state.add(owner, self.bytes, self.state);
        Ok(())
    }

    /// Changes the number of bytes; fails if more do not fit, without evicting anybody.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), BudgetFull> {
        let mut state = self.budget.state.lock();
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let decision = state.shares.decide(self.owner.holder, self.owner.weight, more);
            if decision != BudgetDecision::Grant || state.exceeds_address_max(self.owner, more) {
                return Err(BudgetFull);
            }
            state.add(self.owner, more, self.state);
        } else {
            state.remove(self.owner, self.bytes - bytes, self.state);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn empty_copy(&self) -> Self {
        Self { budget: self.budget.clone(), owner: self.owner, bytes: 0, state: self.state }
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut state = self.budget.state.lock();
            state.remove(self.owner, self.bytes, self.state);
        }
    }
}

impl fmt::Debug for BodyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyPermit").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::api_key::KeyHash;
    use crate::tenant::{TenantSettings, Tenants};
    use crate::tenant_key::TenantKey;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn tenant(name: &str) -> Arc<Tenant> {
        let settings = |name: &str| TenantSettings {
            name: name.to_owned(),
            keys: vec![TenantKey::unnamed(KeyHash::of(name))],
            ..TenantSettings::default()
        };
        let tenants = Tenants::new(vec![settings("flood"), settings("quiet")], vec![]).unwrap();
        tenants.get(name).unwrap().clone()
    }

    fn budget(bytes_max: u64) -> Arc<BodyBudget> {
        BodyBudget::new(bytes_max, BodyMetrics::default())
    }

    fn owner(name: &str) -> BytesOwner {
        BytesOwner::new(&Caller::Tenant(tenant(name)), PEER)
    }

    fn upload(budget: &Arc<BodyBudget>, owner: BytesOwner, bytes: u64) -> Result<Upload, BudgetFull> {
        let mut upload = budget.begin_upload(owner);
        upload.receive(bytes, BodyRest::Expected).map(|()| upload)
    }

    fn is_evicted(upload: &mut Upload) -> bool {
        upload.evicted.as_mut().is_some_and(|evicted| {
            evicted.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
        })
    }

    #[test]
    fn the_bytes_of_a_dropped_upload_and_of_a_dropped_permit_are_returned() {
        let budget = budget(100);
        let dropped = upload(&budget, owner("flood"), 10).unwrap();
        let mut finished = upload(&budget, owner("flood"), 20).unwrap();
        finished.receive(5, BodyRest::None).unwrap();
        let permit = finished.finish().unwrap();
        let mut whole = budget.begin_upload(owner("quiet"));
        whole.receive(7, BodyRest::None).unwrap();
        let whole = whole.finish().unwrap();
        assert_eq!(budget.metrics.bytes.get(), 42);
        drop(dropped);
        drop(permit);
        assert_eq!(budget.metrics.bytes.get(), 7);
        drop(whole);
        let state = budget.state.lock();
        assert_eq!((budget.metrics.bytes.get(), state.shares.used(), state.uploads.len()), (0, 0, 0));
    }

    #[test]
    fn an_upload_of_the_tenant_above_its_share_is_evicted_once() {
        let budget = budget(100);
        let mut stalled: Vec<Upload> = (0..4).map(|_| upload(&budget, owner("flood"), 20).unwrap()).collect();
        let quiet = upload(&budget, owner("quiet"), 15).unwrap();
        assert_eq!(stalled.iter_mut().map(is_evicted).filter(|evicted| *evicted).count(), 1);
        let evicted = stalled.iter_mut().position(is_evicted).unwrap();
        let mut evicted = stalled.remove(evicted);
        assert_eq!(evicted.receive(1, BodyRest::Expected), Err(BudgetFull));
        drop(evicted);
        assert_eq!(budget.metrics.bytes.get(), 75);
        drop(stalled);
        drop(quiet);
        assert_eq!((budget.metrics.bytes.get(), budget.metrics.evictions.get()), (0, 1));
    }

    #[test]
    fn an_address_holds_16_mib_until_its_signature_is_verified() {
        let budget = budget(1 << 30);
        let unverified = BytesOwner::new(&Caller::Public, PEER);
        let mut body = budget.begin_upload(unverified);
        body.receive(ADDRESS_BYTES_MAX, BodyRest::None).unwrap();
        let mut permit = body.finish().unwrap();
        assert!(upload(&budget, unverified, 1).is_err());
        let elsewhere = BytesOwner::new(&Caller::Public, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        assert!(upload(&budget, elsewhere, 1).is_ok());
        permit.transfer(&tenant("quiet")).unwrap();
        assert!(upload(&budget, unverified, 1).is_ok());
        drop(permit);
        assert!(budget.state.lock().addresses.is_empty());
        assert_eq!(budget.metrics.bytes.get(), 0);
    }

    #[test]
    fn read_ahead_counts_towards_the_maximum_of_an_unverified_address() {
        let budget = budget(1 << 30);
        let unverified = BytesOwner::new(&Caller::Public, PEER);
        let mut one = budget.begin_read_ahead(unverified);
        one.resize(ADDRESS_BYTES_MAX).unwrap();
        let mut other = budget.begin_read_ahead(unverified);
        assert_eq!(other.resize(1), Err(BudgetFull));
        one.resize(ADDRESS_BYTES_MAX - 1).unwrap();
        assert_eq!(other.resize(1), Ok(()));
        assert_eq!(budget.begin_read_ahead(owner("quiet")).resize(ADDRESS_BYTES_MAX + 1), Ok(()));
    }

    #[test]
    fn the_addresses_of_one_ipv6_customer_count_together() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }
}
