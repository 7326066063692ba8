//! What every door shares: listener, TLS, routes, who asks, how often, errors, and whether they are still there.
//!
//! One request's way: [`listener`] accepts a connection, bounded in number, → `connection` tells HTTP/1.1 from
//! h2 and watches the framing → `walk` names the request, refuses what is malformed, finds the route
//! ([`route`]), the caller ([`key`], [`tenant`]) and whether its minute has room ([`rate`]) → the door's own handler,
//! with a [`disconnect`] signal → a response, or a [`refusal`] in one shape for all doors.

pub mod api_error;
pub mod api_key;
pub mod body;
mod coalesce_wakes;
mod connection;
pub mod disconnect;
mod framing;
pub mod listener;
pub mod percent;
pub mod rate_window;
pub mod request_id;
pub mod route;
mod service;
pub mod tenant;
mod timer;
pub mod tls;

/// Holds the README's example to what the crate does.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
