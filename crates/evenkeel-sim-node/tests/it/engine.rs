//! Responses of a node without faults.

use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{ResponseEnd, TestNode, chat, fast, is_silent, read, read_until, stuck};
use serde_json::{Value, json};
use std::net::TcpListener;

#[test]
fn a_chat_response_has_text_and_usage() {
    let reply = TestNode::start(fast()).chat(json!({}));
    assert_eq!((reply.status, reply.end), (200, ResponseEnd::Complete));
    let response = reply.json();
    assert_eq!(response["object"], "chat.completion");
    assert_eq!(response["choices"][0]["finish_reason"], "length");
    assert_eq!(response["usage"], json!({"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}));
    let text = response["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.split(' ').count(), 8, "{text}");
}

#[test]
fn a_stream_sends_the_same_text_token_by_token_and_ends_with_done() {
    let node = TestNode::start(fast());
    let whole = node.chat(json!({})).json();
    let stream = node.chat(json!({"stream": true}));
    assert!(stream.head.contains("content-type: text/event-stream"), "{}", stream.head);
    assert_eq!(stream.end, ResponseEnd::Complete);
    assert_eq!(stream.streamed_text(), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let events = stream.events();
    assert_eq!((events.len(), events[10]), (11, "[DONE]"), "role, 8 tokens, finish, end");
    assert!(!stream.body.contains("usage"));
}

#[test]
fn a_stream_ends_with_usage_if_requested() {
    let stream =
        TestNode::start(fast()).chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = stream.events();
    let [.., counts, done] = &events[..] else { panic!("{events:?}") };
    let counts: Value = serde_json::from_str(counts).unwrap();
    assert_eq!(
        (&counts["choices"], &counts["usage"]["total_tokens"], *done),
        (&json!([]), &json!(11), "[DONE]")
    );
    let first: Value = serde_json::from_str(events[0]).unwrap();
    assert_eq!(first.get("usage"), Some(&Value::Null));
}

#[test]
fn a_stop_sequence_ends_a_completion() {
    let node = TestNode::start(fast());
    let text = node.chat(json!({"stream": true})).streamed_text();
    let third = text.split(' ').nth(2).unwrap();
    let stopped = node.chat(json!({"stop": third})).json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let before = text.split(third).next().unwrap();
    assert_eq!(stopped["choices"][0]["message"]["content"], before);
}

#[test]
fn a_plain_completion_has_the_format_text_completion() {
    let node = TestNode::start(fast());
    let request = |stream: bool| {
        node.post(
            "/v1/completions",
            &json!({"model": "sim", "prompt": "hello", "max_tokens": 4, "stream": stream}),
        )
    };
    let whole = request(false).json();
    assert_eq!(whole["object"], "text_completion");
    let stream = request(true);
    let parsed = stream.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let text: String = parsed.map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn a_tool_call_is_sent_whole_or_streamed() {
    let node = TestNode::start(fast());
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    let request = |stream: bool| {
        node.chat(json!({"tools": tools, "tool_choice": "auto", "stream": stream, "max_tokens": 50, "ignore_eos": false}))
    };
    let whole = request(false).json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"city\":\"sample\"}"}));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let stream = request(true);
    let parsed = stream.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let arguments: String = parsed
        .filter_map(|event| {
            let function = &event["choices"][0]["delta"]["tool_calls"][0]["function"];
            function["arguments"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(arguments, "{\"city\":\"sample\"}");
}

#[test]
fn embeddings_are_sent_as_numbers_or_as_base64() {
    let node = TestNode::start(fast());
    let request = |encoding: &str| {
        let body = json!({"model": "sim", "input": ["a", "b"], "dimensions": 3, "encoding_format": encoding});
        node.post("/v1/embeddings", &body).json()
    };
    let numbers = request("float");
    let encoded = request("base64");
    assert_eq!(numbers["data"][1]["embedding"].as_array().unwrap().len(), 3);
    assert_eq!(encoded["data"][1]["embedding"].as_str().unwrap().len(), 16);
    assert_eq!(numbers["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
}

#[test]
fn only_the_configured_models_are_listed_and_served() {
    let node = TestNode::start(SimOptions { models: vec!["llama".into(), "org/qwen".into()], ..fast() });
    let models = node.get("/v1/models").json();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["llama", "org/qwen"]);
    assert_eq!(node.get("/v1/models/org/qwen").json()["id"], "org/qwen");
    assert_eq!(node.chat(json!({"model": "org/qwen"})).json()["model"], "org/qwen");
    let unknown = node.chat(json!({"model": "gpt"}));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn metrics_count_requests_and_tokens() {
    let node = TestNode::start(fast());
    node.chat(json!({}));
    node.chat(json!({"stream": true, "max_tokens": 2}));
    let metrics = node.get("/metrics").body;
    for line in [
        "vllm:num_requests_running{model_name=\"sim\"} 0",
        "vllm:num_requests_waiting{model_name=\"sim\"} 0",
        "vllm:prompt_tokens_total{model_name=\"sim\"} 6",
        "vllm:generation_tokens_total{model_name=\"sim\"} 10",
        "vllm:request_success_total{model_name=\"sim\",finished_reason=\"length\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
}

#[test]
fn all_errors_have_the_same_format() {
    let node = TestNode::start(fast());
    for (reply, status) in [
        (node.chat(json!({"messages": []})), 400),
        (node.chat(json!({"max_tokens": 1_000_000})), 400),
        (
            read(node.open(
                "POST /v1/completions HTTP/1.1\r\nhost: s\r\nconnection: close\r\ncontent-length: 1\r\n\r\n{",
            )),
            400,
        ),
        (node.get("/v1/nothing"), 404),
        (node.get("/v1/completions"), 405),
        (node.post("/v1/models", &json!({})), 405),
        (
            read(node.open("POST /v1/completions HTTP/1.1\r\nhost: s\r\ncontent-length: 16777217\r\n\r\n")),
            413,
        ),
    ] {
        assert_eq!(reply.status, status, "{reply:?}");
        let error = &reply.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
    }
}

#[test]
fn with_all_slots_busy_and_a_full_queue_a_request_gets_503() {
    let node = TestNode::start(SimOptions { slots: 1, queue_max: 1, ..stuck() });
    let running = node.send("/v1/chat/completions", &chat(json!({})));
    node.wait_for(1, 0);
    let waiting = node.send("/v1/chat/completions", &chat(json!({"stream": true})));
    node.wait_for(1, 1);
    let full = node.chat(json!({"stream": true}));
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("engine_overloaded")));
    assert_eq!(node.get("/health").status, 200, "a busy node is healthy");
    drop((running, waiting));
    node.wait_for(0, 0);
}

#[test]
fn completions_depend_on_the_seed() {
    let choices =
        |seed| TestNode::start(SimOptions { seed, ..fast() }).chat(json!({})).json()["choices"].clone();
    assert_eq!(choices(1), choices(1));
    assert_ne!(choices(1), choices(2));
}

#[test]
fn beyond_the_connection_limit_a_client_waits_until_another_disconnects() {
    let node = TestNode::start(SimOptions { connections_max: 1, ..fast() });
    let mut first = node.open("GET /health HTTP/1.1\r\nhost: sim\r\n\r\n");
    read_until(&mut first, "\r\n\r\n");
    let mut second = node.open("GET /health HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
    assert!(is_silent(&mut second));
    drop(first);
    assert_eq!(read(second).status, 200);
}

#[test]
fn shutdown_frees_the_port_and_closes_connections() {
    let node = TestNode::start(stuck());
    let open = node.send("/v1/chat/completions", &chat(json!({})));
    node.wait_for(1, 0);
    let address = node.shutdown();
    assert_eq!(read(open).status, 0, "closed without a response");
    TcpListener::bind(address).unwrap();
}
