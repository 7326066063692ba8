//! A shell process that runs the server and outlives this process long enough to stop it.
//!
//! The watchdog reads from a pipe whose other end only this process has. When the pipe closes, because the [`Watchdog`]
//! is dropped or because this process died, even by SIGKILL, it stops the server at once (after ten seconds by SIGKILL)
//! and removes the server's directory.

use crate::program::{Account, isolate};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

const SCRIPT: &str = include_str!("watchdog.sh");

#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Runs a server program; `directory` is removed when the watchdog stops it, and `log` gets its output.
    pub(crate) fn start(
        program: &Path,
        args: &[String],
        directory: &Path,
        log: File,
        account: Option<Account>,
    ) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "watchdog"]).arg(directory).arg(program).args(args);
        isolate(&mut command, account);
        // In a process group of its own, so that signals to this process's group, such as Ctrl-C, do not end it.
        command.process_group(0).current_dir(directory);
        let stdout = log.try_clone()?;
        let shell = command.stdin(Stdio::piped()).stdout(stdout).stderr(log).spawn()?;
        Ok(Self { shell })
    }

    /// Returns the server's exit status, or `None` if it is running.
    pub(crate) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.shell.try_wait()
    }

    /// Waits until the server has exited; its directory is kept.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        // `Child::wait` would close the pipe, and the watchdog would remove the directory.
        let pipe = self.shell.stdin.take();
        let status = self.shell.wait();
        drop(pipe);
        status
    }
}

impl Drop for Watchdog {
    /// Stops the server and removes its directory, unless the server has exited.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Fails only if the shell has been waited for.
        let _ = self.shell.wait();
    }
}
