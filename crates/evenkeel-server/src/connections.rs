//! The open connections of a listener, and which of them is closed to make room for another.
//!
//! Guarantees: the oldest idle connection of the holder with the most connections is closed for a new one. While all
//! connections have requests in flight, a few more are accepted for probes and administrators only; a connection that
//! becomes idle can be evicted after at most 10 ms (`SEARCH_PAUSE`). An address at its own maximum is treated alike, at
//! the expense of its own connections only.
//!
//! Limits: at most `connections_max` connections, not counting evicted ones that still send their last response, plus
//! [`RESERVED`] for probes and administrators. If there is a maximum per address, an address has at most that many plus
//! [`RESERVED`].

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use evenkeel_policy::id::TenantId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::body_budget::network_of;
use crate::metrics::ConnectionMetrics;

/// Connections beyond the maximum, for probes and administrators.
pub const RESERVED: usize = 16;
/// Pause after a search for an idle connection that found none, because a search may visit all of them.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);
/// Minimum interval between log lines about addresses at their maximum.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Value of [`OpenConnection::tenant`] before the first authenticated request.
const NO_TENANT: u32 = u32::MAX;

/// Tenant or address that a connection is counted for. Of an IPv6 address, only the /64 network counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionHolder {
    Address(IpAddr),
    Tenant(TenantId),
}

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) connections_max: usize,
    /// Of one address; `None` means no limit.
    pub(crate) per_address_max: Option<usize>,
}

/// All open connections of a listener.
pub(crate) struct Connections {
    limits: ConnectionLimits,
    table: Mutex<ConnectionTable>,
    metrics: ConnectionMetrics,
}

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    open: usize,
    /// The connections of each holder, oldest first.
    holders: BTreeMap<ConnectionHolder, BTreeMap<ConnectionId, Arc<OpenConnection>>>,
    /// Holders by their number of connections.
    by_count: BTreeSet<(usize, ConnectionHolder)>,
    /// Time of the last search that found no idle connection.
    searched_at: Option<Instant>,
    /// The connections of each address; empty if addresses have no maximum.
    addresses: BTreeMap<IpAddr, AddressConnections>,
    /// Time of the last log line about an address at its maximum.
    logged_at: Option<Instant>,
}

/// The connections of an address, whatever their tenants.
#[derive(Default)]
struct AddressConnections {
    /// Oldest first.
    open: BTreeMap<ConnectionId, Arc<OpenConnection>>,
    /// Time of the last search that found no idle connection.
    searched_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionId(u64);

/// Requests that a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    Regular,
    /// Accepted beyond the maximum: only probes and administrators are served.
    Reserved,
}

