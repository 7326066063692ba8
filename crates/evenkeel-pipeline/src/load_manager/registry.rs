//! Adds, changes and removes nodes and tenants at run time.
//!
//! Limits: at most `nodes_max` nodes, draining ones included. A node is removed once its last request has ended.

use evenkeel_policy::id::{ModelId, NodeId, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::SwrrError;
use evenkeel_policy::time::Instant;
use evenkeel_policy::weight::Weight;

use crate::OptimizedLoadManager;
use crate::observe::Event;
use crate::pick_node::{AdminState, Node, NodeSpec, Slots};
use crate::queue::TenantRule;

impl OptimizedLoadManager {
    /// Adds a node, which gets work at once.
    pub fn add_node(&mut self, now: Instant, spec: &NodeSpec) -> Result<NodeId, RegistryError> {
        self.advance(now);
        let nodes_max = self.options.limits.nodes_max;
        if self.nodes.len() >= nodes_max {
            return Err(RegistryError::TooManyNodes { nodes_max });
        }
        self.check_models(&spec.models)?;
        let node = self.nodes.add(self.now, spec)?;
        self.wait_queue.reset_throughput(&spec.models);
        self.emit(Event::AdminState { node, state: AdminState::Serving });
        self.dispatch();
        Ok(node)
    }

    /// Replaces the models that a node serves.
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
        self.wait_queue.reset_throughput(models);
        self.dispatch();
        Ok(())
    }

    /// Changes a node's share of the work, relative to the other nodes.
    pub fn set_node_weight(
        &mut self,
        now: Instant,
        node: NodeId,
        weight: Weight,
    ) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let known = self.nodes.get_mut(node).ok_or(RegistryError::UnknownNode { node })?;
        known.set_weight(weight);
        self.dispatch();
        Ok(())
    }

    /// Changes a node's number of slots; requests in flight keep theirs.
    pub fn set_slots(&mut self, now: Instant, node: NodeId, slots: Slots) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let seed = self.options.seed ^ u64::from(node.0);
        let known = self.nodes.get_mut(node).ok_or(RegistryError::UnknownNode { node })?;
        let before = known.slots();
        known.capacity.change(self.now, slots, seed)?;
        let has_grown = before < known.slots();
        if has_grown {
            self.wait_queue.reset_throughput(known.models());
        }
        self.dispatch();
        Ok(())
    }

    /// Changes the number of slots that `BeginTx` requests may hold on a node; transactions in progress continue.
    pub fn set_transactions_max(
        &mut self,
        now: Instant,
        node: NodeId,
        transactions_max: Option<u32>,
    ) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let known = self.nodes.get_mut(node).ok_or(RegistryError::UnknownNode { node })?;
        let before = core::mem::replace(&mut known.transactions.max, transactions_max);
        let has_grown = before.unwrap_or(u32::MAX) < transactions_max.unwrap_or(u32::MAX);
        if has_grown {
            self.wait_queue.reset_throughput(known.models());
        }
        self.dispatch();
        Ok(())
    }

    /// Drains a node: its requests in flight finish, and it gets no new ones.
    pub fn drain_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_admin_state(now, node, AdminState::Draining)
    }

    /// Resumes a drained node.
    pub fn resume_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_admin_state(now, node, AdminState::Serving)
    }

    /// Removes a node once its requests in flight have finished; it gets no new ones.
    pub fn remove_node(&mut self, now: Instant, node: NodeId) -> Result<(), RegistryError> {
        self.set_admin_state(now, node, AdminState::Removing)
    }

    /// Reports whether a node takes new requests: it is in rotation, neither cooling down nor behind an open circuit
    /// breaker. Its slots may all be taken.
    pub fn is_available(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(Node::is_available)
    }

    /// Reports whether a request for the model may be sent to a node now or after a cooldown: a node in rotation serves it
    /// whose circuit breaker lets requests through. Its slots may all be taken.
    pub fn has_usable_node(&self, model: ModelId) -> bool {
        self.nodes.iter().any(|(_, node)| {
            node.admin_state == AdminState::Serving && node.serves(model) && node.breaker.allows()
        })
    }

    /// Spends a retry from the budget; `false` if nothing is left for the tenant, one whose requests were sent before.
    ///
    /// The driver calls this before it submits a failed request again in another form.
    pub fn spend_retry(&mut self, now: Instant, tenant: TenantId) -> bool {
        let part = self.wait_queue.tenant_mut(tenant).retries(self.options.retry.budget_rule());
        self.retries.spend_for(now, part)
    }

    /// Sets a tenant's weight and concurrency limit; requests that are already queued are rescheduled accordingly.
    pub fn set_tenant(
        &mut self,
        now: Instant,
        tenant: TenantId,
        rule: TenantRule,
    ) -> Result<(), RegistryError> {
        self.advance(now);
        let tenants_max = self.options.limits.tenants_max;
        if tenant.0 >= tenants_max {
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

    fn set_admin_state(
        &mut self,
        now: Instant,
        node: NodeId,
        state: AdminState,
    ) -> Result<(), RegistryError> {
        self.advance(now);
        self.check_node(node)?;
        let Some(known) = self.nodes.get_mut(node) else { return Ok(()) };
        known.admin_state = state;
        let is_idle = known.busy == 0;
        match state {
            AdminState::Serving => self.wait_queue.reset_throughput(known.models()),
            AdminState::Draining | AdminState::Removing => self.node_cache.invalidate(node, |_| true),
        }
        self.emit(Event::AdminState { node, state });
        if state == AdminState::Removing && is_idle {
            self.forget_node(node);
        }
        self.dispatch();
        Ok(())
    }

    /// Rejects unknown nodes; a node that is being removed counts as unknown.
    fn check_node(&self, node: NodeId) -> Result<(), RegistryError> {
        match self.nodes.get(node) {
            Some(known) if known.admin_state != AdminState::Removing => Ok(()),
            _ => Err(RegistryError::UnknownNode { node }),
        }
    }

    fn check_models(&self, models: &[ModelId]) -> Result<(), RegistryError> {
        let models_max = self.options.limits.models_max;
        match models.iter().find(|model| model.0 >= models_max) {
            Some(_) => Err(RegistryError::TooManyModels { models_max }),
            None => Ok(()),
        }
    }
}

/// Reason why a registry change was rejected.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RegistryError {
    /// The node was never added, or is being removed.
    #[error("node {} is unknown", node.0)]
    UnknownNode {
        /// The node as given.
        node: NodeId,
    },
    /// There are `nodes_max` nodes already.
    #[error("more than {nodes_max} nodes")]
    TooManyNodes {
        /// The maximum.
        nodes_max: usize,
    },
    /// A model id is at or above the limit.
    #[error("more than {models_max} models")]
    TooManyModels {
        /// The maximum.
        models_max: u32,
    },
    /// A tenant id is at or above the limit.
    #[error("more than {tenants_max} tenants")]
    TooManyTenants {
        /// The maximum.
        tenants_max: u32,
    },
    /// A path cannot be added.
    #[error(transparent)]
    Path(#[from] SwrrError),
    /// A setting of the node's adaptive concurrency limit is out of range.
    #[error(transparent)]
    Limit(#[from] SettingOutOfRange),
}
