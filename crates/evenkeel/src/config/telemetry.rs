//! `[telemetry]`: logs, metrics, traces, and the request log used by `explain`.

use std::io::stderr;

use evenkeel_server::tenant::Access;
use evenkeel_telemetry::logs::{Format, LogOptions};
use evenkeel_telemetry::trace::TraceOptions;
use evenkeel_telemetry::{MetricLimits, RequestLogLimits, Secret};
use evenkeel_upstream::{LinkLocalPolicy, Origin};
use http::{HeaderName, HeaderValue};

use super::reader::Section;
use super::value::{Float, Integer};

/// `[telemetry]`.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    pub logs: LogOptions,
    /// Access to `/metrics`.
    pub metrics: Access,
    /// Limits on label cardinality: tenants and nodes beyond them share the label value `other`.
    pub metric_limits: MetricLimits,
    /// Maximum number of queues with their own label value; the others share `other`.
    pub queues_max: usize,
    pub request_log: RequestLogLimits,
    /// `None`: no traces are exported.
    pub traces: Option<TraceConfig>,
}

/// Export of traces.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// OTLP/HTTP collector; traces are posted to `/v1/traces`.
    pub collector: Origin,
    /// Sent with every batch, for example an API key.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub options: TraceOptions,
}

pub(super) fn read(section: &mut Section<'_>, link_local: LinkLocalPolicy) -> TelemetryConfig {
    let traces = read_traces(section, link_local);
    let filter = section.read("log", "info".to_owned());
    let formats = [("auto", None), ("human", Some(Format::Human)), ("json", Some(Format::Json))];
    let format =
        section.one_of("log_format", "auto", &formats).unwrap_or_else(|| Format::for_stream(&stderr()));
    let logs = LogOptions::new(Some(&filter.value), format).unwrap_or_else(|error| {
        section.error(&filter.origin, error);
        LogOptions::new(None, format).expect("the default filter is valid")
    });
    let metrics = section.one_of("metrics", "admin", &[("admin", Access::Admin), ("public", Access::Public)]);
    let metric_limits = MetricLimits::default();
    let request_log = RequestLogLimits::default();
    let mut count = |key, default: usize, min, max| {
        section.within(key, Integer(default as i64), Integer(min)..=Integer(max)).as_usize()
    };
    TelemetryConfig {
        logs,
        metrics,
        metric_limits: MetricLimits {
            tenants_max: count("tenants_max", metric_limits.tenants_max, 1, 10_000),
            nodes_max: count("nodes_max", metric_limits.nodes_max, 1, 10_000),
        },
        queues_max: count("queues_max", 256, 1, 10_000),
        request_log: RequestLogLimits {
            requests_max: count("requests_max", request_log.requests_max, 0, 1_000_000),
            steps_max: count("steps_max", request_log.steps_max, 1, 1_000),
            changes_max: count("changes_max", request_log.changes_max, 0, 100_000),
        },
        traces,
    }
}

fn read_traces(section: &mut Section<'_>, link_local: LinkLocalPolicy) -> Option<TraceConfig> {
    let default = TraceOptions::default();
    let endpoint = section.optional::<String>("otlp_endpoint");
    let headers = section.optional::<Secret<String>>("otlp_headers");
    let ratio = section.within("trace_ratio", Float(default.ratio), Float(0.0)..=Float(1.0)).0;
    let spans_max = Integer(default.spans_max as i64);
    let spans_max = section.within("spans_max", spans_max, Integer(1)..=Integer(1_000_000)).as_usize();
    let headers = match &headers {
        None => Vec::new(),
        Some(setting) => parse_headers(setting.value.expose()).unwrap_or_else(|| {
            section.error(&setting.origin, "otlp_headers must be NAME=VALUE pairs, separated by commas");
            Vec::new()
        }),
    };
    // OpenTelemetry treats an empty variable as unset.
    let endpoint = endpoint.filter(|setting| !setting.value.is_empty())?;
    let collector = match Origin::parse(&endpoint.value) {
        Ok(collector) => collector,
        Err(error) => {
            section.error(&endpoint.origin, format_args!("otlp_endpoint: {error}"));
            return None;
        }
    };
    if let Err(error) = collector.check_literal(link_local) {
        section.error(&endpoint.origin, format_args!("otlp_endpoint: {error}"));
    }
    Some(TraceConfig { collector, headers, options: TraceOptions { ratio, spans_max } })
}

/// Parses headers in the format of `OTEL_EXPORTER_OTLP_HEADERS`: values are percent-encoded.
fn parse_headers(text: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let parse = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_bytes(&percent_decode(value.trim())?).ok()?;
        value.set_sensitive(true);
        Some((name.trim().parse().ok()?, value))
    };
    pairs.map(parse).collect()
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(bytes)
}
