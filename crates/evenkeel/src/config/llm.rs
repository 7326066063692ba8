//! `[llm]`: nodes, health checks, failover, and the limits of the request pipeline.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use evenkeel_llm::usage::CachedCost;
use evenkeel_llm::{Concurrency, HealthOptions, LlmOptions, NodeOptions, PassOptions};
use evenkeel_pipeline::{
    AffinityOptions, BreakerOptions, Class, ClassShares, PipelineLimits, PipelineOptions, RetryOptions,
};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::score::{HotColdConfig, ScoreConfig, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Secret;
use evenkeel_upstream::{LinkLocalError, LinkLocalPolicy, Origin as NodeOrigin};
use http::{HeaderName, Uri};
use serde_json::{Map, Value as Json, json};

use super::effective::toml_value;
use super::links::{LinkSettings, check_link};
use super::models;
use super::prices;
use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::tenants::table_to_toml;
use super::value::{ConfigValue as _, Float, Integer};

/// Maximum number of paths (URLs) per node.
const PATHS_MAX: usize = 16;
/// Maximum number of models per node.
const MODELS_MAX: usize = 256;
/// Maximum number of extra paths per node, and of headers and query parameters that are passed to nodes.
const EXTRA_PATHS_MAX: usize = 64;
const DAY_SECS: Float = Float(86_400.0);

/// `[llm]`, combined with `[load_manager]`, `[connection_pool]` and `[node_cache]`.
#[derive(Clone, Debug)]
pub struct LlmConfig {
    pub options: LlmOptions,
    /// PEM file with certificate authorities to trust in addition to the public ones.
    pub ca_file: Option<PathBuf>,
    pub(super) ca_file_origin: ValueSource,
}

pub(super) fn read(
    section: &mut Section<'_>,
    pipeline: PipelineOptions,
    node_flags: &[String],
    links: &[LinkSettings],
    link_local: LinkLocalPolicy,
) -> LlmConfig {
    let ca_file = section.optional::<PathBuf>("ca_file");
    let first_byte_max =
        section.optional_within("first_byte_max_secs", Float(0.001)..=DAY_SECS).map(Float::as_secs);
    let pass = read_pass(section);
    let cached_cost = Float(CachedCost::default().as_f64());
    let cached_cost = CachedCost::new(section.within("cached_cost", cached_cost, Float(0.0)..=Float(1.0)).0);
    let health = read_health(&mut section.section("health"));
    let pipeline = PipelineOptions {
        limits: read_limits(&mut section.section("limits")),
        retry: read_retry(&mut section.section("retry")),
        breaker: read_breaker(&mut section.section("breaker")),
        affinity: read_affinity(&mut section.section("affinity")),
        class_shares: read_class_shares(&mut section.section("classes")),
        selection: read_chooser(section),
        ..pipeline
    };
    let prices = prices::read(section);
    let adaptive = read_adaptive(&mut section.section("adaptive"));
    let nodes = read_nodes(section, node_flags, pipeline.limits.nodes_max, links);
    for (origin, node) in &nodes {
        if let Err(error) = check_addresses(node, link_local) {
            section.error(origin, format_args!("node {:?}: {error}", node.name));
        }
    }
    let models = models::read(section, &nodes);
    let nodes = nodes.into_iter().map(|(_, node)| node).collect();
    LlmConfig {
        options: LlmOptions {
            pipeline,
            health,
            adaptive,
            first_byte_max,
            pass,
            cached_cost,
            models,
            prices,
            nodes,
        },
        ca_file_origin: ca_file.as_ref().map_or(ValueSource::Default, |setting| setting.origin.clone()),
        ca_file: ca_file.map(|setting| setting.value),
    }
}

/// Reads the headers and query parameters that nodes get although they are dropped by default.
fn read_pass(section: &mut Section<'_>) -> PassOptions {
    let names = section.read("pass_headers", Vec::<String>::new());
    let headers: Vec<HeaderName> = names.value.iter().filter_map(|name| name.parse().ok()).collect();
    if headers.len() != names.value.len() || headers.len() > EXTRA_PATHS_MAX {
        let message = format!("pass_headers must list at most {EXTRA_PATHS_MAX} names of headers");
        section.error(&names.origin, message);
    }
    let queries = section.read("pass_queries", Vec::<String>::new());
    let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '&', '#', ' ']);
    if queries.value.len() > EXTRA_PATHS_MAX || !queries.value.iter().all(is_name) {
        let message = format!("pass_queries must list at most {EXTRA_PATHS_MAX} names of query parameters");
        section.error(&queries.origin, message);
    }
    PassOptions { headers, queries: queries.value }
}

