//! Who keeps the messages: each is a process, set up to have on disk what it confirmed, in an empty folder.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_support::Process;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::Protocol;

const READY_WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A contender by name.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    protocol: Protocol,
    programs: fn(&Setup, SocketAddr) -> io::Result<Programs>,
    /// Which part of what the others have to work off it is given, so that its turn ends.
    backlog_part: f64,
}

/// What a contender consists of.
struct Programs {
    server: Command,
    /// What must listen before the server starts, and where.
    before: Option<(Command, SocketAddr)>,
}

impl From<Command> for Programs {
    fn from(server: Command) -> Self {
        Self { server, before: None }
    }
}

/// Everyone, in the order of the tables; the first that can be started is the baseline.
pub(crate) const ALL: &[Contender] = &[
    Contender {
        name: "redis",
        about: "Redis Streams as Debian has it, appendonly yes, appendfsync always",
        protocol: Protocol::Redis,
        programs: redis,
        backlog_part: 1.0,
    },
    Contender {
        name: "nats",
        about: "NATS JetStream, the Python package's program, file storage, sync_interval always",
        protocol: Protocol::Nats,
        programs: nats,
        backlog_part: 1.0,
    },
    Contender {
        name: "rabbitmq",
        about: "RabbitMQ as Debian has it, quorum queues, confirms, acknowledgements by hand",
        protocol: Protocol::Amqp,
        programs: rabbitmq,
        backlog_part: 1.0,
    },
    Contender {
        name: "beanstalkd",
        about: "beanstalkd as Debian has it, -b with -f0",
        protocol: Protocol::Beanstalk,
        programs: beanstalkd,
        backlog_part: 0.1,
    },
    Contender {
        name: "evenkeel",
        about: "evenkeel serve, its SQS door, durability fsync, everybody may ask",
        protocol: Protocol::Sqs,
        programs: evenkeel,
        backlog_part: 1.0,
    },
];

/// What a contender is started with.
#[derive(Clone)]
pub(crate) struct Setup {
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
    pub(crate) backlog_part: f64,
    /// Ends after the server.
    _before: Option<Process>,
}

impl Contender {
    /// Starts it in an empty folder and waits until it has confirmed a message; the error says what is missing.
    pub(crate) async fn start(&self, label: &str, place: &Setup) -> io::Result<Server> {
        let folder = place.folder.join(label.replace([' ', '(', ')'], ""));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let place = Setup { folder: folder.canonicalize()?, ..place.clone() };
        let address = free_port()?;
        let log = place.folder.join("log");
        let Programs { mut server, before } = (self.programs)(&place, address)?;
        let before = match before {
            Some((command, listens)) => Some(started_before(command, listens, &place.folder).await?),
            None => None,
        };
        let mut process = started(server.current_dir(&place.folder), &log)?;
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
        let Self { protocol, backlog_part, .. } = *self;
        Ok(Server { protocol, address, process, backlog_part, _before: before })
    }
}

fn started(command: &mut Command, log: &Path) -> io::Result<Process> {
    let started = Process::start(command, log);
    started.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(Path::new(command.get_program())),
        _ => error,
    })
}

async fn started_before(mut command: Command, listens: SocketAddr, folder: &Path) -> io::Result<Process> {
    let log = folder.join("log-before");
    let mut process = started(command.current_dir(folder), &log)?;
    let begun = Instant::now();
    while TcpStream::connect(listens).await.is_err() {
        if !process.runs()? || READY_WAIT_MAX < begun.elapsed() {
            let program = command.get_program().to_string_lossy();
            return Err(io::Error::other(format!(
                "{program} does not listen; it said: {}",
                last_words(&log)
            )));
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(process)
}

async fn first_message(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let mut client = protocol.connect(address, "first", 0).await?;
    client.create().await?;
    client.send(1).await
}

fn redis(place: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let port = address.port();
    let config = format!(
        "port {port}\nbind {}\ndir '{}'\nappendonly yes\nappendfsync always\nsave ''\nloglevel warning\n",
        address.ip(),
        place.folder.display()
    );
    let mut command = Command::new("redis-server");
    command.arg(written(place, "redis.conf", &config)?);
    Ok(command.into())
}

fn nats(place: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let program = program(place.python.join("nats-server"))?;
    let config = format!(
        "listen: '{address}'\njetstream {{\n  store_dir: '{}'\n  sync_interval: always\n}}\n",
        place.folder.join("data").display()
    );
    let mut command = Command::new(program);
    command.arg("--config").arg(written(place, "nats.conf", &config)?);
    Ok(command.into())
}

/// A node of its own, that shares nothing with one that the system may run: neither Erlang's port mapper nor its cookie,
/// which is in what it takes for its home.
fn rabbitmq(place: &Setup, address: SocketAddr) -> io::Result<Programs> {
    // The one that is in the path becomes another user.
    let program = program("/usr/lib/rabbitmq/bin/rabbitmq-server".into())?;
    let folder = &place.folder;
    let config = format!(
        "listeners.tcp.1 = {address}\nlog.file = false\nlog.console = true\nlog.console.level = error\n"
    );
    let mapper = free_port()?;
    let peers = free_port()?;
    let mut server = Command::new(program);
    server
        .env("HOME", folder)
        .env("RABBITMQ_CONFIG_FILE", written(place, "rabbitmq.conf", &config)?)
        .env("RABBITMQ_CONF_ENV_FILE", written(place, "rabbitmq-env.conf", "")?)
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", written(place, "enabled_plugins", "[].\n")?)
        .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
        .env("RABBITMQ_LOG_BASE", folder.join("logs"))
        .env("RABBITMQ_PID_FILE", folder.join("pid"))
        .env("RABBITMQ_NODENAME", "bench@localhost")
        .env("RABBITMQ_DIST_PORT", peers.port().to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("ERL_EPMD_PORT", mapper.port().to_string())
        // Without it a shell stays before the server, which would be ended in its place.
        .env("RUNNING_UNDER_SYSTEMD", "true");
    // One that the server had to start would outlive it.
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", &mapper.ip().to_string(), "-port", &mapper.port().to_string()]);
    Ok(Programs { server, before: Some((epmd, mapper)) })
}

fn beanstalkd(place: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let folder = place.folder.join("data");
    fs::create_dir(&folder)?;
    let mut command = Command::new("beanstalkd");
    command
        .args(["-l", &address.ip().to_string(), "-p", &address.port().to_string(), "-f0", "-b"])
        .arg(folder);
    Ok(command.into())
}

fn evenkeel(place: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let program = program(place.evenkeel.clone())?;
    let config = format!("[server]\nlisten = '{address}'\n\n[queue]\ndurability = 'fsync'\n");
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(written(place, "evenkeel.toml", &config)?);
    command.arg("--data-dir").arg(place.folder.join("data"));
    Ok(command.into())
}

fn written(place: &Setup, name: &str, text: &str) -> io::Result<PathBuf> {
    let path = place.folder.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

fn program(path: PathBuf) -> io::Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    Err(missing(&path))
}

fn missing(program: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", program.display()))
}

fn last_words(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    said.trim().lines().next_back().unwrap_or("nothing").to_owned()
}

/// Finds a port that nobody has; whoever is to listen there must be quick.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}
