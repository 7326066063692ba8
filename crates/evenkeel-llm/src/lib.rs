//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

#![cfg_attr(loom, allow(dead_code, unreachable_pub, reason = "models use the walk alone"))]

#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
mod deadline;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod error_format;
#[cfg(not(loom))]
mod headers;
#[cfg(not(loom))]
mod job;
#[cfg(not(loom))]
mod json;
#[cfg(not(loom))]
mod models;
#[cfg(not(loom))]
mod monitor;
#[cfg(not(loom))]
mod node_registry;
#[cfg(not(loom))]
mod node_response;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod proxy;
#[cfg(not(loom))]
pub mod request;
#[cfg(not(loom))]
mod response_body;
#[cfg(not(loom))]
pub mod sse;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod token_reservation;
#[cfg(not(loom))]
mod trace;
#[cfg(not(loom))]
mod upstream;
#[cfg(not(loom))]
pub mod usage;
mod walk;

#[cfg(not(loom))]
pub use api::{LlmApi, LlmError};
#[cfg(not(loom))]
pub use headers::retry_after;
#[cfg(not(loom))]
pub use job::{ANSWER_BYTES_MAX, Job, JobResponse, JobTarget};
#[cfg(not(loom))]
pub use monitor::{
    Engine, Finding, HealthCheckResult, MonitorStartError, MonitorTarget, Monitors, Report, read_metrics,
    read_slots,
};
#[cfg(not(loom))]
pub use node_registry::{Node, NodeError};
#[cfg(not(loom))]
pub use options::{Concurrency, HealthOptions, LlmOptions, NodeOptions};
#[cfg(not(loom))]
pub use upstream::response_parser;
#[cfg(not(loom))]
pub use upstream::{BadRoots, BadUrl, Origin, TlsRoots, Upstream, UpstreamBody, UpstreamError};
