//! Ranks and sound: sent where their model is, and charged by what can be known of them.

use super::engine::Engine;
use super::harness::{House, node};

const WAV: &[(&str, &str)] = &[("content-type", "audio/wav")];

#[tokio::test]
async fn a_rerank_is_charged_what_it_read() {
    let body = r#"{"model":"m","query":"four","documents":["eight by","eight by"]}"#;
    for (said, cost) in [
        (r#"{"results":[],"usage":{"total_tokens":12}}"#, 12),
        (r#"{"results":[],"meta":{"billed_units":{"search_units":1}}}"#, 5),
    ] {
        let url = Engine::always(move |heard| heard.reply_json(said)).await;
        let house = House::to(vec![node("a", &url, 1)]).await;
        assert_eq!(house.post("/v1/rerank", body).await.body, said);
        assert_cost(&house, cost);
    }
}

#[tokio::test]
async fn speech_is_charged_by_the_text_that_is_said() {
    let sound = [0_u8, 255, 1, 254].repeat(1_000);
    let said = sound.clone();
    let url = Engine::always(move |heard| heard.reply(200, WAV, said.clone())).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let body = r#"{"model":"m","voice":"alloy","input":"four by five is 20."}"#;
    let mut client = house.client().await;
    let response = client.send(http::Method::POST, "none", "/v1/audio/speech", body).await;
    assert_eq!(response.headers()["content-type"], "audio/wav");
    let heard = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    assert_eq!(heard, sound);
    house.until_idle().await;
    assert_cost(&house, 5 + 2 * 30);
}

#[tokio::test]
async fn a_transcript_is_charged_by_the_sound_and_the_text() {
    let told = r#"{"text":"it says","usage":{"type":"tokens","input_tokens":70,"output_tokens":3}}"#;
    for (kind, said, cost) in [
        ("application/json", told, 76),
        ("application/json", r#"{"text":"it says very little"}"#, 3 + 2 * (30 / 4)),
        ("text/plain", "it says very little", 3 + 2 * (19 / 4)),
    ] {
        let url = Engine::always(move |heard| {
            assert!(heard.headers["content-type"].to_str().unwrap().starts_with("multipart/form-data"));
            heard.reply(200, &[("content-type", kind)], said);
        })
        .await;
        let house = House::to(vec![node("a", &url, 1)]).await;
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let form = part("model", "m") + &part("file", &"x".repeat(2_000)) + "--b--\r\n";
        let mut client = house.client().await;
        let request = http::Request::post("/v1/audio/transcriptions")
            .header("host", "gateway")
            .header("content-type", "multipart/form-data; boundary=b")
            .body(form)
            .unwrap();
        let answer = super::harness::read(client.request(request).await).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, said));
        house.until_idle().await;
        assert_cost(&house, cost);
    }
}

#[track_caller]
fn assert_cost(house: &House, cost: u64) {
    let page = house.registry.render();
    let line = format!(r#"evenkeel_cost_units_total{{pool="llm",tenant="open"}} {cost}"#);
    assert!(page.lines().any(|found| found == line), "no {line} in {page}");
}
