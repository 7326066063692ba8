//! AWS Signature Version 4, as a client signs requests.

use std::collections::BTreeMap;
use std::process::Command;

use evenkeel_server::hex::hex;
use ring::digest::{SHA256, digest};
use ring::hmac;

/// AWS credentials of a tenant.
pub(super) struct Credentials {
    pub(super) id: String,
    pub(super) secret: String,
}

impl Credentials {
    /// Returns the headers that sign a `POST` to `localhost`; `extra` has the lines of further headers to sign.
    pub(super) fn sign(&self, service: &str, path: &str, extra: &str, body: &str) -> String {
        self.sign_request(service, &format!("POST\n{path}\n\n"), extra, body)
    }

    /// Returns the headers that sign a `GET` of `localhost`; the parameters of the query are sorted and encoded.
    pub(super) fn sign_get(&self, service: &str, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap();
        self.sign_request(service, &format!("GET\n{path}\n{query}\n"), "", "")
    }

    /// `lines` are those of the canonical request before its headers.
    fn sign_request(&self, service: &str, lines: &str, extra: &str, body: &str) -> String {
        let now = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().unwrap();
        let now = String::from_utf8(now.stdout).unwrap();
        let now = now.trim();
        let scope = format!("{}/us-east-1/{service}/aws4_request", &now[..8]);
        let mut signed = BTreeMap::from([("host", "localhost"), ("x-amz-date", now)]);
        signed.extend(extra.lines().filter_map(|line| line.split_once(": ")));
        let hash = signed.get("x-amz-content-sha256").map_or_else(|| sha256(body), |hash| (*hash).to_owned());
        let names = signed.keys().copied().collect::<Vec<_>>().join(";");
        let headers: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{lines}{headers}\n{names}\n{hash}");
        let to_sign = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{}", sha256(&canonical));
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in scope.split('/').chain([to_sign.as_str()]) {
            key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
        }
        let signature = hex(&key);
        let id = &self.id;
        format!(
            "x-amz-date: {now}\r\nauthorization: AWS4-HMAC-SHA256 Credential={id}/{scope}, \
             SignedHeaders={names}, Signature={signature}\r\n"
        )
    }
}

fn sha256(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}
