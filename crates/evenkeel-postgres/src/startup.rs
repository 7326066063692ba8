//! Startup of a connection: session parameters, authentication, until the server is ready.

mod auth;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::time::timeout;

use crate::backend::{Malformed, MessageBody};
use crate::cancel::CancelKey;
use crate::config::ConnectConfig;
use crate::connect;
use crate::db_error::DbError;
use crate::error::{ConnectError, PgError};
use crate::frame::Frame;
use crate::transport::Peer;
use crate::wire::Wire;
use auth::Login;

/// Startup parameters; `RESET ALL` and `DISCARD ALL` return to them.
const PINNED: [(&str, &str); 7] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
    ("standard_conforming_strings", "on"),
];
/// Lets the server notice during a statement that the client has gone; known from PostgreSQL 14 on.
const CHECK_INTERVAL: (&str, &str) = ("client_connection_check_interval", "1s");

/// Use of `client_connection_check_interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckInterval {
    Request,
    /// The server rejected the parameter.
    Omit,
}

/// A connection that is ready for its first statement.
pub(crate) struct Started {
    pub(crate) wire: Wire,
    pub(crate) peer: Peer,
    pub(crate) facts: ServerFacts,
}

/// Facts that the server reports during startup.
#[derive(Debug, Default)]
pub(crate) struct ServerFacts {
    pub(crate) cancel_key: CancelKey,
    /// Major version; 0 if it was not reported.
    pub(crate) version: u32,
    /// `None` if the server does not report `default_transaction_read_only`, as before version 14.
    pub(crate) read_only: Option<bool>,
}

/// Opens a connection; all steps together take at most `connect_timeout`.
pub(crate) async fn start(
    config: &ConnectConfig,
    check_interval: CheckInterval,
    message_bytes_max: usize,
) -> Result<Started, ConnectError> {
    let starting = async {
        let (transport, peer) = connect::open(config).await?;
        let mut wire = Wire::new(transport, message_bytes_max);
        let logging_in = log_in(config, check_interval, &mut wire, &peer);
        let facts = logging_in.await.map_err(|error| connect_error(config, error))?;
        Ok(Started { wire, peer, facts })
    };
    timeout(config.connect_timeout, starting)
        .await
        .unwrap_or(Err(ConnectError::Timeout(config.connect_timeout)))
}

/// Opens one more connection to the server that another one reached; the caller limits the time.
pub(crate) async fn start_again(
    config: &ConnectConfig,
    peer: &Peer,
    message_bytes_max: usize,
) -> Result<Wire, ConnectError> {
    let transport = connect::open_again(config, peer).await?;
    let mut wire = Wire::new(transport, message_bytes_max);
    let logging_in = log_in(config, CheckInterval::Omit, &mut wire, peer);
    logging_in.await.map_err(|error| connect_error(config, error))?;
    Ok(wire)
}

fn connect_error(config: &ConnectConfig, error: PgError) -> ConnectError {
    match error {
        PgError::Connect(error) => error,
        PgError::Database(error) => rejected(error),
        PgError::ConnectionLost { reason } => {
            ConnectError::Unreachable { address: config.server.to_string(), reason }
        }
        error => ConnectError::Protocol { reason: error.to_string() },
    }
}

/// Reports whether a server rejected the connection because it does not know `client_connection_check_interval`.
///
/// The message is localized, but contains the name.
pub(crate) fn rejects_check_interval(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Rejected(error) if error.message.contains(CHECK_INTERVAL.0))
}

fn rejected(error: Box<DbError>) -> ConnectError {
    if error.code.starts_with("28") {
        return ConnectError::Auth { reason: error.message };
    }
    ConnectError::Rejected(error)
}

