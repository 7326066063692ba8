//! `evenkeel link connect`: connects to the other side over every path and forwards TCP connections and UDP datagrams.

use clap::Args;
use evenkeel_link::forward::{self, Forward, udp};
use evenkeel_link::identity::Fingerprint;
use evenkeel_link::quic::PathTarget;
use evenkeel_link::relay::RelayTarget;
use evenkeel_link::{ConnectorSettings, Link, LinkConnector, RouteSettings};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use super::process::{LinkProcess, ProcessArgs, drain};
use crate::cli::CliError;

const EXAMPLES: &str = "\
Examples:
  evenkeel link connect --keys edge-keys --peer sha256:... --path wan0=198.51.100.7:7443 --path wan1=203.0.113.7:7443 \\
      --forward 127.0.0.1:9000=127.0.0.1:8000
  evenkeel link connect --keys edge-keys --peer sha256:... --path core.example:7443 \\
      --forward 127.0.0.1:9000=127.0.0.1:8000,lane=bonded
  evenkeel link connect --keys edge-keys --peer sha256:... --path wan0=198.51.100.7:7443 --path wan1=203.0.113.7:7443 \\
      --forward udp:127.0.0.1:5353=10.0.0.5:53 --forward udp:0.0.0.0:51820=10.0.0.9:51820,lane=duplicate,idle=300
  evenkeel link connect --keys edge-keys --peer sha256:... --path core.example:7443 \\
      --relay relay-a.example:7500=sha256:... --relay relay-b.example:7500=sha256:... --relay relay-c.example:7500=sha256:... \\
      --forward 127.0.0.1:9000=127.0.0.1:8000

A path is [interface or local address=]remote address. A local address alone does not choose an interface: name the
interface, or route by source address.
The lane of a TCP forward is `stream` (default: each connection uses one path), `bonded` (each connection uses all paths,
for large transfers) or `redundant` (each connection uses the two best paths, and the first copy counts). That of a UDP forward (udp:) is `pin` (default: each client uses one path), `stripe` (the
datagrams of each client are spread over all paths and put in order) or `duplicate` (each datagram takes all paths, and the
first copy counts). The flow of a UDP client ends after `idle` seconds without datagrams (60).
With relays, every path goes over hops_min to hops_max of them ([link] in the config file); each relay must allow our key
(--peer) and the relays and the listening side that may follow it (--next).
";

/// Connect to the other side of a link over one or more paths and forward TCP connections and UDP datagrams to it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Fingerprint of the other side, as `evenkeel link keys` prints it there
    #[arg(long, value_name = "FINGERPRINT")]
    peer: Fingerprint,
    /// Path to the other side; repeatable
    #[arg(long = "path", value_name = "[INTERFACE|LOCAL_IP=]HOST:PORT", required = true)]
    paths: Vec<PathTarget>,
    /// Relay that paths may go over, with its fingerprint; repeatable
    #[arg(long = "relay", value_name = "HOST:PORT=FINGERPRINT")]
    relays: Vec<RelayTarget>,
    /// Local address whose connections or datagrams are forwarded to a target that the other side allows; repeatable
    #[arg(long = "forward", value_name = "[udp:]LISTEN=TARGET[,lane=LANE]")]
    forwards: Vec<Forward>,
}

async fn start_forward(forwards: &mut JoinSet<()>, forward: Forward, link: Link) -> Result<(), CliError> {
    let cannot_listen = |error| format!("could not listen on {}: {error}", forward.listen);
    if let Some(mode) = forward.lane.datagram_mode() {
        let socket = UdpSocket::bind(forward.listen).await.map_err(cannot_listen)?;
        let address = socket.local_addr()?;
        tracing::info!(target: "evenkeel", listen = %address, to = %forward.target, lane = %mode, "forwarding UDP datagrams");
        forwards.spawn(udp::run(socket, forward, mode, link));
    } else {
        let listener = TcpListener::bind(forward.listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr()?;
        tracing::info!(target: "evenkeel", listen = %address, to = %forward.target, lane = %forward.lane, "forwarding connections");
        forwards.spawn(forward::run(listener, forward, link));
    }
    Ok(())
}

pub(super) fn run(args: ConnectArgs) -> Result<(), CliError> {
    LinkProcess::run(&args.process, async |process, mut stop| {
        let LinkProcess { identity, session, routes, metrics, .. } = &process;
        let settings = ConnectorSettings {
            name: "connect".to_owned(),
            peer: args.peer,
            paths: args.paths,
            routes: RouteSettings { relays: args.relays, ..routes.clone() },
            session: session.clone(),
        };
        let mut connector = LinkConnector::start(identity, settings, metrics.clone())?;
        connector.check_sockets()?;
        if args.forwards.is_empty() {
            tracing::warn!(target: "evenkeel", "nothing is forwarded; forward a port with --forward LISTEN=TARGET");
        }
        let mut forwards = JoinSet::new();
        for forward in args.forwards {
            start_forward(&mut forwards, forward, connector.link()).await?;
        }
        let drain_max = process.drain_max;
        let links = connector.links();
        let _run_file = process.serve_page(links.clone())?;
        stop.wait().await;
        // Closes the listening sockets and ends UDP flows; accepted connections go on.
        drop(forwards);
        drain(&links, &mut stop, drain_max).await;
        connector.close().await;
        Ok(())
    })
}
