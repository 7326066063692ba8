//! Routing table: exact paths first, then paths with parameters, then the longest prefix.
//!
//! Limits: at most 1024 routes; a lookup costs one hash and, unless the path is an exact one, a comparison per path with
//! parameters and per prefix. Paths are compared byte by byte, as sent: case matters, and nothing is decoded.

use core::fmt;
use core::net::SocketAddr;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use evenkeel_policy::account::AccountNumber;
use evenkeel_policy::time::Instant;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

use crate::api_error::ApiError;
use crate::audit_trail::{AuditNote, AuditScope};
use crate::body::{self, Response};
use crate::body_budget::{BodyBudget, BytesOwner};
use crate::connections::OpenConnection;
use crate::disconnect::Disconnect;
use crate::origin::is_api;
use crate::received_body::{self, BodyLimits, ReceivedBody};
use crate::request_body::RequestBody;
use crate::sending::ReadAhead;
use crate::tenant::{Access, Caller, Tenant};

/// Prefix that stands for every account number.
const ACCOUNT: &str = "/{account}/";
pub const ROUTES_MAX: usize = 1024;
pub(crate) const LIVE: &str = "/livez";
pub(crate) const READY: &str = "/readyz";
/// Path of the metrics, if the table has one.
pub const METRICS: &str = "/metrics";

/// A request as passed to a handler, with its authenticated caller.
pub struct ServerRequest {
    /// The request; its body is not read yet, and only [`ServerRequest::read_body`] reads it within the limits.
    pub request: http::Request<RequestBody>,
    /// The caller; a handler that authenticates it sets it by [`ServerRequest::set_tenant`].
    pub caller: Caller,
    /// Address of the client, or of the last proxy.
    pub peer: SocketAddr,
    pub encryption: Encryption,
    /// Signals a client disconnect.
    pub disconnect: Disconnect,
    /// Id of the request, echoed in the response.
    pub request_id: HeaderValue,
    pub accepted_at: Instant,
    /// Empty unless the request is recorded.
    pub audit: AuditNote,
    pub(crate) connection: Arc<OpenConnection>,
    pub(crate) budget: Arc<BodyBudget>,
    pub(crate) body_limits: BodyLimits,
}

/// Encryption of a request's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    None,
    Tls,
}

impl ServerRequest {
    /// Reads the whole body, within the listener's limits of size and time and within the budget of all bodies.
    pub async fn read_body(&mut self) -> Result<ReceivedBody, ApiError> {
        let upload = self.budget.begin_upload(BytesOwner::new(&self.caller, self.peer.ip()));
        let incoming = self.request.body_mut().incoming().ok_or(ApiError::Internal)?;
        let body = received_body::receive(incoming, upload, self.body_limits).await?;
        self.disconnect.on_body_read();
        self.audit.set_body(&body.bytes);
        Ok(body)
    }

    /// Returns the permission to read the response ahead of a slow client, at the expense of the caller.
    pub fn read_ahead(&self) -> ReadAhead {
        ReadAhead { budget: self.budget.clone(), owner: BytesOwner::new(&self.caller, self.peer.ip()) }
    }

    /// Records the tenant that the handler has authenticated: the body and the connection count against it.
    pub fn set_tenant(&mut self, tenant: &Arc<Tenant>) {
        self.connection.set_tenant(tenant.id);
        self.caller = Caller::Tenant(tenant.clone());
        self.audit.set_caller(&self.caller);
    }

    /// Lowers the maximum size of the body.
    pub fn limit_body(&mut self, bytes_max: u64) {
        self.body_limits.bytes_max = self.body_limits.bytes_max.min(bytes_max);
    }
}

/// Future of a handler's response.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
/// Handler of a route. Its future is dropped when the client disconnects.
pub type Handler = Arc<dyn Fn(ServerRequest) -> HandlerFuture + Send + Sync>;

/// Creates a handler from an async function.
pub fn handler<F, A>(function: F) -> Handler
where
    F: Fn(ServerRequest) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Arc::new(move |request| Box::pin(function(request)))
}

/// Converts an error of a route into a response.
pub type ErrorFormat = fn(ApiError, &FailedRequest) -> Response;

