//! A child process: one contender, one workload, one time limit.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::score::Entrant;
use crate::cli::UNSUPPORTED;
use crate::sample::Sample;
use crate::workload::Workload;

/// More than any child process prints.
const OUTPUT_MAX: u64 = 64 * 1024;

/// The programs of the child processes.
pub(super) struct Children {
    bench: PathBuf,
    mem: PathBuf,
    timeout: Duration,
}

/// A child process that produced no sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChildError {
    /// The contender does not support the workload; retrying is pointless.
    #[error("{0}")]
    Unsupported(String),
    /// The child was killed at the time limit.
    #[error("timed out after {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("{0}")]
    Failed(String),
}

impl Children {
    /// Finds `actor-bench` and `actor-mem` next to this program.
    pub(super) fn beside_this_program(timeout: Duration) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let beside = |name: &str| {
            let path = this.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
            if path.is_file() {
                return Ok(path);
            }
            let message =
                format!("{} is missing; build it with `cargo build --release --bins`", path.display());
            Err(io::Error::new(io::ErrorKind::NotFound, message))
        };
        Ok(Self { bench: beside("actor-bench")?, mem: beside("actor-mem")?, timeout })
    }

    /// Runs one child process and parses its sample.
    pub(super) fn run(&self, entrant: &Entrant, workload: Workload) -> Result<Sample, ChildError> {
        let program = if workload == Workload::Heap { &self.mem } else { &self.bench };
        let mut command = Command::new(program);
        command.args([entrant.contender.name, workload.name()]).args(&entrant.settings);
        run(command, self.timeout)
    }
}

fn run(mut command: Command, timeout: Duration) -> Result<Sample, ChildError> {
    let failed = |error: io::Error| ChildError::Failed(error.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let out = reader(child.stdout.take());
    let err = reader(child.stderr.take());
    // The pipe closes when the child exits.
    let out = match out.recv_timeout(timeout) {
        Ok(text) => text,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Err(ChildError::TimedOut(timeout));
        }
    };
    let status = child.wait().map_err(failed)?;
    read(status, &out, &err.recv().unwrap_or_default())
}

/// Reads a pipe on its own thread, so that neither pipe fills up while the other is read.
fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (done, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // On an error, the output read so far is used.
            drop(pipe.take(OUTPUT_MAX).read_to_end(&mut bytes));
        }
        // The receiver is gone if the child was killed.
        drop(done.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    text
}

fn read(status: ExitStatus, out: &str, err: &str) -> Result<Sample, ChildError> {
    let last_line = err.lines().next_back().unwrap_or_default();
    // Drops the program name in front.
    let message = last_line.split_once(": ").map_or(last_line, |(_, message)| message).to_owned();
    if status.code() == Some(i32::from(UNSUPPORTED)) {
        return Err(ChildError::Unsupported(message));
    }
    if !status.success() {
        return Err(ChildError::Failed(if message.is_empty() { status.to_string() } else { message }));
    }
    Sample::parse(out).ok_or_else(|| ChildError::Failed(format!("no metrics in `{}`", out.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_metrics_is_a_sample() {
        let sample = Sample::default().with("ops", 1.0).with("rate", 2.0);
        assert_eq!(shell("echo ops=1 rate=2"), Ok(sample));
    }

    #[test]
    fn the_exit_code_distinguishes_unsupported_from_failed() {
        assert_eq!(
            shell("echo 'actor-bench: unsupported: no skynet' >&2; exit 3"),
            Err(ChildError::Unsupported("unsupported: no skynet".to_owned()))
        );
        assert_eq!(
            shell("echo 'actor-bench: crashed' >&2; exit 1"),
            Err(ChildError::Failed("crashed".to_owned()))
        );
        assert_eq!(shell("kill -9 $$"), Err(ChildError::Failed("signal: 9 (SIGKILL)".to_owned())));
        assert_eq!(shell("echo hello"), Err(ChildError::Failed("no metrics in `hello`".to_owned())));
    }

    #[test]
    fn a_child_that_never_ends_is_killed() {
        let limit = Duration::from_millis(1);
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 1000"]);
        assert_eq!(run(command, limit), Err(ChildError::TimedOut(limit)));
    }

    #[test]
    fn the_output_of_a_child_is_truncated() {
        let endless = shell("yes | head -c 1000000; exit 0");
        assert!(matches!(endless, Err(ChildError::Failed(_))), "{endless:?}");
    }

    fn shell(script: &str) -> Result<Sample, ChildError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_secs(30))
    }
}
