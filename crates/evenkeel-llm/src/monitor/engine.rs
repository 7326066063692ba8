//! What a node is, by what it says of itself.

use core::fmt;

use http::{HeaderMap, header};
use serde_json::Value;

/// A kind of model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// Text Generation Inference.
    Tgi,
    /// LM Studio.
    LmStudio,
    /// Evenkeel's own simulated server.
    SimNode,
    /// Something that answers, and does not say what it is.
    Unknown,
}

impl Engine {
    /// Names it, for people and labels.
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

    /// Knows engines that name themselves as the owner of their models.
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

    /// Knows engines that name themselves in every answer.
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

/// A question that one engine only has an answer to.
pub(super) struct EngineFingerprint {
    pub(super) path: &'static str,
    pub(super) engine: Engine,
    fields: &'static [&'static str],
}

/// From the most telling on: `/version` many have.
pub(super) const CLUES: &[EngineFingerprint] = &[
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
    pub(super) fn fits(&self, said: &Value) -> bool {
        self.fields.iter().all(|field| said.get(field).is_some())
    }
}

/// Where an engine tells how many requests it works on at once, and in which field.
pub(super) fn slots_question(engine: Engine) -> Option<(&'static str, &'static str)> {
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
