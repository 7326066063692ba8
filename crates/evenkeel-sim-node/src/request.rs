//! Parses and validates request bodies.

pub(super) mod messages;
mod responses;

use super::api_error::ApiError;
use serde_json::Value;

/// Maximum number of texts per embeddings request.
const TEXTS_MAX: usize = 2_048;
const STOPS_MAX: usize = 4;
const DIMENSIONS_DEFAULT: u32 = 64;
const DIMENSIONS_MAX: u32 = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiKind {
    Chat,
    Completion,
    Messages,
    Responses,
}

/// A request for generated text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GenerateRequest {
    pub(super) api: ApiKind,
    pub(super) model: String,
    pub(super) prompt: String,
    pub(super) prompt_tokens: u32,
    pub(super) tokens_max: Option<u32>,
    pub(super) end: EndMode,
    pub(super) stops: Vec<String>,
    pub(super) tool: Option<Tool>,
    pub(super) mode: ResponseMode,
}

/// Condition that ends a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndMode {
    Natural,
    /// `ignore_eos`, which engines offer for benchmarks: always generates up to the limit.
    AtLimit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseMode {
    Whole,
    Stream { usage: IncludeUsage },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncludeUsage {
    No,
    Yes,
}

/// A function for the model to call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) parameters: Value,
}

/// An embeddings request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EmbeddingRequest {
    pub(super) model: String,
    pub(super) texts: Vec<String>,
    pub(super) tokens: u32,
    pub(super) dimensions: u32,
    pub(super) encoding: Encoding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Float,
    Base64,
}

/// Returns the number of tokens: one per four bytes.
pub(super) fn count_tokens(text: &str) -> u32 {
    u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX)
}

/// Parses a JSON object.
pub(super) fn json(body: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::invalid(None, format!("invalid JSON: {error}")))?;
    if !value.is_object() {
        return Err(ApiError::invalid(None, "the body must be a JSON object".to_owned()));
    }
    Ok(value)
}

impl GenerateRequest {
    /// Parses a request of any text API.
    pub(super) fn parse(api: ApiKind, body: &Value) -> Result<Self, ApiError> {
        let (prompt, prompt_tokens) = match api {
            ApiKind::Chat => read_messages(body)?,
            ApiKind::Completion => read_prompt(body)?,
            ApiKind::Messages => return messages::parse(body),
            ApiKind::Responses => return responses::parse(body),
        };
        if optional_count(body, "n")?.is_some_and(|n| n > 1) {
            return Err(ApiError::invalid(Some("n"), "only one choice is simulated".to_owned()));
        }
        let limit = match optional_count(body, "max_completion_tokens")? {
            Some(limit) => Some(limit),
            None => optional_count(body, "max_tokens")?,
        };
        let end = if flag(body, "ignore_eos")? { EndMode::AtLimit } else { EndMode::Natural };
        let stops = read_stops(&body["stop"])?;
        let tool = read_tool(body)?;
        let mode = read_mode(body)?;
        let model = read_model(body)?;
        Ok(Self { api, model, prompt, prompt_tokens, tokens_max: limit, end, stops, tool, mode })
    }
}

impl EmbeddingRequest {
    pub(super) fn parse(body: &Value) -> Result<Self, ApiError> {
        let (texts, tokens) = read_inputs(&body["input"])?;
        let dimensions = optional_count(body, "dimensions")?.unwrap_or(DIMENSIONS_DEFAULT);
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            let message = format!("dimensions must be from 1 to {DIMENSIONS_MAX}");
            return Err(ApiError::invalid(Some("dimensions"), message));
        }
        let encoding = match body["encoding_format"].as_str() {
            Some("base64") => Encoding::Base64,
            Some("float") => Encoding::Float,
            None if body["encoding_format"].is_null() => Encoding::Float,
            _ => {
                return Err(ApiError::invalid(
                    Some("encoding_format"),
                    "encoding_format must be float or base64".to_owned(),
                ));
            }
        };
        Ok(Self { model: read_model(body)?, texts, tokens, dimensions, encoding })
    }
}

pub(super) fn read_model(body: &Value) -> Result<String, ApiError> {
    let missing = || ApiError::invalid(Some("model"), "you must provide a model parameter".to_owned());
    body["model"].as_str().map(str::to_owned).ok_or_else(missing)
}

pub(super) fn optional_count(body: &Value, name: &'static str) -> Result<Option<u32>, ApiError> {
    let value = &body[name];
    if value.is_null() {
        return Ok(None);
    }
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
    count
        .map(Some)
        .ok_or_else(|| ApiError::invalid(Some(name), format!("{name} must be a positive whole number")))
}

