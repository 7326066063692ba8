//! The queue servers that are compared. Each runs in an empty directory and is configured so that a confirmed message
//! is on disk.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_support::{Process, free_port};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::Protocol;

const READY_WAIT_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    protocol: Protocol,
    programs: fn(&Setup, SocketAddr) -> io::Result<Programs>,
    /// Fraction of the backlog that it gets in take cases; below 1 for slow contenders, so that their turns end in
    /// time.
    backlog_fraction: f64,
}

/// The programs of a contender.
struct Programs {
    server: Command,
    /// A helper that must listen at the address before the server starts.
    helper: Option<(Command, SocketAddr)>,
}

impl From<Command> for Programs {
    fn from(server: Command) -> Self {
        Self { server, helper: None }
    }
}

/// All contenders, in table order. The first that can be started is the baseline.
pub(crate) const ALL: &[Contender] = &[
    Contender {
        name: "redis",
        about: "Redis Streams from Debian, appendonly yes, appendfsync always",
        protocol: Protocol::Redis,
        programs: redis,
        backlog_fraction: 1.0,
    },
    Contender {
        name: "nats",
        about: "NATS JetStream from a Python package, file storage, sync_interval always",
        protocol: Protocol::Nats,
        programs: nats,
        backlog_fraction: 1.0,
    },
    Contender {
        name: "rabbitmq",
        about: "RabbitMQ from Debian, quorum queues, publisher confirms, manual acks",
        protocol: Protocol::Amqp,
        programs: rabbitmq,
        backlog_fraction: 1.0,
    },
    Contender {
        name: "beanstalkd",
        about: "beanstalkd from Debian, -b with -f0",
        protocol: Protocol::Beanstalk,
        programs: beanstalkd,
        backlog_fraction: 0.1,
    },
    Contender {
        name: "evenkeel",
        about: "evenkeel serve, SQS API, durability fsync, open to every client",
        protocol: Protocol::Sqs,
        programs: evenkeel,
        backlog_fraction: 1.0,
    },
];

/// Input for starting a contender.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Directory for configuration, data and logs.
    pub(crate) directory: PathBuf,
    pub(crate) evenkeel: PathBuf,
    /// Directory of the programs from Python packages.
    pub(crate) python: PathBuf,
}

/// A contender that has confirmed a message.
pub(crate) struct Server {
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
    pub(crate) backlog_fraction: f64,
    /// Stopped after the server, because fields are dropped in order.
    _helper: Option<Process>,
}

impl Contender {
    /// Starts the contender in an empty directory and waits until it has confirmed a message.
    pub(crate) async fn start(&self, label: &str, setup: &Setup) -> io::Result<Server> {
        let directory = setup.directory.join(label.replace([' ', '(', ')'], ""));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        let setup = Setup { directory: directory.canonicalize()?, ..setup.clone() };
        let address = free_port()?;
        let log = setup.directory.join("log");
        let Programs { mut server, helper } = (self.programs)(&setup, address)?;
        let helper = match helper {
            Some((command, address)) => Some(start_helper(command, address, &setup.directory).await?),
            None => None,
        };
        let mut process = start_process(server.current_dir(&setup.directory), &log)?;
        let started = Instant::now();
        loop {
            let first = timeout(READY_WAIT_MAX, first_message(self.protocol, address)).await;
            let Err(error) = first.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) else {
                break;
            };
            if !process.is_running()? || started.elapsed() > READY_WAIT_MAX {
                let last_line = last_log_line(&log);
                return Err(io::Error::other(format!("not ready: {error}; last log line: {last_line}")));
            }
            sleep(POLL_INTERVAL).await;
        }
        let Self { protocol, backlog_fraction, .. } = *self;
        Ok(Server { protocol, address, process, backlog_fraction, _helper: helper })
    }
}

fn start_process(command: &mut Command, log: &Path) -> io::Result<Process> {
    let process = Process::start(command, log);
    process.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(Path::new(command.get_program())),
        _ => error,
    })
}

