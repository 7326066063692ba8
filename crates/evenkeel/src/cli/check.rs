//! `evenkeel check FILE`: validates a config file and prints the effective configuration.

use std::path::PathBuf;

use clap::Args;
use evenkeel::config::{Config, ConfigErrors};
use evenkeel::gateway::StartupFiles;

use super::settings::SettingsArgs;
use super::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel check evenkeel.toml                          print every setting, and the source of each non-default value
  EVENKEEL_SERVER_DRAIN_SECS=5 evenkeel check evenkeel.toml
                                                        show the effect of an environment variable
";

/// Validate a config file and print the effective configuration
///
/// Applies defaults and environment variables, and loads the certificates and the stored tenants, nodes and usage. Reports
/// every error that would keep `evenkeel serve` from starting, except failures to bind the listen address, to lock the
/// data directory, or to open the queue store or a SQLite file. Secrets are redacted in the output.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// Config file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: CheckArgs) -> Result<(), CliError> {
    let name = args.file.display().to_string();
    match check(args.file) {
        Ok((config, warnings)) => {
            warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            print(&config.effective.to_toml())
        }
        Err(errors) => {
            eprintln!("{errors}");
            let count = errors.0.len();
            Err(format!("{name}: {count} error{}", if count == 1 { "" } else { "s" }).into())
        }
    }
}

/// Runs the same validation as `serve`, except binding the listener, locking the data directory and opening stores.
/// Returns the warnings too.
fn check(file: PathBuf) -> Result<(Config, Vec<String>), ConfigErrors> {
    let config = SettingsArgs::for_file(file).read()?;
    let warnings = StartupFiles::load(&config)?.warnings(&config);
    Ok((config, warnings))
}
