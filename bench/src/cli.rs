//! The command line of `actor-bench` and `actor-mem`: one contender, one workload, one line of figures.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::sample::{NoSample, Sample};
use crate::settings::{self, SettingError, Settings};
use crate::workload::{Contender, HeapGauge, Workload};

const FAILED: u8 = 1;
const MISUSED: u8 = 2;
/// The exit code of a run whose contender cannot do what was asked.
pub const UNSUPPORTED: u8 = 3;

/// Runs what the command line asks for and prints a line of `key=value` words.
pub fn main(program: &str, heap: Option<HeapGauge>) -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (error, code) = match parse(&words) {
        Ok(Request::Help) => return print(program, &help(program)),
        Ok(Request::Run(contender, workload, settings)) => match (contender.run)(workload, &settings, heap) {
            Ok(sample) => return print_sample(program, &sample),
            Err(error @ NoSample::Unsupported(_)) => (error.to_string(), UNSUPPORTED),
            Err(error @ NoSample::Failed(_)) => (error.to_string(), FAILED),
        },
        Err(misuse) => (misuse.to_string(), MISUSED),
    };
    eprintln!("{program}: {error}");
    ExitCode::from(code)
}

fn print_sample(program: &str, sample: &Sample) -> ExitCode {
    print(program, &format!("{sample}\n"))
}

fn print(program: &str, text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

enum Request {
    Help,
    Run(&'static Contender, Workload, Settings),
}

fn parse(words: &[String]) -> Result<Request, UsageError> {
    if words.iter().any(|word| matches!(word.as_str(), "--help" | "-h")) {
        return Ok(Request::Help);
    }
    let [contender, workload, settings @ ..] = words else { return Err(UsageError::TooFew) };
    let Some(workload) = Workload::find(workload) else {
        return Err(UsageError::UnknownWorkload { given: workload.clone() });
    };
    let found = workload.contenders().iter().find(|known| known.name == contender);
    let Some(contender) = found else {
        return Err(UsageError::UnknownContender { given: contender.clone(), workload });
    };
    let settings = Settings::parse(settings.iter().map(String::as_str)).map_err(UsageError::SettingError)?;
    Ok(Request::Run(contender, workload, settings))
}

fn help(program: &str) -> String {
    let mut text = format!(
        "{program}: runs one workload on one runtime and prints one line of figures\n\n\
         usage: {program} RUNTIME WORKLOAD [KEY=VALUE]...\n"
    );
    text += &listing();
    text += &format!("\n{}\nexample:\n  {program} ractor tell1 workers=1 scale=0.1\n", settings::HELP);
    text
}

/// Lists runtimes and workloads, as both programs' help shows them.
pub(crate) fn listing() -> String {
    let mut text = String::new();
    let mut list = |title: &str, rows: Vec<(&str, &str)>| {
        text += &format!("\n{title}:\n");
        for (name, about) in rows {
            text += &format!("  {name:<18} {about}\n");
        }
    };
    let contenders = |workload: Workload| {
        workload.contenders().iter().map(|contender| (contender.name, contender.about)).collect()
    };
    list("runtimes", contenders(Workload::Tell1));
    list("instead of runtimes, in the workload `register`", contenders(Workload::Register));
    list("workloads", Workload::ALL.map(|workload| (workload.name(), workload.about())).into());
    text
}

/// Why a command line makes no sense.
#[derive(Debug)]
enum UsageError {
    TooFew,
    UnknownWorkload { given: String },
    UnknownContender { given: String, workload: Workload },
    SettingError(SettingError),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew => f.write_str("a runtime and a workload are needed; see --help"),
            Self::UnknownWorkload { given } => write!(f, "no workload is called `{given}`; see --help"),
            Self::UnknownContender { given, workload } => {
                write!(f, "nobody called `{given}` contends in `{}`; see --help", workload.name())
            }
            Self::SettingError(bad) => bad.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("", "a runtime and a workload are needed; see --help"),
            ("ractor", "a runtime and a workload are needed; see --help"),
            ("ractor teleport", "no workload is called `teleport`; see --help"),
            ("rector ask", "nobody called `rector` contends in `ask`; see --help"),
            ("ractor register", "nobody called `ractor` contends in `register`; see --help"),
            ("ractor ask fast", "`fast` is no setting of the form key=value; see --help"),
        ] {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(parse(&words).err().map(|misuse| misuse.to_string()).as_deref(), Some(said), "{line}");
        }
    }

    #[test]
    fn help_names_every_runtime_workload_and_setting() {
        let help = help("actor-bench");
        for name in ["tokio-mpsc", "seed-sketch", "dash-set", "tell1", "register", "workers=N", "echo=on|off"]
        {
            assert!(help.contains(name), "{name}");
        }
    }
}
