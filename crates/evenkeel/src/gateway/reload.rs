//! Reloads the configuration while requests are served: validates it as a whole, then applies it.

use std::slice::from_ref;

use evenkeel_llm::NodeOptions;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::tenant::TenantSettings;
use evenkeel_server::tls::TlsError;
use serde_json::Value;
use serde_json::{Value as Json, json};
use thiserror::Error;

use super::links::LoadedLink;
use super::{Core, nodes};
use crate::admin_key::{self, AdminKeyError};
use crate::config::{Config, ConfigErrors, check_link, to_toml};
use crate::node_store::NodeStore;
use crate::tenant_store::{TenantStore, TenantStoreError};

/// Settings, other than the lists of tenants, nodes and links, that take effect without a restart.
///
/// The caller applies the log filter, because it installed the logger.
const RELOADED: &[&str] = &["server.admin_key_hashes", "llm.currency", "telemetry.log"];

/// Outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Number of tenants after the reload.
    pub tenants: usize,
    pub tenants_added: Vec<String>,
    pub tenants_changed: Vec<String>,
    pub tenants_removed: Vec<String>,
    pub nodes_added: Vec<String>,
    pub nodes_changed: Vec<String>,
    pub nodes_removed: Vec<String>,
    /// Links that are new or have changed.
    pub links_started: Vec<String>,
    pub links_removed: Vec<String>,
    pub admin_keys_changed: bool,
    /// Changed settings that need a restart to take effect.
    pub needs_restart: Vec<String>,
    /// Errors that affect single tenants, nodes or links, or the nodes file; everything else was applied.
    pub errors: Vec<String>,
}

impl ReloadReport {
    /// Returns what changed, for the audit log.
    pub(super) fn to_json(&self) -> Json {
        json!({
            "tenants": self.tenants, "tenants_added": self.tenants_added, "tenants_changed": self.tenants_changed,
            "tenants_removed": self.tenants_removed, "admin_keys_changed": self.admin_keys_changed,
            "nodes_added": self.nodes_added, "nodes_changed": self.nodes_changed, "nodes_removed": self.nodes_removed,
            "links_started": self.links_started, "links_removed": self.links_removed,
            "needs_restart": self.needs_restart, "errors": self.errors,
        })
    }
}

impl ReloadReport {
    /// Lists the differences between two lists of configured tenants.
    fn compare_tenants(&mut self, old: &[TenantSettings], new: &[TenantSettings]) {
        let names = |tenants: &[TenantSettings], other: &[TenantSettings]| {
            let is_other = |tenant: &&TenantSettings| other.iter().all(|known| known.name != tenant.name);
            tenants.iter().filter(is_other).map(|tenant| tenant.name.clone()).collect()
        };
        self.tenants_added = names(new, old);
        self.tenants_removed = names(old, new);
        let is_changed = |tenant: &&TenantSettings| {
            let before = old.iter().find(|known| known.name == tenant.name);
            // The text has all settings and the hashes of the keys.
            before.is_some_and(|before| to_toml(from_ref(before)) != to_toml(from_ref(tenant)))
        };
        self.tenants_changed = new.iter().filter(is_changed).map(|tenant| tenant.name.clone()).collect();
    }
}

fn is_same_keys(one: &[KeyHash], other: &[KeyHash]) -> bool {
    one.len() == other.len() && one.iter().all(|key| other.iter().any(|known| known.matches(key)))
}

