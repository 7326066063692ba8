//! What the door is set up with; every value has been checked by whoever read it, and is checked again where it is used.

use evenkeel_pipeline::PipelineOptions;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Secret;

/// Everything the door is set up with.
#[derive(Clone, Debug, Default)]
pub struct LlmOptions {
    /// The walk; its `load.connection_pool` is also how connections to nodes are kept.
    pub pipeline: PipelineOptions,
    /// How nodes are looked after.
    pub health: HealthOptions,
    /// How long a node may take to its first byte before another is asked; `None` leaves it to `request_timeout`.
    pub first_byte_max: Option<Duration>,
    /// The nodes known from the start.
    pub nodes: Vec<NodeOptions>,
}

/// How many requests a node works on at once that neither it nor anybody else says anything about.
pub const CONCURRENCY_DEFAULT: u32 = 8;

/// A node as configured.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name, unique among the nodes.
    pub name: String,
    /// Where it listens, as `http://host:port/base` or `https://…`; more than one where several ways lead to it.
    pub paths: Vec<String>,
    /// What it serves; none named means that it is asked.
    pub models: Vec<String>,
    /// How many requests it works on at once; without it, as many as it says, or else [`CONCURRENCY_DEFAULT`].
    pub max_concurrency: Option<u32>,
    /// How much of the work it should get, relative to the others.
    pub weight: Weight,
    /// The key it wants to be called with, if any.
    pub api_key: Option<Secret<String>>,
}

/// How nodes are looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthOptions {
    /// How often a node is asked whether it is well.
    pub interval: Duration,
    /// How long it may take to say so.
    pub timeout: Duration,
    /// How often it is asked what it serves.
    pub models_interval: Duration,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            models_interval: Duration::from_secs(30),
        }
    }
}
