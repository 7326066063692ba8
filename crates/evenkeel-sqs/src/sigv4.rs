//! Verification of AWS Signature Version 4 (SigV4).
//!
//! Guarantees: if there are tenants, a request is accepted only if its signature was made with the access key's secret
//! over its method, path, query, target, host, date and body, and its date is at most 15 minutes from the server's. The
//! body is left out if the client declares it unsigned (`UNSIGNED-PAYLOAD`). Signatures are compared in constant time.

use std::sync::Arc;

use evenkeel_server::tenant::Tenant;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Request};
use ring::digest::{SHA256, digest};
use ring::hmac;
use subtle::ConstantTimeEq;

use crate::access_key::tenant_of;
use crate::api::SqsApi;
use crate::attribute::hex;
use crate::error::SqsError;
use crate::time::UnixSeconds;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "sqs";
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

/// The identity that a request claims; the signature is verified after the body is read.
pub(crate) enum ClaimedIdentity {
    /// Open mode: there are no tenants, and signatures are not checked.
    Open,
    Tenant {
        tenant: Arc<Tenant>,
        signed: SignatureHeader,
    },
}

/// Parsed `Authorization` and `X-Amz-Date` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignatureHeader {
    access_key_id: String,
    /// Date, region, service and terminator.
    scope: [String; 4],
    headers: Vec<String>,
    signature: String,
    date: String,
}

impl SqsApi {
    /// Parses the signature headers and finds the tenant; performs all checks that do not need the body.
    pub(crate) fn parse_signature<B>(&self, request: &Request<B>) -> Result<ClaimedIdentity, SqsError> {
        let tenants = self.auth.tenants();
        if tenants.is_empty() {
            return Ok(ClaimedIdentity::Open);
        }
        let signed = SignatureHeader::read(request.headers())?;
        signed.check_scope(request.headers())?;
        signed.check_date(UnixSeconds::now())?;
        let tenant = tenant_of(&tenants, &signed.access_key_id)?;
        Ok(ClaimedIdentity::Tenant { tenant, signed })
    }

    /// Verifies the signature over the request's head and body.
    pub(crate) fn verify_signature<B>(
        &self,
        claimed: ClaimedIdentity,
        request: &Request<B>,
        body: &[u8],
    ) -> Result<Arc<Tenant>, SqsError> {
        match claimed {
            ClaimedIdentity::Open => self.auth.tenants().all().into_iter().next().ok_or(SqsError::Internal),
            ClaimedIdentity::Tenant { tenant, signed } => {
                signed.check(&self.master.secret(&signed.access_key_id), request, body)?;
                Ok(tenant)
            }
        }
    }
}

impl SignatureHeader {
    /// Parses `Authorization: AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`.
    fn read(headers: &HeaderMap) -> Result<Self, SqsError> {
        let value = headers.get(AUTHORIZATION).ok_or(SqsError::NoToken)?;
        let incomplete = |message| SqsError::IncompleteSignature { message };
        let value = value.to_str().map_err(|_| incomplete("Authorization is not text"))?;
        let fields = value.strip_prefix(ALGORITHM).ok_or(SqsError::NoToken)?;
        let field = |name: &str| {
            let named = fields.split(',').map(str::trim).find_map(|field| field.strip_prefix(name));
            named.and_then(|rest| rest.strip_prefix('='))
        };
        let credential = field("Credential").ok_or(incomplete("Authorization has no Credential"))?;
        let signed = field("SignedHeaders").ok_or(incomplete("Authorization has no SignedHeaders"))?;
        let signature = field("Signature").ok_or(incomplete("Authorization has no Signature"))?;
        let parts: Vec<&str> = credential.split('/').collect();
        let [access_key_id, date, region, service, terminator] = parts[..] else {
            return Err(incomplete("Credential is not KEY/DATE/REGION/sqs/aws4_request"));
        };
        let stamp = headers.get(DATE).and_then(|date| date.to_str().ok());
        let stamp = stamp.ok_or(incomplete("the request has no X-Amz-Date"))?;
        let names: Vec<String> = signed.split(';').map(str::to_owned).collect();
        if names.len() > HEADERS_MAX {
            return Err(incomplete("too many SignedHeaders"));
        }
        Ok(Self {
            access_key_id: access_key_id.to_owned(),
            scope: [date, region, service, terminator].map(str::to_owned),
            headers: names,
            signature: signature.to_owned(),
            date: stamp.to_owned(),
        })
    }

    /// Rejects a signature for another service or day, or one that does not cover the required headers.
    fn check_scope(&self, headers: &HeaderMap) -> Result<(), SqsError> {
        let incomplete = |message| Err(SqsError::IncompleteSignature { message });
        let [date, _, service, terminator] = &self.scope;
        if service != SERVICE || terminator != TERMINATOR {
            return incomplete("Credential must be scoped to sqs and end with aws4_request");
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

    fn check_date(&self, now: UnixSeconds) -> Result<(), SqsError> {
        let message = "X-Amz-Date must have the format 20150830T123600Z";
        let signed = UnixSeconds::parse(&self.date).ok_or(SqsError::IncompleteSignature { message })?;
        if signed.0.abs_diff(now.0) > SKEW_MAX_SECS {
            return Err(SqsError::Skewed { signed: self.date.clone(), now: now.to_string() });
        }
        Ok(())
    }

    fn check<B>(&self, secret: &str, request: &Request<B>, body: &[u8]) -> Result<(), SqsError> {
        let payload = payload_hash(request.headers(), body)?;
        let canonical = canonical_request(request, &self.headers, &payload)?;
        let expected = self.sign(secret, &canonical);
        if expected.as_bytes().ct_eq(self.signature.as_bytes()).into() {
            Ok(())
        } else {
            Err(SqsError::Signature)
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
fn payload_hash(headers: &HeaderMap, body: &[u8]) -> Result<String, SqsError> {
    let actual = || sha256(body);
    match headers.get(CONTENT_HASH).map(|claimed| claimed.to_str().unwrap_or_default()) {
        None => Ok(actual()),
        Some(UNSIGNED) => Ok(UNSIGNED.to_owned()),
        Some(claimed) => Some(actual()).filter(|actual| actual == claimed).ok_or(SqsError::Signature),
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn canonical_request<B>(request: &Request<B>, signed: &[String], payload: &str) -> Result<String, SqsError> {
    let mut out = String::with_capacity(512);
    for line in [request.method().as_str(), &canonical_path(request.uri().path())] {
        out.push_str(line);
        out.push('\n');
    }
    out.push_str(&canonical_query(request.uri().query().unwrap_or_default()));
    out.push('\n');
    for name in signed {
        let value = canonical_header(request, name).ok_or(SqsError::Signature)?;
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
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
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
