//! Configuration: a TOML file, environment variables and flags, parsed and validated once at startup.
//!
//! Guarantees: all errors are reported at once, each with its line, variable or flag. An unknown key is an error, never
//! ignored. Neither errors nor the effective configuration contain a secret.
//!
//! Limits: a file has at most [`FILE_BYTES_MAX`] bytes.

mod actor;
mod cluster;
mod effective;
mod link;
mod links;
mod llm;
mod load;
mod models;
mod prices;
mod queue;
mod reader;
mod renamed_keys;
mod server;
mod source;
mod sql;
mod suggest;
mod telemetry;
mod tenants;
mod value;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use evenkeel_actor::ActorSystemConfig;
use evenkeel_llm::NodeOptions;
use evenkeel_pipeline::PipelineOptions;
use evenkeel_server::tenant::{TenantSettings, check_exposure};
use serde_json::{Map, Value as Json};
use toml::de::DeTable;

pub use cluster::{ClusterConfig, PeerConfig};
pub use effective::{EffectiveConfig, Setting};
pub use link::LinkConfig;
pub use links::{LinkSettings, check_link};
pub use llm::{LlmConfig, StoredNodes};
pub(crate) use llm::{check_addresses, check_name, nodes_to_toml};
pub use prices::unpriced_models;
pub use queue::{QueueConfig, StoreKind};
pub use reader::Flag;
pub use server::{DATA_DIR_DEFAULT, LISTEN_DEFAULT, ServerConfig, TlsFiles};
pub use source::{ConfigError, ConfigErrors, ValueSource};
pub use sql::{DatabaseAddress, DatasourceConfig, SqlConfig};
pub use telemetry::{TelemetryConfig, TraceConfig};
pub use tenants::describe;
pub(crate) use tenants::{budget_to_json, table_to_toml, to_toml};
pub use value::fingerprint;

use reader::{Reader, Section};
use tenants::TenantsFrom;

/// Maximum size of a file; enough for the maximum number of tenants and keys.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Inputs of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// Path, used in error messages, and contents.
    pub file: Option<(String, String)>,
    pub env: BTreeMap<String, String>,
    pub flags: Vec<Flag>,
    /// Nodes given by flag, each `[NAME=]URL`.
    pub nodes: Vec<String>,
}

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub server: ServerConfig,
    pub llm: LlmConfig,
    pub queue: QueueConfig,
    /// Actor system of the queues.
    pub actor: ActorSystemConfig,
    pub sql: SqlConfig,
    pub cluster: ClusterConfig,
    pub link: LinkConfig,
    pub links: Vec<LinkSettings>,
    /// Tenants in the config file, without those in the data directory.
    pub tenants: Vec<TenantSettings>,
    pub telemetry: TelemetryConfig,
    pub effective: EffectiveConfig,
}

impl Config {
    /// Reads and validates a configuration; on failure returns all errors.
    pub fn read(sources: &ConfigSources) -> Result<Self, ConfigErrors> {
        let (path, text) = match &sources.file {
            Some((path, text)) => (path.as_str(), text.as_str()),
            None => ("", ""),
        };
        with_file(path, text, &sources.env, &sources.flags, |root| {
            let server = server::read(&mut root.section("server"));
            let (load, quantum) = load::read(root);
            let link = link::read(&mut root.section("link"));
            let swrr = link.swrr.clone();
            let path = link.path;
            let pipeline = PipelineOptions { load, quantum, swrr, path, ..PipelineOptions::default() };
            let links = links::read(root, &link.routes);
            let llm =
                llm::read(&mut root.section("llm"), pipeline, &sources.nodes, &links, server.link_local);
            let queue = queue::read(&mut root.section("queue"));
            let actor = actor::read(&mut root.section("actor"));
            let (sql, known) = sql::read(&mut root.section("sql"));
            let cluster = cluster::read(&mut root.section("cluster"), server.link_local);
            let telemetry = telemetry::read(&mut root.section("telemetry"), server.link_local);
            let tenants = tenants::read(root, &server.admin_key_hashes, TenantsFrom::ConfigFile(&known));
            (server, llm, queue, actor, sql, cluster, link, links, telemetry, tenants)
        })
        .map(
            |((server, llm, queue, actor, sql, cluster, link, links, telemetry, tenants), effective)| Self {
                server,
                llm,
                queue,
                actor,
                sql,
                cluster,
                link,
                links,
                tenants,
                telemetry,
                effective,
            },
        )
    }

    /// Rejects a non-loopback listener without tenants or without TLS, unless `allow_open` or `allow_plaintext` is set.
    ///
    /// `tenants` is the number of tenants in the config file and the data directory.
    pub fn check_exposure(&self, tenants: usize) -> Result<(), ConfigErrors> {
        let server = &self.server;
        let origin = server.origins.listen.clone();
        check_exposure(tenants, server.exposure_of(server.listen), server.insecure)
            .map_err(|error| ConfigErrors::at(origin, error))?;
        let Some(admin) = server.admin_listen else { return Ok(()) };
        let origin = server.origins.admin_listen.clone();
        let exposure = server.exposure_of(admin);
        // The admin key travels on this listener even without tenants.
        check_exposure(tenants, exposure, server.insecure)
            .and_then(|()| check_exposure(tenants.max(1), exposure, server.insecure))
            .map_err(|error| ConfigErrors::at(origin, error))
    }

