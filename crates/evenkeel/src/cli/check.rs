//! `evenkeel check FILE`: what a configuration means, or everything that is wrong with it.

use std::path::PathBuf;

use clap::Args;
use evenkeel::config::{Config, ConfigErrors};
use evenkeel::tenant_store::{TenantStore, TenantStoreError};

use super::settings::SettingsArgs;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel check evenkeel.toml                          prints it with defaults and environment applied
  LLMLB_MAX_WAITING=500 evenkeel check evenkeel.toml    what the variable changes
";

/// Reads a config file, checks it, and prints it as meant: defaults and environment applied, secrets hidden.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// The config file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: CheckArgs) -> Result<(), CliError> {
    let name = args.file.display().to_string();
    match check(args.file) {
        Ok(config) => print(&config.shown.to_toml()),
        Err(mistakes) => {
            eprintln!("{mistakes}");
            let found = mistakes.0.len();
            Err(format!("{name}: {found} mistake{}", if found == 1 { "" } else { "s" }).into())
        }
    }
}

/// Holds a file to everything that `serve` would hold it to, but for what only a running server can see.
fn check(file: PathBuf) -> Result<Config, ConfigErrors> {
    let config = SettingsArgs::of_file(file).read()?;
    let book = TenantStore::read(&config.server.data_dir, config.tenants.clone(), &config.server.admin);
    let book = book.map_err(|error| match error {
        TenantStoreError::Settings(mistakes) => mistakes,
        other => ConfigErrors::of(other),
    })?;
    config.check_exposure(book.all().len())?;
    Ok(config)
}
