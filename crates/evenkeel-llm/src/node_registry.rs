//! Registry of nodes and models: maps their names to the pipeline's IDs, and nodes to their URLs.
//!
//! Guarantees: only nodes add models; the names that clients send are looked up and never stored. A model keeps its ID
//! forever.
//!
//! Limits: the pipeline's limits of nodes and models.

mod change;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_actor::SpawnError;
use evenkeel_pipeline::{ModelId, NodeSpec, OptimizedLoadManager, PathSpec, RegistryError, Slots};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Instant;
use http::HeaderValue;
use parking_lot::RwLock;

pub(crate) use change::{ChangedNode, Monitoring};

use crate::monitor::{Engine, Finding, MonitorTarget, Report};
use crate::options::{Concurrency, NodeOptions};
use evenkeel_scheduler::RequestScheduler;
use evenkeel_upstream::{Origin, UrlError};

/// Maximum number of replaced nodes that are kept.
const RETIRED_MAX: usize = 64;

/// A registered node.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub options: NodeOptions,
    /// By [`PathId`]; at least one.
    origins: Vec<Origin>,
    authorization: Option<HeaderValue>,
}

impl Node {
    /// Returns the origin of a path, or of the only one.
    pub fn origin(&self, path: Option<PathId>) -> &Origin {
        let index = path.map_or(0, PathId::index);
        self.origins.get(index).unwrap_or(&self.origins[0])
    }

    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// Returns the `Authorization` header for the node, if it has an API key.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Reports whether the node's configuration lists this path.
    pub(crate) fn accepts(&self, path: &str) -> bool {
        self.options.extra_paths.iter().any(|accepted| accepted == path)
    }

    pub(crate) fn monitor_target(&self) -> MonitorTarget {
        let origins = self.origins.clone();
        let authorization = self.authorization.clone();
        MonitorTarget { node: self.id, origins, authorization }
    }
}

/// Nodes of a scheduler, and the models they serve.
pub(crate) struct NodeRegistry {
    scheduler: Arc<RequestScheduler>,
    /// Stays locked while the pipeline is updated, so that no request is sent to a node that is not in the table yet.
    table: RwLock<Table>,
    models_max: u32,
    adaptive: LimitConfig,
}

#[derive(Default)]
struct Table {
    entries: Vec<RegisteredNode>,
    models: HashMap<Arc<str>, ModelId>,
    /// By [`ModelId`].
    model_names: Vec<Arc<str>>,
    /// Nodes that were replaced, oldest first: a request may have got a slot there just before.
    retired: VecDeque<Arc<Node>>,
}

struct RegisteredNode {
    node: Arc<Node>,
    models: Vec<ModelId>,
    source: Source,
    engine: Option<Engine>,
    /// Concurrency that the node reports.
    reported_slots: Option<u32>,
    /// Cause of the last health check's failure, for a node with one path.
    health_error: Option<String>,
}

/// Source of a node's model list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Configured,
    /// It was never asked successfully.
    Pending,
    Discovered,
}

impl NodeRegistry {
    pub(crate) fn new(scheduler: Arc<RequestScheduler>, models_max: u32, adaptive: LimitConfig) -> Self {
        Self { scheduler, table: RwLock::default(), models_max, adaptive }
    }

    /// Adds a node, which can receive requests at once.
    pub(crate) fn add(&self, options: NodeOptions) -> Result<Arc<Node>, NodeError> {
        let (origins, authorization) = parse(&options)?;
        let name = options.name.clone();
        let mut table = self.table.write();
        if table.find(&name).is_some() {
            return Err(NodeError::Twice { name });
        }
        let models = table.model_ids(&options.models, self.models_max)?;
        let paths = paths_to_choose(&options);
        let spec = NodeSpec {
            slots: self.slots(&options, None),
            transactions_max: None,
            weight: options.weight,
            models: models.clone(),
            paths: vec![PathSpec::default(); paths],
        };
        let metrics = self.scheduler.observer().metrics();
        // The name is set before the first event of the node is recorded.
        let id = self.scheduler.update(|pipeline, now| {
            pipeline.add_node(now, &spec).inspect(|id| {
                metrics.name_node(*id, &name);
                if paths > 0 {
                    metrics.add_paths(*id);
                }
            })
        })?;
        let source = if options.models.is_empty() { Source::Pending } else { Source::Configured };
        let node = Arc::new(Node { id, options, origins, authorization });
        table.entries.push(RegisteredNode::new(node.clone(), models, source));
        Ok(node)
    }

