//! `vllm-router` and `smg`, as their Python packages come; both are Rust inside.

use std::io;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, missing, target};
use bench_support::Process;

pub(super) fn vllm_router(place: &Setup) -> io::Result<StartedProcess> {
    start(place, "vllm-router", &[], "warning")
}

pub(super) fn smg(place: &Setup) -> io::Result<StartedProcess> {
    start(place, "smg", &["launch"], "warn")
}

fn start(place: &Setup, program: &str, first: &[&str], level: &str) -> io::Result<StartedProcess> {
    let path = place.python.join(program);
    if !path.is_file() {
        return Err(missing(&path));
    }
    let address = free_port()?;
    let metrics = free_port()?;
    let mut command = Command::new(path);
    command.args(first).arg("--worker-urls").args(place.nodes.iter().map(|node| format!("http://{node}")));
    command.args(["--host", "127.0.0.1", "--port"]).arg(address.port().to_string());
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port"]).arg(metrics.port().to_string());
    command.args(["--policy", "round_robin", "--log-level", level]).current_dir(&place.folder);
    let process = Process::start(&mut command, &log(&place.folder))?;
    Ok(StartedProcess { target: target(vec![address]), process: Some(process) })
}
