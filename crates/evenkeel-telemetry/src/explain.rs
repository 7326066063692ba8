//! Explains requests to operators: the recorded steps in words, with names instead of ids.
//!
//! Limits: the latest [`REQUESTS_EXPLAINED_MAX`] requests with the same id.

use core::cmp::Reverse;
use std::sync::Arc;

use evenkeel_policy::id::{ModelId, NodeId, PathId, TenantId};
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

/// Most tenants that are named among those that a request waited behind; the others are summed up.
const OVERTAKERS_MAX: usize = 5;

/// Lookups of names that only the API knows.
#[derive(Clone, Copy)]
pub struct ExplainNames<'a> {
    /// Returns the name of a model, or of what the pool serves instead of models.
    pub model: &'a dyn Fn(ModelId) -> Option<Arc<str>>,
    /// Returns the name of a path to a node.
    pub path: &'a dyn Fn(NodeId, PathId) -> Option<String>,
}

impl Observer {
    /// Explains the requests with this client's id, latest first.
    pub fn explain(&self, now: Instant, client_id: &str, names: ExplainNames<'_>) -> Vec<ExplainedRequest> {
        let found = self.request_log().find(client_id.as_bytes(), REQUESTS_EXPLAINED_MAX);
        found.into_iter().map(|history| self.explain_history(now, &history, names)).collect()
    }

    fn explain_history(
        &self,
        now: Instant,
        history: &RequestHistory,
        names: ExplainNames<'_>,
    ) -> ExplainedRequest {
        let RequestHistory { request, tenant, ref steps, omitted, .. } = *history;
        let explain_step = |&(at, step): &(Instant, Step)| {
            let event = Event::Request { request, tenant, step };
            let mut path_name = None;
            let model = match step {
                Step::Accepted { model, .. } | Step::FellBack { to: model, .. } => (names.model)(model),
                Step::Dispatched { node, path: Some(path), .. } => {
                    path_name = (names.path)(node, path);
                    None
                }
                _ => None,
            };
            let node = event.node().and_then(|node| self.metrics().node_name(node));
            let peer = event.peer().and_then(|peer| self.metrics().peer_name(peer));
            let name = model.or(node).or(peer);
            let text = EventDisplay {
                event: &event,
                name: name.as_deref(),
                path: path_name.as_deref(),
                tenant: None,
            };
            ExplainedStep { age: now.since(at), text: text.to_string() }
        };
        let mut explained: Vec<_> = steps.iter().map(explain_step).collect();
        let first_attempt = steps.iter().position(|(_, step)| matches!(step, Step::Dispatched { .. }));
        if let Some(step) = self.explain_wait(now, history) {
            explained.insert(first_attempt.unwrap_or(explained.len()), step);
        }
        ExplainedRequest {
            pool: self.metrics().pool().to_owned(),
            tenant: self.tenant_name(tenant),
            steps: explained,
            omitted,
        }
    }

    /// Explains whose requests were served while a request waited; `None` if there were none.
    fn explain_wait(&self, now: Instant, history: &RequestHistory) -> Option<ExplainedStep> {
        let wait = history.wait(now)?;
        let overtakers = self.request_log().dispatched_during(history, wait);
        let total: u64 = overtakers.by_tenant.values().sum();
        if total == 0 {
            return None;
        }
        let mut tenants: Vec<_> = overtakers.by_tenant.into_iter().collect();
        tenants.sort_by_key(|(_, requests)| Reverse(*requests));
        let others = tenants.split_off(tenants.len().min(OVERTAKERS_MAX));
        let mut parts: Vec<_> = tenants
            .into_iter()
            .map(|(tenant, requests)| match tenant == history.tenant {
                true => format!("{requests} of its own tenant"),
                false => format!("{requests} of tenant {:?}", self.tenant_name(tenant)),
            })
            .collect();
        if !others.is_empty() {
            let requests: u64 = others.iter().map(|(_, requests)| requests).sum();
            parts.push(format!("{requests} of {} other tenants", others.len()));
        }
        let at_least = if overtakers.is_complete { "" } else { "at least " };
        let plural = if total == 1 { "" } else { "s" };
        let text = format!("waited while {at_least}{total} request{plural} got a slot: {}", parts.join(", "));
        Some(ExplainedStep { age: now.since(wait.until), text })
    }

