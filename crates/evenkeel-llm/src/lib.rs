//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

mod json;
mod monitor;
mod options;
pub mod request;
pub mod sse;
mod upstream;
pub mod usage;

pub use monitor::{Check, Engine, Finding, Monitors, NotStarted, Report, Watched};
pub use options::{HealthOptions, LlmOptions, NodeOptions};
pub use upstream::{BadRoots, BadUrl, Origin, SendError, TlsRoots, Upstream, UpstreamBody};
