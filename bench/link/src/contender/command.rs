//! Short commands that set a contender up.

use std::process::Command;

use bench_support::RunError;

/// Runs a command and returns its standard output without the last line break.
pub(super) fn run(command: &mut Command) -> Result<String, RunError> {
    let output = command.output().map_err(|error| RunError(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    Err(RunError(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
