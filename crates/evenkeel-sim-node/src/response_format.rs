//! Answers in OpenAI's and Anthropic's JSON shapes.

mod messages;
mod responses;

use super::completion::{CompletionPlan, Finish};
use super::request::{ApiKind, Encoding, IncludeUsage};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};

/// What every part of one answer carries.
#[derive(Clone, Debug)]
pub(super) struct ResponseFormat {
    pub(super) form: ApiKind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) usage: IncludeUsage,
}

impl ResponseFormat {
    /// The answer in one piece.
    pub(super) fn whole(&self, answer: &CompletionPlan) -> Value {
        match self.form {
            ApiKind::Chat | ApiKind::Completion => self.completion(answer),
            ApiKind::Messages => messages::whole(self, answer),
            ApiKind::Responses => responses::whole(self, answer),
        }
    }

    /// The events of a stream before the first token.
    pub(super) fn opening(&self, answer: &CompletionPlan) -> Vec<Bytes> {
        match self.form {
            ApiKind::Chat => vec![event(&self.first_chunk(answer))],
            ApiKind::Completion => Vec::new(),
            ApiKind::Messages => messages::opening(self, answer),
            ApiKind::Responses => responses::opening(self, answer),
        }
    }

    /// The event of one token.
    pub(super) fn piece(&self, answer: &CompletionPlan, token: u32, piece: &str) -> Bytes {
        match self.form {
            ApiKind::Chat => event(&self.next_chunk(answer, piece)),
            ApiKind::Completion => event(&self.chunk(&json!(piece), None)),
            ApiKind::Messages => messages::piece(answer, piece),
            ApiKind::Responses => responses::piece(self, answer, token, piece),
        }
    }

    /// The events after the last token: why the answer ended, the counts where they were asked for, and the last word.
    pub(super) fn closing(&self, answer: &CompletionPlan) -> Vec<Bytes> {
        let delta = match self.form {
            ApiKind::Chat => json!({}),
            ApiKind::Completion => json!(""),
            ApiKind::Messages => return messages::closing(answer),
            ApiKind::Responses => return responses::closing(self, answer),
        };
        let mut events = vec![event(&self.chunk(&delta, Some(answer.finish)))];
        if self.usage == IncludeUsage::Asked {
            let mut counts = self.envelope(json!([]));
            counts["usage"] = usage(answer);
            events.push(event(&counts));
        }
        events.push(Bytes::from_static(b"data: [DONE]\n\n"));
        events
    }

    fn completion(&self, answer: &CompletionPlan) -> Value {
        let text = answer.pieces.concat();
        let finish = answer.finish.name();
        let choice = match (self.form, &answer.call) {
            (ApiKind::Completion, _) => {
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish})
            }
            (_, None) => json!({
                "index": 0, "logprobs": null, "finish_reason": finish,
                "message": {"role": "assistant", "content": text, "refusal": null}
            }),
            (_, Some(name)) => json!({
                "index": 0, "logprobs": null, "finish_reason": finish,
                "message": {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                    {"id": self.call_id(), "type": "function", "function": {"name": name, "arguments": text}}
                ]}
            }),
        };
        let object = if self.form == ApiKind::Completion { "text_completion" } else { "chat.completion" };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": [choice], "usage": usage(answer)
        })
    }

    fn first_chunk(&self, answer: &CompletionPlan) -> Value {
        let delta = match &answer.call {
            None => json!({"role": "assistant", "content": ""}),
            Some(name) => json!({"role": "assistant", "content": null, "tool_calls": [
                {"index": 0, "id": self.call_id(), "type": "function", "function": {"name": name, "arguments": ""}}
            ]}),
        };
        self.chunk(&delta, None)
    }

    fn next_chunk(&self, answer: &CompletionPlan, piece: &str) -> Value {
        if answer.call.is_none() {
            return self.chunk(&json!({"content": piece}), None);
        }
        let call = json!({"index": 0, "function": {"arguments": piece}});
        self.chunk(&json!({"tool_calls": [call]}), None)
    }

    fn chunk(&self, delta: &Value, finish: Option<Finish>) -> Value {
        let finish = finish.map(Finish::name);
        let name = if self.form == ApiKind::Completion { "text" } else { "delta" };
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish});
        choice[name] = delta.clone();
        self.envelope(json!([choice]))
    }

    fn envelope(&self, choices: Value) -> Value {
        let object =
            if self.form == ApiKind::Completion { "text_completion" } else { "chat.completion.chunk" };
        let mut event = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices
        });
        if self.usage == IncludeUsage::Asked {
            event["usage"] = Value::Null;
        }
        event
    }

    fn call_id(&self) -> String {
        format!("call-{}", self.id)
    }
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

fn usage(answer: &CompletionPlan) -> Value {
    let prompt = answer.prompt_tokens;
    let completion = answer.completion_tokens;
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// Embeddings of several texts.
pub(super) fn embeddings(model: &str, vectors: &[Vec<f32>], tokens: u32, encoding: Encoding) -> Value {
    let list: Vec<_> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = match encoding {
                Encoding::Float => json!(vector),
                Encoding::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    json!(BASE64.encode(bytes))
                }
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    json!({
        "object": "list", "data": list, "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens}
    })
}

/// The list of models, or one of them.
pub(super) fn models(names: &[String], created: u64, context_max: u32) -> Value {
    let list: Vec<_> = names.iter().map(|name| model(name, created, context_max)).collect();
    json!({"object": "list", "data": list})
}

pub(super) fn model(name: &str, created: u64, context_max: u32) -> Value {
    json!({
        "id": name, "object": "model", "created": created, "owned_by": "evenkeel-sim-node",
        "max_model_len": context_max
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_embeddings_are_padded_little_endian_floats() {
        let response = embeddings("m", &[vec![1.0], vec![1.0, -2.0]], 1, Encoding::Base64);
        assert_eq!(response["data"][0]["embedding"], "AACAPw==");
        assert_eq!(response["data"][1]["embedding"], "AACAPwAAAMA=");
    }
}
