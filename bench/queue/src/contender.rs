//! Who keeps the messages: each is one process, set up to have on disk what it confirmed, in an empty folder.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_figures::Process;
use tokio::time::{sleep, timeout};

use crate::client::Protocol;

const READY_WAIT_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A contender by name.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    protocol: Protocol,
    command: fn(&Place, SocketAddr) -> io::Result<Command>,
}

/// Everyone, in the order of the tables; the first that can be started is the baseline.
pub(crate) const ALL: &[Contender] = &[
    Contender {
        name: "redis",
        about: "Redis Streams as Debian has it, appendonly yes, appendfsync always",
        protocol: Protocol::Redis,
        command: redis,
    },
    Contender {
        name: "nats",
        about: "NATS JetStream, the Python package's program, file storage, sync_interval always",
        protocol: Protocol::Nats,
        command: nats,
    },
    Contender {
        name: "evenkeel",
        about: "evenkeel serve, its SQS door, durability fsync, everybody may ask",
        protocol: Protocol::Sqs,
        command: evenkeel,
    },
];

/// What a contender is started with.
#[derive(Clone)]
pub(crate) struct Place {
    /// Where its files go.
    pub(crate) folder: PathBuf,
    /// Evenkeel's program.
    pub(crate) evenkeel: PathBuf,
    /// Where Python's programs are.
    pub(crate) python: PathBuf,
}

/// A contender that answers.
pub(crate) struct Server {
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
}

impl Contender {
    /// Starts it in an empty folder and waits until it has confirmed a message; the error says what is missing.
    pub(crate) async fn start(&self, label: &str, place: &Place) -> io::Result<Server> {
        let folder = place.folder.join(label.replace([' ', '(', ')'], ""));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let place = Place { folder: folder.canonicalize()?, ..place.clone() };
        let address = free_port()?;
        let log = place.folder.join("log");
        let mut command = (self.command)(&place, address)?;
        let mut process = Process::start(command.current_dir(&place.folder), &log)?;
        let begun = Instant::now();
        loop {
            let first = timeout(READY_WAIT_MAX, first_message(self.protocol, address)).await;
            let Err(unanswered) = first.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) else {
                break;
            };
            if !process.runs()? || READY_WAIT_MAX < begun.elapsed() {
                let said = last_words(&log);
                return Err(io::Error::other(format!("it does not answer ({unanswered}); it said: {said}")));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(Server { protocol: self.protocol, address, process })
    }
}

async fn first_message(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let mut client = protocol.connect(address, "first", 0).await?;
    client.create().await?;
    client.send(1).await
}

fn redis(place: &Place, address: SocketAddr) -> io::Result<Command> {
    let port = address.port();
    let config = format!(
        "port {port}\nbind {}\ndir '{}'\nappendonly yes\nappendfsync always\nsave ''\nloglevel warning\n",
        address.ip(),
        place.folder.display()
    );
    let mut command = Command::new("redis-server");
    command.arg(written(place, "redis.conf", &config)?);
    Ok(command)
}

fn nats(place: &Place, address: SocketAddr) -> io::Result<Command> {
    let program = program(place.python.join("nats-server"))?;
    let config = format!(
        "listen: '{address}'\njetstream {{\n  store_dir: '{}'\n  sync_interval: always\n}}\n",
        place.folder.join("data").display()
    );
    let mut command = Command::new(program);
    command.arg("--config").arg(written(place, "nats.conf", &config)?);
    Ok(command)
}

fn evenkeel(place: &Place, address: SocketAddr) -> io::Result<Command> {
    let program = program(place.evenkeel.clone())?;
    let config = format!("[server]\nlisten = '{address}'\n\n[queue]\ndurability = 'fsync'\n");
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(written(place, "evenkeel.toml", &config)?);
    command.arg("--data-dir").arg(place.folder.join("data"));
    Ok(command)
}

fn written(place: &Place, name: &str, text: &str) -> io::Result<PathBuf> {
    let path = place.folder.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

fn program(path: PathBuf) -> io::Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", path.display())))
}

fn last_words(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    said.trim().lines().next_back().unwrap_or("nothing").to_owned()
}

/// Finds a port that nobody has; whoever is to listen there must be quick.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}
