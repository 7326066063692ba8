//! Audit records: who asked for which change, and what came of it.
//!
//! Guarantees: a request that may change something, by its method, to a route for administrators or of the native API is
//! recorded exactly once, whether it is served, refused or abandoned by its client, unless the route declares its path an
//! operation on data. So a new route is recorded unless it opts out. No record contains a secret: values of
//! fields that hold one are replaced, and queries and users are cut from URLs.
//!
//! Limits: of a request body, at most 4 KiB are recorded.

use core::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::origin::is_api;
use crate::tenant::{Access, Caller};

/// Larger bodies are not recorded.
const BODY_BYTES_MAX: usize = 4 * 1024;
/// Fields whose values are secrets.
const SECRET_FIELDS: [&str; 7] =
    ["api_key", "key", "secret", "password", "token", "authorization", "secret_access_key"];
const HIDDEN: &str = "[hidden]";

/// Receives audit records; must not block for long.
pub type AuditSink = Arc<dyn Fn(AuditRecord) + Send + Sync>;

/// Paths of a route that are recorded.
#[derive(Clone, Copy, Debug)]
pub enum AuditScope {
    /// All requests that may change something.
    All,
    /// Those for which the function does not report an operation on data, such as sending a message.
    ExceptData(fn(&str) -> bool),
}

/// A request that may have changed something.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    pub actor: Actor,
    pub address: IpAddr,
    pub request_id: String,
    /// Method and path, or the operation of another API.
    pub action: String,
    /// Body of the request, without secrets.
    pub request: Option<Value>,
    /// Earlier values of what was changed.
    pub before: Option<Value>,
    /// Status of the response; `None` if the client disconnected first, so that the outcome was not reported.
    pub status: Option<StatusCode>,
    /// Reason for a refusal.
    pub error: Option<String>,
}

/// The caller of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// The caller did not authenticate.
    #[default]
    Unknown,
    Admin {
        /// First digits of the key's hash.
        key: String,
    },
    Tenant {
        name: String,
        /// Name of its key; `None` in open mode.
        key: Option<String>,
    },
}

impl Actor {
    pub fn new(caller: &Caller) -> Self {
        match caller {
            Caller::Public => Self::Unknown,
            Caller::Admin(key) => Self::Admin { key: key.hash.short_digits() },
            Caller::Tenant(tenant) => Self::Tenant {
                name: tenant.settings.name.clone(),
                key: tenant.key().map(|key| key.name.clone()),
            },
        }
    }
}

/// Reports whether a request is recorded.
pub(crate) fn is_audited(method: &Method, path: &str, access: Access, scope: AuditScope) -> bool {
    let may_change = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let is_data = match scope {
        AuditScope::All => false,
        AuditScope::ExceptData(is_data) => is_data(path),
    };
    may_change && (access == Access::Admin || is_api(path)) && !is_data
}

/// Details of a request that is recorded; empty for others.
#[derive(Clone, Debug, Default)]
pub struct AuditNote(Option<Arc<Mutex<NoteState>>>);

#[derive(Debug, Default)]
struct NoteState {
    actor: Actor,
    request: Option<Value>,
    before: Option<Value>,
}

