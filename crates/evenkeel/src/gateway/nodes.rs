//! `POST` and `DELETE /api/nodes…`: nodes that come, rest and go while requests walk, and after a restart still have.

use std::sync::Arc;

use evenkeel_llm::{NodeError, NodeOptions};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::percent;
use evenkeel_server::route::{RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::Access;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Core;
use super::api::{json_response, read_object};
use crate::config::read_node;
use crate::node_store::{NodeStore, NodeStoreError};

const NODES: &str = "/api/nodes";
const NODE: &str = "/api/nodes/";

/// What to do with a node.
enum NodeEdit {
    Add(Box<NodeOptions>),
    Drain { name: String },
    Resume { name: String },
    Remove { name: String },
}

/// Whether a change outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Persistence {
    ForGood,
    /// The config file says otherwise at the next start.
    UntilRestart,
}

pub(super) fn add_routes(core: &Arc<Core>, routes: &mut Routes) -> Result<(), RouteError> {
    let own = core.clone();
    routes.add(Method::POST, NODES, Access::Admin, handler(move |call| add(own.clone(), call)))?;
    let own = core.clone();
    routes.add(
        Method::POST,
        &format!("{NODE}*"),
        Access::Admin,
        handler(move |call| set_admin_state(own.clone(), call)),
    )?;
    let own = core.clone();
    routes.add(
        Method::DELETE,
        &format!("{NODE}*"),
        Access::Admin,
        handler(move |call| remove(own.clone(), call)),
    )
}

async fn add(core: Arc<Core>, mut call: ServerRequest) -> Result<Response, ApiError> {
    let settings = read_object(&mut call).await?;
    let node = read_node(&settings).map_err(|mistakes| ApiError::invalid(mistakes.to_string()))?;
    let name = node.name.clone();
    let lasts = change(core, NodeEdit::Add(Box::new(node))).await?;
    Ok(json_response(StatusCode::CREATED, &done(&name, lasts)))
}

/// Drains or resumes a node: `POST /api/nodes/{name}/drain`.
async fn set_admin_state(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let path = call.request.uri().path().strip_prefix(NODE).ok_or(ApiError::NoRoute)?;
    let (name, turn) = path.rsplit_once('/').ok_or(ApiError::NoRoute)?;
    let name = percent::decode(name).ok_or(ApiError::NoRoute)?;
    let wish = match turn {
        "drain" => NodeEdit::Drain { name: name.clone() },
        "resume" => NodeEdit::Resume { name: name.clone() },
        _ => return Err(ApiError::NoRoute),
    };
    let lasts = change(core, wish).await?;
    Ok(json_response(StatusCode::OK, &done(&name, lasts)))
}

/// Takes a node out: `DELETE /api/nodes/{name}`.
async fn remove(core: Arc<Core>, call: ServerRequest) -> Result<Response, ApiError> {
    let name = call.request.uri().path().strip_prefix(NODE).and_then(percent::decode);
    let name = name.ok_or(ApiError::NoRoute)?;
    let lasts = change(core, NodeEdit::Remove { name: name.clone() }).await?;
    Ok(json_response(StatusCode::OK, &done(&name, lasts)))
}

fn done(name: &str, lasts: Persistence) -> Value {
    json!({"name": name, "until_restart": lasts == Persistence::UntilRestart})
}

/// Writes to disk on a thread that may wait for it.
async fn change(core: Arc<Core>, wish: NodeEdit) -> Result<Persistence, ApiError> {
    let changed = tokio::task::spawn_blocking(move || core.change_nodes(wish)).await;
    changed.map_err(|_| ApiError::Internal)?.map_err(refused)
}

impl Core {
    /// Makes a change and writes it down; what cannot be written down is taken back.
    fn change_nodes(&self, wish: NodeEdit) -> Result<Persistence, ChangeError> {
        let mut state = self.state.lock();
        let mut next = state.nodes.clone();
        let mut lasts = Persistence::ForGood;
        match &wish {
            NodeEdit::Add(node) => {
                self.llm.add_node(NodeOptions::clone(node))?;
                next.add(NodeOptions::clone(node));
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
                    lasts = Persistence::UntilRestart;
                }
            }
        }
        if let Err(error) = next.write(&state.folder) {
            let taken_back = match &wish {
                NodeEdit::Add(node) => self.llm.remove_node(&node.name),
                NodeEdit::Drain { name } => self.llm.resume_node(name),
                NodeEdit::Resume { name } => self.llm.drain_node(name),
                NodeEdit::Remove { .. } => Ok(()),
            };
            taken_back?;
            return Err(error.into());
        }
        state.nodes = next;
        if let NodeEdit::Remove { name } = &wish {
            self.llm.remove_node(name)?;
        }
        Ok(lasts)
    }

    /// Takes in the nodes that were added at an earlier run, and drains those that were.
    pub(super) fn restore_nodes(&self) {
        let state = self.state.lock();
        for node in state.nodes.added() {
            if let Err(error) = self.llm.add_node(node.clone()) {
                tracing::warn!(target: "evenkeel", node = node.name, %error, "a node that was added at run time is left out");
            }
        }
        for name in state.nodes.drained() {
            if self.llm.has_node(name) && self.llm.drain_node(name).is_ok() {
                tracing::info!(target: "evenkeel", node = name, "still drained");
            }
        }
    }
}

/// Has the config file's nodes win over those of their names in the book, and says so.
pub(super) fn yield_to(book: &mut NodeStore, configured: &[NodeOptions]) -> Vec<String> {
    let gone = book.drop_overridden(configured);
    for name in &gone {
        tracing::warn!(target: "evenkeel", node = name, "the config file has a node of this name: it wins over the one that was added at run time");
    }
    book.forget_unknown(configured);
    gone
}

/// Why nodes stay as they were.
#[derive(Debug)]
enum ChangeError {
    /// The door does not take it.
    Node(NodeError),
    /// It cannot be written down.
    Book(NodeStoreError),
}

causes! { ChangeError: Node(NodeError), Book(NodeStoreError), }

fn refused(error: ChangeError) -> ApiError {
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
        ChangeError::Book(error) => {
            tracing::error!(target: "evenkeel", %error, "nodes not changed");
            ApiError::Internal
        }
    }
}
