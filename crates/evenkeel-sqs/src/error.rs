//! Errors in AWS's format: a type in the body, and the query protocol's code in a header.
//!
//! Guarantees: an I/O error of the store is logged, and the client gets `InternalFailure` without details.

use core::fmt;

use evenkeel_queue::Rejection;
use evenkeel_queue::queues::CreateError;
use evenkeel_queue::store::StoreError;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::sigv4::SignatureError;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::limit::{BATCH_BYTES_MAX, BATCH_MAX};

/// Media type of every response.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
/// Header with the error's code in the query protocol, which older clients match on.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
/// Namespace of the error types of SQS.
const SQS: &str = "com.amazonaws.sqs";
/// Namespace of the error types that all AWS services share.
const CORAL: &str = "com.amazon.coral.service";

/// Reason why a request is rejected or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SqsError {
    /// The body is not a valid request of the operation.
    #[error("{message}")]
    Serialization { message: String },
    #[error("X-Amz-Target is missing or is not an operation of AmazonSQS")]
    UnknownOperation,
    /// The operation, or one of its parameters, is not supported.
    #[error("{message}")]
    Unsupported { message: String },
    #[error("The request must contain the parameter {name}.")]
    Missing { name: &'static str },
    /// A parameter is invalid.
    #[error("{message}")]
    Invalid { message: String },
    #[error(
        "The specified queue does not exist. ListQueues lists the existing ones, CreateQueue creates one."
    )]
    NoQueue,
    #[error("A queue already exists with the same name and a different value for attribute {attribute}")]
    QueueExists { attribute: &'static str },
    #[error("Unknown Attribute {name}.")]
    UnknownAttribute { name: String },
    #[error("Invalid value for the parameter {name}. Reason: {reason}")]
    AttributeValue { name: &'static str, reason: String },
    #[error("Either SqsManagedSseEnabled or KmsMasterKeyId, not both.")]
    BothEncryptions,
    #[error("There should be at least one entry in the request.")]
    EmptyBatch,
    #[error("Maximum number of entries per request are {BATCH_MAX}. You have sent {count}.")]
    TooManyEntries { count: usize },
    #[error("Id {id} repeated.")]
    EntryIdsNotDistinct { id: String },
    #[error(
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
         It can be at most 80 letters long."
    )]
    BadEntryId,
    #[error("Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {bytes} bytes.")]
    BatchTooLong { bytes: usize },
    /// The message contains characters that AWS does not allow.
    #[error(
        "Invalid characters found. Valid unicode characters are \
         #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
    )]
    Contents,
    #[error("The input receipt handle \"{receipt}\" is not a valid receipt handle.")]
    ReceiptInvalid { receipt: String },
    #[error("The specified message isn't in flight.")]
    NotInFlight,
    #[error("Only one PurgeQueue operation on {queue} is allowed every 60 seconds.")]
    PurgeInProgress { queue: String },
    /// A move task, or its source or destination, does not exist.
    #[error("{message}")]
    NoResource { message: &'static str },
    /// A limit of the queue or of the account is reached.
    #[error("{message}")]
    OverLimit { message: String },
    #[error("rate limit reached: requests per minute")]
    Throttled,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: u64 },
    #[error("the body did not arrive in time")]
    BodyTimeout,
    /// The request may succeed later.
    #[error("{message}")]
    Unavailable { message: String },
    /// A bug, or a disk error.
    #[error("internal error")]
    Internal,
}

/// The client-visible constants of an error.
struct ErrorParts {
    status: StatusCode,
    namespace: &'static str,
    name: &'static str,
    /// Code in the query protocol.
    code: &'static str,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "__type")]
    kind: &'a str,
    message: &'a str,
}

impl SqsError {
    /// Creates an error for an invalid parameter.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// Creates an error for an invalid parameter, with AWS's message.
    pub(crate) fn invalid_value(name: &str, value: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::invalid(format!("Value {value} for parameter {name} is invalid. Reason: {reason}"))
    }

