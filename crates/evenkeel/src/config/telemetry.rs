//! `[telemetry]`: logs, metrics, traces and what is remembered for `explain`.

use std::io::stderr;

use evenkeel_server::tenant::Access;
use evenkeel_telemetry::logs::{Format, LogOptions};
use evenkeel_telemetry::trace::TraceOptions;
use evenkeel_telemetry::{MetricLimits, RequestLogLimits, Secret};
use evenkeel_upstream::Origin;
use http::{HeaderName, HeaderValue};

use super::reader::Section;
use super::value::{Float, Integer};

/// `[telemetry]`.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    /// What is logged, and how.
    pub logs: LogOptions,
    /// Who may read `/metrics`.
    pub metrics: Access,
    /// How many tenants and nodes have metrics of their own.
    pub meters: MetricLimits,
    /// How many queues have metrics of their own.
    pub queues_max: usize,
    /// How much is remembered.
    pub journal: RequestLogLimits,
    /// Where traces go, if anywhere.
    pub traces: Option<TraceConfig>,
}

/// Where traces go.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// The collector, which takes them at its `/v1/traces`.
    pub collector: Origin,
    /// What it is told with them, such as a key.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How much is traced.
    pub options: TraceOptions,
}

pub(super) fn read(section: &mut Section<'_>) -> TelemetryConfig {
    let traces = traces(section);
    let filter = section.read("log", "info".to_owned());
    let formats = [("auto", None), ("human", Some(Format::Human)), ("json", Some(Format::Json))];
    let format =
        section.word("log_format", "auto", &formats).unwrap_or_else(|| Format::for_stream(&stderr()));
    let logs = LogOptions::new(Some(&filter.value), format).unwrap_or_else(|wrong| {
        section.error(&filter.origin, wrong);
        LogOptions::new(None, format).expect("the default filter is one")
    });
    let metrics = section.word("metrics", "admin", &[("admin", Access::Admin), ("public", Access::Public)]);
    let meters = MetricLimits::default();
    let journal = RequestLogLimits::default();
    let mut count = |key, default: usize, least, most| {
        section.within(key, Integer(default as i64), Integer(least)..=Integer(most)).as_usize()
    };
    TelemetryConfig {
        logs,
        metrics,
        meters: MetricLimits {
            tenants_max: count("tenants_max", meters.tenants_max, 1, 10_000),
            nodes_max: count("nodes_max", meters.nodes_max, 1, 10_000),
        },
        queues_max: count("queues_max", 256, 1, 10_000),
        journal: RequestLogLimits {
            requests_max: count("requests_max", journal.requests_max, 0, 1_000_000),
            steps_max: count("steps_max", journal.steps_max, 1, 1_000),
            changes_max: count("changes_max", journal.changes_max, 0, 100_000),
        },
        traces,
    }
}

fn traces(section: &mut Section<'_>) -> Option<TraceConfig> {
    let default = TraceOptions::default();
    let endpoint = section.optional::<String>("otlp_endpoint");
    let headers = section.optional::<Secret<String>>("otlp_headers");
    let ratio = section.within("trace_ratio", Float(default.ratio), Float(0.0)..=Float(1.0)).0;
    let spans_max = Integer(default.spans_max as i64);
    let spans_max = section.within("spans_max", spans_max, Integer(1)..=Integer(1_000_000)).as_usize();
    let headers = match &headers {
        None => Vec::new(),
        Some(read) => read_headers(read.value.expose()).unwrap_or_else(|| {
            section.error(&read.origin, "otlp_headers must be NAME=VALUE, separated by commas");
            Vec::new()
        }),
    };
    // An empty variable is how others say that there is none.
    let endpoint = endpoint.filter(|read| !read.value.is_empty())?;
    match Origin::parse(&endpoint.value) {
        Ok(collector) => Some(TraceConfig { collector, headers, options: TraceOptions { ratio, spans_max } }),
        Err(wrong) => {
            section.error(&endpoint.origin, format_args!("otlp_endpoint: {wrong}"));
            None
        }
    }
}

/// Reads headers as OpenTelemetry's variable has them: values are encoded like those of URLs.
fn read_headers(text: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&decoded(value.trim())?).ok()?;
        value.set_sensitive(true);
        Some((name.trim().parse().ok()?, value))
    };
    pairs.map(read).collect()
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(bytes)
}
