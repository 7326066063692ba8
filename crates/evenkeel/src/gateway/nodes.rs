//! `POST`, `PATCH` and `DELETE /api/nodes…`: adds, changes, drains, resumes and removes nodes at run time. Changes
//! survive a restart, except the removal of a configured node.

use std::sync::Arc;

use evenkeel_llm::{NodeError, NodeOptions};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::percent;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::Access;
use evenkeel_upstream::LinkLocalError;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::Core;
use super::api::{json_response, read_object};
use crate::config::{Config, ConfigErrors, change_node, check_addresses, check_link, read_node};
use crate::node_store::{NodeStore, NodeStoreError};

const NODES: &str = "/api/nodes";
const NODE: &str = "/api/nodes/";

enum NodeEdit {
    Add(Box<NodeOptions>),
    Change { name: String, settings: Map<String, Value> },
    Drain { name: String },
    Resume { name: String },
    Remove { name: String },
}

/// Effect of a restart on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Persistence {
    Permanent,
    /// The removed node is configured, in the file or by `--node`, so a restart adds it again.
    UntilRestart,
}

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes) -> Result<(), RouteError> {
    let shared = core.clone();
    routes.add(Method::POST, NODES, Access::Admin, handler(move |call| add(shared.clone(), call)))?;
    let shared = core.clone();
    let set_admin_state = handler(move |call| set_admin_state(shared.clone(), call));
    for path in ["/api/nodes/{node}/drain", "/api/nodes/{node}/resume"] {
        routes.add(Method::POST, path, Access::Admin, set_admin_state.clone())?;
    }
    let shared = core.clone();
    let set = handler(move |call| set(shared.clone(), call));
    routes.add(Method::PATCH, "/api/nodes/{node}", Access::Admin, set)?;
    let shared = core.clone();
    let remove = handler(move |call| remove(shared.clone(), call));
    routes.add(Method::DELETE, "/api/nodes/{node}", Access::Admin, remove)
}

async fn add(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let settings = read_object(&mut call).await?;
    let node = read_node(&settings).map_err(|errors| ApiError::invalid(errors.to_string()))?;
    let name = node.name.clone();
    let persistence = change(core, NodeEdit::Add(Box::new(node))).await?;
    Ok(json_response(StatusCode::CREATED, &change_json(&name, persistence)))
}

/// Handles `PATCH /api/nodes/{name}`.
async fn set(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let name = node_name(&call)?;
    let settings = read_object(&mut call).await?;
    let persistence = change(core, NodeEdit::Change { name: name.clone(), settings }).await?;
    Ok(json_response(StatusCode::OK, &change_json(&name, persistence)))
}

/// Handles `POST /api/nodes/{name}/drain` and `…/resume`.
async fn set_admin_state(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path().strip_prefix(NODE).ok_or(ApiError::NoRoute)?;
    let (name, action) = path.rsplit_once('/').ok_or(ApiError::NoRoute)?;
    let name = percent::decode(name).ok_or(ApiError::NoRoute)?;
    let edit = match action {
        "drain" => NodeEdit::Drain { name: name.clone() },
        "resume" => NodeEdit::Resume { name: name.clone() },
        _ => return Err(ApiError::NoRoute),
    };
    let persistence = change(core, edit).await?;
    Ok(json_response(StatusCode::OK, &change_json(&name, persistence)))
}

/// Handles `DELETE /api/nodes/{name}`.
async fn remove(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let name = node_name(&call)?;
    let persistence = change(core, NodeEdit::Remove { name: name.clone() }).await?;
    Ok(json_response(StatusCode::OK, &change_json(&name, persistence)))
}

/// Returns the name in the path `/api/nodes/{name}`.
fn node_name(call: &ServerRequest) -> Result<String, ApiError> {
    call.request.uri().path().strip_prefix(NODE).and_then(percent::decode).ok_or(ApiError::NoRoute)
}

fn change_json(name: &str, persistence: Persistence) -> Value {
    json!({"name": name, "until_restart": persistence == Persistence::UntilRestart})
}

/// Applies a change on a thread that may block on disk writes.
async fn change(core: Arc<Core>, edit: NodeEdit) -> Result<Persistence, ApiError> {
    let changed = tokio::task::spawn_blocking(move || core.change_nodes(edit)).await;
    changed.map_err(|_| ApiError::Internal)?.map_err(api_error)
}

