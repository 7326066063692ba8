//! A WireGuard tunnel over path 1, of `wireguard-go`, which needs no kernel module.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bench_support::{Process, RunError};
use evenkeel_test_network::{Namespace, Network};

use super::LinkProcesses;
use super::command::run;

/// Address of the tunnel in the core.
pub(super) const CORE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const PORT: u16 = 51820;
/// A path's 1500 bytes without the headers of IP, UDP and WireGuard, as `wg-quick` sets it.
const MTU: u16 = 1420;
const START_WAIT_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Fails if a program is missing.
pub(super) fn check() -> Result<(), RunError> {
    for program in ["wireguard-go", "wg"] {
        run(Command::new(program).arg("--version"))?;
    }
    Ok(())
}

/// One end of the tunnel.
struct TunnelEnd<'a> {
    namespace: &'a Namespace,
    address: Ipv4Addr,
    /// Unique on the machine: both ends have their control sockets in one directory.
    device: String,
    private_key: PathBuf,
    public_key: String,
}

/// Starts both ends of the tunnel.
pub(super) fn start(network: &Network, directory: &Path) -> Result<LinkProcesses, RunError> {
    let edge = TunnelEnd::create(network.edge(), "e", EDGE, directory)?;
    let core = TunnelEnd::create(network.core(), "c", CORE, directory)?;
    let processes = LinkProcesses { edge: edge.start()?, core: core.start()? };
    edge.connect(&core, network.path(1).core_address())?;
    core.connect(&edge, network.path(1).edge_address())?;
    Ok(processes)
}

impl<'a> TunnelEnd<'a> {
    fn create(
        namespace: &'a Namespace,
        side: &str,
        address: Ipv4Addr,
        directory: &Path,
    ) -> Result<Self, RunError> {
        let device = format!("ekw{}{side}", std::process::id());
        let private_key = directory.join(format!("wireguard-{side}"));
        fs::write(&private_key, run(Command::new("wg").arg("genkey"))?)?;
        let public_key = run(Command::new("wg").arg("pubkey").stdin(fs::File::open(&private_key)?))?;
        Ok(Self { namespace, address, device, private_key, public_key })
    }

    /// Starts the process and waits until it can be configured.
    fn start(&self) -> Result<Process, RunError> {
        let mut command = self.namespace.command("wireguard-go");
        command.args(["-f", &self.device]).env("LOG_LEVEL", "error");
        let mut process = Process::start(&mut command, &self.private_key.with_extension("log"))?;
        let socket = PathBuf::from(format!("/var/run/wireguard/{}.sock", self.device));
        let start = Instant::now();
        while !socket.exists() {
            if START_WAIT_MAX < start.elapsed() || !process.is_running()? {
                return Err(RunError("wireguard-go has not started".to_owned()));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(process)
    }

    /// Sets the other end, and brings the tunnel up.
    fn connect(&self, peer: &TunnelEnd, endpoint: Ipv4Addr) -> Result<(), RunError> {
        let mut set = self.namespace.command("wg");
        set.args(["set", &self.device, "listen-port", &PORT.to_string(), "private-key"]);
        set.arg(&self.private_key).args(["peer", &peer.public_key]);
        set.args(["endpoint", &format!("{endpoint}:{PORT}"), "allowed-ips", &format!("{}/32", peer.address)]);
        run(&mut set)?;
        let address = format!("{}/24", self.address);
        let mtu = MTU.to_string();
        run(self.namespace.command("ip").args(["address", "add", &address, "dev", &self.device]))?;
        run(self.namespace.command("ip").args(["link", "set", &self.device, "mtu", &mtu, "up"]))?;
        Ok(())
    }
}
