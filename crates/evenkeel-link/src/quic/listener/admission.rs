//! Limits on connections that have not introduced themselves.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections that may be between their first packet and the answer to their hello.
pub(in crate::quic) const PENDING_MAX: usize = 64;
/// Of these, connections of one source.
const PENDING_MAX_PER_SOURCE: usize = 8;
/// Pending connections from which on a source must show that it receives what is sent to it.
const PENDING_UNVALIDATED_MAX: usize = 16;
/// The same for one source: others may forge its address.
const PENDING_UNVALIDATED_MAX_PER_SOURCE: usize = 4;

/// Network of a peer; an IPv6 host usually has a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceNetwork(IpAddr);

impl SourceNetwork {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// Decision about a connection attempt.
#[derive(Debug)]
pub(super) enum Admission {
    /// Continue; the guard counts until it is dropped.
    Accept(PendingGuard),
    /// Ask the source to prove its address; keeps no state.
    Retry,
    /// Refuse; keeps no state.
    Refuse,
}

/// Counts of pending connections, shared by all endpoints of a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingConnections(Arc<Mutex<Counts>>);

/// At most [`PENDING_MAX`] sources; a source without connections is removed.
#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_source: HashMap<SourceNetwork, usize>,
}

impl PendingConnections {
    pub(super) fn admit(&self, source: SourceNetwork, is_validated: bool) -> Admission {
        let mut counts = self.0.lock();
        let of_source = counts.by_source.get(&source).copied().unwrap_or_default();
        let is_busy =
            PENDING_UNVALIDATED_MAX <= counts.total || PENDING_UNVALIDATED_MAX_PER_SOURCE <= of_source;
        if is_busy && !is_validated {
            return Admission::Retry;
        }
        if PENDING_MAX <= counts.total || PENDING_MAX_PER_SOURCE <= of_source {
            return Admission::Refuse;
        }
        counts.total += 1;
        counts.by_source.insert(source, of_source + 1);
        Admission::Accept(PendingGuard { counts: self.0.clone(), source })
    }
}

/// One pending connection.
#[derive(Debug)]
pub(super) struct PendingGuard {
    counts: Arc<Mutex<Counts>>,
    source: SourceNetwork,
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total -= 1;
        if let Some(of_source) = counts.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_must_prove_its_address_from_the_fifth_connection_on() {
        let pending = PendingConnections::default();
        let guards: Vec<_> = (0..4).map(|_| accepted(&pending, host(1), false)).collect();
        assert!(matches!(pending.admit(host(1), false), Admission::Retry));
        assert!(matches!(pending.admit(host(2), false), Admission::Accept(_)));
        let validated: Vec<_> = (0..4).map(|_| accepted(&pending, host(1), true)).collect();
        assert!(matches!(pending.admit(host(1), true), Admission::Refuse));
        drop(guards);
        assert!(matches!(pending.admit(host(1), true), Admission::Accept(_)));
        drop(validated);
        assert_eq!(pending.0.lock().total, 0);
        assert!(pending.0.lock().by_source.is_empty());
    }

    #[test]
    fn many_sources_together_are_limited() {
        let pending = PendingConnections::default();
        let unvalidated: Vec<_> = (0..16).map(|n| accepted(&pending, host(n), false)).collect();
        assert!(matches!(pending.admit(host(100), false), Admission::Retry));
        let validated: Vec<_> = (16..64).map(|n| accepted(&pending, host(n), true)).collect();
        assert!(matches!(pending.admit(host(100), true), Admission::Refuse));
        assert!(matches!(pending.admit(host(100), false), Admission::Retry));
        drop((unvalidated, validated));
        assert!(matches!(pending.admit(host(100), false), Admission::Accept(_)));
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| SourceNetwork::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("192.0.2.2"));
    }

    fn host(number: u8) -> SourceNetwork {
        SourceNetwork::of(IpAddr::from([192, 0, 2, number]))
    }

    fn accepted(pending: &PendingConnections, source: SourceNetwork, is_validated: bool) -> PendingGuard {
        match pending.admit(source, is_validated) {
            Admission::Accept(guard) => guard,
            other => panic!("{other:?}"),
        }
    }
}