impl Core {
    /// Applies a change and stores it; reverts it if it cannot be stored.
    fn change_nodes(&self, edit: NodeEdit) -> Result<Persistence, ChangeError> {
        let mut state = self.state.lock();
        let mut next = state.nodes.clone();
        let mut persistence = Persistence::Permanent;
        match &edit {
            NodeEdit::Add(node) => {
                check_via(node, &state.config)?;
                check_addresses(node, state.started.server.link_local)?;
                self.llm.add_node(NodeOptions::clone(node))?;
                next.add(NodeOptions::clone(node));
            }
            NodeEdit::Change { name, settings } => {
                let node = changed_node(&state.nodes, name, settings, self.llm.has_node(name))?;
                check_via(&node, &state.config)?;
                check_addresses(&node, state.started.server.link_local)?;
                self.llm.change_node(node.clone())?;
                next.replace(node);
            }
            NodeEdit::Drain { name } => {
                self.llm.drain_node(name)?;
                next.drain(name);
            }
            NodeEdit::Resume { name } => {
                self.llm.resume_node(name)?;
                next.resume(name);
            }
            NodeEdit::Remove { name } => {
                if !self.llm.has_node(name) {
                    return Err(NodeError::Unknown { name: name.clone() }.into());
                }
                if !next.remove(name) {
                    persistence = Persistence::UntilRestart;
                }
            }
        }
        if let Err(error) = next.write(&state.data_dir) {
            let reverted = match &edit {
                NodeEdit::Add(node) => self.llm.remove_node(&node.name),
                NodeEdit::Change { name, .. } => {
                    state.nodes.find(name).map_or(Ok(()), |old| self.llm.change_node(old.clone()))
                }
                NodeEdit::Drain { name } => self.llm.resume_node(name),
                NodeEdit::Resume { name } => self.llm.drain_node(name),
                NodeEdit::Remove { .. } => Ok(()),
            };
            reverted?;
            return Err(error.into());
        }
        state.nodes = next;
        if let NodeEdit::Remove { name } = &edit {
            self.llm.remove_node(name)?;
        }
        Ok(persistence)
    }

    /// Adds stored nodes that are missing: all of them at the start, and after a reload those whose link is new. Returns
    /// their names.
    pub(super) fn add_stored_nodes(&self, stored: &NodeStore, config: &Config) -> Vec<String> {
        let mut names = Vec::new();
        for node in stored.added().iter().filter(|node| !self.llm.has_node(&node.name)) {
            let added = check_via(node, config)
                .and_then(|()| Ok(check_addresses(node, config.server.link_local)?))
                .and_then(|()| Ok(self.llm.add_node(node.clone())?));
            match added {
                Ok(()) => names.push(node.name.clone()),
                Err(error) => {
                    tracing::warn!(target: "evenkeel", node = node.name, %error, "could not restore a node that was added at run time; it gets no requests");
                }
            }
        }
        names
    }

    /// Adds the stored nodes, and drains those that were drained before the restart.
    pub(super) fn restore_nodes(&self) {
        let state = self.state.lock();
        self.add_stored_nodes(&state.nodes, &state.config);
        for name in state.nodes.drained() {
            if self.llm.has_node(name) && self.llm.drain_node(name).is_ok() {
                tracing::info!(target: "evenkeel", node = name, "node is still drained");
            }
        }
    }
}

/// Removes stored nodes that have the name of a configured one, and logs their names. Also clears the drained marks of
/// nodes that no longer exist.
pub(super) fn drop_overridden(store: &mut NodeStore, configured: &[NodeOptions]) {
    for name in store.drop_overridden(configured) {
        tracing::warn!(target: "evenkeel", node = name, "a configured node has the same name; dropped the node that was added at run time");
    }
    store.retain_existing(configured);
}

/// Applies settings to a node that was added at run time.
fn changed_node(
    stored: &NodeStore,
    name: &str,
    settings: &Map<String, Value>,
    is_registered: bool,
) -> Result<NodeOptions, ChangeError> {
    let name = name.to_owned();
    let Some(node) = stored.find(&name) else {
        let error = ChangeError::Configured { name: name.clone() };
        return Err(if is_registered { error } else { NodeError::Unknown { name }.into() });
    };
    let changed = change_node(node, settings.clone())?;
    if changed.name == name { Ok(changed) } else { Err(ChangeError::Renamed) }
}

/// Rejects a node that is reached over a link which is not configured.
fn check_via(node: &NodeOptions, config: &Config) -> Result<(), ChangeError> {
    let Some(link) = &node.via else { return Ok(()) };
    check_link(link, &config.links).map_err(ChangeError::UnknownLink)
}

/// Error when changing the nodes.
#[derive(Debug, Error)]
enum ChangeError {
    #[error("{0}")]
    UnknownLink(String),
    #[error("node {name:?} is in the config file; change it there, then reload (SIGHUP)")]
    Configured { name: String },
    #[error("the name of a node cannot be changed; add another node and remove this one")]
    Renamed,
    #[error(transparent)]
    Settings(#[from] ConfigErrors),
    #[error(transparent)]
    LinkLocal(#[from] LinkLocalError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Store(#[from] NodeStoreError),
}

fn api_error(error: ChangeError) -> ApiError {
    match error {
        ChangeError::Node(NodeError::Unknown { name }) => {
            ApiError::NotFound { what: format!("node {name:?}") }
        }
        ChangeError::Node(
            error @ (NodeError::NoName
            | NodeError::Twice { .. }
            | NodeError::NoUrl { .. }
            | NodeError::NoSlots { .. }
            | NodeError::Url { .. }
            | NodeError::Key { .. }
            | NodeError::Registry(_)
            | NodeError::Monitor(_)),
        ) => ApiError::invalid(error.to_string()),
        ChangeError::UnknownLink(_)
        | ChangeError::Configured { .. }
        | ChangeError::Renamed
        | ChangeError::Settings(_)
        | ChangeError::LinkLocal(_) => ApiError::invalid(error.to_string()),
        ChangeError::Store(error) => {
            tracing::error!(target: "evenkeel", %error, "could not store the change to the nodes; nothing changed");
            ApiError::Internal
        }
    }
}
