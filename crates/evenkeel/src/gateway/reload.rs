//! Another configuration while requests walk: checked as a whole, then put to work.

use std::fmt;

use evenkeel_llm::NodeOptions;
use evenkeel_server::tls::TlsError;

use super::{Core, nodes};
use crate::config::{Config, ConfigErrors};
use crate::tenant_store::{TenantStore, TenantStoreError};

/// What settings outside the lists take effect without a restart.
const RELOADED: &[&str] = &["server.admin_key_hashes"];

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// How many tenants there are.
    pub tenants: usize,
    /// Nodes that came.
    pub nodes_added: Vec<String>,
    /// Nodes that went.
    pub nodes_removed: Vec<String>,
    /// Settings that changed and take effect when the server is started again.
    pub after_restart: Vec<String>,
    /// What of the nodes could not be done, and why.
    pub troubles: Vec<String>,
}

impl Core {
    /// Checks everything that can be wrong, then changes certificate, tenants and nodes.
    pub(super) fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        let mut state = self.state.lock();
        let book = TenantStore::read(state.folder.path(), config.tenants.clone(), &config.server.admin)?;
        // The listener stays where it is, so who reaches it does, too.
        state.started.check_exposure(book.all().len())?;
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.gate.reload(book.all(), config.server.admin.clone()).map_err(TenantStoreError::Tenants)?;
        let tenants = self.gate.tenants();
        let changed = state.started.shown.differences(&config.shown);
        let mut reloaded = ReloadReport {
            tenants: tenants.len(),
            after_restart: changed.into_iter().filter(|name| !RELOADED.contains(&name.as_str())).collect(),
            ..ReloadReport::default()
        };
        if let Err(error) = self.llm.set_tenants(&tenants.all()) {
            reloaded.troubles.push(error.to_string());
        }
        let mut added = state.nodes.clone();
        let configured = &config.llm.options.nodes;
        for name in nodes::yield_to(&mut added, configured) {
            if let Err(error) = self.llm.remove_node(&name) {
                reloaded.troubles.push(error.to_string());
            }
        }
        self.reload_nodes(&state.config.llm.options.nodes, configured, &mut reloaded);
        for name in added.drained().iter().filter(|name| reloaded.nodes_added.contains(name)) {
            if let Err(error) = self.llm.drain_node(name) {
                reloaded.troubles.push(error.to_string());
            }
        }
        if let Err(error) = added.write(&state.folder) {
            reloaded.troubles.push(error.to_string());
        }
        state.nodes = added;
        state.book = book;
        state.config = config;
        self.warn_if_open();
        Ok(reloaded)
    }

    /// Adds and removes what the two lists differ in; a node that was added by API is in neither, and stays.
    fn reload_nodes(&self, old: &[NodeOptions], new: &[NodeOptions], reloaded: &mut ReloadReport) {
        for node in old.iter().filter(|node| !new.iter().any(|other| is_same(node, other))) {
            match self.llm.remove_node(&node.name) {
                Ok(()) => reloaded.nodes_removed.push(node.name.clone()),
                Err(error) => reloaded.troubles.push(error.to_string()),
            }
        }
        for node in new.iter().filter(|node| !old.iter().any(|other| is_same(node, other))) {
            match self.llm.add_node(node.clone()) {
                Ok(()) => reloaded.nodes_added.push(node.name.clone()),
                Err(error) => reloaded.troubles.push(error.to_string()),
            }
        }
    }
}

fn is_same(node: &NodeOptions, other: &NodeOptions) -> bool {
    let key = |node: &NodeOptions| node.api_key.as_ref().map(|key| key.expose().clone());
    node.name == other.name
        && node.paths == other.paths
        && node.models == other.models
        && node.max_concurrency == other.max_concurrency
        && node.weight == other.weight
        && key(node) == key(other)
}

/// Why the old configuration stays.
#[derive(Debug)]
pub enum ReloadError {
    /// The configuration cannot be.
    Config(ConfigErrors),
    /// The tenants cannot be.
    Book(TenantStoreError),
    /// The certificate cannot be used.
    Tls(TlsError),
}

causes! { ReloadError: Config(ConfigErrors), Book(TenantStoreError), Tls(TlsError), }

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Book(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReloadError {}
