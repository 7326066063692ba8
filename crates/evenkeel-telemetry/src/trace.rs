//! Traces: what a request went through, as spans that wait for whoever takes them to a collector.
//!
//! Bound: at most `spans_max` ended spans wait; what comes then is dropped and counted. Nothing here waits for anybody,
//! and nothing is kept of a request that is not traced.

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

/// How much is traced, and how much of it may wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// The part of requests that are traced, of those whose client does not say.
    pub ratio: f64,
    /// How many ended spans wait for a collector at most.
    pub spans_max: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { ratio: 1.0, spans_max: 4_096 }
    }
}

/// What a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that was answered.
    Server,
    /// A request that was made.
    Client,
}

/// A value that is told of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Whole(u64),
    /// Yes or no.
    Flag(bool),
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
        Self::Whole(number)
    }
}

impl From<bool> for Attribute {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// Names and what is told under them.
pub type Attributes = Vec<(&'static str, Attribute)>;

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its place in a trace.
    pub context: SpanContext,
    /// What it is about.
    pub kind: SpanKind,
    /// What it is called.
    pub name: Cow<'static, str>,
    /// When it began.
    pub began_at: SystemTime,
    /// When it ended.
    pub ended_at: SystemTime,
    /// What is told of it.
    pub attributes: Attributes,
    /// What happened in it, and when.
    pub events: Vec<(SystemTime, &'static str, Attributes)>,
    /// Why it failed.
    pub error: Option<String>,
}

impl Span {
    /// Begins a span.
    pub fn begin(context: SpanContext, kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Self {
        let now = SystemTime::now();
        Self {
            context,
            kind,
            name: name.into(),
            began_at: now,
            ended_at: now,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    /// Tells something of it.
    pub fn set(&mut self, name: &'static str, value: impl Into<Attribute>) {
        self.attributes.push((name, value.into()));
    }

    /// Tells that something happens.
    pub fn tell(&mut self, name: &'static str, attributes: Attributes) {
        self.events.push((SystemTime::now(), name, attributes));
    }
}

/// Decides what is traced, and keeps what was until somebody takes it.
pub struct Tracer {
    ratio: f64,
    spans_max: usize,
    /// Keyed at random, so that ids are, too.
    ids: RandomState,
    made: AtomicU64,
    ended: Mutex<VecDeque<Span>>,
    exported: Counter,
    dropped: Counter,
}

impl Tracer {
    /// Starts without spans, and counts what becomes of them.
    pub fn new(registry: &Registry, options: TraceOptions) -> Result<Self, RegisterError> {
        Ok(Self {
            ratio: options.ratio,
            spans_max: options.spans_max,
            ids: RandomState::new(),
            made: AtomicU64::new(0),
            ended: Mutex::default(),
            exported: registry.counter(metric_names::SPANS_EXPORTED_TOTAL)?,
            dropped: registry.counter(metric_names::SPANS_DROPPED_TOTAL)?,
        })
    }

    /// The place of a new request in a trace; `None` if it is not traced, as its client says or else by chance.
    pub fn context(&self, parent: Option<TraceParent>) -> Option<SpanContext> {
        let span = self.id();
        match parent {
            Some(parent) if parent.sampled => {
                Some(SpanContext { trace: parent.trace, span, parent: Some(parent.span) })
            }
            Some(_) => None,
            None => {
                // The last bits of a trace's id decide, as they would elsewhere.
                let low = self.id();
                let is_traced = (low >> 11) as f64 / (1_u64 << 53) as f64 <= self.ratio && 0.0 < self.ratio;
                let trace = u128::from(self.id()) << 64 | u128::from(low);
                is_traced.then_some(SpanContext { trace, span, parent: None })
            }
        }
    }

    /// The place of something within a span.
    pub fn within(&self, outer: SpanContext) -> SpanContext {
        SpanContext { trace: outer.trace, span: self.id(), parent: Some(outer.span) }
    }

    /// An id that is not zero, as zero means none.
    fn id(&self) -> u64 {
        self.ids.hash_one(self.made.fetch_add(1, Ordering::Relaxed)).max(1)
    }

    /// Ends a span at this moment.
    pub fn end(&self, span: Span) {
        let span = Span { ended_at: SystemTime::now(), ..span };
        let mut ended = self.ended.lock();
        if ended.len() < self.spans_max {
            ended.push_back(span);
            return;
        }
        drop(ended);
        self.dropped.count();
    }

    /// Takes out spans that have ended, the oldest first.
    pub fn take(&self, spans_max: usize) -> Vec<Span> {
        let mut ended = self.ended.lock();
        let count = ended.len().min(spans_max);
        ended.drain(..count).collect()
    }

    /// Counts spans that a collector has.
    pub fn count_exported(&self, spans: usize) {
        self.exported.add(spans as u64);
    }

    /// Counts spans that no collector took.
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
    fn of_those_who_do_not_say_about_so_many_are_traced() {
        let traced = |ratio| {
            let tracer = tracer(ratio, 1);
            (0..10_000).filter(|_| tracer.context(None).is_some()).count()
        };
        assert_eq!((traced(0.0), traced(1.0)), (0, 10_000));
        let few = traced(0.1);
        assert!((700..1_300).contains(&few), "{few}");
    }

    #[test]
    fn no_more_spans_wait_than_may_and_the_others_are_counted() {
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
