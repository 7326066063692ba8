//! Associations of a relay: which client's packets go to which next hop, without I/O.

use std::collections::HashMap;
use std::net::SocketAddr;

use evenkeel_policy::time::{Duration, Instant};

use super::gate::RefusalReason;

/// Limits of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Maximum number of associations, each with a socket and about 4 KiB beside the socket's buffers.
    pub associations_max: usize,
    /// Maximum number of associations of one key.
    pub associations_per_peer_max: usize,
    /// Time without a packet of the client after which an association ends.
    pub idle_timeout: Duration,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self { associations_max: 512, associations_per_peer_max: 256, idle_timeout: Duration::from_secs(60) }
    }
}

/// Associations by the client's address; `S` is the socket to the next hop.
pub(super) struct Associations<S> {
    limits: RelayLimits,
    entries: HashMap<SocketAddr, Association<S>>,
    /// Number of associations of each allowed key.
    per_peer: Vec<usize>,
}

/// Forwarding for one client address.
pub(super) struct Association<S> {
    pub(super) peer: usize,
    pub(super) next: SocketAddr,
    pub(super) socket: S,
    /// Token and acceptance of the set-up: a repeated token gets the same answer.
    pub(super) token: Vec<u8>,
    pub(super) acceptance: Vec<u8>,
    /// Time of the client's last packet.
    pub(super) used_at: Instant,
}

impl<S> Associations<S> {
    pub(super) fn new(limits: RelayLimits, peers: usize) -> Self {
        Self { limits, entries: HashMap::new(), per_peer: vec![0; peers] }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of associations of each allowed key.
    pub(super) fn per_peer(&self) -> &[usize] {
        &self.per_peer
    }

    /// Returns the association of a client, and records that it is in use.
    pub(super) fn touch(&mut self, now: Instant, client: SocketAddr) -> Option<&Association<S>> {
        let association = self.entries.get_mut(&client)?;
        association.used_at = now;
        Some(association)
    }

    /// Returns the acceptance of a token that has been accepted from this client already.
    pub(super) fn acceptance(&self, client: SocketAddr, token: &[u8]) -> Option<&[u8]> {
        let association = self.entries.get(&client).filter(|association| association.token == token)?;
        Some(&association.acceptance)
    }

    /// Checks the limits for an association of `client`, which would replace its current one.
    pub(super) fn check_room(&self, client: SocketAddr, peer: usize) -> Result<(), RefusalReason> {
        let replaced = self.entries.get(&client);
        let total = self.entries.len() - usize::from(replaced.is_some());
        let of_peer = self.per_peer[peer] - usize::from(replaced.is_some_and(|old| old.peer == peer));
        if self.limits.associations_max <= total {
            return Err(RefusalReason::Busy);
        }
        if self.limits.associations_per_peer_max <= of_peer {
            return Err(RefusalReason::PeerFull);
        }
        Ok(())
    }

    /// Adds an association for which [`Self::check_room`] found room; returns the one that it replaces.
    pub(super) fn insert(
        &mut self,
        client: SocketAddr,
        association: Association<S>,
    ) -> Option<Association<S>> {
        self.per_peer[association.peer] += 1;
        let replaced = self.entries.insert(client, association)?;
        self.per_peer[replaced.peer] -= 1;
        Some(replaced)
    }

    /// Removes the associations that were not used for `idle_timeout`; returns their number.
    pub(super) fn remove_idle(&mut self, now: Instant) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, association| {
            let is_idle = self.limits.idle_timeout <= now.since(association.used_at);
            self.per_peer[association.peer] -= usize::from(is_idle);
            !is_idle
        });
        before - self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn associations_are_limited_in_all_and_per_key() {
        let limits =
            RelayLimits { associations_max: 3, associations_per_peer_max: 2, ..RelayLimits::default() };
        let mut table = Associations::new(limits, 3);
        add(&mut table, 1, 0).unwrap();
        add(&mut table, 2, 0).unwrap();
        assert_eq!(add(&mut table, 3, 0), Err(RefusalReason::PeerFull));
        add(&mut table, 3, 1).unwrap();
        assert_eq!(add(&mut table, 4, 2), Err(RefusalReason::Busy));
        assert_eq!(table.per_peer(), [2, 1, 0]);
    }

    #[test]
    fn a_new_set_up_of_the_same_client_replaces_its_association() {
        let limits =
            RelayLimits { associations_max: 1, associations_per_peer_max: 1, ..RelayLimits::default() };
        let mut table = Associations::new(limits, 2);
        add(&mut table, 1, 0).unwrap();
        add(&mut table, 1, 0).unwrap();
        add(&mut table, 1, 1).unwrap();
        assert_eq!((table.len(), table.per_peer()), (1, &[0, 1][..]));
    }

    #[test]
    fn an_association_ends_when_its_client_is_idle() {
        let mut table = Associations::new(RelayLimits::default(), 1);
        add(&mut table, 1, 0).unwrap();
        add(&mut table, 2, 0).unwrap();
        table.touch(Instant::from_secs(30), client(2)).unwrap();
        assert_eq!(table.remove_idle(Instant::from_secs(59)), 0);
        assert_eq!(table.remove_idle(Instant::from_secs(60)), 1);
        assert!(table.touch(Instant::from_secs(60), client(1)).is_none());
        assert_eq!((table.len(), table.per_peer()), (1, &[1][..]));
    }

    #[test]
    fn only_the_same_token_of_the_same_client_gets_its_acceptance_again() {
        let mut table = Associations::new(RelayLimits::default(), 1);
        add(&mut table, 1, 0).unwrap();
        assert_eq!(table.acceptance(client(1), &[1]), Some(&[2][..]));
        assert_eq!(table.acceptance(client(1), &[3]), None);
        assert_eq!(table.acceptance(client(2), &[1]), None);
    }

    fn add(table: &mut Associations<()>, number: u16, peer: usize) -> Result<(), RefusalReason> {
        table.check_room(client(number), peer)?;
        let next = client(7443);
        let used_at = Instant::ORIGIN;
        let association =
            Association { peer, next, socket: (), token: vec![1], acceptance: vec![2], used_at };
        table.insert(client(number), association);
        Ok(())
    }

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }
}
