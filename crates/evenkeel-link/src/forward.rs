//! TCP forwards: one side accepts connections and opens a flow for each; the other side connects the flow to its target.
//! [`udp`] forwards datagrams.
//!
//! Guarantees: a FIN or RST of one socket becomes a FIN or RST of the other. The side that connects to targets
//! connects only to those on its own list, compared as text.
//!
//! Limits: [`Forward::connections_max`] connections per forward; a connection to a target takes at most
//! 10 s.

pub mod udp;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

use crate::flow::{DatagramMode, FlowLane, ResetCode, TARGET_BYTES_MAX};
use crate::link::{Link, RecvFlow, SendFlow};

/// Longest wait for a connection to a target.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between the last byte read from a socket that accepts no more data and the reset of its flow, so that the
/// data is delivered first.
const RESET_DELAY: Duration = Duration::from_secs(5);

/// Time without traffic after which a forwarded socket is checked, and the time between two checks.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// Maximum number of refused targets that are logged.
const REFUSALS_LOGGED_MAX: usize = 64;

/// Maximum number of bytes read from a socket at a time.
const READ_MAX: usize = 64 * 1024;

/// Pause after `accept` fails, for example because the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time without datagrams after which a UDP flow ends.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Limits of the idle time that a forward may set.
const IDLE_SECS: RangeInclusive<u64> = 1..=86_400;

/// A local address whose connections or datagrams are forwarded to a target on the other side:
/// `[udp:]LISTEN=TARGET[,lane=LANE][,idle=SECONDS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Local address to listen on.
    pub listen: SocketAddr,
    /// Host and port that the other side connects to.
    pub target: ForwardTarget,
    /// Lane of the flows.
    pub lane: FlowLane,
    /// Maximum number of open connections, further ones wait in the listen queue; or of UDP clients.
    pub connections_max: usize,
    /// Time without datagrams after which the flow of a UDP client ends.
    pub idle_max: Duration,
}

/// Protocol of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardProtocol {
    Tcp,
    Udp,
}

impl ForwardProtocol {
    /// Removes the protocol from the front of a forward or an allowed target; without one, it is TCP.
    fn strip(text: &str) -> (Self, &str) {
        if let Some(rest) = text.strip_prefix("udp:") {
            return (Self::Udp, rest);
        }
        (Self::Tcp, text.strip_prefix("tcp:").unwrap_or(text))
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Tcp => "",
            Self::Udp => "udp:",
        }
    }
}

/// Error for a forward that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    #[error("expected LISTEN=TARGET, such as 127.0.0.1:9000=10.0.0.5:8000")]
    NoTarget,
    #[error("{text:?} is not an address to listen on, such as 127.0.0.1:9000")]
    Listen { text: String },
    #[error(transparent)]
    Target(#[from] ForwardTargetError),
    #[error("unknown option {text:?} of a TCP forward; expected lane=stream, lane=bonded or lane=redundant")]
    TcpOption { text: String },
    #[error(
        "unknown option {text:?} of a UDP forward; expected lane=pin, lane=stripe, lane=duplicate or idle=SECONDS"
    )]
    UdpOption { text: String },
    #[error("idle={text}: expected {} to {} seconds", IDLE_SECS.start(), IDLE_SECS.end())]
    Idle { text: String },
}

impl FromStr for Forward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (protocol, text) = ForwardProtocol::strip(text);
        let mut parts = text.split(',');
        let addresses = parts.next().unwrap_or_default();
        let (listen, target) = addresses.split_once('=').ok_or(ForwardError::NoTarget)?;
        let listen = listen.parse().map_err(|_| ForwardError::Listen { text: listen.to_owned() })?;
        let lane = match protocol {
            ForwardProtocol::Tcp => FlowLane::Stream,
            ForwardProtocol::Udp => FlowLane::Datagram(DatagramMode::Pin),
        };
        let target = target.parse()?;
        let mut forward = Self { listen, target, lane, connections_max: 512, idle_max: IDLE_MAX };
        parts.try_for_each(|option| match protocol {
            ForwardProtocol::Tcp => forward.set_tcp_option(option),
            ForwardProtocol::Udp => forward.set_udp_option(option),
        })?;
        Ok(forward)
    }
}

