//! The HTTP server that all APIs share: listener, TLS, routes, authentication, rate limits, errors, client disconnects.
//!
//! The life of a request: [`listener`] accepts a connection, up to a maximum ([`connections`]) → `connection` detects HTTP/1.1 or HTTP/2
//! and checks the framing (`framing`) → `service` assigns a [`request_id`], rejects malformed requests, finds the route
//! ([`route`]), authenticates the caller ([`api_key`], [`tenant`]; signed requests of AWS clients: [`sigv4`], [`access_key`]) and checks its rate limit ([`rate_window`]) → the
//! API's handler, which reads the body ([`received_body`]) within a budget ([`body_budget`]), with a [`disconnect`] signal → [`sending`] reads ahead for a slow client → a response, or an [`api_error`] in one format for all APIs.

pub mod access_key;
pub mod api_error;
pub mod api_key;
pub mod audit_trail;
pub mod body;
pub mod body_budget;
pub mod budget;
pub mod calendar;
pub mod cluster;
mod coalesce_wakes;
mod connection;
pub mod connections;
mod cors;
pub mod disconnect;
mod framing;
pub mod hex;
pub mod listener;
pub mod metrics;
pub mod money;
pub mod origin;
pub mod percent;
pub mod query;
pub mod rate_window;
pub mod received_body;
pub mod request_body;
pub mod request_id;
pub mod route;
pub mod scheduling;
pub mod sending;
mod service;
pub mod sigv4;
pub mod tenant;
pub mod tenant_key;
mod timer;
pub mod tls;
pub mod unix_seconds;
pub mod usage_ledger;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
