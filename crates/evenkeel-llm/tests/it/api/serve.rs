//! What a client gets when everything is well.

use http::Method;

use super::engine::{Engine, event, events};
use super::harness::{ASK, ASK_STREAM, CHAT, House, SAID, node, piece};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const COUNTS: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

#[tokio::test]
async fn a_chat_in_one_piece_is_passed_on_as_it_is() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let (answer, ()) = tokio::join!(house.post("/v1/chat/completions?x=1", ASK), async {
        let heard = engine.hears().await;
        assert_eq!((heard.path.as_str(), &heard.body[..]), ("/v1/chat/completions?x=1", ASK.as_bytes()));
        heard.reply(200, &[("content-type", "application/json"), ("openai-processing-ms", "7")], SAID);
    });
    assert_eq!((answer.status, answer.body.as_str()), (200, SAID));
    assert_eq!((answer.header("x-queue-wait-ms"), answer.header("openai-processing-ms")), ("0", "7"));
    assert!(answer.header("x-request-id").starts_with("req-"));
    let status = house.status().await;
    assert_eq!(status["tenants"][0]["served_cost"], 3 + 2 * 4);
    house.until_idle().await;
}

#[tokio::test]
async fn a_stream_passes_as_it_is_made_and_its_counts_are_hidden_from_who_did_not_ask() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let mut client = house.client().await;
    let (response, pen) = tokio::join!(client.send(Method::POST, "none", CHAT, ASK_STREAM), async {
        let heard = engine.hears().await;
        let body: serde_json::Value = serde_json::from_slice(&heard.body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"], true);
        let (pen, _) = heard.stream();
        event(&pen, DELTA);
        pen
    });
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    assert_eq!(piece(&mut body).await, Some(format!("data: {DELTA}\n\n")));
    event(&pen, DELTA);
    assert_eq!(piece(&mut body).await, Some(format!("data: {DELTA}\n\n")));
    event(&pen, COUNTS);
    event(&pen, "[DONE]");
    drop(pen);
    assert_eq!(piece(&mut body).await, Some("data: [DONE]\n\n".to_owned()));
    assert_eq!(piece(&mut body).await, None);
    let status = house.status().await;
    assert_eq!((&status["in_flight"], &status["tenants"][0]["served_cost"]), (&0.into(), &7.into()));
    assert_eq!(status["counts"]["finished"], 1);
}

#[tokio::test]
async fn who_asked_for_counts_gets_them() {
    let url = Engine::always(|heard| {
        let (pen, _) = heard.stream();
        events(&pen, &[DELTA, COUNTS, "[DONE]"]);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    let answer = house.post(CHAT, asked).await;
    assert_eq!(answer.body, format!("data: {DELTA}\n\ndata: {COUNTS}\n\ndata: [DONE]\n\n"));
}

#[tokio::test]
async fn a_node_learns_its_own_key_and_never_the_clients() {
    let mut engine = Engine::start().await;
    let keyed = evenkeel_llm::NodeOptions {
        api_key: Some("node-key".to_owned().into()),
        ..node("keyed", &engine.url, 1)
    };
    let house = House::to(vec![keyed]).await;
    let (answer, ()) = tokio::join!(house.post_as("secret", CHAT, ASK), async {
        let heard = engine.hears().await;
        assert_eq!(heard.headers["authorization"], "Bearer node-key");
        assert!(!format!("{:?}", heard.headers).contains("ek-secret"));
        assert_eq!(heard.headers["host"], engine.url.trim_start_matches("http://"));
        assert!(heard.headers.contains_key("x-request-id"));
        heard.reply_json(SAID);
    });
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_node_without_a_key_hears_of_none() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let (_, ()) = tokio::join!(house.post_as("secret", CHAT, ASK), async {
        let heard = engine.hears().await;
        assert!(!heard.headers.contains_key("authorization"));
        heard.reply_json(SAID);
    });
}

#[tokio::test]
async fn what_a_client_did_wrong_is_told_in_the_nodes_words_and_costs_nothing() {
    let url = Engine::always(|heard| {
        heard.reply(422, &[("content-type", "application/json")], r#"{"error":{"code":"of the engine"}}"#);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    for _ in 0..10 {
        assert_eq!(house.post(CHAT, ASK).await.code(), (422, "of the engine".to_owned()));
    }
    let status = house.status().await;
    assert_eq!(
        (&status["tenants"][0]["served_cost"], &status["nodes"][0]["breaker"]),
        (&0.into(), &"closed".into())
    );
}

#[tokio::test]
async fn other_paths_of_v1_go_to_a_node_of_their_model() {
    let url = Engine::always(|heard| {
        assert_eq!(heard.path, "/v1/rerank");
        heard.reply(200, &[("content-type", "audio/mpeg")], "any bytes");
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post("/v1/rerank", r#"{"model":"m","query":"q","documents":["d"]}"#).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "any bytes"));
    house.until_idle().await;
}

#[tokio::test]
async fn a_path_that_leaves_v1_reaches_no_node() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let answer = house.post("/v1/../metrics", r#"{"model":"m"}"#).await;
    assert_eq!(answer.code(), (404, "unknown_url".to_owned()));
    assert!(!engine.has_heard());
}

#[tokio::test]
async fn a_whole_answer_in_many_pieces_is_joined_and_a_huge_one_passes_through() {
    let huge = "x".repeat(300_000);
    let said = huge.clone();
    let url = Engine::always(move |heard| {
        let times = if heard.body.len() == ASK.len() { 1 } else { 9 };
        let (pen, _) = heard.begin(&[("content-type", "application/json")]);
        let write = |text: &str| pen.send(Ok(text.to_owned().into())).unwrap();
        write(r#"{"text":""#);
        (0..times).for_each(|_| write(&said));
        write(r#"","usage":{"prompt_tokens":5,"completion_tokens":1}}"#);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let joined = house.post(CHAT, ASK).await;
    assert_eq!(joined.json()["text"].as_str().unwrap().len(), 300_000);
    assert_eq!(joined.header("content-length"), joined.body.len().to_string());
    let passed = house.post(CHAT, &format!(" {ASK}")).await;
    assert_eq!(passed.json()["text"].as_str().unwrap().len(), 9 * 300_000);
    house.until_idle().await;
    assert_eq!(house.status().await["tenants"][0]["served_cost"], 14);
}

#[tokio::test]
async fn requests_that_cannot_be_understood_reach_no_node() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    assert_eq!(house.post(CHAT, "{").await.code(), (400, "invalid_request".to_owned()));
    let unknown = house.post(CHAT, r#"{"model":"other","messages":[]}"#).await;
    assert_eq!(unknown.code(), (404, "model_not_found".to_owned()));
    assert_eq!(unknown.header("x-queue-wait-ms"), "0");
    assert!(!engine.has_heard());
    assert_eq!(house.call(Method::GET, "none", CHAT, "").await.status, 405);
}

#[tokio::test]
async fn every_step_is_counted_on_the_page() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    house.post(CHAT, ASK).await;
    let page = house.registry.render();
    for line in [
        r#"evenkeel_accepted_total{pool="llm",tenant="open"} 1"#,
        r#"evenkeel_admitted_total{pool="llm",tenant="open"} 1"#,
        r#"evenkeel_dispatched_total{pool="llm",node="a"} 1"#,
        r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="served"} 1"#,
        r#"llm_router_request_duration_seconds_count 1"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not on {page}");
    }
}