/// One open connection.
pub(crate) struct OpenConnection {
    id: ConnectionId,
    address: IpAddr,
    pub(crate) class: ConnectionClass,
    /// Id of the tenant of the last request, or [`NO_TENANT`].
    tenant: AtomicU32,
    in_flight: AtomicU32,
    has_received_request: AtomicBool,
    evicted: Notify,
    connections: Arc<Connections>,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default(), metrics })
    }

    /// Registers a connection that was accepted; evicts another if there is no room. `None` if it must be closed.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<ConnectionGuard> {
        let address = network_of(address);
        let mut table = self.table.lock();
        let Some(class) = self.make_room(&mut table, address, now) else {
            self.metrics.refused.count();
            return None;
        };
        let id = ConnectionId(table.next);
        table.next += 1;
        let connection = Arc::new(OpenConnection {
            id,
            address,
            class,
            tenant: AtomicU32::new(NO_TENANT),
            in_flight: AtomicU32::new(0),
            has_received_request: AtomicBool::new(false),
            evicted: Notify::new(),
            connections: self.clone(),
        });
        table.insert(ConnectionHolder::Address(address), connection.clone());
        if self.limits.per_address_max.is_some() {
            table.addresses.entry(address).or_default().open.insert(id, connection.clone());
        }
        self.metrics.open.add(1);
        Some(ConnectionGuard(connection))
    }

    /// Makes room for a connection of an address and returns its class; `None` if there is no room.
    fn make_room(
        &self,
        table: &mut ConnectionTable,
        address: IpAddr,
        now: Instant,
    ) -> Option<ConnectionClass> {
        let mut class = ConnectionClass::Regular;
        if let Some(max) = self.limits.per_address_max
            && max <= table.count_of(address)
        {
            self.report_address_limit(table, address, now);
            if !self.evict_of_address(table, address, now) {
                class = ConnectionClass::Reserved;
            }
            if max + RESERVED <= table.count_of(address) {
                return None;
            }
        }
        if self.limits.connections_max <= table.open && !self.evict_from(table, now) {
            class = ConnectionClass::Reserved;
        }
        (table.open < self.limits.connections_max + RESERVED).then_some(class)
    }

    /// Counts a connection of an address that is at its maximum, and logs it now and then.
    fn report_address_limit(&self, table: &mut ConnectionTable, address: IpAddr, now: Instant) {
        self.metrics.address_limited.count();
        if table.logged_at.is_none_or(|at| LOG_INTERVAL <= now.duration_since(at)) {
            table.logged_at = Some(now);
            tracing::warn!(target: "evenkeel", %address, "the address has connections_per_address_max connections; its idle ones are closed for new ones, and further ones are refused");
        }
    }

    /// Evicts an idle connection; returns `false` if none was found, now or within the last [`SEARCH_PAUSE`].
    pub(crate) fn evict(&self, now: Instant) -> bool {
        self.evict_from(&mut self.table.lock(), now)
    }

    pub(crate) fn count_accept_error(&self) {
        self.metrics.accept_errors.count();
    }

    fn evict_from(&self, table: &mut ConnectionTable, now: Instant) -> bool {
        if is_recent(table.searched_at, now) {
            return false;
        }
        let Some(connection) = table.oldest_idle() else {
            table.searched_at = Some(now);
            return false;
        };
        self.close(table, &connection);
        true
    }

    /// Evicts the oldest idle connection of an address; returns `false` if none was found, now or within the last
    /// [`SEARCH_PAUSE`].
    fn evict_of_address(&self, table: &mut ConnectionTable, address: IpAddr, now: Instant) -> bool {
        let Some(connections) = table.addresses.get_mut(&address) else { return false };
        if is_recent(connections.searched_at, now) {
            return false;
        }
        let Some(idle) = connections.open.values().find(|connection| connection.is_idle()).cloned() else {
            connections.searched_at = Some(now);
            return false;
        };
        self.close(table, &idle);
        true
    }

    fn close(&self, table: &mut ConnectionTable, connection: &OpenConnection) {
        table.forget(connection);
        self.metrics.evicted.count();
        self.metrics.open.add(-1);
        connection.evicted.notify_one();
    }
}

/// Reports whether a search ended within the last [`SEARCH_PAUSE`].
fn is_recent(searched_at: Option<Instant>, now: Instant) -> bool {
    searched_at.is_some_and(|at| now.duration_since(at) < SEARCH_PAUSE)
}

impl ConnectionTable {
    /// Returns the oldest idle connection of the holder with the most connections that has one.
    fn oldest_idle(&self) -> Option<Arc<OpenConnection>> {
        self.by_count.iter().rev().find_map(|(_, holder)| {
            self.holders.get(holder)?.values().find(|connection| connection.is_idle()).cloned()
        })
    }

    /// Returns the number of connections of an address, if addresses have a maximum.
    fn count_of(&self, address: IpAddr) -> usize {
        self.addresses.get(&address).map_or(0, |connections| connections.open.len())
    }

    /// Removes a closed connection; returns `false` if it was evicted before.
    fn forget(&mut self, connection: &OpenConnection) -> bool {
        if let Some(of_address) = self.addresses.get_mut(&connection.address) {
            of_address.open.remove(&connection.id);
            of_address.searched_at = None;
            if of_address.open.is_empty() {
                self.addresses.remove(&connection.address);
            }
        }
        self.remove(connection.holder(), connection.id).is_some()
    }

    fn insert(&mut self, holder: ConnectionHolder, connection: Arc<OpenConnection>) {
        let connections = self.holders.entry(holder).or_default();
        self.by_count.remove(&(connections.len(), holder));
        connections.insert(connection.id, connection);
        self.by_count.insert((connections.len(), holder));
        self.open += 1;
    }

