//! Errors in the form that AWS's clients read: a name in `x-amzn-ErrorType`, and `{"message": …}`.
//!
//! Guarantee: an error of a statement or a commit that may have taken effect never has a status that AWS's clients retry
//! (429, 500, 502, 503, 504). Those statuses mean that nothing was executed.

use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{Response, full, json_response};
use evenkeel_server::route::FailedRequest;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::error::{DatabaseError, SqlError, StatementError};

const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");

/// Formats an error of the Data API.
pub(crate) fn error_response(error: SqlError) -> Response {
    let (status, exception) = parts(&error);
    let body = json!({"message": message(&error)});
    let mut response = match error {
        SqlError::Api(error) => error.with_body(&body),
        _ => json_response(status, full(body.to_string())),
    };
    *response.status_mut() = status;
    response.headers_mut().insert(ERROR_TYPE, HeaderValue::from_static(exception));
    response
}

/// Formats errors that the server raises before the handler runs.
pub(crate) fn error_format(error: ApiError, _: &FailedRequest) -> Response {
    error_response(SqlError::Api(error))
}

/// Returns the status and AWS's name of an error.
fn parts(error: &SqlError) -> (StatusCode, &'static str) {
    let (status, exception) = match error {
        SqlError::Signature(error) => return (error.status(), error.exception()),
        SqlError::Api(error) => return (api_status(error), api_exception(error)),
        SqlError::Database(DatabaseError::Unavailable { .. }) => (504, "DatabaseUnavailableException"),
        SqlError::Database(DatabaseError::Statement(_) | DatabaseError::OutcomeUnknown)
        | SqlError::PeerLost { .. } => (400, "DatabaseErrorException"),
        SqlError::OwnerUnreachable { .. } => (503, "ServiceUnavailableError"),
        SqlError::Database(DatabaseError::Cancelled) | SqlError::Timeout => {
            (400, "StatementTimeoutException")
        }
        SqlError::Database(DatabaseError::Unsupported { .. } | DatabaseError::Param { .. })
        | SqlError::ResultTooLarge { .. }
        | SqlError::ExecutedResultTooLarge { .. }
        | SqlError::TransactionBusy
        | SqlError::TransactionOutside
        | SqlError::TransactionInList
        // Only other routes raise these.
        | SqlError::BatonReused
        | SqlError::IdempotencyMismatch
        | SqlError::IdempotencyRunning
        | SqlError::IdempotencyInTransaction => (400, "BadRequestException"),
        SqlError::UnknownDatabase { .. } => (404, "NotFoundException"),
        SqlError::ForeignTransaction => (403, "ForbiddenException"),
        SqlError::InvalidTxId
        | SqlError::UnknownTransaction
        | SqlError::UnknownOwner { .. }
        | SqlError::TransactionEnded(_) => (404, "TransactionNotFoundException"),
    };
    (StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), exception)
}

fn api_exception(error: &ApiError) -> &'static str {
    match error {
        ApiError::Invalid { .. }
        | ApiError::Framing
        | ApiError::NotJson
        | ApiError::BodyTimeout
        | ApiError::BodyTooLarge { .. }
        | ApiError::NoRoute
        | ApiError::Method { .. }
        | ApiError::NotFound { .. }
        | ApiError::Conflict { .. }
        | ApiError::NoModel { .. } => "BadRequestException",
        ApiError::Unauthenticated | ApiError::KeyExpired { .. } | ApiError::TenantDisabled => {
            "AccessDeniedException"
        }
        ApiError::DatasourceForbidden { .. }
        | ApiError::InvalidTicket { .. }
        | ApiError::ForeignOrigin
        | ApiError::UnknownHost { .. }
        | ApiError::Forwarded
        | ApiError::AdminOnly
        | ApiError::ModelForbidden { .. } => "ForbiddenException",
        ApiError::RateLimited { .. } | ApiError::BudgetReached(_) => "ThrottlingException",
        ApiError::QueueFull { .. }
        | ApiError::BodiesFull
        | ApiError::ConnectionsFull
        | ApiError::WaitTimeout
        | ApiError::Draining
        | ApiError::Unready
        | ApiError::Unavailable { .. } => "ServiceUnavailableError",
        ApiError::Upstream | ApiError::UpstreamTimeout | ApiError::Internal => "InternalServerErrorException",
    }
}

fn api_status(error: &ApiError) -> StatusCode {
    match error {
        // AWS uses 500, which its clients retry, but the statement may have been executed.
        ApiError::Upstream | ApiError::UpstreamTimeout | ApiError::Internal => StatusCode::BAD_REQUEST,
        ApiError::WaitTimeout => StatusCode::SERVICE_UNAVAILABLE,
        other => other.status(),
    }
}

