//! The gateways and proxies that are compared. Each is configured as its documentation says: keep-alive on both sides,
//! its default number of threads, no access log.

mod envoy;
mod evenkeel;
mod litellm;
mod proxies;
mod routers;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::load::{ClientPool, Target};
use bench_support::{Process, free_port};

const READY_WAIT_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const UNUSED_KEY: &str = "sk-bench-0000000000000000";

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) supports: SupportedWorkloads,
    /// Fraction of the workload's requests that it gets; below 1 for slow contenders, so that their turns end in time.
    pub(crate) request_fraction: f64,
    start: fn(&Setup) -> io::Result<StartedProcess>,
}

/// Workloads that a contender runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupportedWorkloads {
    All,
    /// Only [`LlmWorkload::Load`](crate::workload::LlmWorkload::Load).
    Load,
}

/// All contenders, in table order. The first after `direct` that can be started is the baseline.
pub(crate) const ALL: &[Contender] = &[
    contender(Contender::DIRECT, "no gateway, straight to the model servers", direct),
    contender("haproxy", "HAProxy from Debian, leastconn", proxies::haproxy),
    contender("nginx", "nginx from Debian, least_conn", proxies::nginx),
    contender("evenkeel", "no tenants, open to every client", evenkeel::open),
    contender(
        "evenkeel-tenants",
        "four tenants with API keys, weights and limits; a slot for every connection",
        evenkeel::tenants,
    ),
    Contender {
        supports: SupportedWorkloads::Load,
        ..contender(
            "evenkeel-queued",
            "the same with a slot for every second connection, so that requests queue; load only",
            evenkeel::queued,
        )
    },
    contender("vllm-router", "from its Python package, round_robin", routers::vllm_router),
    contender("smg", "from its Python package, round_robin", routers::smg),
    contender("envoy", "from a Python package, ROUND_ROBIN, two workers", envoy::envoy),
    Contender {
        request_fraction: 0.05,
        ..contender(
            "litellm",
            "LiteLLM's proxy from its Python package, simple-shuffle, one worker; a twentieth of the requests",
            litellm::litellm,
        )
    },
];

const fn contender(
    name: &'static str,
    about: &'static str,
    start: fn(&Setup) -> io::Result<StartedProcess>,
) -> Contender {
    Contender { name, about, supports: SupportedWorkloads::All, request_fraction: 1.0, start }
}

/// Input for starting a contender.
pub(crate) struct Setup {
    pub(crate) nodes: Vec<SocketAddr>,
    /// Directory for configuration, data and logs.
    pub(crate) directory: PathBuf,
    pub(crate) evenkeel: PathBuf,
    /// Directory of the programs from Python packages.
    pub(crate) python: PathBuf,
    /// The litellm program, in an environment of its own because its package versions conflict with the others.
    pub(crate) litellm: PathBuf,
}

/// A contender that may not be ready yet.
struct StartedProcess {
    target: Target,
    process: Option<Process>,
}

/// A contender that has served a request.
pub(crate) struct RunningProxy {
    pub(crate) target: Target,
    process: Option<Process>,
    /// Resident memory in bytes before any load.
    pub(crate) rss_idle: Option<u64>,
}

impl Contender {
    /// Name of the row without a gateway.
    pub(crate) const DIRECT: &str = "direct";

    /// Starts the contender and waits until it serves a request.
    pub(crate) async fn start(&self, label: &str, setup: &Setup) -> io::Result<RunningProxy> {
        let directory = setup.directory.join(label.replace([' ', '(', ')'], ""));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let setup = Setup {
            directory: directory.canonicalize()?,
            nodes: setup.nodes.clone(),
            evenkeel: setup.evenkeel.clone(),
            python: setup.python.clone(),
            litellm: setup.litellm.clone(),
        };
        let StartedProcess { target, mut process } = (self.start)(&setup)?;
        let started = Instant::now();
        loop {
            let served = ClientPool::open(&target, target.keys.len()).await;
            let Err(error) = served else { break };
            let exited = match &mut process {
                Some(process) => !process.is_running()?,
                None => false,
            };
            if exited || started.elapsed() > READY_WAIT_MAX {
                let last_line = last_log_line(&log(&setup.directory));
                return Err(io::Error::other(format!("not ready: {error}; last log line: {last_line}")));
            }
            sleep(POLL_INTERVAL).await;
        }
        let rss_idle = process.as_ref().map(Process::rss).transpose()?;
        Ok(RunningProxy { target, process, rss_idle })
    }
}

impl RunningProxy {
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        self.process.as_ref().map_or(Ok(Duration::ZERO), Process::cpu)
    }

    pub(crate) fn rss(&self) -> io::Result<Option<u64>> {
        self.process.as_ref().map(Process::rss).transpose()
    }

    /// Reports whether there is a gateway process to measure.
    pub(crate) fn has_process(&self) -> bool {
        self.process.is_some()
    }
}

fn direct(setup: &Setup) -> io::Result<StartedProcess> {
    Ok(StartedProcess { target: target(setup.nodes.clone()), process: None })
}

fn target(addresses: Vec<SocketAddr>) -> Target {
    Target { addresses, keys: vec![UNUSED_KEY.to_owned()] }
}

fn missing(program: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", program.display()))
}

fn log(directory: &Path) -> PathBuf {
    directory.join("log")
}

fn last_log_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.trim().lines().next_back().unwrap_or("(empty)").to_owned()
}
