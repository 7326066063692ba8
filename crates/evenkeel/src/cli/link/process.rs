//! Process of one side of a link: settings, logs, signals, and the page with its status and metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use evenkeel::config::{Config, LinkConfig};
use evenkeel::link_page::{self, LinkPage};
use evenkeel_link::identity::Identity;
use evenkeel_link::session::SessionConfig;
use evenkeel_link::{Links, RouteSettings};
use evenkeel_telemetry::{PathMetrics, logs};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::run_file::RunFile;
use crate::cli::CliError;
use crate::cli::settings::SettingsArgs;

/// Flags of every link process.
#[derive(Debug, Args)]
pub(super) struct ProcessArgs {
    /// Directory with the key pair of this process, as `evenkeel link keys --out` created it
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Config file; its settings in [link] and [telemetry] apply [default: evenkeel.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the page with this link's status (/status) and metrics (/metrics); port 0 picks a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    status_listen: SocketAddr,
    /// Allow a --status-listen address that other machines can reach; the page needs no key
    #[arg(long)]
    allow_open: bool,
}

/// A link process before it runs.
pub(super) struct LinkProcess {
    pub(super) identity: Identity,
    pub(super) session: SessionConfig,
    pub(super) routes: RouteSettings,
    pub(super) metrics: PathMetrics,
    /// Time for open connections to end after a signal.
    pub(super) drain_max: Duration,
    page: LinkPage,
    run_file: RunFile,
}

impl LinkProcess {
    /// Reads settings and keys, installs logging, binds the status page, and runs `side`, which ends when the signals
    /// that it gets resolve.
    pub(super) fn run<S>(args: &ProcessArgs, side: S) -> Result<(), CliError>
    where
        S: AsyncFnOnce(Self, StopSignals) -> Result<(), CliError>,
    {
        if !args.status_listen.ip().is_loopback() && !args.allow_open {
            let address = args.status_listen;
            return Err(format!("--status-listen {address}: other machines could read the status without a key; --allow-open allows it").into());
        }
        let config: Config = SettingsArgs::for_optional_file(args.config.clone()).read()?;
        let identity = Identity::load(&args.keys)?;
        logs::install(config.telemetry.logs.clone())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = StopSignals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            };
            let page = LinkPage::bind(args.status_listen).await?;
            let run_file = RunFile::create(&page.url()?)?;
            let metrics = page.metrics().clone();
            let drain_max = config.server.limits.drain_max;
            let LinkConfig { session, routes, .. } = config.link;
            let process = Self { identity, session, routes, metrics, drain_max, page, run_file };
            side(process, stop).await
        })
    }

    /// Starts serving the page; the file that `evenkeel link status` reads exists as long as the guard.
    pub(super) fn serve_page(self, links: Links) -> Result<RunFile, CliError> {
        self.serve_status(move || link_page::describe(&links.status()))
    }

    /// Starts serving a page with this status; see [`Self::serve_page`].
    pub(super) fn serve_status(
        self,
        status: impl Fn() -> Value + Send + Sync + 'static,
    ) -> Result<RunFile, CliError> {
        let url = self.page.url()?;
        tracing::info!(target: "evenkeel", %url, "status at /status, metrics at /metrics");
        self.page.serve(status)?;
        Ok(self.run_file)
    }
}

/// Waits until all connections over the links have ended, at most `drain_max` or until a second signal.
pub(super) async fn drain(links: &Links, stop: &mut StopSignals, drain_max: Duration) {
    let open: usize = links.status().iter().map(|session| session.flows.len()).sum();
    if open > 0 {
        tracing::info!(target: "evenkeel", open, "waiting for open connections to end; a second signal exits at once");
    }
    tokio::select! {
        _ = timeout(drain_max, links.wait_idle()) => {}
        () = stop.wait() => {}
    }
}

/// Signals that stop the process.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    pub(super) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