/// Returns the message, in terms of the Data API where the API's own would not help its users.
fn message(error: &SqlError) -> String {
    match error {
        SqlError::Database(DatabaseError::Statement(error)) => statement_message(error),
        SqlError::Database(DatabaseError::OutcomeUnknown) => {
            format!("ERROR: {}; SQLState: {}", DatabaseError::OutcomeUnknown, error.code())
        }
        SqlError::UnknownDatabase { name } => format!(
            "there is no datasource {name:?}; the last part of resourceArn must be the name of one, \
             such as arn:aws:rds:local:0:cluster:main"
        ),
        SqlError::ResultTooLarge { bytes_max } => {
            format!("the result is larger than {bytes_max} bytes; ask for fewer rows")
        }
        SqlError::InvalidTxId => "the transactionId is not valid".to_owned(),
        SqlError::TransactionOutside => {
            "the statement would leave a transaction open; use BeginTransaction".to_owned()
        }
        SqlError::TransactionInList => {
            "the statement of a batch may not begin or end a transaction".to_owned()
        }
        other => other.to_string(),
    }
}

/// Formats an error of the database as AWS does, with the SQLSTATE at the end.
fn statement_message(error: &StatementError) -> String {
    let mut text = format!("ERROR: {}", error.message);
    let parts = [("Detail", &error.detail), ("Hint", &error.hint)];
    for (name, part) in parts {
        if let Some(part) = part {
            text.push_str(&format!("\n  {name}: {part}"));
        }
    }
    if let Some(position) = error.position {
        text.push_str(&format!("\n  Position: {position}"));
    }
    text.push_str(&format!("; SQLState: {}", error.code));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::EndedBy;
    use evenkeel_policy::time::Duration;
    use evenkeel_server::sigv4::SignatureError;

    /// Statuses that botocore retries, in its legacy and its standard mode.
    const RETRIED: [u16; 6] = [429, 500, 502, 503, 504, 509];

    fn response(error: SqlError) -> (u16, String) {
        let response = error_response(error);
        let exception = response.headers()[ERROR_TYPE].to_str().unwrap().to_owned();
        (response.status().as_u16(), exception)
    }

    #[test]
    fn an_error_after_which_a_statement_may_have_taken_effect_is_not_retried() {
        for error in [
            SqlError::Database(DatabaseError::OutcomeUnknown),
            SqlError::Database(DatabaseError::Cancelled),
            SqlError::Database(DatabaseError::Statement(Box::default())),
            SqlError::Timeout,
            SqlError::ExecutedResultTooLarge { bytes_max: 1 },
            SqlError::TransactionEnded(EndedBy::UnknownOutcome),
            SqlError::Api(ApiError::Internal),
        ] {
            let (status, exception) = response(error.clone());
            assert!(!RETRIED.contains(&status), "{error}: {status} {exception}");
        }
    }

    #[test]
    fn errors_have_the_names_of_aws() {
        let retry_after = Duration::from_secs(2);
        for (error, status, exception) in [
            (SqlError::Timeout, 400, "StatementTimeoutException"),
            (SqlError::TransactionEnded(EndedBy::Commit), 404, "TransactionNotFoundException"),
            (SqlError::InvalidTxId, 404, "TransactionNotFoundException"),
            (SqlError::ForeignTransaction, 403, "ForbiddenException"),
            (SqlError::UnknownDatabase { name: "x".to_owned() }, 404, "NotFoundException"),
            (SqlError::Database(DatabaseError::OutcomeUnknown), 400, "DatabaseErrorException"),
            (
                SqlError::Database(DatabaseError::Unavailable { reason: String::new() }),
                504,
                "DatabaseUnavailableException",
            ),
            (SqlError::Signature(SignatureError::Mismatch), 403, "InvalidSignatureException"),
            (SqlError::Api(ApiError::invalid("x")), 400, "BadRequestException"),
            (
                SqlError::Api(ApiError::QueueFull { queue_size: 1, retry_after }),
                503,
                "ServiceUnavailableError",
            ),
            (SqlError::Api(ApiError::WaitTimeout), 503, "ServiceUnavailableError"),
        ] {
            assert_eq!(response(error.clone()), (status, exception.to_owned()), "{error}");
        }
    }

    #[test]
    fn the_message_ends_with_the_sqlstate() {
        let error = StatementError {
            code: "23505".to_owned(),
            message: "duplicate key".to_owned(),
            detail: Some("Key (id)=(1) already exists.".to_owned()),
            ..StatementError::default()
        };
        let error = SqlError::Database(DatabaseError::Statement(Box::new(error)));
        assert_eq!(
            message(&error),
            "ERROR: duplicate key\n  Detail: Key (id)=(1) already exists.; SQLState: 23505"
        );
    }
}
