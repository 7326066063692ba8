//! Nodes added at run time, and the names of drained nodes: stored in the data directory.
//!
//! Guarantees: the file is replaced atomically, so a crash leaves either the old or the new state. Only the file's
//! owner may read it, because it holds API keys.

use std::path::Path;

use evenkeel_llm::NodeOptions;
use thiserror::Error;

use crate::config::{ConfigErrors, StoredNodes, nodes_to_toml, read_nodes};
use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "nodes.toml";

/// Nodes added at run time, and names of drained nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeStore(StoredNodes);

impl NodeStore {
    /// Reads the nodes file; empty if it does not exist.
    pub fn read(data_dir: &Path) -> Result<Self, NodeStoreError> {
        match DataDir::read_private(data_dir, FILE)? {
            Some(text) => Ok(Self(read_nodes(&data_dir.join(FILE).to_string_lossy(), &text)?)),
            None => Ok(Self::default()),
        }
    }

    /// Stores the nodes in the data directory.
    pub fn write(&self, data_dir: &DataDir) -> Result<(), NodeStoreError> {
        Ok(data_dir.replace(FILE, &nodes_to_toml(&self.0))?)
    }

    pub fn added(&self) -> &[NodeOptions] {
        &self.0.nodes
    }

    /// Returns the names of drained nodes.
    pub fn drained(&self) -> &[String] {
        &self.0.drained
    }

    pub fn add(&mut self, node: NodeOptions) {
        self.0.nodes.push(node);
    }

    /// Returns the stored node of that name.
    pub fn find(&self, name: &str) -> Option<&NodeOptions> {
        self.0.nodes.iter().find(|node| node.name == name)
    }

    /// Replaces the stored node of the same name.
    pub fn replace(&mut self, node: NodeOptions) {
        if let Some(stored) = self.0.nodes.iter_mut().find(|stored| stored.name == node.name) {
            *stored = node;
        }
    }

    /// Removes a node and its drained mark; returns whether it was stored here (not in the config file).
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.0.nodes.len();
        self.0.nodes.retain(|node| node.name != name);
        self.resume(name);
        self.0.nodes.len() < before
    }

    /// Marks a node as drained.
    pub fn drain(&mut self, name: &str) {
        if !self.0.drained.iter().any(|drained| drained == name) {
            self.0.drained.push(name.to_owned());
        }
    }

    /// Clears the drained mark of a node.
    pub fn resume(&mut self, name: &str) {
        self.0.drained.retain(|drained| drained != name);
    }

    /// Removes stored nodes that have the name of a configured one, which overrides them; returns their names.
    pub fn drop_overridden(&mut self, configured: &[NodeOptions]) -> Vec<String> {
        let is_overridden = |node: &NodeOptions| configured.iter().any(|other| other.name == node.name);
        let (overridden, remaining) = self.0.nodes.drain(..).partition::<Vec<_>, _>(is_overridden);
        self.0.nodes = remaining;
        overridden.into_iter().map(|node| node.name).collect()
    }

    /// Clears the drained marks of nodes that no longer exist.
    pub fn retain_existing(&mut self, configured: &[NodeOptions]) {
        let StoredNodes { nodes, drained } = &mut self.0;
        drained.retain(|name| nodes.iter().chain(configured).any(|node| node.name == *name));
    }
}

/// Error when reading or writing the nodes file.
#[derive(Debug, Error)]
pub enum NodeStoreError {
    #[error(transparent)]
    Settings(#[from] ConfigErrors),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_llm::Concurrency;
    use evenkeel_policy::weight::Weight;

    fn node(name: &str) -> NodeOptions {
        NodeOptions {
            name: name.to_owned(),
            paths: vec!["http://10.0.0.5:8000".to_owned(), "http://10.1.0.5:8000".to_owned()],
            via: None,
            models: vec!["a \"b\"".to_owned()],
            max_concurrency: Some(Concurrency::Fixed(3)),
            weight: Weight::new(2.5).unwrap(),
            api_key: Some("sk-1".to_owned().into()),
            extra_paths: Vec::new(),
            inject_stream_options: true,
        }
    }

    #[test]
    fn stored_nodes_read_back_unchanged() {
        let mut store = NodeStore::default();
        store.add(node("a"));
        store.add(NodeOptions {
            api_key: None,
            extra_paths: vec!["/v1/tokenize".to_owned()],
            inject_stream_options: false,
            max_concurrency: Some(Concurrency::Adaptive),
            models: vec![],
            ..node("b")
        });
        store.drain("a");
        store.drain("a");
        let text = nodes_to_toml(&store.0);
        let reread = read_nodes("nodes.toml", &text).unwrap();
        assert_eq!(nodes_to_toml(&reread), text);
        assert_eq!((reread.nodes.len(), reread.drained), (2, vec!["a".to_owned()]));
        assert_eq!(reread.nodes[0].api_key.as_ref().unwrap().expose(), "sk-1");
        assert!(!format!("{store:?}").contains("sk-1"));
    }

    #[test]
    fn an_unsupported_version_is_rejected_with_its_line() {
        let error = read_nodes("nodes.toml", "version = 2\n").unwrap_err().to_string();
        assert_eq!(error, "nodes.toml:1: unsupported version 2; this evenkeel reads version 1");
    }

    #[test]
    fn configured_nodes_override_stored_ones_and_drained_marks_of_unknown_nodes_are_cleared() {
        let mut store = NodeStore::default();
        store.add(node("a"));
        store.add(node("b"));
        ["a", "b", "c"].into_iter().for_each(|name| store.drain(name));
        assert_eq!(store.drop_overridden(&[node("a")]), ["a"]);
        store.retain_existing(&[node("a")]);
        assert_eq!((store.added().len(), store.drained()), (1, &["a".to_owned(), "b".to_owned()][..]));
        assert!(store.remove("b") && !store.remove("a"));
        assert_eq!(store.drained(), [] as [String; 0]);
    }
}
