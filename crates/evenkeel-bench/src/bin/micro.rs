//! `cargo xtask bench micro`: nanoseconds per decision.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use evenkeel_bench::args::{self, HELP, Request, Run, UsageError};
use evenkeel_bench::measure::measure;
use evenkeel_bench::report::{self, GroupResult};
use evenkeel_bench::suite::{self, Group};

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let request = match args::parse(words) {
        Ok(request) => request,
        Err(misuse) => return refuse(&misuse),
    };
    let groups = suite::groups();
    let outcome = match request {
        Request::Help => print(HELP),
        Request::List => print(&groups.iter().map(|group| format!("{}\n", group.name)).collect::<String>()),
        Request::Run(run) => {
            let chosen: Vec<_> =
                groups.into_iter().filter(|group| group.name.contains(&run.filter)).collect();
            if chosen.is_empty() {
                return refuse(&UsageError::NoSuchGroup { filter: run.filter });
            }
            run_groups(chosen, &run)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("micro: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn refuse(misuse: &UsageError) -> ExitCode {
    eprintln!("micro: {misuse}");
    ExitCode::from(MISUSED)
}

fn run_groups(groups: Vec<Group>, run: &Run) -> io::Result<()> {
    // Tried before the first round: nobody should wait minutes to hear that a folder is missing.
    if let Some(path) = &run.json {
        write(path, "")?;
    }
    let count = groups.len();
    let mut measured = Vec::with_capacity(count);
    for (at, group) in groups.into_iter().enumerate() {
        eprintln!("[{}/{count}] {}", at + 1, group.name);
        measured.push(GroupResult { rows: measure(&group.set_up, run.effort), group: group.name });
    }
    print(&report::table(&measured))?;
    match &run.json {
        Some(path) => write(path, &report::json(&measured, run.effort)),
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
