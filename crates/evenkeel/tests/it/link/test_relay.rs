//! Relay processes of a test.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use super::process::LoggedProcess;
use super::sites::{LinkSide, Sites, create_keys};
use super::test_link::LinkNetwork;

/// Place of a relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelaySpec {
    pub(crate) side: LinkSide,
    pub(crate) ip: &'static str,
    pub(crate) next: AllowedNext,
}

/// Addresses to which a relay may forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedNext {
    /// The core and all other relays.
    Any,
    /// The core.
    Core,
    /// The relays after it in the list.
    Later,
}

impl RelaySpec {
    /// A relay on loopback that may forward to all others.
    pub(crate) const LOOPBACK: Self = Self { side: LinkSide::Core, ip: "127.0.0.1", next: AllowedNext::Any };
}

/// A relay process.
pub(crate) struct TestRelay {
    pub(crate) process: LoggedProcess,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
}

impl TestRelay {
    /// Returns the value of `--relay`.
    pub(crate) fn argument(&self) -> String {
        format!("{}={}", self.address, self.key)
    }
}

/// Starts relays on the way of paths, each `[BINDING=]ADDRESS`.
pub(crate) fn start_relays(
    network: &LinkNetwork,
    sites: &Sites,
    paths: &[String],
    specs: &[RelaySpec],
) -> Vec<TestRelay> {
    let core: Vec<String> = paths.iter().map(|path| path.rsplit('=').next().unwrap().to_owned()).collect();
    let addresses: Vec<SocketAddr> = specs.iter().map(|spec| free_address(network, spec)).collect();
    let start = |(index, spec): (usize, &RelaySpec)| {
        let others = |from: usize| {
            let others = addresses.iter().enumerate().skip(from).filter(move |(other, _)| *other != index);
            others.map(|(_, address)| address.to_string())
        };
        let next: Vec<String> = match spec.next {
            AllowedNext::Any => core.iter().cloned().chain(others(0)).collect(),
            AllowedNext::Core => core.clone(),
            AllowedNext::Later => others(index + 1).collect(),
        };
        let keys = format!("relay-{index}-keys");
        let key = create_keys(&sites.dir, &keys);
        let mut command = relay_command(sites, &keys, addresses[index], &next, &sites.edge_key);
        let process = network.run(spec.side, || LoggedProcess::spawn("relay", &mut command));
        process.wait_log("relaying the packets of links");
        TestRelay { process, address: addresses[index], key }
    };
    specs.iter().enumerate().map(start).collect()
}

/// Returns the command of a relay with a runtime directory of its own.
pub(crate) fn relay_command(
    sites: &Sites,
    keys: &str,
    address: SocketAddr,
    next: &[String],
    peer: &str,
) -> Command {
    let address = address.to_string();
    let args = ["link", "relay", "--keys", keys, "--listen", &address, "--peer", peer];
    let mut command = sites.dir.command(&args);
    next.iter().for_each(|next| _ = command.args(["--next", next]));
    command.env("EVENKEEL_RUNTIME_DIR", sites.dir.file(&format!("run-{keys}")));
    command
}

/// Returns an address with a port that was free a moment ago: each relay must know the others before it starts.
fn free_address(network: &LinkNetwork, spec: &RelaySpec) -> SocketAddr {
    let ip: IpAddr = spec.ip.parse().unwrap();
    network.run(spec.side, || UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap())
}
