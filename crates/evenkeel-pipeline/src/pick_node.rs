//! Pick node: chooses a node with a free slot for a request.
//!
//! Guarantees: never chooses a node that is full, rejected by a gate, draining, in cooldown, behind an open circuit
//! breaker, closed to the request's tenant, or that has failed the request before. A `BeginTx` request also needs a free transaction place, of which
//! its tenant may take another. Latency comes before weight, and weight before affinity: see
//! [`evenkeel_policy::score`]. A choice is O(nodes) and allocates nothing once its buffers have grown.

mod acceptance;
mod cache;
mod capacity;
mod circuit_breaker;
mod cooldown;
mod first_token;
mod node;
mod tenant_health;
mod transaction_places;

use std::collections::BTreeMap;

use evenkeel_policy::id::{ModelId, NodeId};
use evenkeel_policy::outcome::PickReason;
use evenkeel_policy::path::{PathConfig, PathRule};
use evenkeel_policy::score::{Candidate, NodeSelector, RequestKind, Spread};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrRules;
use evenkeel_policy::time::{Duration, Instant};

pub(crate) use acceptance::RefusalCause;
pub(crate) use cache::NodeSelectionCache;
pub use cache::{CacheEntry, CacheStats};
pub(crate) use capacity::Capacity;
pub use capacity::{EngineLoad, Slots};
pub use circuit_breaker::BreakerState;
pub(crate) use cooldown::Room;
use first_token::{ESTIMATE_AGE_LIMIT, ESTIMATE_AGE_MAX, EstimateBasis, FirstToken};
pub(crate) use first_token::{PromptCache, ResponseForm};
use node::NodeDefaults;
pub use node::{AdminState, NodeSpec};
pub(crate) use node::{Node, STATS_AGE_MAX, SlotRequest};
pub(crate) use tenant_health::{Corroboration, HadRoom, TenantChange, Verdict};

use crate::accept::{Arrival, NodeHold, RequestRecord};
use crate::load_manager::RegistryError;
use crate::options::{AffinityOptions, BreakerOptions, PipelineOptions};
use crate::pick_path::Paths;
use crate::transactions::AtShare;

/// A node picked for a request, and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pick {
    pub(crate) node: NodeId,
    pub(crate) reason: PickReason,
}

/// The node in the affinity cache, and the estimate by which it is compared.
#[derive(Clone, Copy, Debug)]
struct CachedNode {
    node: NodeId,
    basis: EstimateBasis,
}

/// All nodes of a pool, and the selection policy.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    nodes: BTreeMap<NodeId, Node>,
    next_id: u32,
    selector: NodeSelector,
    affinity: AffinityOptions,
    random: Random,
    seed: u64,
    candidates: Vec<Candidate>,
    defaults: NodeDefaults,
    swrr: SwrrRules,
    path: PathRule,
}

impl NodePool {
    pub(crate) fn new(options: &PipelineOptions) -> Result<Self, SettingOutOfRange> {
        let BreakerOptions { backoff_min, backoff_max, .. } = options.breaker;
        let cooldown = options.breaker.cooldown_for(None, options.load.wait_queue.default_timeout);
        Ok(Self {
            nodes: BTreeMap::new(),
            next_id: 0,
            selector: NodeSelector::new(options.selection)?,
            affinity: options.affinity,
            random: Random::new(options.seed),
            seed: options.seed,
            candidates: Vec::new(),
            defaults: NodeDefaults {
                breaker: BreakerOptions { cooldown, ..options.breaker },
                backoff: PathRule::new(PathConfig { backoff_min, backoff_max, ..PathConfig::default() })?,
            },
            swrr: SwrrRules::new(&options.swrr)?,
            path: PathRule::new(options.path)?,
        })
    }

    pub(crate) fn add(&mut self, now: Instant, spec: &NodeSpec) -> Result<NodeId, RegistryError> {
        let capacity = Capacity::new(spec.slots, self.seed ^ u64::from(self.next_id))?;
        let paths = Paths::new(&spec.paths, &self.swrr, self.path, now)?;
        let id = NodeId(self.next_id);
        self.next_id += 1;
        self.nodes.insert(id, Node::new(spec, capacity, paths, &self.defaults, now));
        Ok(id)
    }

