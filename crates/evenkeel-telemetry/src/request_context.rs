//! Id of the request that the current thread works on, which the logger adds to every line.
//!
//! The server sets it around each poll of a request's handler, so that code below needs no parameter for it. A line
//! with a field `request_id` of its own keeps that one. Setting the id copies at most [`LEN_MAX`] bytes and allocates
//! nothing.

use core::cell::Cell;
use core::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::logs::Format;

/// Longest id; a longer one is not logged.
pub const LEN_MAX: usize = 128;

/// Name of the field in log lines.
const FIELD: &str = "request_id";

thread_local! {
    static CURRENT: Cell<Option<Id>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Id {
    len: u8,
    bytes: [u8; LEN_MAX],
}

impl Id {
    /// Copies an id whose characters need no escaping in logs.
    fn new(id: &[u8]) -> Option<Self> {
        let is_plain = id.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte));
        let mut bytes = [0; LEN_MAX];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        (is_plain && !id.is_empty()).then_some(Self { len: id.len() as u8, bytes })
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

/// Restores the previous id, also after a panic.
struct Restore(Option<Id>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Calls a function; the lines that it logs have this request id.
pub fn with_request_id<R>(id: &[u8], function: impl FnOnce() -> R) -> R {
    let _restore = Restore(CURRENT.replace(Id::new(id)));
    function()
}

/// Log format that adds the current request id to the lines of another format, and the spans of a line to JSON.
///
/// The JSON format itself lists the spans that the thread is in, which are not those of a span that closes.
pub(crate) struct WithContext<F> {
    pub(crate) lines: F,
    /// Format of `lines`.
    pub(crate) format: Format,
}

impl<S, N, F> FormatEvent<S, N> for WithContext<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let own = event.metadata().fields().field(FIELD);
        let id = CURRENT.get().filter(|_| own.is_none());
        let spans = ctx.event_scope().filter(|_| self.format == Format::Json);
        if id.is_none() && spans.is_none() {
            return self.lines.format_event(ctx, writer, event);
        }
        let mut line = String::new();
        self.lines.format_event(ctx, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        let id = id.as_ref().map(Id::as_str);
        let object = line.strip_suffix('}').filter(|_| self.format == Format::Json);
        let Some(object) = object else {
            return writeln!(writer, "{line} {FIELD}={}", id.unwrap_or_default());
        };
        writer.write_str(object)?;
        if let Some(spans) = spans {
            write_spans::<S, N>(&mut writer, spans)?;
        }
        if let Some(id) = id {
            write!(writer, ",\"{FIELD}\":\"{id}\"")?;
        }
        writeln!(writer, "}}")
    }
}

/// Writes a line's spans as a list of JSON objects, the outermost first.
fn write_spans<S, N>(writer: &mut Writer<'_>, spans: Scope<'_, S>) -> fmt::Result
where
    S: for<'a> LookupSpan<'a>,
    N: 'static,
{
    writer.write_str(",\"spans\":[")?;
    for (index, span) in spans.from_root().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let name = span.name();
        write!(writer, "{separator}{{\"name\":{name:?}")?;
        // A JSON object.
        let extensions = span.extensions();
        let fields = extensions.get::<FormattedFields<N>>().map_or("", |fields| fields.fields.as_str());
        let fields = fields.strip_prefix('{').and_then(|fields| fields.strip_suffix('}'));
        if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
            write!(writer, ",{fields}")?;
        }
        writer.write_str("}")?;
    }
    writer.write_str("]")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::logs::{LogOptions, subscriber};

    #[test]
    fn lines_of_a_request_have_its_id_and_others_have_none() {
        let logged = log(Format::Json, || {
            tracing::warn!("before");
            with_request_id(b"outer-1", || {
                with_request_id(b"inner:2", || tracing::warn!(node = "a", "inside"));
                tracing::warn!(request_id = "own", "explicit");
                tracing::warn!(request_id = None::<&str>, "withheld");
                tracing::warn!("restored");
            });
            tracing::warn!("after");
        });
        let lines: Vec<serde_json::Value> =
            logged.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: Vec<_> =
            lines.iter().map(|line| (line["message"].as_str().unwrap(), line[FIELD].as_str())).collect();
        assert_eq!(
            found,
            [
                ("before", None),
                ("inside", Some("inner:2")),
                ("explicit", Some("own")),
                ("withheld", None),
                ("restored", Some("outer-1")),
                ("after", None),
            ]
        );
        assert_eq!(lines[1]["node"], "a");
    }

    #[test]
    fn a_readable_line_ends_with_the_id() {
        let logged = log(Format::Human, || with_request_id(b"req-1", || tracing::warn!("careful")));
        assert!(logged.ends_with(" request_id=req-1\n") && logged.contains("careful"), "{logged}");
    }

    #[test]
    fn an_id_that_is_too_long_or_needs_escaping_is_not_logged() {
        let longest = [b'x'; LEN_MAX];
        let too_long = [b'x'; LEN_MAX + 1];
        let logged = log(Format::Json, || {
            for id in [&longest[..], &too_long, b"", b"a\"b", b"a\nb", b"\xff"] {
                with_request_id(id, || tracing::warn!("line"));
            }
        });
        assert_eq!((logged.lines().count(), logged.matches(FIELD).count()), (6, 1), "{logged}");
    }

    #[test]
    fn a_panic_restores_the_previous_id() {
        let logged = log(Format::Json, || {
            let panic = || with_request_id(b"lost", || panic!("expected"));
            assert!(std::panic::catch_unwind(panic).is_err());
            tracing::warn!("after");
        });
        assert!(!logged.contains(FIELD), "{logged}");
    }

    /// Returns the lines that a function logs.
    fn log(format: Format, function: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let options = LogOptions::new(None, format).unwrap();
        tracing::subscriber::with_default(subscriber(options, move || writer.clone()).0, function);
        let bytes = written.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
