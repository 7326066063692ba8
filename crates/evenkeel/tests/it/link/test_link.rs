//! A link between two processes, over an emulated network or loopback.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use evenkeel_sim_node::testing::{RawResponse, open, read};
use evenkeel_test_network::{EmulatedPath, Network};
use serde_json::Value;

use super::process::{LoggedProcess, TIMEOUT, poll_until_timeout, wait_for};
use super::sites::{LinkSide, Sites, wait_forwards, wait_port};
use super::test_relay::{RelaySpec, TestRelay, start_relays};
use crate::test_dir::CommandOutput;

/// Two link processes.
///
/// The edge forwards to a TCP listener of the test in the core, once per lane, and to the targets that a test adds.
pub(crate) struct TestLink {
    pub(crate) edge: LoggedProcess,
    pub(crate) core: LoggedProcess,
    pub(crate) relays: Vec<TestRelay>,
    network: LinkNetwork,
    pub(crate) sites: Sites,
    /// UDP port of the core.
    pub(crate) port: u16,
    listener: TcpListener,
    /// Addresses in the edge: stream, bonded and redundant lane, then the stream lane for each further target.
    forwards: Vec<SocketAddr>,
    /// Addresses in the edge of the forwards to the UDP targets.
    udp_forwards: Vec<SocketAddr>,
}

/// Network of a link.
pub(crate) enum LinkNetwork {
    Loopback,
    Emulated(Network),
}

impl LinkNetwork {
    pub(crate) fn run<T: Send>(&self, side: LinkSide, work: impl FnOnce() -> T + Send) -> T {
        match (self, side) {
            (Self::Loopback, _) => work(),
            (Self::Emulated(network), LinkSide::Edge) => network.edge().run(work),
            (Self::Emulated(network), LinkSide::Core) => network.core().run(work),
        }
    }
}

/// Settings of a [`TestLink`] beyond its network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkOptions<'a> {
    /// Config file of both sides.
    pub(crate) config: &'a str,
    /// Further targets in the core.
    pub(crate) targets: &'a [SocketAddr],
    /// Further paths, without the port.
    pub(crate) paths: &'a [&'a str],
    /// Relays that all paths go over.
    pub(crate) relays: &'a [RelaySpec],
    /// UDP targets in the core, with the options of their forwards, such as `,lane=stripe`.
    pub(crate) udp_targets: &'a [(SocketAddr, &'a str)],
}

/// A forward of a [`TestLink`] to its own listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardLane {
    Stream,
    Bonded,
    Redundant,
}

/// Two ends of a forwarded connection.
pub(crate) struct Connection {
    pub(crate) edge: TcpStream,
    pub(crate) core: TcpStream,
}

impl TestLink {
    /// Starts a link with default settings; its paths connect in the background.
    pub(crate) fn start(name: &str, network: Network) -> Self {
        Self::with(name, network, &LinkOptions::default())
    }

    pub(crate) fn with(name: &str, network: Network, options: &LinkOptions<'_>) -> Self {
        let path = |path: &EmulatedPath| format!("{}={}", path.interface(), path.core_address());
        let mut paths: Vec<String> = network.paths().iter().map(path).collect();
        paths.extend(options.paths.iter().map(ToString::to_string));
        Self::start_in(LinkNetwork::Emulated(network), name, &paths, options)
    }

    /// Starts a link over an emulated network whose only path is `path`, without the port.
    pub(crate) fn over_one_path(name: &str, network: Network, path: &str, options: &LinkOptions<'_>) -> Self {
        Self::start_in(LinkNetwork::Emulated(network), name, &[path.to_owned()], options)
    }

    /// Starts a link with one path over loopback.
    pub(crate) fn with_one_path(name: &str, options: &LinkOptions<'_>) -> Self {
        Self::start_in(LinkNetwork::Loopback, name, &["127.0.0.1".to_owned()], options)
    }

    /// Starts a link with two paths over loopback.
    pub(crate) fn on_loopback(name: &str, options: &LinkOptions<'_>) -> Self {
        let paths = ["127.0.0.1=127.0.0.1", "127.0.0.2=127.0.0.1"].map(str::to_owned);
        Self::start_in(LinkNetwork::Loopback, name, &paths, options)
    }

    fn start_in(network: LinkNetwork, name: &str, paths: &[String], options: &LinkOptions<'_>) -> Self {
        let sites = Sites::new(name, options.config);
        let listener = network.run(LinkSide::Core, || TcpListener::bind("127.0.0.1:0").unwrap());
        listener.set_nonblocking(true).unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let mut targets: Vec<String> = options.targets.iter().map(ToString::to_string).collect();
        targets.insert(0, own.clone());
        let listen = match network {
            LinkNetwork::Loopback => "127.0.0.1:0",
            LinkNetwork::Emulated(_) => "0.0.0.0:0",
        };
        let mut command = sites.listen(listen, &targets);
        for (target, _) in options.udp_targets {
            command.args(["--allow", &format!("udp:{target}")]);
        }
        let core = network.run(LinkSide::Core, || LoggedProcess::spawn("core", &mut command));
        let port = wait_port(&core);
        targets.insert(1, format!("{own},lane=bonded"));
        targets.insert(2, format!("{own},lane=redundant"));
        let paths: Vec<String> = paths.iter().map(|path| format!("{path}:{port}")).collect();
        let relays = start_relays(&network, &sites, &paths, options.relays);
        let mut command = sites.connect(&paths, &targets);
        for relay in &relays {
            command.args(["--relay", &relay.argument()]);
        }
        for (target, settings) in options.udp_targets {
            command.args(["--forward", &format!("udp:127.0.0.1:0={target}{settings}")]);
        }
        let edge = network.run(LinkSide::Edge, || LoggedProcess::spawn("edge", &mut command));
        let forwards = wait_forwards(&edge, "forwarding connections", targets.len());
        let udp_forwards = wait_forwards(&edge, "forwarding UDP datagrams", options.udp_targets.len());
        Self { edge, core, relays, network, sites, port, listener, forwards, udp_forwards }
    }

