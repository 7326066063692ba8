//! Errors with AWS's codes and texts, which clients match on; our own explanation is a hint in a header.
//!
//! Rejections that AWS has no error for, such as a full disk, have our own text under the code that AWS would use.
//!
//! Guarantees: an I/O error of the store is logged, and the client gets `InternalFailure` without details.

use core::fmt;

use evenkeel_queue::Rejection;
use evenkeel_queue::queues::CreateError;
use evenkeel_queue::store::StoreError;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use evenkeel_server::route::FailedRequest;
use evenkeel_server::sigv4::SignatureError;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::limit::{BATCH_BYTES_MAX, BATCH_MAX};
use crate::protocol::Protocol;
use crate::reason;
use crate::xml::{self, XmlError};

/// Header with the error's code in the query protocol, which older clients match on.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const HINT: HeaderName = HeaderName::from_static("x-evenkeel-hint");
/// The query protocol's text of [`SqsError::NoQueue`].
const NO_QUEUE_IN_XML: &str = "The specified queue does not exist for this wsdl version.";
/// The query protocol's whole body of [`SqsError::UnknownOperation`].
const NO_OPERATION_IN_XML: &str = "<UnknownOperationException/>";
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
    /// In the query protocol, the error of a `GET` request without an operation.
    #[error("X-Amz-Target is missing or is not an operation of AmazonSQS")]
    UnknownOperation,
    /// The query protocol's error of a form without an operation.
    #[error("The request must contain the parameter Action.")]
    NoAction,
    #[error("The action {action} is not valid for this endpoint.")]
    UnknownAction { action: String },
    #[error("The requested version ( {version} ) of service AmazonSQS does not exist")]
    NoVersion { version: String },
    #[error(
        "a GET request that changes something needs a signature in the header Authorization; sign it, or send it by POST"
    )]
    UnsignedGet,
    /// The operation, or one of its parameters, is not supported.
    #[error("{message}")]
    Unsupported { message: &'static str },
    #[error("The request must contain the parameter {name}.")]
    Missing { name: &'static str },
    /// A parameter is invalid.
    #[error("{message}")]
    Invalid { message: String },
    #[error("One or more parameters are invalid. Reason: Message must be shorter than {bytes_max} bytes.")]
    MessageTooLarge { bytes_max: u64 },
    #[error(
        "Value {id} for parameter MessageDeduplicationId is invalid. Reason: {}",
        reason::DEDUP_ON_STANDARD_QUEUE
    )]
    DedupOnStandardQueue { id: String },
    #[error("The specified queue does not exist.")]
    NoQueue,
    #[error("A queue already exists with the same name and a different value for attribute {attribute}")]
    QueueExists { attribute: &'static str },
    #[error("Unknown Attribute {name}.")]
    UnknownAttribute { name: String },
    #[error("You can specify the {name} only when FifoQueue is set to true.")]
    FifoAttribute { name: &'static str },
    /// AWS gives a reason, with a space before it, for a few attributes only; the hint is ours.
    #[error("Invalid value for the parameter {name}.{reason}")]
    AttributeValue { name: &'static str, reason: &'static str, hint: String },
    #[error(
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
    )]
    BothEncryptions,
    #[error("There should be at least one {entry} in the request.")]
    EmptyBatch { entry: &'static str },
    #[error("The request must contain the parameter {entry}.{number}.{name}.")]
    MissingInEntry { entry: &'static str, number: usize, name: &'static str },
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
    #[error("{}", reason::CHARACTERS)]
    Contents,
    #[error("The input receipt handle \"{receipt}\" is not a valid receipt handle.")]
    ReceiptInvalid { receipt: String },
    #[error("Only one PurgeQueue operation on {queue} is allowed every 60 seconds.")]
    PurgeInProgress { queue: String },
    /// A move task, or its source or destination, does not exist.
    #[error("{message}")]
    NoResource { message: &'static str },
    /// A limit of the queue or of the account is reached.
    #[error("{message}")]
    OverLimit { message: String },
    #[error(
        "Too many messages have been received without being deleted. \
         Please delete your received messages or let them timeout before receiving more."
    )]
    TooManyInFlight { hint: String },
    #[error("rate limit reached: requests per minute")]
    Throttled,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: u64 },
    #[error("the body did not arrive in time")]
    BodyTimeout,
    /// The server refuses every request of this kind.
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
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

    /// Returns our own explanation of an error whose text is AWS's.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::NoQueue => Some("ListQueues lists the existing queues, CreateQueue creates one"),
            Self::AttributeValue { hint, .. } | Self::TooManyInFlight { hint } => Some(hint),
            Self::Signature(error) => error.hint(),
            _ => None,
        }
    }

    /// Reports whether the client caused the error.
    pub(crate) fn is_sender_fault(&self) -> bool {
        !self.parts().status.is_server_error()
    }

    /// Returns the error for an entry of a batch, for which AWS words some errors differently.
    pub(crate) fn in_entry(self, entry: &'static str, number: usize) -> Self {
        match self {
            Self::Missing { name } => Self::MissingInEntry { entry, number, name },
            Self::MessageTooLarge { bytes_max } => Self::invalid(format!(
                "One or more parameters cannot be validated. Reason: Message must be shorter than {bytes_max} bytes."
            )),
            Self::DedupOnStandardQueue { .. } => Self::invalid(reason::DEDUP_ON_STANDARD_QUEUE_IN_BATCH),
            other => other,
        }
    }

    /// Converts the error into a response.
    pub(crate) fn to_response(&self, protocol: Protocol, request_id: &str) -> Response {
        let ErrorParts { mut status, namespace, name, code } = self.parts();
        let cause = if self.is_sender_fault() { "Sender" } else { "Receiver" };
        let message = match (self, protocol) {
            (Self::NoQueue, Protocol::Query) => NO_QUEUE_IN_XML.to_owned(),
            _ => self.to_string(),
        };
        let body = match protocol {
            Protocol::Json => {
                let kind = format!("{namespace}#{name}");
                let json = ErrorBody { kind: &kind, message: &message };
                serde_json::to_vec(&json).unwrap_or_default()
            }
            Protocol::Query if *self == Self::UnknownOperation => {
                status = StatusCode::NOT_FOUND;
                NO_OPERATION_IN_XML.into()
            }
            Protocol::Query => {
                let error = XmlError { cause, code, message: &message };
                xml::error(&error, request_id).into_bytes()
            }
        };
        let mut response = Response::new(body::full(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, protocol.content_type());
        if protocol == Protocol::Json
            && let Ok(value) = HeaderValue::try_from(format!("{code};{cause}"))
        {
            headers.insert(QUERY_ERROR, value);
        }
        if let Some(hint) = self.hint().and_then(|hint| HeaderValue::from_str(hint).ok()) {
            headers.insert(HINT, hint);
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
            Self::NoAction => (400, CORAL, "MissingActionException", "MissingAction"),
            Self::UnknownAction { .. } => (400, CORAL, "InvalidActionException", "InvalidAction"),
            Self::NoVersion { .. } => (400, CORAL, "NoSuchVersionException", "NoSuchVersion"),
            Self::UnsignedGet => (403, CORAL, "AccessDeniedException", "AccessDenied"),
            Self::Unsupported { .. } => {
                (400, SQS, "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation")
            }
            Self::Missing { .. } | Self::MissingInEntry { .. } => {
                (400, CORAL, "MissingRequiredParameterException", "MissingParameter")
            }
            Self::Invalid { .. } | Self::MessageTooLarge { .. } | Self::DedupOnStandardQueue { .. } => {
                (400, CORAL, "InvalidParameterValueException", "InvalidParameterValue")
            }
            Self::NoQueue => (400, SQS, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
            Self::QueueExists { .. } => (400, SQS, "QueueNameExists", "QueueAlreadyExists"),
            Self::UnknownAttribute { .. } | Self::FifoAttribute { .. } | Self::BothEncryptions => {
                (400, SQS, "InvalidAttributeName", "InvalidAttributeName")
            }
            Self::AttributeValue { .. } => (400, SQS, "InvalidAttributeValue", "InvalidAttributeValue"),
            Self::EmptyBatch { .. } => {
                (400, SQS, "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest")
            }
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
            Self::PurgeInProgress { .. } => {
                (403, SQS, "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress")
            }
            Self::NoResource { .. } => (404, SQS, "ResourceNotFoundException", "ResourceNotFoundException"),
            Self::OverLimit { .. } | Self::TooManyInFlight { .. } => (403, SQS, "OverLimit", "OverLimit"),
            Self::Throttled => (403, SQS, "RequestThrottled", "RequestThrottled"),
            Self::Signature(error) => (error.status().as_u16(), CORAL, error.exception(), error.query_code()),
            Self::BodyTooLarge { .. } => {
                (413, CORAL, "RequestEntityTooLargeException", "RequestEntityTooLarge")
            }
            Self::Refused { status, .. } => (status.as_u16(), CORAL, "AccessDeniedException", "AccessDenied"),
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
            Rejection::TooManyInFlight { .. } => Self::TooManyInFlight { hint: rejection.to_string() },
            Rejection::QueueFull { .. }
            | Rejection::TooManyKeys { .. }
            | Rejection::TooManyTenantKeys { .. } => Self::OverLimit { message: rejection.to_string() },
            Rejection::BadKey | Rejection::DelayOnFifo | Rejection::BadTtl { .. } => {
                Self::invalid(rejection.to_string())
            }
            Rejection::TooLarge { max } => Self::MessageTooLarge { bytes_max: max },
            Rejection::ForgedReceipt => Self::ReceiptInvalid { receipt: String::new() },
            Rejection::MessageGone | Rejection::StaleReceipt | Rejection::NotInFlight => Self::invalid(
                "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
            ),
            Rejection::Store(error) => error.into(),
            Rejection::Busy | Rejection::NoAnswer | Rejection::Stopping | Rejection::Interrupted => {
                Self::Unavailable { message: rejection.to_string() }
            }
            Rejection::QueueDeleted => Self::NoQueue,
        }
    }
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
            CreateError::Name => Self::invalid(reason::QUEUE_NAME),
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
            ApiError::Framing => Self::Serialization { message: error.to_string() },
            ApiError::ForeignOrigin
            | ApiError::UnknownHost { .. }
            | ApiError::Forwarded
            | ApiError::Method { .. } => Self::Refused { status: error.status(), message: error.to_string() },
            ApiError::AdminOnly
            | ApiError::ModelForbidden { .. }
            | ApiError::DatasourceForbidden { .. }
            | ApiError::InvalidTicket { .. }
            | ApiError::NotJson
            | ApiError::NoRoute
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

/// Formats errors that the server raises before the handler of a `POST` request runs.
pub(crate) fn post_error(error: ApiError, request: &FailedRequest) -> Response {
    server_error(error, if request.is_form { Protocol::Query } else { Protocol::Json }, request)
}

/// Formats errors that the server raises before the handler of a `GET` request runs.
pub(crate) fn get_error(error: ApiError, request: &FailedRequest) -> Response {
    server_error(error, Protocol::Query, request)
}

fn server_error(error: ApiError, protocol: Protocol, request: &FailedRequest) -> Response {
    let id = request.id.to_str().unwrap_or_default();
    let mut response = SqsError::from(error.clone()).to_response(protocol, id);
    let headers = response.headers_mut();
    // Such as `Allow` and `Retry-After`.
    for (name, value) in error.into_response().headers() {
        headers.entry(name).or_insert_with(|| value.clone());
    }
    headers.insert(REQUEST_ID, request.id.clone());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_type_for_json_clients_and_a_code_for_query_clients() {
        let response = SqsError::NoQueue.to_response(Protocol::Json, "req-1");
        assert_eq!(response.status(), 400);
        assert_eq!(
            response.headers()["x-amzn-query-error"],
            "AWS.SimpleQueueService.NonExistentQueue;Sender"
        );
        assert!(response.headers()["x-evenkeel-hint"].to_str().unwrap().starts_with("ListQueues"));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-amz-json-1.0");
    }

    #[test]
    fn an_internal_error_is_not_a_sender_fault() {
        let response = SqsError::Internal.to_response(Protocol::Json, "req-1");
        assert_eq!(response.headers()["x-amzn-query-error"], "InternalFailure;Receiver");
    }
}