    /// Removes a connection from its holder; returns it unless it was evicted before.
    fn remove(&mut self, holder: ConnectionHolder, id: ConnectionId) -> Option<Arc<OpenConnection>> {
        let connections = self.holders.get_mut(&holder)?;
        let count = connections.len();
        let removed = connections.remove(&id)?;
        self.by_count.remove(&(count, holder));
        if count == 1 {
            self.holders.remove(&holder);
        } else {
            self.by_count.insert((count - 1, holder));
        }
        self.open -= 1;
        Some(removed)
    }
}

impl OpenConnection {
    pub(crate) fn begin_request(&self) {
        self.has_received_request.store(true, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_request(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    /// Reports whether a request has arrived on the connection.
    pub(crate) fn has_received_request(&self) -> bool {
        self.has_received_request.load(Ordering::Relaxed)
    }

    /// Counts the connection against a tenant from now on.
    pub(crate) fn set_tenant(&self, tenant: TenantId) {
        // Most connections keep their tenant; then no lock is needed.
        if self.tenant.load(Ordering::Relaxed) == tenant.0 {
            return;
        }
        let mut table = self.connections.table.lock();
        let holder = self.holder();
        self.tenant.store(tenant.0, Ordering::Relaxed);
        if let Some(connection) = table.remove(holder, self.id) {
            table.insert(ConnectionHolder::Tenant(tenant), connection);
        }
    }

    fn holder(&self) -> ConnectionHolder {
        match self.tenant.load(Ordering::Relaxed) {
            NO_TENANT => ConnectionHolder::Address(self.address),
            tenant => ConnectionHolder::Tenant(TenantId(tenant)),
        }
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    pub(crate) fn count_refused(&self) {
        self.connections.metrics.refused.count();
    }
}

/// Keeps a connection in the table.
pub(crate) struct ConnectionGuard(pub(crate) Arc<OpenConnection>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let mut table = connections.table.lock();
        if table.forget(&self.0) {
            // The closed connection made room, so the next `admit` need not wait for `SEARCH_PAUSE`.
            table.searched_at = None;
            connections.metrics.open.add(-1);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    /// Opens connections from addresses with these last bytes.
    fn open(connections: &Arc<Connections>, peers: &[u8]) -> Vec<ConnectionGuard> {
        let now = Instant::now();
        peers.iter().map(|peer| connections.admit(address(*peer), now).unwrap()).collect()
    }

    fn address(peer: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, peer))
    }

    fn connections(connections_max: usize) -> Arc<Connections> {
        let limits = ConnectionLimits { connections_max, per_address_max: None };
        Connections::new(limits, ConnectionMetrics::default())
    }

    fn with_address_limit(max: usize) -> Arc<Connections> {
        let limits = ConnectionLimits { connections_max: 1_000, per_address_max: Some(max) };
        Connections::new(limits, ConnectionMetrics::default())
    }

    /// Returns the indices of the connections that are not in the table.
    fn evicted(open: &[ConnectionGuard]) -> Vec<usize> {
        let is_open = |guard: &ConnectionGuard| {
            let table = guard.0.connections.table.lock();
            table.holders.get(&guard.0.holder()).is_some_and(|held| held.contains_key(&guard.0.id))
        };
        (0..open.len()).filter(|index| !is_open(&open[*index])).collect()
    }

    #[test]
    fn the_oldest_idle_connection_of_the_holder_with_the_most_is_evicted() {
        let connections = connections(4);
        let mut held = open(&connections, &[1, 2, 2, 2]);
        held[1].0.begin_request();
        held.extend(open(&connections, &[3]));
        assert_eq!(evicted(&held), [2], "the older one has a request in flight");
        held.extend(open(&connections, &[3]));
        assert_eq!(evicted(&held), [2, 3]);
    }

    #[test]
    fn the_tenant_of_the_last_request_holds_a_connection() {
        let connections = connections(4);
        let mut held = open(&connections, &[1, 1, 1, 2]);
        for guard in &held[2..] {
            guard.0.set_tenant(TenantId(7));
        }
        held[0].0.set_tenant(TenantId(8));
        held.extend(open(&connections, &[1]));
        assert_eq!(evicted(&held), [2], "tenant 7 holds two, address 1 and tenant 8 one each");
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_hold_connections_together() {
        let connections = connections(4);
        let from = |address: &str| connections.admit(address.parse().unwrap(), Instant::now()).unwrap();
        let mut held = vec![from("192.0.2.1"), from("192.0.2.1"), from("2001:db8::1"), from("2001:db8::2")];
        held.push(from("2001:db8::3"));
        held.push(from("2001:db8::4"));
        assert_eq!(evicted(&held), [2, 3], "the network holds the most after the first eviction too");
    }

    #[test]
    fn beyond_the_maximum_of_busy_connections_a_few_are_reserved_and_the_rest_refused() {
        let connections = connections(2);
        let held = open(&connections, &[1, 1]);
        held.iter().for_each(|guard| guard.0.begin_request());
        let reserved = open(&connections, &[9; RESERVED]);
        assert!(reserved.iter().all(|guard| guard.0.class == ConnectionClass::Reserved));
        reserved.iter().for_each(|guard| guard.0.begin_request());
        let now = Instant::now();
        assert!(connections.admit(address(3), now).is_none());
        assert_eq!(connections.metrics.refused.get(), 1);
        held[0].0.end_request();
        let later = now + SEARCH_PAUSE;
        assert!(connections.admit(address(3), later).is_some(), "an idle connection makes room");
        assert_eq!(evicted(&held), [0]);
    }

    #[test]
    fn an_address_at_its_maximum_loses_its_oldest_idle_connection_whatever_its_tenant() {
        let connections = with_address_limit(2);
        let mut held = open(&connections, &[1, 2, 1]);
        held[0].0.set_tenant(TenantId(7));
        held.extend(open(&connections, &[1]));
        assert_eq!(evicted(&held), [0]);
        held[2].0.begin_request();
        held.extend(open(&connections, &[1]));
        assert_eq!(evicted(&held), [0, 3], "the older one has a request in flight");
        assert_eq!(connections.metrics.address_limited.get(), 2);
    }

    #[test]
    fn an_address_with_only_busy_connections_gets_reserved_ones_and_then_none() {
        let connections = with_address_limit(2);
        let held = open(&connections, &[1, 1]);
        held.iter().for_each(|guard| guard.0.begin_request());
        let reserved = open(&connections, &[1; RESERVED]);
        assert!(reserved.iter().all(|guard| guard.0.class == ConnectionClass::Reserved));
        reserved.iter().for_each(|guard| guard.0.begin_request());
        let now = Instant::now();
        assert!(connections.admit(address(1), now).is_none());
        assert_eq!(open(&connections, &[2])[0].0.class, ConnectionClass::Regular, "another address is free");
        held[0].0.end_request();
        assert_eq!(
            connections.admit(address(1), now + SEARCH_PAUSE).unwrap().0.class,
            ConnectionClass::Regular
        );
        assert_eq!(evicted(&held), [0]);
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_share_the_maximum_of_an_address() {
        let connections = with_address_limit(1);
        let from = |address: &str| connections.admit(address.parse().unwrap(), Instant::now()).unwrap();
        let held =
            [from("2001:db8::1"), from("2001:db8:0:1::1"), from("2001:db8::2"), from("::ffff:192.0.2.1")];
        assert_eq!(evicted(&held), [0]);
        let mut held = Vec::from(held);
        held.push(from("192.0.2.1"));
        assert_eq!(evicted(&held), [0, 3], "a mapped IPv4 address is the IPv4 address");
    }

    #[test]
    fn closed_connections_leave_nothing_behind() {
        let limited = with_address_limit(2);
        drop(open(&limited, &[1, 1, 1, 2]));
        assert!(limited.table.lock().addresses.is_empty());
        let connections = connections(2);
        let held = open(&connections, &[1, 2, 3, 4]);
        held[3].0.set_tenant(TenantId(1));
        assert_eq!(connections.table.lock().open, 2);
        drop(held);
        let table = connections.table.lock();
        assert_eq!((table.open, table.holders.len(), table.by_count.len()), (0, 0, 0));
        assert_eq!(connections.metrics.evicted.get(), 2);
    }
}
