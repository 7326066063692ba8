//! What a well engine answers.

use crate::raw::{Ended, Node, chat, fast, is_silent, read, read_until, stuck};
use evenkeel_sim_node::SimOptions;
use serde_json::{Value, json};
use std::net::TcpListener;

#[test]
fn a_chat_is_answered_in_one_piece_with_usage() {
    let reply = Node::start(fast()).chat(json!({}));
    assert_eq!((reply.status, reply.ended), (200, Ended::Whole));
    let answer = reply.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}));
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(said.split(' ').count(), 8, "{said}");
}

#[test]
fn a_stream_says_the_same_token_by_token_and_ends_with_done() {
    let node = Node::start(fast());
    let whole = node.chat(json!({})).json();
    let stream = node.chat(json!({"stream": true}));
    assert!(stream.head.contains("content-type: text/event-stream"), "{}", stream.head);
    assert_eq!(stream.ended, Ended::Whole);
    assert_eq!(stream.said(), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let events = stream.events();
    assert_eq!((events.len(), events[10]), (11, "[DONE]"), "role, 8 tokens, finish, end");
    assert!(!stream.body.contains("usage"));
}

#[test]
fn usage_ends_a_stream_that_asked_for_it() {
    let stream = Node::start(fast()).chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
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
fn a_stop_ends_an_answer() {
    let node = Node::start(fast());
    let said = node.chat(json!({"stream": true})).said();
    let third = said.split(' ').nth(2).unwrap();
    let stopped = node.chat(json!({"stop": third})).json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let before = said.split(third).next().unwrap();
    assert_eq!(stopped["choices"][0]["message"]["content"], before);
}

#[test]
fn a_plain_completion_has_its_own_shape() {
    let node = Node::start(fast());
    let ask = |stream: bool| {
        node.post(
            "/v1/completions",
            &json!({"model": "sim", "prompt": "hello", "max_tokens": 4, "stream": stream}),
        )
    };
    let whole = ask(false).json();
    assert_eq!(whole["object"], "text_completion");
    let stream = ask(true);
    let parsed = stream.events().into_iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let said: String = parsed.map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(said, whole["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn a_tool_call_comes_whole_and_in_pieces() {
    let node = Node::start(fast());
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    let ask = |stream: bool| {
        node.chat(json!({"tools": tools, "tool_choice": "auto", "stream": stream, "max_tokens": 50, "ignore_eos": false}))
    };
    let whole = ask(false).json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"city\":\"sample\"}"}));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let stream = ask(true);
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
fn embeddings_come_as_numbers_and_as_base64() {
    let node = Node::start(fast());
    let ask = |encoding: &str| {
        let body = json!({"model": "sim", "input": ["a", "b"], "dimensions": 3, "encoding_format": encoding});
        node.post("/v1/embeddings", &body).json()
    };
    let numbers = ask("float");
    let encoded = ask("base64");
    assert_eq!(numbers["data"][1]["embedding"].as_array().unwrap().len(), 3);
    assert_eq!(encoded["data"][1]["embedding"].as_str().unwrap().len(), 16);
    assert_eq!(numbers["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
}

#[test]
fn every_model_is_listed_and_served_and_no_other() {
    let node = Node::start(SimOptions { models: vec!["llama".into(), "org/qwen".into()], ..fast() });
    let models = node.get("/v1/models").json();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["llama", "org/qwen"]);
    assert_eq!(node.get("/v1/models/org/qwen").json()["id"], "org/qwen");
    assert_eq!(node.chat(json!({"model": "org/qwen"})).json()["model"], "org/qwen");
    let unknown = node.chat(json!({"model": "gpt"}));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn metrics_count_what_was_done() {
    let node = Node::start(fast());
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
fn errors_have_one_shape() {
    let node = Node::start(fast());
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
fn past_its_slots_and_places_an_engine_answers_503() {
    let node = Node::start(SimOptions { slots: 1, queue_max: 1, ..stuck() });
    let running = node.send("/v1/chat/completions", &chat(json!({})));
    node.wait_for(1, 0);
    let waiting = node.send("/v1/chat/completions", &chat(json!({"stream": true})));
    node.wait_for(1, 1);
    let full = node.chat(json!({"stream": true}));
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("engine_overloaded")));
    assert_eq!(node.get("/health").status, 200, "busy is not broken");
    drop((running, waiting));
    node.wait_for(0, 0);
}

#[test]
fn the_same_seed_says_the_same_and_another_another() {
    let say = |seed| Node::start(SimOptions { seed, ..fast() }).chat(json!({})).json()["choices"].clone();
    assert_eq!(say(1), say(1));
    assert_ne!(say(1), say(2));
}

#[test]
fn past_its_connections_an_engine_accepts_when_one_ends() {
    let node = Node::start(SimOptions { connections_max: 1, ..fast() });
    let mut first = node.open("GET /health HTTP/1.1\r\nhost: sim\r\n\r\n");
    read_until(&mut first, "\r\n\r\n");
    let mut second = node.open("GET /health HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
    assert!(is_silent(&mut second));
    drop(first);
    assert_eq!(read(second).status, 200);
}

#[test]
fn an_engine_that_was_shut_down_leaves_its_port_and_closes_its_connections() {
    let node = Node::start(stuck());
    let open = node.send("/v1/chat/completions", &chat(json!({})));
    node.wait_for(1, 0);
    let address = node.shutdown();
    assert_eq!(read(open).status, 0, "closed without an answer");
    TcpListener::bind(address).unwrap();
}
