//! Evenkeel's link: `evenkeel link connect` at the edge and `evenkeel link listen` in the core.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::Command;

use bench_support::{Process, RunError};
use evenkeel_test_network::Network;

use super::LinkProcesses;
use super::command::run;
use crate::reorder::PAGE;

/// Address at the edge whose connections are forwarded.
pub(super) const FORWARD: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9000));
/// UDP port of the listening side.
const LINK_PORT: u16 = 7443;

/// Fails if this binary has no link.
pub(super) fn check(evenkeel: &Path) -> Result<(), RunError> {
    let output = Command::new(evenkeel).args(["link", "connect", "--help"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err(RunError(format!("{} has no command `link connect`", evenkeel.display()))),
        Err(error) => Err(RunError(format!("{}: {error}", evenkeel.display()))),
    }
}

/// Starts both sides, with a forward from [`FORWARD`] to `target`.
pub(super) fn start(
    network: &Network,
    evenkeel: &Path,
    directory: &Path,
    target: SocketAddr,
) -> Result<LinkProcesses, RunError> {
    let edge_directory = directory.join("edge");
    let core_directory = directory.join("core");
    let edge_fingerprint = create_keys(evenkeel, &edge_directory)?;
    let core_fingerprint = create_keys(evenkeel, &core_directory)?;
    let program = evenkeel.display().to_string();
    let mut listen = network.core().command(&program);
    listen.args(["link", "listen", "--peer", &edge_fingerprint, "--keys"]).arg(core_directory.join("keys"));
    listen.args(["--status-listen", &PAGE.to_string()]);
    listen.args(["--path", &format!("0.0.0.0:{LINK_PORT}"), "--allow", &target.to_string()]);
    let mut connect = network.edge().command(&program);
    connect.args(["link", "connect", "--peer", &core_fingerprint, "--keys"]).arg(edge_directory.join("keys"));
    for path in network.paths() {
        connect.args(["--path", &format!("{}={}:{LINK_PORT}", path.interface(), path.core_address())]);
    }
    connect.args(["--forward", &format!("{FORWARD}={target},lane=bonded")]);
    let core = Process::start(listen.current_dir(&core_directory), &core_directory.join("log"))?;
    let edge = Process::start(connect.current_dir(&edge_directory), &edge_directory.join("log"))?;
    Ok(LinkProcesses { edge, core })
}

/// Creates a key pair in an empty directory and returns its fingerprint.
fn create_keys(evenkeel: &Path, directory: &Path) -> Result<String, RunError> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;
    run(Command::new(evenkeel).args(["link", "keys", "--out"]).arg(directory.join("keys")))
}
