//! `evenkeel serve`: runs the gateway until a signal stops it.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use evenkeel::config::Config;
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::gateway::{Gateway, StartupFiles};
use evenkeel_telemetry::logs::{self, LogFilter};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::CliError;
use super::descriptors::raise_limit;
use super::settings::{SettingsArgs, flag};

const EXAMPLES: &str = "\
Examples:
  evenkeel serve --node http://127.0.0.1:11434          put the gateway in front of a local Ollama
  evenkeel serve --node a=http://10.0.0.5:8000 --node b=http://10.0.0.6:8000
  evenkeel serve --config evenkeel.toml
  evenkeel tenant add acme --weight 2                   add a tenant; from then on clients need an API key

Signals:
  kill -HUP  PID    reload tenants, nodes, links, the certificate and the log filter; if the config file is
                    invalid, nothing changes
  kill -TERM PID    shut down gracefully, like Ctrl-C: fail /readyz for unready_secs, wait up to drain_secs for open SQL
                    transactions to end, then stop accepting and drain requests in flight for up to drain_secs
                    (settings of [server]); a second signal exits at once
";

/// Run the gateway
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Address to listen on; port 0 picks a free port [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Model server, in addition to those in the config file; repeatable
    #[arg(long = "node", value_name = "[NAME=]URL")]
    nodes: Vec<String>,
    /// Allow listening on non-loopback addresses without tenants, so that everybody who reaches the server is served
    #[arg(long)]
    allow_open: bool,
    /// Allow listening on non-loopback addresses without TLS, so that API keys travel in clear text
    #[arg(long)]
    allow_plaintext: bool,
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
        if self.allow_plaintext {
            sources.flags.push(flag("allow_plaintext", "--allow-plaintext", "true"));
        }
        sources.nodes.clone_from(&self.nodes);
        Ok(Config::read(&sources)?)
    }
}

pub(super) fn run(mut args: ServeArgs) -> Result<(), CliError> {
    args.settings.resolve_file();
    let config = args.read()?;
    let filter = logs::install(config.telemetry.logs.clone())?;
    raise_limit(&config.server.limits);
    let data_dir = lock_data_dir(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(&args, config, data_dir, &filter))
}

fn lock_data_dir(config: &Config) -> Result<DataDir, CliError> {
    StartupFiles::check_data_dir(config)?;
    let path: &PathBuf = &config.server.data_dir;
    match DataDir::claim(path)? {
        DataDirClaim::Locked(data_dir) => Ok(data_dir),
        DataDirClaim::InUse(urls) => {
            let path = path.display();
            let url = urls.public;
            Err(format!("{path}: in use by the server at {url}; stop it, or choose another --data-dir")
                .into())
        }
    }
}

async fn serve(
    args: &ServeArgs,
    config: Config,
    data_dir: DataDir,
    filter: &LogFilter,
) -> Result<(), CliError> {
    let mut signals = Signals::install()?;
    let gateway = Gateway::start(config, data_dir).await?;
    gateway.log_startup();
    log_hints(args, gateway.nodes());
    while signals.next().await == SignalAction::Reload {
        reload(args, &gateway, filter);
    }
    tracing::info!(target: "evenkeel", "stopping; a second signal exits at once");
    tokio::select! {
        result = gateway.stop() => {
            let report = result?;
            let connections_cut = report.connections_cut;
            let requests_cut = report.requests_cut;
            tracing::info!(target: "evenkeel", connections_cut, requests_cut, "stopped");
        }
        () = signals.wait_for_stop() => tracing::warn!(target: "evenkeel", "exited on a second signal; requests in flight were aborted"),
    }
    Ok(())
}

/// Logs hints for new users.
fn log_hints(args: &ServeArgs, nodes: usize) {
    if args.settings.file().is_none() {
        tracing::info!(target: "evenkeel", "no config file; evenkeel.toml in the working directory is read if it exists");
    }
    if nodes == 0 {
        tracing::warn!(target: "evenkeel", "no nodes; add one with --node URL, [[llm.nodes]] or `evenkeel node add`");
    }
}

fn reload(args: &ServeArgs, gateway: &Gateway, filter: &LogFilter) {
    let result = args.read().and_then(|config| {
        let logs = config.telemetry.logs.clone();
        let report = gateway.reload(config)?;
        filter.set(&logs);
        Ok(report)
    });
    gateway.record_reload(result.as_ref().map_err(ToString::to_string));
    match result {
        Ok(report) => {
            let tenants = report.tenants;
            let added = report.nodes_added.join(",");
            let changed = report.nodes_changed.join(",");
            let removed = report.nodes_removed.join(",");
            let links_started = report.links_started.join(",");
            let links_removed = report.links_removed.join(",");
            tracing::info!(target: "evenkeel", tenants, nodes_added = added, nodes_changed = changed, nodes_removed = removed, links_started, links_removed, "reloaded");
            for error in report.errors {
                tracing::warn!(target: "evenkeel", error, "part of the reload failed");
            }
            if !report.needs_restart.is_empty() {
                let settings = report.needs_restart.join(",");
                tracing::warn!(target: "evenkeel", settings, "these changed settings take effect only after a restart");
            }
        }
        Err(error) => {
            tracing::error!(target: "evenkeel", error = %error.to_string().replace('\n', "; "), "reload rejected; keeping the current configuration");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    Reload,
    Stop,
}

struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.terminate.recv() => SignalAction::Stop,
        }
    }

    async fn wait_for_stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }
}
