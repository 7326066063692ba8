//! Responses in the JSON formats of OpenAI and Anthropic.

mod messages;
mod responses;

use super::completion::{CompletionPlan, Finish};
use super::request::{ApiKind, Encoding, IncludeUsage};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use serde_json::{Value, json};

/// Format of one response, with the fields that are common to all its events.
#[derive(Clone, Debug)]
pub(super) struct ResponseFormat {
    pub(super) api: ApiKind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) usage: IncludeUsage,
}

impl ResponseFormat {
    /// Returns the response as one JSON object.
    pub(super) fn whole(&self, plan: &CompletionPlan) -> Value {
        match self.api {
            ApiKind::Chat | ApiKind::Completion => self.completion(plan),
            ApiKind::Messages => messages::whole(self, plan),
            ApiKind::Responses => responses::whole(self, plan),
        }
    }

    /// Returns the events before the first token.
    pub(super) fn opening(&self, plan: &CompletionPlan) -> Vec<Bytes> {
        match self.api {
            ApiKind::Chat => vec![event(&self.first_chunk(plan))],
            ApiKind::Completion => Vec::new(),
            ApiKind::Messages => messages::opening(self, plan),
            ApiKind::Responses => responses::opening(self, plan),
        }
    }

    /// Returns the event of one token.
    pub(super) fn piece(&self, plan: &CompletionPlan, token: u32, piece: &str) -> Bytes {
        match self.api {
            ApiKind::Chat => event(&self.next_chunk(plan, piece)),
            ApiKind::Completion => event(&self.chunk(&json!(piece), None)),
            ApiKind::Messages => messages::piece(plan, piece),
            ApiKind::Responses => responses::piece(self, plan, token, piece),
        }
    }

    /// Returns the events after the last token: finish reason, usage if requested, and the end-of-stream marker.
    pub(super) fn closing(&self, plan: &CompletionPlan) -> Vec<Bytes> {
        let delta = match self.api {
            ApiKind::Chat => json!({}),
            ApiKind::Completion => json!(""),
            ApiKind::Messages => return messages::closing(plan),
            ApiKind::Responses => return responses::closing(self, plan),
        };
        let mut events = vec![event(&self.chunk(&delta, Some(plan.finish)))];
        if self.usage == IncludeUsage::Yes {
            let mut counts = self.envelope(json!([]));
            counts["usage"] = usage(plan);
            events.push(event(&counts));
        }
        events.push(Bytes::from_static(b"data: [DONE]\n\n"));
        events
    }

    fn completion(&self, plan: &CompletionPlan) -> Value {
        let text = plan.pieces.concat();
        let finish = plan.finish.name();
        let choice = match (self.api, &plan.call) {
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
        let object = if self.api == ApiKind::Completion { "text_completion" } else { "chat.completion" };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": [choice], "usage": usage(plan)
        })
    }

    fn first_chunk(&self, plan: &CompletionPlan) -> Value {
        let delta = match &plan.call {
            None => json!({"role": "assistant", "content": ""}),
            Some(name) => json!({"role": "assistant", "content": null, "tool_calls": [
                {"index": 0, "id": self.call_id(), "type": "function", "function": {"name": name, "arguments": ""}}
            ]}),
        };
        self.chunk(&delta, None)
    }

    fn next_chunk(&self, plan: &CompletionPlan, piece: &str) -> Value {
        if plan.call.is_none() {
            return self.chunk(&json!({"content": piece}), None);
        }
        let call = json!({"index": 0, "function": {"arguments": piece}});
        self.chunk(&json!({"tool_calls": [call]}), None)
    }

    fn chunk(&self, delta: &Value, finish: Option<Finish>) -> Value {
        let finish = finish.map(Finish::name);
        let name = if self.api == ApiKind::Completion { "text" } else { "delta" };
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": finish});
        choice[name] = delta.clone();
        self.envelope(json!([choice]))
    }

    fn envelope(&self, choices: Value) -> Value {
        let object =
            if self.api == ApiKind::Completion { "text_completion" } else { "chat.completion.chunk" };
        let mut event = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices
        });
        if self.usage == IncludeUsage::Yes {
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

fn usage(plan: &CompletionPlan) -> Value {
    let prompt = plan.prompt_tokens;
    let completion = plan.completion_tokens;
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// Returns the response of an embeddings request.
pub(super) fn embeddings(model: &str, vectors: &[Vec<f32>], tokens: u32, encoding: Encoding) -> Value {
    let list: Vec<_> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = match encoding {
                Encoding::Float => json!(vector),
                Encoding::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    json!(BASE64_STANDARD.encode(bytes))
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

/// Returns the list of models.
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
    fn a_base64_embedding_is_padded_little_endian_floats() {
        let response = embeddings("m", &[vec![1.0], vec![1.0, -2.0]], 2, Encoding::Base64);
        assert_eq!(response["data"][0]["embedding"], "AACAPw==");
        assert_eq!(response["data"][1]["embedding"], "AACAPwAAAMA=");
    }
}
