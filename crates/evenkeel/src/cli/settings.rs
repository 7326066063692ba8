//! The flags that several commands share: where the configuration comes from.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use evenkeel::config::{Config, ConfigErrors, ConfigSources, Flag, read_file};

/// Read if nobody names another and it is there.
const CONFIG_DEFAULT: &str = "evenkeel.toml";

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SettingsArgs {
    /// The config file [default: evenkeel.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of what must not be forgotten [default: ./evenkeel-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl SettingsArgs {
    /// Names a config file and nothing else.
    pub(super) fn of_file(path: PathBuf) -> Self {
        Self { config: Some(path), data_dir: None }
    }

    /// The config file, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        let default = Path::new(CONFIG_DEFAULT);
        self.config.as_deref().or_else(|| default.exists().then_some(default))
    }

    /// Stays with the file that is there at this moment: should it vanish, a reload fails instead of going on without.
    pub(super) fn fix_file(&mut self) {
        self.config = self.file().map(Path::to_owned);
    }

    /// Everything a configuration is made from, as it is at this moment.
    pub(super) fn sources(&self) -> Result<ConfigSources, ConfigErrors> {
        let file = match self.file() {
            Some(path) => Some((path.to_string_lossy().into_owned(), read_file(path)?)),
            None => None,
        };
        // What is not text is no setting of ours.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let mut sources = ConfigSources {
            file,
            env: env::vars_os().filter_map(text).collect(),
            ..ConfigSources::default()
        };
        if let Some(path) = &self.data_dir {
            sources.flags.push(flag("data_dir", "--data-dir", path.to_string_lossy()));
        }
        Ok(sources)
    }

    /// The configuration.
    pub(super) fn read(&self) -> Result<Config, ConfigErrors> {
        Config::read(&self.sources()?)
    }
}

/// A flag that stands for a setting of `[server]`.
pub(super) fn flag(key: &'static str, name: &'static str, value: impl Into<String>) -> Flag {
    Flag { section: "server", key, name, value: value.into() }
}
