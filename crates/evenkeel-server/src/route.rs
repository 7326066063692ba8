//! Which handler answers a path: exact routes first, then the longest prefix.
//!
//! Bound: at most 1024 routes; a look-up costs one hash and a comparison per prefix. Paths are compared byte by byte,
//! as sent: case counts, and nothing is decoded.

use core::fmt;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::time::{Duration, Instant};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt, LengthLimitError};

use crate::api_error::ApiError;
use crate::body::{self, RequestBody, Response};
use crate::disconnect::Disconnect;
use crate::tenant::{Access, Caller};

/// How many routes a table holds at most.
pub const ROUTES_MAX: usize = 1024;

/// One request, as a handler gets it.
pub struct ServerRequest {
    /// The request, its body not yet read.
    pub request: http::Request<RequestBody>,
    /// Who asks.
    pub caller: Caller,
    /// Whether they are still there.
    pub disconnect: Disconnect,
    /// The request's name, also in the answer.
    pub request_id: HeaderValue,
    /// When the request was accepted.
    pub accepted_at: Instant,
    pub(crate) body_bytes_max: u64,
    pub(crate) body_wait_max: Duration,
}

impl ServerRequest {
    /// Reads the body to its end, within the listener's limits of size and time.
    pub async fn read_body(&mut self) -> Result<Bytes, ApiError> {
        match tokio::time::timeout(self.body_wait_max, self.request.body_mut().collect()).await {
            Ok(Ok(all)) => Ok(all.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Err(ApiError::BodyTooLarge { bytes_max: self.body_bytes_max })
            }
            Ok(Err(_)) => Err(ApiError::invalid("the body ended early")),
            Err(_) => Err(ApiError::BodyTimeout),
        }
    }
}

/// A handler's answer, in time.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
/// What answers a route: dropped where it stands when the client leaves.
pub type Handler = Arc<dyn Fn(ServerRequest) -> HandlerFuture + Send + Sync>;

/// Makes a handler of an async function.
pub fn handler<F, A>(answer: F) -> Handler
where
    F: Fn(ServerRequest) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    Arc::new(move |call| Box::pin(answer(call)))
}

/// How a route says no to the request of this name.
pub type ErrorFormat = fn(ApiError, &HeaderValue) -> Response;

/// Says no in OpenAI's shape, which routes do that name no other.
pub fn openai_error(refusal: ApiError, _: &HeaderValue) -> Response {
    refusal.into_response()
}

/// Whether this server wants traffic, for `/readyz`.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says that it does.
    pub fn ready(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Says that it does not, or no more.
    pub fn unready(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Tells whether it does.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A method of a path, and what answers it.
pub(crate) struct Route {
    method: Method,
    pub(crate) access: Access,
    pub(crate) handler: Handler,
    pub(crate) wording: ErrorFormat,
}

/// Why no route answers, and how that is said.
#[derive(Debug)]
pub(crate) struct RouteMiss {
    pub(crate) refusal: ApiError,
    pub(crate) wording: ErrorFormat,
}

/// The table of routes; `/livez` and `/readyz` are in it from the start.
pub struct Routes {
    exact: HashMap<String, Vec<Route>>,
    /// With their final slash, longest first.
    prefixes: Vec<(String, Vec<Route>)>,
    len: usize,
}

impl Routes {
    /// Makes a table with the two probes.
    pub fn new(readiness: Readiness) -> Self {
        let live = handler(async |_| Ok(text("ok\n")));
        let ready = handler(move |_| {
            let is_ready = readiness.is_ready();
            async move { if is_ready { Ok(text("ready\n")) } else { Err(ApiError::Draining) } }
        });
        let probe = |handler| {
            vec![Route { method: Method::GET, access: Access::Public, handler, wording: openai_error }]
        };
        let exact = [("/livez".to_owned(), probe(live)), ("/readyz".to_owned(), probe(ready))];
        Self { exact: exact.into(), prefixes: Vec::new(), len: 2 }
    }

    /// Adds a route: `/a/b` is that path, `/a/*` every path that begins with `/a/`.
    pub fn add(
        &mut self,
        method: Method,
        path: &str,
        access: Access,
        handler: Handler,
    ) -> Result<(), RouteError> {
        self.add_with_error_format(method, path, access, handler, openai_error)
    }

    /// Adds a route that has its own way to say no, from the first check on.
    pub fn add_with_error_format(
        &mut self,
        method: Method,
        path: &str,
        access: Access,
        handler: Handler,
        wording: ErrorFormat,
    ) -> Result<(), RouteError> {
        if ROUTES_MAX <= self.len {
            return Err(RouteError::TooMany);
        }
        if !path.starts_with('/') {
            return Err(RouteError::NotAPath { path: path.to_owned() });
        }
        let routes = match path.strip_suffix('*') {
            Some(prefix) if prefix.ends_with('/') => self.prefix(prefix),
            Some(_) => return Err(RouteError::NotAPath { path: path.to_owned() }),
            None => self.exact.entry(path.to_owned()).or_default(),
        };
        if routes.iter().any(|route| route.method == method) {
            return Err(RouteError::Twice { method, path: path.to_owned() });
        }
        routes.push(Route { method, access, handler, wording });
        self.len += 1;
        Ok(())
    }

    fn prefix(&mut self, prefix: &str) -> &mut Vec<Route> {
        let at = match self.prefixes.iter().position(|(known, _)| known == prefix) {
            Some(at) => at,
            None => {
                let at = self.prefixes.partition_point(|(known, _)| prefix.len() <= known.len());
                self.prefixes.insert(at, (prefix.to_owned(), Vec::new()));
                at
            }
        };
        &mut self.prefixes[at].1
    }

    /// Finds what answers; `HEAD` is answered by `GET` unless it has a route of its own.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Result<&Route, RouteMiss> {
        let prefixed = || self.prefixes.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, r)| r);
        let none = || RouteMiss { refusal: ApiError::NoRoute, wording: openai_error };
        let routes = self.exact.get(path).or_else(prefixed).ok_or_else(none)?;
        let by = |method| routes.iter().find(|route| route.method == method);
        let found = by(method).or_else(|| by(&Method::GET).filter(|_| method == Method::HEAD));
        found.ok_or_else(|| {
            let methods: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
            let wording = routes.first().map_or(openai_error as ErrorFormat, |route| route.wording);
            RouteMiss { refusal: ApiError::Method { allow: methods.join(", ") }, wording }
        })
    }
}

