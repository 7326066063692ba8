//! Verification of AWS Signature Version 4 (SigV4).
//!
//! Guarantees: if there are tenants, a request is accepted only if its signature was made with the access key's secret
//! over its method, path, query, target, host, date and body, and its date is at most 15 minutes from the server's. The
//! body is left out if the client declares it unsigned (`UNSIGNED-PAYLOAD`), which needs TLS. A presigned `GET` request, which
//! has its signature in the query, is accepted as long as its `X-Amz-Expires`, at most seven days. Signatures are compared
//! in constant time.

mod error;
mod presigned;

use core::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Request};
use ring::digest::{SHA256, digest};
use ring::hmac;
use subtle::ConstantTimeEq;

pub use self::error::SignatureError;
use crate::access_key::{MasterKey, tenant_of};
use crate::api_error::ApiError;
use crate::hex::hex;
use crate::received_body::ReceivedBody;
use crate::route::{Encryption, ServerRequest};
use crate::tenant::{Authenticator, Caller, Tenant};
use crate::unix_seconds::UnixSeconds;

/// Algorithm of the signatures, with which the header `Authorization` of a signed request begins.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";
const DATE: &str = "x-amz-date";
const CONTENT_HASH: &str = "x-amz-content-sha256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Headers that a signature must cover if the request has them; otherwise an attacker could replace them.
const COVERED: [&str; 4] = ["host", DATE, "x-amz-target", CONTENT_HASH];
/// Maximum clock skew between client and server.
const SKEW_MAX_SECS: u64 = 15 * 60;
/// Maximum number of signed headers.
const HEADERS_MAX: usize = 100;

/// Authenticates the signed requests of one AWS service.
pub struct SignatureVerifier {
    auth: Arc<Authenticator>,
    master: MasterKey,
    /// Service in the credential scope; any region is accepted.
    service: &'static str,
    /// Maximum size of a body; the listener's if `None`.
    body_bytes_max: Option<u64>,
}

/// A request whose signature was verified.
#[derive(Debug)]
pub struct SignedRequest {
    pub tenant: Arc<Tenant>,
    pub body: ReceivedBody,
}

/// The identity that a request claims; the signature is verified after the body is read.
enum ClaimedIdentity {
    /// Open mode: there are no tenants, and signatures are not checked.
    Open(Arc<Tenant>),
    Tenant {
        tenant: Arc<Tenant>,
        signed: SignatureHeader,
    },
}

/// Signature of a request, parsed from the headers `Authorization` and `X-Amz-Date`, or from the query.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SignatureHeader {
    access_key_id: String,
    /// Date, region, service and terminator.
    scope: [String; 4],
    headers: Vec<String>,
    signature: String,
    date: String,
    /// Seconds after the date for which the signature is valid.
    valid_secs: u64,
}

/// The texts of a signature, as the request has them.
struct SignatureFields<'a> {
    credential: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
    date: &'a str,
    valid_secs: u64,
}

impl SignatureVerifier {
    /// Creates a verifier; `auth` knows the tenants, `master` derives their secrets.
    pub fn new(auth: Arc<Authenticator>, master: MasterKey, service: &'static str) -> Self {
        Self { auth, master, service, body_bytes_max: None }
    }

    /// Sets the maximum size of a body, which is read before the signature is verified.
    pub fn with_body_max(self, bytes_max: u64) -> Self {
        Self { body_bytes_max: Some(bytes_max), ..self }
    }

    /// Returns the key that clients' secrets are derived from.
    pub fn master_key(&self) -> &MasterKey {
        &self.master
    }

    /// Finds the tenant of a request, reads the body and verifies the signature over both.
    ///
    /// Until then, the body counts against the peer's address.
    pub async fn authenticate<E>(&self, call: &mut ServerRequest) -> Result<SignedRequest, E>
    where
        E: From<SignatureError> + From<ApiError>,
    {
        let claimed = self.parse(&call.request, call.encryption)?;
        if let Some(bytes_max) = self.body_bytes_max {
            call.limit_body(bytes_max);
        }
        if let ClaimedIdentity::Open(tenant) = &claimed {
            call.set_tenant(tenant);
        }
        let mut body = call.read_body().await?;
        let tenant = self.verify(claimed, &call.request, &body.bytes)?;
        if let Caller::Public = call.caller {
            body.permit.transfer(&tenant).map_err(ApiError::from)?;
            call.set_tenant(&tenant);
        }
        Ok(SignedRequest { tenant, body })
    }

