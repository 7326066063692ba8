//! Logs: for people on a terminal, as JSON everywhere else, through a filter as in `RUST_LOG`.
//!
//! The binary reads `RUST_LOG` and hands it in. A secret is a [`Secret`](crate::Secret), which
//! prints as `[hidden]`.

use std::fmt;
use std::io::IsTerminal;

use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::event::{Event, EventDisplay, NodeEvent};
use crate::pipeline_metrics::PipelineMetrics;

/// The filter of whoever gives none.
const FILTER_DEFAULT: &str = "info";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people, with colours unless `NO_COLOR` is set.
    Human,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Chooses by who reads the stream.
    pub fn of(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() { Self::Human } else { Self::Json }
    }
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogOptions {
    filter: Targets,
    format: Format,
}

/// Why there are no logs as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// The filter is none.
    InvalidFilter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        why: String,
    },
    /// The process has a logger already.
    AlreadyInstalled,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidFilter { filter, why } => write!(f, "log filter {filter:?} is invalid: {why}"),
            Self::AlreadyInstalled => f.write_str("the process has a logger already"),
        }
    }
}

impl std::error::Error for LogError {}

impl LogOptions {
    /// Reads a filter as in `RUST_LOG`: levels by target, like `info,evenkeel_llm=debug`.
    ///
    /// Without one, or with a blank one, everything from `info` up is logged.
    pub fn new(rust_log: Option<&str>, format: Format) -> Result<Self, LogError> {
        let filter = rust_log.map(str::trim).filter(|text| !text.is_empty()).unwrap_or(FILTER_DEFAULT);
        let invalid = |why: tracing_subscriber::filter::ParseError| LogError::InvalidFilter {
            filter: filter.to_owned(),
            why: why.to_string(),
        };
        check_words(filter).map_err(|why| LogError::InvalidFilter { filter: filter.to_owned(), why })?;
        Ok(Self { filter: filter.parse().map_err(invalid)?, format })
    }
}

/// Rejects a word that is neither a level nor a target of Evenkeel.
///
/// [`Targets`] would take the word for a target and silence all others.
fn check_words(filter: &str) -> Result<(), String> {
    let is_level = |word: &str| word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains('='));
    match words.find(|word| !is_level(word) && !word.starts_with("evenkeel")) {
        Some(word) => Err(format!(
            "{word:?} is not a level (off, error, warn, info, debug or trace); levels by target are written like \"info,evenkeel_llm=debug\""
        )),
        None => Ok(()),
    }
}

/// Sends the logs of the whole process to stderr.
pub fn install(options: LogOptions) -> Result<(), LogError> {
    let subscriber = subscriber(options, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadyInstalled)
}

/// Makes what [`install`] installs, with another writer.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let LogOptions { filter, format } = options;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        Format::Human => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines)
}

/// What the one line at the start says.
#[derive(Clone, Copy, Debug)]
pub struct StartupLine<'a> {
    /// Where to reach the process.
    pub url: &'a str,
    /// APIs that are served.
    pub apis: &'a [&'a str],
    /// Where durable state lives.
    pub store: &'a str,
    /// How many tenants there are.
    pub tenants: usize,
}

impl StartupLine<'_> {
    /// Logs the line.
    pub fn tell(&self) {
        let Self { url, apis, store, tenants } = self;
        tracing::info!(target: "evenkeel", url, apis = apis.join(","), store, tenants, "started");
    }
}

/// Logs an event: a request's steps for those who debug, a node's changes for everybody.
///
/// Requests are numbered by their walk: only with its pool is the number a name. Names are looked up when a line is
/// written, not before.
pub(crate) fn tell(event: &Event, meters: &PipelineMetrics) {
    let name = || event.node().and_then(|node| meters.node_name(node));
    macro_rules! log {
        ($level:expr) => {
            tracing::event!(
                target: "evenkeel::walk",
                $level,
                event = event.as_str(),
                pool = meters.pool(),
                request = event.request().map(|request| request.0),
                tenant = event.tenant().and_then(|tenant| meters.tenant_name(tenant)),
                tenant_id = event.tenant().map(|tenant| tenant.0),
                node = name().as_deref(),
                node_id = event.node().map(|node| node.0),
                "{}",
                EventDisplay { event, node_name: name().as_deref() }
            )
        };
    }
    match event {
        Event::Request { .. } => log!(Level::DEBUG),
        Event::Node { change: NodeEvent::BreakerOpened { .. }, .. } => log!(Level::WARN),
        Event::Node { .. } => log!(Level::INFO),
    }
}
