//! Explains requests to operators: the recorded steps in words, with names instead of ids.
//!
//! Limits: the latest [`REQUESTS_EXPLAINED_MAX`] requests with the same id.

use std::sync::Arc;

use evenkeel_policy::id::ModelId;
use evenkeel_policy::time::{Duration, Instant};

use crate::event::{Event, EventDisplay, Step};
use crate::observer::Observer;
use crate::request_log::RequestHistory;

/// Most requests that are explained for one id; a client may send the same id again.
pub const REQUESTS_EXPLAINED_MAX: usize = 16;

/// A request in words.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedRequest {
    /// Pool of the request, which is the name of its API.
    pub pool: String,
    /// Name of the tenant, or its number if it has no metrics of its own.
    pub tenant: String,
    /// Steps in order.
    pub steps: Vec<ExplainedStep>,
    /// Number of omitted steps, all after the first.
    pub omitted: u64,
}

/// A step in words.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedStep {
    /// Time since the step.
    pub age: Duration,
    pub text: String,
}

impl Observer {
    /// Explains the requests with this client's id, latest first.
    pub fn explain(
        &self,
        now: Instant,
        client_id: &str,
        model_name: impl Fn(ModelId) -> Option<Arc<str>>,
    ) -> Vec<ExplainedRequest> {
        let found = self.request_log().find(client_id.as_bytes(), REQUESTS_EXPLAINED_MAX);
        found.into_iter().map(|history| self.explain_history(now, &history, &model_name)).collect()
    }

    fn explain_history(
        &self,
        now: Instant,
        history: &RequestHistory,
        model_name: &impl Fn(ModelId) -> Option<Arc<str>>,
    ) -> ExplainedRequest {
        let RequestHistory { request, tenant, ref steps, omitted, .. } = *history;
        let explain_step = |&(at, step): &(Instant, Step)| {
            let event = Event::Request { request, tenant, step };
            let model = if let Step::Accepted { model, .. } = step { model_name(model) } else { None };
            let node = event.node().and_then(|node| self.metrics().node_name(node));
            let peer = event.peer().and_then(|peer| self.metrics().peer_name(peer));
            let name = model.or(node).or(peer);
            let text = EventDisplay { event: &event, name: name.as_deref() }.to_string();
            ExplainedStep { age: now.since(at), text }
        };
        ExplainedRequest {
            pool: self.metrics().pool().to_owned(),
            tenant: self.metrics().tenant_name(tenant).map_or_else(|| tenant.0.to_string(), str::to_owned),
            steps: steps.iter().map(explain_step).collect(),
            omitted,
        }
    }
}
