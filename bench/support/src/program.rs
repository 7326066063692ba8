//! Programs of other projects, and free ports for them.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::Process;

/// Creates a call of a program, which Debian may have installed outside a normal user's PATH.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Starts a program; if it is not installed, the error names its package.
pub fn start_packaged(command: &mut Command, package: &str, log: &Path) -> io::Result<Process> {
    let name = command.get_program().to_string_lossy().into_owned();
    Process::start(command, log).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), format!("{name} is missing ({package})")),
        _ => error,
    })
}

/// Returns a free port. Another process could take it before the contender does.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}

/// Starts HAProxy on `address` in front of `nodes`, with one of its balance algorithms; `directory` gets its files.
pub fn start_haproxy(
    address: SocketAddr,
    nodes: &[SocketAddr],
    balance: &str,
    directory: &Path,
) -> io::Result<Process> {
    let servers: String = (nodes.iter().enumerate())
        .map(|(index, node)| format!("  server n{index} {node} check inter 2s\n"))
        .collect();
    let config = format!(
        "global\n  maxconn 4000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  http-reuse always\n  option http-no-delay\n\
         frontend clients\n  bind {address}\n  default_backend nodes\n\
         backend nodes\n  balance {balance}\n{servers}"
    );
    let file = directory.join("haproxy.cfg");
    fs::write(&file, config)?;
    let mut command = program("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    start_packaged(&mut command, "Debian package haproxy", &directory.join("log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let log = std::env::temp_dir().join(format!("bench-program-{}", std::process::id()));
        let started = start_packaged(&mut program("no-such-program"), "Debian package none", &log);
        let error = started.err().unwrap().to_string();
        assert_eq!(error, "no-such-program is missing (Debian package none)");
        fs::remove_file(log).unwrap();
    }
}