fn read_health(section: &mut Section<'_>) -> HealthOptions {
    let default = HealthOptions::default();
    let mut secs = |key, default: Duration| {
        section.within(key, Float(default.as_secs_f64()), Float(0.01)..=DAY_SECS).as_secs()
    };
    HealthOptions {
        interval: secs("interval_secs", default.interval),
        timeout: secs("timeout_secs", default.timeout),
        models_interval: secs("models_interval_secs", default.models_interval),
        load_interval: read_load_interval(section, default.load_interval),
    }
}

/// Reads the scrape interval of engine metrics; 0 turns scraping off.
fn read_load_interval(section: &mut Section<'_>, default: Option<Duration>) -> Option<Duration> {
    let default = Float(default.unwrap_or_default().as_secs_f64());
    let interval = section.within("load_interval_secs", default, Float(0.0)..=Float(3_600.0));
    (interval > Float(0.0)).then(|| interval.as_secs())
}

fn read_adaptive(section: &mut Section<'_>) -> LimitConfig {
    let default = LimitConfig::default();
    let mut slots = |key, default: u32, range: RangeInclusive<u32>| {
        let integer = |slots: u32| Integer(i64::from(slots));
        section.within(key, integer(default), integer(*range.start())..=integer(*range.end())).as_u32()
    };
    // `max` is read first because it is the upper bound of the others.
    let max = slots("max", default.max, 1..=65_536);
    let min = slots("min", default.min.min(max), 1..=max);
    let initial = slots("initial", default.initial.clamp(min, max), min..=max);
    let tolerance = section.within("tolerance", Float(default.tolerance), Float(1.05)..=Float(10.0)).0;
    LimitConfig { min, max, initial, tolerance }
}

fn read_limits(section: &mut Section<'_>) -> PipelineLimits {
    let default = PipelineLimits::default();
    let mut count = |key, default: i64, max| section.within(key, Integer(default), Integer(1)..=Integer(max));
    PipelineLimits {
        // Not configurable here: the server already limits the number of tenants.
        tenants_max: default.tenants_max,
        models_max: count("models_max", i64::from(default.models_max), 100_000).as_u32(),
        nodes_max: count("nodes_max", default.nodes_max as i64, 10_000).as_usize(),
        in_flight_max: count("in_flight_max", default.in_flight_max as i64, 10_000_000).as_usize(),
        sessions_max: count("sessions_max", i64::from(default.sessions_max), 10_000).as_u32(),
    }
}

fn read_retry(section: &mut Section<'_>) -> RetryOptions {
    let default = RetryOptions::default();
    let window = Float(default.window.as_secs_f64());
    RetryOptions {
        budget: section.within("budget", Float(default.budget), Float(0.0)..=Float(1.0)).0,
        retries_min: section
            .within("retries_min", Integer(i64::from(default.retries_min)), Integer(0)..=Integer(1_000_000))
            .as_u32(),
        window: section.within("window_secs", window, Float(1.0)..=Float(600.0)).as_secs(),
        attempts_max: section
            .within("attempts_max", Integer(i64::from(default.attempts_max)), Integer(1)..=Integer(16))
            .as_u32(),
    }
}

