//! Evenkeel's LLM API: a proxy for OpenAI- and Anthropic-compatible model servers with admission control, token-fair
//! scheduling, load-aware node selection and failover.

mod api;
mod deadline;
mod error;
mod error_format;
mod forwarding;
mod headers;
mod job;
mod json;
mod model_chain;
mod model_table;
mod models;
mod monitor;
mod node_registry;
mod node_response;
mod options;
mod prices;
mod proxy;
pub mod request;
mod request_metrics;
mod response_body;
mod response_check;
pub mod sse;
mod status;
mod tenant_flow;
mod token_reservation;
mod trace;
pub mod usage;

pub use api::{LlmApi, LlmError};
pub use forwarding::PassOptions;
pub use headers::retry_after;
pub use job::{Job, JobResponse, JobTarget, RESPONSE_BYTES_MAX};
pub use model_table::{
    FALLBACKS_MAX, FallbackOn, MODEL_ENTRIES_MAX, ModelError, ModelErrorKind, ModelOptions, ModelTable,
};
pub use monitor::{
    Engine, Finding, HealthCheckResult, MonitorStartError, MonitorTarget, Monitors, Report, read_metrics,
    read_slots,
};
pub use node_registry::{Node, NodeError};
pub use options::{Concurrency, HealthOptions, LlmOptions, NodeOptions};
pub use prices::{Price, PriceTable};
