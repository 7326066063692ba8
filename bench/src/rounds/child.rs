//! A child process: one contender, one workload, within a time limit.

use std::fmt;
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

/// More than any child of ours says.
const OUTPUT_MAX: u64 = 64 * 1024;

/// The programs that children run.
pub(super) struct Children {
    bench: PathBuf,
    mem: PathBuf,
    timeout: Duration,
}

/// Why a child gave no sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChildError {
    /// The contender cannot do it; it need not be asked again.
    Unsupported(String),
    /// It was not ready within the limit, and was killed.
    TimedOut(Duration),
    /// Anything else.
    Failed(String),
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(what) | Self::Failed(what) => f.write_str(what),
            Self::TimedOut(limit) => write!(f, "timed out after {} s", limit.as_secs()),
        }
    }
}

impl Children {
    /// Finds `actor-bench` and `actor-mem` where this program is.
    pub(super) fn beside_this_program(timeout: Duration) -> io::Result<Self> {
        let this = std::env::current_exe()?;
        let beside = |name: &str| {
            let path = this.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
            if path.is_file() {
                return Ok(path);
            }
            let what = format!("{} is missing; build it with `cargo build --release --bins`", path.display());
            Err(io::Error::new(io::ErrorKind::NotFound, what))
        };
        Ok(Self { bench: beside("actor-bench")?, mem: beside("actor-mem")?, timeout })
    }

    /// Runs one child and reads its sample.
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
    // A child's output ends when the child does.
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

/// Reads a pipe on a thread of its own, so that neither pipe can fill up while the other is read.
fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (done, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read before an error is all there is to show.
            drop(pipe.take(OUTPUT_MAX).read_to_end(&mut bytes));
        }
        // Nobody listens to a child that was killed.
        drop(done.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    text
}

fn read(status: ExitStatus, out: &str, err: &str) -> Result<Sample, ChildError> {
    let said = err.lines().next_back().unwrap_or_default();
    // The name of the program in front says nothing in a table of its runs.
    let said = said.split_once(": ").map_or(said, |(_, said)| said).to_owned();
    if status.code() == Some(i32::from(UNSUPPORTED)) {
        return Err(ChildError::Unsupported(said));
    }
    if !status.success() {
        return Err(ChildError::Failed(if said.is_empty() { status.to_string() } else { said }));
    }
    Sample::parse(out).ok_or_else(|| ChildError::Failed(format!("no figures in `{}`", out.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_figures_is_a_sample() {
        let sample = Sample::default().with("ops", 1.0).with("rate", 2.0);
        assert_eq!(shell("echo ops=1 rate=2"), Ok(sample));
    }

    #[test]
    fn the_exit_code_tells_what_cannot_be_done_from_what_went_wrong() {
        assert_eq!(
            shell("echo 'actor-bench: unsupported: no wings' >&2; exit 3"),
            Err(ChildError::Unsupported("unsupported: no wings".to_owned()))
        );
        assert_eq!(shell("echo 'actor-bench: fell' >&2; exit 1"), Err(ChildError::Failed("fell".to_owned())));
        assert_eq!(shell("kill -9 $$"), Err(ChildError::Failed("signal: 9 (SIGKILL)".to_owned())));
        assert_eq!(shell("echo hello"), Err(ChildError::Failed("no figures in `hello`".to_owned())));
    }

    #[test]
    fn a_child_that_never_ends_is_killed() {
        let limit = Duration::from_millis(1);
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 1000"]);
        assert_eq!(run(command, limit), Err(ChildError::TimedOut(limit)));
    }

    #[test]
    fn a_child_that_says_too_much_is_heard_in_part() {
        let endless = shell("yes | head -c 1000000; exit 0");
        assert!(matches!(endless, Err(ChildError::Failed(_))), "{endless:?}");
    }

    fn shell(script: &str) -> Result<Sample, ChildError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_secs(30))
    }
}