fn read_breaker(section: &mut Section<'_>) -> BreakerOptions {
    let default = BreakerOptions::default();
    let failures = Integer(i64::from(default.failures_max));
    let samples = Integer(i64::from(default.samples_min));
    let failures_max = section.within("failures_max", failures, Integer(1)..=Integer(1_000)).as_u32();
    let ratio = section.within("error_ratio_max", Float(default.error_ratio_max), Float(0.01)..=Float(1.0));
    let samples_min = section.within("samples_min", samples, Integer(1)..=Integer(1_000_000)).as_u32();
    // The maximum of each pair is read first because it is the upper bound of the other.
    let mut duration = |key, default: Duration, max: Float| {
        // A default above a maximum that the user lowered follows it.
        let default = Float(default.as_secs_f64().min(max.0));
        section.within(key, default, Float(0.001)..=max)
    };
    let backoff_max = duration("backoff_max_secs", default.backoff_max, DAY_SECS);
    let backoff_min = duration("backoff_min_secs", default.backoff_min, backoff_max);
    let cooldown_max = duration("cooldown_max_secs", default.cooldown_max, Float(3_600.0));
    let cooldown = duration("cooldown_secs", default.cooldown, cooldown_max);
    let hold = Float(default.hold.as_secs_f64());
    let hold = section.within("hold_secs", hold, Float(0.0)..=Float(3_600.0));
    BreakerOptions {
        failures_max,
        error_ratio_max: ratio.0,
        samples_min,
        backoff_min: backoff_min.as_secs(),
        backoff_max: backoff_max.as_secs(),
        cooldown: cooldown.as_secs(),
        cooldown_max: cooldown_max.as_secs(),
        hold: hold.as_secs(),
    }
}

fn read_affinity(section: &mut Section<'_>) -> AffinityOptions {
    let default = AffinityOptions::default();
    let load_max = section.within("load_max", Float(default.load_max), Float(1.0)..=Float(10.0)).0;
    let lookahead = Integer(default.lookahead_max as i64);
    let lookahead_max = section.within("lookahead_max", lookahead, Integer(1)..=Integer(64)).as_usize();
    let skips = Integer(i64::from(default.skips_max));
    AffinityOptions {
        load_max,
        lookahead_max,
        skips_max: section.within("skips_max", skips, Integer(0)..=Integer(64)).as_u32(),
    }
}

/// Reads the minimum shares of the classes of a tenant, in percent.
fn read_class_shares(section: &mut Section<'_>) -> ClassShares {
    let default = ClassShares::default();
    let mut share = |class: Class| {
        let percent = Integer(i64::from(default.percent(class)));
        // At most 98, so it fits.
        section.within(class.name(), percent, Integer(1)..=Integer(98)).as_u32() as u8
    };
    let high = share(Class::High);
    let normal = share(Class::Normal);
    let low = share(Class::Low);
    ClassShares::new(high, normal, low).unwrap_or_else(|error| {
        section.error(&ValueSource::Default, error);
        default
    })
}

/// Reads how the nodes are found that are about as good as the best.
fn read_chooser(section: &mut Section<'_>) -> SelectionPolicy {
    let choices = [
        ("hot_cold", SelectionPolicy::HotCold(HotColdConfig::default())),
        ("score", SelectionPolicy::Score(ScoreConfig::default())),
    ];
    section.one_of("chooser", "hot_cold", &choices)
}

fn read_nodes(
    section: &mut Section<'_>,
    node_flags: &[String],
    nodes_max: usize,
    links: &[LinkSettings],
) -> Vec<(ValueSource, NodeOptions)> {
    let mut nodes: Vec<(ValueSource, NodeOptions)> = Vec::new();
    for (origin, mut table) in section.sections("nodes") {
        let node = read_node(&mut table, &origin, Some(links));
        push_node(section, &mut nodes, origin, node);
    }
    for flag in node_flags {
        let origin = ValueSource::Flag("--node");
        match parse_node_flag(flag) {
            Ok(node) => push_node(section, &mut nodes, origin, node),
            Err(message) => section.error(&origin, message),
        }
    }
    if let Some((origin, _)) = nodes.get(nodes_max) {
        section.error(origin, format!("more than {nodes_max} nodes; raise nodes_max in [llm.limits]"));
    }
    nodes
}

/// Rejects a node with a URL whose host is a link-local or metadata address.
///
/// The other side of a link decides which addresses it connects to.
pub(crate) fn check_addresses(node: &NodeOptions, policy: LinkLocalPolicy) -> Result<(), LinkLocalError> {
    let urls = node.paths.iter().filter(|_| node.via.is_none());
    // The other errors of a URL are reported where it is read.
    urls.filter_map(|url| NodeOrigin::parse(url).ok()).try_for_each(|origin| origin.check_literal(policy))
}

