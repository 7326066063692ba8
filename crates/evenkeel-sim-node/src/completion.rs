//! Plans completions: text, a tool call or embeddings, determined by the seed and the prompt.
//!
//! Limits: prompt and completion together fit into the context window.

use super::api_error::ApiError;
use super::request::{EndMode, GenerateRequest, Tool};
use super::seeded_random::{draw, seed_of};
use serde_json::{Map, Value, json};

const WORDS: [&str; 32] = [
    "the", "keel", "keeps", "a", "boat", "even", "while", "wind", "and", "water", "push", "it", "to", "one",
    "side", "so", "that", "every", "sailor", "gets", "home", "with", "some", "fish", "for", "supper",
    "before", "night", "falls", "over", "this", "harbour",
];
/// Maximum nesting of generated arguments; deeper values are null.
const DEPTH_MAX: u32 = 8;
const ARGUMENT_BYTES_PER_TOKEN: usize = 4;

/// A planned completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompletionPlan {
    /// Text of each token.
    pub(super) pieces: Vec<String>,
    /// Name of the function, if the pieces are arguments of a tool call.
    pub(super) call: Option<String>,
    pub(super) finish: Finish,
    pub(super) prompt_tokens: u32,
    /// Generated tokens, including those hidden by a stop sequence.
    pub(super) completion_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// Generator of completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Generator {
    pub(super) seed: u64,
    pub(super) output_tokens: u32,
    pub(super) context_max: u32,
}

impl Generator {
    /// Plans the whole completion, except its timing.
    pub(super) fn plan(&self, request: &GenerateRequest) -> Result<CompletionPlan, ApiError> {
        let limit = self.limit(request)?;
        let (mut pieces, natural_finish) = match &request.tool {
            Some(tool) => (arguments(tool), Finish::ToolCalls),
            None => (self.words(request, limit), Finish::Stop),
        };
        let limit = limit as usize;
        let ends_naturally = pieces.len() <= limit && request.end == EndMode::Natural;
        let mut finish = if ends_naturally { natural_finish } else { Finish::Length };
        pieces.truncate(limit);
        let mut completion_tokens = pieces.len();
        if let Some((tokens, bytes)) = first_stop(&pieces, &request.stops) {
            completion_tokens = tokens;
            finish = Finish::Stop;
            truncate(&mut pieces, bytes);
        }
        let call = request.tool.as_ref().map(|tool| tool.name.clone());
        let completion_tokens = u32::try_from(completion_tokens).unwrap_or(u32::MAX);
        Ok(CompletionPlan { pieces, call, finish, prompt_tokens: request.prompt_tokens, completion_tokens })
    }

    fn limit(&self, request: &GenerateRequest) -> Result<u32, ApiError> {
        let room = self.context_max.saturating_sub(request.prompt_tokens);
        let limit = request.tokens_max.unwrap_or(room);
        if limit > room || room == 0 {
            let message = format!(
                "this model's context is {} tokens, but the prompt has {} and max_tokens is {}",
                self.context_max, request.prompt_tokens, limit
            );
            return Err(ApiError::invalid(Some("max_tokens"), message));
        }
        Ok(limit)
    }

    /// Draws random words, from half to one and a half times the average number.
    fn words(&self, request: &GenerateRequest, limit: u32) -> Vec<String> {
        let seed = self.seed ^ seed_of(&request.prompt);
        let average = u64::from(self.output_tokens);
        let wanted = (average.div_ceil(2) + draw(seed, 0) % (average + 1)).max(1);
        let count = match request.end {
            EndMode::AtLimit => u64::from(limit),
            // One word above the limit is enough for `plan` to detect that the limit ended the completion.
            EndMode::Natural => wanted.min(u64::from(limit) + 1),
        };
        let word = |index| WORDS[(draw(seed, index + 1) % WORDS.len() as u64) as usize];
        (0..count)
            .map(|index| if index == 0 { word(0).to_owned() } else { format!(" {}", word(index)) })
            .collect()
    }
}

/// Finds the first stop sequence; returns the number of tokens up to its end, and of bytes before its start.
fn first_stop(pieces: &[String], stops: &[String]) -> Option<(usize, usize)> {
    let longest = stops.iter().map(String::len).max()?;
    let mut text = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        // A stop sequence that ends in this piece starts at most its own length before the piece.
        let from = text.floor_char_boundary(text.len().saturating_sub(longest));
        text.push_str(piece);
        let found = stops.iter().filter_map(|stop| text[from..].find(stop.as_str())).min();
        if let Some(offset) = found {
            return Some((index + 1, from + offset));
        }
    }
    None
}

fn truncate(pieces: &mut Vec<String>, bytes: usize) {
    let mut left = bytes;
    pieces.retain_mut(|piece| {
        piece.truncate(left);
        left -= piece.len();
        !piece.is_empty()
    });
}

/// Generates arguments that match the schema of a function's parameters.
fn arguments(tool: &Tool) -> Vec<String> {
    let text = match sample(&tool.parameters, DEPTH_MAX) {
        Value::Object(object) => Value::Object(object).to_string(),
        _ => "{}".to_owned(),
    };
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(ARGUMENT_BYTES_PER_TOKEN));
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces
}

