//! Errors as the protocol writes them: `{message, code}`, with SQLite's names of result codes.
//!
//! Codes of other errors are those of the API in upper case, such as `QUEUE_FULL`.

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::FailedRequest;
use serde_json::{Value, json};

use crate::error::{DatabaseError, SqlError};

/// Formats an error that takes the place of a response.
pub(crate) fn error_response(error: SqlError) -> Response {
    let body = to_json(&error);
    let status = error.status();
    match error {
        SqlError::Api(error) => error.with_body(&body),
        _ => json_response(status, full(body.to_string())),
    }
}

/// Formats errors that the server raises before the handler runs.
pub(crate) fn error_format(error: ApiError, _: &FailedRequest) -> Response {
    error_response(SqlError::Api(error))
}

/// Returns the error as the protocol writes it.
pub(super) fn to_json(error: &SqlError) -> Value {
    json!({"message": message(error), "code": code(error)})
}

/// Returns the error in at most `bytes_max` bytes if its message can be left out for that; its code always stays.
pub(super) fn to_json_within(error: &SqlError, bytes_max: usize) -> Value {
    let whole = to_json(error);
    if whole.to_string().len() <= bytes_max {
        return whole;
    }
    json!({"message": "the response has no room for the message", "code": code(error)})
}

/// Returns the message, in terms of the protocol where the API's own would not help its users.
fn message(error: &SqlError) -> String {
    match error {
        SqlError::InvalidTxId => "the baton is not valid".to_owned(),
        SqlError::ForeignTransaction => "the baton belongs to another tenant".to_owned(),
        SqlError::TransactionOutside => {
            "the statement would leave a transaction open; begin it with BEGIN".to_owned()
        }
        SqlError::ResultTooLarge { bytes_max } => {
            format!("the result is larger than {bytes_max} bytes; ask for fewer rows, or use a cursor")
        }
        other => other.to_string(),
    }
}

fn code(error: &SqlError) -> String {
    match error {
        SqlError::Database(error) => database_code(error).to_owned(),
        SqlError::Timeout => "SQLITE_INTERRUPT".to_owned(),
        SqlError::ResultTooLarge { .. } | SqlError::ExecutedResultTooLarge { .. } => {
            "RESPONSE_TOO_LARGE".to_owned()
        }
        SqlError::InvalidTxId => "BATON_INVALID".to_owned(),
        SqlError::ForeignTransaction => "BATON_FOREIGN".to_owned(),
        SqlError::UnknownTransaction | SqlError::UnknownOwner { .. } | SqlError::TransactionEnded(_) => {
            "STREAM_EXPIRED".to_owned()
        }
        SqlError::PeerLost { .. } => "SQLITE_IOERR".to_owned(),
        SqlError::TransactionOutside | SqlError::TransactionInList => "SQLITE_ERROR".to_owned(),
        SqlError::Api(_)
        | SqlError::Signature(_)
        | SqlError::OwnerUnreachable { .. }
        | SqlError::UnknownDatabase { .. }
        | SqlError::TransactionBusy
        | SqlError::BatonReused
        | SqlError::IdempotencyMismatch
        | SqlError::IdempotencyRunning
        | SqlError::IdempotencyInTransaction => error.code().to_ascii_uppercase(),
    }
}

fn database_code(error: &DatabaseError) -> &'static str {
    match error {
        DatabaseError::Statement(error) => result_code(&error.code),
        DatabaseError::Unavailable { .. } => "SQLITE_CANTOPEN",
        DatabaseError::OutcomeUnknown => "SQLITE_IOERR",
        DatabaseError::Cancelled => "SQLITE_INTERRUPT",
        DatabaseError::Unsupported { .. } => "SQLITE_ERROR",
        DatabaseError::Param { .. } => "ARGS_INVALID",
    }
}

/// Returns the name of the SQLite result code that has this SQLSTATE.
fn result_code(sqlstate: &str) -> &'static str {
    match sqlstate {
        // `RAISE` in a trigger is a constraint for SQLite.
        "P0001" => "SQLITE_CONSTRAINT",
        "55P03" | "40001" => "SQLITE_BUSY",
        "40000" | "25P02" => "SQLITE_ABORT",
        "25006" => "SQLITE_READONLY",
        "57014" => "SQLITE_INTERRUPT",
        "53100" => "SQLITE_FULL",
        "53200" => "SQLITE_NOMEM",
        "54000" => "SQLITE_TOOBIG",
        "22018" => "SQLITE_MISMATCH",
        "22023" => "SQLITE_RANGE",
        "0A000" => "SQLITE_AUTH",
        "XX001" => "SQLITE_CORRUPT",
        "58030" => "SQLITE_IOERR",
        _ if sqlstate.starts_with("23") => "SQLITE_CONSTRAINT",
        _ => "SQLITE_ERROR",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::error::StatementError;
    use crate::transaction::EndedBy;
    use evenkeel_policy::time::Duration;

    fn statement(code: &str) -> SqlError {
        let error = StatementError {
            code: code.to_owned(),
            message: "UNIQUE constraint failed: t.id".to_owned(),
            ..StatementError::default()
        };
        SqlError::Database(DatabaseError::Statement(Box::new(error)))
    }

    #[test]
    fn a_statements_error_has_the_result_code_of_sqlite() {
        let expected = json!({"message": "UNIQUE constraint failed: t.id", "code": "SQLITE_CONSTRAINT"});
        assert_eq!(to_json(&statement("23505")), expected);
        for (sqlstate, code) in [
            ("23503", "SQLITE_CONSTRAINT"),
            ("25006", "SQLITE_READONLY"),
            ("42P01", "SQLITE_ERROR"),
            ("0A000", "SQLITE_AUTH"),
        ] {
            assert_eq!(to_json(&statement(sqlstate))["code"], code, "{sqlstate}");
        }
    }

    #[test]
    fn an_error_of_the_stream_says_what_happened() {
        for (error, status, code) in [
            (SqlError::InvalidTxId, 400, "BATON_INVALID"),
            (SqlError::BatonReused, 409, "BATON_REUSED"),
            (SqlError::ForeignTransaction, 403, "BATON_FOREIGN"),
            (SqlError::TransactionEnded(EndedBy::IdleTimeout), 410, "STREAM_EXPIRED"),
            (SqlError::Timeout, 504, "SQLITE_INTERRUPT"),
            (SqlError::Api(ApiError::invalid("x")), 400, "INVALID_REQUEST"),
        ] {
            assert_eq!(to_json(&error)["code"], code, "{error}");
            assert_eq!(error_response(error).status(), status);
        }
        let ended = to_json(&SqlError::TransactionEnded(EndedBy::IdleTimeout));
        assert_eq!(
            ended["message"],
            "the transaction has ended: it was idle for too long and was rolled back"
        );
    }

    #[test]
    fn an_overload_says_when_to_retry() {
        let retry_after = Duration::from_secs(2);
        let response = error_response(SqlError::Api(ApiError::QueueFull { queue_size: 9, retry_after }));
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &HeaderValue::from_static("2"))
        );
    }
}
