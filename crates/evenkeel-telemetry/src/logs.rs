//! Logs: readable text on a terminal, JSON elsewhere, filtered as in `RUST_LOG`.
//!
//! A span that the filter lets through, such as that of an actor's message, is a line when it closes, with its times. The
//! filter can change while the process runs.
//!
//! The binary reads `RUST_LOG` and passes it in. A secret is a [`Secret`](crate::Secret), which prints as `[hidden]`.

use std::fmt;
use std::io::IsTerminal;

use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{FmtSpan, JsonFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, reload};

use crate::event::{Event, EventDisplay, NodeEvent};
use crate::pipeline_metrics::PipelineMetrics;
use crate::request_context::WithContext;
use crate::request_log::RequestLog;

/// Filter used when none is given.
const FILTER_DEFAULT: &str = "info";

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Readable text, with colours unless `NO_COLOR` is set.
    Human,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Returns `Human` for a terminal, `Json` otherwise.
    pub fn for_stream(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() { Self::Human } else { Self::Json }
    }
}

/// Filter and format of the logs.
#[derive(Clone, Debug)]
pub struct LogOptions {
    filter: Targets,
    format: Format,
}

/// Reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be parsed.
    #[error("log filter {filter:?} is invalid: {source}")]
    InvalidFilter { filter: String, source: ParseError },
    #[error("the process already has a logger")]
    AlreadyInstalled,
    /// A word is neither a level nor a target of Evenkeel; [`Targets`] would treat it as a target and silence the rest.
    #[error(
        "log filter {filter:?} is invalid: {word:?} is not a level (off, error, warn, info, debug or trace); \
         levels by target are written like \"info,evenkeel_llm=debug\""
    )]
    UnknownWord { filter: String, word: String },
}

impl LogOptions {
    /// Parses a filter as in `RUST_LOG`: levels by target, such as `info,evenkeel_llm=debug`.
    ///
    /// Without a filter, or with a blank one, the level is `info`.
    pub fn new(rust_log: Option<&str>, format: Format) -> Result<Self, LogError> {
        let filter = rust_log.map(str::trim).filter(|text| !text.is_empty()).unwrap_or(FILTER_DEFAULT);
        let invalid = |source| LogError::InvalidFilter { filter: filter.to_owned(), source };
        check_words(filter)?;
        Ok(Self { filter: filter.parse().map_err(invalid)?, format })
    }
}

/// Rejects a word that is neither a level nor a target of Evenkeel.
fn check_words(filter: &str) -> Result<(), LogError> {
    let is_level = |word: &str| word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains('='));
    match words.find(|word| !is_level(word) && !word.starts_with("evenkeel")) {
        Some(word) => Err(LogError::UnknownWord { filter: filter.to_owned(), word: word.to_owned() }),
        None => Ok(()),
    }
}

/// Filter of the installed logger.
pub struct LogFilter(reload::Handle<Targets, Registry>);

impl LogFilter {
    /// Replaces the filter by that of `options`; the format stays.
    pub fn set(&self, options: &LogOptions) {
        // Fails only if the logger is gone, which then needs no filter.
        self.0.reload(options.filter.clone()).ok();
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter").finish_non_exhaustive()
    }
}

/// Sends the logs of the whole process to stderr.
pub fn install(options: LogOptions) -> Result<LogFilter, LogError> {
    let (subscriber, filter) = subscriber(options, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyInstalled)?;
    Ok(filter)
}

/// Creates the subscriber that [`install`] installs, with another writer.
pub fn subscriber<W>(options: LogOptions, writer: W) -> (impl Subscriber + Send + Sync, LogFilter)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let LogOptions { filter, format } = options;
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_span_events(FmtSpan::CLOSE);
    let lines = tracing_subscriber::fmt::format();
    let lines = match format {
        Format::Human => {
            let lines = lines.with_ansi(has_colors());
            layer.event_format(WithContext { lines, format }).boxed()
        }
        Format::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false);
            layer.fmt_fields(JsonFields::new()).event_format(WithContext { lines, format }).boxed()
        }
    };
    let (filter, handle) = reload::Layer::new(filter);
    (tracing_subscriber::registry().with(filter).with(lines), LogFilter(handle))
}

/// Reports whether readable lines are coloured: unless `NO_COLOR` is set and not empty.
fn has_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The log line written at startup.
#[derive(Clone, Copy, Debug)]
pub struct StartupLine<'a> {
    /// URL of the server.
    pub url: &'a str,
    /// Names of the enabled APIs.
    pub apis: &'a [&'a str],
    /// Location of durable state.
    pub store: &'a str,
    pub tenants: usize,
}

impl StartupLine<'_> {
    pub fn log(&self) {
        let Self { url, apis, store, tenants } = self;
        tracing::info!(target: "evenkeel", url, apis = apis.join(","), store, tenants, "started");
    }
}

/// Logs an event: steps of requests at `debug`, changes of nodes at `info` or `warn`.
///
/// The pipeline's numbers of requests are unique only within a pool, so the pool is logged as well. The id that the
/// client sees is that of the event's own request, which is often not the one that the current thread works on. Names
/// and ids are looked up only if the line is written.
pub(crate) fn log_event(event: &Event, metrics: &PipelineMetrics, requests: &RequestLog) {
    let node_name = || event.node().and_then(|node| metrics.node_name(node));
    let peer_name = || event.peer().and_then(|peer| metrics.peer_name(peer));
    let tenant_name = || event.tenant().and_then(|tenant| metrics.tenant_name(tenant));
    let client_id = || event.request().and_then(|request| requests.client_id(request));
    macro_rules! log {
        ($level:expr) => {
            tracing::event!(
                target: "evenkeel::pipeline",
                $level,
                event = event.as_str(),
                pool = metrics.pool(),
                request_id = client_id().as_deref(),
                request = event.request().map(|request| request.0),
                tenant = tenant_name(),
                tenant_id = event.tenant().map(|tenant| tenant.0),
                node = node_name().as_deref(),
                node_id = event.node().map(|node| node.0),
                peer = peer_name().as_deref(),
                peer_id = event.peer().map(|peer| peer.0),
                "{}",
                EventDisplay {
                    event,
                    name: node_name().or_else(peer_name).as_deref(),
                    path: None,
                    tenant: tenant_name(),
                }
            )
        };
    }
    match event {
        Event::Request { .. } => log!(Level::DEBUG),
        Event::Node { change: NodeEvent::BreakerOpened { .. }, .. } => log!(Level::WARN),
        Event::Node { .. } => log!(Level::INFO),
    }
}
