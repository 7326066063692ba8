//! The contenders: plain TCP over one path, Linux MPTCP over all of them, and Evenkeel's link.

mod evenkeel;
mod mptcp;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bench_support::{Process, RunError};
use evenkeel_test_network::Network;
use socket2::Protocol;

use crate::case::LinkCase;

/// Port of the stream's receiver; every turn has namespaces of its own, in which all ports are free.
const PORT: u16 = 8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkContender {
    /// Plain TCP (Cubic) over the path with this number.
    Tcp {
        path: usize,
    },
    Mptcp(CongestionControl),
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
    /// All contenders, in table order, with one path for all.
    pub(crate) const ALL: &[Self] = &[
        Self::Tcp { path: 1 },
        Self::Mptcp(CongestionControl::Cubic),
        Self::Mptcp(CongestionControl::Bbr),
        Self::Evenkeel,
    ];

    /// Returns the contenders of a case, in table order.
    pub(crate) fn in_case(case: &LinkCase) -> Vec<Self> {
        let paths = (1..=case.paths.len()).map(|path| Self::Tcp { path });
        paths.chain(Self::ALL.iter().copied().filter(|contender| contender.is_multipath())).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Mptcp(CongestionControl::Cubic) => "mptcp-cubic",
            Self::Mptcp(CongestionControl::Bbr) => "mptcp-bbr",
            Self::Evenkeel => "evenkeel",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Tcp { .. } => "plain TCP (Cubic) over each path alone",
            Self::Mptcp(CongestionControl::Cubic) => "MPTCP of the kernel with Cubic",
            Self::Mptcp(CongestionControl::Bbr) => "MPTCP of the kernel with BBR",
            Self::Evenkeel => "evenkeel link, the bonded lane",
        }
    }

    /// Returns the first cell of the contender's row.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Tcp { path } => format!("tcp p{path}"),
            Self::Mptcp(_) | Self::Evenkeel => self.name().to_owned(),
        }
    }

    pub(crate) fn is_multipath(self) -> bool {
        !matches!(self, Self::Tcp { .. })
    }

    /// Fails if the contender cannot run on this machine.
    pub(crate) fn check(self, evenkeel: &Path) -> Result<(), RunError> {
        match self {
            Self::Tcp { .. } => Ok(()),
            Self::Mptcp(congestion_control) => mptcp::check(congestion_control),
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
        let tcp = |path: usize| {
            let address = SocketAddr::from((network.path(path).core_address(), PORT));
            StartedLink {
                protocol: Protocol::TCP,
                congestion_control: CongestionControl::Cubic,
                connect: address,
                listen: address,
                processes: None,
            }
        };
        match self {
            Self::Tcp { path } => Ok(tcp(path)),
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

impl CongestionControl {
    /// Returns the kernel's name of the algorithm.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

impl LinkProcesses {
    /// Returns the CPU time of the edge's and of the core's process.
    pub(crate) fn cpu(&self) -> io::Result<[Duration; 2]> {
        Ok([self.edge.cpu()?, self.core.cpu()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_contender_for_each_path_and_all_multipath_contenders() {
        let case = LinkCase::parse("A").unwrap();
        let labels: Vec<_> = LinkContender::in_case(&case).into_iter().map(LinkContender::label).collect();
        assert_eq!(labels, ["tcp p1", "tcp p2", "mptcp-cubic", "mptcp-bbr", "evenkeel"]);
    }
}
