//! Redirect: decides whether a request is served here, handed over to a peer gateway, or waits, before it arrives in
//! the queue.
//!
//! Guarantees: a request that finds room is served here and no peer is scored; room depends on counts alone. A gated or
//! excluded peer is never chosen. Requests handed over since a peer's figures were measured count as its load, so that
//! a burst between two reports spreads. Redirects to peers with stale figures, or that are full by estimate, are at most
//! `budget` of the requests that found no room within `window`, or `redirects_min` if that is more.
//!
//! Limits: state is kept only for the peers of the last decision. A decision takes O(waiting tenants), and without room
//! also O(peers).

mod handed_over;

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_policy::id::{ModelId, NodeId, PeerId, RequestId, TenantId};
use evenkeel_policy::score::{
    HandedOver, NoPeerReason, NoRoomReason, NodeStats, PeerCandidate, PeerChoice, PeerConfig, PeerGate,
    PeerSelector, PeersAllowed, RedirectReason, RequestKind, ScoreConfig, Status,
};
use evenkeel_policy::setting::{SettingOutOfRange, check};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use handed_over::HandedOverLog;

use crate::OptimizedLoadManager;
use crate::accept::{ModelQueueId, Priority};
use crate::budget::{Budget, BudgetRule};
use crate::observe::Event;
use crate::options::InvalidOptions;
use crate::pick_node::Node;
use crate::queue::{ModelQueue, TenantEntry};

/// Figures of a peer gateway for one database.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerFigures {
    /// The peer.
    pub peer: PeerId,
    /// Share of the requests that it should get, relative to the other peers.
    pub weight: Weight,
    /// Figures that it last reported.
    pub stats: NodeStats,
    /// Time of the report by this gateway's clock; too early is safer than too late.
    pub measured_at: Instant,
}

/// Settings of the redirect step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedirectOptions {
    /// Gates, scores and draw.
    pub score: ScoreConfig,
    /// Age above which figures are stale, 10 ms to an hour.
    pub stale_after: Duration,
    /// Age above which a peer counts as DOWN, at least `stale_after` and at most an hour.
    pub down_after: Duration,
    /// Redirects to peers with stale figures, or that are full by estimate, per request that found no room, 0 to 1.
    pub budget: f64,
    /// Such redirects per window that are always allowed, however few requests found no room.
    pub redirects_min: u32,
    /// The window, 1 to 600 s.
    pub window: Duration,
}

impl RedirectOptions {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        check("budget", self.budget, 0.0..=1.0)?;
        check("window", self.window.as_secs_f64(), 1.0..=600.0)
    }
}

impl Default for RedirectOptions {
    fn default() -> Self {
        let PeerConfig { score, stale_after, down_after } = PeerConfig::default();
        Self {
            score,
            stale_after,
            down_after,
            budget: 0.2,
            redirects_min: 3,
            window: Duration::from_secs(10),
        }
    }
}

/// State of the redirect step for one database.
#[derive(Debug)]
pub struct Redirector {
    selector: PeerSelector,
    budget: Budget,
    handed_over: BTreeMap<PeerId, HandedOverLog>,
    candidates: Vec<PeerCandidate>,
}

/// Score of a peer for a kind of request, or its closed gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerAssessment {
    /// The peer.
    pub peer: PeerId,
    /// Its score, 0 to 1, or the reason why it is no candidate.
    pub result: Result<f64, PeerGate>,
    /// Age of its figures.
    pub age: Duration,
}

impl Redirector {
    /// Creates the state; rejects options out of range.
    pub fn new(options: RedirectOptions) -> Result<Self, InvalidOptions> {
        options.check()?;
        let RedirectOptions { score, stale_after, down_after, budget, redirects_min, window } = options;
        Ok(Self {
            selector: PeerSelector::new(PeerConfig { score, stale_after, down_after })?,
            budget: Budget::new(BudgetRule { ratio: budget, spends_min: redirects_min, window }),
            handed_over: BTreeMap::new(),
            candidates: Vec::new(),
        })
    }

    /// Returns the score or the closed gate of each peer for a kind of request, for status pages.
    pub fn assess(
        &self,
        now: Instant,
        own: &NodeStats,
        kind: RequestKind,
        peers: &[PeerFigures],
    ) -> Vec<PeerAssessment> {
        let candidates: Vec<_> = peers.iter().map(|peer| self.candidate(now, peer)).collect();
        let results = self.selector.assess(own, &candidates, kind);
        let assessed = candidates.iter().zip(results);
        assessed.map(|(peer, result)| PeerAssessment { peer: peer.peer, result, age: peer.age }).collect()
    }

