//! Nodes and models by name: what a name means to the walk, and where a node of the walk listens.
//!
//! Bound: as many nodes and models as the walk takes. Only nodes make models known: what clients ask for is looked up
//! and never kept. A model keeps its number for good.

use core::fmt;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_actor::SpawnError;
use evenkeel_pipeline::{ModelId, NodeSpec, OptimizedLoadManager, PathSpec, RegistryError, Slots};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::time::Instant;
use http::HeaderValue;
use parking_lot::RwLock;

use crate::monitor::{Engine, Finding, HealthCheckResult, MonitorTarget, Report};
use crate::options::{Concurrency, NodeOptions};
use evenkeel_scheduler::RequestScheduler;
use evenkeel_upstream::{BadUrl, Origin};

/// A node as requests meet it.
#[derive(Debug)]
pub struct Node {
    /// Names it to every decision.
    pub id: NodeId,
    /// What it was set up with.
    pub options: NodeOptions,
    /// Where it listens, by [`PathId`]; one at least.
    origins: Vec<Origin>,
    /// What it is called with.
    authorization: Option<HeaderValue>,
}

impl Node {
    /// Where it listens, over one of its paths or the only one.
    pub fn origin(&self, path: Option<PathId>) -> &Origin {
        let at = path.map_or(0, PathId::index);
        self.origins.get(at).unwrap_or(&self.origins[0])
    }

    /// Where it listens, over each of its paths.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// What it is called with, if it wants a key.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// The node as monitors know it.
    pub(crate) fn watched(&self) -> MonitorTarget {
        let origins = self.origins.clone();
        let authorization = self.authorization.clone();
        MonitorTarget { node: self.id, origins, authorization }
    }
}

/// The nodes of a walk, and the models they serve.
pub(crate) struct NodeRegistry {
    walk: Arc<RequestScheduler>,
    /// Held while the walk is told, so that nobody is sent to a node that cannot be found here.
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
}

struct RegisteredNode {
    node: Arc<Node>,
    models: Vec<ModelId>,
    source: Source,
    /// What it says it is.
    engine: Option<Engine>,
}

/// Who says what a node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Whoever set it up.
    Configured,
    /// The node, which has not been heard of yet.
    Pending,
    /// The node, which was heard of, or could not be.
    Discovered,
}

impl NodeRegistry {
    pub(crate) fn new(walk: Arc<RequestScheduler>, models_max: u32, adaptive: LimitConfig) -> Self {
        Self { walk, table: RwLock::default(), models_max, adaptive }
    }

    /// Adds a node, which takes work at once.
    pub(crate) fn add(&self, options: NodeOptions) -> Result<Arc<Node>, NodeError> {
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
        let origins: Result<Vec<_>, _> = options.paths.iter().map(|url| Origin::parse(url)).collect();
        let origins = origins.map_err(|error| NodeError::Url { name: name.clone(), error })?;
        let authorization = options.api_key.as_ref().map(|key| bearer(key.expose())).transpose();
        let authorization = authorization.map_err(|_| NodeError::Key { name: name.clone() })?;
        let mut table = self.table.write();
        if table.find(&name).is_some() {
            return Err(NodeError::Twice { name });
        }
        let models = table.number(&options.models, self.models_max)?;
        // With one way only there is nothing to choose.
        let ways = if origins.len() == 1 { 0 } else { origins.len() };
        let spec = NodeSpec {
            slots: self.slots(&options, None),
            weight: options.weight,
            models: models.clone(),
            paths: vec![PathSpec::default(); ways],
        };
        let meters = self.walk.watch().metrics();
        // Named before anything is told of it.
        let id = self
            .walk
            .update(|machine, now| machine.add_node(now, &spec).inspect(|id| meters.name_node(*id, &name)))?;
        let source = if options.models.is_empty() { Source::Pending } else { Source::Configured };
        let node = Arc::new(Node { id, options, origins, authorization });
        table.entries.push(RegisteredNode { node: node.clone(), models, source, engine: None });
        Ok(node)
    }

