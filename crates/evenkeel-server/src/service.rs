//! One request's way through a door: named, checked, routed, let in, answered.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::sync::atomic::AtomicUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use core::task::Poll;
use evenkeel_policy::time::Duration;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Request, Version};
use http_body_util::Limited;
use hyper::body::{Body as _, Incoming};

use crate::api_error::ApiError;
use crate::body::Response;
use crate::disconnect::{Disconnect, RequestGuard, TrackedBody};
use crate::request_id::{REQUEST_ID, RequestIds};
use crate::route::{HandlerFuture, Route, RouteMiss, Routes, ServerRequest};
use crate::tenant::{Authenticator, Caller};

/// Headers that mean one thing; two of them are an attempt to mean two.
const SINGLE: [&str; 6] = ["host", "authorization", "content-length", "content-type", "x-api-key", "api-key"];

/// What the requests of a listener share.
pub(crate) struct RequestService {
    pub(crate) gate: Arc<Authenticator>,
    pub(crate) routes: Routes,
    pub(crate) ids: RequestIds,
    pub(crate) in_flight: Arc<AtomicUsize>,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_wait_max: Duration,
}

/// Whether a request's length is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Clear,
    Doubtful,
}

impl RequestService {
    /// Answers a request, whatever it is.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
        length: BodyLength,
    ) -> http::Response<TrackedBody> {
        let (presence, disconnect) = RequestGuard::new(self.in_flight.clone());
        let method = request.method().clone();
        let version = request.version();
        let request_id = self.ids.of(request.headers());
        let (route, wording) = match self.routes.find(&method, request.uri().path()) {
            Ok(route) => (Ok(route), route.wording),
            Err(RouteMiss { refusal, wording }) => (Err(refusal), wording),
        };
        let answer = match self.dispatch(route, request, peer, length, request_id.clone(), disconnect) {
            Ok(answer) => catch_panic(answer).await,
            Err(refusal) => Err(refusal),
        };
        let must_close = version < Version::HTTP_2 && matches!(answer, Err(ApiError::Framing));
        let mut response = answer.unwrap_or_else(|refusal| wording(refusal, &request_id));
        response.headers_mut().insert(REQUEST_ID, request_id);
        if must_close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        TrackedBody::watch(response, &method, presence)
    }

    /// Lets a request in, as far as its handler.
    fn dispatch(
        &self,
        route: Result<&Route, ApiError>,
        request: Request<Incoming>,
        peer: SocketAddr,
        length: BodyLength,
        request_id: HeaderValue,
        disconnect: Disconnect,
    ) -> Result<HandlerFuture, ApiError> {
        if length == BodyLength::Doubtful {
            return Err(ApiError::Framing);
        }
        check_single(request.headers())?;
        let route = route?;
        let caller = self.gate.caller(route.access, request.headers(), peer)?;
        let bytes_max = self.body_bytes_max as u64;
        if bytes_max < request.body().size_hint().lower() {
            return Err(ApiError::BodyTooLarge { bytes_max });
        }
        let accepted_at = self.gate.now();
        if let Caller::Tenant(tenant) = &caller {
            tenant.take_request(accepted_at)?;
        }
        let request = request.map(|body| Limited::new(body, self.body_bytes_max));
        let body_wait_max = self.body_wait_max;
        let call = ServerRequest {
            request,
            caller,
            disconnect,
            request_id,
            accepted_at,
            body_bytes_max: bytes_max,
            body_wait_max,
        };
        catch_unwind(AssertUnwindSafe(|| (route.handler)(call))).map_err(|_| ApiError::Internal)
    }
}

fn check_single(headers: &HeaderMap) -> Result<(), ApiError> {
    // Few requests have any header twice.
    if headers.len() == headers.keys_len() {
        return Ok(());
    }
    for name in SINGLE {
        if 1 < headers.get_all(name).iter().count() {
            return Err(ApiError::invalid(format!("header {name} is given twice")));
        }
    }
    Ok(())
}

/// Answers for a handler that panics, so that only its own request is lost.
async fn catch_panic(answer: HandlerFuture) -> Result<Response, ApiError> {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        polled.unwrap_or(Poll::Ready(Err(ApiError::Internal)))
    })
    .await
}
