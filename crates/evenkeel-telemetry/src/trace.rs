//! Traces: spans of sampled requests, queued for export to an OTLP collector.
//!
//! Limits: at most `spans_max` ended spans are queued; further ones are dropped and counted. Nothing blocks, and an
//! unsampled request keeps no state.

mod context;
mod otlp;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::metric::Counter;
use crate::metric_names;
use crate::registry::{RegisterError, Registry};
pub use context::{SpanContext, TraceParent};
pub use otlp::{CONTENT_TYPE, payload};

/// Sampling ratio and queue limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// Fraction of requests to trace among those without a `traceparent`.
    pub ratio: f64,
    /// Maximum number of ended spans in the queue.
    pub spans_max: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { ratio: 1.0, spans_max: 4_096 }
    }
}

/// OTLP span kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request received.
    Server,
    /// A request sent.
    Client,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Text(Cow<'static, str>),
    Integer(u64),
    Bool(bool),
}

impl From<&'static str> for Attribute {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for Attribute {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// Attributes by name.
pub type Attributes = Vec<(&'static str, Attribute)>;

/// A span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: SpanContext,
    pub kind: SpanKind,
    pub name: Cow<'static, str>,
    pub started_at: SystemTime,
    pub ended_at: SystemTime,
    pub attributes: Attributes,
    /// Events with their times.
    pub events: Vec<(SystemTime, &'static str, Attributes)>,
    /// Error message, if it failed.
    pub error: Option<String>,
}

impl Span {
    pub fn begin(context: SpanContext, kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        let now = SystemTime::now();
        Self {
            context,
            kind,
            name: name.into(),
            started_at: now,
            ended_at: now,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Attribute>) {
        self.attributes.push((name, value.into()));
    }

    /// Adds an event that happens now.
    pub fn add_event(&mut self, name: &'static str, attributes: Attributes) {
        self.events.push((SystemTime::now(), name, attributes));
    }
}

/// Samples requests and queues their ended spans for export.
pub struct Tracer {
    ratio: f64,
    spans_max: usize,
    /// Hasher with random keys; ids are its hashes of `next_id`.
    ids: RandomState,
    next_id: AtomicU64,
    queue: Mutex<VecDeque<Span>>,
    exported: Counter,
    dropped: Counter,
}

impl Tracer {
    pub fn new(registry: &Registry, options: TraceOptions) -> Result<Self, RegisterError> {
        Ok(Self {
            ratio: options.ratio,
            spans_max: options.spans_max,
            ids: RandomState::new(),
            next_id: AtomicU64::new(0),
            queue: Mutex::default(),
            exported: registry.counter(metric_names::SPANS_EXPORTED_TOTAL)?,
            dropped: registry.counter(metric_names::SPANS_DROPPED_TOTAL)?,
        })
    }

    /// Returns the span context of a new request, or `None` if it is not sampled: its client or the ratio decides.
    pub fn context(&self, parent: Option<TraceParent>) -> Option<SpanContext> {
        let span = self.id();
        match parent {
            Some(parent) if parent.sampled => {
                Some(SpanContext { trace: parent.trace, span, parent: Some(parent.span) })
            }
            Some(_) => None,
            None => {
                // The low half of the trace id decides, as in other samplers.
                let low = self.id();
                let is_sampled = (low >> 11) as f64 / (1_u64 << 53) as f64 <= self.ratio && self.ratio > 0.0;
                let trace = u128::from(self.id()) << 64 | u128::from(low);
                is_sampled.then_some(SpanContext { trace, span, parent: None })
            }
        }
    }

    /// Returns the context of a child span.
    pub fn child(&self, parent: SpanContext) -> SpanContext {
        SpanContext { trace: parent.trace, span: self.id(), parent: Some(parent.span) }
    }

    /// Returns a random id other than zero, which means "none".
    fn id(&self) -> u64 {
        self.ids.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed)).max(1)
    }

    /// Ends a span now and queues it.
    pub fn end(&self, span: Span) {
        let span = Span { ended_at: SystemTime::now(), ..span };
        let mut queue = self.queue.lock();
        if queue.len() < self.spans_max {
            queue.push_back(span);
            return;
        }
        drop(queue);
        self.dropped.count();
    }

    /// Removes and returns ended spans, oldest first.
    pub fn take(&self, spans_max: usize) -> Vec<Span> {
        let mut queue = self.queue.lock();
        let count = queue.len().min(spans_max);
        queue.drain(..count).collect()
    }

    pub fn count_exported(&self, spans: usize) {
        self.exported.add(spans as u64);
    }

    pub fn count_dropped(&self, spans: usize) {
        self.dropped.add(spans as u64);
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("ratio", &self.ratio).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_decides_whether_its_request_is_traced() {
        let tracer = tracer(0.0, 1);
        let parent = |sampled| TraceParent { trace: 7, span: 8, sampled };
        let context = tracer.context(Some(parent(true))).unwrap();
        assert_eq!((context.trace, context.parent), (7, Some(8)));
        assert_eq!(self::tracer(1.0, 1).context(Some(parent(false))), None);
        assert_eq!(tracer.context(None), None);
    }

    #[test]
    fn without_a_traceparent_the_ratio_decides() {
        let traced = |ratio| {
            let tracer = tracer(ratio, 1);
            (0..10_000).filter(|_| tracer.context(None).is_some()).count()
        };
        assert_eq!((traced(0.0), traced(1.0)), (0, 10_000));
        let few = traced(0.1);
        assert!((700..1_300).contains(&few), "{few}");
    }

    #[test]
    fn spans_beyond_the_queue_limit_are_dropped_and_counted() {
        let registry = Registry::new();
        let tracer = Tracer::new(&registry, TraceOptions { ratio: 1.0, spans_max: 2 }).unwrap();
        for _ in 0..5 {
            let context = tracer.context(None).unwrap();
            tracer.end(Span::begin(context, SpanKind::Server, "a"));
        }
        assert_eq!(registry.render().lines().last(), Some("evenkeel_telemetry_spans_exported_total 0"));
        assert!(registry.render().contains("evenkeel_telemetry_spans_dropped_total 3"));
        assert_eq!((tracer.take(1).len(), tracer.take(9).len(), tracer.take(9).len()), (1, 1, 0));
    }

    fn tracer(ratio: f64, spans_max: usize) -> Tracer {
        Tracer::new(&Registry::new(), TraceOptions { ratio, spans_max }).unwrap()
    }
}
