//! `evenkeel link relay`: forwards the packets of links between other sites.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use evenkeel::link_page::describe_relay;
use evenkeel_link::identity::Fingerprint;
use evenkeel_link::relay::{RelayConfig, RelayLimits, RelayServer};
use evenkeel_telemetry::RelayMetrics;

use super::process::{LinkProcess, ProcessArgs};
use crate::cli::CliError;

const EXAMPLES: &str = "\
Examples:
  evenkeel link relay --keys relay-keys --listen 203.0.113.5:7500 --next 198.51.100.7:7443 --peer sha256:...
  evenkeel link relay --keys relay-keys --listen 203.0.113.5:7500 --next 203.0.113.9:7500 --next 198.51.100.7:7443 \\
      --peer sha256:...

The relay forwards QUIC packets unchanged and cannot read them. The connecting side names it with
--relay HOST:PORT=FINGERPRINT; the fingerprint is that of this relay's keys.
";

/// Forward the packets of links between other sites to the next relay or to the listening side
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RelayArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// UDP address for connecting sides and other relays; a wildcard only if the machine has a single address
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Address to which the relay may forward: another relay or a listening side; repeatable
    #[arg(long = "next", value_name = "ADDR", required = true)]
    next: Vec<SocketAddr>,
    /// Fingerprint of a connecting side that may use the relay, as `evenkeel link keys` prints it there; repeatable
    #[arg(long = "peer", value_name = "FINGERPRINT", required = true)]
    peers: Vec<Fingerprint>,
    /// Most associations at once; each route over this relay is one
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    associations_max: u32,
    /// Most associations of one fingerprint
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    associations_per_peer_max: u32,
    /// Seconds without a packet after which an association ends; longer than the time between two probes of a route
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(30..=120))]
    idle_secs: u64,
}

pub(super) fn run(args: RelayArgs) -> Result<(), CliError> {
    LinkProcess::run(&args.process, async |process, mut stop| {
        let limits = RelayLimits {
            associations_max: args.associations_max as usize,
            associations_per_peer_max: args.associations_per_peer_max as usize,
            idle_timeout: Duration::from_secs(args.idle_secs),
        };
        let config = RelayConfig { listen: args.listen, next: args.next, peers: args.peers, limits };
        let metrics = RelayMetrics::new(process.metrics.registry())?;
        let relay = RelayServer::bind(&process.identity, config, metrics)?;
        let fingerprint = process.identity.fingerprint();
        tracing::info!(target: "evenkeel", address = %relay.local_address(), %fingerprint, "relaying the packets of links");
        let status = relay.status();
        let _run_file = process.serve_status(move || describe_relay(&status()))?;
        // An association ends only when its client is idle, so waiting for the open ones would take for ever; clients find
        // another route.
        stop.wait().await;
        Ok(())
    })
}
