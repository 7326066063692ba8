//! Signatures in the query of a presigned `GET` request.

use http::header::AUTHORIZATION;
use http::{Method, Request};

use super::{ALGORITHM, SignatureError, SignatureFields, SignatureHeader, decode};

/// Parameter with the signature, which does not cover itself.
pub(super) const SIGNATURE: &str = "X-Amz-Signature=";
/// AWS's maximum of `X-Amz-Expires`: seven days.
const EXPIRES_MAX_SECS: u64 = 7 * 24 * 3_600;

/// Parses the signature of a presigned request; `None` if the request is not presigned.
pub(super) fn read<B>(request: &Request<B>) -> Result<Option<SignatureHeader>, SignatureError> {
    let query = request.uri().query().unwrap_or_default();
    let is_presigned = query.split('&').any(|pair| pair.starts_with(SIGNATURE));
    if !is_presigned || request.method() != Method::GET || request.headers().contains_key(AUTHORIZATION) {
        return Ok(None);
    }
    let incomplete = |message| SignatureError::Incomplete { message };
    let field = |name: &str, message| {
        let mut named = query.split('&').filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let value = named.next().and_then(|value| String::from_utf8(decode(value)).ok());
        // A repeated parameter could be read differently here and by the API.
        value.filter(|_| named.next().is_none()).ok_or(incomplete(message))
    };
    if field("X-Amz-Algorithm", "the query has no X-Amz-Algorithm")? != ALGORITHM {
        return Err(incomplete("X-Amz-Algorithm must be AWS4-HMAC-SHA256"));
    }
    let expires = field("X-Amz-Expires", "the query has no X-Amz-Expires")?;
    let valid_secs = expires.parse().ok().filter(|secs| (1..=EXPIRES_MAX_SECS).contains(secs));
    let signed = SignatureHeader::new(&SignatureFields {
        credential: &field("X-Amz-Credential", "the query has no X-Amz-Credential")?,
        signed_headers: &field("X-Amz-SignedHeaders", "the query has no X-Amz-SignedHeaders")?,
        signature: &field("X-Amz-Signature", "the query needs one X-Amz-Signature")?,
        date: &field("X-Amz-Date", "the query has no X-Amz-Date")?,
        valid_secs: valid_secs.ok_or(incomplete("X-Amz-Expires must be 1 to 604800 seconds"))?,
    })?;
    Ok(Some(signed))
}
