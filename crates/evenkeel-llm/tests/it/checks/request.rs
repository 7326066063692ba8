//! A body is rejected, or parsed as other JSON parsers do; `serde_json` is the reference.

use std::fmt;

use bytes::Bytes;
use evenkeel_llm::request::{Endpoint, IncludeUsage, LlmRequest, ResponseMode};
use evenkeel_server::api_error::ApiError;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

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
            Ok(request) => {
                assert!(is_json, "accepted invalid JSON");
                check_names(&request, &body);
                check_forwarded(endpoint, &request, &body);
            }
            Err(ApiError::Invalid { message, .. }) => {
                let is_invalid = message.starts_with("the body is not valid JSON");
                let is_deep = message.contains("nested too deeply") && depth(&body) > DEPTH_MAX;
                // A body that was rejected for another reason may contain invalid JSON after that point.
                assert!(!is_invalid || !is_json || is_deep, "rejected valid JSON: {message}");
            }
            Err(other) => panic!("rejected with {other:?}"),
        }
    }
}

/// Checks that a case-insensitive parser would find the same model.
fn check_names(request: &LlmRequest, body: &[u8]) {
    let Names(names) = serde_json::from_slice(body).expect("an accepted body is an object");
    let alike = |name: &&String| name.to_uppercase().to_lowercase() == "model";
    assert_eq!(names.iter().filter(alike).collect::<Vec<_>>(), ["model"]);
    if let Ok(Value::Object(object)) = serde_json::from_slice(body) {
        assert_eq!(object.get("model").and_then(Value::as_str), Some(request.model.as_str()));
    }
}

/// Checks that the forwarded body requests usage, and is otherwise unchanged.
fn check_forwarded(endpoint: Endpoint, request: &LlmRequest, body: &Bytes) {
    let forwarded = request.forwarded(body, None);
    let adds_usage = request.mode == ResponseMode::Stream
        && request.usage == IncludeUsage::NotRequested
        && matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
    if !adds_usage {
        assert_eq!((forwarded.as_ptr(), forwarded.len()), (body.as_ptr(), body.len()));
        return;
    }
    let again = LlmRequest::parse(endpoint, &forwarded).expect("the forwarded body is valid");
    assert_eq!(again.usage, IncludeUsage::Requested);
    assert_eq!(again.forwarded(&forwarded, None), forwarded);
    assert_eq!(
        (&again.model, again.mode, again.input_tokens, again.output_tokens_max, again.affinity("m")),
        (
            &request.model,
            request.mode,
            request.input_tokens,
            request.output_tokens_max,
            request.affinity("m")
        )
    );
    // `serde_json` rejects numbers beyond f64 and lone surrogates.
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

/// Returns the nesting depth of brackets, including those in strings.
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

/// All names of an object, including repeated ones.
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
