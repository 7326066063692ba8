//! The command line: commands, their flags, their exit codes (0 done, 1 not done, 2 not understood).

mod sim_node;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// Evenkeel keeps a multi-tenant platform on an even keel.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel sim-node                       a simulated model server on a free port
  evenkeel sim-node --help                everything it can be told
";

#[derive(Debug, Subcommand)]
enum Command {
    SimNode(sim_node::SimNodeArgs),
}

/// Does what the command line says.
pub(crate) fn run() -> ExitCode {
    // What cannot be understood ends here, with 2; help and version with 0.
    let line = Line::parse();
    let done = match line.command {
        Command::SimNode(args) => sim_node::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What ends a command before it is done; its text is all a user needs.
type Failure = Box<dyn Error>;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_description_of_the_command_line_is_consistent() {
        Line::command().debug_assert();
    }
}