impl Forward {
    fn set_tcp_option(&mut self, option: &str) -> Result<(), ForwardError> {
        self.lane = match option {
            "lane=stream" => FlowLane::Stream,
            "lane=bonded" => FlowLane::Bonded,
            "lane=redundant" => FlowLane::Redundant,
            _ => return Err(ForwardError::TcpOption { text: option.to_owned() }),
        };
        Ok(())
    }

    fn set_udp_option(&mut self, option: &str) -> Result<(), ForwardError> {
        if let Some(text) = option.strip_prefix("idle=") {
            let seconds = text.parse().ok().filter(|seconds| IDLE_SECS.contains(seconds));
            let seconds = seconds.ok_or_else(|| ForwardError::Idle { text: text.to_owned() })?;
            self.idle_max = Duration::from_secs(seconds);
            return Ok(());
        }
        self.lane = FlowLane::Datagram(match option {
            "lane=pin" => DatagramMode::Pin,
            "lane=stripe" => DatagramMode::Stripe,
            "lane=duplicate" => DatagramMode::Duplicate,
            _ => return Err(ForwardError::UdpOption { text: option.to_owned() }),
        });
        Ok(())
    }
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTarget(String);

/// Error for text that is not a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")]
pub struct ForwardTargetError {
    text: String,
}

impl FromStr for ForwardTarget {
    type Err = ForwardTargetError;

    fn from_str(text: &str) -> Result<Self, ForwardTargetError> {
        let is_valid = match text.rsplit_once(':') {
            Some((host, port)) => {
                let is_host = !host.is_empty()
                    && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')))
                    && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=' && byte != b',');
                is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
            }
            None => false,
        };
        if is_valid && text.len() <= TARGET_BYTES_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(ForwardTargetError { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for ForwardTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Accepts connections on a bound socket and forwards each over the link, until the future is dropped.
pub async fn run(listener: TcpListener, forward: Forward, link: Link) {
    let permits = Arc::new(Semaphore::new(forward.connections_max));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(listen = %forward.listen, %error, "could not accept a connection to forward; retrying in 100 ms");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let forward = forward.clone();
        let link = link.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let target = forward.target.to_string();
            match link.open(forward.lane, &target) {
                Ok((send, recv)) => relay(socket, send, recv, &target).await,
                Err(error) => {
                    tracing::warn!(to = %target, %error, "could not forward a connection");
                    reset(&socket);
                }
            }
        });
    }
}

/// Target to which the other side may forward: `[udp:]HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTarget {
    protocol: ForwardProtocol,
    target: ForwardTarget,
}

impl FromStr for AllowedTarget {
    type Err = ForwardTargetError;

    fn from_str(text: &str) -> Result<Self, ForwardTargetError> {
        let (protocol, target) = ForwardProtocol::strip(text);
        Ok(Self { protocol, target: target.parse()? })
    }
}

/// Targets to which the other side may forward.
pub struct AllowedTargets {
    allowed: Vec<AllowedTarget>,
    /// Refused targets that have been logged.
    logged: Mutex<BTreeSet<String>>,
}

impl AllowedTargets {
    /// Allows these targets and no others.
    pub fn new(allowed: Vec<AllowedTarget>) -> Self {
        Self { allowed, logged: Mutex::default() }
    }

    /// Checks that a target is allowed; otherwise logs it and returns the reason for the other side.
    fn check(&self, protocol: ForwardProtocol, target: &str) -> Result<(), String> {
        if self.allowed.iter().any(|known| known.protocol == protocol && known.target.0 == target) {
            return Ok(());
        }
        let target = format!("{}{target}", protocol.prefix());
        self.log_refusal(&target);
        Err(format!("the other side does not allow {target}; start it with --allow {target}"))
    }

