//! What a client gets when nodes fail, before and after its answer began.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_llm::LlmOptions;
use evenkeel_llm::request::ResponseMode;
use http::Method;
use http_body_util::BodyExt;

use super::engine::{Cut, Engine, event, events};
use super::harness::{ASK, ASK_STREAM, CHAT, House, SAID, node, piece, read};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Where nobody listens.
async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Asks for one conversation after another until the node that fails was asked, and sees that no client hears of it.
async fn assert_other_node_answers(faulty: String, delivery: ResponseMode, told: &str) {
    let well = Engine::always(|heard| {
        if heard.body.windows(13).any(|part| part == b"include_usage") {
            let (pen, _) = heard.stream();
            events(&pen, &[DELTA, "[DONE]"]);
        } else {
            heard.reply_json(SAID);
        }
    })
    .await;
    let house = House::to(vec![node("faulty", &faulty, 8), node("well", &well, 8)]).await;
    for user in 0..100 {
        let stream = delivery == ResponseMode::Stream;
        let body = format!(r#"{{"model":"m","stream":{stream},"user":"{user}","messages":[]}}"#);
        let answer = house.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(!answer.body.contains("error"), "{}", answer.body);
        let status = house.status().await;
        if status["counts"]["retried"].as_u64() == Some(1) {
            let page = house.registry.render();
            let line = format!(r#"evenkeel_failed_over_total{{pool="llm",failure="{told}"}} 1"#);
            assert!(page.lines().any(|found| found == line), "{line} is not on {page}");
            return house.until_idle().await;
        }
    }
    panic!("the node that fails was never asked");
}

#[tokio::test]
async fn a_node_that_nobody_reaches_is_replaced() {
    assert_other_node_answers(nowhere().await, ResponseMode::Whole, "unreachable").await;
}

#[tokio::test]
async fn a_node_that_breaks_is_replaced() {
    let faulty = Engine::always(|heard| heard.reply(500, JSON, "{}")).await;
    assert_other_node_answers(faulty, ResponseMode::Whole, "bad_response").await;
}

#[tokio::test]
async fn a_node_that_does_not_take_our_key_is_replaced() {
    let faulty = Engine::always(|heard| heard.reply(401, JSON, "{}")).await;
    assert_other_node_answers(faulty, ResponseMode::Whole, "bad_response").await;
}

#[tokio::test]
async fn a_busy_node_is_spared_and_another_asked() {
    let faulty = Engine::always(|heard| heard.reply(429, &[("retry-after", "30")], "")).await;
    assert_other_node_answers(faulty, ResponseMode::Whole, "busy").await;
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_replaced() {
    let faulty = Engine::always(|heard| heard.reply(200, JSON, r#"{"choices":[{"#)).await;
    assert_other_node_answers(faulty, ResponseMode::Whole, "bad_response").await;
}

#[tokio::test]
async fn an_answer_that_is_cut_before_it_was_passed_on_is_replaced() {
    let faulty = Engine::always(|heard| {
        let (pen, _) = heard.begin(JSON);
        pen.send(Ok("{".into())).unwrap();
        pen.send(Err(Cut)).unwrap();
    })
    .await;
    assert_other_node_answers(faulty, ResponseMode::Whole, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_is_cut_before_its_first_event_is_replaced() {
    let faulty = Engine::always(|heard| heard.stream().0.send(Err(Cut)).unwrap()).await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn an_empty_stream_is_replaced() {
    let faulty = Engine::always(|heard| drop(heard.stream())).await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_with_garbage_is_replaced() {
    let faulty =
        Engine::always(|heard| events(&heard.stream().0, &["<html>busy</html>", DELTA, "[DONE]"])).await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_with_an_error_is_replaced() {
    let told = r#"{"error":{"message":"CUDA error","type":"InternalServerError","code":500}}"#;
    let faulty = Engine::always(move |heard| events(&heard.stream().0, &[told, "[DONE]"])).await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_by_saying_there_is_no_room_is_replaced_and_its_node_spared() {
    let told = r#"{"error":{"message":"try later","type":"overloaded_error"}}"#;
    let faulty = Engine::always(move |heard| events(&heard.stream().0, &[told])).await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "busy").await;
}

#[tokio::test]
async fn a_stream_that_ends_within_its_first_event_is_replaced() {
    let faulty = Engine::always(|heard| {
        heard.stream().0.send(Ok(bytes::Bytes::from_static(b"data: {\"choices\":[{"))).unwrap();
    })
    .await;
    assert_other_node_answers(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn when_every_stream_begins_with_an_error_the_client_hears_of_it_before_the_stream() {
    let url = Engine::always(|heard| events(&heard.stream().0, &[r#"{"error":"out of memory"}"#])).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    assert_eq!(house.post(CHAT, ASK_STREAM).await.code(), (502, "bad_upstream".to_owned()));
    house.until_idle().await;
}

#[tokio::test]
async fn a_stream_that_begins_with_the_clients_own_mistake_is_passed_on_and_blames_nobody() {
    let told = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let url = Engine::always(move |heard| events(&heard.stream().0, &[told, "[DONE]"])).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    for _ in 0..10 {
        let answer = house.post(CHAT, ASK_STREAM).await;
        assert_eq!((answer.status, answer.body), (200, format!("data: {told}\n\ndata: [DONE]\n\n")));
    }
    let page = house.registry.render();
    assert!(
        page.contains(r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="served"} 10"#),
        "{page}"
    );
    assert!(page.contains(r#"evenkeel_cost_units_total{pool="llm",tenant="open"} 0"#), "{page}");
    assert_eq!(house.status().await["nodes"][0]["breaker"], "closed");
}

#[tokio::test]
async fn a_first_byte_that_is_late_is_awaited_elsewhere() {
    let mut slow = Engine::start().await;
    let mut quick = Engine::start().await;
    let nodes = vec![node("slow", &slow.url, 1)];
    let first_byte_max = Some(Duration::from_secs(3));
    let house = House::with(LlmOptions { nodes, first_byte_max, ..LlmOptions::default() }, vec![]).await;
    let house = Arc::new(house);
    let asking = house.ask("none", ASK_STREAM);
    // The head alone is no first byte.
    let (pen, ended) = slow.hears().await.stream();
    house.llm.add_node(node("quick", &quick.url, 1)).unwrap();
    tokio::time::pause();
    let (quick_pen, _) = quick.hears().await.stream();
    events(&quick_pen, &[DELTA, "[DONE]"]);
    drop(quick_pen);
    assert!(asking.await.unwrap().body.ends_with("[DONE]\n\n"));
    assert!(ended.await.is_err(), "the slow node's connection is closed");
    drop(pen);
    tokio::time::resume();
    house.until_idle().await;
}

#[tokio::test]
async fn when_no_node_is_left_the_last_failure_is_told() {
    let house = House::to(vec![node("a", &nowhere().await, 1)]).await;
    let answer = house.post(CHAT, ASK).await;
    assert_eq!(answer.code(), (502, "bad_upstream".to_owned()));
    assert_eq!(answer.header("x-queue-wait-ms"), "0");
    house.until_idle().await;
}

#[tokio::test]
async fn a_node_that_fails_within_a_stream_is_told_of_in_the_stream() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    for cut in [true, false] {
        let mut client = house.client().await;
        let (response, pen) = tokio::join!(client.send(Method::POST, "none", CHAT, ASK_STREAM), async {
            let (pen, _) = engine.hears().await.stream();
            event(&pen, DELTA);
            pen
        });
        let mut body = response.into_body();
        assert_eq!(piece(&mut body).await, Some(format!("data: {DELTA}\n\n")));
        pen.send(Ok("data: {\"choi".into())).unwrap();
        if cut {
            pen.send(Err(Cut)).unwrap();
        }
        drop(pen);
        let last = piece(&mut body).await.unwrap();
        let error: serde_json::Value =
            serde_json::from_str(last.strip_prefix("data: ").unwrap().trim_end()).unwrap();
        assert_eq!(error["error"]["code"], "bad_upstream");
        assert_eq!(piece(&mut body).await, None, "nothing says that this is all");
        house.until_idle().await;
    }
}

#[tokio::test]
async fn a_stream_that_stalls_is_told_of_in_the_stream() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let mut client = house.client().await;
    let (response, (pen, ended)) = tokio::join!(client.send(Method::POST, "none", CHAT, ASK_STREAM), async {
        let (pen, ended) = engine.hears().await.stream();
        event(&pen, DELTA);
        (pen, ended)
    });
    let mut body = response.into_body();
    piece(&mut body).await.unwrap();
    tokio::time::pause();
    let last = piece(&mut body).await.unwrap();
    assert!(last.contains("upstream_timeout"), "{last}");
    assert_eq!(piece(&mut body).await, None);
    assert!(ended.await.is_err(), "the node's connection is closed");
    drop(pen);
    tokio::time::resume();
    house.until_idle().await;
}

#[tokio::test]
async fn a_stream_without_its_last_word_is_not_taken_for_complete() {
    let url = Engine::always(|heard| event(&heard.stream().0, DELTA)).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(CHAT, ASK_STREAM).await;
    assert!(answer.body.contains("bad_upstream") && !answer.body.contains("[DONE]"), "{}", answer.body);
    let other = house.post("/v1/others", r#"{"model":"m","stream":true,"input":"x"}"#).await;
    assert!(!other.body.contains("bad_upstream"), "nobody knows the last word of others: {}", other.body);
}

#[tokio::test]
async fn a_whole_answer_that_is_cut_once_begun_breaks_the_connection() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let mut client = house.client().await;
    let body = r#"{"model":"m","input":"x"}"#;
    let asked = client.send(Method::POST, "none", "/v1/audio/speech", body);
    let (response, pen) = tokio::join!(asked, async {
        let (pen, _) = engine.hears().await.begin(&[("content-type", "audio/mpeg")]);
        pen.send(Ok("begun".into())).unwrap();
        pen
    });
    let mut body = response.into_body();
    assert_eq!(piece(&mut body).await, Some("begun".to_owned()));
    pen.send(Err(Cut)).unwrap();
    assert!(body.collect().await.is_err(), "a truncated answer looked whole");
    house.until_idle().await;
}

#[tokio::test]
async fn a_busy_pool_is_a_full_queue_with_a_time_to_come_back() {
    let url = Engine::always(|heard| heard.reply(503, &[("retry-after", "40")], "")).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(CHAT, ASK).await;
    assert_eq!(answer.code(), (503, "queue_full".to_owned()));
    assert_eq!((answer.header("retry-after"), answer.header("x-queue-size")), ("40", "0"));
    assert_eq!(house.status().await["nodes"][0]["breaker"], "closed");
}

#[tokio::test]
async fn a_full_queue_turns_away_with_its_size() {
    let mut engine = Engine::start().await;
    let mut options = LlmOptions { nodes: vec![node("a", &engine.url, 1)], ..LlmOptions::default() };
    options.pipeline.load.wait_queue.max_waiting = 1;
    options.pipeline.load.backpressure.max_queue_size = 1;
    let house = Arc::new(House::with(options, vec![]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    let second = house.ask("none", ASK);
    house.until_waiting(1).await;
    let answer = house.post(CHAT, ASK).await;
    assert_eq!(answer.code(), (503, "queue_full".to_owned()));
    assert_eq!(answer.header("x-queue-size"), "1");
    assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
    heard.reply_json(SAID);
    engine.hears().await.reply_json(SAID);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
    house.until_idle().await;
}

#[tokio::test]
async fn waiting_too_long_is_a_timeout_and_tells_how_long() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    let mut client = house.client().await;
    let second = tokio::spawn(async move {
        let response = client.send(Method::POST, "none", CHAT, ASK).await;
        read(response).await
    });
    house.until_waiting(1).await;
    tokio::time::pause();
    let answer = second.await.unwrap();
    tokio::time::resume();
    assert_eq!(answer.code(), (504, "wait_timeout".to_owned()));
    assert!(answer.header("x-queue-wait-ms").parse::<u32>().unwrap() >= 30_000);
    heard.reply_json(SAID);
    assert_eq!(first.await.unwrap().status, 200);
    house.until_idle().await;
}