    /// Returns the score that a peer must exceed to get a request of this kind.
    pub fn own_score(&self, now: Instant, own: &NodeStats, kind: RequestKind, peers: &[PeerFigures]) -> f64 {
        let candidates: Vec<_> = peers.iter().map(|peer| self.candidate(now, peer)).collect();
        self.selector.own_score(own, &candidates, kind)
    }

    /// Records that a forwarded request ended, or could not be sent.
    ///
    /// A begin ends with its transaction; a caller that does not see that end passes [`RedirectMode::ByClient`].
    pub fn handle_returned(&mut self, now: Instant, peer: PeerId, kind: RequestKind) {
        if let Some(log) = self.handed_over.get_mut(&peer) {
            log.end(now, kind);
        }
    }

    /// Returns a peer with the change since its figures were measured.
    fn candidate(&self, now: Instant, figures: &PeerFigures) -> PeerCandidate {
        let PeerFigures { peer, weight, stats, measured_at } = *figures;
        let log = self.handed_over.get(&peer);
        let handed_over = log.map_or_else(HandedOver::default, |log| log.change(now, figures));
        PeerCandidate { peer, weight, stats, handed_over, age: now.since(measured_at) }
    }

    /// Chooses a peer for a request that found no room, and counts it as handed over.
    fn choose(
        &mut self,
        now: Instant,
        own: &NodeStats,
        request: &RedirectRequest<'_>,
        random: f64,
    ) -> Result<PeerChoice, NoPeerReason> {
        self.observe(request.peers);
        self.budget.earn(now);
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let allowed_peers = request.peers.iter().filter(|peer| !request.excluded.contains(&peer.peer));
        candidates.extend(allowed_peers.map(|peer| self.candidate(now, peer)));
        let allowed = if self.budget.is_left(now) { PeersAllowed::Open } else { PeersAllowed::WithRoom };
        let choice = self.selector.pick(own, &candidates, allowed, request.kind, random);
        self.candidates = candidates;
        let choice = choice?;
        if !choice.has_room {
            self.budget.spend(now);
        }
        if let Some(log) = self.handed_over.get_mut(&choice.peer) {
            log.begin(now, request.kind, request.mode);
        }
        Ok(choice)
    }

    /// Takes over newer figures, and forgets peers that are gone.
    fn observe(&mut self, peers: &[PeerFigures]) {
        self.handed_over.retain(|peer, _| peers.iter().any(|figures| figures.peer == *peer));
        for figures in peers {
            self.handed_over.entry(figures.peer).or_default().observe(figures);
        }
    }
}

/// A request that is served here, handed over, or waits.
#[derive(Clone, Copy, Debug)]
pub struct RedirectRequest<'a> {
    /// Its id in redirect events; if it stays here, the pipeline assigns another.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Node of this gateway that would serve it.
    pub node: NodeId,
    /// Its model: the queue in which it would wait.
    pub model: ModelId,
    /// Its kind.
    pub kind: RequestKind,
    /// Way in which a peer would get it.
    pub mode: RedirectMode,
    /// Figures of this gateway, this request not included.
    pub own: NodeStats,
    /// Peers that serve the same database.
    pub peers: &'a [PeerFigures],
    /// Peers that must not get it, because they handed it over or failed to take it.
    pub excluded: &'a [PeerId],
}

/// Way in which a peer gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectMode {
    /// This gateway sends it, and reports its end by [`Redirector::handle_returned`].
    Forward,
    /// The client sends it, or this gateway does not see its end for another reason.
    ByClient,
}

/// Result of [`OptimizedLoadManager::decide_redirect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RedirectDecision {
    /// There is room here.
    ServeHere,
    /// There is no room here and no better peer: it waits its turn in the queue.
    Wait(NoRedirectReason),
    /// A peer serves it.
    Redirect {
        /// The peer.
        peer: PeerId,
        /// Reason for the choice.
        reason: RedirectReason,
    },
}

/// Reason why a request waits although there is no room here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoRedirectReason {
    /// Shortage at this gateway.
    pub no_room: NoRoomReason,
    /// Reason why no peer was chosen.
    pub no_peer: NoPeerReason,
}

