//! Changes the options of a registered node while requests are served.
//!
//! Guarantees: a node with the same URLs keeps its slots, health and requests in flight, so it never gets more requests
//! than the new limit allows beyond what already runs. A node with other URLs is a new node; it takes over the models of
//! the old one in the same step, until it was asked for its own, and the old one finishes its requests.

use std::sync::Arc;

use evenkeel_pipeline::{AdminState, ModelId, NodeSpec, OptimizedLoadManager, PathSpec, RegistryError};
use evenkeel_policy::id::NodeId;

use super::{Node, NodeError, NodeRegistry, RegisteredNode, Source};
use crate::options::NodeOptions;

/// Result of a change.
pub(crate) struct ChangedNode {
    pub(crate) node: Arc<Node>,
    /// The node that it replaces; `None` if it was changed in place.
    pub(crate) replaced: Option<Arc<Node>>,
    pub(crate) monitoring: Monitoring,
}

/// Effect of a change on the node's monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Monitoring {
    Unchanged,
    /// It has to be asked again, at another URL, with another key, or for its models.
    Restart,
}

impl NodeRegistry {
    /// Applies new options to the node of that name.
    pub(crate) fn change_options(&self, options: NodeOptions) -> Result<ChangedNode, NodeError> {
        let (origins, authorization) = super::parse(&options)?;
        let mut table = self.table.write();
        let name = options.name.clone();
        let index = table.find(&name).ok_or(NodeError::Unknown { name })?;
        let listed = table.model_ids(&options.models, self.models_max)?;
        let entry = &table.entries[index];
        // The models that the node had are the best guess until it was asked.
        let models = if options.models.is_empty() { entry.models.clone() } else { listed };
        let old = entry.node.clone();
        let is_moved = old.options.paths != options.paths || old.options.via != options.via;
        let source = match entry.source {
            _ if !options.models.is_empty() => Source::Configured,
            Source::Pending | Source::Configured => Source::Pending,
            Source::Discovered if is_moved => Source::Pending,
            Source::Discovered => Source::Discovered,
        };
        let asks_again = is_moved || source == Source::Pending || old.authorization != authorization;
        let id = if is_moved {
            self.replace_node(&old, &options, &models)?
        } else {
            self.change_in_place(entry, &options, &models)?;
            old.id
        };
        let node = Arc::new(Node { id, options, origins, authorization });
        let entry = &mut table.entries[index];
        if is_moved {
            *entry = RegisteredNode::new(node.clone(), models, source);
            table.retire(old.clone());
        } else {
            entry.node = node.clone();
            entry.models = models;
            entry.source = source;
        }
        let monitoring = if asks_again { Monitoring::Restart } else { Monitoring::Unchanged };
        Ok(ChangedNode { node, replaced: is_moved.then_some(old), monitoring })
    }

    fn change_in_place(
        &self,
        entry: &RegisteredNode,
        options: &NodeOptions,
        models: &[ModelId],
    ) -> Result<(), NodeError> {
        let id = entry.node.id;
        let has_new_slots = entry.node.options.max_concurrency != options.max_concurrency;
        let slots = self.slots(options, entry.reported_slots);
        self.scheduler.update(|pipeline, now| {
            if has_new_slots {
                pipeline.set_slots(now, id, slots)?;
            }
            pipeline.set_node_weight(now, id, options.weight)?;
            if entry.models != models {
                pipeline.set_node_models(now, id, models)?;
            }
            Ok(())
        })
    }

    /// Adds a node in place of another, which finishes its requests; a drained node is replaced by a drained one.
    fn replace_node(
        &self,
        old: &Node,
        options: &NodeOptions,
        models: &[ModelId],
    ) -> Result<NodeId, NodeError> {
        let paths = super::paths_to_choose(options);
        let spec = NodeSpec {
            slots: self.slots(options, None),
            transactions_max: None,
            weight: options.weight,
            models: models.to_vec(),
            paths: vec![PathSpec::default(); paths],
        };
        let metrics = self.scheduler.observer().metrics();
        let is_drained = |pipeline: &OptimizedLoadManager| {
            let status = pipeline.status();
            let old = status.nodes.iter().find(|node| node.node == old.id);
            old.is_some_and(|node| node.admin_state == AdminState::Draining)
        };
        let id = self.scheduler.update(|pipeline, now| {
            let is_drained = is_drained(pipeline);
            // Without models it gets no requests before it is drained, too.
            let id = pipeline.add_node(now, &NodeSpec { models: Vec::new(), ..spec.clone() })?;
            metrics.name_node(id, &options.name);
            if paths > 0 {
                metrics.add_paths(id);
            }
            if is_drained {
                pipeline.drain_node(now, id)?;
            }
            pipeline.set_node_models(now, id, models)?;
            pipeline.remove_node(now, old.id)?;
            Ok::<_, RegistryError>(id)
        })?;
        Ok(id)
    }
}