    /// Parses the signature headers and finds the tenant; performs all checks that do not need the body.
    fn parse<B>(
        &self,
        request: &Request<B>,
        encryption: Encryption,
    ) -> Result<ClaimedIdentity, SignatureError> {
        let tenants = self.auth.tenants();
        if tenants.is_empty() {
            return Ok(ClaimedIdentity::Open(tenants.open()));
        }
        if encryption == Encryption::None
            && request.headers().get(CONTENT_HASH).is_some_and(|hash| hash == UNSIGNED)
        {
            return Err(SignatureError::Unsigned);
        }
        let signed = match presigned::read(request)? {
            Some(presigned) => presigned,
            None => SignatureHeader::read(request.headers())?,
        };
        signed.check_scope(self.service, request.headers())?;
        signed.check_date(UnixSeconds::now())?;
        let tenant = tenant_of(&tenants, &signed.access_key_id)?;
        Ok(ClaimedIdentity::Tenant { tenant, signed })
    }

    /// Verifies the signature over the request's head and body.
    fn verify<B>(
        &self,
        claimed: ClaimedIdentity,
        request: &Request<B>,
        body: &[u8],
    ) -> Result<Arc<Tenant>, SignatureError> {
        match claimed {
            ClaimedIdentity::Open(tenant) => Ok(tenant),
            ClaimedIdentity::Tenant { tenant, signed } => {
                signed.check(&self.master.secret(&signed.access_key_id), request, body)?;
                tenant
                    .use_key(UnixSeconds::now())
                    .map_err(|expired| SignatureError::KeyExpired { at: expired.at.to_rfc3339() })?;
                Ok(tenant)
            }
        }
    }
}

impl fmt::Debug for SignatureVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignatureVerifier").field("service", &self.service).finish_non_exhaustive()
    }
}

impl SignatureHeader {
    /// Parses `Authorization: AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`.
    fn read(headers: &HeaderMap) -> Result<Self, SignatureError> {
        let value = headers.get(AUTHORIZATION).ok_or(SignatureError::NoToken)?;
        let incomplete = |message| SignatureError::Incomplete { message };
        let value = value.to_str().map_err(|_| incomplete("Authorization is not text"))?;
        let fields = value.strip_prefix(ALGORITHM).ok_or(SignatureError::NoToken)?;
        let field = |name: &str| {
            let named = fields.split(',').map(str::trim).find_map(|field| field.strip_prefix(name));
            named.and_then(|rest| rest.strip_prefix('='))
        };
        let credential = field("Credential").ok_or(incomplete("Authorization has no Credential"))?;
        let signed_headers =
            field("SignedHeaders").ok_or(incomplete("Authorization has no SignedHeaders"))?;
        let signature = field("Signature").ok_or(incomplete("Authorization has no Signature"))?;
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let date = date.ok_or(incomplete("the request has no X-Amz-Date"))?;
        Self::new(&SignatureFields { credential, signed_headers, signature, date, valid_secs: SKEW_MAX_SECS })
    }

    fn new(fields: &SignatureFields<'_>) -> Result<Self, SignatureError> {
        let incomplete = |message| SignatureError::Incomplete { message };
        let parts: Vec<&str> = fields.credential.split('/').collect();
        let [access_key_id, date, region, service, terminator] = parts[..] else {
            return Err(incomplete("Credential is not KEY/DATE/REGION/SERVICE/aws4_request"));
        };
        let names: Vec<String> = fields.signed_headers.split(';').map(str::to_owned).collect();
        if names.len() > HEADERS_MAX {
            return Err(incomplete("too many SignedHeaders"));
        }
        Ok(Self {
            access_key_id: access_key_id.to_owned(),
            scope: [date, region, service, terminator].map(str::to_owned),
            headers: names,
            signature: fields.signature.to_owned(),
            date: fields.date.to_owned(),
            valid_secs: fields.valid_secs,
        })
    }

    /// Rejects a signature for another service or day, or one that does not cover the required headers.
    fn check_scope(&self, service: &'static str, headers: &HeaderMap) -> Result<(), SignatureError> {
        let incomplete = |message| Err(SignatureError::Incomplete { message });
        let [date, _, signed_service, terminator] = &self.scope;
        if signed_service != service || terminator != TERMINATOR {
            return Err(SignatureError::Scope { service });
        }
        if !self.date.starts_with(date.as_str()) {
            return incomplete("the date in Credential differs from X-Amz-Date");
        }
        let is_present = |name: &str| name == HOST.as_str() || headers.contains_key(name);
        let is_covered = |name: &str| self.headers.iter().any(|signed| signed == name);
        if COVERED.into_iter().any(|name| is_present(name) && !is_covered(name)) {
            return incomplete("SignedHeaders must contain host and the x-amz- headers of the request");
        }
        Ok(())
    }

