//! Scripts of `tests/it` that use unmodified client libraries. `cargo xtask test` installs the libraries under `target/`.
//!
//! The tests of `evenkeel` include this file by its path: `CARGO_MANIFEST_DIR` is the crate that includes it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the command that runs a Python script of this crate's `tests/it`.
pub(crate) fn python(script: &str) -> Command {
    python_of("target/python", script)
}

/// Returns the command that runs a Python script with the clients in another virtual environment.
pub(crate) fn python_of(environment: &str, script: &str) -> Command {
    let python = workspace().join(environment).join("bin/python");
    assert!(
        python.exists(),
        "{environment} does not exist; `cargo xtask test` installs the Python clients there"
    );
    let mut command = Command::new(python);
    command.arg(path(script));
    command
}

/// Returns the command that runs a Node.js script of this crate's `tests/it`.
pub(crate) fn node(script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(path(script));
    command
}

/// Returns the directory in which a Node.js package is installed, for scripts that load it from there.
pub(crate) fn node_packages(package: &str) -> PathBuf {
    let installed = workspace().join("target/node");
    assert!(
        installed.join("node_modules").join(package).exists(),
        "{package} is not installed; `cargo xtask test` installs it into target/node"
    );
    installed
}

/// Runs a script and checks that it ends with `all as expected`.
#[track_caller]
pub(crate) fn run(command: &mut Command) {
    // Requests must not go through a proxy.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.trim_end().ends_with("all as expected"), "{stdout}\n{stderr}");
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(script)
}
