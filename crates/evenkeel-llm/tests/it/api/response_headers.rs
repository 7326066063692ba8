//! What every answer of the door tells, whoever made it.

use evenkeel_llm::LlmOptions;
use evenkeel_server::tenant::TenantSettings;
use http::Method;

use super::engine::Engine;
use super::harness::{ASK, CHAT, House, SAID, node, tenant};

#[tokio::test]
async fn every_answer_tells_its_name_and_how_long_it_waited() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let tenants = vec![
        tenant("any"),
        TenantSettings { rpm: Some(0), ..tenant("off") },
        TenantSettings { rpm: Some(1), ..tenant("rare") },
        TenantSettings { tpm: Some(1), ..tenant("small") },
        TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") },
    ];
    let options = LlmOptions { nodes: vec![node("a", &url, 8)], ..LlmOptions::default() };
    let house = House::with(options, tenants).await;
    let get = Method::GET;
    let post = Method::POST;
    let unknown = ASK.replace("\"m\"", "\"nobody's\"");
    for (method, who, path, body, status) in [
        (&post, "any", CHAT, ASK, 200),
        (&post, "nobody", CHAT, ASK, 401),
        (&post, "off", CHAT, ASK, 403),
        (&post, "rare", CHAT, ASK, 200),
        (&post, "rare", CHAT, ASK, 429),
        (&post, "small", CHAT, ASK, 400),
        (&post, "narrow", CHAT, ASK, 403),
        (&post, "any", CHAT, "{", 400),
        (&post, "any", CHAT, &unknown, 404),
        (&get, "any", CHAT, "", 405),
        (&get, "any", "/v1/models", "", 200),
        (&get, "any", "/v1/models/m", "", 200),
        (&get, "any", "/v1/models/x", "", 404),
        (&get, "nobody", "/v1/models", "", 401),
        (&post, "any", "/v1/anything", ASK, 200),
        (&post, "any", "/v1/../x", ASK, 404),
        (&post, "nobody", "/v1/messages", ASK, 401),
        (&get, "any", "/v1/messages", "", 405),
    ] {
        let answer = house.call(method.clone(), who, path, body).await;
        assert_eq!(answer.status, status, "{who} {path}: {}", answer.body);
        assert_eq!(answer.header("x-queue-wait-ms"), "0", "{who} {path} {status}");
        assert!(answer.header("x-request-id").starts_with("req-"), "{who} {path} {status}");
    }
}
