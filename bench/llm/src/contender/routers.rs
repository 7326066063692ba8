//! `vllm-router` and `smg`, from their Python packages; both are written in Rust.

use std::io;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, missing, target};
use bench_support::Process;

pub(super) fn vllm_router(setup: &Setup) -> io::Result<StartedProcess> {
    start(setup, "vllm-router", &[], "warning")
}

pub(super) fn smg(setup: &Setup) -> io::Result<StartedProcess> {
    start(setup, "smg", &["launch"], "warn")
}

fn start(setup: &Setup, program: &str, subcommand: &[&str], log_level: &str) -> io::Result<StartedProcess> {
    let path = setup.python.join(program);
    if !path.is_file() {
        return Err(missing(&path));
    }
    let address = free_port()?;
    let metrics = free_port()?;
    let mut command = Command::new(path);
    command
        .args(subcommand)
        .arg("--worker-urls")
        .args(setup.nodes.iter().map(|node| format!("http://{node}")));
    command.args(["--host", "127.0.0.1", "--port"]).arg(address.port().to_string());
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port"]).arg(metrics.port().to_string());
    command.args(["--policy", "round_robin", "--log-level", log_level]).current_dir(&setup.directory);
    let process = Process::start(&mut command, &log(&setup.directory))?;
    Ok(StartedProcess { target: target(vec![address]), process: Some(process) })
}
