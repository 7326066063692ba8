//! Runs `ip` of iproute2.

use crate::unavailable::Unavailable;
use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `ip` with these arguments and returns its standard output.
pub(crate) fn run(args: &[&str]) -> Result<String, Unavailable> {
    run_with_input(args, "")
}

/// Runs commands in a namespace, one per line.
pub(crate) fn batch(namespace: &str, commands: &str) -> Result<(), Unavailable> {
    run_with_input(&["-netns", namespace, "-batch", "-"], commands).map(drop)
}

fn run_with_input(args: &[&str], input: &str) -> Result<String, Unavailable> {
    let mut command = Command::new("ip");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Unavailable::IpMissing)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `ip` exits early, its exit status tells why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let args = args.join(" ");
    let output = child.wait_with_output().map_err(|source| {
        let step = format!("wait for `ip {args}`");
        Unavailable::SetupFailed { step, source }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Unavailable::IpFailed { args, stderr })
}
