//! The per-request service: request id, header checks, routing, authentication, rate limit, handler, response.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::sync::atomic::AtomicUsize;
use core::task::Poll;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use evenkeel_telemetry::request_context::with_request_id;
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderValue, Request, Version};
use hyper::body::{Body as _, Incoming};

use crate::api_error::ApiError;
use crate::audit_trail::{AuditGuard, AuditNote, is_audited};
use crate::body::Response;
use crate::body_budget::BodyBudget;
use crate::connections::{ConnectionClass, OpenConnection};
use crate::cors::Cors;
use crate::disconnect::{Disconnect, RequestGuard, TrackedBody};
use crate::metrics::ResponseMetrics;
use crate::origin::{check_json, is_api};
use crate::received_body::BodyLimits;
use crate::request_body::RequestBody;
use crate::request_id::{REQUEST_ID, RequestIds};
use crate::route::{
    Encryption, FailedRequest, HandlerFuture, LIVE, METRICS, READY, RateLimit, Route, RouteMatch, RouteMiss,
    Routes, ServerRequest, is_form,
};
use crate::sending::ResponseStream;
use crate::tenant::{Authenticator, Caller};

/// Headers that may occur at most once: two parsers could pick different values.
const SINGLE_VALUE_HEADERS: [&str; 7] =
    ["host", "origin", "authorization", "content-length", "content-type", "x-api-key", "api-key"];

/// Maximum size of an unread body after which a connection stays open; hyper skips it if it has arrived.
const SKIPPED_MAX: u64 = 16 * 1024;

/// Paths that are served on a connection that is reserved for probes and administrators.
const PROBES: [&str; 3] = [LIVE, READY, METRICS];

/// State that all requests of a listener share.
pub(crate) struct RequestService {
    pub(crate) auth: Arc<Authenticator>,
    pub(crate) routes: Routes,
    pub(crate) ids: RequestIds,
    pub(crate) in_flight: Arc<AtomicUsize>,
    pub(crate) budget: Arc<BodyBudget>,
    pub(crate) body_limits: BodyLimits,
    pub(crate) encryption: Encryption,
    pub(crate) responses: ResponseMetrics,
}

/// The connection on which a request arrived.
#[derive(Clone)]
pub(crate) struct RequestOrigin {
    pub(crate) peer: SocketAddr,
    pub(crate) connection: Arc<OpenConnection>,
}

/// Id, disconnect signal and audit note of a request.
struct RequestMeta {
    request_id: HeaderValue,
    disconnect: Disconnect,
    audit: AuditNote,
}

/// Result of the framing check of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Clear,
    Ambiguous,
}

impl RequestService {
    /// Handles a request; errors and panics become responses too.
    pub(crate) async fn handle(
        &self,
        request: Request<Incoming>,
        client: RequestOrigin,
        length: BodyLength,
        sending: ResponseStream,
    ) -> http::Response<TrackedBody> {
        let (guard, disconnect) = RequestGuard::new(self.in_flight.clone(), client.connection.clone());
        let method = request.method().clone();
        let version = request.version();
        let is_large = request.body().size_hint().exact().is_none_or(|bytes| SKIPPED_MAX < bytes);
        let request_id = self.ids.for_request(request.headers());
        let failed = FailedRequest { id: request_id.clone(), is_form: is_form(request.headers()) };
        let (route, route_id, error_format) = match self.routes.find(&method, request.uri().path()) {
            Ok(RouteMatch { route, id }) => (Ok(route), id, route.error_format),
            Err(RouteMiss { id, error, error_format }) => (Err(error), id, error_format),
        };
        let cors =
            Cors::new(self.auth.sites(), &self.routes, &method, request.uri().path(), request.headers());
        // A path without a route changes nothing.
        let audit =
            route.as_ref().ok().and_then(|route| self.begin_audit(route, &request, &client, &request_id));
        let note = audit.as_ref().map(AuditGuard::note).unwrap_or_default();
        let meta = RequestMeta { request_id: request_id.clone(), disconnect, audit: note };
        let result = match cors.preflight_response() {
            Some(response) => Ok(response),
            None => match self.dispatch(route, RequestBody::wrap(request), client, length, meta) {
                Ok(future) => run_handler(future, &request_id).await,
                Err(error) => Err(error),
            },
        };
        let is_unread = is_large && !guard.is_body_read();
        let is_last = matches!(result, Err(ApiError::Framing | ApiError::ConnectionsFull));
        let must_close = version < Version::HTTP_2 && (is_unread || is_last);
        let error = result.as_ref().err().filter(|_| audit.is_some()).map(ToString::to_string);
        let mut response = result.unwrap_or_else(|error| error_format(error, &failed));
        if let Some(audit) = audit {
            audit.finish(response.status(), error);
        }
        response.headers_mut().insert(REQUEST_ID, request_id);
        cors.add_headers(response.headers_mut());
        self.responses.count(route_id, response.status(), || self.routes.pattern(route_id));
        if must_close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        TrackedBody::wrap(response, &method, guard, sending)
    }