    fn tenant_name(&self, tenant: TenantId) -> String {
        self.metrics().tenant_name(tenant).map_or_else(|| tenant.0.to_string(), str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::class::TenantFlow;
    use evenkeel_policy::cost::Cost;
    use evenkeel_policy::id::RequestId;
    use evenkeel_policy::outcome::PickReason;

    use super::*;
    use crate::{MetricLimits, Registry, RequestLogLimits, RequestName};

    const MODEL: ModelId = ModelId(1);

    #[test]
    fn a_request_names_the_tenants_that_were_served_while_it_waited() {
        let pool = Pool::new(64);
        pool.dispatch(10, 3, MODEL, 5);
        pool.admit(1, 0, MODEL, 10);
        for (request, tenant, at) in [(11, 1, 10), (12, 1, 11), (13, 2, 12), (14, 0, 15), (15, 3, 21)] {
            pool.dispatch(request, tenant, MODEL, at);
        }
        pool.dispatch(16, 2, ModelId(2), 12);
        let waiting = pool.explain(18);
        assert_eq!(
            waiting.last().unwrap(),
            "waited while 4 requests got a slot: 2 of tenant \"b\", 1 of its own tenant, 1 of tenant \"c\""
        );
        pool.send(1, 0, 20);
        let texts = pool.explain(30);
        assert_eq!(texts[texts.len() - 2], *waiting.last().unwrap(), "{texts:?}");
        assert_eq!(
            texts[texts.len() - 1],
            "dispatched to node 0 over path fast after 0ns, attempt 1: affinity cache hit"
        );
    }

    #[test]
    fn a_request_that_nobody_overtook_says_nothing_about_others() {
        let pool = Pool::new(64);
        pool.admit(1, 0, MODEL, 10);
        pool.send(1, 0, 10);
        assert_eq!(pool.explain(30).len(), 3);
    }

    #[test]
    fn the_sixth_tenant_is_summed_up_and_a_full_log_says_at_least() {
        let pool = Pool::new(10);
        for request in 50..55 {
            pool.admit(request, 7, MODEL, 1);
        }
        pool.admit(1, 0, MODEL, 10);
        for tenant in 1..=7 {
            pool.dispatch(20 + u64::from(tenant), tenant, MODEL, 11);
        }
        let texts = pool.explain(30);
        let last = texts.last().unwrap();
        assert!(
            last.starts_with("waited while 7 requests got a slot: ")
                && last.ends_with(", 2 of 2 other tenants"),
            "{last}"
        );
        // Two more requests evict all that began before the wait.
        pool.admit(60, 7, MODEL, 12);
        pool.admit(61, 7, MODEL, 12);
        assert!(pool.explain(30).last().unwrap().starts_with("waited while at least 7 requests"));
    }

    struct Pool(Observer);

    impl Pool {
        fn new(requests_max: usize) -> Self {
            let limits = RequestLogLimits { requests_max, ..RequestLogLimits::default() };
            let observer = Observer::new(&Registry::new(), "llm", MetricLimits::default(), limits).unwrap();
            for (tenant, name) in ["a", "b", "c", "d"].iter().enumerate() {
                observer.metrics().name_tenant(TenantId(tenant as u32), name);
            }
            Self(observer)
        }

        fn admit(&self, request: u64, tenant: u32, model: ModelId, at: u64) {
            let client_id = request.to_string();
            let name = RequestName { client_id: client_id.as_bytes(), earlier: None };
            self.0.request_log().set_name(RequestId(request), TenantId(tenant), name);
            self.record(
                request,
                tenant,
                at,
                Step::Accepted { model, cost: Cost(1), flow: Some(TenantFlow::default()) },
            );
            self.record(request, tenant, at, Step::Admitted { waiting: 1 });
        }

        fn send(&self, request: u64, tenant: u32, at: u64) {
            let step = Step::Dispatched {
                node: NodeId(0),
                path: Some(PathId(0)),
                waited: Duration::ZERO,
                reason: PickReason::Cached,
                attempt: 1,
            };
            self.record(request, tenant, at, step);
        }

        fn dispatch(&self, request: u64, tenant: u32, model: ModelId, at: u64) {
            self.admit(request, tenant, model, at);
            self.send(request, tenant, at);
        }

        fn record(&self, request: u64, tenant: u32, at: u64, step: Step) {
            let event = Event::Request { request: RequestId(request), tenant: TenantId(tenant), step };
            self.0.record(Instant::from_secs(at), &event);
        }

        /// Explains request 1.
        fn explain(&self, now: u64) -> Vec<String> {
            let names = ExplainNames { model: &|_| None, path: &|_, _| Some("fast".to_owned()) };
            let explained = self.0.explain(Instant::from_secs(now), "1", names);
            explained[0].steps.iter().map(|step| step.text.clone()).collect()
        }
    }
}
