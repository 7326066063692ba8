//! A subscriber that records each span by its path and each event by its span.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Recorded fields; the others are addresses, times and types.
const RECORDED_FIELDS: [&str; 3] = ["actor", "signal_key", "reason"];

/// Two disabled subscribers that keep `tracing` from caching the interest of a callsite.
///
/// As long as the process has had only one subscriber, a callsite that is first hit on the thread of another test asks
/// only that thread's subscriber. It has none, so the callsite is cached as disabled for the one subscriber too.
static DISABLED_SUBSCRIBERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [Dispatch::new(Disabled), Dispatch::new(Disabled)]);

/// Records the spans and events of `scenario`, which runs on one thread.
pub(super) fn capture(level: Level, scenario: impl FnOnce()) -> Vec<String> {
    LazyLock::force(&DISABLED_SUBSCRIBERS);
    let recorder = Recorder { level, recording: Arc::default() };
    let recording = recorder.recording.clone();
    tracing::subscriber::with_default(recorder, scenario);
    std::mem::take(&mut recording.lock().unwrap().lines)
}

/// Subscriber that records spans and events as lines.
struct Recorder {
    level: Level,
    recording: Arc<Mutex<Recording>>,
}

#[derive(Default)]
struct Recording {
    lines: Vec<String>,
    /// Path and number of handles of each open span.
    open: HashMap<u64, (String, u32)>,
    entered: Vec<u64>,
    created: u64,
}

impl Recorder {
    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap()
    }
}

impl Recording {
    /// Returns the path of the explicit parent, else of the span entered last, if any.
    fn parent_path(&self, parent: Option<&Id>, contextual: bool) -> Option<String> {
        let entered = contextual.then(|| self.entered.last().copied()).flatten();
        let id = parent.map(Id::into_u64).or(entered)?;
        Some(self.open[&id].0.clone())
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut recording = self.recording();
        recording.created += 1;
        let id = recording.created;
        let name = span.metadata().name();
        let path = match recording.parent_path(span.parent(), span.is_contextual()) {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        };
        let mut fields = Fields::default();
        // The `reason` of a wait is the `Debug` text of its type, and its condition repeats it.
        span.record(&mut fields);
        let text = if name == "wait" { fields.only("signal_key") } else { fields.text() };
        recording.lines.push(format!("open {path}{text}"));
        recording.open.insert(id, (path, 1));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut recording = self.recording();
        let path = recording.open[&span.into_u64()].0.clone();
        recording.lines.push(format!("record {path}{}", fields.text()));
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut recording = self.recording();
        let parent = recording.parent_path(event.parent(), event.is_contextual());
        let parent = parent.map(|path| format!("{path}: ")).unwrap_or_default();
        recording.lines.push(format!("event {parent}{}{}", fields.message, fields.text()));
    }

    fn enter(&self, span: &Id) {
        self.recording().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let left = self.recording().entered.pop();
        assert_eq!(left, Some(span.into_u64()), "spans exit in reverse order");
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.recording().open.get_mut(&span.into_u64()).unwrap().1 += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut recording = self.recording();
        let handles = &mut recording.open.get_mut(&span.into_u64()).unwrap().1;
        *handles -= 1;
        if *handles != 0 {
            return false;
        }
        // The entry stays, because a child may outlive its parent.
        let path = recording.open[&span.into_u64()].0.clone();
        // The tests open and close this span themselves.
        if path != "request" {
            recording.lines.push(format!("close {path}"));
        }
        true
    }
}

/// Subscriber that enables nothing and whose interest cannot be cached.
struct Disabled;

impl Subscriber for Disabled {
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        unreachable!("nothing is enabled")
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, _event: &Event<'_>) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Fields {
    message: String,
    recording: Vec<(&'static str, String)>,
}

impl Fields {
    fn text(&self) -> String {
        self.recording.iter().fold(String::new(), |mut text, (name, value)| {
            write!(text, " {name}={value}").unwrap();
            text
        })
    }

    fn only(mut self, name: &str) -> String {
        self.recording.retain(|(recording, _)| *recording == name);
        self.text()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name if RECORDED_FIELDS.contains(&name) => self.recording.push((name, format!("{value:?}"))),
            _ => {}
        }
    }
}
