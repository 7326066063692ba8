//! Relays of a link, and the draw of routes over them, without I/O.
//!
//! A route is an ordered list of distinct relays. Of up to [`DRAWS`] random routes, the one with the lowest penalty is
//! taken: refused next hops, then failed relays, the current route, relays of silent routes, relays of other paths. So
//! nobody has to configure which relay reaches which.
//!
//! Limits: [`RELAYS_MAX`] relays; failures are forgotten after a minute, suspicions after half a minute.

use std::collections::BTreeMap;

use evenkeel_policy::time::{Duration, Instant};

use crate::quic::PathPurpose;
use crate::relay::{RelayTarget, SetupError};

/// Maximum number of relays of a link.
pub const RELAYS_MAX: usize = 64;

/// Time for which a relay that failed, or a next address that it refused, is avoided.
const FAILURE_MEMORY: Duration = Duration::from_secs(60);
/// Time for which the relays of a route that fell silent are avoided.
const SUSPICION_MEMORY: Duration = Duration::from_secs(30);
/// Routes that are drawn to find a good one.
const DRAWS: usize = 256;

/// Indexes of distinct relays, the first hop first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelayRoute(Vec<usize>);

impl RelayRoute {
    pub(super) fn hops(&self) -> usize {
        self.0.len()
    }
}

/// Relays with what is known about them, and the routes in use.
#[derive(Debug)]
pub(super) struct RoutePool {
    relays: Vec<RelayTarget>,
    failures: Vec<Option<RelayFailures>>,
    suspected_at: Vec<Option<Instant>>,
    /// Next hops that a relay refused: another relay, or the peer (`None`).
    refused: BTreeMap<(usize, Option<usize>), Instant>,
    /// Route that each path has, or had last.
    routes: Vec<Option<RelayRoute>>,
}

impl RoutePool {
    pub(super) fn new(relays: Vec<RelayTarget>, paths: usize) -> Self {
        let count = relays.len();
        Self {
            relays,
            failures: vec![None; count],
            suspected_at: vec![None; count],
            refused: BTreeMap::new(),
            routes: vec![None; paths],
        }
    }

    /// Returns the relays of a route.
    pub(super) fn relays(&self, route: &RelayRoute) -> Vec<RelayTarget> {
        route.0.iter().map(|relay| self.relays[*relay].clone()).collect()
    }

    /// Draws a route for a path.
    ///
    /// It has `hops` relays, or fewer, at least `hops_min`, if only fewer have not failed. A probe avoids the path's
    /// current route, with which it is compared.
    pub(super) fn draw(
        &self,
        now: Instant,
        path: usize,
        hops: usize,
        hops_min: usize,
        purpose: PathPurpose,
        random: &mut dyn FnMut() -> u64,
    ) -> RelayRoute {
        let healthy = (0..self.relays.len()).filter(|relay| !self.has_failed(now, *relay)).count();
        let hops = hops.min(healthy.max(hops_min)).min(self.relays.len());
        let mut order: Vec<usize> = (0..self.relays.len()).collect();
        let mut best = None;
        for _ in 0..DRAWS {
            shuffle_front(&mut order, hops, random);
            let penalty = self.penalty(now, path, &order[..hops], purpose);
            let is_better = best.as_ref().is_none_or(|(least, _)| penalty < *least);
            if is_better {
                best = Some((penalty, RelayRoute(order[..hops].to_vec())));
            }
            if penalty == RoutePenalty::default() {
                break;
            }
        }
        best.map_or_else(|| RelayRoute(order[..hops].to_vec()), |(_, route)| route)
    }

    fn penalty(&self, now: Instant, path: usize, route: &[usize], purpose: PathPurpose) -> RoutePenalty {
        let count = |is_bad: &dyn Fn(usize) -> bool| route.iter().filter(|relay| is_bad(**relay)).count();
        let next = route.iter().skip(1).map(|relay| Some(*relay)).chain([None]);
        let pairs = route.iter().copied().zip(next);
        let is_current = self.routes[path].as_ref().is_some_and(|current| current.0 == route);
        let is_of_other_path = |relay| {
            let others = self.routes.iter().enumerate().filter(|(other, _)| *other != path);
            others.filter_map(|(_, route)| route.as_ref()).any(|route| route.0.contains(&relay))
        };
        RoutePenalty {
            refused: pairs.filter(|pair| is_recent(now, self.refused.get(pair), FAILURE_MEMORY)).count(),
            failed: route.iter().map(|relay| self.failure_count(now, *relay)).sum(),
            unchanged: usize::from(purpose == PathPurpose::Probe && is_current),
            suspected: count(&|relay| is_recent(now, self.suspected_at[relay].as_ref(), SUSPICION_MEMORY)),
            shared: count(&is_of_other_path),
        }
    }

