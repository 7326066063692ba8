//! Nodes and tenants as they come, change and go while requests walk.
//!
//! Bound: at most `nodes_max` nodes, those included that finish what they have; a node that leaves is forgotten with its
//! last request.

use std::fmt;

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrError;
use evenkeel_policy::time::Instant;

use crate::OptimizedLoadManager;
use crate::accept::ModelId;
use crate::observe::Event;
use crate::pick_node::{AdminState, Capacity, NodeSpec, Slots};
use crate::queue::TenantRule;

impl OptimizedLoadManager {
    /// Adds a node, which takes work at once.
    pub fn add_node(&mut self, now: Instant, spec: &NodeSpec) -> Result<NodeId, RegistryError> {
        self.advance(now);
        let nodes_max = self.options.limits.nodes_max;
        if nodes_max <= self.nodes.len() {
            return Err(RegistryError::TooManyNodes { nodes_max });
        }
        self.check_models(&spec.models)?;
        let node = self.nodes.add(self.now, spec)?;
        self.wait_queue.forget_rates(&spec.models);
        self.emit(Event::AdminState { node, duty: AdminState::Serving });
        self.dispatch();
        Ok(node)
    }

    /// Changes what a node serves.
    pub fn set_node_models(
        &mut self,
        now: Instant,
        node: NodeId,
        models: &[ModelId],
    ) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        self.check_models(models)?;
        self.nodes.set_models(node, models);
        self.node_cache.invalidate(node, |model| !models.contains(&model));
        self.wait_queue.forget_rates(models);
        self.dispatch();
        Ok(())
    }

    /// Changes how many requests a node works on at once; those it has are left to it.
    pub fn set_slots(&mut self, now: Instant, node: NodeId, slots: Slots) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let known = self.nodes.get_mut(node).ok_or(RegistryError::UnknownNode { node })?;
        let before = known.slots();
        known.capacity = Capacity::new(slots)?;
        let more = before < known.slots();
        if more {
            self.wait_queue.forget_rates(known.models());
        }
        self.dispatch();
        Ok(())
    }

    /// Lets a node finish what it has and take nothing new.
    pub fn drain_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_duty(now, node, AdminState::Draining)
    }

    /// Lets a drained node take work again.
    pub fn resume_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_duty(now, node, AdminState::Serving)
    }

    /// Takes a node out; it is forgotten once it has finished what it has.
    pub fn remove_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_duty(now, node, AdminState::Removing)
    }

    /// Gives a tenant its weight and its cap, also for what it has waiting.
    pub fn set_tenant(
        &mut self,
        now: Instant,
        tenant: TenantId,
        rule: TenantRule,
    ) -> Result<(), RegistryError> {
        self.advance(now);
        let tenants_max = self.options.limits.tenants_max;
        if tenants_max <= tenant.0 {
            return Err(RegistryError::TooManyTenants { tenants_max });
        }
        self.wait_queue.set_rule(tenant, rule);
        self.dispatch();
        Ok(())
    }

    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.nodes.remove(node);
        self.timers.set_node(node, None);
        self.emit(Event::NodeRemoved { node });
    }

    fn set_duty(&mut self, now: Instant, node: NodeId, duty: AdminState) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let Some(known) = self.nodes.get_mut(node) else { return Ok(()) };
        known.duty = duty;
        let idle = known.busy == 0;
        match duty {
            AdminState::Serving => self.wait_queue.forget_rates(known.models()),
            AdminState::Draining | AdminState::Removing => self.node_cache.invalidate(node, |_| true),
        }
        self.emit(Event::AdminState { node, duty });
        if duty == AdminState::Removing && idle {
            self.forget_node(node);
        }
        self.dispatch();
        Ok(())
    }

    /// A node that leaves is as good as gone.
    fn check_node(&self, node: NodeId) -> Result<(), RegistryError> {
        match self.nodes.get(node) {
            Some(known) if known.duty != AdminState::Removing => Ok(()),
            _ => Err(RegistryError::UnknownNode { node }),
        }
    }

    fn check_models(&self, models: &[ModelId]) -> Result<(), RegistryError> {
        let models_max = self.options.limits.models_max;
        match models.iter().find(|model| models_max <= model.0) {
            Some(_) => Err(RegistryError::TooManyModels { models_max }),
            None => Ok(()),
        }
    }
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RegistryError {
    /// Nobody added this node, or it is leaving.
    UnknownNode {
        /// The node as given.
        node: NodeId,
    },
    /// There are as many nodes as there may be.
    TooManyNodes {
        /// How many there may be.
        nodes_max: usize,
    },
    /// A model beyond the limit.
    TooManyModels {
        /// How many there may be.
        models_max: u32,
    },
    /// A tenant beyond the limit.
    TooManyTenants {
        /// How many there may be.
        tenants_max: u32,
    },
    /// A path cannot be used as given.
    Path(SwrrError),
    /// How many requests a node works on cannot be found so.
    Limit(SettingOutOfRange),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode { node } => write!(f, "node {} is unknown", node.0),
            Self::TooManyNodes { nodes_max } => write!(f, "more than {nodes_max} nodes"),
            Self::TooManyModels { models_max } => write!(f, "more than {models_max} models"),
            Self::TooManyTenants { tenants_max } => write!(f, "more than {tenants_max} tenants"),
            Self::Path(error) => error.fmt(f),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegistryError {}

impl From<SwrrError> for RegistryError {
    fn from(error: SwrrError) -> Self {
        Self::Path(error)
    }
}

impl From<SettingOutOfRange> for RegistryError {
    fn from(error: SettingOutOfRange) -> Self {
        Self::Limit(error)
    }
}
