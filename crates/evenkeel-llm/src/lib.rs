//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

mod api;
mod deadline;
mod error;
mod error_format;
mod headers;
mod job;
mod json;
mod models;
mod monitor;
mod node_registry;
mod node_response;
mod options;
mod proxy;
pub mod request;
mod response_body;
pub mod sse;
mod status;
mod token_reservation;
mod trace;
pub mod usage;

pub use api::{LlmApi, LlmError};
pub use headers::retry_after;
pub use job::{ANSWER_BYTES_MAX, Job, JobResponse, JobTarget};
pub use monitor::{
    Engine, Finding, HealthCheckResult, MonitorStartError, MonitorTarget, Monitors, Report, read_metrics,
    read_slots,
};
pub use node_registry::{Node, NodeError};
pub use options::{Concurrency, HealthOptions, LlmOptions, NodeOptions};
