//! Remembers the calls whose statement was started, so that a retry of an AWS client does not start it again.
//!
//! A client repeats a call if the connection is lost or the response takes too long, although the statement may have taken
//! effect. All attempts of a call have the same `amz-sdk-invocation-id`.
//!
//! Limits: [`CALLS_MAX`] calls are remembered; the oldest are forgotten first.

use std::collections::{HashSet, VecDeque};

use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};

const INVOCATION_ID: HeaderName = HeaderName::from_static("amz-sdk-invocation-id");
/// Calls that are remembered.
const CALLS_MAX: usize = 100_000;

/// The calls whose statement was started.
#[derive(Debug)]
pub(crate) struct StartedCalls {
    calls: Mutex<Calls>,
    calls_max: usize,
}

#[derive(Debug, Default)]
struct Calls {
    known: HashSet<CallId>,
    /// Oldest first.
    order: VecDeque<CallId>,
}

/// Truncated hash of the tenant and the client's id.
type CallId = [u8; 16];

impl Default for StartedCalls {
    fn default() -> Self {
        Self { calls: Mutex::default(), calls_max: CALLS_MAX }
    }
}

impl StartedCalls {
    /// Records that the statement of a call is about to start; an error if an earlier attempt has started it.
    pub(super) fn start(&self, headers: &HeaderMap, tenant: &Tenant) -> Result<(), ApiError> {
        let Some(invocation) = headers.get(INVOCATION_ID) else { return Ok(()) };
        if self.insert(call_id(&tenant.settings.name, invocation.as_bytes())) {
            return Ok(());
        }
        let message =
            "an earlier attempt of this call started the statement, which may have taken effect".to_owned();
        Err(ApiError::Conflict { message })
    }

    /// Adds a call; returns whether it was new.
    fn insert(&self, call: CallId) -> bool {
        let mut calls = self.calls.lock();
        if !calls.known.insert(call) {
            return false;
        }
        calls.order.push_back(call);
        if self.calls_max < calls.order.len()
            && let Some(oldest) = calls.order.pop_front()
        {
            calls.known.remove(&oldest);
        }
        true
    }
}

fn call_id(tenant: &str, invocation: &[u8]) -> CallId {
    let mut context = Context::new(&SHA256);
    // The name has no NUL, so that the pair is unambiguous.
    context.update(tenant.as_bytes());
    context.update(b"\0");
    context.update(invocation);
    let mut id = CallId::default();
    id.copy_from_slice(&context.finish().as_ref()[..16]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_started_once_per_tenant_and_forgotten_beyond_the_limit() {
        let started = StartedCalls { calls_max: 2, ..StartedCalls::default() };
        let call = |tenant: &str, number: u8| started.insert(call_id(tenant, &[number]));
        assert!(call("a", 1));
        assert!(!call("a", 1));
        assert!(call("b", 1), "another tenant's call");
        assert!(call("a", 2));
        assert_eq!(started.calls.lock().known.len(), 2);
        assert!(call("a", 1), "the oldest was forgotten");
    }
}