    /// Drains a node: no new requests, those in flight finish.
    pub(crate) fn drain(&self, name: &str) -> Result<(), NodeError> {
        self.change(name, OptimizedLoadManager::drain_node)
    }

    /// Returns a drained node to service.
    pub(crate) fn resume(&self, name: &str) -> Result<(), NodeError> {
        self.change(name, OptimizedLoadManager::resume_node)
    }

    /// Removes a node; its requests in flight are allowed to finish.
    pub(crate) fn remove(&self, name: &str) -> Result<Arc<Node>, NodeError> {
        let mut table = self.table.write();
        let index = table.find(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })?;
        let id = table.entries[index].node.id;
        self.scheduler.update(|pipeline, now| pipeline.remove_node(now, id))?;
        Ok(table.entries.remove(index).node)
    }

    fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut OptimizedLoadManager, Instant, NodeId) -> Result<(), RegistryError>,
    ) -> Result<(), NodeError> {
        let table = self.table.read();
        let index = table.find(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })?;
        let id = table.entries[index].node.id;
        Ok(self.scheduler.update(|pipeline, now| change(pipeline, now, id))?)
    }

    /// Applies a monitor's report; configured values override discovered ones.
    pub(crate) fn apply_report(&self, Report { node, finding }: Report) {
        match finding {
            Finding::Checked { path, check } => {
                if let Probe::Answered { rtt } = check.probe() {
                    self.scheduler.observer().metrics().record_path_rtt(node, rtt);
                }
                self.scheduler.update(|pipeline, now| pipeline.handle_probe(now, node, path, check.probe()));
                if path.is_none() {
                    self.set_health_error(node, check.error());
                }
            }
            Finding::Models(models) => {
                if let Err(error) = self.set_models(node, &models) {
                    let node = self.scheduler.observer().metrics().node_name(node);
                    tracing::warn!(node = node.as_deref(), %error, "could not update the models of a node");
                }
            }
            Finding::Engine(engine) => self.edit(node, |entry| entry.engine = Some(engine)),
            Finding::Slots(reported) => {
                let is_fixed =
                    |node: &Node| matches!(node.options.max_concurrency, Some(Concurrency::Fixed(_)));
                let adjustable = self.get(node).filter(|node| !is_fixed(node) && reported > 0);
                self.edit(node, |entry| entry.reported_slots = Some(reported).filter(|slots| *slots > 0));
                let Some(known) = adjustable else { return };
                let slots = self.slots(&known.options, Some(reported));
                // The node may have been removed in the meantime.
                let _removed = self.scheduler.update(|pipeline, now| pipeline.set_slots(now, node, slots));
            }
            Finding::Load(load) => {
                self.scheduler.update(|pipeline, now| pipeline.handle_engine_load(now, node, load));
            }
        }
    }

    /// Records the cause of a failed health check, and logs it if it changed.
    fn set_health_error(&self, node: NodeId, error: Option<&str>) {
        if self.health_error(node).as_deref() == error {
            return;
        }
        self.edit(node, |entry| {
            let node = &entry.node.options.name;
            match error {
                Some(error) => tracing::warn!(node, error, "health check failed"),
                None => tracing::info!(node, "health check succeeded again"),
            }
            entry.health_error = error.map(str::to_owned);
        });
    }

    /// Returns the cause of the last health check's failure.
    pub(crate) fn health_error(&self, node: NodeId) -> Option<String> {
        let table = self.table.read();
        table.entries.iter().find(|entry| entry.node.id == node).and_then(|entry| entry.health_error.clone())
    }

    /// Returns the nodes whose last health check failed, and the causes.
    pub(crate) fn unhealthy(&self) -> Vec<(String, String)> {
        self.table.read().entries.iter().filter_map(RegisteredNode::named_error).collect()
    }

    /// Returns the nodes of a model whose last health check failed, and the causes.
    pub(crate) fn health_errors(&self, model: ModelId) -> Vec<(String, String)> {
        let table = self.table.read();
        let serving = table.entries.iter().filter(|entry| entry.models.contains(&model));
        serving.filter_map(RegisteredNode::named_error).collect()
    }

    /// Reports whether a node lists the model, even if it is drained.
    pub(crate) fn is_listed(&self, model: ModelId) -> bool {
        self.table.read().entries.iter().any(|entry| entry.models.contains(&model))
    }

    /// Returns a node's concurrency limit, given the one that it reports.
    fn slots(&self, options: &NodeOptions, reported: Option<u32>) -> Slots {
        match (options.max_concurrency, reported) {
            (Some(Concurrency::Fixed(slots)), _) | (None, Some(slots)) => Slots::Fixed(slots),
            (None | Some(Concurrency::Adaptive), None) => Slots::Adaptive(self.adaptive),
            (Some(Concurrency::Adaptive), Some(max)) => {
                let LimitConfig { min, initial, .. } = self.adaptive;
                let max = max.clamp(min, self.adaptive.max);
                Slots::Adaptive(LimitConfig { max, initial: initial.min(max), ..self.adaptive })
            }
        }
    }

    fn edit(&self, node: NodeId, edit: impl FnOnce(&mut RegisteredNode)) {
        let mut table = self.table.write();
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.node.id == node) {
            edit(entry);
        }
    }

    fn set_models(&self, node: NodeId, models: &[String]) -> Result<(), NodeError> {
        let mut table = self.table.write();
        let is_discovered =
            |entry: &RegisteredNode| entry.node.id == node && entry.source != Source::Configured;
        let Some(index) = table.entries.iter().position(is_discovered) else { return Ok(()) };
        table.entries[index].source = Source::Discovered;
        let models = table.model_ids(models, self.models_max)?;
        if table.entries[index].models != models {
            self.scheduler.update(|pipeline, now| pipeline.set_node_models(now, node, &models))?;
            table.entries[index].models = models;
        }
        Ok(())
    }

    /// Returns the causes for which nodes could not list their models yet; `None` if all that have to have done so.
    ///
    /// Such a node may serve a model that is not known. It has no cause before its first health check ends.
    pub(crate) fn pending_discoveries(&self) -> Option<Vec<(String, String)>> {
        let table = self.table.read();
        let mut pending = table.entries.iter().filter(|entry| entry.source == Source::Pending).peekable();
        pending.peek()?;
        Some(pending.filter_map(RegisteredNode::named_error).collect())
    }

    /// Reports whether there is no node at all, or a node without known models.
    pub(crate) fn has_node_without_models(&self) -> bool {
        let table = self.table.read();
        table.entries.is_empty() || table.entries.iter().any(|entry| entry.models.is_empty())
    }

    pub(crate) fn engine(&self, node: NodeId) -> Option<Engine> {
        let table = self.table.read();
        table.entries.iter().find(|entry| entry.node.id == node).and_then(|entry| entry.engine)
    }

    /// Reports whether a node has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.read().find(name).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.read().entries.len()
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<Node>> {
        let table = self.table.read();
        let mut known = table.entries.iter().map(|entry| &entry.node).chain(&table.retired);
        known.find(|known| known.id == node).cloned()
    }

    /// Finds a model by the name that a client sends.
    pub(crate) fn model(&self, name: &str) -> Option<ModelId> {
        let table = self.table.read();
        if let Some(model) = table.models.get(name) {
            return Some(*model);
        }
        // Ollama lists `name:latest`, and clients send `name`.
        if name.contains(':') {
            return None;
        }
        table.models.get(format!("{name}:latest").as_str()).copied()
    }

    /// Reports whether every node gets `stream_options.include_usage` for streams whose client did not set it.
    pub(crate) fn all_inject_stream_options(&self) -> bool {
        self.table.read().entries.iter().all(|entry| entry.node.options.inject_stream_options)
    }

    /// Reports whether a node accepts this extra path.
    pub(crate) fn any_accepts(&self, path: &str) -> bool {
        self.table.read().entries.iter().any(|entry| entry.node.accepts(path))
    }

    /// Reports whether all nodes of a model accept this extra path, so that any of them may be picked.
    pub(crate) fn all_accept(&self, model: &str, path: &str) -> bool {
        let Some(model) = self.model(model) else { return true };
        let table = self.table.read();
        let mut serving = table.entries.iter().filter(|entry| entry.models.contains(&model));
        serving.all(|entry| entry.node.accepts(path))
    }

    pub(crate) fn model_name(&self, model: ModelId) -> Option<Arc<str>> {
        self.table.read().model_names.get(model.0 as usize).cloned()
    }

    /// Lists the names of all models that a node serves, sorted.
    pub(crate) fn models(&self) -> Vec<Arc<str>> {
        let table = self.table.read();
        let served = table.entries.iter().flat_map(|entry| &entry.models);
        let mut names: Vec<_> = served.map(|model| table.model_names[model.0 as usize].clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl RegisteredNode {
    fn new(node: Arc<Node>, models: Vec<ModelId>, source: Source) -> Self {
        Self { node, models, source, engine: None, reported_slots: None, health_error: None }
    }

    fn named_error(&self) -> Option<(String, String)> {
        self.health_error.clone().map(|error| (self.node.options.name.clone(), error))
    }
}

impl Table {
    fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.node.options.name == name)
    }

    /// Keeps a replaced node for the requests that were sent to it.
    fn retire(&mut self, node: Arc<Node>) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back(node);
    }

    /// Returns the IDs of models, and assigns new ones to unknown names.
    fn model_ids(&mut self, names: &[String], models_max: u32) -> Result<Vec<ModelId>, NodeError> {
        let new = names.iter().filter(|name| !self.models.contains_key(name.as_str())).count();
        if self.model_names.len() + new > models_max as usize {
            return Err(NodeError::Registry(RegistryError::TooManyModels { models_max }));
        }
        let mut models: Vec<ModelId> = names.iter().map(|name| self.model_id(name)).collect();
        models.sort_unstable();
        models.dedup();
        Ok(models)
    }

    fn model_id(&mut self, name: &str) -> ModelId {
        if let Some(model) = self.models.get(name) {
            return *model;
        }
        let name = Arc::<str>::from(name);
        let model = ModelId(self.model_names.len() as u32);
        self.model_names.push(name.clone());
        self.models.insert(name, model);
        model
    }
}

