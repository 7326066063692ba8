//! Who stands between the load and the nodes, and how each is set up: as its documentation says, with connections kept
//! open on both sides, as many threads as it takes by itself, and no log of requests.

mod envoy;
mod evenkeel;
mod litellm;
mod proxies;
mod routers;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::load::{ClientPool, Target};
use bench_support::Process;

const READY_WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const NOBODYS_KEY: &str = "sk-bench-0000000000000000";

/// A contender by name.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) takes: SupportedWorkloads,
    /// Which part of a turn's requests it is asked, lest a slow one never ends its turn.
    pub(crate) part: f64,
    start: fn(&Setup) -> io::Result<StartedProcess>,
}

/// Which workloads make sense for a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SupportedWorkloads {
    Everything,
    /// Only that of many connections.
    Load,
}

/// Everyone, in the order of the tables; after `direct`, the first that can be started is the baseline.
pub(crate) const ALL: &[Contender] = &[
    contender(Contender::DIRECT, "nobody", direct),
    contender("haproxy", "HAProxy as Debian has it, leastconn", proxies::haproxy),
    contender("nginx", "nginx as Debian has it, least_conn", proxies::nginx),
    contender("evenkeel", "no tenants: everybody may ask", evenkeel::open),
    contender(
        "evenkeel-tenants",
        "four tenants with keys, weights and limits; a slot for every connection",
        evenkeel::tenants,
    ),
    Contender {
        takes: SupportedWorkloads::Load,
        ..contender(
            "evenkeel-queued",
            "the same with a slot for every second connection: each turn is decided; load only",
            evenkeel::queued,
        )
    },
    contender("vllm-router", "the Python package, round_robin", routers::vllm_router),
    contender("smg", "the Python package, round_robin", routers::smg),
    contender("envoy", "the Python package's program, ROUND_ROBIN, two workers", envoy::envoy),
    Contender {
        part: 0.05,
        ..contender(
            "litellm",
            "the Python package's proxy, simple-shuffle, one worker; a twentieth of the requests",
            litellm::litellm,
        )
    },
];

const fn contender(
    name: &'static str,
    about: &'static str,
    start: fn(&Setup) -> io::Result<StartedProcess>,
) -> Contender {
    Contender { name, about, takes: SupportedWorkloads::Everything, part: 1.0, start }
}

/// What a contender is started with.
pub(crate) struct Setup {
    /// The nodes.
    pub(crate) nodes: Vec<SocketAddr>,
    /// Where its files go.
    pub(crate) folder: PathBuf,
    /// Evenkeel's program.
    pub(crate) evenkeel: PathBuf,
    /// Where Python's programs are.
    pub(crate) python: PathBuf,
    /// LiteLLM's program, whose packages are no others' versions.
    pub(crate) litellm: PathBuf,
}

/// A contender that was started.
struct StartedProcess {
    target: Target,
    process: Option<Process>,
}

/// A contender that answers.
pub(crate) struct RunningProxy {
    pub(crate) target: Target,
    process: Option<Process>,
    /// In bytes, before any load.
    pub(crate) rss_idle: Option<u64>,
}

impl Contender {
    /// The name of the row in which nobody is in between.
    pub(crate) const DIRECT: &str = "direct";

    /// Starts it and waits until it answers; the error says what is missing.
    pub(crate) async fn start(&self, label: &str, place: &Setup) -> io::Result<RunningProxy> {
        let folder = place.folder.join(label.replace([' ', '(', ')'], ""));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let place = Setup {
            folder: folder.canonicalize()?,
            nodes: place.nodes.clone(),
            evenkeel: place.evenkeel.clone(),
            python: place.python.clone(),
            litellm: place.litellm.clone(),
        };
        let StartedProcess { target, mut process } = (self.start)(&place)?;
        let begun = Instant::now();
        loop {
            let answered = ClientPool::open(&target, target.keys.len()).await;
            let Err(unanswered) = answered else { break };
            let gone = match &mut process {
                Some(process) => !process.runs()?,
                None => false,
            };
            if gone || READY_WAIT_MAX < begun.elapsed() {
                let said = last_words(&log(&place.folder));
                return Err(io::Error::other(format!("it does not answer ({unanswered}); it said: {said}")));
            }
            sleep(LOOK_EVERY).await;
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

    /// Whether there is anybody whose time could be taken.
    pub(crate) fn is_somebody(&self) -> bool {
        self.process.is_some()
    }
}

fn direct(place: &Setup) -> io::Result<StartedProcess> {
    Ok(StartedProcess { target: target(place.nodes.clone()), process: None })
}

fn target(addresses: Vec<SocketAddr>) -> Target {
    Target { addresses, keys: vec![NOBODYS_KEY.to_owned()] }
}

fn missing(program: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", program.display()))
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn last_words(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    said.trim().lines().next_back().unwrap_or("nothing").to_owned()
}

/// Finds a port that nobody has; whoever is to listen there must be quick.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}