/// Contents of the stored nodes file.
#[derive(Clone, Debug, Default)]
pub struct StoredNodes {
    pub nodes: Vec<NodeOptions>,
    /// Names of drained nodes, including nodes of the config file.
    pub drained: Vec<String>,
}

/// Format version of the stored nodes file. Other versions are rejected, because this one might drop their settings.
const STORED_NODES_VERSION: i64 = 1;

/// Reads the stored nodes file.
pub(super) fn read_stored_nodes(root: &mut Section<'_>) -> StoredNodes {
    let version = root.read("version", Integer(STORED_NODES_VERSION));
    if version.value != Integer(STORED_NODES_VERSION) {
        root.error(
            &version.origin,
            format!(
                "unsupported version {}; this evenkeel reads version {STORED_NODES_VERSION}",
                version.value.0
            ),
        );
    }
    let drained = root.read("drained", Vec::<String>::new()).value;
    let mut nodes = Vec::new();
    for (origin, mut table) in root.sections("nodes") {
        let node = read_node(&mut table, &origin, None);
        push_node(root, &mut nodes, origin, node);
    }
    StoredNodes { nodes: nodes.into_iter().map(|(_, node)| node).collect(), drained }
}

/// Serializes nodes to TOML, including API keys; the inverse of `read_stored_nodes`.
pub(crate) fn nodes_to_toml(stored: &StoredNodes) -> String {
    let drained = toml_value(&json!(stored.drained));
    let mut text = format!("version = {STORED_NODES_VERSION}\ndrained = {drained}\n\n");
    for node in &stored.nodes {
        text.push_str(&table_to_toml("nodes", &node_settings(node)));
    }
    text
}

