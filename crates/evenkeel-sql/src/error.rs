//! Errors of the SQL API and their responses: `{code, message, detail?, retryAfterMs?}`, with the database's own SQLSTATE.

pub use evenkeel_postgres::DbError as StatementError;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::FailedRequest;
use evenkeel_server::sigv4::SignatureError;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::datasource::EngineKind;
use crate::transaction::EndedBy;

/// Error of a database or of the connection to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// The database rejected the statement.
    #[error("{}", .0.message)]
    Statement(Box<StatementError>),
    /// The database cannot be reached, or refuses connections. Nothing was executed.
    #[error("the database is unavailable")]
    Unavailable {
        /// For the log; it may name hosts and users that clients must not learn.
        reason: String,
    },
    /// The connection was lost after the statement was sent, or a commit did not finish in time.
    #[error(
        "the connection to the database was lost, or a commit took too long; the outcome of the statement is unknown"
    )]
    OutcomeUnknown,
    /// The statement was cancelled because its time limit was reached, or the client disconnected.
    #[error("the statement was cancelled")]
    Cancelled,
    /// The API does not support the statement, such as `COPY` or `LISTEN`.
    #[error("{what}")]
    Unsupported { what: String },
    /// A parameter cannot be bound; the message is for the client.
    #[error("parameter {} {reason}", .index + 1)]
    Param { index: usize, reason: String },
}

/// SQLSTATE of an unknown outcome: `transaction_resolution_unknown`.
const OUTCOME_UNKNOWN: &str = "08007";
const CANNOT_CONNECT: &str = "08001";
const QUERY_CANCELED: &str = "57014";
const NOT_SUPPORTED: &str = "0A000";
const INVALID_PARAMETER: &str = "22023";

impl DatabaseError {
    /// Returns the error for a commit that the database answered with a rollback.
    pub(crate) fn rolled_back() -> Self {
        Self::Statement(Box::new(StatementError {
            code: "40000".to_owned(),
            message: "the transaction had failed, so the database rolled it back instead of committing it"
                .to_owned(),
            severity: "ERROR".to_owned(),
            ..StatementError::default()
        }))
    }

    pub fn sqlstate(&self) -> &str {
        match self {
            Self::Statement(error) => &error.code,
            Self::Unavailable { .. } => CANNOT_CONNECT,
            Self::OutcomeUnknown => OUTCOME_UNKNOWN,
            Self::Cancelled => QUERY_CANCELED,
            Self::Unsupported { .. } => NOT_SUPPORTED,
            Self::Param { .. } => INVALID_PARAMETER,
        }
    }

    /// Reports whether the database is at fault: it is unreachable, the connection was lost, or SQLite lacks resources.
    ///
    /// An error that PostgreSQL answers on a connection that stays usable is never its fault: a client can raise any
    /// SQLSTATE, and must not be able to take the database out of service for others.
    pub fn is_node_fault(&self, engine: EngineKind) -> bool {
        match self {
            Self::Unavailable { .. } | Self::OutcomeUnknown => true,
            Self::Statement(error) => engine == EngineKind::Sqlite && is_resource_error(&error.code),
            Self::Cancelled | Self::Unsupported { .. } | Self::Param { .. } => false,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Statement(error) => statement_status(&error.code),
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::OutcomeUnknown => StatusCode::BAD_GATEWAY,
            Self::Cancelled => StatusCode::GATEWAY_TIMEOUT,
            Self::Unsupported { .. } | Self::Param { .. } => StatusCode::BAD_REQUEST,
        }
    }
}

/// Classifies a SQLSTATE: connection errors, lack of resources, operator intervention, and errors of the system.
fn is_resource_error(code: &str) -> bool {
    match code {
        // The statement was cancelled, its session was ended on purpose, or it was bound with the wrong parameters.
        "57014" | "57P05" | "08P01" => false,
        _ => matches!(code.get(..2), Some("08" | "53" | "57" | "58" | "XX")),
    }
}

