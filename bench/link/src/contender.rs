//! The contenders: TCP over one path, plain or through WireGuard, Linux MPTCP over all of them, and Evenkeel's link.

mod command;
mod evenkeel;
mod mptcp;
mod wireguard;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bench_support::{Process, RunError};
use evenkeel_test_network::Network;
use socket2::Protocol;

use crate::case::{CaseKind, LinkCase};

/// Port of the stream's receiver; every turn has namespaces of its own, in which all ports are free.
const PORT: u16 = 8000;
/// Port of the receiver of the flow beside it.
const COMPETITOR_PORT: u16 = 8001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkContender {
    /// Plain TCP over the path with this number.
    Tcp {
        path: usize,
        congestion_control: CongestionControl,
    },
    Mptcp(CongestionControl),
    /// TCP (Cubic) through a WireGuard tunnel over path 1.
    WireGuard,
    Evenkeel,
}

/// An algorithm of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CongestionControl {
    Cubic,
    Bbr,
}

/// A transport that is ready for the stream.
pub(crate) struct StartedLink {
    pub(crate) protocol: Protocol,
    pub(crate) congestion_control: CongestionControl,
    /// Address to which the sender connects, at the edge.
    pub(crate) connect: SocketAddr,
    /// Address on which the receiver listens, in the core.
    pub(crate) listen: SocketAddr,
    pub(crate) processes: Option<LinkProcesses>,
}

/// Processes that carry the stream.
pub(crate) struct LinkProcesses {
    pub(crate) edge: Process,
    pub(crate) core: Process,
}

impl LinkContender {
    /// All contenders, in table order; TCP stands for path 1.
    pub(crate) const ALL: &[Self] = &[
        Self::CUBIC,
        Self::Tcp { path: 1, congestion_control: CongestionControl::Bbr },
        Self::WireGuard,
        Self::Mptcp(CongestionControl::Cubic),
        Self::Mptcp(CongestionControl::Bbr),
        Self::Evenkeel,
    ];
    const CUBIC: Self = Self::Tcp { path: 1, congestion_control: CongestionControl::Cubic };

    /// Returns the contenders of a case, in table order.
    pub(crate) fn in_case(case: &LinkCase) -> Vec<Self> {
        let multipath = Self::ALL.iter().copied().filter(|contender| contender.is_multipath());
        match case.kind {
            CaseKind::Multipath | CaseKind::FailOver => {
                let congestion_control = CongestionControl::Cubic;
                let paths = (1..=case.paths.len()).map(|path| Self::Tcp { path, congestion_control });
                // WireGuard's goodput is that of TCP over its path; one case shows its CPU time beside the others.
                let tunnel = (case.name == "A").then_some(Self::WireGuard);
                paths.chain(tunnel).chain(multipath).collect()
            }
            CaseKind::SinglePath => {
                let is_single = |contender: &Self| !matches!(contender, Self::Mptcp(_));
                Self::ALL.iter().copied().filter(is_single).collect()
            }
            CaseKind::Shared => vec![Self::CUBIC, Self::Evenkeel],
            CaseKind::Flapping => multipath.collect(),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp { congestion_control: CongestionControl::Cubic, .. } => "tcp",
            Self::Tcp { congestion_control: CongestionControl::Bbr, .. } => "tcp-bbr",
            Self::WireGuard => "wireguard",
            Self::Mptcp(CongestionControl::Cubic) => "mptcp-cubic",
            Self::Mptcp(CongestionControl::Bbr) => "mptcp-bbr",
            Self::Evenkeel => "evenkeel",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Tcp { congestion_control: CongestionControl::Cubic, .. } => {
                "plain TCP (Cubic) over each path alone"
            }
            Self::Tcp { congestion_control: CongestionControl::Bbr, .. } => "plain TCP (BBR) over one path",
            Self::WireGuard => "TCP (Cubic) through wireguard-go over path 1",
            Self::Mptcp(CongestionControl::Cubic) => "MPTCP of the kernel with Cubic",
            Self::Mptcp(CongestionControl::Bbr) => "MPTCP of the kernel with BBR",
            Self::Evenkeel => "evenkeel link, the bonded lane",
        }
    }

