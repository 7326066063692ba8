//! Log lines: JSON where nobody looks on, filtered as asked, without secrets.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::logs::{Format, LogError, LogOptions, StartupLine, subscriber};
use evenkeel_telemetry::{
    Event, MetricLimits, NodeEvent, Observer, Registry, RejectReason, RequestId, RequestLogLimits, Secret,
    Step,
};
use serde_json::{Value, json};

#[test]
fn the_line_at_the_start_says_where_what_and_for_whom() {
    let lines = json_lines(None, || {
        StartupLine { url: "http://127.0.0.1:7070", apis: &["llm", "sql"], store: "./data", tenants: 3 }
            .tell();
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
fn an_event_is_one_object_with_names_and_numbers() {
    let lines = json_lines(Some("debug"), tell_two_events);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["event"], "rejected");
    assert_eq!((&lines[0]["pool"], &lines[0]["request"]), (&json!("llm"), &json!(7)));
    assert_eq!((&lines[0]["tenant"], &lines[0]["tenant_id"]), (&json!("acme"), &json!(2)));
    assert_eq!(lines[0]["message"], "rejected: the queue is full");
    assert_eq!((lines[0].get("node"), lines[0].get("node_id")), (None, None));
    assert_eq!((&lines[1]["event"], &lines[1]["level"]), (&json!("opened"), &json!("WARN")));
    // A node that nobody named has its number only.
    assert_eq!((lines[1].get("node"), &lines[1]["node_id"]), (None, &json!(1)));
}

#[test]
fn steps_of_requests_are_for_those_who_debug() {
    let words = |filter| -> Vec<Value> {
        json_lines(filter, tell_two_events).into_iter().map(|line| line["event"].clone()).collect()
    };
    assert_eq!(words(None), ["opened"]);
    assert_eq!(words(Some("  ")), ["opened"]);
    assert_eq!(words(Some("evenkeel::walk=debug")), ["rejected", "opened"]);
    assert_eq!(words(Some("debug,evenkeel=error")), [] as [Value; 0]);
}

#[test]
fn whatever_is_logged_a_line_is_one_object() {
    let nasty = "a\"b\\c\nd\u{1b}[31m\u{0}\u{2028}é";
    let lines = json_lines(None, || tracing::info!(field = nasty, "{nasty}"));
    assert_eq!((&lines[0]["field"], &lines[0]["message"]), (&json!(nasty), &json!(nasty)));
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
fn a_node_is_called_by_its_name_also_in_the_line_that_says_it_is_gone() {
    let lines = json_lines(None, || {
        let watch =
            Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default())
                .unwrap();
        watch.meters().name_node(NodeId(300), "gpu-1");
        for change in [NodeEvent::Serving, NodeEvent::Removed, NodeEvent::Serving] {
            watch.record(Instant::ORIGIN, &Event::Node { node: NodeId(300), change });
        }
    });
    let said: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(said, ["node gpu-1 takes work", "node gpu-1 is gone", "node 300 takes work"]);
}

#[test]
fn for_people_a_line_is_no_json() {
    let text = logged(None, Format::Human, || tracing::info!("started"));
    assert!(text.contains("started") && !text.starts_with('{'), "{text}");
}

#[test]
fn a_file_is_read_by_programs() {
    assert_eq!(Format::of(&std::fs::File::open("Cargo.toml").unwrap()), Format::Json);
}

#[test]
fn a_filter_with_a_typo_is_refused() {
    let refused = LogOptions::new(Some("evenkeel=loud"), Format::Json).unwrap_err();
    let LogError::InvalidFilter { filter, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!(filter, "evenkeel=loud");
}

fn tell_two_events() {
    let watch =
        Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
    watch.meters().name_tenant(TenantId(2), "acme");
    let step = Step::Rejected { reason: RejectReason::QueueFull };
    watch.record(Instant::ORIGIN, &Event::Request { request: RequestId(7), tenant: TenantId(2), step });
    let change = NodeEvent::BreakerOpened { until: Instant::from_secs(1) };
    watch.record(Instant::ORIGIN, &Event::Node { node: NodeId(1), change });
}

fn json_lines(filter: Option<&str>, work: impl FnOnce()) -> Vec<Value> {
    let text = logged(filter, Format::Json, work);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn logged(filter: Option<&str>, format: Format, work: impl FnOnce()) -> String {
    let written = Written::default();
    let sink = written.clone();
    let options = LogOptions::new(filter, format).unwrap();
    tracing::subscriber::with_default(subscriber(options, move || sink.clone()), work);
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