/// Returns a node's settings, including its API key; null for those that are not set.
fn node_settings(node: &NodeOptions) -> Map<String, Json> {
    let (url, paths) = match &node.paths[..] {
        [url] => (json!(url), Json::Null),
        paths => (Json::Null, json!(paths)),
    };
    let settings = [
        ("name", json!(node.name)),
        ("url", url),
        ("paths", paths),
        ("via", json!(node.via)),
        ("models", json!(node.models)),
        ("max_concurrency", node.max_concurrency.map_or(Json::Null, |concurrency| concurrency.to_json())),
        ("weight", Float(node.weight.as_f64()).to_json()),
        ("api_key", json!(node.api_key.as_ref().map(Secret::expose))),
        ("extra_paths", json!((!node.extra_paths.is_empty()).then_some(&node.extra_paths))),
        ("inject_stream_options", json!((!node.inject_stream_options).then_some(false))),
    ];
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns a node's settings without those that a change replaces: `url` replaces `paths`, and `paths` replaces `url`.
pub(super) fn settings_to_change(node: &NodeOptions, change: &Map<String, Json>) -> Map<String, Json> {
    let mut settings = node_settings(node);
    if change.contains_key("url") || change.contains_key("paths") {
        settings["url"] = Json::Null;
        settings["paths"] = Json::Null;
    }
    settings
}

fn push_node(
    section: &Section<'_>,
    nodes: &mut Vec<(ValueSource, NodeOptions)>,
    origin: ValueSource,
    node: NodeOptions,
) {
    if let Some((first, _)) = nodes.iter().find(|(_, other)| other.name == node.name) {
        section.error(&origin, format!("two nodes are named {:?}; the first is at {first}", node.name));
    }
    nodes.push((origin, node));
}

/// Reads a node; `links` are those that its `via` may name, if they are known.
fn read_node(table: &mut Section<'_>, origin: &ValueSource, links: Option<&[LinkSettings]>) -> NodeOptions {
    let name = table.optional::<String>("name");
    let url = table.optional::<String>("url");
    let urls = table.optional::<Vec<String>>("paths");
    let via = table.optional::<String>("via");
    if let Some(via) = &via {
        if urls.is_some() {
            table.error(&via.origin, "via goes with url: the link has the paths to the node");
        }
        if let Some(Err(message)) = links.map(|links| check_link(&via.value, links)) {
            table.error(&via.origin, message);
        }
    }
    let (paths, paths_origin) = match (url, urls) {
        (Some(url), None) => (vec![url.value], url.origin),
        (None, Some(urls)) => (urls.value, urls.origin),
        (Some(_), Some(urls)) => {
            table.error(&urls.origin, "a node has either url or paths, not both");
            (urls.value, urls.origin)
        }
        (None, None) => {
            table.error(origin, "a node needs a url or paths");
            (Vec::new(), origin.clone())
        }
    };
    if paths.len() > PATHS_MAX || paths.is_empty() && paths_origin != *origin {
        table.error(&paths_origin, format!("paths must list 1 to {PATHS_MAX} URLs"));
    }
    for path in &paths {
        if let Err(message) = check_url(path) {
            table.error(&paths_origin, message);
        }
    }
    let name = name.map(|name| {
        if let Err(message) = check_name(&name.value) {
            table.error(&name.origin, message);
        }
        name.value
    });
    let models = table.read("models", Vec::<String>::new());
    if models.value.len() > MODELS_MAX || models.value.iter().any(String::is_empty) {
        table.error(
            &models.origin,
            format!("models must list at most {MODELS_MAX} names, none of them empty"),
        );
    }
    let max_concurrency = table.optional::<Concurrency>("max_concurrency");
    if let Some(SourcedValue { value: Concurrency::Fixed(limit), origin }) = &max_concurrency
        && !(1..=65_536).contains(limit)
    {
        table.error(origin, "max_concurrency must be from 1 to 65536");
    }
    NodeOptions {
        name: name.unwrap_or_else(|| default_name(&paths)),
        paths,
        via: via.map(|setting| setting.value),
        models: models.value,
        max_concurrency: max_concurrency.map(|setting| setting.value),
        weight: table.read("weight", Weight::ONE).value,
        api_key: table.optional::<Secret<String>>("api_key").map(|setting| setting.value),
        extra_paths: read_extra_paths(table),
        inject_stream_options: table.read("inject_stream_options", true).value,
    }
}

/// Reads the paths that clients may call on a node in addition to those of inference.
fn read_extra_paths(table: &mut Section<'_>) -> Vec<String> {
    let paths = table.read("extra_paths", Vec::<String>::new());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let is_path = |path: &String| {
        let parts = path.strip_prefix("/v1/").map(|rest| rest.split('/'));
        let is_named = |part: &str| !matches!(part, "" | "." | "..");
        parts.is_some_and(|mut parts| parts.all(is_named)) && path.bytes().all(is_plain)
    };
    if paths.value.len() > EXTRA_PATHS_MAX || !paths.value.iter().all(is_path) {
        let message = format!(
            "extra_paths must list at most {EXTRA_PATHS_MAX} paths such as \"/v1/tokenize\", without a query"
        );
        table.error(&paths.origin, message);
    }
    paths.value
}

/// Parses a `--node` flag: `[NAME=]URL`.
fn parse_node_flag(text: &str) -> Result<NodeOptions, String> {
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains("://") => (Some(name.to_owned()), url),
        _ => (None, text),
    };
    check_url(url)?;
    let paths = vec![url.to_owned()];
    let name = name.unwrap_or_else(|| default_name(&paths));
    check_name(&name)?;
    Ok(NodeOptions {
        name,
        paths,
        via: None,
        models: Vec::new(),
        max_concurrency: None,
        weight: Weight::ONE,
        api_key: None,
        extra_paths: Vec::new(),
        inject_stream_options: true,
    })
}

/// Returns the name of a node that was given none: the host and port of its first URL.
fn default_name(paths: &[String]) -> String {
    let uri = paths.first().and_then(|path| path.parse::<Uri>().ok());
    uri.and_then(|uri| uri.authority().map(ToString::to_string)).unwrap_or_default()
}

fn check_url(url: &str) -> Result<(), String> {
    NodeOrigin::parse(url)
        .map(|_| ())
        .map_err(|error| format!("not a node URL such as \"http://10.0.0.5:8000\": {error}"))
}

/// Rejects names that would need percent-encoding in an API path, or are too long.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err("a name must be 1 to 64 letters, digits and characters of `._-@:`".to_owned())
}