    fn has_failed(&self, now: Instant, relay: usize) -> bool {
        self.failure_count(now, relay) > 0
    }

    /// Returns the number of failures of a relay, unless the last one is forgotten.
    fn failure_count(&self, now: Instant, relay: usize) -> usize {
        let recent = self.failures[relay].filter(|failures| now.since(failures.last_at) < FAILURE_MEMORY);
        recent.map_or(0, |failures| failures.count)
    }

    fn count_failure(&mut self, now: Instant, relay: usize) {
        let count = self.failure_count(now, relay) + 1;
        self.failures[relay] = Some(RelayFailures { last_at: now, count });
    }

    /// Records the error of the relay at position `hop` of a route.
    pub(super) fn record_failure(
        &mut self,
        now: Instant,
        route: &RelayRoute,
        hop: usize,
        error: &SetupError,
    ) {
        let Some(relay) = route.0.get(hop) else { return };
        if let SetupError::NextNotAllowed { .. } = error {
            self.refused.retain(|_, at| now.since(*at) < FAILURE_MEMORY);
            self.refused.insert((*relay, route.0.get(hop + 1).copied()), now);
            return;
        }
        self.count_failure(now, *relay);
        if let (SetupError::NoAnswer { .. }, Some(before)) = (error, hop.checked_sub(1)) {
            // The relay before it may not forward. It collects more failures than any of its successors.
            self.count_failure(now, route.0[before]);
        }
    }

    /// Records that one of the relays of a route has probably failed.
    pub(super) fn record_silence(&mut self, now: Instant, route: &RelayRoute) {
        for relay in &route.0 {
            self.suspected_at[*relay] = Some(now);
        }
    }

    /// Records that all relays of a route forward.
    pub(super) fn record_success(&mut self, route: &RelayRoute) {
        for relay in &route.0 {
            self.failures[*relay] = None;
            self.suspected_at[*relay] = None;
        }
    }

    /// Makes a route that of a path.
    pub(super) fn adopt(&mut self, path: usize, route: RelayRoute) {
        self.routes[path] = Some(route);
    }

    /// Returns the route that a path has, or had last.
    pub(super) fn route(&self, path: usize) -> Option<&RelayRoute> {
        self.routes[path].as_ref()
    }
}

/// Failures of a relay since it last worked.
#[derive(Clone, Copy, Debug)]
struct RelayFailures {
    last_at: Instant,
    count: usize,
}

/// Reasons against a route, the most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RoutePenalty {
    refused: usize,
    failed: usize,
    unchanged: usize,
    suspected: usize,
    shared: usize,
}

fn is_recent(now: Instant, at: Option<&Instant>, memory: Duration) -> bool {
    at.is_some_and(|at| now.since(*at) < memory)
}

