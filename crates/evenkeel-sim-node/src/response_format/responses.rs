//! Responses of OpenAI's Responses API.

use super::super::completion::{CompletionPlan, Finish};
use super::ResponseFormat;
use bytes::Bytes;
use serde_json::{Value, json};

/// Number of events before the first token; events are numbered.
const OPENING_EVENTS: u32 = 4;

pub(super) fn whole(format: &ResponseFormat, plan: &CompletionPlan) -> Value {
    let status = status(plan.finish);
    response(format, plan, status, &json!([item(format, plan, "completed")]), &usage(plan))
}

pub(super) fn opening(format: &ResponseFormat, plan: &CompletionPlan) -> Vec<Bytes> {
    let created = response(format, plan, "in_progress", &json!([]), &Value::Null);
    let empty = CompletionPlan { pieces: Vec::new(), ..plan.clone() };
    let mut added = item(format, &empty, "in_progress");
    if plan.call.is_none() {
        added["content"] = json!([]);
    }
    let mut events = vec![
        event("response.created", 0, json!({"response": created})),
        event("response.in_progress", 1, json!({"response": created})),
        event("response.output_item.added", 2, json!({"output_index": 0, "item": added})),
    ];
    if plan.call.is_none() {
        let part =
            json!({"item_id": item_id(format), "output_index": 0, "content_index": 0, "part": part("")});
        events.push(event("response.content_part.added", 3, part));
    }
    events
}

pub(super) fn piece(format: &ResponseFormat, plan: &CompletionPlan, token: u32, piece: &str) -> Bytes {
    let number = OPENING_EVENTS + token;
    let mut delta = json!({"item_id": item_id(format), "output_index": 0, "delta": piece});
    if plan.call.is_some() {
        return event("response.function_call_arguments.delta", number, delta);
    }
    delta["content_index"] = 0.into();
    delta["logprobs"] = json!([]);
    event("response.output_text.delta", number, delta)
}

pub(super) fn closing(format: &ResponseFormat, plan: &CompletionPlan) -> Vec<Bytes> {
    let text = plan.pieces.concat();
    let number = OPENING_EVENTS + plan.completion_tokens;
    let location = json!({"item_id": item_id(format), "output_index": 0});
    let at_item = |more: Value| {
        let mut data = location.clone();
        more.as_object().into_iter().flatten().for_each(|(name, value)| data[name] = value.clone());
        data
    };
    let mut events = match &plan.call {
        Some(name) => {
            let done = at_item(json!({"name": name, "arguments": text}));
            vec![event("response.function_call_arguments.done", number, done)]
        }
        None => {
            let done = at_item(json!({"content_index": 0, "text": text, "logprobs": []}));
            let part = at_item(json!({"content_index": 0, "part": part(&text)}));
            vec![
                event("response.output_text.done", number, done),
                event("response.content_part.done", number + 1, part),
            ]
        }
    };
    let done = json!({"output_index": 0, "item": item(format, plan, "completed")});
    events.push(event("response.output_item.done", number + 2, done));
    let last = match plan.finish {
        Finish::Length => "response.incomplete",
        Finish::Stop | Finish::ToolCalls => "response.completed",
    };
    events.push(event(last, number + 3, json!({"response": whole(format, plan)})));
    events
}

fn response(
    format: &ResponseFormat,
    plan: &CompletionPlan,
    status: &str,
    output: &Value,
    usage: &Value,
) -> Value {
    let is_truncated = status == "incomplete" && plan.finish == Finish::Length;
    json!({
        "id": format.id, "object": "response", "created_at": format.created, "model": format.model,
        "status": status, "output": output, "usage": usage, "error": null, "instructions": null,
        "incomplete_details": is_truncated.then(|| json!({"reason": "max_output_tokens"})), "metadata": {},
        "parallel_tool_calls": true, "previous_response_id": null, "store": false, "temperature": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0
    })
}

fn item(format: &ResponseFormat, plan: &CompletionPlan, status: &str) -> Value {
    let text = plan.pieces.concat();
    match &plan.call {
        None => json!({
            "type": "message", "id": item_id(format), "status": status, "role": "assistant", "content": [part(&text)]
        }),
        Some(name) => json!({
            "type": "function_call", "id": item_id(format), "call_id": format.call_id(), "status": status,
            "name": name, "arguments": text
        }),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage(plan: &CompletionPlan) -> Value {
    let input = plan.prompt_tokens;
    let output = plan.completion_tokens;
    json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output
    })
}

fn status(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "incomplete",
        Finish::Stop | Finish::ToolCalls => "completed",
    }
}

fn item_id(format: &ResponseFormat) -> String {
    format!("item-{}", format.id)
}

fn event(kind: &str, number: u32, mut data: Value) -> Bytes {
    data["type"] = kind.into();
    data["sequence_number"] = number.into();
    Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
}
