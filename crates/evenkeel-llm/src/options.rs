//! Options of the LLM API. The configuration validates them, and so does the code that uses them.

use evenkeel_pipeline::PipelineOptions;
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Secret;

use crate::forwarding::PassOptions;
use crate::model_table::ModelTable;
use crate::prices::PriceTable;
use crate::usage::CachedCost;

#[derive(Clone, Debug, Default)]
pub struct LlmOptions {
    /// Options of the pipeline; its `load.connection_pool` also configures the connections to nodes.
    pub pipeline: PipelineOptions,
    pub health: HealthOptions,
    /// Adaptive concurrency limit, for nodes without a fixed one.
    pub adaptive: LimitConfig,
    /// Longest time to first byte of a stream before failover; `None` leaves it to `request_timeout`.
    pub first_byte_max: Option<Duration>,
    pub pass: PassOptions,
    /// Cost of a cached prompt token.
    pub cached_cost: CachedCost,
    /// Aliases and fallbacks of models.
    pub models: ModelTable,
    pub prices: PriceTable,
    /// Nodes known at start.
    pub nodes: Vec<NodeOptions>,
}

/// Concurrency limit of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    Fixed(u32),
    /// The highest limit that keeps the time to first token close to that of an idle node.
    Adaptive,
}

/// A node as configured.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Unique among the nodes.
    pub name: String,
    /// URLs, as `http://host:port/base` or `https://…`; more than one if several network paths lead to it.
    pub paths: Vec<String>,
    /// Name of the link over which it is reached; `None` if it is reached directly.
    pub via: Option<String>,
    /// Models it serves; empty means that they are discovered.
    pub models: Vec<String>,
    /// Concurrency limit; `None` takes the one that the node reports, or else an adaptive one.
    pub max_concurrency: Option<Concurrency>,
    /// Share of the load relative to other nodes.
    pub weight: Weight,
    /// API key sent to the node.
    pub api_key: Option<Secret<String>>,
    /// Paths under `/v1` that clients may call in addition to those of inference.
    pub extra_paths: Vec<String>,
    /// Adds `stream_options.include_usage` to streams whose client did not set it; false for engines that reject it.
    pub inject_stream_options: bool,
}

/// Monitoring of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthOptions {
    /// Interval of health checks.
    pub interval: Duration,
    /// Timeout of one check.
    pub timeout: Duration,
    /// Interval of model discovery.
    pub models_interval: Duration,
    /// Interval of load scrapes; `None` turns them off.
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
