//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

mod options;
mod upstream;
mod walk;

pub use options::{HealthOptions, LlmOptions, NodeOptions};
pub use upstream::{BadRoots, BadUrl, Origin, SendError, TlsRoots, Upstream, UpstreamBody};
