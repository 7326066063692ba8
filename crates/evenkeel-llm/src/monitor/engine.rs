//! Detection of a node's engine, by its headers, its model list and its endpoints.

use core::fmt;

use http::{HeaderMap, header};
use serde_json::Value;

/// Kind of model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    Vllm,
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
    Ollama,
    /// Text Generation Inference.
    Tgi,
    LmStudio,
    /// Evenkeel's own simulated server.
    SimNode,
    /// A server that responds but could not be identified.
    Unknown,
}

impl Engine {
    /// Returns the name for metrics, JSON and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llama.cpp",
            Self::Ollama => "ollama",
            Self::Tgi => "tgi",
            Self::LmStudio => "lm-studio",
            Self::SimNode => "sim-node",
            Self::Unknown => "unknown",
        }
    }

    /// Identifies an engine by the owner that it lists for its models.
    pub(super) fn by_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "llamacpp" => Some(Self::LlamaCpp),
            "organization_owner" => Some(Self::LmStudio),
            "evenkeel-sim-node" => Some(Self::SimNode),
            _ => None,
        }
    }

    /// Identifies an engine by the `Server` header.
    pub(super) fn by_headers(headers: &HeaderMap) -> Option<Self> {
        let server = headers.get(header::SERVER)?.to_str().ok()?;
        server.starts_with("llama.cpp").then_some(Self::LlamaCpp)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An endpoint whose reply has fields that identify an engine.
pub(super) struct EngineFingerprint {
    pub(super) path: &'static str,
    pub(super) engine: Engine,
    fields: &'static [&'static str],
}

/// Fingerprints in the order in which they are tried, the most specific first: many engines have `/version`.
pub(super) const FINGERPRINTS: &[EngineFingerprint] = &[
    EngineFingerprint { path: "/api/version", engine: Engine::Ollama, fields: &["version"] },
    EngineFingerprint { path: "/props", engine: Engine::LlamaCpp, fields: &["total_slots"] },
    EngineFingerprint {
        path: "/info",
        engine: Engine::Tgi,
        fields: &["model_id", "max_concurrent_requests"],
    },
    EngineFingerprint { path: "/get_model_info", engine: Engine::Sglang, fields: &["model_path"] },
    EngineFingerprint { path: "/version", engine: Engine::Vllm, fields: &["version"] },
];

impl EngineFingerprint {
    pub(super) fn matches(&self, reply: &Value) -> bool {
        self.fields.iter().all(|field| reply.get(field).is_some())
    }
}

/// Returns the endpoint and field with which an engine reports its concurrency limit.
pub(super) fn slots_endpoint(engine: Engine) -> Option<(&'static str, &'static str)> {
    match engine {
        Engine::LlamaCpp => Some(("/props", "total_slots")),
        Engine::Tgi => Some(("/info", "max_concurrent_requests")),
        Engine::Vllm
        | Engine::Sglang
        | Engine::Ollama
        | Engine::LmStudio
        | Engine::SimNode
        | Engine::Unknown => None,
    }
}
