//! The configuration: a TOML file, the environment, flags; parsed once, past which no bad value exists.
//!
//! Bound: a file of at most 16 MiB is read in full and every mistake in it is told at once, each with its line or its
//! variable. What nobody knows is a mistake, never a default. No secret is in what is told or shown.

mod effective;
mod llm;
mod load;
mod queue;
mod reader;
mod server;
mod source;
mod suggest;
mod telemetry;
mod tenants;
mod value;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use evenkeel_llm::NodeOptions;
use evenkeel_pipeline::PipelineOptions;
use evenkeel_server::tenant::{Exposure, InsecurePolicy, TenantSettings, TenantsError};
use serde_json::{Map, Value as Json};
use toml::de::DeTable;

pub use effective::{EffectiveConfig, Setting};
pub(crate) use llm::nodes_to_toml;
pub use llm::{LlmConfig, StoredNodes};
pub use queue::{QueueConfig, StoreKind};
pub use reader::Flag;
pub use server::{DATA_DIR_DEFAULT, LISTEN_DEFAULT, ServerConfig, TlsFiles};
pub use source::{ConfigError, ConfigErrors, ValueSource};
pub use telemetry::{TelemetryConfig, TraceConfig};
pub use tenants::describe;
pub(crate) use tenants::{table_of, to_toml};
pub use value::fingerprint;

use reader::{Reader, Section};

/// How large a file may be: room for as many tenants and keys as there may be.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a configuration is made from.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The file's name, for messages, and what it says.
    pub file: Option<(String, String)>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Flags that stand for settings.
    pub flags: Vec<Flag>,
    /// Nodes given by flag, each `[NAME=]URL`.
    pub nodes: Vec<String>,
}

/// Everything a gateway is set up with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens, and how it ends.
    pub server: ServerConfig,
    /// The LLM door.
    pub llm: LlmConfig,
    /// Queues.
    pub queue: QueueConfig,
    /// The tenants of the file.
    pub tenants: Vec<TenantSettings>,
    /// Logs and metrics.
    pub telemetry: TelemetryConfig,
    /// All of it as meant, without secrets.
    pub shown: EffectiveConfig,
}

impl Config {
    /// Reads a configuration, or tells everything that is wrong with it.
    pub fn read(sources: &ConfigSources) -> Result<Self, ConfigErrors> {
        let (path, text) = match &sources.file {
            Some((path, text)) => (path.as_str(), text.as_str()),
            None => ("", ""),
        };
        with_file(path, text, &sources.env, &sources.flags, |root| {
            let server = server::read(&mut root.section("server"));
            let (load, quantum) = load::read(root);
            let pipeline = PipelineOptions { load, quantum, ..PipelineOptions::default() };
            let llm = llm::read(&mut root.section("llm"), pipeline, &sources.nodes);
            let queue = queue::read(&mut root.section("queue"));
            let telemetry = telemetry::read(&mut root.section("telemetry"));
            let tenants = tenants::read(root, &server.admin);
            (server, llm, queue, telemetry, tenants)
        })
        .map(|((server, llm, queue, telemetry, tenants), shown)| Self {
            server,
            llm,
            queue,
            tenants,
            telemetry,
            shown,
        })
    }

    /// Refuses to serve others unprotected, by how many tenants there are in all.
    pub fn check_exposure(&self, tenants: usize) -> Result<(), ConfigErrors> {
        let wrong = match (self.server.exposure(), self.server.unprotected) {
            (Exposure::Loopback, _) | (_, InsecurePolicy::Allow) => return Ok(()),
            (Exposure::Clear, InsecurePolicy::Refuse) if 0 < tenants => TenantsError::Clear,
            (Exposure::Tls, InsecurePolicy::Refuse) if 0 < tenants => return Ok(()),
            (Exposure::Clear | Exposure::Tls, InsecurePolicy::Refuse) => TenantsError::Open,
        };
        let what = format!("{wrong}; allow_open (--allow-open) allows it");
        Err(ConfigErrors(vec![ConfigError { origin: self.server.listen_origin.clone(), what }]))
    }
}

/// Reads a file with tenants and nothing else.
pub fn read_tenants(path: &str, text: &str) -> Result<Vec<TenantSettings>, ConfigErrors> {
    with_file(path, text, &BTreeMap::new(), &[], |root| tenants::read(root, &[])).map(|(tenants, _)| tenants)
}

/// Reads one tenant from its settings by name, as programs send them.
pub fn read_tenant(settings: &Map<String, Json>) -> Result<TenantSettings, ConfigErrors> {
    let mut tenants = read_one("tenants", settings, read_tenants)?;
    Ok(tenants.pop().expect("one table is one tenant"))
}

/// Reads a file with nodes and nothing else.
pub fn read_nodes(path: &str, text: &str) -> Result<StoredNodes, ConfigErrors> {
    with_file(path, text, &BTreeMap::new(), &[], llm::read_kept).map(|(kept, _)| kept)
}

/// Reads one node from its settings by name, as programs send them.
pub fn read_node(settings: &Map<String, Json>) -> Result<NodeOptions, ConfigErrors> {
    let mut kept = read_one("nodes", settings, read_nodes)?;
    Ok(kept.nodes.pop().expect("one table is one node"))
}

/// Reads a list of one entry, whose place nobody knows.
fn read_one<T>(
    list: &str,
    settings: &Map<String, Json>,
    read: impl FnOnce(&str, &str) -> Result<T, ConfigErrors>,
) -> Result<T, ConfigErrors> {
    let nested = settings.iter().find(|(_, value)| value.is_object());
    if let Some((key, _)) = nested {
        return Err(ConfigErrors::of(format_args!("{key} must not be an object")));
    }
    read("", &table_of(list, settings)).map_err(|ConfigErrors(mistakes)| {
        // Lines of a file that nobody wrote say nothing.
        let placeless = |mistake: ConfigError| ConfigError { origin: ValueSource::Default, ..mistake };
        ConfigErrors(mistakes.into_iter().map(placeless).collect())
    })
}

/// Reads a file of limited size.
pub fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let name = path.to_string_lossy();
    let wrong = |what: &dyn Display| ConfigErrors::of(format_args!("{name}: {what}"));
    let bytes = fs::read(path).map_err(|error| wrong(&error))?;
    if FILE_BYTES_MAX < bytes.len() {
        return Err(wrong(&format_args!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| wrong(&"not UTF-8"))
}

/// Opens a file's outermost section to `read`; what that leaves unread is a mistake.
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
            let origin = error.span().map_or(ValueSource::Default, |span| reader.at(span.start));
            let what = error.message().replace('\n', ", ");
            return Err(ConfigErrors(vec![ConfigError { origin, what }]));
        }
    };
    let value = read(&mut reader.root(table));
    let shown = reader.finish().map_err(ConfigErrors)?;
    Ok((value, shown))
}

#[cfg(test)]
mod tests;