/// The parts of a failed request that the format of its error depends on.
#[derive(Clone, Debug)]
pub struct FailedRequest {
    pub id: HeaderValue,
    /// The body is an HTML form.
    pub is_form: bool,
}

/// Reports whether a request declares an HTML form as its body.
pub fn is_form(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(b"".as_slice(), HeaderValue::as_bytes);
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

/// Formats errors as OpenAI does; the default of routes.
pub fn openai_error(error: ApiError, _: &FailedRequest) -> Response {
    error.into_response()
}

/// Readiness of the server, as `/readyz` reports it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<ReadinessState>);

#[derive(Default)]
struct ReadinessState {
    is_ready: AtomicBool,
    /// Returns the problems that do not make the server unready.
    problems: OnceLock<Box<dyn Fn() -> Vec<String> + Send + Sync>>,
}

impl fmt::Debug for ReadinessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.is_ready.fmt(f)
    }
}

impl Readiness {
    pub fn ready(&self) {
        self.0.is_ready.store(true, Ordering::Relaxed);
    }

    pub fn unready(&self) {
        self.0.is_ready.store(false, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Relaxed)
    }

    /// Lists on `/readyz` what is wrong although the server is ready; only the first call has an effect.
    pub fn list_problems(&self, problems: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.0.problems.get_or_init(|| Box::new(problems));
    }

    fn page(&self) -> String {
        let problems = self.0.problems.get().map(|problems| problems()).unwrap_or_default();
        problems.into_iter().fold("ready\n".to_owned(), |page, problem| page + &problem + "\n")
    }
}

/// The part of the server that counts a request against its tenant's requests per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// The server, before it calls the handler.
    Server,
    /// The handler, once it has read the body: some requests are exempt by their content.
    Handler,
}

/// One method of a path, and its handler.
#[derive(Clone)]
pub struct Route {
    pub method: Method,
    pub access: Access,
    pub rate_limit: RateLimit,
    pub handler: Handler,
    /// Also formats errors raised before the handler runs.
    pub error_format: ErrorFormat,
    pub audit: AuditScope,
}

/// Error for a request that matches no route or method, and the format to report it in.
#[derive(Debug)]
pub(crate) struct RouteMiss {
    /// The path, if only the method does not match.
    pub(crate) id: RouteId,
    pub(crate) error: ApiError,
    pub(crate) error_format: ErrorFormat,
}

/// Number of a path or prefix in the table; a listener's part of a table keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteId(usize);

impl RouteId {
    /// Stands for requests that match no route.
    pub(crate) const NONE: Self = Self(usize::MAX);
}

/// Routes of a path or prefix, by method.
#[derive(Clone)]
struct PathRoutes {
    id: RouteId,
    routes: Vec<Route>,
}

impl PathRoutes {
    /// Splits the routes into those of the public and those of the admin listener.
    fn split(self, path: &str) -> (Option<Self>, Option<Self>) {
        let (public, admin) = split_routes(path, self.routes);
        let of = |routes: Vec<Route>| (!routes.is_empty()).then_some(Self { id: self.id, routes });
        (of(public), of(admin))
    }
}

/// A route that matches a request.
#[derive(Clone, Copy)]
pub(crate) struct RouteMatch<'a> {
    pub(crate) route: &'a Route,
    pub(crate) id: RouteId,
}

/// Routing table; contains `/livez` and `/readyz` from the start.
pub struct Routes {
    exact: HashMap<String, PathRoutes>,
    /// Paths with parameters, in the order in which they were added.
    parameterized: Vec<(String, PathRoutes)>,
    /// Prefixes including the trailing slash, longest first.
    prefixes: Vec<(String, PathRoutes)>,
    /// Number of routes.
    len: usize,
}

impl Routes {
    /// Creates a table that contains only the two probes.
    pub fn new(readiness: Readiness) -> Self {
        let live = handler(async |_| Ok(text("ok\n")));
        let ready = handler(move |_| {
            let response = match readiness.is_ready() {
                true => Ok(text(readiness.page())),
                false => Err(ApiError::Draining),
            };
            async move { response }
        });
        let probe = |id, handler| PathRoutes {
            id: RouteId(id),
            routes: vec![Route {
                method: Method::GET,
                access: Access::Unchecked,
                rate_limit: RateLimit::Server,
                handler,
                error_format: openai_error,
                audit: AuditScope::All,
            }],
        };
        let exact = [(LIVE.to_owned(), probe(0, live)), (READY.to_owned(), probe(1, ready))];
        Self { exact: exact.into(), parameterized: Vec::new(), prefixes: Vec::new(), len: 2 }
    }

