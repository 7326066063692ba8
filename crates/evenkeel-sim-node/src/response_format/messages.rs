//! Responses of Anthropic's Messages API.

use super::super::completion::{CompletionPlan, Finish};
use super::ResponseFormat;
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) fn whole(format: &ResponseFormat, plan: &CompletionPlan) -> Value {
    let text = plan.pieces.concat();
    let block = match &plan.call {
        None => json!({"type": "text", "text": text}),
        Some(name) => {
            let input: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": format.call_id(), "name": name, "input": input})
        }
    };
    message(format, plan, &json!([block]), Some(plan.finish), plan.completion_tokens)
}

pub(super) fn opening(format: &ResponseFormat, plan: &CompletionPlan) -> Vec<Bytes> {
    let block = match &plan.call {
        None => json!({"type": "text", "text": ""}),
        Some(name) => json!({"type": "tool_use", "id": format.call_id(), "name": name, "input": {}}),
    };
    vec![
        event("message_start", json!({"message": message(format, plan, &json!([]), None, 1)})),
        event("content_block_start", json!({"index": 0, "content_block": block})),
        event("ping", json!({})),
    ]
}

pub(super) fn piece(plan: &CompletionPlan, piece: &str) -> Bytes {
    let delta = match plan.call {
        None => json!({"type": "text_delta", "text": piece}),
        Some(_) => json!({"type": "input_json_delta", "partial_json": piece}),
    };
    event("content_block_delta", json!({"index": 0, "delta": delta}))
}

pub(super) fn closing(plan: &CompletionPlan) -> Vec<Bytes> {
    let delta = json!({"stop_reason": reason(plan.finish), "stop_sequence": null});
    let usage = json!({"output_tokens": plan.completion_tokens});
    vec![
        event("content_block_stop", json!({"index": 0})),
        event("message_delta", json!({"delta": delta, "usage": usage})),
        event("message_stop", json!({})),
    ]
}

fn message(
    format: &ResponseFormat,
    plan: &CompletionPlan,
    content: &Value,
    end: Option<Finish>,
    output: u32,
) -> Value {
    json!({
        "id": format.id, "type": "message", "role": "assistant", "model": format.model, "content": content,
        "stop_reason": end.map(reason), "stop_sequence": null,
        "usage": {"input_tokens": plan.prompt_tokens, "output_tokens": output}
    })
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::ToolCalls => "tool_use",
    }
}

fn event(kind: &str, mut data: Value) -> Bytes {
    data["type"] = kind.into();
    Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
}