    /// Returns the line, variable or flag that set `[server.tls]`.
    pub(crate) fn tls_origin(&self) -> ValueSource {
        self.server.origins.tls.clone()
    }

    /// Returns the line, variable or flag that set `ca_file`.
    pub(crate) fn ca_file_origin(&self) -> ValueSource {
        self.llm.ca_file_origin.clone()
    }

    /// Returns the line, variable or flag that set `data_dir`.
    pub(crate) fn data_dir_origin(&self) -> ValueSource {
        self.server.origins.data_dir.clone()
    }
}

/// Reads the tenants file of the data directory; an earlier version of evenkeel may have written it.
pub fn read_tenants(path: &str, text: &str) -> Result<Vec<TenantSettings>, ConfigErrors> {
    read_tenants_from(TenantsFrom::Store, path, text)
}

fn read_tenants_from(
    from: TenantsFrom<'_>,
    path: &str,
    text: &str,
) -> Result<Vec<TenantSettings>, ConfigErrors> {
    with_file(path, text, &BTreeMap::new(), &[], |root| tenants::read(root, &[], from))
        .map(|(tenants, _)| tenants)
}

/// Reads one tenant from the JSON settings of an API request.
pub fn read_tenant(settings: &Map<String, Json>) -> Result<TenantSettings, ConfigErrors> {
    let read = |path: &str, text: &str| read_tenants_from(TenantsFrom::Request, path, text);
    let mut tenants = read_one("tenants", settings, read)?;
    Ok(tenants.pop().expect("one table is one tenant"))
}

/// Reads the nodes file of the data directory.
pub fn read_nodes(path: &str, text: &str) -> Result<StoredNodes, ConfigErrors> {
    with_file(path, text, &BTreeMap::new(), &[], llm::read_stored_nodes).map(|(stored, _)| stored)
}

/// Reads one node from the JSON settings of an API request.
pub fn read_node(settings: &Map<String, Json>) -> Result<NodeOptions, ConfigErrors> {
    let mut stored = read_one("nodes", settings, read_nodes)?;
    Ok(stored.nodes.pop().expect("one table is one node"))
}

/// Applies the JSON settings of an API request to a node; null restores a default.
pub fn change_node(node: &NodeOptions, change: Map<String, Json>) -> Result<NodeOptions, ConfigErrors> {
    read_node(&change_settings(llm::settings_to_change(node, &change), change)?)
}

/// Changes settings, where null restores a default. `settings` has all that exist: null for any other is an error, as it
/// would not be noticed when the result is read.
pub fn change_settings(
    mut settings: Map<String, Json>,
    change: Map<String, Json>,
) -> Result<Map<String, Json>, ConfigErrors> {
    if let Some((key, _)) = change.iter().find(|(key, value)| value.is_null() && !settings.contains_key(*key))
    {
        return Err(ConfigErrors::without_origin(format_args!("unknown setting {key:?}")));
    }
    settings.extend(change);
    Ok(settings)
}

/// Reads a list with a single entry from JSON; errors have no line number.
fn read_one<T>(
    list: &str,
    settings: &Map<String, Json>,
    read: impl FnOnce(&str, &str) -> Result<T, ConfigErrors>,
) -> Result<T, ConfigErrors> {
    // The only setting that is a table.
    let is_table = |key: &str| key == "set";
    let nested = settings.iter().find(|(key, value)| value.is_object() && !is_table(key));
    if let Some((key, _)) = nested {
        return Err(ConfigErrors::without_origin(format_args!("{key} must not be an object")));
    }
    // TOML has no null; as the whole value it means that a setting is left out.
    if let Some((key, _)) = settings.iter().find(|(_, value)| !value.is_null() && contains_null(value)) {
        return Err(ConfigErrors::without_origin(format_args!("{key} must not contain null")));
    }
    read("", &table_to_toml(list, settings)).map_err(|ConfigErrors(errors)| {
        let without_line = |error: ConfigError| ConfigError { origin: ValueSource::Default, ..error };
        ConfigErrors(errors.into_iter().map(without_line).collect())
    })
}

fn contains_null(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(items) => items.iter().any(contains_null),
        Json::Object(entries) => entries.values().any(contains_null),
        Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes.
pub fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.to_string_lossy();
    let file_error = |error: &dyn Display| ConfigErrors::without_origin(format_args!("{name}: {error}"));
    let bytes = fs::read(path).map_err(|error| file_error(&error))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(file_error(&format_args!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| file_error(&"not UTF-8"))
}

/// Parses a file and passes its top level to `read`; keys that `read` does not read are errors.
fn with_file<T>(
    path: &str,
    text: &str,
    env: &BTreeMap<String, String>,
    flags: &[Flag],
    read: impl FnOnce(&mut Section<'_>) -> T,
) -> Result<(T, EffectiveConfig), ConfigErrors> {
    let reader = Reader::new(path, text, env, flags);
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let origin = error.span().map_or(ValueSource::Default, |span| reader.line_at(span.start));
            return Err(ConfigErrors::at(origin, error.message().replace('\n', ", ")));
        }
    };
    let value = read(&mut reader.root(table));
    let effective = reader.finish().map_err(ConfigErrors)?;
    Ok((value, effective))
}

#[cfg(test)]
mod tests;