    /// Begins the audit record of a request that may change something; `None` for others.
    fn begin_audit(
        &self,
        route: &Route,
        request: &Request<Incoming>,
        client: &RequestOrigin,
        request_id: &HeaderValue,
    ) -> Option<AuditGuard> {
        let path = request.uri().path();
        if !is_audited(request.method(), path, route.access, route.audit) {
            return None;
        }
        let id = request_id.to_str().unwrap_or_default().to_owned();
        self.auth.audit(client.peer.ip(), id, format!("{} {path}", request.method()))
    }

    /// Names the tenant whose key was sent to a route that refuses it, in the audit record.
    fn identify(&self, audit: &AuditNote, headers: &HeaderMap) {
        if audit.is_recorded()
            && let Ok(tenant) = self.auth.tenant(headers)
            && !tenant.is_open()
        {
            audit.set_caller(&Caller::Tenant(tenant));
        }
    }

    /// Checks and authenticates a request, and calls its handler.
    fn dispatch(
        &self,
        route: Result<&Route, ApiError>,
        request: Request<RequestBody>,
        client: RequestOrigin,
        length: BodyLength,
        meta: RequestMeta,
    ) -> Result<HandlerFuture, ApiError> {
        let RequestMeta { request_id, disconnect, audit } = meta;
        if length == BodyLength::Ambiguous {
            return Err(ApiError::Framing);
        }
        check_single_values(request.headers())?;
        if request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST) {
            return Err(ApiError::invalid("a request over HTTP/1.1 needs a Host header"));
        }
        let route = route?;
        self.auth.check_site(route.access, request.headers(), request.uri())?;
        let caller = self.auth.caller(route.access, request.headers(), client.peer);
        let caller = caller.inspect_err(|_| self.identify(&audit, request.headers()))?;
        audit.set_caller(&caller);
        let is_privileged = || matches!(caller, Caller::Admin(_)) || PROBES.contains(&request.uri().path());
        if client.connection.class == ConnectionClass::Reserved && !is_privileged() {
            client.connection.count_refused();
            return Err(ApiError::ConnectionsFull);
        }
        if let Caller::Tenant(tenant) = &caller {
            client.connection.set_tenant(tenant.id);
        }
        if is_api(request.uri().path()) && !request.body().is_end_stream() {
            check_json(request.headers())?;
        }
        let bytes_max = self.body_limits.bytes_max;
        if bytes_max < request.body().size_hint().lower() {
            return Err(ApiError::BodyTooLarge { bytes_max });
        }
        let accepted_at = self.auth.now();
        if let (Caller::Tenant(tenant), RateLimit::Server) = (&caller, route.rate_limit) {
            tenant.take_request(accepted_at)?;
        }
        let request = ServerRequest {
            request,
            caller,
            peer: client.peer,
            encryption: self.encryption,
            disconnect,
            request_id,
            accepted_at,
            audit,
            connection: client.connection,
            budget: self.budget.clone(),
            body_limits: self.body_limits,
        };
        catch_unwind(AssertUnwindSafe(|| (route.handler)(request))).map_err(|_| ApiError::Internal)
    }
}

fn check_single_values(headers: &HeaderMap) -> Result<(), ApiError> {
    // Fast path: few requests repeat any header.
    if headers.len() == headers.keys_len() {
        return Ok(());
    }
    for name in SINGLE_VALUE_HEADERS {
        if headers.get_all(name).iter().count() > 1 {
            return Err(ApiError::invalid(format!("header {name} is repeated")));
        }
    }
    Ok(())
}

/// Runs a handler: the lines that it logs have the request id, and a panic becomes an internal error of its request.
async fn run_handler(future: HandlerFuture, request_id: &HeaderValue) -> Result<Response, ApiError> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let poll = || with_request_id(request_id.as_bytes(), || future.as_mut().poll(cx));
        let polled = catch_unwind(AssertUnwindSafe(poll));
        polled.unwrap_or(Poll::Ready(Err(ApiError::Internal)))
    })
    .await
}