    /// Returns the code in the query protocol, which batch entries and metrics also use.
    pub(crate) fn code(&self) -> &'static str {
        self.parts().code
    }

    /// Reports whether the client caused the error.
    pub(crate) fn is_sender_fault(&self) -> bool {
        !self.parts().status.is_server_error()
    }

    /// Converts the error into a response.
    pub(crate) fn into_response(self) -> Response {
        let ErrorParts { status, namespace, name, code } = self.parts();
        let kind = format!("{namespace}#{name}");
        let message = self.to_string();
        let json = ErrorBody { kind: &kind, message: &message };
        let mut response = Response::new(body::full(serde_json::to_vec(&json).unwrap_or_default()));
        *response.status_mut() = status;
        let cause = if self.is_sender_fault() { "Sender" } else { "Receiver" };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        if let Ok(value) = HeaderValue::try_from(format!("{code};{cause}")) {
            headers.insert(QUERY_ERROR, value);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    fn parts(&self) -> ErrorParts {
        let (status, namespace, name, code) = match self {
            Self::Serialization { .. } => (400, CORAL, "SerializationException", "MalformedInput"),
            Self::UnknownOperation => (400, CORAL, "UnknownOperationException", "InvalidAction"),
            Self::Unsupported { .. } => {
                (400, SQS, "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation")
            }
            Self::Missing { .. } => (400, CORAL, "MissingRequiredParameterException", "MissingParameter"),
            Self::Invalid { .. } => (400, CORAL, "InvalidParameterValueException", "InvalidParameterValue"),
            Self::NoQueue => (400, SQS, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
            Self::QueueExists { .. } => (400, SQS, "QueueNameExists", "QueueAlreadyExists"),
            Self::UnknownAttribute { .. } | Self::BothEncryptions => {
                (400, SQS, "InvalidAttributeName", "InvalidAttributeName")
            }
            Self::AttributeValue { .. } => (400, SQS, "InvalidAttributeValue", "InvalidAttributeValue"),
            Self::EmptyBatch => (400, SQS, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest"),
            Self::TooManyEntries { .. } => (
                400,
                SQS,
                "TooManyEntriesInBatchRequest",
                "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            ),
            Self::EntryIdsNotDistinct { .. } => {
                (400, SQS, "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct")
            }
            Self::BadEntryId => {
                (400, SQS, "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId")
            }
            Self::BatchTooLong { .. } => {
                (400, SQS, "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong")
            }
            Self::Contents => (400, SQS, "InvalidMessageContents", "InvalidMessageContents"),
            Self::ReceiptInvalid { .. } => (400, SQS, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
            Self::NotInFlight => {
                (400, SQS, "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight")
            }
            Self::PurgeInProgress { .. } => {
                (403, SQS, "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress")
            }
            Self::NoResource { .. } => (404, SQS, "ResourceNotFoundException", "ResourceNotFoundException"),
            Self::OverLimit { .. } => (403, SQS, "OverLimit", "OverLimit"),
            Self::Throttled => (403, SQS, "RequestThrottled", "RequestThrottled"),
            Self::Signature(error) => (error.status().as_u16(), CORAL, error.exception(), error.query_code()),
            Self::BodyTooLarge { .. } => {
                (413, CORAL, "RequestEntityTooLargeException", "RequestEntityTooLarge")
            }
            Self::BodyTimeout => (408, CORAL, "RequestTimeoutException", "RequestTimeout"),
            Self::Unavailable { .. } => (503, CORAL, "ServiceUnavailableException", "ServiceUnavailable"),
            Self::Internal => (500, CORAL, "InternalFailure", "InternalFailure"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        ErrorParts { status, namespace, name, code }
    }
}

impl From<Rejection> for SqsError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::QueueFull { .. }
            | Rejection::TooManyInFlight { .. }
            | Rejection::TooManyKeys { .. }
            | Rejection::TooManyTenantKeys { .. } => Self::OverLimit { message: rejection.to_string() },
            Rejection::BadKey | Rejection::DelayOnFifo | Rejection::BadTtl { .. } => {
                Self::invalid(rejection.to_string())
            }
            Rejection::TooLarge { max } => too_large(max),
            Rejection::ForgedReceipt => Self::ReceiptInvalid { receipt: String::new() },
            Rejection::MessageGone | Rejection::StaleReceipt => Self::invalid(
                "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
            ),
            Rejection::NotInFlight => Self::NotInFlight,
            Rejection::Store(error) => error.into(),
            Rejection::Busy | Rejection::NoAnswer | Rejection::Stopping | Rejection::Interrupted => {
                Self::Unavailable { message: rejection.to_string() }
            }
            Rejection::QueueDeleted => Self::NoQueue,
        }
    }
}

/// Returns the error for a message that is larger than its queue accepts.
pub(crate) fn too_large(bytes_max: u64) -> SqsError {
    SqsError::invalid(format!(
        "One or more parameters are invalid. Reason: Message must be shorter than {bytes_max} bytes."
    ))
}

impl From<StoreError> for SqsError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoQueue => Self::NoQueue,
            StoreError::DiskFull { .. }
            | StoreError::NoRoom(_)
            | StoreError::Busy
            | StoreError::TooManyKeys
            | StoreError::TooManyTenantKeys { .. }
            | StoreError::NotOwner
            | StoreError::Closed => Self::Unavailable { message: error.to_string() },
            StoreError::Io(_) | StoreError::Unknown(_) => {
                tracing::error!(%error, "queue store failed");
                Self::Internal
            }
        }
    }
}

impl From<CreateError> for SqsError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Name => bad_queue_name(),
            CreateError::Setting(bad) => Self::invalid(bad.to_string()),
            CreateError::OrderIsFixed | CreateError::NameTaken => Self::invalid(error.to_string()),
            CreateError::TooMany { .. } | CreateError::TooManyOfOwner { .. } => {
                Self::OverLimit { message: error.to_string() }
            }
            CreateError::Store(error) => error.into(),
            CreateError::Open(error) => {
                tracing::error!(%error, "could not open the queue");
                Self::Internal
            }
        }
    }
}