fn flag(body: &Value, name: &'static str) -> Result<bool, ApiError> {
    let value = &body[name];
    if value.is_null() {
        return Ok(false);
    }
    value.as_bool().ok_or_else(|| ApiError::invalid(Some(name), format!("{name} must be true or false")))
}

fn read_mode(body: &Value) -> Result<ResponseMode, ApiError> {
    let stream = flag(body, "stream")?;
    let usage = flag(&body["stream_options"], "include_usage")?;
    if !stream && !body["stream_options"].is_null() {
        return Err(ApiError::invalid(Some("stream_options"), "stream_options requires stream".to_owned()));
    }
    let usage = if usage { IncludeUsage::Yes } else { IncludeUsage::No };
    Ok(if stream { ResponseMode::Stream { usage } } else { ResponseMode::Whole })
}

/// Joins the texts of a conversation; returns them with their number of tokens.
fn read_messages(body: &Value) -> Result<(String, u32), ApiError> {
    let bad = |message: &str| ApiError::invalid(Some("messages"), message.to_owned());
    let messages = body["messages"].as_array().ok_or_else(|| bad("messages must be a list"))?;
    if messages.is_empty() {
        return Err(bad("messages must not be empty"));
    }
    let mut prompt = String::new();
    for message in messages {
        let role = message["role"].as_str().ok_or_else(|| bad("each message needs a role"))?;
        prompt.push_str(role);
        prompt.push('\n');
        match &message["content"] {
            Value::String(text) => prompt.push_str(text),
            Value::Array(parts) => {
                parts.iter().filter_map(|part| part["text"].as_str()).for_each(|text| prompt.push_str(text));
            }
            // An assistant message that calls a tool has no content.
            Value::Null => {}
            _ => return Err(bad("content must be a string or a list of parts")),
        }
        prompt.push('\n');
    }
    let tokens = count_tokens(&prompt);
    Ok((prompt, tokens))
}

fn read_prompt(body: &Value) -> Result<(String, u32), ApiError> {
    let (mut texts, tokens) = read_texts(&body["prompt"]).ok_or_else(|| {
        ApiError::invalid(Some("prompt"), "prompt must be a string or a list of token IDs".to_owned())
    })?;
    match (texts.pop(), texts.is_empty()) {
        (Some(text), true) => Ok((text, tokens)),
        _ => Err(ApiError::invalid(Some("prompt"), "only one prompt is simulated".to_owned())),
    }
}

fn read_inputs(input: &Value) -> Result<(Vec<String>, u32), ApiError> {
    let bad = |message: String| ApiError::invalid(Some("input"), message);
    let (texts, tokens) = read_texts(input)
        .ok_or_else(|| bad("input must be a string, a list of strings or a list of token IDs".to_owned()))?;
    if texts.is_empty() || texts.len() > TEXTS_MAX {
        return Err(bad(format!("input must have 1 to {TEXTS_MAX} texts")));
    }
    Ok((texts, tokens))
}

/// Reads a string, a list of strings, a list of token IDs, or a list of such lists.
///
/// Returns the texts and their total number of tokens.
fn read_texts(value: &Value) -> Option<(Vec<String>, u32)> {
    if let Some((text, tokens)) = read_text(value) {
        return Some((vec![text], tokens));
    }
    let read: Vec<_> = value.as_array()?.iter().map(read_text).collect::<Option<_>>()?;
    let tokens = read.iter().fold(0, |sum: u32, (_, tokens)| sum.saturating_add(*tokens));
    Some((read.into_iter().map(|(text, _)| text).collect(), tokens))
}

fn read_text(value: &Value) -> Option<(String, u32)> {
    if let Some(text) = value.as_str() {
        return Some((text.to_owned(), count_tokens(text)));
    }
    let numbers = value.as_array()?;
    let all_tokens = !numbers.is_empty() && numbers.iter().all(Value::is_u64);
    all_tokens.then(|| (value.to_string(), u32::try_from(numbers.len()).unwrap_or(u32::MAX)))
}

fn read_stops(stop: &Value) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        Value::Null => Some(Vec::new()),
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let is_valid =
        |stops: &Vec<String>| stops.len() <= STOPS_MAX && stops.iter().all(|stop| !stop.is_empty());
    let message = || format!("stop must be a string or at most {STOPS_MAX} strings, none of them empty");
    stops.filter(is_valid).ok_or_else(|| ApiError::invalid(Some("stop"), message()))
}

