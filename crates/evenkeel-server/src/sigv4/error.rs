//! Errors of signatures, with AWS's names and texts for them.

use http::StatusCode;

/// Reason why a signed request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("Request is missing Authentication Token")]
    NoToken,
    /// The signature header is malformed.
    #[error("{message}")]
    Incomplete { message: &'static str },
    #[error("Credential must be scoped to {service} and end with aws4_request")]
    Scope { service: &'static str },
    #[error("The security token included in the request is invalid.")]
    UnknownKey,
    #[error(
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key \
         and signing method. Consult the service documentation for details."
    )]
    Mismatch,
    #[error("Signature was made at {signed}, which is not valid at the server's time {now}")]
    Skewed { signed: String, now: String },
    #[error("UNSIGNED-PAYLOAD needs TLS: without it, others could replace the body. Sign the payload.")]
    Unsigned,
    #[error("this access key's tenant is disabled")]
    Disabled,
    /// The signature is valid, but the API key that the access key belongs to has expired.
    #[error("this access key expired at {at}")]
    KeyExpired { at: String },
}

impl SignatureError {
    /// Returns our own explanation of an error whose text is AWS's.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => {
                Some("sign the request with the credentials that `evenkeel tenant sqs-key NAME` prints")
            }
            Self::UnknownKey => Some("`evenkeel tenant sqs-key NAME` prints a tenant's credentials"),
            _ => None,
        }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::Incomplete { .. } | Self::Scope { .. } | Self::Unsigned => StatusCode::BAD_REQUEST,
            Self::NoToken
            | Self::UnknownKey
            | Self::Mismatch
            | Self::Skewed { .. }
            | Self::Disabled
            | Self::KeyExpired { .. } => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the name that AWS's JSON protocols give the error.
    pub fn exception(&self) -> &'static str {
        match self {
            Self::NoToken => "MissingAuthenticationTokenException",
            Self::Incomplete { .. } | Self::Scope { .. } | Self::Unsigned => "IncompleteSignatureException",
            Self::UnknownKey => "UnrecognizedClientException",
            Self::Mismatch => "InvalidSignatureException",
            Self::Skewed { .. } => "RequestTimeTooSkewed",
            Self::Disabled => "AccessDeniedException",
            Self::KeyExpired { .. } => "ExpiredTokenException",
        }
    }

    /// Returns the code that AWS's query protocol gives the error.
    pub fn query_code(&self) -> &'static str {
        match self {
            Self::NoToken => "MissingAuthenticationToken",
            Self::Incomplete { .. } | Self::Scope { .. } | Self::Unsigned => "IncompleteSignature",
            Self::UnknownKey => "InvalidClientTokenId",
            Self::Mismatch => "SignatureDoesNotMatch",
            Self::Skewed { .. } => "RequestTimeTooSkewed",
            Self::Disabled => "AccessDenied",
            Self::KeyExpired { .. } => "ExpiredToken",
        }
    }
}
