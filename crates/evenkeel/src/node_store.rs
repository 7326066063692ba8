//! The nodes that were added at run time, and those that were drained: kept in a file of the data folder.
//!
//! Bound: whoever reads the file, after a crash too, finds it as it was before a change or after it. A node of the
//! config file wins over one of its name here. The file is its owner's alone, as keys of nodes are in it.

use std::fmt;
use std::path::Path;

use evenkeel_llm::NodeOptions;

use crate::config::{ConfigErrors, StoredNodes, nodes_to_toml, read_nodes};
use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "nodes.toml";

/// What is remembered of nodes beside the config file.
#[derive(Clone, Debug, Default)]
pub struct NodeStore(StoredNodes);

impl NodeStore {
    /// Reads what was written down last.
    pub fn read(data_dir: &Path) -> Result<Self, NodeStoreError> {
        match DataDir::read(data_dir, FILE)? {
            Some(text) => Ok(Self(read_nodes(&data_dir.join(FILE).to_string_lossy(), &text)?)),
            None => Ok(Self::default()),
        }
    }

    /// Writes it down.
    pub fn write(&self, folder: &DataDir) -> Result<(), NodeStoreError> {
        Ok(folder.replace(FILE, &nodes_to_toml(&self.0))?)
    }

    /// The nodes that were added.
    pub fn added(&self) -> &[NodeOptions] {
        &self.0.nodes
    }

    /// The names of those that take no work.
    pub fn drained(&self) -> &[String] {
        &self.0.drained
    }

    /// Remembers a node.
    pub fn add(&mut self, node: NodeOptions) {
        self.0.nodes.push(node);
    }

    /// Forgets a node; whether it was one that was added.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.0.nodes.len();
        self.0.nodes.retain(|node| node.name != name);
        self.resume(name);
        self.0.nodes.len() < before
    }

    /// Remembers that a node takes no work.
    pub fn drain(&mut self, name: &str) {
        if !self.0.drained.iter().any(|drained| drained == name) {
            self.0.drained.push(name.to_owned());
        }
    }

    /// Forgets that a node takes no work.
    pub fn resume(&mut self, name: &str) {
        self.0.drained.retain(|drained| drained != name);
    }

    /// Forgets the nodes whose names the config file has given to others, and names them.
    pub fn drop_overridden(&mut self, configured: &[NodeOptions]) -> Vec<String> {
        let taken = |node: &NodeOptions| configured.iter().any(|other| other.name == node.name);
        let (gone, kept) = self.0.nodes.drain(..).partition::<Vec<_>, _>(taken);
        self.0.nodes = kept;
        gone.into_iter().map(|node| node.name).collect()
    }

    /// Forgets that nodes were drained that nobody has any more.
    pub fn forget_unknown(&mut self, configured: &[NodeOptions]) {
        let StoredNodes { nodes, drained } = &mut self.0;
        drained.retain(|name| nodes.iter().chain(configured).any(|node| node.name == *name));
    }
}

/// Why the file is not read, or not written.
#[derive(Debug)]
pub enum NodeStoreError {
    /// Its lines cannot be.
    Settings(ConfigErrors),
    /// The folder does not do its part.
    Folder(DataDirError),
}

impl fmt::Display for NodeStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(mistakes) => mistakes.fmt(f),
            Self::Folder(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NodeStoreError {}

impl From<ConfigErrors> for NodeStoreError {
    fn from(mistakes: ConfigErrors) -> Self {
        Self::Settings(mistakes)
    }
}

impl From<DataDirError> for NodeStoreError {
    fn from(error: DataDirError) -> Self {
        Self::Folder(error)
    }
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
            models: vec!["a \"b\"".to_owned()],
            max_concurrency: Some(Concurrency::Fixed(3)),
            weight: Weight::new(2.5).unwrap(),
            api_key: Some("sk-1".to_owned().into()),
        }
    }

    #[test]
    fn what_is_written_reads_as_the_same_nodes() {
        let mut book = NodeStore::default();
        book.add(node("a"));
        book.add(NodeOptions {
            api_key: None,
            max_concurrency: Some(Concurrency::Adaptive),
            models: vec![],
            ..node("b")
        });
        book.drain("a");
        book.drain("a");
        let text = nodes_to_toml(&book.0);
        let again = read_nodes("nodes.toml", &text).unwrap();
        assert_eq!(nodes_to_toml(&again), text);
        assert_eq!((again.nodes.len(), again.drained), (2, vec!["a".to_owned()]));
        assert_eq!(again.nodes[0].api_key.as_ref().unwrap().expose(), "sk-1");
        assert!(!format!("{book:?}").contains("sk-1"));
    }

    #[test]
    fn a_file_of_a_later_version_is_refused_by_line() {
        let told = read_nodes("nodes.toml", "version = 2\n").unwrap_err().to_string();
        assert_eq!(told, "nodes.toml:1: version must be 1; a later evenkeel wrote this");
    }

    #[test]
    fn the_config_files_nodes_win_and_whom_nobody_has_is_forgotten() {
        let mut book = NodeStore::default();
        book.add(node("a"));
        book.add(node("b"));
        ["a", "b", "c"].into_iter().for_each(|name| book.drain(name));
        assert_eq!(book.drop_overridden(&[node("a")]), ["a"]);
        book.forget_unknown(&[node("a")]);
        assert_eq!((book.added().len(), book.drained()), (1, &["a".to_owned(), "b".to_owned()][..]));
        assert!(book.remove("b") && !book.remove("a"));
        assert_eq!(book.drained(), [] as [String; 0]);
    }
}