/// Checks a node's options and parses its URLs and API key.
fn parse(options: &NodeOptions) -> Result<(Vec<Origin>, Option<HeaderValue>), NodeError> {
    let name = options.name.clone();
    if name.is_empty() {
        return Err(NodeError::NoName);
    }
    if options.paths.is_empty() {
        return Err(NodeError::NoUrl { name });
    }
    if options.max_concurrency == Some(Concurrency::Fixed(0)) {
        return Err(NodeError::NoSlots { name });
    }
    let parse = |url: &String| {
        let origin = Origin::parse(url)?;
        Ok(match &options.via {
            Some(link) => origin.over_link(link),
            None => origin,
        })
    };
    let origins: Result<Vec<_>, _> = options.paths.iter().map(parse).collect();
    let origins = origins.map_err(|error| NodeError::Url { name: name.clone(), error })?;
    let authorization = options.api_key.as_ref().map(|key| bearer(key.expose())).transpose();
    let authorization = authorization.map_err(|_| NodeError::Key { name })?;
    Ok((origins, authorization))
}

/// Returns the number of paths that the pipeline chooses from; a single one needs no choice.
fn paths_to_choose(options: &NodeOptions) -> usize {
    if options.paths.len() == 1 { 0 } else { options.paths.len() }
}

fn bearer(key: &str) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Failure to add, change or find a node.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NodeError {
    #[error("a node has no name")]
    NoName,
    #[error("two nodes are named {name:?}")]
    Twice { name: String },
    #[error("node {name:?} has no URL")]
    NoUrl { name: String },
    #[error("node {name:?}: max_concurrency must be at least 1")]
    NoSlots { name: String },
    #[error("node {name:?}: {error}")]
    Url {
        name: String,
        #[source]
        error: UrlError,
    },
    #[error("the API key of node {name:?} cannot be sent in a header")]
    Key { name: String },
    #[error("no node is named {name:?}")]
    Unknown { name: String },
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The node's monitor could not be started.
    #[error(transparent)]
    Monitor(#[from] SpawnError),
}