    /// Adds a route with the default error format and rate limit.
    pub fn add(
        &mut self,
        method: Method,
        path: &str,
        access: Access,
        handler: Handler,
    ) -> Result<(), RouteError> {
        let rate_limit = RateLimit::Server;
        let audit = AuditScope::All;
        self.add_route(path, Route { method, access, rate_limit, handler, error_format: openai_error, audit })
    }

    /// Adds a route: `/a/b` matches that path, `/a/{id}` every path with one more segment, `/a/*` every path that begins with
    /// `/a/`, and `/{account}/*` every other path that begins with an account number.
    pub fn add_route(&mut self, path: &str, route: Route) -> Result<(), RouteError> {
        if self.len >= ROUTES_MAX {
            return Err(RouteError::TooMany);
        }
        if !path.starts_with('/') {
            return Err(RouteError::InvalidPattern { path: path.to_owned() });
        }
        // The number of a path's first route.
        let new = PathRoutes { id: RouteId(self.len), routes: Vec::new() };
        let PathRoutes { routes, .. } = match path.strip_suffix('*') {
            Some(prefix) if prefix.ends_with('/') => self.prefix(prefix, new),
            Some(_) => return Err(RouteError::InvalidPattern { path: path.to_owned() }),
            None if path.split('/').any(is_parameter) => self.parameterized(path, new),
            None if path.contains(['{', '}']) => {
                return Err(RouteError::InvalidPattern { path: path.to_owned() });
            }
            None => self.exact.entry(path.to_owned()).or_insert(new),
        };
        if routes.iter().any(|known| known.method == route.method) {
            return Err(RouteError::Duplicate { method: route.method, path: path.to_owned() });
        }
        routes.push(route);
        self.len += 1;
        Ok(())
    }

    fn parameterized(&mut self, path: &str, new: PathRoutes) -> &mut PathRoutes {
        let known = self.parameterized.iter().position(|(known, _)| known == path);
        let index = known.unwrap_or_else(|| {
            self.parameterized.push((path.to_owned(), new));
            self.parameterized.len() - 1
        });
        &mut self.parameterized[index].1
    }

    fn prefix(&mut self, prefix: &str, new: PathRoutes) -> &mut PathRoutes {
        let index = match self.prefixes.iter().position(|(known, _)| known == prefix) {
            Some(index) => index,
            None => {
                let index = self.prefixes.partition_point(|(known, _)| prefix.len() <= known.len());
                self.prefixes.insert(index, (prefix.to_owned(), new));
                index
            }
        };
        &mut self.prefixes[index].1
    }

    /// Lists method and path of every route, sorted.
    pub fn list(&self) -> Vec<(Method, String)> {
        let mut list = Vec::with_capacity(self.len);
        for (path, of_path) in self.patterns() {
            list.extend(of_path.routes.iter().map(|route| (route.method.clone(), path.clone())));
        }
        list.sort_by(|a, b| (&a.1, a.0.as_str()).cmp(&(&b.1, b.0.as_str())));
        list
    }

    /// Returns the pattern with this number, or `none`.
    pub(crate) fn pattern(&self, id: RouteId) -> String {
        let found = self.patterns().find(|(_, of_path)| of_path.id == id);
        found.map_or("none".to_owned(), |(pattern, _)| pattern)
    }

    fn patterns(&self) -> impl Iterator<Item = (String, &PathRoutes)> {
        let exact = self.exact.iter().map(|(path, of_path)| (path.clone(), of_path));
        let parameterized = self.parameterized.iter().map(|(path, of_path)| (path.clone(), of_path));
        let exact = exact.chain(parameterized);
        exact.chain(self.prefixes.iter().map(|(prefix, of_path)| (format!("{prefix}*"), of_path)))
    }