async fn log_in(
    config: &ConnectConfig,
    check_interval: CheckInterval,
    wire: &mut Wire,
    peer: &Peer,
) -> Result<ServerFacts, PgError> {
    write_startup(config, check_interval, &mut wire.output)
        .map_err(|error| PgError::Protocol { reason: error.to_string() })?;
    let mut login = Login::new(config, &wire.transport, peer);
    let mut facts = ServerFacts::default();
    loop {
        wire.flush().await?;
        let mut response = BytesMut::new();
        let step = wire.read_until(|frame| handle(frame, &mut login, &mut facts, &mut response)).await?;
        match step {
            LoginStep::Respond => wire.output = response,
            LoginStep::Ready => return Ok(facts),
        }
    }
}

fn write_startup(
    config: &ConnectConfig,
    check_interval: CheckInterval,
    output: &mut BytesMut,
) -> std::io::Result<()> {
    let named = [
        ("user", config.user.as_str()),
        ("database", config.database.as_str()),
        ("application_name", config.application_name.as_str()),
    ];
    let check_interval = (check_interval == CheckInterval::Request).then_some(CHECK_INTERVAL);
    frontend::startup_message(named.into_iter().chain(PINNED).chain(check_interval), output)
}

enum LoginStep {
    /// An authentication message is to be sent.
    Respond,
    Ready,
}

fn handle(
    frame: Frame<'_>,
    login: &mut Login<'_>,
    facts: &mut ServerFacts,
    response: &mut BytesMut,
) -> Result<Option<LoginStep>, PgError> {
    match frame.kind {
        b'R' => {
            login.handle(frame.body, response)?;
            return Ok((!response.is_empty()).then_some(LoginStep::Respond));
        }
        b'E' => return Err(PgError::Database(Box::new(DbError::parse(frame.body).map_err(malformed)?))),
        b'K' => facts.cancel_key = CancelKey::parse(frame.body).map_err(malformed)?,
        b'S' => record_parameter(facts, frame.body).map_err(malformed)?,
        b'Z' if login.is_complete() => return Ok(Some(LoginStep::Ready)),
        // Notices, and the offer of a lower protocol version.
        b'N' | b'v' => {}
        kind => return Err(unexpected(kind)),
    }
    Ok(None)
}

fn record_parameter(facts: &mut ServerFacts, body: &[u8]) -> Result<(), Malformed> {
    let mut body = MessageBody(body);
    let name = body.text()?;
    let value = body.text()?;
    match name {
        b"server_version" => facts.version = parse_major(value),
        b"default_transaction_read_only" => facts.read_only = Some(value == b"on"),
        _ => {}
    }
    Ok(())
}

/// Returns the number at the start of a version such as `15.14 (Debian 15.14-0+deb12u1)` or `17beta1`.
fn parse_major(version: &[u8]) -> u32 {
    let digits = version.iter().take_while(|byte| byte.is_ascii_digit()).take(4);
    digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

pub(crate) fn malformed(error: Malformed) -> PgError {
    PgError::Protocol { reason: error.to_string() }
}

pub(crate) fn unexpected(kind: u8) -> PgError {
    PgError::Protocol { reason: format!("unexpected message of type {:?}", char::from(kind)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_the_first_number() {
        assert_eq!(parse_major(b"15.14 (Debian 15.14-0+deb12u1)"), 15);
        assert_eq!(parse_major(b"17beta1"), 17);
        assert_eq!(parse_major(b"devel"), 0);
        assert_eq!(parse_major(b"99999999999999999999"), 9999);
    }

    #[test]
    fn the_startup_message_pins_the_session() {
        let config = ConnectConfig::parse("postgres://u:p@h/d").unwrap();
        let mut output = BytesMut::new();
        write_startup(&config, CheckInterval::Request, &mut output).unwrap();
        let text = String::from_utf8_lossy(&output).into_owned();
        for (name, value) in PINNED.into_iter().chain([CHECK_INTERVAL, ("application_name", "evenkeel")]) {
            assert!(text.contains(&format!("{name}\0{value}\0")), "{name}");
        }
        assert!(!text.contains("replication"));
        output.clear();
        write_startup(&config, CheckInterval::Omit, &mut output).unwrap();
        assert!(!String::from_utf8_lossy(&output).contains(CHECK_INTERVAL.0));
    }
}
