//! Errors of connections and statements, each with an SQLSTATE.

use std::time::Duration;

use crate::db_error::DbError;

/// Failure of a connection or a statement; one variant per case that callers handle differently.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PgError {
    /// The server rejected the statement; the connection is still usable.
    #[error("{0}")]
    Database(Box<DbError>),
    /// No connection could be opened.
    #[error("could not connect to the database: {0}")]
    Connect(#[from] ConnectError),
    /// The connection closed while a statement was in flight.
    #[error("connection to the database lost, the outcome of the statement is unknown: {reason}")]
    ConnectionLost { reason: String },
    /// The previous owner's session could not be reset, or the role or a setting was rejected; the statement did not run.
    #[error("could not set up the database session: {0}")]
    Session(Box<DbError>),
    /// The statement needs a protocol exchange that is not supported here; the connection is still usable.
    #[error("{what} is not supported over this interface")]
    Unsupported { what: &'static str },
    /// The statement exceeds a limit or cannot be encoded; nothing was sent.
    #[error("{reason}")]
    InvalidStatement { reason: String, sqlstate: &'static str },
    /// A row, notice or error of the statement is longer than `message_bytes_max`; the connection is still usable.
    ///
    /// Outside a transaction the statement may have taken effect; an open transaction has failed.
    #[error("a message of the result is longer than {bytes_max} bytes, the statement may have taken effect")]
    ResultTooLarge { bytes_max: usize },
    /// The server sent a message that is invalid or unexpected.
    #[error("invalid message from the database: {reason}")]
    Protocol { reason: String },
    /// All connections stayed in use, or too many callers were waiting.
    #[error("no database connection became free within {waited:?}")]
    PoolTimeout { waited: Duration },
    #[error("the connection pool is closed")]
    Closed,
    /// An earlier statement of this connection was stopped half-way; `recover` ends it.
    #[error("an earlier statement on this connection was stopped and must be recovered first")]
    Stopped,
}

/// Reason why no connection could be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("could not resolve host {host:?}: {reason}")]
    Resolve { host: String, reason: String },
    #[error("{address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("not connected within {0:?}")]
    Timeout(Duration),
    #[error("TLS: {reason}")]
    Tls { reason: String },
    /// Wrong user or password, or an authentication method that is not supported or not safe here.
    #[error("authentication: {reason}")]
    Auth { reason: String },
    /// The server refused the connection for another reason, such as too many connections.
    #[error("{0}")]
    Rejected(Box<DbError>),
    #[error("invalid message during startup: {reason}")]
    Protocol { reason: String },
}

impl PgError {
    /// Returns the server's SQLSTATE, or the one that describes the failure best.
    pub fn sqlstate(&self) -> &str {
        match self {
            Self::Database(error) | Self::Session(error) => &error.code,
            Self::Connect(error) => error.sqlstate(),
            Self::ConnectionLost { .. } => "08006",
            Self::Unsupported { .. } => "0A000",
            Self::InvalidStatement { sqlstate, .. } => sqlstate,
            Self::ResultTooLarge { .. } => "54000",
            Self::Protocol { .. } => "08P01",
            Self::PoolTimeout { .. } => "53300",
            Self::Closed => "57P03",
            Self::Stopped => "55000",
        }
    }

    /// Reports whether the database or the way to it is at fault, rather than the client's SQL.
    pub fn is_node_fault(&self) -> bool {
        match self {
            Self::Database(error) | Self::Session(error) => is_node_fault(&error.code),
            Self::Connect(_) | Self::ConnectionLost { .. } | Self::Protocol { .. } => true,
            Self::Unsupported { .. }
            | Self::InvalidStatement { .. }
            | Self::ResultTooLarge { .. }
            | Self::PoolTimeout { .. }
            | Self::Closed
            | Self::Stopped => false,
        }
    }

    /// Reports whether the connection must not be used again.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(self, Self::ConnectionLost { .. } | Self::Session(_) | Self::Protocol { .. })
    }
}

impl ConnectError {
    fn sqlstate(&self) -> &str {
        match self {
            Self::Resolve { .. } | Self::Unreachable { .. } | Self::Timeout(_) | Self::Tls { .. } => "08001",
            Self::Auth { .. } => "28000",
            Self::Rejected(error) => &error.code,
            Self::Protocol { .. } => "08P01",
        }
    }
}

/// Reports whether an SQLSTATE means that the server is failing: connection exceptions (08), insufficient resources (53),
/// shutdown and startup (57P01 to 57P03), system errors (58), corruption (XX).
fn is_node_fault(code: &str) -> bool {
    const CLASSES: [&str; 4] = ["08", "53", "58", "XX"];
    const CODES: [&str; 3] = ["57P01", "57P02", "57P03"];
    CODES.contains(&code) || CLASSES.iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(code: &str) -> PgError {
        PgError::Database(Box::new(DbError { code: code.to_owned(), ..DbError::default() }))
    }

    #[test]
    fn shutdowns_and_exhausted_resources_are_the_nodes_fault() {
        for code in ["57P01", "57P02", "57P03", "53300", "53100", "58030", "XX001", "08006"] {
            assert!(database(code).is_node_fault(), "{code}");
        }
        assert!(PgError::ConnectionLost { reason: String::new() }.is_node_fault());
        assert!(PgError::Connect(ConnectError::Timeout(Duration::ZERO)).is_node_fault());
    }

    #[test]
    fn the_clients_own_errors_are_not_the_nodes_fault() {
        for code in ["42601", "23505", "25006", "57014", "40001", "22P02"] {
            assert!(!database(code).is_node_fault(), "{code}");
        }
        assert!(!PgError::Unsupported { what: "LISTEN" }.is_node_fault());
        assert!(!PgError::ResultTooLarge { bytes_max: 1 }.is_node_fault());
        assert!(!PgError::PoolTimeout { waited: Duration::ZERO }.is_node_fault());
    }
}
