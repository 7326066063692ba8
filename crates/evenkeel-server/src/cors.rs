//! CORS (cross-origin resource sharing): lets the web pages of configured origins call the APIs of tenants.
//!
//! Guarantees: a page gets CORS headers only if its exact origin is configured, and never from the native API, the metrics,
//! the probes or routes between servers. Cookies and other credentials of the browser are never allowed: a page sends its
//! API key in a header. A preflight request needs no key and reaches no handler.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::body::{self, Response};
use crate::origin::TrustedSites;
use crate::route::Routes;

/// Headers of responses that pages may read, besides those that browsers always let them read.
const EXPOSED: &str =
    "x-request-id, x-queue-wait-ms, x-queue-size, retry-after, x-evenkeel-model, request-id";
/// Seconds for which a browser may remember the answer to a preflight request.
const MAX_AGE: &str = "600";

/// CORS of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cors {
    /// Methods of the path, if pages of other origins may call it.
    methods: Option<String>,
    /// Origin of the page, if it is configured.
    origin: Option<HeaderValue>,
    /// Headers that a preflight request asks for; `None` for any other request.
    preflight: Option<HeaderValue>,
}

impl Cors {
    pub(crate) fn new(
        sites: &TrustedSites,
        routes: &Routes,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Self {
        if sites.origins.is_empty() {
            return Self::default();
        }
        let Some(methods) = routes.cors_methods(path) else { return Self::default() };
        let origin =
            single(headers, ORIGIN.as_str()).filter(|origin| sites.is_trusted_origin(origin)).cloned();
        let is_preflight = *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let asked = || headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let preflight =
            (is_preflight && origin.is_some()).then(|| asked().unwrap_or(HeaderValue::from_static("")));
        Self { methods: Some(methods), origin, preflight }
    }

    /// Returns the response to a preflight request from a page of a configured origin; `None` for other requests.
    pub(crate) fn preflight_response(&self) -> Option<Response> {
        let allowed_headers = self.preflight.clone()?;
        let methods = HeaderValue::from_str(self.methods.as_deref()?).ok()?;
        let mut response = Response::new(body::full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        // SDKs send many headers of their own; `*` would not include `Authorization`.
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers);
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        headers.append(VARY, HeaderValue::from_static("access-control-request-headers"));
        Some(response)
    }

    /// Adds the headers by which a browser lets the page read a response.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        if self.methods.is_none() {
            return;
        }
        // Also without an origin: a cache must not serve this response to a page.
        headers.append(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}

/// Returns the value of a header that is given once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}
