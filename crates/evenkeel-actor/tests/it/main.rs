//! Tests of the public API: in virtual time where time or order matters, on tokio where threads matter.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]
#![allow(clippy::float_cmp, reason = "metrics are floats, and counts among them are whole")]
#![allow(clippy::type_complexity, reason = "a puppet is made of closures")]

mod harness;

mod adaptive;
mod addresses;
mod awaiting;
mod backpressure;
mod r#become;
mod capacity_wait;
mod cooperative;
mod custom_invoker;
mod defects;
mod examples;
mod failure;
mod guardian;
mod host;
mod hub;
mod in_place;
mod invoker;
mod lifecycle;
mod limits;
mod mailbox_failure;
mod middleware;
mod on_tokio;
mod producer;
mod registry;
mod regressions;
mod restarts;
mod router;
mod runtime_cases;
mod scenarios;
mod shutdown;
mod spawn_middleware;
mod stash;
mod stress;
mod suspend;
mod timers;
#[cfg(feature = "tracing")]
mod traces;
mod watch;
mod wheel;
mod workers;
