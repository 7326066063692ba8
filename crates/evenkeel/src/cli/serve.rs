//! `evenkeel serve`: the gateway, until a signal ends it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use evenkeel::config::Config;
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::gateway::Gateway;
use evenkeel_telemetry::logs;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::CliError;
use super::settings::{SettingsArgs, flag};

const EXAMPLES: &str = "\
Examples:
  evenkeel serve --node http://127.0.0.1:11434          in front of one Ollama, for everybody on this machine
  evenkeel serve --node a=http://10.0.0.5:8000 --node b=http://10.0.0.6:8000
  evenkeel serve --config evenkeel.toml
  evenkeel tenant add acme --weight 2                   from here on, only who has a key is served

  kill -HUP  PID      reads the config again: tenants, nodes, certificate; a bad one is refused and the old one stays
  kill -TERM PID      stops accepting, finishes what is in flight for up to drain_secs; a second one ends at once
";

/// Runs the gateway.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Where to listen [default: 127.0.0.1:7070]; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A model server, besides those of the config file; may be given several times
    #[arg(long = "node", value_name = "[NAME=]URL")]
    nodes: Vec<String>,
    /// Serves others than this machine without tenants or without TLS
    #[arg(long)]
    allow_open: bool,
}

impl ServeArgs {
    fn read(&self) -> Result<Config, CliError> {
        let mut sources = self.settings.sources()?;
        if let Some(address) = self.listen {
            sources.flags.push(flag("listen", "--listen", address.to_string()));
        }
        if self.allow_open {
            sources.flags.push(flag("allow_open", "--allow-open", "true"));
        }
        sources.nodes.clone_from(&self.nodes);
        Ok(Config::read(&sources)?)
    }
}

pub(super) fn run(mut args: ServeArgs) -> Result<(), CliError> {
    args.settings.fix_file();
    let config = args.read()?;
    logs::install(config.telemetry.logs.clone())?;
    let folder = claim(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(&args, config, folder))
}

fn claim(config: &Config) -> Result<DataDir, CliError> {
    let path: &PathBuf = &config.server.data_dir;
    match DataDir::claim(path)? {
        DataDirClaim::Ours(folder) => Ok(folder),
        DataDirClaim::Served { url } => {
            Err(format!("{}: the server at {url} has this folder; --data-dir names another", path.display())
                .into())
        }
    }
}

async fn serve(args: &ServeArgs, config: Config, folder: DataDir) -> Result<(), CliError> {
    let mut signals = Signals::watch()?;
    let gateway = Gateway::start(config, folder).await?;
    gateway.tell();
    advise(args, gateway.nodes());
    while signals.next().await == SignalAction::Reload {
        reload(args, &gateway);
    }
    tracing::info!(target: "evenkeel", "stopping; a second signal ends at once");
    tokio::select! {
        drained = gateway.stop() => {
            let cut = drained?;
            let connections_cut = cut.connections_cut;
            let requests_cut = cut.requests_cut;
            tracing::info!(target: "evenkeel", connections_cut, requests_cut, "stopped");
        }
        () = signals.end() => tracing::warn!(target: "evenkeel", "ended by a second signal"),
    }
    Ok(())
}

/// Says what a newcomer may not expect.
fn advise(args: &ServeArgs, nodes: usize) {
    if args.settings.file().is_none() {
        tracing::info!(target: "evenkeel", "no config file; evenkeel.toml in this folder would be read");
    }
    if nodes == 0 {
        tracing::warn!(target: "evenkeel", "no nodes yet; --node URL, [[llm.nodes]] or POST /api/nodes brings one");
    }
}

fn reload(args: &ServeArgs, gateway: &Gateway) {
    let reloaded = args.read().and_then(|config| Ok(gateway.reload(config)?));
    match reloaded {
        Ok(done) => {
            let tenants = done.tenants;
            let added = done.nodes_added.join(",");
            let removed = done.nodes_removed.join(",");
            tracing::info!(target: "evenkeel", tenants, nodes_added = added, nodes_removed = removed, "reloaded");
            for trouble in done.troubles {
                tracing::warn!(target: "evenkeel", trouble, "reloaded but for this");
            }
            if !done.after_restart.is_empty() {
                let settings = done.after_restart.join(",");
                tracing::warn!(target: "evenkeel", settings, "these take effect after a restart");
            }
        }
        Err(error) => {
            tracing::error!(target: "evenkeel", error = %error.to_string().replace('\n', "; "), "reload refused; the old configuration stays");
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    Reload,
    End,
}

struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.interrupt.recv() => SignalAction::End,
            _ = self.terminate.recv() => SignalAction::End,
        }
    }

    async fn end(&mut self) {
        while self.next().await != SignalAction::End {}
    }
}
