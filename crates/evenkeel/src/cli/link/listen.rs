//! `evenkeel link listen`: waits for the other side and connects its flows to allowed targets.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use evenkeel_link::forward::{AllowedTarget, AllowedTargets, serve_flow, udp};
use evenkeel_link::identity::Fingerprint;
use evenkeel_link::{DatagramFlow, IncomingFlow, IncomingFlows, LinkListener};

use super::process::{LinkProcess, ProcessArgs, drain};
use crate::cli::CliError;

const EXAMPLES: &str = "\
Examples:
  evenkeel link listen --keys core-keys --peer sha256:... --path 0.0.0.0:7443 --allow 127.0.0.1:8000
  evenkeel link listen --keys core-keys --peer sha256:... --path 198.51.100.7:7443 --path 203.0.113.7:7443 \\
      --allow 127.0.0.1:8000 --allow db.internal:5432 --allow udp:127.0.0.1:53

A target is allowed for TCP, or with udp: for UDP.
One wildcard address accepts the paths of all uplinks; name single addresses to keep other interfaces closed.
";

/// Wait for the other side of a link and connect its flows to the allowed targets
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ListenArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// UDP address to listen on; repeatable
    #[arg(long = "path", value_name = "ADDR", required = true)]
    paths: Vec<SocketAddr>,
    /// Fingerprint of the side that may connect, as `evenkeel link keys` prints it there
    #[arg(long, value_name = "FINGERPRINT")]
    peer: Fingerprint,
    /// Target to which the other side may forward; repeatable
    #[arg(long = "allow", value_name = "[udp:]HOST:PORT")]
    allowed: Vec<AllowedTarget>,
}

pub(super) fn run(args: ListenArgs) -> Result<(), CliError> {
    LinkProcess::run(&args.process, async |process, mut stop| {
        let LinkProcess { identity, session, metrics, .. } = &process;
        let mut listener =
            LinkListener::bind(identity, args.peer, &args.paths, session.clone(), metrics.clone())?;
        for address in listener.local_addresses() {
            tracing::info!(target: "evenkeel", %address, "waiting for the paths of a link");
        }
        if args.allowed.is_empty() {
            tracing::warn!(target: "evenkeel", "no target is allowed, so every forward is refused; allow one with --allow HOST:PORT");
        }
        let allowed = Arc::new(AllowedTargets::new(args.allowed));
        let drain_max = process.drain_max;
        let links = listener.links();
        let _run_file = process.serve_page(links.clone())?;
        loop {
            let link = tokio::select! {
                link = listener.accept() => link,
                () = stop.wait() => None,
            };
            let Some(link) = link else { break };
            tokio::spawn(serve(link.flows, allowed.clone()));
        }
        drain(&links, &mut stop, drain_max).await;
        listener.close().await;
        Ok(())
    })
}

/// Connects the flows of one session until it ends.
async fn serve(mut flows: IncomingFlows, allowed: Arc<AllowedTargets>) {
    while let Some(flow) = flows.next().await {
        let allowed = allowed.clone();
        tokio::spawn(async move {
            let IncomingFlow { send, recv, lane, target } = flow;
            if lane.datagram_mode().is_some() {
                udp::serve(DatagramFlow::new(send, recv), target, &allowed).await;
            } else {
                serve_flow(send, recv, target, &allowed).await;
            }
        });
    }
}