/// Moves random elements to the first `count` positions.
fn shuffle_front(order: &mut [usize], count: usize, random: &mut dyn FnMut() -> u64) {
    for position in 0..count {
        let rest = (order.len() - position) as u64;
        // The bias of the remainder is below 2^-57.
        order.swap(position, position + (random() % rest) as usize);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Fingerprint;

    const NOW: Instant = Instant::from_secs(100);
    const NO_ANSWER: SetupError = SetupError::NoAnswer { timeout: Duration::from_secs(3) };

    proptest! {
        #[test]
        fn a_route_has_distinct_relays_and_the_asked_length(relays in 1_usize..20, hops in 1_usize..8, seed: u64) {
            let hops = hops.min(relays);
            let mut random = random(seed);
            let route = pool(relays, 1).draw(NOW, 0, hops, 1, PathPurpose::Traffic, &mut random);
            let mut distinct = route.0.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), hops);
            prop_assert!(distinct.iter().all(|relay| *relay < relays));
        }

        #[test]
        fn a_relay_that_failed_is_avoided_for_a_minute(failed in 0_usize..4, seed: u64) {
            let mut random = random(seed);
            let mut pool = pool(4, 1);
            pool.record_failure(NOW, &RelayRoute(vec![failed]), 0, &NO_ANSWER);
            let route = pool.draw(NOW + Duration::from_secs(59), 0, 3, 3, PathPurpose::Traffic, &mut random);
            prop_assert!(!route.0.contains(&failed), "{:?}", route);
        }

        #[test]
        fn a_route_gets_shorter_down_to_the_minimum_to_avoid_failed_relays(seed: u64) {
            let mut random = random(seed);
            let mut pool = pool(5, 1);
            let mut draw = |pool: &RoutePool| pool.draw(NOW, 0, 5, 3, PathPurpose::Traffic, &mut random);
            pool.record_failure(NOW, &RelayRoute(vec![2]), 0, &NO_ANSWER);
            let route = draw(&pool);
            prop_assert!(route.hops() == 4 && !route.0.contains(&2), "{:?}", route);
            for relay in 0..5 {
                pool.record_failure(NOW, &RelayRoute(vec![relay]), 0, &NO_ANSWER);
            }
            prop_assert_eq!(draw(&pool).hops(), 3);
        }

        #[test]
        fn paths_use_different_relays_if_there_are_enough(seed: u64) {
            let mut random = random(seed);
            let mut pool = pool(6, 2);
            pool.adopt(0, RelayRoute(vec![5, 1, 3]));
            // A probed route may become the path's route.
            for purpose in [PathPurpose::Traffic, PathPurpose::Probe] {
                let route = pool.draw(NOW, 1, 3, 3, purpose, &mut random);
                prop_assert!(route.0.iter().all(|relay| [0, 2, 4].contains(relay)), "{:?}", route);
            }
        }

        #[test]
        fn a_probe_takes_another_route_than_the_current_one(seed: u64) {
            let mut random = random(seed);
            let mut pool = pool(2, 1);
            pool.adopt(0, RelayRoute(vec![1]));
            prop_assert_eq!(pool.draw(NOW, 0, 1, 1, PathPurpose::Probe, &mut random), RelayRoute(vec![0]));
        }

        #[test]
        fn after_silence_other_relays_are_preferred_until_a_route_works(seed: u64) {
            let mut random = random(seed);
            let mut pool = pool(6, 1);
            let silent = RelayRoute(vec![0, 1, 2]);
            pool.record_silence(NOW, &silent);
            let route = pool.draw(NOW, 0, 3, 3, PathPurpose::Traffic, &mut random);
            prop_assert!(route.0.iter().all(|relay| [3, 4, 5].contains(relay)), "{:?}", route);
            pool.record_success(&RelayRoute(vec![0, 1]));
            let counts = pool.penalty(NOW, 0, &[0, 1, 2], PathPurpose::Traffic);
            prop_assert_eq!(counts.suspected, 1);
        }
    }

    #[test]
    fn a_relay_that_accepts_set_ups_but_does_not_forward_is_found_out() {
        for seed in 0..50 {
            let mut random = random(seed);
            let mut pool = pool(4, 1);
            let works = |attempt: u64| {
                let now = NOW + Duration::from_secs(8 * attempt);
                let route = pool.draw(now, 0, 4, 3, PathPurpose::Traffic, &mut random);
                match route.0.iter().position(|relay| *relay == 0) {
                    None => true,
                    Some(position) if position + 1 == route.hops() => {
                        pool.record_silence(now, &route);
                        false
                    }
                    Some(position) => {
                        pool.record_failure(now, &route, position + 1, &NO_ANSWER);
                        false
                    }
                }
            };
            assert!((0..12).any(works), "seed {seed}: every route contains relay 0: {pool:?}");
        }
    }

    #[test]
    fn a_chain_whose_relays_allow_only_one_order_is_found() {
        let mut random = random(7);
        let mut pool = pool(3, 1);
        let error = SetupError::NextNotAllowed { next: "192.0.2.1:1".parse().unwrap() };
        for _ in 0..12 {
            let route = pool.draw(NOW, 0, 3, 3, PathPurpose::Traffic, &mut random);
            let next = |hop: usize| route.0.get(hop + 1).copied();
            // Relay 2 allows 0, which allows 1, which allows the peer.
            let is_allowed =
                |hop: usize| [(2, Some(0)), (0, Some(1)), (1, None)].contains(&(route.0[hop], next(hop)));
            match (0..3).find(|hop| !is_allowed(*hop)) {
                Some(hop) => pool.record_failure(NOW, &route, hop, &error),
                None => return,
            }
        }
        panic!("{pool:?}");
    }

    fn pool(relays: usize, paths: usize) -> RoutePool {
        let relay = |port: usize| RelayTarget {
            address: format!("192.0.2.1:{}", port + 1).parse().unwrap(),
            fingerprint: Fingerprint::from_bytes([port as u8; 32]),
        };
        RoutePool::new((0..relays).map(relay).collect(), paths)
    }

    /// Marsaglia's xorshift64.
    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }
}
