//! Pick node: which node with a slot does a request.
//!
//! Bounds: a node that is full, closed by a gate, drained, spared, broken or has failed the request before is never
//! chosen. A choice is O(nodes).

mod affinity;
mod cache;
mod capacity;
mod circuit_breaker;
mod cooldown;
mod node;

use std::collections::BTreeMap;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::path::{PathConfig, PathRule};
use evenkeel_policy::score::{self, Candidate, Limits, NodeSelector, SelectionPolicy};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrRules;
use evenkeel_policy::time::Instant;

pub(crate) use cache::NodeSelectionCache;
pub use cache::{CacheEntry, CacheStats};
pub(crate) use capacity::Capacity;
pub use capacity::{EngineLoad, Slots};
pub use circuit_breaker::BreakerState;
pub use node::{AdminState, NodeSpec};
pub(crate) use node::{FIGURES_AGE_MAX, Node, SlotRequest, SlotReservation};

use crate::accept::{ModelId, RequestRecord};
use crate::load_manager::RegistryError;
use crate::options::{AffinityOptions, BreakerOptions, PipelineOptions};
use crate::pick_path::Paths;
use affinity::{NodeLoad, PoolLoad};

/// Why a request goes to a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PickReason {
    /// Its like was served there lately.
    Cached,
    /// Its affinity prefers the node, which is not too loaded.
    Preferred,
    /// The chooser took it.
    Chosen(score::ChoiceReason),
}

impl std::fmt::Display for PickReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cached => f.write_str("served its like lately"),
            Self::Preferred => f.write_str("preferred by its affinity"),
            Self::Chosen(because) => because.fmt(f),
        }
    }
}

/// A node for a request, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pick {
    pub(crate) node: NodeId,
    pub(crate) because: PickReason,
}

/// Every node, and who chooses among them.
#[derive(Clone, Debug)]
pub(crate) struct NodePool {
    nodes: BTreeMap<NodeId, Node>,
    next: u32,
    picker: NodeSelector,
    limits: Limits,
    affinity: AffinityOptions,
    random: Random,
    candidates: Vec<Candidate>,
    /// What a request costs that nobody knows more of.
    usual_cost: Cost,
    breaker: BreakerOptions,
    backoff: PathRule,
    swrr: SwrrRules,
    path: PathRule,
}

impl NodePool {
    pub(crate) fn new(options: &PipelineOptions) -> Result<Self, SettingOutOfRange> {
        let BreakerOptions { backoff_min, backoff_max, .. } = options.breaker;
        Ok(Self {
            nodes: BTreeMap::new(),
            next: 0,
            picker: NodeSelector::new(options.chooser)?,
            limits: match options.chooser {
                SelectionPolicy::Score(config) => config.limits,
                SelectionPolicy::HotCold(config) => config.limits,
            },
            affinity: options.affinity,
            random: Random::new(options.seed),
            candidates: Vec::new(),
            usual_cost: options.quantum,
            breaker: options.breaker,
            backoff: PathRule::new(PathConfig { backoff_min, backoff_max, ..PathConfig::default() })?,
            swrr: SwrrRules::new(&options.swrr)?,
            path: PathRule::new(options.path)?,
        })
    }

    pub(crate) fn add(&mut self, now: Instant, spec: &NodeSpec) -> Result<NodeId, RegistryError> {
        let capacity = Capacity::new(spec.slots)?;
        let paths = Paths::new(&spec.paths, &self.swrr, self.path, now)?;
        let id = NodeId(self.next);
        self.next += 1;
        self.nodes.insert(
            id,
            Node::new(spec, (capacity, self.usual_cost), paths, (self.breaker, self.backoff), now),
        );
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

    /// Tells whether a node that is to take work serves the model.
    pub(crate) fn serves(&self, model: ModelId) -> bool {
        self.nodes.values().any(|node| node.duty == AdminState::Serving && node.serves(model))
    }

    /// Tells whether a node is left that could do a request.
    pub(crate) fn has_untried(&self, ticket: &RequestRecord) -> bool {
        let model = ticket.arrival.model;
        self.iter().any(|(id, node)| {
            node.duty == AdminState::Serving && node.serves(model) && !ticket.tried.contains(&id)
        })
    }

    /// Tells when the first of the nodes that could do a request has rested; `now` if one is not resting.
    pub(crate) fn cooldown_ends_at(&self, now: Instant, model: ModelId, tried: &[NodeId]) -> Instant {
        self.iter()
            .filter(|(id, node)| {
                node.duty == AdminState::Serving && node.serves(model) && !tried.contains(id)
            })
            .map(|(_, node)| node.rest.until().unwrap_or(now))
            .min()
            .unwrap_or(now)
    }

    /// Tells whether a node can do a request now.
    pub(crate) fn can_take(&self, id: NodeId, ticket: &RequestRecord) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        node.has_room()
            && node.serves(ticket.arrival.model)
            && !ticket.tried.contains(&id)
            && self.limits.gate(&node.stats(), ticket.arrival.request).is_ok()
    }

    /// Names the node that a request's like was served on, if it can take the request now.
    pub(crate) fn cached_node(&self, cache: &NodeSelectionCache, ticket: &RequestRecord) -> Option<NodeId> {
        let key = ticket.arrival.affinity?;
        cache.peek((ticket.arrival.model, key)).filter(|node| self.can_take(*node, ticket))
    }

    /// Brings figures up to date that are too old to choose by.
    pub(crate) fn refresh(&mut self, now: Instant) {
        self.nodes.values_mut().for_each(|node| node.refresh_if_old(now));
    }

    /// Chooses: the node remembered, else the one preferred, else the chooser's.
    pub(crate) fn pick(&mut self, cache: &NodeSelectionCache, ticket: &RequestRecord) -> Option<Pick> {
        if let Some(node) = self.cached_node(cache, ticket) {
            return Some(Pick { node, because: PickReason::Cached });
        }
        if let Some(node) = ticket.arrival.affinity.and_then(|key| self.preferred(key, ticket)) {
            return Some(Pick { node, because: PickReason::Preferred });
        }
        self.candidates.clear();
        for (id, node) in &self.nodes {
            if node.serves(ticket.arrival.model) && !ticket.tried.contains(id) {
                self.candidates.push(node.candidate(*id));
            }
        }
        let random = self.random.unit();
        let choice = self.picker.pick(&self.candidates, ticket.arrival.request, random)?;
        Some(Pick { node: choice.node, because: PickReason::Chosen(choice.reason) })
    }

    fn preferred(&self, key: u64, ticket: &RequestRecord) -> Option<NodeId> {
        let mut pool = PoolLoad::default();
        let mut best: Option<(u64, NodeId, NodeLoad)> = None;
        for (id, node) in self.iter().filter(|(_, node)| node.is_open() && node.serves(ticket.arrival.model))
        {
            let load = NodeLoad { busy: node.busy.saturating_add(node.external_load()), slots: node.slots() };
            pool.add(load);
            let rank = affinity::rank(key, id);
            if best.is_none_or(|(highest, ..)| highest < rank) {
                best = Some((rank, id, load));
            }
        }
        let (_, id, load) = best?;
        let fits = self.can_take(id, ticket) && affinity::is_within(load, pool, self.affinity.load_max);
        fits.then_some(id)
    }
}

/// Random numbers that a seed repeats: xorshift64*.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // The state must not be zero, and near seeds should not start alike.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Draws from 0 up to, not including, 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }
}