/// Returns the error for an invalid queue name.
pub(crate) fn bad_queue_name() -> SqsError {
    SqsError::invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
}

/// Returns the error for an invalid name of a FIFO queue.
pub(crate) fn bad_fifo_name() -> SqsError {
    SqsError::invalid(
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with \
         .fifo suffix and be 1 to 80 in length",
    )
}

impl From<ApiError> for SqsError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::BodyTooLarge { bytes_max } => Self::BodyTooLarge { bytes_max },
            ApiError::BodyTimeout => Self::BodyTimeout,
            ApiError::RateLimited { .. } | ApiError::BudgetReached(_) => Self::Throttled,
            ApiError::TenantDisabled => SignatureError::Disabled.into(),
            ApiError::Unauthenticated => SignatureError::NoToken.into(),
            ApiError::KeyExpired { at } => SignatureError::KeyExpired { at }.into(),
            ApiError::Draining
            | ApiError::Unready
            | ApiError::QueueFull { .. }
            | ApiError::BodiesFull
            | ApiError::ConnectionsFull
            | ApiError::Unavailable { .. } => Self::Unavailable { message: error.to_string() },
            ApiError::Invalid { message, .. } => Self::Serialization { message },
            ApiError::Framing
            | ApiError::AdminOnly
            | ApiError::ModelForbidden { .. }
            | ApiError::DatasourceForbidden { .. }
            | ApiError::InvalidTicket { .. }
            | ApiError::ForeignOrigin
            | ApiError::UnknownHost { .. }
            | ApiError::Forwarded
            | ApiError::NotJson
            | ApiError::NoRoute
            | ApiError::Method { .. }
            | ApiError::NotFound { .. }
            | ApiError::Conflict { .. }
            | ApiError::NoModel { .. }
            | ApiError::WaitTimeout
            | ApiError::Upstream
            | ApiError::UpstreamTimeout
            | ApiError::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_type_for_json_clients_and_a_code_for_query_clients() {
        let response = SqsError::NoQueue.into_response();
        assert_eq!(response.status(), 400);
        assert_eq!(
            response.headers()["x-amzn-query-error"],
            "AWS.SimpleQueueService.NonExistentQueue;Sender"
        );
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-amz-json-1.0");
    }

    #[test]
    fn an_internal_error_is_not_a_sender_fault() {
        let response = SqsError::Internal.into_response();
        assert_eq!(response.headers()["x-amzn-query-error"], "InternalFailure;Receiver");
    }
}