    /// Logs a refused target once, and at most [`REFUSALS_LOGGED_MAX`] targets, so that a peer cannot flood the log.
    fn log_refusal(&self, target: &str) {
        let mut logged = self.logged.lock();
        if logged.len() < REFUSALS_LOGGED_MAX && logged.insert(target.to_owned()) {
            // A peer could forge log lines with control characters.
            tracing::warn!(
                to = %target.escape_debug(),
                "refused to forward to a target that is not allowed; allow it with --allow"
            );
        }
    }
}

/// Connects an accepted flow to its target if that is allowed.
pub async fn serve_flow(send: SendFlow, mut recv: RecvFlow, target: String, targets: &AllowedTargets) {
    if let Err(reason) = targets.check(ForwardProtocol::Tcp, &target) {
        send.reset(ResetCode::REFUSED, &reason);
        return;
    }
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(&target));
    let connected = tokio::select! {
        connected = connecting => connected,
        // Nobody needs the connection any more.
        () = recv.wait_until_reset() => return,
    };
    let failure = match connected {
        Ok(Ok(socket)) => return relay(socket, send, recv, &target).await,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
    };
    tracing::warn!(to = %target, error = failure, "could not connect to the target of a forward");
    send.reset(ResetCode::REFUSED, &format!("could not connect to {target}: {failure}"));
}