fn statement_status(code: &str) -> StatusCode {
    match code.get(..2) {
        // The transaction may succeed when it is repeated.
        Some("40") => StatusCode::CONFLICT,
        Some("08" | "53" | "57" | "58" | "XX") if is_resource_error(code) => StatusCode::SERVICE_UNAVAILABLE,
        _ if code == QUERY_CANCELED => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Reason why a SQL request fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Only the Data API has signed requests.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The time limit was reached; the statement was cancelled.
    #[error(
        "the statement did not finish within its time limit and was cancelled; a write that was just being committed may \
         have taken effect"
    )]
    Timeout,
    #[error(
        "the result is larger than {bytes_max} bytes; ask for a stream (Accept: application/x-ndjson) or set maxRows"
    )]
    ResultTooLarge { bytes_max: usize },
    /// The result of a statement that writes is too large. Cancelling it could leave its outcome unknown.
    #[error("the statement was executed, but its result is larger than {bytes_max} bytes and was dropped")]
    ExecutedResultTooLarge { bytes_max: usize },
    #[error("there is no database {name:?}")]
    UnknownDatabase { name: String },
    #[error("txId is not a valid transaction id")]
    InvalidTxId,
    #[error("the transaction belongs to another tenant")]
    ForeignTransaction,
    #[error(
        "the transaction is unknown: it ended more than five minutes ago, or before the server was restarted"
    )]
    UnknownTransaction,
    #[error("the transaction has ended: {0}")]
    TransactionEnded(EndedBy),
    #[error("the transaction belongs to node {node:?}, which is not a peer of this node")]
    UnknownOwner { node: String },
    #[error(
        "the transaction belongs to node {node:?}, which cannot be reached ({reason}); nothing was executed, and if that node \
         has stopped, the transaction was rolled back"
    )]
    OwnerUnreachable { node: String, reason: String },
    /// A peer may have executed a request that it did not answer.
    #[error(
        "node {node:?} did not answer after the request was sent ({reason}); the outcome of the request is unknown"
    )]
    PeerLost { node: String, reason: String },
    #[error("the transaction is running another statement")]
    TransactionBusy,
    #[error("the baton was used before; each one is for one request")]
    BatonReused,
    #[error("the statement would leave a transaction open; use /tx/begin")]
    TransactionOutside,
    #[error("a statement list may not begin or end a transaction: it is one already")]
    TransactionInList,
    #[error("the Idempotency-Key was used for a different request")]
    IdempotencyMismatch,
    #[error("a request with this Idempotency-Key is still running")]
    IdempotencyRunning,
    #[error(
        "Idempotency-Key does not apply to a statement of a transaction; repeat the whole transaction instead"
    )]
    IdempotencyInTransaction,
}

impl SqlError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Api(error) => error.status(),
            Self::Database(error) => error.status(),
            Self::Signature(error) => error.status(),
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::ResultTooLarge { .. } | Self::ExecutedResultTooLarge { .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::UnknownDatabase { .. } => StatusCode::NOT_FOUND,
            Self::InvalidTxId
            | Self::TransactionOutside
            | Self::TransactionInList
            | Self::IdempotencyInTransaction => StatusCode::BAD_REQUEST,
            Self::ForeignTransaction => StatusCode::FORBIDDEN,
            Self::UnknownTransaction | Self::TransactionEnded(_) | Self::UnknownOwner { .. } => {
                StatusCode::GONE
            }
            Self::OwnerUnreachable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::PeerLost { .. } => StatusCode::BAD_GATEWAY,
            Self::TransactionBusy | Self::BatonReused | Self::IdempotencyRunning => StatusCode::CONFLICT,
            Self::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }

    /// Returns the stable `code` that clients match on: a SQLSTATE for errors of the database.
    pub fn code(&self) -> &str {
        match self {
            Self::Api(error) => error.code(),
            Self::Database(error) => error.sqlstate(),
            Self::Signature(error) => error.exception(),
            Self::Timeout => QUERY_CANCELED,
            Self::ResultTooLarge { .. } => "result_too_large",
            Self::ExecutedResultTooLarge { .. } => "executed_result_too_large",
            Self::UnknownDatabase { .. } => "unknown_database",
            Self::InvalidTxId => "invalid_tx_id",
            Self::ForeignTransaction => "foreign_transaction",
            Self::UnknownTransaction => "unknown_transaction",
            Self::TransactionEnded(_) => "transaction_ended",
            Self::UnknownOwner { .. } => "unknown_owner",
            Self::OwnerUnreachable { .. } => "owner_unreachable",
            Self::PeerLost { .. } => OUTCOME_UNKNOWN,
            Self::TransactionBusy => "transaction_busy",
            Self::BatonReused => "baton_reused",
            Self::TransactionOutside => "25001",
            Self::TransactionInList => "25001",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::IdempotencyRunning => "idempotency_running",
            Self::IdempotencyInTransaction => "idempotency_in_transaction",
        }
    }

    /// Returns the body of an error response.
    pub fn to_json(&self) -> Value {
        let mut json = Map::new();
        json.insert("code".to_owned(), json!(self.code()));
        json.insert("message".to_owned(), json!(self.to_string()));
        if let Self::Database(DatabaseError::Statement(error)) = self {
            let texts = [("detail", &error.detail), ("hint", &error.hint), ("constraint", &error.constraint)];
            for (key, text) in texts {
                json.extend(text.as_ref().map(|text| (key.to_owned(), json!(text))));
            }
            json.extend(error.position.map(|position| ("position".to_owned(), json!(position))));
        }
        if let Self::Api(error) = self {
            let millis =
                error.retry_after().map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            json.extend(millis.map(|millis| ("retryAfterMs".to_owned(), json!(millis))));
        }
        Value::Object(json)
    }

    pub fn into_response(self) -> Response {
        let body = self.to_json();
        let status = self.status();
        match self {
            Self::Api(error) => error.with_body(&body),
            _ => json_response(status, full(body.to_string())),
        }
    }
}

