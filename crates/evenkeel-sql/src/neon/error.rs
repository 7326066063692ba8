//! Errors in the form that Neon's driver reads: PostgreSQL's fields, with a SQLSTATE as `code`.
//!
//! The driver reads the fields only of responses with status 400, so errors of the database, of the query and of the
//! connection string have it. Errors of the gateway, such as an overload, keep their own status and `Retry-After`; the
//! driver shows their body as text.

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::FailedRequest;
use http::StatusCode;
use serde_json::{Value, json};

use crate::error::{DatabaseError, SqlError, StatementError};

/// Formats an error of `/sql`.
pub(crate) fn error_response(error: SqlError) -> Response {
    let body = to_json(&error);
    match error {
        SqlError::Api(error) if !is_bad_request(&error) => error.with_body(&body),
        _ => json_response(StatusCode::BAD_REQUEST, full(body.to_string())),
    }
}

/// Formats errors that the server raises before the handler runs.
pub(crate) fn error_format(error: ApiError, _: &FailedRequest) -> Response {
    error_response(SqlError::Api(error))
}

fn to_json(error: &SqlError) -> Value {
    if let SqlError::Database(DatabaseError::Statement(error)) = error {
        return fields(error);
    }
    let code = sqlstate(error).to_owned();
    fields(&StatementError {
        code,
        message: message(error),
        severity: "ERROR".to_owned(),
        ..StatementError::default()
    })
}

/// Writes the fields as Neon does: numbers as text, absent ones as null.
fn fields(error: &StatementError) -> Value {
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    json!({
        "message": error.message,
        "code": error.code,
        "severity": error.severity,
        "detail": error.detail,
        "hint": error.hint,
        "position": number(error.position),
        "internalPosition": number(error.internal_position),
        "internalQuery": error.internal_query,
        "where": error.context,
        "schema": error.schema,
        "table": error.table,
        "column": error.column,
        "dataType": error.data_type,
        "constraint": error.constraint,
        "file": error.file,
        "line": number(error.line),
        "routine": error.routine,
    })
}