    /// Splits the table for two listeners; returns that of the public and that of the admin listener.
    ///
    /// The admin listener gets the native API, the metrics and the probes. The public one keeps the probes, and of the
    /// native API only what tenants use, where it accepts no admin key.
    pub fn split_admin(self) -> (Self, Self) {
        let empty =
            || Self { exact: HashMap::new(), parameterized: Vec::new(), prefixes: Vec::new(), len: 0 };
        let mut public = empty();
        let mut admin = empty();
        let count = |of_path: &Option<PathRoutes>| of_path.as_ref().map_or(0, |of_path| of_path.routes.len());
        let mut split = |path: &str, routes: PathRoutes, add: fn(&mut Self, &str, PathRoutes)| {
            let (of_public, of_admin) = routes.split(path);
            public.len += count(&of_public);
            admin.len += count(&of_admin);
            of_public.into_iter().for_each(|routes| add(&mut public, path, routes));
            of_admin.into_iter().for_each(|routes| add(&mut admin, path, routes));
        };
        for (path, routes) in self.exact {
            split(&path, routes, |table, path, routes| {
                table.exact.insert(path.to_owned(), routes);
            });
        }
        for (path, routes) in self.parameterized {
            split(&path, routes, |table, path, routes| table.parameterized.push((path.to_owned(), routes)));
        }
        for (prefix, routes) in self.prefixes {
            split(&prefix, routes, |table, prefix, routes| table.prefixes.push((prefix.to_owned(), routes)));
        }
        (public, admin)
    }

    /// Returns the methods of a path that web pages of configured origins may call; `None` if there are none.
    ///
    /// These are the routes of the APIs that authenticate a tenant by its key before the handler runs.
    pub(crate) fn cors_methods(&self, path: &str) -> Option<String> {
        let routes = &self.path_routes(path)?.routes;
        let of_tenants = routes.iter().filter(|route| route.access == Access::Tenant && !is_api(path));
        let methods: Vec<&str> = of_tenants.map(|route| route.method.as_str()).collect();
        (!methods.is_empty()).then(|| methods.join(", "))
    }

    fn path_routes(&self, path: &str) -> Option<&PathRoutes> {
        let parameterized = || self.parameterized.iter().find(|(pattern, _)| is_match(pattern, path));
        let prefixed = || self.prefixes.iter().find(|(prefix, _)| path.starts_with(prefix));
        let of_account = || self.prefixes.iter().find(|(prefix, _)| prefix == ACCOUNT && is_of_account(path));
        let by_pattern = || parameterized().or_else(prefixed).or_else(of_account).map(|(_, routes)| routes);
        self.exact.get(path).or_else(by_pattern)
    }

    /// Finds the route of a request; `GET` also handles `HEAD`, unless that has its own route.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Result<RouteMatch<'_>, RouteMiss> {
        let no_route =
            || RouteMiss { id: RouteId::NONE, error: ApiError::NoRoute, error_format: openai_error };
        let PathRoutes { id, routes } = self.path_routes(path).ok_or_else(no_route)?;
        let with_method = |method| routes.iter().find(|route| route.method == method);
        let found =
            with_method(method).or_else(|| with_method(&Method::GET).filter(|_| method == Method::HEAD));
        found.map(|route| RouteMatch { route, id: *id }).ok_or_else(|| {
            let methods: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
            let error_format = routes.first().map_or(openai_error as ErrorFormat, |route| route.error_format);
            RouteMiss { id: *id, error: ApiError::Method { allow: methods.join(", ") }, error_format }
        })
    }
}

/// Splits the routes of a path into those of the public and those of the admin listener.
fn split_routes(path: &str, routes: Vec<Route>) -> (Vec<Route>, Vec<Route>) {
    if matches!(path, LIVE | READY) {
        return (routes.clone(), routes);
    }
    if !is_api(path) && path != METRICS {
        return (routes, Vec::new());
    }
    let is_for_tenants = |route: &&Route| matches!(route.access, Access::Tenant | Access::TenantOrAdmin);
    let for_tenants = routes.iter().filter(is_for_tenants);
    let public = for_tenants.map(|route| Route { access: Access::Tenant, ..route.clone() }).collect();
    (public, routes)
}

