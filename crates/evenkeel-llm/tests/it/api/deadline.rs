//! Clients that say how long they wait.

use std::sync::Arc;

use super::engine::Engine;
use super::harness::{ASK, CHAT, House, Read, SAID, node};

type Headers = &'static [(&'static str, &'static str)];

/// Asks while the only slot is taken, and passes the time until there is an answer.
async fn answer_while_full(headers: Headers) -> Read {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    let own = house.clone();
    let second = tokio::spawn(async move { own.post_with(CHAT, headers, ASK).await });
    house.until_waiting(1).await;
    tokio::time::pause();
    let answer = second.await.unwrap();
    tokio::time::resume();
    assert_eq!(house.llm.figures().queue_size, 0, "its place is free");
    heard.reply_json(SAID);
    assert_eq!(first.await.unwrap().status, 200);
    house.until_idle().await;
    answer
}

#[tokio::test]
async fn who_waits_no_longer_than_it_says_gives_its_place_back_and_hears_of_it() {
    for headers in [
        &[("x-request-timeout-ms", "2500")][..],
        &[("x-stainless-read-timeout", "2.5")],
        &[("x-stainless-timeout", "2.5"), ("x-request-timeout-ms", "20000")],
    ] {
        let answer = answer_while_full(headers).await;
        assert_eq!(answer.code(), (504, "wait_timeout".to_owned()), "{headers:?}");
        let waited: u32 = answer.header("x-queue-wait-ms").parse().unwrap();
        assert!((2_400..10_000).contains(&waited), "{headers:?}: {waited}");
    }
}

#[tokio::test]
async fn nobody_waits_longer_than_is_allowed_whatever_it_says() {
    for headers in [&[("x-request-timeout-ms", "600000")][..], &[("x-stainless-timeout", "-5")]] {
        let answer = answer_while_full(headers).await;
        assert_eq!(answer.code(), (504, "wait_timeout".to_owned()), "{headers:?}");
        assert!(answer.header("x-queue-wait-ms").parse::<u32>().unwrap() >= 30_000, "{headers:?}");
    }
}

#[tokio::test]
async fn a_node_is_not_blamed_for_a_clients_haste() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    for _ in 0..10 {
        let own = house.clone();
        let asking =
            tokio::spawn(async move { own.post_with(CHAT, &[("x-request-timeout-ms", "3000")], ASK).await });
        let heard = engine.hears().await;
        tokio::time::pause();
        assert_eq!(asking.await.unwrap().code(), (504, "upstream_timeout".to_owned()));
        tokio::time::resume();
        assert!(heard.ended.await.is_err(), "the connection is closed, so that the engine stops");
    }
    let page = house.registry.render();
    let line = r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="cancelled"} 10"#;
    assert!(page.lines().any(|found| found == line), "{page}");
    assert_eq!(house.status().await["nodes"][0]["breaker"], "closed");
    house.until_idle().await;
}

#[tokio::test]
async fn a_wait_that_is_no_number_is_refused_if_it_was_meant_for_us() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let refused = house.post_with(CHAT, &[("x-request-timeout-ms", "soon")], ASK).await;
    assert_eq!(refused.code(), (400, "invalid_request".to_owned()));
    assert_eq!(refused.json()["error"]["param"], "x-request-timeout-ms");
    assert_eq!(house.post_with(CHAT, &[("x-stainless-timeout", "soon")], ASK).await.status, 200);
}