impl AuditNote {
    fn update(&self, update: impl FnOnce(&mut NoteState)) {
        if let Some(state) = &self.0 {
            update(&mut state.lock());
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Records the caller of a request that was authenticated before the record began.
    pub fn set_caller(&self, caller: &Caller) {
        self.update(|state| state.actor = Actor::new(caller));
    }

    pub(crate) fn set_body(&self, body: &[u8]) {
        self.update(|state| {
            let body = Some(body).filter(|body| body.len() <= BODY_BYTES_MAX);
            state.request = body.and_then(|body| serde_json::from_slice(body).ok()).map(without_secrets);
        });
    }

    /// Records the parameters of a request whose body is not JSON.
    pub fn set_request(&self, parameters: &Value) {
        if self.is_recorded() {
            self.set_body(parameters.to_string().as_bytes());
        }
    }

    /// Records the earlier values of what the request changes.
    pub fn set_before(&self, before: Value) {
        self.update(|state| state.before = Some(without_secrets(before)));
    }
}

/// Passes a record to the sink when the request ends.
pub struct AuditGuard {
    sink: AuditSink,
    record: Option<AuditRecord>,
    note: AuditNote,
}

impl AuditGuard {
    pub fn new(sink: AuditSink, address: IpAddr, request_id: String, action: String) -> Self {
        let record = AuditRecord {
            actor: Actor::Unknown,
            address,
            request_id,
            action,
            request: None,
            before: None,
            status: None,
            error: None,
        };
        Self { sink, record: Some(record), note: AuditNote(Some(Arc::default())) }
    }

    pub fn note(&self) -> AuditNote {
        self.note.clone()
    }

    /// Records the outcome.
    pub fn finish(mut self, status: StatusCode, error: Option<String>) {
        if let Some(record) = &mut self.record {
            record.status = Some(status);
            record.error = error;
        }
    }
}

impl Drop for AuditGuard {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let mut known = NoteState::default();
        self.note.update(|state| known = core::mem::take(state));
        let NoteState { actor, request, before } = known;
        (self.sink)(AuditRecord { actor, request, before, ..record });
    }
}

/// Replaces the values of secret fields, and cuts users and queries from URLs.
fn without_secrets(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let hide = |(name, value): (String, Value)| {
                let is_secret = SECRET_FIELDS.contains(&name.as_str());
                let value = if is_secret { json!(HIDDEN) } else { without_secrets(value) };
                (name, value)
            };
            Value::Object(fields.into_iter().map(hide).collect())
        }
        Value::Array(items) => items.into_iter().map(without_secrets).collect(),
        Value::String(text) => Value::String(without_credentials(&text)),
        other => other,
    }
}

fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(act: impl FnOnce(AuditGuard)) -> Vec<AuditRecord> {
        let records = Arc::new(Mutex::new(Vec::new()));
        let seen = records.clone();
        let sink: AuditSink = Arc::new(move |record| seen.lock().push(record));
        act(AuditGuard::new(sink, [127, 0, 0, 1].into(), "req-1".to_owned(), "POST /api/x".to_owned()));
        core::mem::take(&mut *records.lock())
    }

    #[test]
    fn a_request_is_recorded_once_also_if_its_client_disconnects() {
        let served = recorded(|guard| guard.finish(StatusCode::CREATED, None));
        assert_eq!(
            served.iter().map(|record| record.status).collect::<Vec<_>>(),
            [Some(StatusCode::CREATED)]
        );
        let abandoned = recorded(drop);
        assert_eq!(abandoned.iter().map(|record| record.status).collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn secrets_are_not_recorded() {
        let records = recorded(|guard| {
            let body = br#"{"name": "a", "api_key": "sk-1", "dispatch": {"target": "https://u:pw@h/x?token=t"}, "n": [1]}"#;
            guard.note().set_body(body);
            guard.note().set_before(json!({"key": "ek-1"}));
        });
        let expected =
            json!({"name": "a", "api_key": HIDDEN, "dispatch": {"target": "https://h/x"}, "n": [1]});
        assert_eq!(records[0].request, Some(expected));
        assert_eq!(records[0].before, Some(json!({"key": HIDDEN})));
    }

    #[test]
    fn large_bodies_and_other_formats_are_not_recorded() {
        let large = format!("{{\"a\": \"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        for body in [large.as_bytes(), b"not json"] {
            assert!(recorded(|guard| guard.note().set_body(body))[0].request.is_none());
        }
    }

    #[test]
    fn changes_of_the_native_api_are_recorded_and_reads_and_data_are_not() {
        let is_data: fn(&str) -> bool = |path| path.ends_with("/messages");
        let scope = AuditScope::ExceptData(is_data);
        let audited = |method: Method, path: &str, access| is_audited(&method, path, access, scope);
        assert!(audited(Method::POST, "/api/queues/q/purge", Access::TenantOrAdmin));
        assert!(audited(Method::DELETE, "/elsewhere", Access::Admin));
        assert!(!audited(Method::POST, "/api/queues/q/messages", Access::TenantOrAdmin));
        assert!(!audited(Method::GET, "/api/queues/q", Access::TenantOrAdmin));
        assert!(!audited(Method::POST, "/v1/chat/completions", Access::Tenant));
    }
}