async fn start_helper(mut command: Command, address: SocketAddr, directory: &Path) -> io::Result<Process> {
    let log = directory.join("log-helper");
    let mut process = start_process(command.current_dir(directory), &log)?;
    let started = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        if !process.is_running()? || started.elapsed() > READY_WAIT_MAX {
            let program = command.get_program().to_string_lossy();
            return Err(io::Error::other(format!(
                "{program} does not listen on {address}; last log line: {}",
                last_log_line(&log)
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(process)
}

async fn first_message(protocol: Protocol, address: SocketAddr) -> io::Result<()> {
    let mut client = protocol.connect(address, "first", 0).await?;
    client.create().await?;
    client.send(1).await
}

fn redis(setup: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let port = address.port();
    let config = format!(
        "port {port}\nbind {}\ndir '{}'\nappendonly yes\nappendfsync always\nsave ''\nloglevel warning\n",
        address.ip(),
        setup.directory.display()
    );
    let mut command = Command::new("redis-server");
    command.arg(write_file(setup, "redis.conf", &config)?);
    Ok(command.into())
}

fn nats(setup: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let program = program(setup.python.join("nats-server"))?;
    let config = format!(
        "listen: '{address}'\njetstream {{\n  store_dir: '{}'\n  sync_interval: always\n}}\n",
        setup.directory.join("data").display()
    );
    let mut command = Command::new(program);
    command.arg("--config").arg(write_file(setup, "nats.conf", &config)?);
    Ok(command.into())
}

/// Configures a node that is isolated from any system-wide RabbitMQ: it has its own port mapper (epmd) and, because
/// HOME points to its directory, its own Erlang cookie.
fn rabbitmq(setup: &Setup, address: SocketAddr) -> io::Result<Programs> {
    // The wrapper in PATH switches to another user.
    let program = program("/usr/lib/rabbitmq/bin/rabbitmq-server".into())?;
    let directory = &setup.directory;
    let config = format!(
        "listeners.tcp.1 = {address}\nlog.file = false\nlog.console = true\nlog.console.level = error\n"
    );
    let epmd_address = free_port()?;
    let distribution = free_port()?;
    let mut server = Command::new(program);
    server
        .env("HOME", directory)
        .env("RABBITMQ_CONFIG_FILE", write_file(setup, "rabbitmq.conf", &config)?)
        .env("RABBITMQ_CONF_ENV_FILE", write_file(setup, "rabbitmq-env.conf", "")?)
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", write_file(setup, "enabled_plugins", "[].\n")?)
        .env("RABBITMQ_MNESIA_BASE", directory.join("data"))
        .env("RABBITMQ_LOG_BASE", directory.join("logs"))
        .env("RABBITMQ_PID_FILE", directory.join("pid"))
        .env("RABBITMQ_NODENAME", "bench@localhost")
        .env("RABBITMQ_DIST_PORT", distribution.port().to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("ERL_EPMD_PORT", epmd_address.port().to_string())
        // Otherwise a shell stays the parent of the server and receives the SIGTERM in its place.
        .env("RUNNING_UNDER_SYSTEMD", "true");
    // An epmd started by the server would outlive it.
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", &epmd_address.ip().to_string(), "-port", &epmd_address.port().to_string()]);
    Ok(Programs { server, helper: Some((epmd, epmd_address)) })
}

fn beanstalkd(setup: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let data = setup.directory.join("data");
    fs::create_dir(&data)?;
    let mut command = Command::new("beanstalkd");
    command.args(["-l", &address.ip().to_string(), "-p", &address.port().to_string(), "-f0", "-b"]).arg(data);
    Ok(command.into())
}

fn evenkeel(setup: &Setup, address: SocketAddr) -> io::Result<Programs> {
    let program = program(setup.evenkeel.clone())?;
    let config = format!("[server]\nlisten = '{address}'\n\n[queue]\ndurability = 'fsync'\n");
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(write_file(setup, "evenkeel.toml", &config)?);
    command.arg("--data-dir").arg(setup.directory.join("data"));
    Ok(command.into())
}

fn write_file(setup: &Setup, name: &str, text: &str) -> io::Result<PathBuf> {
    let path = setup.directory.join(name);
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

fn last_log_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.trim().lines().next_back().unwrap_or("(empty)").to_owned()
}