impl Core {
    /// Validates the whole configuration, then replaces the certificate, tenants, links and nodes.
    pub(super) fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        let mut state = self.state.lock();
        let admin_keys = admin_key::hashes(&state.data_dir, &config.server.admin_key_hashes)?;
        let mut tenants = TenantStore::read(state.data_dir.path(), config.tenants.clone(), &admin_keys)?;
        // The listener keeps the address and TLS mode of the startup, so check the exposure of that configuration.
        state.started.check_exposure(tenants.all().len())?;
        let links = LoadedLink::load_all(&config)?;
        check_links_in_use(&state.nodes, &state.config, &config)?;
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        tenants.update_accounts(&state.data_dir)?;
        tenants.warn_reserved_names();
        self.auth.reload(tenants.all(), admin_keys.clone()).map_err(TenantStoreError::Tenants)?;
        let tenant_table = self.auth.tenants();
        let mut report = ReloadReport {
            tenants: tenant_table.len(),
            admin_keys_changed: !is_same_keys(&state.admin_keys, &admin_keys),
            needs_restart: needs_restart(&state.started, &config),
            ..ReloadReport::default()
        };
        report.compare_tenants(&state.tenants.configured, &tenants.configured);
        if let Err(error) = self.set_tenants() {
            report.errors.push(error.to_string());
        }
        self.llm.set_prices(config.llm.options.prices.clone());
        self.start_links(links, &mut report);
        let mut stored = state.nodes.clone();
        let configured = &config.llm.options.nodes;
        nodes::drop_overridden(&mut stored, configured);
        self.reload_nodes(&state.config.llm.options.nodes, configured, &mut report);
        self.llm.set_models(config.llm.options.models.clone());
        report.nodes_added.extend(self.add_stored_nodes(&stored, &config));
        report.links_removed = self.links.remove_others(&config.links);
        for name in stored.drained().iter().filter(|name| report.nodes_added.contains(name)) {
            if let Err(error) = self.llm.drain_node(name) {
                report.errors.push(error.to_string());
            }
        }
        if let Err(error) = stored.write(&state.data_dir) {
            report.errors.push(error.to_string());
        }
        state.nodes = stored;
        state.admin_keys = admin_keys;
        state.tenants = tenants;
        state.config = config;
        self.warn_if_open();
        self.warn_if_shared();
        Ok(report)
    }

    /// Starts the links that are new or have changed.
    fn start_links(&self, links: Vec<LoadedLink>, report: &mut ReloadReport) {
        for link in links {
            let name = link.name().to_owned();
            match self.links.start(link) {
                Ok(true) => report.links_started.push(name),
                Ok(false) => {}
                Err(error) => report.errors.push(error.to_string()),
            }
        }
    }

    /// Applies the difference between two lists of configured nodes. Nodes added at run time are in neither and are kept.
    fn reload_nodes(&self, old: &[NodeOptions], new: &[NodeOptions], report: &mut ReloadReport) {
        // Removals come last, so that a model that moves to another node is served all the time.
        for node in new.iter().filter(|node| !old.iter().any(|other| is_same(node, other))) {
            let (applied, names) = if self.llm.has_node(&node.name) {
                (self.llm.change_node(node.clone()), &mut report.nodes_changed)
            } else {
                (self.llm.add_node(node.clone()), &mut report.nodes_added)
            };
            match applied {
                Ok(()) => names.push(node.name.clone()),
                Err(error) => report.errors.push(error.to_string()),
            }
        }
        for node in old.iter().filter(|node| !new.iter().any(|other| node.name == other.name)) {
            match self.llm.remove_node(&node.name) {
                Ok(()) => report.nodes_removed.push(node.name.clone()),
                Err(error) => report.errors.push(error.to_string()),
            }
        }
    }
}

/// Returns the settings whose change needs a restart to take effect, as `section.key` or the name of a list.
fn needs_restart(started: &Config, loaded: &Config) -> Vec<String> {
    let mut changed = started.effective.differences(&loaded.effective);
    changed.retain(|name| !RELOADED.contains(&name.as_str()));
    if !started.sql.has_same_datasources(&loaded.sql) {
        changed.push("sql.datasources".to_owned());
    }
    if !started.cluster.has_same_peers(&loaded.cluster) {
        changed.push("cluster.peers".to_owned());
    }
    changed
}

/// Describes the configuration in force: that of the startup, with everything that a reload has changed since.
///
/// A setting that waits for a restart also has the value that it will get, as `after_restart`.
pub(super) fn in_force(started: &Config, loaded: &Config) -> Value {
    let mut shown = loaded.effective.to_json();
    let mut at_start = started.effective.to_json();
    for name in needs_restart(started, loaded) {
        if shown.get(&name).is_some() || at_start.get(&name).is_some() {
            shown[&name] = at_start[&name].take();
            continue;
        }
        let Some((section, key)) = name.rsplit_once('.') else { continue };
        let after = shown[section][key]["value"].take();
        let mut setting = at_start[section][key].take();
        setting["after_restart"] = after;
        shown[section][key] = setting;
    }
    shown
}

/// Rejects a configuration without a link that nodes added at run time use.
fn check_links_in_use(stored: &NodeStore, old: &Config, new: &Config) -> Result<(), ReloadError> {
    let is_configured = |name: &str| new.llm.options.nodes.iter().any(|node| node.name == name);
    for node in stored.added().iter().filter(|node| !is_configured(&node.name)) {
        let Some(link) = &node.via else { continue };
        if check_link(link, &old.links).is_ok() && check_link(link, &new.links).is_err() {
            return Err(ReloadError::LinkInUse { link: link.clone(), node: node.name.clone() });
        }
    }
    Ok(())
}

fn is_same(node: &NodeOptions, other: &NodeOptions) -> bool {
    let key = |node: &NodeOptions| node.api_key.as_ref().map(|key| key.expose().clone());
    node.name == other.name
        && node.paths == other.paths
        && node.via == other.via
        && node.models == other.models
        && node.max_concurrency == other.max_concurrency
        && node.weight == other.weight
        && node.extra_paths == other.extra_paths
        && node.inject_stream_options == other.inject_stream_options
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
    AdminKey(#[from] AdminKeyError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "link {link:?} is missing, but node {node:?}, which was added at run time, is reached over it; \
         keep the link, or remove the node with `evenkeel node remove {node}`"
    )]
    LinkInUse { link: String, node: String },
}
