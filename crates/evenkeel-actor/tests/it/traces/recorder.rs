//! A subscriber that notes each span by the names of those around it, and each event by its span.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Fields that are noted; the others are addresses, times and types.
const NOTED: [&str; 3] = ["actor", "signal_key", "reason"];

/// Two that hear nothing and have every callsite ask each time.
///
/// A callsite first met by another test's thread asks only that thread's subscriber, which is none,
/// while there has been but one in the process, and is then silent for that one too.
static OTHERS: LazyLock<[Dispatch; 2]> = LazyLock::new(|| [Dispatch::new(Fickle), Dispatch::new(Fickle)]);

/// Notes what is told while `scene` runs, on one thread.
pub(super) fn record(level: Level, scene: impl FnOnce()) -> Vec<String> {
    LazyLock::force(&OTHERS);
    let recorder = Recorder { level, noted: Arc::default() };
    let noted = recorder.noted.clone();
    tracing::subscriber::with_default(recorder, scene);
    std::mem::take(&mut noted.lock().unwrap().lines)
}

/// Notes what is told.
struct Recorder {
    level: Level,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    lines: Vec<String>,
    /// The path and the count of handles of each open span.
    open: HashMap<u64, (String, u32)>,
    entered: Vec<u64>,
    made: u64,
}

impl Recorder {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap()
    }
}

impl Noted {
    /// The path of the parent: the one given, or the one entered last, or none.
    fn around(&self, parent: Option<&Id>, contextual: bool) -> Option<String> {
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
        let mut noted = self.noted();
        noted.made += 1;
        let id = noted.made;
        let name = span.metadata().name();
        let path = match noted.around(span.parent(), span.is_contextual()) {
            Some(around) => format!("{around}/{name}"),
            None => name.to_owned(),
        };
        let mut fields = Fields::default();
        // A wait names its reason in its type's words, which its condition repeats.
        span.record(&mut fields);
        let shown = if name == "wait" { fields.only("signal_key") } else { fields.shown() };
        noted.lines.push(format!("open {path}{shown}"));
        noted.open.insert(id, (path, 1));
        Id::from_u64(id)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut noted = self.noted();
        let around = noted.around(event.parent(), event.is_contextual());
        let around = around.map(|path| format!("{path}: ")).unwrap_or_default();
        noted.lines.push(format!("event {around}{}{}", fields.message, fields.shown()));
    }

    fn enter(&self, span: &Id) {
        self.noted().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let left = self.noted().entered.pop();
        assert_eq!(left, Some(span.into_u64()), "who enters last leaves first");
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.noted().open.get_mut(&span.into_u64()).unwrap().1 += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut noted = self.noted();
        let handles = &mut noted.open.get_mut(&span.into_u64()).unwrap().1;
        *handles -= 1;
        if *handles != 0 {
            return false;
        }
        // Kept, because a child may outlive it.
        let path = noted.open[&span.into_u64()].0.clone();
        // The tests open one span themselves, and know when it ends.
        if path != "request" {
            noted.lines.push(format!("close {path}"));
        }
        true
    }
}

/// Hears nothing, and may change its mind.
struct Fickle;

impl Subscriber for Fickle {
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
    noted: Vec<(&'static str, String)>,
}

impl Fields {
    fn shown(&self) -> String {
        self.noted.iter().fold(String::new(), |mut shown, (name, value)| {
            write!(shown, " {name}={value}").unwrap();
            shown
        })
    }

    fn only(mut self, name: &str) -> String {
        self.noted.retain(|(noted, _)| *noted == name);
        self.shown()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name if NOTED.contains(&name) => self.noted.push((name, format!("{value:?}"))),
            _ => {}
        }
    }
}
