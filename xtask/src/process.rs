//! Runs other programs; `run` and `run_within` print the equivalent shell command first.

use crate::error::TaskError;
use std::fmt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program to start, with its arguments and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cmd {
    program: String,
    args: Vec<String>,
    envs: Vec<(&'static str, String)>,
}

/// Outcome of a program that was run with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    /// Exited with this code.
    Code(i32),
    /// Killed by a signal from outside.
    Killed,
    /// Killed by us at its time limit.
    TimedOut,
}

/// Interval at which a program with a time limit is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Cmd {
    /// Creates a command; `args` is split at whitespace.
    pub(crate) fn new(program: impl Into<String>, args: &str) -> Self {
        let program = program.into();
        Self { program, args: args.split_whitespace().map(str::to_owned).collect(), envs: Vec::new() }
    }

    pub(crate) fn cargo(args: &str) -> Self {
        Self::new("cargo", args)
    }

    /// Adds arguments without splitting them.
    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    /// Prints the command, runs it with inherited stdin, stdout and stderr, and waits for it to finish.
    pub(crate) fn run(&self) -> Result<(), TaskError> {
        println!("$ {self}");
        let status = self.command().status().map_err(|error| self.start_error(&error))?;
        if !status.success() {
            return Err(TaskError::new(format!("`{self}` failed with {status}")));
        }
        Ok(())
    }

    /// Prints the command, runs it without input, and kills it after `limit`.
    pub(crate) fn run_within(&self, limit: Duration) -> Result<RunOutcome, TaskError> {
        println!("$ {self}");
        let wait_error = |error| TaskError::new(format!("cannot wait for `{self}`: {error}"));
        let mut child =
            self.command().stdin(Stdio::null()).spawn().map_err(|error| self.start_error(&error))?;
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = child.try_wait().map_err(wait_error)? {
                return Ok(status.code().map_or(RunOutcome::Killed, RunOutcome::Code));
            }
            thread::sleep(POLL_INTERVAL);
        }
        child.kill().map_err(|error| TaskError::new(format!("cannot kill `{self}`: {error}")))?;
        child.wait().map_err(wait_error)?;
        Ok(RunOutcome::TimedOut)
    }

    /// Runs the program without output and reports whether it succeeded; returns `false` if the program is missing.
    pub(crate) fn succeeds(&self) -> bool {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Runs the program and returns its standard output.
    pub(crate) fn output(&self) -> Result<String, TaskError> {
        let output =
            self.command().stderr(Stdio::inherit()).output().map_err(|error| self.start_error(&error))?;
        if !output.status.success() {
            return Err(TaskError::new(format!("`{self}` failed with {}", output.status)));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| TaskError::new(format!("`{self}` printed invalid UTF-8")))
    }

    fn command(&self) -> Command {
        // Cargo sets `CARGO` for its children: use the same cargo even if several are installed.
        let mut command = match std::env::var_os("CARGO") {
            Some(cargo) if self.program == "cargo" => Command::new(cargo),
            Some(_) | None => Command::new(&self.program),
        };
        command.args(&self.args).envs(self.envs.iter().map(|(name, value)| (name, value)));
        command
    }

    fn start_error(&self, error: &std::io::Error) -> TaskError {
        TaskError::new(format!("cannot start `{}`: {error}", self.program))
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.envs {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_displayed_as_a_shell_command() {
        let call = Cmd::cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").args(["it's", ""]);
        assert_eq!(call.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s' ''");
    }

    #[test]
    fn run_within_reports_exit_codes_and_timeouts() {
        let limit = Duration::from_secs(60);
        assert_eq!(Cmd::new("true", "").run_within(limit), Ok(RunOutcome::Code(0)));
        assert_eq!(Cmd::new("false", "").run_within(limit), Ok(RunOutcome::Code(1)));
        assert_eq!(Cmd::new("sleep", "3600").run_within(Duration::ZERO), Ok(RunOutcome::TimedOut));
    }

    #[test]
    fn the_error_for_a_missing_program_contains_its_name() {
        let call = Cmd::new("no-such-program-of-ours", "--version");
        assert!(!call.succeeds());
        let error = call.output().unwrap_err().to_string();
        assert!(error.starts_with("cannot start `no-such-program-of-ours`: "), "{error}");
    }
}