    /// Returns the first cell of the contender's row.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Tcp { path, .. } => format!("{} p{path}", self.name()),
            Self::WireGuard | Self::Mptcp(_) | Self::Evenkeel => self.name().to_owned(),
        }
    }

    pub(crate) fn is_multipath(self) -> bool {
        matches!(self, Self::Mptcp(_) | Self::Evenkeel)
    }

    /// Fails if the contender cannot run on this machine.
    pub(crate) fn check(self, evenkeel: &Path) -> Result<(), RunError> {
        match self {
            Self::Tcp { congestion_control, .. } => congestion_control.check(),
            Self::WireGuard => wireguard::check(),
            Self::Mptcp(congestion_control) => {
                mptcp::check()?;
                congestion_control.check()
            }
            Self::Evenkeel => evenkeel::check(evenkeel),
        }
    }

    /// Prepares the transport in a new network; `directory` gets its files.
    pub(crate) fn start(
        self,
        network: &Network,
        evenkeel: &Path,
        directory: &Path,
    ) -> Result<StartedLink, RunError> {
        let tcp = |path: usize| StartedLink::tcp(network, path, PORT);
        match self {
            Self::Tcp { path, congestion_control } => Ok(StartedLink { congestion_control, ..tcp(path) }),
            Self::WireGuard => {
                let processes = wireguard::start(network, directory)?;
                let address = SocketAddr::from((wireguard::CORE, PORT));
                Ok(StartedLink { connect: address, listen: address, processes: Some(processes), ..tcp(1) })
            }
            Self::Mptcp(congestion_control) => {
                mptcp::configure(network)?;
                // Subflows connect to the addresses of all paths.
                let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
                Ok(StartedLink { protocol: Protocol::MPTCP, congestion_control, listen, ..tcp(1) })
            }
            Self::Evenkeel => {
                let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
                let processes = evenkeel::start(network, evenkeel, directory, listen)?;
                Ok(StartedLink { connect: evenkeel::FORWARD, listen, processes: Some(processes), ..tcp(1) })
            }
        }
    }
}

impl StartedLink {
    /// Returns a kernel Cubic flow beside the contender's, over path 1.
    pub(crate) fn competitor(network: &Network) -> Self {
        Self::tcp(network, 1, COMPETITOR_PORT)
    }

    fn tcp(network: &Network, path: usize, port: u16) -> Self {
        let address = SocketAddr::from((network.path(path).core_address(), port));
        Self {
            protocol: Protocol::TCP,
            congestion_control: CongestionControl::Cubic,
            connect: address,
            listen: address,
            processes: None,
        }
    }
}

impl CongestionControl {
    /// Returns the kernel's name of the algorithm.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    /// Fails if the kernel does not have the algorithm.
    fn check(self) -> Result<(), RunError> {
        let available = read_proc("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        if available.split_whitespace().any(|name| name == self.name()) {
            return Ok(());
        }
        Err(RunError(format!("the kernel has only: {}", available.trim())))
    }
}

impl LinkProcesses {
    /// Returns the CPU time of the edge's and of the core's process.
    pub(crate) fn cpu(&self) -> io::Result<[Duration; 2]> {
        Ok([self.edge.cpu()?, self.core.cpu()?])
    }
}

fn read_proc(file: &str) -> Result<String, RunError> {
    fs::read_to_string(file).map_err(|error| RunError(format!("{file}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_the_contenders_that_it_compares() {
        for (name, expected) in [
            ("A", "tcp p1, tcp p2, wireguard, mptcp-cubic, mptcp-bbr, evenkeel"),
            ("F", "tcp p1, tcp p2, tcp p3, mptcp-cubic, mptcp-bbr, evenkeel"),
            ("loss", "tcp p1, tcp-bbr p1, wireguard, evenkeel"),
            ("shared-5ms", "tcp p1, evenkeel"),
            ("flapping", "mptcp-cubic, mptcp-bbr, evenkeel"),
        ] {
            let contenders = LinkContender::in_case(&LinkCase::parse(name).unwrap());
            let labels: Vec<_> = contenders.into_iter().map(LinkContender::label).collect();
            assert_eq!(labels.join(", "), expected, "{name}");
        }
    }
}
