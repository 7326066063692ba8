//! A body is refused, or understood as every other reader of JSON understands it; `serde_json` is the judge.

use std::fmt;

use bytes::Bytes;
use evenkeel_llm::request::{Endpoint, IncludeUsage, LlmRequest, ResponseMode};
use evenkeel_server::api_error::ApiError;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

/// How deep values may be nested.
const DEPTH_MAX: usize = 128;

const ENDPOINTS: [Endpoint; 7] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Embeddings,
    Endpoint::Messages,
    Endpoint::Responses,
    Endpoint::Speech,
    Endpoint::Other,
];

/// Checks one body.
pub(crate) fn check(body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let is_json = str::from_utf8(&body).is_ok() && serde_json::from_slice::<IgnoredAny>(&body).is_ok();
    for endpoint in ENDPOINTS {
        match LlmRequest::parse(endpoint, &body) {
            Ok(ask) => {
                assert!(is_json, "took what is not JSON");
                check_names(&ask, &body);
                check_forwarded(endpoint, &ask, &body);
            }
            Err(ApiError::Invalid { message, .. }) => {
                let is_told = message.starts_with("the body is not valid JSON");
                let is_deep = message.contains("nested too deeply") && DEPTH_MAX < depth(&body);
                // What was refused for another reason may also have been wrong further on.
                assert!(!is_told || !is_json || is_deep, "refused what is JSON: {message}");
            }
            Err(other) => panic!("refused as {other:?}"),
        }
    }
}

/// Whoever reads the model, whichever of several names it prefers, reads ours.
fn check_names(ask: &LlmRequest, body: &[u8]) {
    let Names(names) = serde_json::from_slice(body).expect("it is an object");
    let alike = |name: &&String| name.to_uppercase().to_lowercase() == "model";
    assert_eq!(names.iter().filter(alike).collect::<Vec<_>>(), ["model"]);
    if let Ok(Value::Object(object)) = serde_json::from_slice(body) {
        assert_eq!(object.get("model").and_then(Value::as_str), Some(ask.model.as_str()));
    }
}

/// What is forwarded asks for the counts, and is otherwise what was received.
fn check_forwarded(endpoint: Endpoint, ask: &LlmRequest, body: &Bytes) {
    let forwarded = ask.forwarded(body);
    let asks_for_counts = ask.delivery == ResponseMode::Stream
        && ask.usage == IncludeUsage::NotAsked
        && matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
    if !asks_for_counts {
        assert_eq!((forwarded.as_ptr(), forwarded.len()), (body.as_ptr(), body.len()));
        return;
    }
    let again = LlmRequest::parse(endpoint, &forwarded).expect("the node can read it");
    assert_eq!(again.usage, IncludeUsage::Asked);
    assert_eq!(again.forwarded(&forwarded), forwarded);
    assert_eq!(
        (&again.model, again.delivery, again.input_tokens, again.output_max, again.affinity),
        (&ask.model, ask.delivery, ask.input_tokens, ask.output_max, ask.affinity)
    );
    // The judge has no number beyond f64, and no half of a surrogate pair.
    let (Ok(mut expected), Ok(sent)) =
        (serde_json::from_slice::<Value>(body), serde_json::from_slice::<Value>(&forwarded))
    else {
        return;
    };
    match &mut expected["stream_options"] {
        Value::Object(options) => {
            options.insert("include_usage".to_owned(), Value::Bool(true));
        }
        absent => *absent = json!({"include_usage": true}),
    }
    assert_eq!(sent, expected);
}

/// How deep brackets are nested, counting those in strings too.
fn depth(body: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut depth_max = 0;
    for byte in body {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth_max = depth_max.max(depth);
    }
    depth_max
}

/// Every name of an object, also those that are there twice.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Names(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Names {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, IgnoredAny)) = map.next_entry()? {
            self.0.push(name);
        }
        Ok(self)
    }
}
