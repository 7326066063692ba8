//! Class and session of a request within its tenant, from its headers, its body, its key and its tenant's settings.
//!
//! Guarantees: an invalid `x-evenkeel-priority` or `x-evenkeel-session` is an error, never a default. A request's class
//! is at most its tenant's `priority_max` and its key's `priority`.

use evenkeel_policy::class::{Class, SessionId, TenantFlow};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::request::{LlmRequest, hash};

/// Header with the class of a request.
const PRIORITY: HeaderName = HeaderName::from_static("x-evenkeel-priority");
/// Header with the name of the session or agent that a request belongs to.
const SESSION: HeaderName = HeaderName::from_static("x-evenkeel-session");
/// Headers with which coding agents and chat interfaces name their sessions, best first.
const CLIENT_SESSIONS: [HeaderName; 4] = [
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("session-id"),
    HeaderName::from_static("x-session-id"),
];
/// Longest name of a session.
const SESSION_BYTES_MAX: usize = 128;

/// Class and session that the headers of a request name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowHeaders {
    class: Option<Class>,
    session: Option<SessionId>,
}

impl FlowHeaders {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let class = match single(headers, &PRIORITY)? {
            None => None,
            Some(name) => {
                let class = core::str::from_utf8(name).ok().and_then(|name| name.trim().parse().ok());
                let message = || format!("{PRIORITY} must be one of {}", Class::NAMES);
                Some(class.ok_or_else(|| invalid(&PRIORITY, message()))?)
            }
        };
        let session = single(headers, &SESSION)?;
        if let Some(name) = session
            && !is_session_name(name)
        {
            let message = format!("{SESSION} must be 1 to {SESSION_BYTES_MAX} printable ASCII characters");
            return Err(invalid(&SESSION, message));
        }
        let of_client = || CLIENT_SESSIONS.iter().find_map(|name| headers.get(name));
        let session = session.or_else(|| of_client().map(HeaderValue::as_bytes));
        Ok(Self { class, session: session.filter(|name| !name.is_empty()).map(|name| SessionId(hash(name))) })
    }

    /// Returns the request's class and session; headers come before the body.
    pub(crate) fn flow(&self, tenant: &Tenant, request: &LlmRequest) -> TenantFlow {
        TenantFlow {
            session: self.session.or(request.session),
            class: tenant.class_rule().class(self.class.or(request.class)),
        }
    }
}

/// Returns the value of a header that may be given once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(invalid(name, format!("{name} is given twice")));
    }
    Ok(value.map(HeaderValue::as_bytes))
}

fn is_session_name(name: &[u8]) -> bool {
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    (1..=SESSION_BYTES_MAX).contains(&name.len()) && name.iter().all(is_printable)
}

fn invalid(name: &HeaderName, message: String) -> ApiError {
    ApiError::Invalid { message, param: Some(name.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_one_of_three_names() {
        for class in Class::ALL {
            assert_eq!(read(&[("x-evenkeel-priority", class.name())]).unwrap().class, Some(class));
        }
        for value in ["", "HIGH", "urgent", "0", "high, low"] {
            let error = read(&[("x-evenkeel-priority", value)]).unwrap_err();
            assert!(error.to_string().contains("must be one of high, normal and low"), "{value}: {error}");
        }
        let error = read(&[("x-evenkeel-priority", "low"), ("x-evenkeel-priority", "low")]).unwrap_err();
        assert!(error.to_string().contains("given twice"), "{error}");
        assert_eq!(read(&[]).unwrap(), FlowHeaders::default());
    }

    #[test]
    fn a_session_is_named_by_our_header_before_those_of_clients() {
        let session = |pairs: &[(&'static str, &str)]| read(pairs).unwrap().session;
        let own = session(&[("x-evenkeel-session", "agent 7")]);
        assert!(own.is_some());
        assert_eq!(session(&[("x-session-id", "b"), ("x-evenkeel-session", "agent 7")]), own);
        assert_eq!(session(&[("x-session-id", "b"), ("session_id", "a")]), session(&[("session_id", "a")]));
        assert_ne!(session(&[("x-session-id", "b")]), session(&[("x-session-id", "a")]));
        assert_eq!(session(&[("x-session-id", "")]), None);
    }

    #[test]
    fn a_session_is_printable_and_of_bounded_length() {
        let longest = "x".repeat(SESSION_BYTES_MAX);
        assert!(read(&[("x-evenkeel-session", &longest)]).is_ok());
        for value in ["", &format!("{longest}x"), "b\u{e4}r", "tab\there"] {
            let error = read(&[("x-evenkeel-session", value)]).unwrap_err();
            assert!(error.to_string().contains("1 to 128 printable"), "{value:?}: {error}");
        }
    }

    fn read(pairs: &[(&'static str, &str)]) -> Result<FlowHeaders, ApiError> {
        let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        for (name, text) in pairs {
            headers.append(HeaderName::from_static(name), value(text));
        }
        FlowHeaders::read(&headers)
    }
}
