//! Evenkeel's LLM door: OpenAI-compatible servers behind admission, token-fair turns, load-aware choice and honest
//! failure.

mod options;
mod walk;

pub use options::{HealthOptions, LlmOptions, NodeOptions};
