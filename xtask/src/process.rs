//! Starting other programs, always showing the line that a person could type instead.

use crate::error::TaskError;
use std::fmt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program to start, with its arguments and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    program: String,
    args: Vec<String>,
    envs: Vec<(&'static str, &'static str)>,
}

/// How a program with a time limit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitKind {
    /// By itself, with this exit code.
    With(i32),
    /// By a signal of somebody else's.
    Killed,
    /// By us, at its limit.
    TooLate,
}

/// How often a program with a time limit is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Call {
    /// Prepares a call; `line` is split at its spaces.
    pub(crate) fn new(program: impl Into<String>, line: &str) -> Self {
        let program = program.into();
        Self { program, args: line.split_whitespace().map(str::to_owned).collect(), envs: Vec::new() }
    }

    pub(crate) fn cargo(line: &str) -> Self {
        Self::new("cargo", line)
    }

    /// Adds arguments as they are, spaces included.
    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.envs.push((name, value));
        self
    }

    /// Prints the line, runs it with our own input and output, and waits for its end.
    pub(crate) fn run(&self) -> Result<(), TaskError> {
        println!("$ {self}");
        let status = self.command().status().map_err(|error| self.not_started(&error))?;
        if !status.success() {
            return Err(TaskError::new(format!("`{self}` ended with {status}")));
        }
        Ok(())
    }

    /// Prints the line, runs it without input, and ends it when it takes longer than `limit`.
    pub(crate) fn run_within(&self, limit: Duration) -> Result<ExitKind, TaskError> {
        println!("$ {self}");
        let lost = |error| TaskError::new(format!("`{self}` is out of sight: {error}"));
        let mut child =
            self.command().stdin(Stdio::null()).spawn().map_err(|error| self.not_started(&error))?;
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = child.try_wait().map_err(lost)? {
                return Ok(status.code().map_or(ExitKind::Killed, ExitKind::With));
            }
            thread::sleep(LOOK_EVERY);
        }
        child.kill().map_err(lost)?;
        child.wait().map_err(lost)?;
        Ok(ExitKind::TooLate)
    }

    /// Runs it silently and says whether it ended well; a program that is not there did not.
    pub(crate) fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Runs it and returns what it printed.
    pub(crate) fn output(&self) -> Result<String, TaskError> {
        let output =
            self.command().stderr(Stdio::inherit()).output().map_err(|error| self.not_started(&error))?;
        if !output.status.success() {
            return Err(TaskError::new(format!("`{self}` ended with {}", output.status)));
        }
        String::from_utf8(output.stdout).map_err(|_| TaskError::new(format!("`{self}` printed no UTF-8")))
    }

    fn command(&self) -> Command {
        // Cargo names itself to its children: the same cargo even where several are installed.
        let mut command = match std::env::var_os("CARGO") {
            Some(cargo) if self.program == "cargo" => Command::new(cargo),
            Some(_) | None => Command::new(&self.program),
        };
        command.args(&self.args).envs(self.envs.iter().copied());
        command
    }

    fn not_started(&self, error: &std::io::Error) -> TaskError {
        TaskError::new(format!("`{}` cannot be started: {error}", self.program))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.envs {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_as_a_line_to_type() {
        let call = Call::cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").args(["it's", ""]);
        assert_eq!(call.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s' ''");
    }

    #[test]
    fn a_program_past_its_limit_is_ended() {
        let limit = Duration::from_secs(60);
        assert_eq!(Call::new("true", "").run_within(limit), Ok(ExitKind::With(0)));
        assert_eq!(Call::new("false", "").run_within(limit), Ok(ExitKind::With(1)));
        assert_eq!(Call::new("sleep", "3600").run_within(Duration::ZERO), Ok(ExitKind::TooLate));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let call = Call::new("no-such-program-of-ours", "--version");
        assert!(!call.succeeds());
        let failure = call.output().unwrap_err().to_string();
        assert!(failure.starts_with("`no-such-program-of-ours` cannot be started: "), "{failure}");
    }
}