/// Formats errors that the server raises before a handler runs.
pub(crate) fn error_format(error: ApiError, _: &FailedRequest) -> Response {
    SqlError::Api(error).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::time::Duration;

    fn statement(code: &str) -> DatabaseError {
        DatabaseError::Statement(Box::new(StatementError {
            code: code.to_owned(),
            ..StatementError::default()
        }))
    }

    #[test]
    fn no_sqlstate_that_a_client_can_raise_is_the_fault_of_postgresql() {
        for code in ["42601", "23505", "40001", "57014", "08006", "53300", "57P01", "58030", "XX001"] {
            assert!(!statement(code).is_node_fault(EngineKind::Postgres), "{code}");
        }
        for error in [DatabaseError::OutcomeUnknown, DatabaseError::Unavailable { reason: String::new() }] {
            assert!(error.is_node_fault(EngineKind::Postgres), "{error}");
        }
    }

    #[test]
    fn a_lack_of_resources_is_the_fault_of_sqlite() {
        for code in ["42601", "23505", "22012", "25006", "40001", "57014", "42501"] {
            assert!(!statement(code).is_node_fault(EngineKind::Sqlite), "{code}");
        }
        for code in ["53100", "58030", "XX001"] {
            assert!(statement(code).is_node_fault(EngineKind::Sqlite), "{code}");
        }
    }

    #[test]
    fn clients_do_not_learn_where_the_database_is() {
        let error = DatabaseError::Unavailable { reason: "10.0.0.5:5432: refused".to_owned() };
        assert_eq!(SqlError::Database(error).to_json()["message"], "the database is unavailable");
    }

    #[test]
    fn the_status_tells_who_can_do_something() {
        let status = |code: &str| SqlError::Database(statement(code)).status().as_u16();
        assert_eq!(["42601", "23505", "40001", "57014", "53300"].map(status), [400, 400, 409, 504, 503]);
        assert_eq!(SqlError::Database(DatabaseError::OutcomeUnknown).status(), 502);
        assert_eq!(SqlError::TransactionEnded(EndedBy::Commit).status(), 410);
    }

    #[test]
    fn an_error_body_has_the_databases_fields() {
        let error = StatementError {
            code: "23505".to_owned(),
            message: "duplicate key".to_owned(),
            detail: Some("Key (id)=(1) already exists.".to_owned()),
            constraint: Some("t_pkey".to_owned()),
            ..StatementError::default()
        };
        let json = SqlError::Database(DatabaseError::Statement(Box::new(error))).to_json();
        let expected = json!({
            "code": "23505", "message": "duplicate key", "detail": "Key (id)=(1) already exists.",
            "constraint": "t_pkey"
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn an_overload_says_when_to_retry() {
        let full = ApiError::QueueFull { queue_size: 9, retry_after: Duration::from_millis(2_500) };
        let json = SqlError::Api(full.clone()).to_json();
        assert_eq!(json["retryAfterMs"], 2_500);
        assert_eq!(SqlError::Api(full).into_response().headers()["retry-after"], "3");
    }
}