fn text(text: &'static str) -> Response {
    let mut response = Response::new(body::full(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// A route that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The table is full.
    TooMany,
    /// Neither `/a/b` nor `/a/*`.
    NotAPath {
        /// What it is.
        path: String,
    },
    /// Another handler answers it.
    Twice {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "more than {ROUTES_MAX} routes"),
            Self::NotAPath { path } => write!(f, "route {path:?} is neither `/a/b` nor `/a/*`"),
            Self::Twice { method, path } => write!(f, "two handlers for {method} {path}"),
        }
    }
}

impl core::error::Error for RouteError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routes whose access tells them apart.
    fn table(routes: &[(Method, &str, Access)]) -> Routes {
        let mut table = Routes::new(Readiness::default());
        for (method, path, access) in routes {
            table.add(method.clone(), path, *access, nothing()).unwrap();
        }
        table
    }

    fn nothing() -> Handler {
        handler(async |_| Err(ApiError::Internal))
    }

    fn found(table: &Routes, method: Method, path: &str) -> Result<Access, ApiError> {
        table.find(&method, path).map(|route| route.access).map_err(|unrouted| unrouted.refusal)
    }

    #[test]
    fn an_exact_route_precedes_a_prefix_and_a_longer_prefix_a_shorter() {
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
    fn case_counts() {
        let table =
            table(&[(Method::POST, "/execute", Access::Tenant), (Method::POST, "/Execute", Access::Admin)]);
        assert_eq!(found(&table, Method::POST, "/execute"), Ok(Access::Tenant));
        assert_eq!(found(&table, Method::POST, "/Execute"), Ok(Access::Admin));
        assert_eq!(found(&table, Method::POST, "/EXECUTE"), Err(ApiError::NoRoute));
    }

    #[test]
    fn a_method_that_an_exact_route_does_not_take_is_not_the_prefixs() {
        let table = table(&[
            (Method::GET, "/v1/*", Access::Tenant),
            (Method::POST, "/v1/batch", Access::Tenant),
            (Method::PUT, "/v1/batch", Access::Tenant),
        ]);
        let refused = found(&table, Method::GET, "/v1/batch");
        assert_eq!(refused, Err(ApiError::Method { allow: "POST, PUT".to_owned() }));
    }

    #[test]
    fn head_is_answered_by_get() {
        let table = table(&[(Method::POST, "/a", Access::Tenant)]);
        assert_eq!(found(&table, Method::HEAD, "/livez"), Ok(Access::Public));
        assert!(found(&table, Method::HEAD, "/a").is_err());
    }

    #[test]
    fn what_is_no_route_is_refused() {
        let mut table = table(&[(Method::GET, "/a/*", Access::Public)]);
        let mut refused =
            |path: &str| table.add(Method::GET, path, Access::Public, nothing()).unwrap_err().to_string();
        assert_eq!(refused("/livez"), "two handlers for GET /livez");
        assert_eq!(refused("/a/*"), "two handlers for GET /a/*");
        assert_eq!(refused("/b*"), "route \"/b*\" is neither `/a/b` nor `/a/*`");
        assert_eq!(refused("b"), "route \"b\" is neither `/a/b` nor `/a/*`");
    }

    #[test]
    fn the_table_has_an_end() {
        let mut table = table(&[]);
        for n in 2..ROUTES_MAX {
            table.add(Method::GET, &format!("/{n}"), Access::Public, nothing()).unwrap();
        }
        assert_eq!(table.add(Method::GET, "/x", Access::Public, nothing()), Err(RouteError::TooMany));
    }
}