/// Copies both directions until both have ended, or one was reset.
async fn relay(socket: TcpStream, mut send: SendFlow, mut recv: RecvFlow, target: &str) {
    prepare(&socket);
    let (mut reader, mut writer) = socket.into_split();
    let sent = Notify::new();
    let to_flow = async {
        let result = copy_to_flow(&mut reader, &mut send).await;
        sent.notify_one();
        result
    };
    let to_socket = async {
        match copy_to_socket(&mut recv, &mut writer).await {
            Ok(CopyEnd::Finished) => Ok(()),
            Ok(CopyEnd::Unwritable(error)) => {
                // A server may answer and close before it has read everything. Its answer must still arrive.
                let discarding = discard(&mut recv);
                tokio::select! {
                    () = discarding => {}
                    () = async { sent.notified().await; sleep(RESET_DELAY).await } => {}
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    };
    let result = tokio::try_join!(to_flow, to_socket);
    let Err(error) = result else { return };
    if error.kind() == io::ErrorKind::ConnectionRefused {
        tracing::warn!(to = %target, %error, "the other side refused a forwarded connection");
    } else {
        tracing::debug!(to = %target, %error, "a forwarded connection was reset");
    }
    send.reset(ResetCode::ABORTED, &error.to_string());
    if let Ok(socket) = reader.reunite(writer) {
        reset(&socket);
    }
}

/// Disables Nagle's algorithm and enables keepalive; errors are ignored, because the socket may already be closed.
fn prepare(socket: &TcpStream) {
    // Otherwise small writes such as keystrokes may wait for an acknowledgement.
    let _ = socket.set_nodelay(true);
    // A host that has vanished is noticed within minutes.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// End of the copy from a flow to a socket.
enum CopyEnd {
    Finished,
    /// The socket takes no more data.
    Unwritable(io::Error),
}

async fn copy_to_flow(reader: &mut OwnedReadHalf, send: &mut SendFlow) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_MAX);
    loop {
        buffer.reserve(READ_MAX);
        if reader.read_buf(&mut buffer).await? == 0 {
            send.finish();
            return Ok(());
        }
        send.write(buffer.split().freeze()).await?;
    }
}

/// Copies a flow to a socket; fails only if the flow was reset.
async fn copy_to_socket(recv: &mut RecvFlow, writer: &mut OwnedWriteHalf) -> io::Result<CopyEnd> {
    while let Some(bytes) = recv.read(READ_MAX).await? {
        if let Err(error) = writer.write_all(&bytes).await {
            return Ok(CopyEnd::Unwritable(error));
        }
    }
    // Fails if the socket has been reset, which its reader notices too.
    let _ = writer.shutdown().await;
    Ok(CopyEnd::Finished)
}

/// Reads and drops data until the flow ends.
async fn discard(recv: &mut RecvFlow) {
    while let Ok(Some(_)) = recv.read(READ_MAX).await {}
}

/// Makes the socket send a TCP reset when it is dropped.
fn reset(socket: &TcpStream) {
    // A socket that the peer has closed already cannot be reset.
    let _ = socket.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_has_an_address_a_target_and_a_lane() {
        let forward: Forward = "127.0.0.1:9000=db.internal:5432".parse().unwrap();
        assert_eq!((forward.listen.port(), forward.target.0.as_str()), (9000, "db.internal:5432"));
        assert_eq!(forward.lane, FlowLane::Stream);
        let forward: Forward = "[::1]:9000=[::1]:8000,lane=bonded".parse().unwrap();
        assert_eq!((forward.lane, forward.target.0.as_str()), (FlowLane::Bonded, "[::1]:8000"));
    }

    #[test]
    fn a_udp_forward_has_a_mode_and_an_idle_time() {
        let forward: Forward = "udp:127.0.0.1:5353=10.0.0.5:53".parse().unwrap();
        assert_eq!((forward.lane, forward.idle_max), (FlowLane::Datagram(DatagramMode::Pin), IDLE_MAX));
        let forward: Forward = "udp:[::1]:1=[::1]:2,idle=5,lane=duplicate".parse().unwrap();
        assert_eq!(forward.lane, FlowLane::Datagram(DatagramMode::Duplicate));
        assert_eq!(forward.idle_max, Duration::from_secs(5));
    }

    #[test]
    fn a_target_is_allowed_for_one_protocol() {
        let targets = ["10.0.0.5:53", "tcp:10.0.0.6:53", "udp:10.0.0.7:53"];
        let targets = AllowedTargets::new(targets.map(|target| target.parse().unwrap()).to_vec());
        let allows = |protocol, target| targets.check(protocol, target).is_ok();
        for (target, tcp) in [("10.0.0.5:53", true), ("10.0.0.6:53", true), ("10.0.0.7:53", false)] {
            assert_eq!(allows(ForwardProtocol::Tcp, target), tcp, "{target}");
            assert_eq!(allows(ForwardProtocol::Udp, target), !tcp, "{target}");
        }
        let reason = targets.check(ForwardProtocol::Udp, "10.0.0.5:53").unwrap_err();
        assert!(reason.contains("does not allow udp:10.0.0.5:53; start it with --allow udp:10.0.0.5:53"));
        assert!("udp:53".parse::<AllowedTarget>().is_err());
    }

    #[test]
    fn the_error_says_which_part_of_a_forward_is_wrong() {
        let error = |text: &str| text.parse::<Forward>().unwrap_err().to_string();
        assert!(error("127.0.0.1:9000").contains("expected LISTEN=TARGET"));
        assert!(error("9000=127.0.0.1:8000").contains("\"9000\" is not an address to listen on"));
        for target in ["127.0.0.1", "127.0.0.1:0", ":80", "::1:80", "a b:80", "a:99999"] {
            assert!(error(&format!("127.0.0.1:1={target}")).contains("is not HOST:PORT"), "{target}");
        }
        assert!(error("127.0.0.1:1=a:2,lane=fast").contains("unknown option \"lane=fast\" of a TCP forward"));
        assert!(error("127.0.0.1:1=a:2,lane=pin").contains("unknown option \"lane=pin\" of a TCP forward"));
        assert!(error("udp:127.0.0.1:1=a:2,lane=bonded").contains("\"lane=bonded\" of a UDP forward"));
        for idle in ["", "0", "86401", "1m"] {
            let text = error(&format!("udp:127.0.0.1:1=a:2,idle={idle}"));
            assert_eq!(text, format!("idle={idle}: expected 1 to 86400 seconds"));
        }
        let long = "a".repeat(TARGET_BYTES_MAX);
        assert!(error(&format!("127.0.0.1:1={long}:80")).contains("is not HOST:PORT"));
    }
}
