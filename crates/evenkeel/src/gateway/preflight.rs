//! Loads and validates the files that a gateway needs before it listens; `evenkeel check` does the same.

use std::sync::Arc;

use evenkeel_server::tls::Tls;
use evenkeel_server::usage_ledger::UsageRows;
use evenkeel_upstream::TlsRoots;

use super::links::LoadedLink;
use crate::config::{Config, ConfigError, ConfigErrors, ValueSource, unpriced_models};
use crate::node_store::{NodeStore, NodeStoreError};
use crate::tenant_store::{TenantStore, TenantStoreError};
use crate::usage_store::UsageStore;

/// Loaded certificates and keys of links, and stored tenants, nodes and usage.
#[derive(Debug)]
pub struct StartupFiles {
    pub(super) tenants: TenantStore,
    pub(super) nodes: NodeStore,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) roots: TlsRoots,
    pub(super) links: Vec<LoadedLink>,
    pub(super) usage: UsageRows,
}

impl StartupFiles {
    /// Loads every file; on failure returns the errors in all of them. Creates no files.
    pub fn load(config: &Config) -> Result<Self, ConfigErrors> {
        Self::check_data_dir(config)?;
        let data_dir = &config.server.data_dir;
        let tenants = TenantStore::read(data_dir, config.tenants.clone(), &config.server.admin_key_hashes)
            .map_err(|error| match error {
                TenantStoreError::Settings(errors) => errors,
                other => ConfigErrors::without_origin(other),
            })
            .and_then(|tenants| {
                config.check_exposure(tenants.all().len())?;
                Ok(tenants)
            });
        let nodes = NodeStore::read(data_dir).map_err(|error| match error {
            NodeStoreError::Settings(errors) => errors,
            other @ NodeStoreError::DataDir(_) => ConfigErrors::without_origin(other),
        });
        let tls = load_tls(config);
        let roots = load_roots(config);
        let mut errors = Vec::new();
        let tenants = collect(&mut errors, tenants);
        let nodes = collect(&mut errors, nodes);
        let tls = collect(&mut errors, tls);
        let roots = collect(&mut errors, roots);
        let links = collect(&mut errors, LoadedLink::load_all(config));
        let usage = UsageStore::new(data_dir).read_recent().map_err(ConfigErrors::without_origin);
        let usage = collect(&mut errors, usage);
        match (tenants, nodes, tls, roots, links, usage) {
            (Some(tenants), Some(nodes), Some(tls), Some(roots), Some(links), Some(usage)) => {
                Ok(Self { tenants, nodes, tls, roots, links, usage })
            }
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Describes settings that are valid but probably not meant.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        unpriced_models(&config.llm, &self.tenants.all())
    }

    /// Rejects a data directory path that is not a directory. A missing directory is created when the server starts.
    pub fn check_data_dir(config: &Config) -> Result<(), ConfigErrors> {
        let data_dir = &config.server.data_dir;
        if data_dir.exists() && !data_dir.is_dir() {
            let message = format!("{}: not a directory", data_dir.display());
            return Err(ConfigErrors::at(config.data_dir_origin(), message));
        }
        Ok(())
    }
}

fn collect<T>(errors: &mut Vec<ConfigError>, result: Result<T, ConfigErrors>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(ConfigErrors(more)) => {
            errors.extend(more);
            None
        }
    }
}

fn load_tls(config: &Config) -> Result<Option<Arc<Tls>>, ConfigErrors> {
    let Some(files) = &config.server.tls else { return Ok(None) };
    let loaded = Tls::load(&files.cert, &files.key);
    loaded.map(|tls| Some(Arc::new(tls))).map_err(|error| at(config.tls_origin(), "[server.tls]", &error))
}

fn load_roots(config: &Config) -> Result<TlsRoots, ConfigErrors> {
    let Some(file) = &config.llm.ca_file else { return Ok(TlsRoots::public()) };
    TlsRoots::public().with_file(file).map_err(|error| at(config.ca_file_origin(), "ca_file", &error))
}

fn at(origin: ValueSource, setting: &str, error: &dyn std::error::Error) -> ConfigErrors {
    ConfigErrors::at(origin, format_args!("{setting}: {error}"))
}
