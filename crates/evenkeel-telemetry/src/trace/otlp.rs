//! Spans as OTLP JSON, which collectors accept at `/v1/traces`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Attribute, Attributes, Span, SpanKind};

/// `Content-Type` of [`payload`].
pub const CONTENT_TYPE: &str = "application/json";

/// Encodes spans of a service as one export request.
pub fn payload(service: &Attributes, spans: &[Span]) -> String {
    let scope = json!({"name": "evenkeel", "version": env!("CARGO_PKG_VERSION")});
    let spans: Vec<_> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(service)},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
    .to_string()
}

fn span(span: &Span) -> Value {
    let kind = match span.kind {
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let event = |(at, name, values): &(SystemTime, &'static str, Attributes)| json!({"timeUnixNano": nanos(*at), "name": name, "attributes": attributes(values)});
    let status = match &span.error {
        None => json!({}),
        Some(error) => json!({"code": 2, "message": error}),
    };
    let mut written = json!({
        "traceId": format!("{:032x}", span.context.trace),
        "spanId": format!("{:016x}", span.context.span),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanos(span.started_at),
        "endTimeUnixNano": nanos(span.ended_at),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = span.context.parent {
        written["parentSpanId"] = format!("{parent:016x}").into();
    }
    written
}

/// Formats a time as nanoseconds since the epoch; OTLP JSON encodes 64-bit integers as strings.
fn nanos(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
}

fn attributes(attributes: &Attributes) -> Value {
    let value = |value: &Attribute| match value {
        Attribute::Text(text) => json!({"stringValue": text}),
        Attribute::Integer(number) => json!({"intValue": number.to_string()}),
        Attribute::Bool(flag) => json!({"boolValue": flag}),
    };
    attributes.iter().map(|(name, attribute)| json!({"key": name, "value": value(attribute)})).collect()
}

#[cfg(test)]
mod tests {
    use super::super::SpanContext;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_span_is_encoded_as_otlp_json() {
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        let context = SpanContext { trace: 0xA, span: 0xB, parent: Some(0xC) };
        let span = Span {
            started_at: at(1),
            ended_at: at(3),
            attributes: vec![("a", "x".into()), ("b", 7.into()), ("c", true.into())],
            events: vec![(at(2), "event", vec![("d", String::from("y").into())])],
            error: Some("cause".to_owned()),
            ..Span::begin(context, SpanKind::Client, "name")
        };
        let written: Value =
            serde_json::from_str(&payload(&vec![("service.name", "evenkeel".into())], &[span])).unwrap();
        let resource = &written["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "evenkeel");
        let expected = json!({
            "traceId": "0000000000000000000000000000000a", "spanId": "000000000000000b",
            "parentSpanId": "000000000000000c", "name": "name", "kind": 3,
            "startTimeUnixNano": "1000000000", "endTimeUnixNano": "3000000000",
            "attributes": [
                {"key": "a", "value": {"stringValue": "x"}}, {"key": "b", "value": {"intValue": "7"}},
                {"key": "c", "value": {"boolValue": true}}
            ],
            "events": [{"timeUnixNano": "2000000000", "name": "event", "attributes": [
                {"key": "d", "value": {"stringValue": "y"}}
            ]}],
            "status": {"code": 2, "message": "cause"}
        });
        assert_eq!(resource["scopeSpans"][0]["spans"][0], expected);
    }
}
