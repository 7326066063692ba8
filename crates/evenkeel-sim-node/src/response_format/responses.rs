//! Answers as OpenAI's Responses.

use super::super::completion::{CompletionPlan, Finish};
use super::ResponseFormat;
use bytes::Bytes;
use serde_json::{Value, json};

/// How many events come before the first token; each has its number.
const OPENING_EVENTS: u32 = 4;

pub(super) fn whole(shape: &ResponseFormat, answer: &CompletionPlan) -> Value {
    let status = status(answer.finish);
    response(shape, answer, status, &json!([item(shape, answer, "completed")]), &usage(answer))
}

pub(super) fn opening(shape: &ResponseFormat, answer: &CompletionPlan) -> Vec<Bytes> {
    let begun = response(shape, answer, "in_progress", &json!([]), &Value::Null);
    let empty = CompletionPlan { pieces: Vec::new(), ..answer.clone() };
    let mut added = item(shape, &empty, "in_progress");
    if answer.call.is_none() {
        added["content"] = json!([]);
    }
    let mut events = vec![
        event("response.created", 0, json!({"response": begun})),
        event("response.in_progress", 1, json!({"response": begun})),
        event("response.output_item.added", 2, json!({"output_index": 0, "item": added})),
    ];
    if answer.call.is_none() {
        let part =
            json!({"item_id": item_id(shape), "output_index": 0, "content_index": 0, "part": part("")});
        events.push(event("response.content_part.added", 3, part));
    }
    events
}

pub(super) fn piece(shape: &ResponseFormat, answer: &CompletionPlan, token: u32, piece: &str) -> Bytes {
    let number = OPENING_EVENTS + token;
    let mut delta = json!({"item_id": item_id(shape), "output_index": 0, "delta": piece});
    if answer.call.is_some() {
        return event("response.function_call_arguments.delta", number, delta);
    }
    delta["content_index"] = 0.into();
    delta["logprobs"] = json!([]);
    event("response.output_text.delta", number, delta)
}

pub(super) fn closing(shape: &ResponseFormat, answer: &CompletionPlan) -> Vec<Bytes> {
    let text = answer.pieces.concat();
    let number = OPENING_EVENTS + answer.completion_tokens;
    let place = json!({"item_id": item_id(shape), "output_index": 0});
    let placed = |more: Value| {
        let mut data = place.clone();
        more.as_object().into_iter().flatten().for_each(|(name, value)| data[name] = value.clone());
        data
    };
    let mut events = match &answer.call {
        Some(name) => {
            let done = placed(json!({"name": name, "arguments": text}));
            vec![event("response.function_call_arguments.done", number, done)]
        }
        None => {
            let done = placed(json!({"content_index": 0, "text": text, "logprobs": []}));
            let part = placed(json!({"content_index": 0, "part": part(&text)}));
            vec![
                event("response.output_text.done", number, done),
                event("response.content_part.done", number + 1, part),
            ]
        }
    };
    let done = json!({"output_index": 0, "item": item(shape, answer, "completed")});
    events.push(event("response.output_item.done", number + 2, done));
    let last = match answer.finish {
        Finish::Length => "response.incomplete",
        Finish::Stop | Finish::ToolCalls => "response.completed",
    };
    events.push(event(last, number + 3, json!({"response": whole(shape, answer)})));
    events
}

fn response(
    shape: &ResponseFormat,
    answer: &CompletionPlan,
    status: &str,
    output: &Value,
    usage: &Value,
) -> Value {
    let cut = status == "incomplete" && answer.finish == Finish::Length;
    json!({
        "id": shape.id, "object": "response", "created_at": shape.created, "model": shape.model,
        "status": status, "output": output, "usage": usage, "error": null, "instructions": null,
        "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})), "metadata": {},
        "parallel_tool_calls": true, "previous_response_id": null, "store": false, "temperature": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": 1.0
    })
}

fn item(shape: &ResponseFormat, answer: &CompletionPlan, status: &str) -> Value {
    let text = answer.pieces.concat();
    match &answer.call {
        None => json!({
            "type": "message", "id": item_id(shape), "status": status, "role": "assistant", "content": [part(&text)]
        }),
        Some(name) => json!({
            "type": "function_call", "id": item_id(shape), "call_id": shape.call_id(), "status": status,
            "name": name, "arguments": text
        }),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage(answer: &CompletionPlan) -> Value {
    let input = answer.prompt_tokens;
    let output = answer.completion_tokens;
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

fn item_id(shape: &ResponseFormat) -> String {
    format!("item-{}", shape.id)
}

fn event(kind: &str, number: u32, mut data: Value) -> Bytes {
    data["type"] = kind.into();
    data["sequence_number"] = number.into();
    Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
}
