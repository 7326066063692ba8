//! The command line: commands, flags and exit codes (0 success, 1 failure, 2 usage error).

mod check;
mod client;
mod completions;
mod demo;
mod descriptors;
mod explain;
mod link;
mod node;
mod queue;
mod serve;
mod settings;
mod sim_node;
mod sql;
mod table;
mod tenant;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use rustix::fs::Mode;

/// Multi-tenant LLM gateway, message queue and SQL API with fair scheduling
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel demo                                   run a gateway with simulated servers and tenants
  evenkeel serve --node http://127.0.0.1:11434    run the gateway in front of one model server
  evenkeel check evenkeel.toml                    validate a config file
  evenkeel tenant add acme --weight 2             add a tenant and print its API key
  evenkeel queue stats jobs                       show a queue's messages by fairness key
  evenkeel sql \"select 1\"                         run a SQL statement
  evenkeel explain req-0f5c2a7be1d94c3e            show the steps of a request, by its X-Request-Id
  evenkeel link --help                            link two sites over several network paths
  evenkeel sim-node                               run a simulated model server
";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Tenant(tenant::TenantArgs),
    Node(node::NodeArgs),
    Queue(queue::QueueArgs),
    Sql(sql::SqlArgs),
    Explain(explain::ExplainArgs),
    Link(link::LinkArgs),
    SimNode(sim_node::SimNodeArgs),
    Completions(completions::CompletionsArgs),
}

/// Parses the command line and runs the command.
pub(crate) fn run() -> ExitCode {
    // Exits the process: with 2 on a usage error, with 0 for help and version.
    let cli = Cli::parse();
    if matches!(cli.command, Command::Serve(_) | Command::Demo(_) | Command::Tenant(_)) {
        // The files of a data directory are for their owner only, also those that databases create in it.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    let result = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Tenant(args) => tenant::run(args),
        Command::Node(args) => node::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Sql(args) => sql::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Link(args) => link::run(args),
        Command::SimNode(args) => sim_node::run(args),
        Command::Completions(args) => completions::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Error returned by a command and printed to stderr.
type CliError = Box<dyn Error>;

/// Prints a command's output. A closed pipe is not an error.
fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Exits with a usage error, as clap does for an invalid value.
fn exit_with_usage_error(message: impl Display) -> ! {
    Cli::command().error(ErrorKind::ValueValidation, message).exit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim_node::SimOptions;

    #[test]
    fn clap_debug_assertions_pass() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_sim_node_without_flags_has_the_default_options() {
        let Command::SimNode(args) = Cli::parse_from(["evenkeel", "sim-node"]).command else {
            panic!("sim-node was parsed as another command")
        };
        assert_eq!(args.options(), SimOptions::default());
    }
}
