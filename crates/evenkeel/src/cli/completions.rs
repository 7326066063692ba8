//! `evenkeel completions SHELL`: prints a completion script.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CliError, print};

const EXAMPLES: &str = "\
Examples:
  evenkeel completions bash > ~/.local/share/bash-completion/completions/evenkeel
  evenkeel completions fish > ~/.config/fish/completions/evenkeel.fish
";

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompletionsArgs {
    /// Shell to generate the script for
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "evenkeel", &mut script);
    print(&String::from_utf8(script)?)
}
