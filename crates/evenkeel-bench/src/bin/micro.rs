//! `cargo xtask bench micro`: nanoseconds per decision.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use evenkeel_bench::args::Args;
use evenkeel_bench::measure::measure;
use evenkeel_bench::report::{self, GroupResult};
use evenkeel_bench::suite::{self, Group};

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.list {
        print(&suite::groups().iter().map(|group| format!("{}\n", group.name)).collect::<String>())
    } else {
        run_groups(selected_groups(&args), &args)
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("micro: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the groups that match the filter; exits with a usage error if there are none.
fn selected_groups(args: &Args) -> Vec<Group> {
    let mut groups = suite::groups();
    groups.retain(|group| group.name.contains(&args.filter));
    if groups.is_empty() {
        let message = format!("no group's name contains '{}'; --list shows them", args.filter);
        Args::command().error(ErrorKind::InvalidValue, message).exit();
    }
    groups
}

fn run_groups(groups: Vec<Group>, args: &Args) -> io::Result<()> {
    // Reports an unwritable path before the first round instead of after minutes.
    if let Some(path) = &args.json {
        write(path, "")?;
    }
    let count = groups.len();
    let mut results = Vec::with_capacity(count);
    for (index, group) in groups.into_iter().enumerate() {
        eprintln!("[{}/{count}] {}", index + 1, group.name);
        results.push(GroupResult { rows: measure(&group.set_up, args.effort()), group: group.name });
    }
    print(&report::table(&results))?;
    match &args.json {
        Some(path) => write(path, &report::json(&results, args.effort())),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}
