//! Runs other programs with a time limit.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Time limit of one program run.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(60);

/// Exit code of `timeout` when it stopped the program.
const TIMED_OUT: i32 = 124;

/// Failure of a program such as `initdb` or `psql`.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    #[error("{program} failed with {status}: {stderr}")]
    Failed { program: String, status: ExitStatus, stderr: String },
    #[error("{program} did not finish within {limit:?}")]
    TimedOut { program: String, limit: Duration },
}

/// A user and group to run programs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A program to run, with its arguments.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    args: Vec<String>,
    envs: Vec<(&'static str, String)>,
    account: Option<Account>,
}

impl Program {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), args: Vec::new(), envs: Vec::new(), account: None }
    }

    pub(crate) fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn path_arg(self, path: &Path) -> Self {
        let text = path.display().to_string();
        self.args([text])
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    /// Runs the program as this user, or as the current one if `None`.
    pub(crate) fn account(mut self, account: Option<Account>) -> Self {
        self.account = account;
        self
    }

    /// Runs the program without input and returns its standard output.
    pub(crate) fn run(&self) -> Result<String, ProgramError> {
        self.run_within("", RUN_MAX)
    }

    /// Runs the program with this input, kills it after `limit`, and returns its standard output.
    pub(crate) fn run_within(&self, input: &str, limit: Duration) -> Result<String, ProgramError> {
        let start_error = |source| ProgramError::Start { program: self.name(), source };
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &limit.as_secs_f64().to_string()]).arg(&self.path).args(&self.args);
        isolate(&mut command, self.account);
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(start_error)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // In a thread, because the program may fill its output pipe before it has read all input.
            scope.spawn(move || {
                // A program that exits early closes its input; its exit status tells why.
                stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
            });
            child.wait_with_output()
        })
        .map_err(start_error)?;
        if output.status.code() == Some(TIMED_OUT) {
            return Err(ProgramError::TimedOut { program: self.name(), limit });
        }
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            return Err(ProgramError::Failed { program: self.name(), status: output.status, stderr });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Makes a command independent of the caller's PostgreSQL settings and locale, and sets its user.
pub(crate) fn isolate(command: &mut Command, account: Option<Account>) {
    use std::os::unix::process::CommandExt;
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
    if let Some(Account { uid, gid }) = account {
        // The current directory may not be accessible to that user.
        command.current_dir("/").uid(uid).gid(gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_exceeds_its_limit_is_killed() {
        let sleep = Program::new("sleep").args(["3600"]);
        let error = sleep.run_within("", Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.to_string(), "sleep did not finish within 10ms");
    }

    #[test]
    fn a_failure_contains_the_standard_error() {
        let error = Program::new("sh").args(["-c", "echo broken >&2; exit 3"]).run().unwrap_err();
        assert_eq!(error.to_string(), "sh failed with exit status: 3: broken");
    }

    #[test]
    fn input_and_output_may_exceed_the_size_of_a_pipe() {
        let text = "0123456789abcdef".repeat(1 << 16);
        assert_eq!(Program::new("cat").run_within(&text, RUN_MAX).unwrap(), text);
    }
}
