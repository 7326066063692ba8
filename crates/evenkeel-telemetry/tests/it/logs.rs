//! Log lines: JSON when not on a terminal, filtered, without secrets.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use evenkeel_policy::id::{NodeId, RequestId, TenantId};
use evenkeel_policy::outcome::TripReason;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::logs::{Format, LogError, LogOptions, StartupLine, subscriber};
use evenkeel_telemetry::{
    Event, MetricLimits, NodeEvent, Observer, Registry, RejectReason, RequestLogLimits, Secret, Step,
};
use serde_json::{Value, json};

#[test]
fn the_startup_line_names_the_url_the_apis_the_store_and_the_tenants() {
    let lines = json_lines(None, || {
        StartupLine { url: "http://127.0.0.1:7070", apis: &["llm", "sql"], store: "./data", tenants: 3 }
            .log();
    });
    assert_eq!(lines.len(), 1);
    let line = &lines[0];
    assert_eq!(line["message"], "started");
    assert_eq!(line["url"], "http://127.0.0.1:7070");
    assert_eq!(line["apis"], "llm,sql");
    assert_eq!((&line["store"], &line["tenants"]), (&json!("./data"), &json!(3)));
    assert!(line["timestamp"].is_string() && line["level"] == "INFO");
}

#[test]
fn an_event_is_one_json_object_with_names_and_ids() {
    let lines = json_lines(Some("debug"), record_two_events);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["event"], "rejected");
    assert_eq!((&lines[0]["pool"], &lines[0]["request"]), (&json!("llm"), &json!(7)));
    assert_eq!((&lines[0]["tenant"], &lines[0]["tenant_id"]), (&json!("acme"), &json!(2)));
    assert_eq!(lines[0]["message"], "rejected: the queue is full");
    assert_eq!((lines[0].get("node"), lines[0].get("node_id")), (None, None));
    assert_eq!((&lines[1]["event"], &lines[1]["level"]), (&json!("breaker_open"), &json!("WARN")));
    // A node without a name is logged by its id only.
    assert_eq!((lines[1].get("node"), &lines[1]["node_id"]), (None, &json!(1)));
}

#[test]
fn steps_of_requests_are_logged_at_debug() {
    let events = |filter| -> Vec<Value> {
        json_lines(filter, record_two_events).into_iter().map(|line| line["event"].clone()).collect()
    };
    assert_eq!(events(None), ["breaker_open"]);
    assert_eq!(events(Some("  ")), ["breaker_open"]);
    assert_eq!(events(Some("evenkeel::pipeline=debug")), ["rejected", "breaker_open"]);
    assert_eq!(events(Some("debug,evenkeel=error")), [] as [Value; 0]);
}

#[test]
fn a_span_is_logged_with_its_times_when_it_closes_if_the_filter_lets_it_through() {
    let work = || {
        let request = tracing::debug_span!("request", number = 1);
        let message =
            || tracing::trace_span!(target: "evenkeel_actor::trace::spans", "message", actor = "{jobs}");
        let message = request.in_scope(message);
        message.in_scope(|| tracing::info!("handled"));
    };
    let messages = |lines: &[Value]| lines.iter().map(|line| line["message"].clone()).collect::<Vec<_>>();
    let lines = json_lines(Some("debug,evenkeel_actor=trace"), work);
    assert_eq!(messages(&lines), ["handled", "close", "close"]);
    let request = json!({"name": "request", "number": 1});
    let message = json!({"name": "message", "actor": "{jobs}"});
    let spans = [json!([request, message]), json!([request, message]), json!([request])];
    assert_eq!(lines.iter().map(|line| line["spans"].clone()).collect::<Vec<_>>(), spans);
    assert_eq!((&lines[1]["level"], &lines[1]["span"]), (&json!("TRACE"), &message));
    assert!(lines[1]["time.busy"].is_string() && lines[1]["time.idle"].is_string(), "{}", lines[1]);
    assert_eq!(messages(&json_lines(None, work)), ["handled"]);
}

#[test]
fn the_filter_of_a_running_logger_can_change() {
    let written = Written::default();
    let sink = written.clone();
    let options = |filter| LogOptions::new(Some(filter), Format::Json).unwrap();
    let (subscriber, filter) = subscriber(options("info"), move || sink.clone());
    tracing::subscriber::with_default(subscriber, || {
        for (level, message) in [("info", "first"), ("debug", "second"), ("info", "third")] {
            filter.set(&options(level));
            tracing::debug!(message);
        }
    });
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("second") && text.lines().count() == 1, "{text}");
}

#[test]
fn every_line_is_one_json_object_whatever_is_logged() {
    let special = "a\"b\\c\nd\u{1b}[31m\u{0}\u{2028}é";
    let lines = json_lines(None, || tracing::info!(field = special, "{special}"));
    assert_eq!((&lines[0]["field"], &lines[0]["message"]), (&json!(special), &json!(special)));
}

#[test]
fn a_secret_is_hidden_in_either_format() {
    for format in [Format::Human, Format::Json] {
        let text = logged(None, format, || {
            let key = Secret::new("ek-123");
            tracing::info!(key = %key, again = ?Some(&key), "key {key} of {key:?}");
        });
        assert!(text.contains("[hidden]") && !text.contains("ek-123"), "{text}");
    }
}

#[test]
fn a_node_is_logged_by_its_name_even_when_it_is_removed() {
    let lines = json_lines(None, || {
        let observer =
            Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default())
                .unwrap();
        observer.metrics().name_node(NodeId(300), "gpu-1");
        for change in [NodeEvent::Serving, NodeEvent::Removed, NodeEvent::Serving] {
            observer.record(Instant::ORIGIN, &Event::Node { node: NodeId(300), change });
        }
    });
    let messages: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["node \"gpu-1\": in rotation", "node \"gpu-1\": removed", "node 300: in rotation"]);
}

#[test]
fn the_human_format_is_not_json() {
    let text = logged(None, Format::Human, || tracing::info!("started"));
    assert!(text.contains("started") && !text.starts_with('{'), "{text}");
}

#[test]
fn a_file_gets_json() {
    assert_eq!(Format::for_stream(&std::fs::File::open("Cargo.toml").unwrap()), Format::Json);
}

#[test]
fn a_filter_with_a_typo_is_rejected() {
    let error = LogOptions::new(Some("evenkeel=loud"), Format::Json).unwrap_err();
    let LogError::InvalidFilter { filter, .. } = &error else { panic!("{error:?}") };
    assert_eq!(filter, "evenkeel=loud");
}

fn record_two_events() {
    let observer =
        Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    observer.metrics().name_tenant(TenantId(2), "acme");
    let step = Step::Rejected { reason: RejectReason::QueueFull };
    observer.record(Instant::ORIGIN, &Event::Request { request: RequestId(7), tenant: TenantId(2), step });
    let change =
        NodeEvent::BreakerOpened { reason: TripReason::ProbeFailed, backoff: Duration::from_secs(1) };
    observer.record(Instant::ORIGIN, &Event::Node { node: NodeId(1), change });
}

fn json_lines(filter: Option<&str>, work: impl FnOnce()) -> Vec<Value> {
    let text = logged(filter, Format::Json, work);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn logged(filter: Option<&str>, format: Format, work: impl FnOnce()) -> String {
    let written = Written::default();
    let sink = written.clone();
    let options = LogOptions::new(filter, format).unwrap();
    tracing::subscriber::with_default(subscriber(options, move || sink.clone()).0, work);
    let bytes = written.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
