//! Reranking and audio: routed by model, and charged by reported or estimated usage.

use super::engine::Engine;
use super::harness::{Gateway, node};

const WAV: &[(&str, &str)] = &[("content-type", "audio/wav")];

#[tokio::test]
async fn a_rerank_is_charged_its_input() {
    let body = r#"{"model":"m","query":"four","documents":["eight by","eight by"]}"#;
    for (reply, cost) in [
        (r#"{"results":[],"usage":{"total_tokens":12}}"#, 12),
        (r#"{"results":[],"meta":{"billed_units":{"search_units":1}}}"#, 5),
    ] {
        let url = Engine::reply_always_with(move |received| received.reply_json(reply)).await;
        let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
        assert_eq!(gateway.post("/v1/rerank", body).await.body, reply);
        assert_cost(&gateway, cost);
    }
}

#[tokio::test]
async fn speech_is_charged_by_its_text() {
    let audio = [0_u8, 255, 1, 254].repeat(1_000);
    let reply = audio.clone();
    let url = Engine::reply_always_with(move |received| received.reply(200, WAV, reply.clone())).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let body = r#"{"model":"m","voice":"alloy","input":"four by five is 20."}"#;
    let mut client = gateway.client().await;
    let response = client.send(http::Method::POST, "none", "/v1/audio/speech", body).await;
    assert_eq!(response.headers()["content-type"], "audio/wav");
    let received = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    assert_eq!(received, audio);
    gateway.wait_until_idle().await;
    assert_cost(&gateway, 5 + 2 * 30);
}

#[tokio::test]
async fn a_transcription_is_charged_by_its_audio_and_its_text() {
    let with_usage = r#"{"text":"it says","usage":{"type":"tokens","input_tokens":70,"output_tokens":3}}"#;
    for (kind, reply, cost) in [
        ("application/json", with_usage, 76),
        ("application/json", r#"{"text":"it says very little"}"#, 3 + 2 * 5),
        ("text/plain", "it says very little", 3 + 2 * 5),
    ] {
        let url = Engine::reply_always_with(move |received| {
            assert!(received.headers["content-type"].to_str().unwrap().starts_with("multipart/form-data"));
            received.reply(200, &[("content-type", kind)], reply);
        })
        .await;
        let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let form = part("model", "m") + &part("file", &"x".repeat(2_000)) + "--b--\r\n";
        let mut client = gateway.client().await;
        let request = http::Request::post("/v1/audio/transcriptions")
            .header("host", "localhost")
            .header("content-type", "multipart/form-data; boundary=b")
            .body(form)
            .unwrap();
        let response = super::harness::read_response(client.request(request).await).await;
        assert_eq!((response.status, response.body.as_str()), (200, reply));
        gateway.wait_until_idle().await;
        assert_cost(&gateway, cost);
    }
}

#[track_caller]
fn assert_cost(gateway: &Gateway, cost: u64) {
    let metrics = gateway.registry.render();
    let line = format!(r#"evenkeel_cost_units_total{{pool="llm",tenant="open"}} {cost}"#);
    assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
}
