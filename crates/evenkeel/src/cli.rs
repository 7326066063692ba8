//! The command line: commands, their flags, their exit codes (0 done, 1 not done, 2 not understood).

mod sim_node;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::error::Error;
use std::fmt::Display;
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

/// Ends the program as clap does when a value cannot be understood.
fn end_misused(misuse: impl Display) -> ! {
    Line::command().error(ErrorKind::ValueValidation, misuse).exit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel::sim_node::SimOptions;

    #[test]
    fn the_description_of_the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn a_sim_node_without_flags_is_the_default_one() {
        let Command::SimNode(args) = Line::parse_from(["evenkeel", "sim-node"]).command;
        assert_eq!(args.options(), SimOptions::default());
    }
}
