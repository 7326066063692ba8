//! The command line: commands, their flags, their exit codes (0 done, 1 not done, 2 not understood).

mod check;
mod client;
mod completions;
mod demo;
mod node;
mod queue;
mod serve;
mod settings;
mod sim_node;
mod table;
mod tenant;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Evenkeel keeps a multi-tenant platform on an even keel.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel demo                                   a gateway, three model servers and three tenants in one process
  evenkeel serve --node http://127.0.0.1:11434    the gateway, in front of one model server
  evenkeel check evenkeel.toml                    what a config file means, or what is wrong with it
  evenkeel tenant add acme --weight 2             a tenant, and its key
  evenkeel queue stats jobs                       what a queue holds, key by key
  evenkeel sim-node                               a simulated model server on a free port
";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Tenant(tenant::TenantArgs),
    Node(node::NodeArgs),
    Queue(queue::QueueArgs),
    SimNode(sim_node::SimNodeArgs),
    Completions(completions::CompletionsArgs),
}

/// Does what the command line says.
pub(crate) fn run() -> ExitCode {
    // What cannot be understood ends here, with 2; help and version with 0.
    let line = Cli::parse();
    let done = match line.command {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Tenant(args) => tenant::run(args),
        Command::Node(args) => node::run(args),
        Command::Queue(args) => queue::run(args),
        Command::SimNode(args) => sim_node::run(args),
        Command::Completions(args) => completions::run(&args),
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
type CliError = Box<dyn Error>;

/// Prints what a command was asked for; a reader that has seen enough ends it well.
fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Ends the program as clap does when a value cannot be understood.
fn exit_usage(misuse: impl Display) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, misuse).exit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim_node::SimOptions;

    #[test]
    fn the_description_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_sim_node_without_flags_is_the_default_one() {
        let Command::SimNode(args) = Cli::parse_from(["evenkeel", "sim-node"]).command else {
            panic!("another command")
        };
        assert_eq!(args.options(), SimOptions::default());
    }
}