    /// Lets a node finish what it has and take nothing new.
    pub(crate) fn drain(&self, name: &str) -> Result<(), NodeError> {
        self.change(name, OptimizedLoadManager::drain_node)
    }

    /// Lets a drained node take work again.
    pub(crate) fn resume(&self, name: &str) -> Result<(), NodeError> {
        self.change(name, OptimizedLoadManager::resume_node)
    }

    /// Takes a node out; what it has is left to it.
    pub(crate) fn remove(&self, name: &str) -> Result<Arc<Node>, NodeError> {
        let mut table = self.table.write();
        let at = table.find(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })?;
        let id = table.entries[at].node.id;
        self.walk.update(|machine, now| machine.remove_node(now, id))?;
        Ok(table.entries.remove(at).node)
    }

    fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut OptimizedLoadManager, Instant, NodeId) -> Result<(), RegistryError>,
    ) -> Result<(), NodeError> {
        let table = self.table.read();
        let at = table.find(name).ok_or_else(|| NodeError::Unknown { name: name.to_owned() })?;
        let id = table.entries[at].node.id;
        Ok(self.walk.update(|machine, now| change(machine, now, id))?)
    }

    /// Takes in what was found out about a node; what was set up by hand stays as it is.
    pub(crate) fn apply_report(&self, Report { node, finding }: Report) {
        match finding {
            Finding::Checked { path, check } => {
                if let (HealthCheckResult::Healthy { rtt } | HealthCheckResult::Busy { rtt }, Some(_)) =
                    (&check, path)
                {
                    self.walk.watch().paths().rtt.record(*rtt);
                }
                self.walk.update(|machine, now| machine.handle_probe(now, node, path, check.probe()));
                if matches!(check, HealthCheckResult::TimedOut | HealthCheckResult::Failed { .. })
                    && self.has_pending_discovery()
                {
                    self.edit(node, RegisteredNode::heard);
                }
            }
            Finding::Models(models) => {
                if let Err(error) = self.set_models(node, &models) {
                    let node = self.walk.watch().metrics().node_name(node);
                    tracing::warn!(node = node.as_deref(), %error, "models not taken over");
                }
            }
            Finding::Engine(engine) => self.edit(node, |entry| entry.engine = Some(engine)),
            Finding::Slots(told) => {
                let is_fixed =
                    |node: &Node| matches!(node.options.max_concurrency, Some(Concurrency::Fixed(_)));
                let Some(known) = self.get(node).filter(|node| !is_fixed(node) && 0 < told) else { return };
                let slots = self.slots(&known.options, Some(told));
                // A node that leaves meanwhile needs none.
                let _gone = self.walk.update(|machine, now| machine.set_slots(now, node, slots));
            }
            Finding::Load(load) => {
                self.walk.update(|machine, now| machine.handle_engine_load(now, node, load));
            }
        }
    }

    /// How many requests a node is given that says it works on `told` at once, or does not say.
    fn slots(&self, options: &NodeOptions, told: Option<u32>) -> Slots {
        match (options.max_concurrency, told) {
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
        let asked = |entry: &RegisteredNode| entry.node.id == node && entry.source != Source::Configured;
        let Some(at) = table.entries.iter().position(asked) else { return Ok(()) };
        table.entries[at].heard();
        let models = table.number(models, self.models_max)?;
        if table.entries[at].models != models {
            self.walk.update(|machine, now| machine.set_node_models(now, node, &models))?;
            table.entries[at].models = models;
        }
        Ok(())
    }

    /// Tells whether a node may still say that it serves a model nobody knows yet.
    pub(crate) fn has_pending_discovery(&self) -> bool {
        self.table.read().entries.iter().any(|entry| entry.source == Source::Pending)
    }

    /// Tells whether there is no node, or one that has not been heard to serve anything.
    pub(crate) fn has_node_without_models(&self) -> bool {
        let table = self.table.read();
        table.entries.is_empty() || table.entries.iter().any(|entry| entry.models.is_empty())
    }

    /// What a node says it is.
    pub(crate) fn engine(&self, node: NodeId) -> Option<Engine> {
        let table = self.table.read();
        table.entries.iter().find(|entry| entry.node.id == node).and_then(|entry| entry.engine)
    }

    /// Tells whether there is a node of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.read().find(name).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.read().entries.len()
    }

    /// Finds a node of the walk.
    pub(crate) fn get(&self, node: NodeId) -> Option<Arc<Node>> {
        let table = self.table.read();
        table.entries.iter().find(|entry| entry.node.id == node).map(|entry| entry.node.clone())
    }

    /// Finds the model that a client means.
    pub(crate) fn model(&self, name: &str) -> Option<ModelId> {
        let table = self.table.read();
        if let Some(model) = table.models.get(name) {
            return Some(*model);
        }
        // Ollama lists `name:latest` and is asked for `name`.
        if name.contains(':') {
            return None;
        }
        table.models.get(format!("{name}:latest").as_str()).copied()
    }

    /// Names a model.
    pub(crate) fn model_name(&self, model: ModelId) -> Option<Arc<str>> {
        self.table.read().model_names.get(model.0 as usize).cloned()
    }

    /// Lists the models that any node serves, by name.
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
    fn heard(&mut self) {
        if self.source == Source::Pending {
            self.source = Source::Discovered;
        }
    }
}

