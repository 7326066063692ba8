//! Headers that every response has, including error responses.

use evenkeel_llm::LlmOptions;
use evenkeel_server::tenant::TenantSettings;
use http::Method;

use super::engine::Engine;
use super::harness::{CHAT, CHAT_BODY, COMPLETION, Gateway, node, tenant};

#[tokio::test]
async fn every_response_has_a_request_id_and_its_queue_wait() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let tenants = vec![
        tenant("any"),
        TenantSettings { rpm: Some(0), ..tenant("off") },
        TenantSettings { rpm: Some(1), ..tenant("rare") },
        TenantSettings { tpm: Some(1), ..tenant("small") },
        TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") },
    ];
    let options = LlmOptions { nodes: vec![node("a", &url, 8)], ..LlmOptions::default() };
    let gateway = Gateway::start_with(options, tenants).await;
    let get = Method::GET;
    let post = Method::POST;
    let unknown = CHAT_BODY.replace("\"m\"", "\"unknown\"");
    for (method, tenant_name, path, body, status) in [
        (&post, "any", CHAT, CHAT_BODY, 200),
        (&post, "nobody", CHAT, CHAT_BODY, 401),
        (&post, "off", CHAT, CHAT_BODY, 403),
        (&post, "rare", CHAT, CHAT_BODY, 200),
        (&post, "rare", CHAT, CHAT_BODY, 429),
        (&post, "small", CHAT, CHAT_BODY, 400),
        (&post, "narrow", CHAT, CHAT_BODY, 403),
        (&post, "any", CHAT, "{", 400),
        (&post, "any", CHAT, &unknown, 404),
        (&get, "any", CHAT, "", 405),
        (&get, "any", "/v1/models", "", 200),
        (&get, "any", "/v1/models/m", "", 200),
        (&get, "any", "/v1/models/x", "", 404),
        (&get, "nobody", "/v1/models", "", 401),
        (&post, "any", "/v1/classify", CHAT_BODY, 200),
        (&post, "any", "/v1/anything", CHAT_BODY, 404),
        (&post, "any", "/v1/../x", CHAT_BODY, 404),
        (&post, "nobody", "/v1/messages", CHAT_BODY, 401),
        (&get, "any", "/v1/messages", "", 405),
    ] {
        let response = gateway.call(method.clone(), tenant_name, path, body).await;
        assert_eq!(response.status, status, "{tenant_name} {path}: {}", response.body);
        assert_eq!(response.header("x-queue-wait-ms"), "0", "{tenant_name} {path} {status}");
        assert!(response.header("x-request-id").starts_with("req-"), "{tenant_name} {path} {status}");
    }
}