fn sample(schema: &Value, depth_left: u32) -> Value {
    if depth_left == 0 {
        return Value::Null;
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!("sample"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([sample(&schema["items"], depth_left - 1)]),
        Some("object") => {
            let properties = schema["properties"].as_object();
            let sampled = properties.into_iter().flatten();
            let object: Map<_, _> =
                sampled.map(|(name, schema)| (name.clone(), sample(schema, depth_left - 1))).collect();
            Value::Object(object)
        }
        _ => Value::Null,
    }
}

/// Returns a unit vector; equal texts have equal vectors.
pub(super) fn embedding(seed: u64, text: &str, dimensions: u32) -> Vec<f32> {
    let seed = seed ^ seed_of(text);
    let raw: Vec<f32> = (0..u64::from(dimensions))
        .map(|index| (draw(seed, index) >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect();
    let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    raw.into_iter().map(|x| x / length).collect()
}

#[cfg(test)]
mod tests {
    use super::super::request::ApiKind;
    use super::*;

    #[test]
    fn the_same_prompt_gives_the_same_completion_and_another_prompt_another() {
        assert_eq!(plan("a", json!({})), plan("a", json!({})));
        assert_ne!(plan("a", json!({})).pieces, plan("b", json!({})).pieces);
    }

    #[test]
    fn a_completion_ends_naturally_or_at_its_limit() {
        let natural = plan("a", json!({}));
        assert_eq!(natural.finish, Finish::Stop);
        assert!((10..=31).contains(&natural.completion_tokens), "{natural:?}");
        let short = plan("a", json!({"max_tokens": 3}));
        assert_eq!((short.finish, short.completion_tokens), (Finish::Length, 3));
        assert_eq!(short.pieces, natural.pieces[..3]);
        let exact = plan("a", json!({"max_tokens": natural.completion_tokens}));
        assert_eq!(exact.finish, Finish::Stop);
        let forced = plan("a", json!({"max_tokens": 50, "ignore_eos": true}));
        assert_eq!((forced.finish, forced.completion_tokens), (Finish::Length, 50));
    }

    #[test]
    fn a_completion_ends_before_a_stop_sequence_that_spans_tokens() {
        let text = plan("a", json!({})).pieces.concat();
        let spaces: Vec<_> = text.match_indices(' ').map(|(index, _)| index).collect();
        let stop = &text[spaces[3] - 2..spaces[4] + 2];
        let stopped = plan("a", json!({"stop": ["absent", stop]}));
        let start = text.find(stop).unwrap();
        assert_eq!((stopped.pieces.concat().as_str(), stopped.finish), (&text[..start], Finish::Stop));
        assert!(stopped.completion_tokens as usize > stopped.pieces.len());
    }

    #[test]
    fn a_prompt_and_its_token_limit_must_fit_into_the_context() {
        let plan = |max| generator().plan(&request("a", json!({"max_tokens": max})));
        let room = 100 - request("a", json!({})).prompt_tokens;
        assert!(plan(room).is_ok());
        assert_eq!(plan(room + 1).unwrap_err().param(), Some("max_tokens"));
        assert!(generator().plan(&request(&"long ".repeat(100), json!({}))).is_err());
    }

    #[test]
    fn arguments_match_their_schema() {
        let parameters = json!({"type": "object", "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}}, "wet": {"type": "boolean"}}});
        let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
        let called = plan("a", json!({"tools": tools}));
        let arguments: Value = serde_json::from_str(&called.pieces.concat()).unwrap();
        assert_eq!(arguments, json!({"city": "sample", "unit": "C", "days": [1], "wet": true}));
        assert_eq!((called.call.as_deref(), called.finish), (Some("weather"), Finish::ToolCalls));
        let none = json!([{"type": "function", "function": {"name": "now"}}]);
        assert_eq!(plan("a", json!({"tools": none})).pieces.concat(), "{}");
    }

    #[test]
    fn values_below_the_nesting_limit_are_null() {
        let mut schema = json!({"type": "integer"});
        for _ in 0..=DEPTH_MAX {
            schema = json!({"type": "array", "items": schema});
        }
        assert_eq!(sample(&schema, DEPTH_MAX).to_string(), "[[[[[[[[null]]]]]]]]");
    }

    #[test]
    fn embeddings_are_unit_vectors_that_depend_on_the_text() {
        let vector = embedding(1, "a", 64);
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-3, "{length}");
        assert_eq!(vector, embedding(1, "a", 64));
        assert_ne!(vector, embedding(1, "b", 64));
    }

    fn generator() -> Generator {
        Generator { seed: 7, output_tokens: 20, context_max: 100 }
    }

    fn request(prompt: &str, change: Value) -> GenerateRequest {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": prompt}]});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        GenerateRequest::parse(ApiKind::Chat, &body).unwrap()
    }

    fn plan(prompt: &str, change: Value) -> CompletionPlan {
        generator().plan(&request(prompt, change)).unwrap()
    }
}