    pub(crate) fn set_models(&mut self, node: NodeId, models: &[ModelId]) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.set_models(models);
        }
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node)
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&node)
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// Reports whether a node in rotation serves the model.
    pub(crate) fn serves(&self, model: ModelId) -> bool {
        self.nodes.values().any(|node| node.admin_state == AdminState::Serving && node.serves(model))
    }

    /// Reports whether any node in rotation with the request's model has not failed this request yet.
    pub(crate) fn has_untried(&self, record: &RequestRecord) -> bool {
        let model = record.arrival.model;
        self.iter().any(|(id, node)| {
            node.admin_state == AdminState::Serving && node.serves(model) && !record.tried.contains(&id)
        })
    }

    /// Returns the earliest end of a cooldown among the nodes that could serve a request; `now` if any of them is not
    /// cooling down, or if there is none.
    pub(crate) fn cooldown_ends_at(&self, now: Instant, arrival: &Arrival, avoided: Avoided<'_>) -> Instant {
        let Avoided { tried, holds } = avoided;
        let free_at = |(id, node): (NodeId, &Node)| {
            let hold = holds.iter().find(|hold| hold.node == id).map(|hold| hold.until);
            node.cooldown_until(arrival.tenant).max(hold).unwrap_or(now).max(now)
        };
        self.iter()
            .filter(|(id, node)| {
                node.admin_state == AdminState::Serving && node.serves(arrival.model) && !tried.contains(id)
            })
            .map(free_at)
            .min()
            .unwrap_or(now)
    }

    /// Reports whether another healthy node could serve a request of a tenant if it had a free slot.
    pub(crate) fn has_other(&self, node: NodeId, arrival: &Arrival) -> bool {
        self.iter().any(|(id, other)| {
            id != node
                && other.serves(arrival.model)
                && other.is_available()
                && other.breaker.state() == BreakerState::Closed
                && !other.tenants.is_blocked(arrival.tenant)
        })
    }

    /// Returns the time after which a node of a model is probed, if none could be reached for longer than `hold` and
    /// none may be probed now.
    pub(crate) fn outage(&self, now: Instant, model: ModelId) -> Option<Duration> {
        let mut retry_at: Option<Instant> = None;
        let serving = |node: &&Node| node.admin_state == AdminState::Serving && node.serves(model);
        for node in self.nodes.values().filter(serving) {
            let is_held = node.unreachable.is_none_or(|unreachable| unreachable.hold_ends_at.is_some());
            if is_held || node.has_free_slot() {
                return None;
            }
            let probe_at = node.breaker.timeout().unwrap_or(now);
            retry_at = Some(retry_at.map_or(probe_at, |at| at.min(probe_at)));
        }
        retry_at.map(|at| at.since(now))
    }

    /// Reports whether the last contact with each serving node of a model failed.
    pub(crate) fn is_unreachable(&self, model: ModelId) -> bool {
        let mut serving =
            self.nodes.values().filter(|node| node.admin_state == AdminState::Serving && node.serves(model));
        serving.all(|node| node.unreachable.is_some())
    }

    /// Reserves the probes of half-open nodes for tenants that did not open their breakers, if such tenants wait.
    pub(crate) fn reserve_probes(&mut self, mut waits: impl FnMut(&Node) -> bool) {
        for node in self.nodes.values_mut() {
            node.is_probe_reserved = node.breaker.state() == BreakerState::HalfOpen && waits(node);
        }
    }

    /// Reports whether any node can serve a request of this kind now, if its tenant may use it and it has not failed.
    pub(crate) fn has_room_for(&self, model: ModelId, request: RequestKind) -> bool {
        self.nodes.values().any(|node| self.has_room(node, model, request))
    }

    /// Reports whether a node can serve a request now.
    pub(crate) fn can_serve(&self, id: NodeId, record: &RequestRecord, at_share: &AtShare) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        is_allowed(id, node, record, at_share)
            && self.has_room(node, record.arrival.model, record.arrival.request)
    }

    fn has_room(&self, node: &Node, model: ModelId, request: RequestKind) -> bool {
        node.has_room_for(request)
            && node.serves(model)
            && self.selector.limits().gate(&node.stats(), request).is_ok()
    }

    /// Returns the node in the affinity cache, if it can serve the request now and should: it is about as fast as the
    /// best, within its share of the load, and no other node is due to be measured.
    pub(crate) fn cached_node(
        &mut self,
        now: Instant,
        cache: &NodeSelectionCache,
        record: &RequestRecord,
        at_share: &AtShare,
    ) -> Option<NodeId> {
        let Arrival { model, affinity, request, .. } = record.arrival;
        let warm = cache.peek((model, affinity?)).filter(|node| self.can_serve(*node, record, at_share))?;
        let cached = CachedNode { node: warm, basis: EstimateBasis::Warm };
        self.collect_candidates(now, record, at_share, Some(cached), ESTIMATE_AGE_LIMIT);
        self.selector.keeps(&mut self.candidates, request, warm, self.affinity.load_max).then_some(warm)
    }

    /// Refreshes statistics older than [`STATS_AGE_MAX`].
    pub(crate) fn refresh(&mut self, now: Instant) {
        self.nodes.values_mut().for_each(|node| node.refresh_if_old(now));
    }

    /// Picks a node: the cached one, else the selection policy's choice.
    pub(crate) fn pick(
        &mut self,
        now: Instant,
        cache: &NodeSelectionCache,
        record: &RequestRecord,
        at_share: &AtShare,
    ) -> Option<Pick> {
        let Arrival { model, affinity, request, .. } = record.arrival;
        let mode = ResponseForm::of(&record.arrival);
        if let Some(node) = self.cached_node(now, cache, record, at_share) {
            for candidate in &self.candidates {
                let other = self.nodes.get_mut(&candidate.node);
                other.and_then(|other| other.first_token_mut(model, mode)).map(FirstToken::on_pass);
            }
            return Some(Pick { node, reason: PickReason::Cached });
        }
        let refused = affinity.and_then(|key| cache.peek((model, key)));
        let refused = refused.map(|node| CachedNode { node, basis: EstimateBasis::Slower });
        self.collect_candidates(now, record, at_share, refused, ESTIMATE_AGE_MAX);
        let spread = Spread { key: affinity, load_max: self.affinity.load_max };
        let random = self.random.next_f64();
        let choice = self.selector.pick(&mut self.candidates, request, spread, random)?;
        for candidate in &self.candidates {
            let node = self.nodes.get_mut(&candidate.node);
            if let Some(first_token) = node.and_then(|node| node.first_token_mut(model, mode)) {
                first_token.on_pick(&candidate.comparison);
            }
        }
        Some(Pick { node: choice.node, reason: PickReason::Chosen(choice.reason) })
    }

    /// Collects the nodes with room for a request.
    fn collect_candidates(
        &mut self,
        now: Instant,
        record: &RequestRecord,
        at_share: &AtShare,
        cached: Option<CachedNode>,
        age_max: Duration,
    ) {
        let Arrival { model, request, .. } = record.arrival;
        let mode = ResponseForm::of(&record.arrival);
        let serving = self.nodes.values().filter(|node| node.serves(model)).count();
        let others = u32::try_from(serving).unwrap_or(u32::MAX).saturating_sub(1);
        self.candidates.clear();
        for (id, node) in &self.nodes {
            if !node.has_room_for(request) || !is_allowed(*id, node, record, at_share) {
                continue;
            }
            let Some(first_token) = node.first_token(model, mode) else { continue };
            let cached = cached.filter(|cached| cached.node == *id);
            let basis = cached.map_or(EstimateBasis::Cold, |cached| cached.basis);
            let comparison = first_token.comparison(now, basis, age_max, others);
            self.candidates.push(node.candidate(*id, comparison));
        }
    }
}

/// Nodes that a request avoids.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Avoided<'a> {
    pub(crate) tried: &'a [NodeId],
    pub(crate) holds: &'a [NodeHold],
}

impl<'a> From<&'a RequestRecord> for Avoided<'a> {
    fn from(record: &'a RequestRecord) -> Self {
        Self { tried: &record.tried, holds: &record.holds }
    }
}

/// Reports whether a request may use a node: it is open to it, and its tenant may begin a transaction there.
fn is_allowed(id: NodeId, node: &Node, record: &RequestRecord, at_share: &AtShare) -> bool {
    let may_begin = !at_share.contains(id, record.arrival.tenant);
    node.is_open_to(id, record) && (record.arrival.request != RequestKind::BeginTx || may_begin)
}

/// Seeded random numbers: xorshift64*.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // The state must not be zero, and similar seeds must not start with similar numbers.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number in `0.0..1.0`.
    fn next_f64(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }
}
