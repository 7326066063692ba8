//! Flags shared by several commands: config file and data directory.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel::config::{Config, ConfigErrors, ConfigSources, Flag, read_file};

/// Config file that is read if it exists and `--config` is not given.
const CONFIG_DEFAULT: &str = "evenkeel.toml";

/// Sources of the configuration.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SettingsArgs {
    /// Config file [default: evenkeel.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory: queues, and the tenants, nodes and secrets created at run time [default: ./evenkeel-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl SettingsArgs {
    pub(super) fn for_file(path: PathBuf) -> Self {
        Self { config: Some(path), data_dir: None }
    }

    /// Creates the settings of a command without a data directory.
    pub(super) fn for_optional_file(path: Option<PathBuf>) -> Self {
        Self { config: path, data_dir: None }
    }

    /// Returns the given config file, or else the default one if it exists.
    pub(super) fn file(&self) -> Option<&Path> {
        let default = Path::new(CONFIG_DEFAULT);
        self.config.as_deref().or_else(|| default.exists().then_some(default))
    }

    /// Resolves the config file once, so that a reload fails if it was deleted, instead of falling back to defaults.
    pub(super) fn resolve_file(&mut self) {
        self.config = self.file().map(Path::to_owned);
    }

    /// Reads the file and the environment.
    pub(super) fn sources(&self) -> Result<ConfigSources, ConfigErrors> {
        let file = match self.file() {
            Some(path) => Some((path.to_string_lossy().into_owned(), read_file(path)?)),
            None => None,
        };
        // Ignores variables whose name or value is not UTF-8.
        let utf8_only = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let mut sources = ConfigSources {
            file,
            env: env::vars_os().filter_map(utf8_only).collect(),
            ..ConfigSources::default()
        };
        if let Some(path) = &self.data_dir {
            sources.flags.push(flag("data_dir", "--data-dir", path.to_string_lossy()));
        }
        Ok(sources)
    }

    pub(super) fn read(&self) -> Result<Config, ConfigErrors> {
        Config::read(&self.sources()?)
    }
}

/// Returns the flag `name` that overrides the setting `key` of `[server]`.
pub(super) fn flag(key: &'static str, name: &'static str, value: impl Into<String>) -> Flag {
    Flag { section: "server", key, name, value: value.into() }
}
