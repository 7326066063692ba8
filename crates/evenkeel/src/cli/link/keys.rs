//! `evenkeel link keys`: creates the key pair of one side of a link.

use std::path::PathBuf;

use clap::Args;
use evenkeel_link::identity::{ExistingKey, Identity};

use crate::cli::{CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel link keys --out edge-keys                    create a key pair and print its fingerprint
  evenkeel link keys --show edge-keys                   print the fingerprint again
  evenkeel link keys --out edge-keys --replace          create another key pair in its place
";

/// Create a key pair for this side of a link, or show the fingerprint of an existing one
///
/// The fingerprint is public: the other side passes it as --peer. The key itself never leaves the directory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct KeysArgs {
    /// Directory for the key pair; it is created if it does not exist
    #[arg(long, value_name = "DIR", required_unless_present = "show")]
    out: Option<PathBuf>,
    /// Replace an existing key pair; the other side then needs the new fingerprint
    #[arg(long, requires = "out", conflicts_with = "show")]
    replace: bool,
    /// Print the fingerprint of the key pair in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    show: Option<PathBuf>,
}

pub(super) fn run(args: &KeysArgs) -> Result<(), CliError> {
    let identity = match (&args.out, &args.show) {
        (Some(directory), _) => {
            Identity::create(directory, if args.replace { ExistingKey::Replace } else { ExistingKey::Keep })?
        }
        (None, Some(directory)) => Identity::load(directory)?,
        // clap requires one of the two.
        (None, None) => return Err("--out or --show is required".into()),
    };
    print(&format!("{}\n", identity.fingerprint()))
}
