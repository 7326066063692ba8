//! Every way the door says no, as AWS clients read it: a type in the body, a code in a header.
//!
//! Bound: a body holds only what is written here and what the client itself sent.

use core::fmt;

use evenkeel_queue::Rejection;
use evenkeel_queue::queues::CreateError;
use evenkeel_queue::store::StoreError;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::limit::{BATCH_BYTES_MAX, BATCH_MAX};

/// The media type of every answer.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");
/// Tells clients that were made for the older protocol what the error was called there.
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
/// Types of the service itself.
const SQS: &str = "com.amazonaws.sqs";
/// Types that all services share.
const CORAL: &str = "com.amazon.coral.service";

/// A request that is not done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SqsError {
    /// The body is not what the operation takes.
    Serialization {
        message: String,
    },
    /// No operation has this name.
    UnknownOperation,
    /// The operation, or what it was asked for, is not to be had here.
    Unsupported {
        message: String,
    },
    /// A parameter is missing.
    Missing {
        name: &'static str,
    },
    /// A parameter cannot be.
    Invalid {
        message: String,
    },
    NoQueue,
    QueueExists {
        attribute: &'static str,
    },
    UnknownAttribute {
        name: String,
    },
    AttributeValue {
        name: &'static str,
        why: String,
    },
    BothEncryptions,
    EmptyBatch,
    TooManyEntries {
        count: usize,
    },
    EntryIdsNotDistinct {
        id: String,
    },
    BadEntryId,
    BatchTooLong {
        bytes: usize,
    },
    /// Characters that no message may hold.
    Contents,
    ReceiptInvalid {
        receipt: String,
    },
    NotInFlight,
    PurgeInProgress {
        queue: String,
    },
    /// What a task, or a source or destination of one, names is not there.
    NoResource {
        message: &'static str,
    },
    /// A limit of the queue or of the account is reached.
    OverLimit {
        message: String,
    },
    /// The tenant's minute is used up.
    Throttled,
    /// No signature.
    NoToken,
    /// A signature that cannot be read.
    IncompleteSignature {
        message: &'static str,
    },
    /// Nobody has this access key.
    UnknownKey,
    /// The signature is not the access key's.
    Signature,
    /// The signature is too old, or of the future.
    Skewed {
        signed: String,
        now: String,
    },
    /// The tenant is switched off.
    Disabled,
    BodyTooLarge {
        bytes_max: u64,
    },
    BodyTimeout,
    /// Later it may work.
    Unavailable {
        message: String,
    },
    /// A defect here, or a disk that failed.
    Internal,
}

/// What a fault looks like from outside.
struct ErrorParts {
    status: StatusCode,
    space: &'static str,
    name: &'static str,
    /// What the older protocol calls it.
    code: &'static str,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "__type")]
    kind: &'a str,
    message: &'a str,
}

impl SqsError {
    /// Says that a parameter cannot be.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// Says that a parameter's value cannot be, as AWS words it.
    pub(crate) fn value(name: &str, value: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::invalid(format!("Value {value} for parameter {name} is invalid. Reason: {reason}"))
    }