/// Returns the message, in terms of the driver where the API's own would not help its users.
fn message(error: &SqlError) -> String {
    match error {
        SqlError::Api(ApiError::Unauthenticated) => {
            "password authentication failed: the password in the connection string must be an API key of a tenant"
                .to_owned()
        }
        SqlError::UnknownDatabase { name } => {
            format!("database {name:?} does not exist: it is neither a datasource nor the database of one")
        }
        SqlError::ResultTooLarge { bytes_max } => {
            format!("the result is larger than {bytes_max} bytes; ask for fewer rows")
        }
        SqlError::TransactionOutside => {
            "the statement would leave a transaction open; use transaction()".to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns the SQLSTATE that PostgreSQL would use.
fn sqlstate(error: &SqlError) -> &str {
    match error {
        SqlError::Api(error) => api_sqlstate(error),
        SqlError::Database(error) => error.sqlstate(),
        SqlError::UnknownDatabase { .. } => "3D000",
        SqlError::ResultTooLarge { .. } | SqlError::ExecutedResultTooLarge { .. } => "54000",
        SqlError::Timeout
        | SqlError::TransactionOutside
        | SqlError::TransactionInList
        | SqlError::PeerLost { .. } => error.code(),
        // Only other routes raise these.
        SqlError::Signature(_)
        | SqlError::InvalidTxId
        | SqlError::ForeignTransaction
        | SqlError::UnknownTransaction
        | SqlError::TransactionEnded(_)
        | SqlError::TransactionBusy
        | SqlError::UnknownOwner { .. }
        | SqlError::OwnerUnreachable { .. }
        | SqlError::BatonReused
        | SqlError::IdempotencyMismatch
        | SqlError::IdempotencyRunning
        | SqlError::IdempotencyInTransaction => "XX000",
    }
}

fn api_sqlstate(error: &ApiError) -> &'static str {
    match error {
        ApiError::Invalid { .. }
        | ApiError::Framing
        | ApiError::NotJson
        | ApiError::BodyTimeout
        | ApiError::NoRoute
        | ApiError::Method { .. }
        | ApiError::NotFound { .. }
        | ApiError::Conflict { .. } => "08P01",
        ApiError::Unauthenticated | ApiError::KeyExpired { .. } => "28P01",
        ApiError::TenantDisabled => "28000",
        ApiError::DatasourceForbidden { .. }
        | ApiError::InvalidTicket { .. }
        | ApiError::ForeignOrigin
        | ApiError::UnknownHost { .. }
        | ApiError::Forwarded
        | ApiError::AdminOnly
        | ApiError::ModelForbidden { .. } => "42501",
        ApiError::BodyTooLarge { .. } => "54000",
        ApiError::RateLimited { .. } | ApiError::BudgetReached(_) => "53400",
        ApiError::QueueFull { .. }
        | ApiError::BodiesFull
        | ApiError::ConnectionsFull
        | ApiError::WaitTimeout => "53300",
        ApiError::Draining | ApiError::Unready | ApiError::Unavailable { .. } => "57P03",
        ApiError::NoModel { .. } | ApiError::Upstream | ApiError::UpstreamTimeout | ApiError::Internal => {
            "XX000"
        }
    }
}

/// Reports whether the user of the driver must change the request or the connection string.
fn is_bad_request(error: &ApiError) -> bool {
    matches!(
        error,
        ApiError::Invalid { .. }
            | ApiError::Unauthenticated
            | ApiError::KeyExpired { .. }
            | ApiError::TenantDisabled
            | ApiError::DatasourceForbidden { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::time::Duration;

    fn response(error: SqlError) -> (u16, Value) {
        let body = to_json(&error);
        (error_response(error).status().as_u16(), body)
    }

    #[test]
    fn an_error_of_the_database_keeps_every_field() {
        let text = |text: &str| Some(text.to_owned());
        let error = StatementError {
            code: "40001".to_owned(),
            message: "m".to_owned(),
            severity: "ERROR".to_owned(),
            detail: text("d"),
            hint: text("h"),
            position: Some(8),
            internal_position: Some(9),
            internal_query: text("q"),
            context: text("w"),
            schema: text("s"),
            table: text("t"),
            column: text("c"),
            data_type: text("y"),
            constraint: text("k"),
            file: text("f"),
            line: Some(10),
            routine: text("r"),
        };
        let expected = json!({
            "code": "40001", "message": "m", "severity": "ERROR", "detail": "d", "hint": "h", "position": "8",
            "internalPosition": "9", "internalQuery": "q", "where": "w", "schema": "s", "table": "t", "column": "c",
            "dataType": "y", "constraint": "k", "file": "f", "line": "10", "routine": "r"
        });
        let error = SqlError::Database(DatabaseError::Statement(Box::new(error)));
        assert_eq!(response(error), (400, expected));
    }

    #[test]
    fn the_driver_reads_the_fields_of_errors_that_its_user_can_mend() {
        for (error, code) in [
            (SqlError::Api(ApiError::Unauthenticated), "28P01"),
            (SqlError::Api(ApiError::TenantDisabled), "28000"),
            (SqlError::Api(ApiError::DatasourceForbidden { datasource: "x".to_owned() }), "42501"),
            (SqlError::Api(ApiError::invalid("x")), "08P01"),
            (SqlError::UnknownDatabase { name: "x".to_owned() }, "3D000"),
            (SqlError::ResultTooLarge { bytes_max: 1 }, "54000"),
            (SqlError::Timeout, "57014"),
            (SqlError::Database(DatabaseError::OutcomeUnknown), "08007"),
            (SqlError::TransactionOutside, "25001"),
        ] {
            let (status, body) = response(error.clone());
            assert_eq!((status, &body["code"]), (400, &json!(code)), "{error}");
            assert_eq!(body["severity"], "ERROR", "{error}");
        }
    }

    #[test]
    fn an_overload_keeps_its_status_and_says_when_to_retry() {
        let retry_after = Duration::from_secs(2);
        let full = SqlError::Api(ApiError::QueueFull { queue_size: 9, retry_after });
        let (status, body) = response(full.clone());
        assert_eq!((status, &body["code"]), (503, &json!("53300")));
        assert_eq!(error_response(full).headers()["retry-after"], "2");
        assert_eq!(response(SqlError::Api(ApiError::Draining)).0, 503);
    }
}