/// Reports whether a path has the segments of a pattern; a parameter stands for any segment that is not empty.
fn is_match(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let is_segment = |expected: &str| {
        segments
            .next()
            .is_some_and(|segment| segment == expected || (is_parameter(expected) && !segment.is_empty()))
    };
    pattern.split('/').all(is_segment) && segments.next().is_none()
}

/// Reports whether a segment of a pattern is a parameter, such as `{id}`.
fn is_parameter(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && !name.contains(['{', '}']))
}

/// Reports whether the first segment of a path is an account number.
fn is_of_account(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    first.parse::<AccountNumber>().is_ok()
}

fn text(text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(body::full(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Reason why a route cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("more than {ROUTES_MAX} routes")]
    TooMany,
    #[error(
        "invalid route {path:?}: must be a path such as `/a/b` or `/a/{{id}}`, or a prefix such as `/a/*`"
    )]
    InvalidPattern { path: String },
    #[error("two handlers for {method} {path}")]
    Duplicate { method: Method, path: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a table; tests tell routes apart by their `Access`.
    fn table(routes: &[(Method, &str, Access)]) -> Routes {
        let mut table = Routes::new(Readiness::default());
        for (method, path, access) in routes {
            table.add(method.clone(), path, *access, unused()).unwrap();
        }
        table
    }

    fn unused() -> Handler {
        handler(async |_| Err(ApiError::Internal))
    }

    fn found(table: &Routes, method: Method, path: &str) -> Result<Access, ApiError> {
        table.find(&method, path).map(|found| found.route.access).map_err(|miss| miss.error)
    }

    #[test]
    fn an_exact_route_wins_over_a_prefix_and_a_longer_prefix_over_a_shorter_one() {
        let table = table(&[
            (Method::POST, "/v1/*", Access::Tenant),
            (Method::POST, "/v1/execute", Access::Admin),
            (Method::POST, "/v1/files/*", Access::Public),
        ]);
        assert_eq!(found(&table, Method::POST, "/v1/execute"), Ok(Access::Admin));
        assert_eq!(found(&table, Method::POST, "/v1/execute/x"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::POST, "/v1/files/7"), Ok(Access::Public));
        assert_eq!(found(&table, Method::POST, "/v1/"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::POST, "/v1"), Err(ApiError::NoRoute));
    }

    #[test]
    fn a_route_of_accounts_matches_paths_that_begin_with_twelve_digits() {
        let table =
            table(&[(Method::POST, "/{account}/*", Access::Public), (Method::POST, "/v1/*", Access::Tenant)]);
        assert_eq!(found(&table, Method::POST, "/000000000000/jobs"), Ok(Access::Public));
        assert_eq!(found(&table, Method::POST, "/123456789012/jobs"), Ok(Access::Public));
        for path in ["/12345678901/jobs", "/1234567890123/jobs", "/12345678901x/jobs", "/x/123456789012"] {
            assert_eq!(found(&table, Method::POST, path), Err(ApiError::NoRoute), "{path}");
        }
    }

    #[test]
    fn a_parameter_stands_for_one_segment_and_other_paths_are_not_found() {
        let table = table(&[
            (Method::GET, "/a/{id}", Access::Tenant),
            (Method::PUT, "/a/{id}", Access::Public),
            (Method::GET, "/a/{id}/b/{key}", Access::Admin),
            (Method::GET, "/a/exact", Access::Public),
        ]);
        assert_eq!(found(&table, Method::GET, "/a/x"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::GET, "/a/%2F"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::GET, "/a/exact"), Ok(Access::Public));
        assert_eq!(found(&table, Method::GET, "/a/x/b/y"), Ok(Access::Admin));
        let rejected = found(&table, Method::POST, "/a/x");
        assert_eq!(rejected, Err(ApiError::Method { allow: "GET, PUT".to_owned() }));
        for path in ["/a", "/a/", "/a/x/", "/a/x/b", "/a/x/b/", "/a/x/c/y", "/a/x/b/y/z", "/b/x"] {
            assert_eq!(found(&table, Method::GET, path), Err(ApiError::NoRoute), "{path}");
        }
    }

    #[test]
    fn paths_are_case_sensitive() {
        let table =
            table(&[(Method::POST, "/execute", Access::Tenant), (Method::POST, "/Execute", Access::Admin)]);
        assert_eq!(found(&table, Method::POST, "/execute"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::POST, "/Execute"), Ok(Access::Admin));
        assert_eq!(found(&table, Method::POST, "/EXECUTE"), Err(ApiError::NoRoute));
    }

    #[test]
    fn an_exact_path_without_the_method_does_not_fall_back_to_a_prefix() {
        let table = table(&[
            (Method::GET, "/v1/*", Access::Tenant),
            (Method::POST, "/v1/batch", Access::Tenant),
            (Method::PUT, "/v1/batch", Access::Tenant),
        ]);
        let rejected = found(&table, Method::GET, "/v1/batch");
        assert_eq!(rejected, Err(ApiError::Method { allow: "POST, PUT".to_owned() }));
    }

    #[test]
    fn get_routes_handle_head() {
        let table = table(&[(Method::POST, "/a", Access::Tenant)]);
        assert_eq!(found(&table, Method::HEAD, "/livez"), Ok(Access::Unchecked));
        assert!(found(&table, Method::HEAD, "/a").is_err());
    }

    #[test]
    fn duplicate_and_malformed_routes_are_rejected() {
        let mut table =
            table(&[(Method::GET, "/a/*", Access::Public), (Method::GET, "/a/{id}", Access::Public)]);
        let mut error =
            |path: &str| table.add(Method::GET, path, Access::Public, unused()).unwrap_err().to_string();
        assert_eq!(error("/livez"), "two handlers for GET /livez");
        assert_eq!(error("/a/*"), "two handlers for GET /a/*");
        assert_eq!(error("/a/{id}"), "two handlers for GET /a/{id}");
        let rule = "must be a path such as `/a/b` or `/a/{id}`, or a prefix such as `/a/*`";
        assert_eq!(error("/b/{id"), format!("invalid route \"/b/{{id\": {rule}"));
        assert_eq!(error("/b*"), format!("invalid route \"/b*\": {rule}"));
        assert_eq!(error("b"), format!("invalid route \"b\": {rule}"));
    }

    #[test]
    fn the_list_has_every_route() {
        let table = table(&[(Method::PUT, "/a/*", Access::Tenant), (Method::GET, "/a/*", Access::Tenant)]);
        let list: Vec<String> =
            table.list().iter().map(|(method, path)| format!("{method} {path}")).collect();
        assert_eq!(list, ["GET /a/*", "PUT /a/*", "GET /livez", "GET /readyz"]);
    }

    #[test]
    fn the_admin_listener_takes_the_native_api_and_leaves_tenants_their_part() {
        let (public, admin) = table(&[
            (Method::POST, "/v1/*", Access::Tenant),
            (Method::GET, "/api/nodes", Access::Admin),
            (Method::GET, "/api/queues/{queue}", Access::TenantOrAdmin),
            (Method::GET, "/api/usage", Access::Tenant),
            (Method::GET, "/metrics", Access::Public),
        ])
        .split_admin();
        let both = |method: Method, path: &str| {
            (found(&public, method.clone(), path).ok(), found(&admin, method, path).ok())
        };
        assert_eq!(both(Method::GET, "/livez"), (Some(Access::Unchecked), Some(Access::Unchecked)));
        assert_eq!(both(Method::POST, "/v1/x"), (Some(Access::Tenant), None));
        assert_eq!(both(Method::GET, "/api/nodes"), (None, Some(Access::Admin)));
        assert_eq!(both(Method::GET, "/api/queues/q"), (Some(Access::Tenant), Some(Access::TenantOrAdmin)));
        assert_eq!(both(Method::GET, "/api/usage"), (Some(Access::Tenant), Some(Access::Tenant)));
        assert_eq!(both(Method::GET, "/metrics"), (None, Some(Access::Public)));
    }

    #[test]
    fn the_number_of_routes_is_limited() {
        let mut table = table(&[]);
        for n in 2..ROUTES_MAX {
            table.add(Method::GET, &format!("/{n}"), Access::Public, unused()).unwrap();
        }
        assert_eq!(table.add(Method::GET, "/x", Access::Public, unused()), Err(RouteError::TooMany));
    }
}