    /// What the older protocol calls it; entries of batches and metrics do so, too.
    pub(crate) fn code(&self) -> &'static str {
        self.look().code
    }

    /// Whether whoever sent it can do something about it.
    pub(crate) fn is_sender_fault(&self) -> bool {
        !self.look().status.is_server_error()
    }

    /// Writes it as a response.
    pub(crate) fn into_response(self) -> Response {
        let ErrorParts { status, space, name, code } = self.look();
        let kind = format!("{space}#{name}");
        let message = self.to_string();
        let told = ErrorBody { kind: &kind, message: &message };
        let mut response = Response::new(body::full(serde_json::to_vec(&told).unwrap_or_default()));
        *response.status_mut() = status;
        let side = if self.is_sender_fault() { "Sender" } else { "Receiver" };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        if let Ok(value) = HeaderValue::try_from(format!("{code};{side}")) {
            headers.insert(QUERY_ERROR, value);
        }
        response
    }

    fn look(&self) -> ErrorParts {
        let (status, space, name, code) = match self {
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
            Self::NoToken => {
                (403, CORAL, "MissingAuthenticationTokenException", "MissingAuthenticationToken")
            }
            Self::IncompleteSignature { .. } => {
                (400, CORAL, "IncompleteSignatureException", "IncompleteSignature")
            }
            Self::UnknownKey => (403, CORAL, "UnrecognizedClientException", "InvalidClientTokenId"),
            Self::Signature => (403, CORAL, "InvalidSignatureException", "SignatureDoesNotMatch"),
            Self::Skewed { .. } => (403, CORAL, "RequestTimeTooSkewed", "RequestTimeTooSkewed"),
            Self::Disabled => (403, CORAL, "AccessDeniedException", "AccessDenied"),
            Self::BodyTooLarge { .. } => {
                (413, CORAL, "RequestEntityTooLargeException", "RequestEntityTooLarge")
            }
            Self::BodyTimeout => (408, CORAL, "RequestTimeoutException", "RequestTimeout"),
            Self::Unavailable { .. } => (503, CORAL, "ServiceUnavailableException", "ServiceUnavailable"),
            Self::Internal => (500, CORAL, "InternalFailure", "InternalFailure"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        ErrorParts { status, space, name, code }
    }
}

impl fmt::Display for SqsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serialization { message }
            | Self::Unsupported { message }
            | Self::Invalid { message }
            | Self::OverLimit { message }
            | Self::Unavailable { message } => f.write_str(message),
            Self::IncompleteSignature { message } | Self::NoResource { message } => f.write_str(message),
            Self::UnknownOperation => f.write_str("X-Amz-Target names no operation of AmazonSQS"),
            Self::Missing { name } => write!(f, "The request must contain the parameter {name}."),
            Self::NoQueue => f.write_str(
                "The specified queue does not exist. ListQueues names those that do, CreateQueue makes one.",
            ),
            Self::QueueExists { attribute } => write!(
                f,
                "A queue already exists with the same name and a different value for attribute {attribute}"
            ),
            Self::UnknownAttribute { name } => write!(f, "Unknown Attribute {name}."),
            Self::AttributeValue { name, why } => {
                write!(f, "Invalid value for the parameter {name}. Reason: {why}")
            }
            Self::BothEncryptions => f.write_str("Either SqsManagedSseEnabled or KmsMasterKeyId, not both."),
            Self::EmptyBatch => f.write_str("There should be at least one entry in the request."),
            Self::TooManyEntries { count } => {
                write!(f, "Maximum number of entries per request are {BATCH_MAX}. You have sent {count}.")
            }
            Self::EntryIdsNotDistinct { id } => write!(f, "Id {id} repeated."),
            Self::BadEntryId => f.write_str(
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                 It can be at most 80 letters long.",
            ),
            Self::BatchTooLong { bytes } => write!(
                f,
                "Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {bytes} bytes."
            ),
            Self::Contents => f.write_str(
                "Invalid characters found. Valid unicode characters are \
                 #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
            ),
            Self::ReceiptInvalid { receipt } => {
                write!(f, "The input receipt handle \"{receipt}\" is not a valid receipt handle.")
            }
            Self::NotInFlight => f.write_str("The specified message isn't in flight."),
            Self::PurgeInProgress { queue } => {
                write!(f, "Only one PurgeQueue operation on {queue} is allowed every 60 seconds.")
            }
            Self::Throttled => f.write_str("requests per minute are used up"),
            Self::NoToken => f.write_str(
                "Request is missing Authentication Token. Sign it with what `evenkeel tenant sqs-key NAME` tells.",
            ),
            Self::UnknownKey => f.write_str(
                "The security token included in the request is invalid. `evenkeel tenant sqs-key NAME` tells what a \
                 tenant signs with.",
            ),
            Self::Signature => f.write_str(
                "The request signature we calculated does not match the signature you provided. \
                 Check your secret access key and signing method.",
            ),
            Self::Skewed { signed, now } => {
                write!(f, "Signature is of {signed}, more than 15 minutes from {now}")
            }
            Self::Disabled => f.write_str("this access key's tenant is disabled"),
            Self::BodyTooLarge { bytes_max } => write!(f, "the body is larger than {bytes_max} bytes"),
            Self::BodyTimeout => f.write_str("the body did not arrive in time"),
            Self::Internal => f.write_str("internal error"),
        }
    }
}

impl From<Rejection> for SqsError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::QueueFull { .. }
            | Rejection::TooManyInFlight { .. }
            | Rejection::TooManyKeys { .. } => Self::OverLimit { message: rejection.to_string() },
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
            Rejection::Busy | Rejection::Stopping | Rejection::Interrupted => {
                Self::Unavailable { message: rejection.to_string() }
            }
            Rejection::QueueDeleted => Self::NoQueue,
        }
    }
}

/// Says that a message is larger than its queue takes.
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
            CreateError::OrderIsFixed => Self::invalid(error.to_string()),
            CreateError::TooMany { .. } => Self::OverLimit { message: error.to_string() },
            CreateError::Store(error) => error.into(),
            CreateError::Open(error) => {
                tracing::error!(%error, "queue was not opened");
                Self::Internal
            }
        }
    }
}

/// Says what a queue may be called.
pub(crate) fn bad_queue_name() -> SqsError {
    SqsError::invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
}

/// Says that a FIFO queue cannot be called so.
pub(crate) fn bad_fifo_name() -> SqsError {
    SqsError::invalid(
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with \
         .fifo suffix and be 1 to 80 in length",
    )
}

impl From<ApiError> for SqsError {
    fn from(refusal: ApiError) -> Self {
        match refusal {
            ApiError::BodyTooLarge { bytes_max } => Self::BodyTooLarge { bytes_max },
            ApiError::BodyTimeout => Self::BodyTimeout,
            ApiError::RateLimited { .. } => Self::Throttled,
            ApiError::TenantDisabled => Self::Disabled,
            ApiError::Unauthenticated => Self::NoToken,
            ApiError::Draining
            | ApiError::Unready
            | ApiError::QueueFull { .. }
            | ApiError::Unavailable { .. } => Self::Unavailable { message: refusal.to_string() },
            ApiError::Invalid { message, .. } => Self::Serialization { message },
            ApiError::Framing
            | ApiError::AdminOnly
            | ApiError::ModelForbidden { .. }
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
    fn an_error_has_a_type_for_new_clients_and_a_code_for_old_ones() {
        let response = SqsError::NoQueue.into_response();
        assert_eq!(response.status(), 400);
        assert_eq!(
            response.headers()["x-amzn-query-error"],
            "AWS.SimpleQueueService.NonExistentQueue;Sender"
        );
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-amz-json-1.0");
    }

    #[test]
    fn what_is_our_fault_is_not_called_the_senders() {
        let response = SqsError::Internal.into_response();
        assert_eq!(response.headers()["x-amzn-query-error"], "InternalFailure;Receiver");
    }
}