impl Table {
    fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.node.options.name == name)
    }

    /// Gives every model its number, old ones the one they have.
    fn number(&mut self, names: &[String], models_max: u32) -> Result<Vec<ModelId>, NodeError> {
        let new = names.iter().filter(|name| !self.models.contains_key(name.as_str())).count();
        if (models_max as usize) < self.model_names.len() + new {
            return Err(NodeError::Walk(RegistryError::TooManyModels { models_max }));
        }
        let mut models: Vec<ModelId> = names.iter().map(|name| self.number_one(name)).collect();
        models.sort_unstable();
        models.dedup();
        Ok(models)
    }

    fn number_one(&mut self, name: &str) -> ModelId {
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

fn bearer(key: &str) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Why a node is not added, changed or found.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeError {
    /// It has no name.
    NoName,
    /// Another node has its name.
    Twice {
        /// The name.
        name: String,
    },
    /// It listens nowhere.
    NoUrl {
        /// Its name.
        name: String,
    },
    /// It takes no requests.
    NoSlots {
        /// Its name.
        name: String,
    },
    /// Where it listens cannot be read.
    Url {
        /// Its name.
        name: String,
        /// What is wrong with it.
        error: BadUrl,
    },
    /// Its key cannot be sent.
    Key {
        /// Its name.
        name: String,
    },
    /// No node has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The walk does not take it.
    Walk(RegistryError),
    /// Nobody can look after it.
    Monitor(SpawnError),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str("a node has no name"),
            Self::Twice { name } => write!(f, "two nodes are named {name:?}"),
            Self::NoUrl { name } => write!(f, "node {name:?} has no URL"),
            Self::NoSlots { name } => write!(f, "node {name:?} takes no requests"),
            Self::Url { name, error } => write!(f, "node {name:?}: {error}"),
            Self::Key { name } => write!(f, "the key of node {name:?} cannot be sent in a header"),
            Self::Unknown { name } => write!(f, "no node is named {name:?}"),
            Self::Walk(error) => error.fmt(f),
            Self::Monitor(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NodeError {}

impl From<RegistryError> for NodeError {
    fn from(error: RegistryError) -> Self {
        Self::Walk(error)
    }
}

impl From<SpawnError> for NodeError {
    fn from(error: SpawnError) -> Self {
        Self::Monitor(error)
    }
}
