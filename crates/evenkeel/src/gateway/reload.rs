//! Reloads the configuration while requests are served: validates it as a whole, then applies it.

use evenkeel_llm::NodeOptions;
use evenkeel_server::tls::TlsError;
use thiserror::Error;

use super::{Core, nodes};
use crate::config::{Config, ConfigErrors};
use crate::tenant_store::{TenantStore, TenantStoreError};

/// Settings outside lists that take effect without a restart.
const RELOADED: &[&str] = &["server.admin_key_hashes"];

/// Outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Number of tenants after the reload.
    pub tenants: usize,
    pub nodes_added: Vec<String>,
    pub nodes_removed: Vec<String>,
    /// Changed settings that need a restart to take effect.
    pub needs_restart: Vec<String>,
    /// Errors that affect single tenants or nodes, or the nodes file; everything else was applied.
    pub errors: Vec<String>,
}

impl Core {
    /// Validates the whole configuration, then replaces the certificate, tenants and nodes.
    pub(super) fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        let mut state = self.state.lock();
        let admin_key_hashes = &config.server.admin_key_hashes;
        let tenants = TenantStore::read(state.data_dir.path(), config.tenants.clone(), admin_key_hashes)?;
        // The listener keeps the address and TLS mode of the startup, so check the exposure of that configuration.
        state.started.check_exposure(tenants.all().len())?;
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.auth.reload(tenants.all(), admin_key_hashes.clone()).map_err(TenantStoreError::Tenants)?;
        let tenant_table = self.auth.tenants();
        let mut changed = state.started.effective.differences(&config.effective);
        if !state.started.sql.has_same_datasources(&config.sql) {
            changed.push("sql.datasources".to_owned());
        }
        if !state.started.cluster.has_same_peers(&config.cluster) {
            changed.push("cluster.peers".to_owned());
        }
        let mut report = ReloadReport {
            tenants: tenant_table.len(),
            needs_restart: changed.into_iter().filter(|name| !RELOADED.contains(&name.as_str())).collect(),
            ..ReloadReport::default()
        };
        if let Err(error) = self.set_tenants() {
            report.errors.push(error.to_string());
        }
        let mut stored = state.nodes.clone();
        let configured = &config.llm.options.nodes;
        for name in nodes::drop_overridden(&mut stored, configured) {
            if let Err(error) = self.llm.remove_node(&name) {
                report.errors.push(error.to_string());
            }
        }
        self.reload_nodes(&state.config.llm.options.nodes, configured, &mut report);
        for name in stored.drained().iter().filter(|name| report.nodes_added.contains(name)) {
            if let Err(error) = self.llm.drain_node(name) {
                report.errors.push(error.to_string());
            }
        }
        if let Err(error) = stored.write(&state.data_dir) {
            report.errors.push(error.to_string());
        }
        state.nodes = stored;
        state.tenants = tenants;
        state.config = config;
        self.warn_if_open();
        Ok(report)
    }

    /// Applies the difference between two lists of configured nodes. Nodes added at run time are in neither and are kept.
    fn reload_nodes(&self, old: &[NodeOptions], new: &[NodeOptions], report: &mut ReloadReport) {
        for node in old.iter().filter(|node| !new.iter().any(|other| is_same(node, other))) {
            match self.llm.remove_node(&node.name) {
                Ok(()) => report.nodes_removed.push(node.name.clone()),
                Err(error) => report.errors.push(error.to_string()),
            }
        }
        for node in new.iter().filter(|node| !old.iter().any(|other| is_same(node, other))) {
            match self.llm.add_node(node.clone()) {
                Ok(()) => report.nodes_added.push(node.name.clone()),
                Err(error) => report.errors.push(error.to_string()),
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

/// Reason to reject a reload; the current configuration is kept.
#[derive(Debug, Error)]
pub enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Tenants(#[from] TenantStoreError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}