/// Returns the tool to call: the one that `tool_choice` names; for `required` the first; for `auto` the first, unless
/// the last message is a tool's result.
fn read_tool(body: &Value) -> Result<Option<Tool>, ApiError> {
    let Some(tools) = body["tools"].as_array().filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let bad = |name, message: &str| ApiError::invalid(Some(name), message.to_owned());
    let mut known = Vec::new();
    for tool in tools {
        let function = &tool["function"];
        let name =
            function["name"].as_str().ok_or_else(|| bad("tools", "each tool needs a function name"))?;
        known.push(Tool { name: name.to_owned(), parameters: function["parameters"].clone() });
    }
    let has_result =
        body["messages"].as_array().and_then(|messages| messages.last()).is_some_and(|m| m["role"] == "tool");
    match &body["tool_choice"] {
        Value::Null => Ok(known.into_iter().next().filter(|_| !has_result)),
        Value::String(choice) => match choice.as_str() {
            "none" => Ok(None),
            "auto" => Ok(known.into_iter().next().filter(|_| !has_result)),
            "required" => Ok(known.into_iter().next()),
            _ => Err(bad("tool_choice", "tool_choice must be none, auto, required or a function")),
        },
        choice => {
            let named = known.into_iter().find(|tool| choice["function"]["name"] == tool.name.as_str());
            named
                .map(Some)
                .ok_or_else(|| bad("tool_choice", "tool_choice names a function that is not in tools"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plain_chat_is_parsed() {
        let request = chat(json!({"max_tokens": 5, "stop": "x"})).unwrap();
        assert_eq!(request.prompt, "user\nhello\n");
        assert_eq!((request.prompt_tokens, request.tokens_max), (3, Some(5)));
        assert_eq!((request.stops, request.mode), (vec!["x".to_owned()], ResponseMode::Whole));
    }

    #[test]
    fn max_completion_tokens_overrides_max_tokens() {
        assert_eq!(chat(json!({"max_tokens": 5, "max_completion_tokens": 9})).unwrap().tokens_max, Some(9));
    }

    #[test]
    fn the_error_names_the_invalid_parameter() {
        for (change, param) in [
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"content": "x"}]}), "messages"),
            (json!({"messages": [{"role": "user", "content": 1}]}), "messages"),
            (json!({"model": null}), "model"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"n": 2}), "n"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stop": [""]}), "stop"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
            (json!({"tools": [{}]}), "tools"),
            (json!({"tools": [tool("a")], "tool_choice": "perhaps"}), "tool_choice"),
            (json!({"tools": [tool("a")], "tool_choice": {"function": {"name": "b"}}}), "tool_choice"),
        ] {
            assert_eq!(chat(change.clone()).unwrap_err().param(), Some(param), "{change}");
        }
        assert!(json(b"[1]").is_err() && json(b"{").is_err());
    }

    #[test]
    fn a_tool_is_called_until_the_messages_contain_its_result() {
        let tools = json!([tool("a"), tool("b")]);
        let called = |change: Value| chat(change).unwrap().tool.map(|tool| tool.name);
        assert_eq!(called(json!({"tools": tools})).as_deref(), Some("a"));
        assert_eq!(called(json!({"tools": tools, "tool_choice": "none"})), None);
        let named = json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "b"}}});
        assert_eq!(called(named).as_deref(), Some("b"));
        let with_result = json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "42"}]);
        assert_eq!(called(json!({"tools": tools, "messages": with_result})), None);
    }

    #[test]
    fn inputs_are_strings_or_token_ids() {
        let count = |input: Value| {
            EmbeddingRequest::parse(&json!({"model": "m", "input": input})).map(|e| (e.texts.len(), e.tokens))
        };
        assert_eq!(count(json!("four")).unwrap(), (1, 1));
        assert_eq!(count(json!(["four", "fives"])).unwrap(), (2, 3));
        assert_eq!(count(json!([1, 2, 3])).unwrap(), (1, 3));
        assert_eq!(count(json!([[1], [2, 3]])).unwrap(), (2, 3));
        assert!(count(json!([])).is_err() && count(json!([1, "a"])).is_err() && count(json!({})).is_err());
        assert!(count(json!(vec!["a"; TEXTS_MAX + 1])).is_err());
        assert!(count(json!(vec!["a"; TEXTS_MAX])).is_ok());
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {}}})
    }

    fn chat(change: Value) -> Result<GenerateRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        GenerateRequest::parse(ApiKind::Chat, &body)
    }
}
