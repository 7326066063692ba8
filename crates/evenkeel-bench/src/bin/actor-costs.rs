//! Program that `cargo xtask bench actor-costs` runs under valgrind: one case of the actor runtime.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use evenkeel_bench::actor_costs;

/// Run one case of the actor runtime, to be measured from outside
#[derive(Debug, Parser)]
#[command(name = "actor-costs", arg_required_else_help = true)]
struct Args {
    /// List the cases: kind, name, smaller count and description, separated by tabs
    #[arg(long)]
    list: bool,
    /// Kind of the case: instructions or memory
    #[arg(required_unless_present = "list")]
    kind: Option<String>,
    /// Name of the case
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Number of messages, actors or other units, a multiple of 64
    #[arg(required_unless_present = "list")]
    count: Option<u32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for case in actor_costs::cases() {
            println!("{}\t{}\t{}\t{}", case.kind.name(), case.name, case.count, case.about);
        }
        return ExitCode::SUCCESS;
    }
    let chosen = actor_costs::cases().find(|case| {
        args.kind.as_deref() == Some(case.kind.name()) && args.name.as_deref() == Some(case.name)
    });
    let Some((case, count)) = chosen.zip(args.count) else {
        let message = "no such case; --list shows them";
        Args::command().error(ErrorKind::InvalidValue, message).exit();
    };
    (case.run)(count);
    ExitCode::SUCCESS
}
