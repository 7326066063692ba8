//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

mod admin;
mod answer;
mod bill;
mod deadline;
mod door;
mod forward;
mod headers;
mod json;
mod models;
mod monitor;
mod nodes;
mod options;
mod refuse;
mod relay;
pub mod request;
pub mod sse;
mod status;
mod trace;
mod upstream;
pub mod usage;
mod walk;
mod wording;

pub use door::{Llm, LlmError};
pub use monitor::{Check, Engine, Finding, Monitors, NotStarted, Report, Watched};
pub use nodes::{Node, NodeError};
pub use options::{CONCURRENCY_DEFAULT, HealthOptions, LlmOptions, NodeOptions};
pub use upstream::wire;
pub use upstream::{BadRoots, BadUrl, Origin, SendError, TlsRoots, Upstream, UpstreamBody};