impl fmt::Display for NoRedirectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.no_room, self.no_peer)
    }
}

impl OptimizedLoadManager {
    /// Decides about a request before it arrives in the queue.
    ///
    /// A forwarded request counts as load of the peer until [`Redirector::handle_returned`], and a redirected one for the
    /// time that the peer takes on average. `random` is a fresh number in 0..1.
    pub fn decide_redirect(
        &mut self,
        now: Instant,
        redirector: &mut Redirector,
        request: RedirectRequest<'_>,
        random: f64,
    ) -> RedirectDecision {
        self.advance(now);
        let Err(no_room) = self.check_room(&request) else { return RedirectDecision::ServeHere };
        self.counts.no_room += 1;
        let status = match no_room {
            NoRoomReason::NotServing(status) => status,
            NoRoomReason::SessionsFull | NoRoomReason::ConnectionsFull | NoRoomReason::TransactionsFull => {
                Status::Serving
            }
        };
        let own = NodeStats { status, ..request.own };
        let choice = redirector.choose(self.now, &own, &request, random);
        self.counts.peers_scored += redirector.candidates.len() as u64;
        match choice {
            Ok(PeerChoice { peer, breakdown, own_score, age, .. }) => {
                self.counts.redirected += 1;
                let reason = RedirectReason { no_room, breakdown, own_score, age };
                let RedirectRequest { request, tenant, kind, .. } = request;
                self.emit(Event::Redirected { request, tenant, peer, kind, reason });
                RedirectDecision::Redirect { peer, reason }
            }
            Err(no_peer) => {
                self.counts.redirect_budget_spent += u64::from(no_peer == NoPeerReason::BudgetSpent);
                RedirectDecision::Wait(NoRedirectReason { no_room, no_peer })
            }
        }
    }

    /// Reports by counts alone whether this gateway can serve a request at once; its peers and its measurements are not
    /// looked at.
    pub fn has_room(&self, request: &RedirectRequest<'_>) -> bool {
        self.check_room(request).is_ok()
    }

    /// Checks that this gateway can serve a request at once; the error is the shortage.
    fn check_room(&self, request: &RedirectRequest<'_>) -> Result<(), NoRoomReason> {
        let RedirectRequest { own, kind, .. } = request;
        let node = self.nodes.get(request.node).ok_or(NoRoomReason::NotServing(Status::Down))?;
        for status in [own.status, node.status()] {
            if status != Status::Serving {
                return Err(NoRoomReason::NotServing(status));
            }
        }
        if i64::from(own.max_http_sessions) <= i64::from(own.running_http_session) {
            return Err(NoRoomReason::SessionsFull);
        }
        let waiting = self.count_waiting(node, request.model);
        let places_free = node.transactions.free() as usize;
        // A begin that waits for a transaction place needs no slot yet.
        let waiting_for_slot = waiting.statements + waiting.begins.min(places_free);
        if node.slots() as usize <= node.busy as usize + waiting_for_slot {
            return Err(NoRoomReason::ConnectionsFull);
        }
        if *kind == RequestKind::BeginTx && places_free <= waiting.begins {
            return Err(NoRoomReason::TransactionsFull);
        }
        Ok(())
    }

    /// Counts the interactive requests that wait for a model, except those of tenants at their concurrency limit, which
    /// cannot take a slot.
    fn count_waiting(&self, node: &Node, model: ModelId) -> WaitingCounts {
        let mut waiting = WaitingCounts::default();
        if !node.serves(model) {
            return waiting;
        }
        let queue = self.wait_queue.queue(ModelQueueId { model, priority: Priority::Interactive });
        for (tenant, tenant_queue) in queue.into_iter().flat_map(ModelQueue::tenant_queues) {
            if self.wait_queue.tenants().get(tenant).is_some_and(TenantEntry::is_capped) {
                continue;
            }
            for flow in tenant_queue.flows() {
                let begins = flow.queued_len_of(RequestKind::BeginTx);
                waiting.begins += begins;
                waiting.statements += flow.waiting().len() - begins;
            }
        }
        waiting
    }
}

/// Waiting requests by the capacity that they need.
#[derive(Clone, Copy, Debug, Default)]
struct WaitingCounts {
    statements: usize,
    begins: usize,
}