    /// Opens a UDP socket in the edge that is connected to the forward to a UDP target.
    pub(crate) fn udp_client(&self, index: usize) -> UdpSocket {
        self.udp_client_of(self.udp_forwards[index])
    }

    /// Opens a UDP socket in the edge that is connected to an address there.
    pub(crate) fn udp_client_of(&self, address: SocketAddr) -> UdpSocket {
        self.network.run(LinkSide::Edge, || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(address).unwrap();
            socket
        })
    }

    /// Returns the emulated network.
    pub(crate) fn network(&self) -> &Network {
        match &self.network {
            LinkNetwork::Emulated(network) => network,
            LinkNetwork::Loopback => panic!("loopback is not emulated"),
        }
    }

    /// Waits until this number of paths is active on both sides.
    pub(crate) fn wait_active(&self, count: usize) {
        let is_active = |session: &Value| {
            let paths = session["paths"].as_array().unwrap();
            paths.iter().filter(|path| path["state"] == "ACTIVE").count() >= count
        };
        self.wait_session(LinkSide::Edge, "active paths", is_active);
        self.wait_session(LinkSide::Core, "active paths", is_active);
    }

    /// Waits for a status of a side's session; returns it.
    #[track_caller]
    pub(crate) fn wait_session(&self, side: LinkSide, what: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let poll = || {
            last = self.session(side);
            (!last.is_null() && is_met(&last)).then_some(())
        };
        if poll_until_timeout(poll).is_none() {
            panic!("no {what} at {side:?}: {last:#}");
        }
        last
    }

    /// Returns the status of a side's newest session; null if it has none.
    pub(crate) fn session(&self, side: LinkSide) -> Value {
        let status: Value = serde_json::from_str(&self.status(side, &["--json"]).ok()).unwrap();
        status[0]["sessions"].as_array().unwrap().last().cloned().unwrap_or_default()
    }

    /// Runs `evenkeel link status` on a side.
    pub(crate) fn status(&self, side: LinkSide, args: &[&str]) -> CommandOutput {
        let mut command = self.sites.status(side, args);
        CommandOutput::new(self.network.run(side, || command.output().unwrap()))
    }

    /// Returns the metrics page of a side.
    pub(crate) fn metrics(&self, side: LinkSide) -> MetricsPage {
        let process = match side {
            LinkSide::Edge => &self.edge,
            LinkSide::Core => &self.core,
        };
        let url = process.wait_log("metrics at /metrics")["url"].clone();
        let address = url.as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: link\r\nconnection: close\r\n\r\n";
        let response: RawResponse = self.network.run(side, || read(open(address, request)));
        assert_eq!(response.status, 200, "{response:?}");
        MetricsPage(response.body)
    }

    /// Returns the edge's address of a forward to the test's listener.
    pub(crate) fn forward(&self, lane: ForwardLane) -> SocketAddr {
        self.forwards[lane as usize]
    }

    /// Returns the edge's address of the forward to a further target.
    pub(crate) fn forward_to_target(&self, index: usize) -> SocketAddr {
        self.forwards[3 + index]
    }

    /// Returns the address of the test's listener.
    pub(crate) fn target(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// Opens a forwarded connection; returns both ends.
    pub(crate) fn connect(&self, lane: ForwardLane) -> Connection {
        let edge = self.open(self.forward(lane));
        let core = self.accept();
        Connection { edge, core }
    }

    /// Opens a connection to an address in the edge.
    pub(crate) fn open(&self, address: SocketAddr) -> TcpStream {
        let socket = self.network.run(LinkSide::Edge, || TcpStream::connect(address).unwrap());
        prepared(socket)
    }

    /// Accepts a forwarded connection in the core.
    pub(crate) fn accept(&self) -> TcpStream {
        let accept = || match self.listener.accept() {
            Ok((socket, _)) => Some(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        };
        let socket = wait_for("forwarded connection", accept);
        socket.set_nonblocking(false).unwrap();
        prepared(socket)
    }
}

fn prepared(socket: TcpStream) -> TcpStream {
    socket.set_nodelay(true).unwrap();
    // Fails a test that would otherwise hang.
    socket.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
    socket
}

/// Text of a metrics page.
#[derive(Debug)]
pub(crate) struct MetricsPage(pub(crate) String);

impl MetricsPage {
    /// Returns the value of a series, whose name includes its labels.
    #[track_caller]
    pub(crate) fn value(&self, series: &str) -> f64 {
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        self.0.lines().find_map(value).unwrap_or_else(|| panic!("no {series} in {}", self.0))
    }
}
