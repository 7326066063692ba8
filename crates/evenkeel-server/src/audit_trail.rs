//! Audit records: who asked for which change, and what came of it.
//!
//! Guarantees: a request that may change something, by its method, to a route for administrators or of the native API is
//! recorded exactly once, whether it is served, refused or abandoned by its client, unless the route declares its path an
//! operation on data. So a new route is recorded unless it opts out. No record contains a secret: values of
//! fields that hold one are replaced, also where the reason for a refusal quotes them, and queries and users are cut from
//! URLs.
//!
//! Limits: of a request body at most 4 KiB are recorded, of a path 512 bytes, and of the reason for a refusal 1 KiB.

mod secrets;

use core::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;

use self::secrets::{HIDDEN, hide_secrets, without_keys};
use crate::origin::is_api;
use crate::tenant::{Access, Caller};

/// Larger bodies are not recorded.
const BODY_BYTES_MAX: usize = 4 * 1024;
/// Longest method and path in a record.
const ACTION_BYTES_MAX: usize = 512;
/// Longest reason for a refusal in a record.
const ERROR_BYTES_MAX: usize = 1024;

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
    /// Texts of the request that are not recorded.
    secrets: Vec<String>,
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
            state.request = body.and_then(|body| serde_json::from_slice(body).ok());
            state.request.iter_mut().for_each(|body| hide_secrets(body, &mut state.secrets));
        });
    }

    /// Records the parameters of a request whose body is not JSON.
    pub fn set_request(&self, parameters: &Value) {
        if self.is_recorded() {
            self.set_body(parameters.to_string().as_bytes());
        }
    }

    /// Records the earlier values of what the request changes.
    pub fn set_before(&self, mut before: Value) {
        self.update(|state| {
            hide_secrets(&mut before, &mut state.secrets);
            state.before = Some(before);
        });
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
            action: shortened(without_keys(&action), ACTION_BYTES_MAX),
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
        let NoteState { actor, request, before, secrets } = known;
        let without_secrets = |error: String| {
            secrets.iter().fold(error, |error, secret| error.replace(secret.as_str(), HIDDEN))
        };
        let error =
            record.error.map(|error| shortened(without_keys(&without_secrets(error)), ERROR_BYTES_MAX));
        (self.sink)(AuditRecord { actor, request, before, error, ..record });
    }
}

/// Cuts a text that is too long, visibly.
fn shortened(mut text: String, bytes_max: usize) -> String {
    if bytes_max < text.len() {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            let error = "bad \"sk-1\" and https://u:pw@h/x?token=t".to_owned();
            guard.finish(StatusCode::BAD_REQUEST, Some(error));
        });
        let expected =
            json!({"name": "a", "api_key": HIDDEN, "dispatch": {"target": "https://h/x"}, "n": [1]});
        assert_eq!(records[0].request, Some(expected));
        assert_eq!(records[0].before, Some(json!({"key": HIDDEN})));
        assert_eq!(records[0].error.as_deref(), Some("bad \"[hidden]\" and [hidden]"));
    }

    #[test]
    fn an_api_key_in_a_path_or_a_text_and_a_url_without_a_scheme_are_not_recorded() {
        let key = format!("ek-{}", "0a".repeat(32));
        let records = Arc::new(Mutex::new(Vec::new()));
        let seen = records.clone();
        let sink: AuditSink = Arc::new(move |record| seen.lock().push(record));
        let action = format!("DELETE /api/tenants/ek-a/keys/{key}");
        let guard = AuditGuard::new(sink, [127, 0, 0, 1].into(), "req-1".to_owned(), action);
        let body =
            json!({"name": key, "url": "u:pw@h", "paths": ["http://h", "h/?token=t"], "target": "h:80"});
        guard.note().set_body(body.to_string().as_bytes());
        guard.finish(StatusCode::NOT_FOUND, Some(format!("there is no key {key:?}; u:pw@h")));
        let record: AuditRecord = records.lock().remove(0);
        assert_eq!(record.action, "DELETE /api/tenants/ek-a/keys/[hidden]");
        let shown = json!({"name": HIDDEN, "url": HIDDEN, "paths": HIDDEN, "target": "h:80"});
        assert_eq!(record.request, Some(shown));
        assert_eq!(record.error.as_deref(), Some("there is no key \"[hidden]\"; [hidden]"));
    }

    #[test]
    fn a_long_path_and_a_long_reason_are_cut() {
        let records = Arc::new(Mutex::new(Vec::new()));
        let seen = records.clone();
        let sink: AuditSink = Arc::new(move |record| seen.lock().push(record));
        let action = format!("POST /api/{}", "\u{e4}".repeat(30_000));
        let guard = AuditGuard::new(sink, [127, 0, 0, 1].into(), "req-1".to_owned(), action);
        guard.finish(StatusCode::NOT_FOUND, Some("x".repeat(30_000)));
        let record: AuditRecord = records.lock().remove(0);
        assert!(record.action.len() <= ACTION_BYTES_MAX + 3 && record.action.ends_with("\u{e4}…"));
        assert_eq!(record.error.map(|error| error.len()), Some(ERROR_BYTES_MAX + 3));
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
