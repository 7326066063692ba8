//! The route by which peers poll this node.

use std::sync::Arc;

use evenkeel_cluster::{Cluster, POLL_PATH, PollError};
use http::Method;

use crate::api_error::ApiError;
use crate::body::{Response, full};
use crate::route::{RouteError, Routes, handler};
use crate::tenant::Access;

/// Adds the route. It needs no API key, because polls are signed.
pub fn add_routes(cluster: &Arc<Cluster>, routes: &mut Routes) -> Result<(), RouteError> {
    let cluster = cluster.clone();
    let poll = handler(move |call| {
        let response = cluster.serve_poll(call.request.headers());
        async move { Ok(response.map_or_else(reject, |response| response.map(full))) }
    });
    routes.add(Method::GET, POLL_PATH, Access::Unchecked, poll)
}

/// Responds with the status from which the poller derives the cause.
fn reject(error: PollError) -> Response {
    let mut response = ApiError::invalid(error.to_string()).into_response();
    *response.status_mut() = error.status();
    response
}
