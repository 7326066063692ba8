//! Clients that go away give back what they had, and their nodes stop working for them.

use std::sync::Arc;

use http::Method;

use super::engine::{Engine, event};
use super::harness::{ASK, ASK_STREAM, CHAT, House, SAID, node, piece};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_gives_its_place_back() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    let second = house.ask("none", ASK);
    house.until_waiting(1).await;
    second.abort();
    house.until_waiting(0).await;
    heard.reply_json(SAID);
    assert_eq!(first.await.unwrap().status, 200);
    house.until_idle().await;
    assert!(!engine.has_heard(), "who left was sent to a node");
    assert_eq!(house.status().await["counts"]["cancelled"], 1);
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_frees_the_slot_and_the_node() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    let second = house.ask("none", ASK);
    house.until_waiting(1).await;
    first.abort();
    assert!(heard.ended.await.is_err(), "the node's connection is closed");
    engine.hears().await.reply_json(SAID);
    assert_eq!(second.await.unwrap().status, 200);
    house.until_idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_within_a_stream_pays_for_what_it_got() {
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
    event(&pen, DELTA);
    piece(&mut body).await.unwrap();
    drop((body, client));
    assert!(ended.await.is_err(), "the node's connection is closed");
    house.until_idle().await;
    let status = house.status().await;
    let served = status["tenants"][0]["served_cost"].as_u64().unwrap();
    assert!((4..100).contains(&served), "two tokens and the prompt, not the guess: {served}");
    let page = house.registry.render();
    let line = r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="cancelled"} 1"#;
    assert!(page.lines().any(|found| found == line), "{page}");
}

#[tokio::test]
async fn a_storm_of_clients_that_leave_leaves_nothing() {
    let url = Engine::always(|heard| {
        let (pen, _) = heard.stream();
        event(&pen, DELTA);
        tokio::spawn(async move { pen.closed().await });
    })
    .await;
    let house = Arc::new(House::to(vec![node("a", &url, 2)]).await);
    let clients: Vec<_> = (0..60)
        .map(|n| {
            let house = house.clone();
            tokio::spawn(async move {
                let mut client = house.client().await;
                let asked = client.send(Method::POST, "none", CHAT, ASK_STREAM);
                if n % 3 == 0 {
                    // Leaves wherever it is after so many turns.
                    let turns = async {
                        for _ in 0..n {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! { () = turns => {}, _ = asked => {} }
                } else {
                    let mut body = asked.await.into_body();
                    piece(&mut body).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    house.until_idle().await;
}