    fn check_date(&self, now: UnixSeconds) -> Result<(), SignatureError> {
        let message = "X-Amz-Date must have the format 20150830T123600Z";
        let signed = UnixSeconds::parse(&self.date).ok_or(SignatureError::Incomplete { message })?;
        let is_early = now.0 + SKEW_MAX_SECS < signed.0;
        let is_late = signed.0 + self.valid_secs < now.0;
        if is_early || is_late {
            return Err(SignatureError::Skewed { signed: self.date.clone(), now: now.to_string() });
        }
        Ok(())
    }

    fn check<B>(&self, secret: &str, request: &Request<B>, body: &[u8]) -> Result<(), SignatureError> {
        let payload = payload_hash(request.headers(), body)?;
        let canonical = canonical_request(request, &self.headers, &payload)?;
        let expected = self.sign(secret, &canonical);
        if expected.as_bytes().ct_eq(self.signature.as_bytes()).into() {
            Ok(())
        } else {
            Err(SignatureError::Mismatch)
        }
    }

    fn sign(&self, secret: &str, canonical: &str) -> String {
        let [date, region, service, terminator] = &self.scope;
        let scope = self.scope.join("/");
        let to_sign = format!("{ALGORITHM}\n{}\n{scope}\n{}", self.date, sha256(canonical.as_bytes()));
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [date, region, service, terminator, &to_sign] {
            let signer = hmac::Key::new(hmac::HMAC_SHA256, &key);
            key = hmac::sign(&signer, part.as_bytes()).as_ref().to_vec();
        }
        hex(&key)
    }
}

/// Returns the payload hash of the canonical request; fails if the request claims the hash of another body.
fn payload_hash(headers: &HeaderMap, body: &[u8]) -> Result<String, SignatureError> {
    let actual = || sha256(body);
    match headers.get(CONTENT_HASH).map(|claimed| claimed.to_str().unwrap_or_default()) {
        None => Ok(actual()),
        Some(UNSIGNED) => Ok(UNSIGNED.to_owned()),
        Some(claimed) => Some(actual()).filter(|actual| actual == claimed).ok_or(SignatureError::Mismatch),
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn canonical_request<B>(
    request: &Request<B>,
    signed: &[String],
    payload: &str,
) -> Result<String, SignatureError> {
    let mut out = String::with_capacity(512);
    for line in [request.method().as_str(), &canonical_path(request.uri().path())] {
        out.push_str(line);
        out.push('\n');
    }
    out.push_str(&canonical_query(request.uri().query().unwrap_or_default()));
    out.push('\n');
    for name in signed {
        let value = canonical_header(request, name).ok_or(SignatureError::Mismatch)?;
        out.push_str(name);
        out.push(':');
        out.push_str(&value);
        out.push('\n');
    }
    out.push('\n');
    out.push_str(&signed.join(";"));
    out.push('\n');
    out.push_str(payload);
    Ok(out)
}

/// Removes dot segments and double slashes, then percent-encodes the path again, as SigV4 requires.
fn canonical_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut out: String = parts.iter().flat_map(|part| ["/".to_owned(), encode(part.as_bytes())]).collect();
    let is_directory = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    if out.is_empty() || is_directory {
        out.push('/');
    }
    out
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with(presigned::SIGNATURE))
        .map(|pair| {
            // A plus sign means a space, as in forms: otherwise it could replace a signed `%2B`, which means a plus sign.
            let pair = pair.replace('+', " ");
            let (name, value) = pair.split_once('=').unwrap_or((&pair, ""));
            (encode(&decode(name)), encode(&decode(value)))
        })
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// Joins a header's values; surrounding spaces are trimmed and runs of spaces become one.
fn canonical_header<B>(request: &Request<B>, name: &str) -> Option<String> {
    let mut values = Vec::new();
    for value in request.headers().get_all(name) {
        let words: Vec<&str> = value.to_str().ok()?.split(' ').filter(|word| !word.is_empty()).collect();
        values.push(words.join(" "));
    }
    if values.is_empty() && name == HOST.as_str() {
        // HTTP/2 sends the host as `:authority`.
        return request.uri().authority().map(|authority| authority.as_str().to_owned());
    }
    (!values.is_empty()).then(|| values.join(","))
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[byte]).to_ascii_uppercase());
        }
    }
    out
}

fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = bytes.get(index + 1..index + 3).filter(|_| bytes[index] == b'%');
        let byte = escaped.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        out.push(byte.unwrap_or(bytes[index]));
        index += if byte.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests;
