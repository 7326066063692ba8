//! Command line of `actor-bench` and `actor-mem`: one contender, one workload, one line of metrics.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::sample::{Sample, SampleError};
use crate::settings::{self, SettingError, Settings};
use crate::workload::{Contender, HeapGauge, Workload};

const FAILED: u8 = 1;
/// Exit code of a run whose contender does not support the workload or a setting.
pub const UNSUPPORTED: u8 = 3;

/// Runs one workload on one runtime and prints one line of metrics
#[derive(Debug, Parser)]
#[command(after_help = format!("{}\n{}", listing(), settings::HELP))]
struct SingleRunArgs {
    /// One of the runtimes below
    #[arg(value_name = "RUNTIME")]
    contender: String,
    /// One of the workloads below
    #[arg(value_parser = Workload::parse)]
    workload: Workload,
    /// Settings, see below
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

/// Runs the requested workload and prints a line of `key=value` pairs.
pub fn main(program: &'static str, heap: Option<HeapGauge>) -> ExitCode {
    let mut command = SingleRunArgs::command().name(program);
    let matches = command.get_matches_mut();
    let run = SingleRunArgs::from_arg_matches(&matches)
        .and_then(|cli| cli.resolve().map_err(|error| command.error(ErrorKind::ValueValidation, error)));
    let ResolvedRun { contender, workload, settings } = run.unwrap_or_else(|error| error.exit());
    let (error, code) = match (contender.run)(workload, &settings, heap) {
        Ok(sample) => return print_sample(program, &sample),
        Err(error @ SampleError::Unsupported(_)) => (error, UNSUPPORTED),
        Err(error @ SampleError::Failed(_)) => (error, FAILED),
    };
    eprintln!("{program}: {error}");
    ExitCode::from(code)
}

fn print_sample(program: &str, sample: &Sample) -> ExitCode {
    match writeln!(io::stdout().lock(), "{sample}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// A command line whose names have been looked up.
struct ResolvedRun {
    contender: &'static Contender,
    workload: Workload,
    settings: Settings,
}

impl SingleRunArgs {
    fn resolve(self) -> Result<ResolvedRun, UsageError> {
        let workload = self.workload;
        let found = workload.contenders().iter().find(|known| known.name == self.contender);
        let Some(contender) = found else {
            return Err(UsageError::UnknownContender { given: self.contender, workload: workload.name() });
        };
        let settings = Settings::parse(self.settings.iter().map(String::as_str))?;
        Ok(ResolvedRun { contender, workload, settings })
    }
}

/// Lists runtimes and workloads, for the help of both programs.
pub(crate) fn listing() -> String {
    let mut text = String::new();
    let mut list = |title: &str, rows: Vec<(&str, &str)>| {
        text += &format!("{title}:\n");
        for (name, about) in rows {
            text += &format!("  {name:<18} {about}\n");
        }
        text += "\n";
    };
    let contenders = |workload: Workload| {
        workload.contenders().iter().map(|contender| (contender.name, contender.about)).collect()
    };
    list("Runtimes", contenders(Workload::Tell1));
    list("Contenders of the workload `register`, instead of runtimes", contenders(Workload::Register));
    list("Workloads", Workload::ALL.map(|workload| (workload.name(), workload.about())).into());
    text.truncate(text.trim_end().len() + 1);
    text
}

#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("`{given}` is not a contender of the workload `{workload}`")]
    UnknownContender { given: String, workload: &'static str },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("", "required arguments were not provided"),
            ("ractor", "required arguments were not provided"),
            ("ractor teleport", "invalid value 'teleport' for '<WORKLOAD>': unknown workload"),
            ("rector ask", "`rector` is not a contender of the workload `ask`"),
            ("ractor register", "`ractor` is not a contender of the workload `register`"),
            ("ractor ask fast", "`fast` is not of the form KEY=VALUE"),
        ] {
            let error = parse(line).err().unwrap_or_default();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn help_names_every_runtime_workload_and_setting() {
        let help = SingleRunArgs::command().render_help().to_string();
        for name in ["tokio-mpsc", "seed-sketch", "dash-set", "tell1", "register", "workers=N", "echo=on|off"]
        {
            assert!(help.contains(name), "{name}");
        }
    }

    fn parse(line: &str) -> Result<ResolvedRun, String> {
        let words = std::iter::once("actor-bench").chain(line.split_whitespace());
        let cli = SingleRunArgs::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.resolve().map_err(|error| error.to_string())
    }
}
