//! What the door is set up with; every value has been checked by whoever read it, and is checked again where it is used.

use evenkeel_pipeline::PipelineOptions;
use evenkeel_policy::concurrency_limit::LimitConfig;
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
    /// How nodes are measured that have as many requests as they are good for.
    pub adaptive: LimitConfig,
    /// How long a node may take to its first byte before another is asked; `None` leaves it to `request_timeout`.
    pub first_byte_max: Option<Duration>,
    /// The nodes known from the start.
    pub nodes: Vec<NodeOptions>,
}

/// How many requests a node works on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// So many.
    Fixed(u32),
    /// As many as begin their answers about as soon as from an idle node.
    Adaptive,
}

/// A node as configured.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name, unique among the nodes.
    pub name: String,
    /// Where it listens, as `http://host:port/base` or `https://…`; more than one where several ways lead to it.
    pub paths: Vec<String>,
    /// What it serves; none named means that it is asked.
    pub models: Vec<String>,
    /// How many requests it works on at once; without it, as many as it says, or else as it turns out to be good for.
    pub max_concurrency: Option<Concurrency>,
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
    /// How often an engine is asked how loaded it is that says so; `None` asks none.
    pub load_interval: Option<Duration>,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            models_interval: Duration::from_secs(30),
            load_interval: Some(Duration::from_secs(2)),
        }
    }
}
