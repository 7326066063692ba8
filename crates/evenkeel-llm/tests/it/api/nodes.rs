//! Nodes that come, rest and go while the door is open.

use std::sync::Arc;

use evenkeel_llm::{LlmApi, LlmError, LlmOptions, NodeError, NodeOptions};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::{MetricLimits, Observer, Registry, RequestLogLimits};
use evenkeel_upstream::{TlsRoots, Upstream};
use http::Method;

use super::engine::Engine;
use super::harness::{ASK, CHAT, House, SAID, node};

#[tokio::test]
async fn a_draining_node_finishes_what_it_has_and_takes_nothing_new() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 2)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    house.llm.drain_node("a").unwrap();
    assert_eq!(house.status().await["nodes"][0]["admin_state"], "draining");
    assert_eq!(house.post(CHAT, ASK).await.code(), (404, "model_not_found".to_owned()));
    heard.reply_json(SAID);
    assert_eq!(first.await.unwrap().status, 200);
    house.llm.resume_node("a").unwrap();
    let again = house.ask("none", ASK);
    engine.hears().await.reply_json(SAID);
    assert_eq!(again.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_node_is_added_and_taken_out_again() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = House::to(vec![]).await;
    assert_eq!(house.post(CHAT, ASK).await.code(), (404, "model_not_found".to_owned()));
    house.llm.add_node(node("gpu 1", &url, 3)).unwrap();
    assert_eq!(
        house.llm.add_node(node("gpu 1", &url, 3)),
        Err(NodeError::Twice { name: "gpu 1".to_owned() })
    );
    assert_eq!(house.post(CHAT, ASK).await.status, 200);
    let listed = house.call(Method::GET, "root", "/api/nodes", "").await.json();
    assert_eq!((&listed["nodes"][0]["name"], &listed["nodes"][0]["slots"]), (&"gpu 1".into(), &3.into()));
    assert_eq!(listed["nodes"][0]["urls"][0].as_str().unwrap(), url);
    house.llm.remove_node("gpu 1").unwrap();
    assert_eq!(house.llm.remove_node("gpu 1"), Err(NodeError::Unknown { name: "gpu 1".to_owned() }));
    assert_eq!(house.post(CHAT, ASK).await.status, 404);
    assert_eq!(house.call(Method::GET, "root", "/v1/models", "").await.json()["data"], serde_json::json!([]));
}

#[tokio::test]
async fn of_a_thousand_nodes_that_came_and_went_the_last_has_its_own_series_and_nothing_is_left_of_the_others()
 {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = House::to(vec![]).await;
    let page = || {
        house.llm.figures();
        house.registry.render()
    };
    let empty = page().lines().count();
    for number in 0..1_000 {
        let name = format!("gpu-{number}");
        house.llm.add_node(node(&name, &url, 1)).unwrap();
        if number % 100 == 99 {
            assert_eq!(house.post(CHAT, ASK).await.status, 200);
            house.until_idle().await;
            let page = page();
            let dispatched = format!("evenkeel_dispatched_total{{pool=\"llm\",node=\"{name}\"}} 1");
            assert!(page.contains(&dispatched), "no series of {name}");
            assert!(page.contains("evenkeel_dispatched_total{pool=\"llm\",node=\"other\"} 0"));
        }
        house.llm.remove_node(&name).unwrap();
    }
    // One request was the tenant's first, whose series stay.
    let left: Vec<String> = page().lines().filter(|line| line.contains("gpu-")).map(str::to_owned).collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(page().lines().count() < empty + 200, "{} lines, {empty} before", page().lines().count());
}

#[tokio::test]
async fn only_administrators_see_nodes() {
    let house = House::to(vec![]).await;
    for path in ["/api/load-status", "/api/nodes"] {
        assert_eq!(house.call(Method::GET, "none", path, "").await.status, 403, "{path}");
    }
}

#[tokio::test]
async fn a_conversation_returns_to_its_node() {
    let mut one = Engine::start().await;
    let mut two = Engine::start().await;
    let house = Arc::new(House::to(vec![node("1", &one.url, 8), node("2", &two.url, 8)]).await);
    let mut met = Vec::new();
    for _ in 0..4 {
        let asking = house.ask("none", ASK);
        let (who, heard) = tokio::select! {
            heard = one.hears() => (1, heard),
            heard = two.hears() => (2, heard),
        };
        heard.reply_json(SAID);
        assert_eq!(asking.await.unwrap().status, 200);
        met.push(who);
    }
    assert!(met.iter().all(|who| *who == met[0]), "{met:?}");
    let cache = &house.status().await["cache"];
    assert_eq!((&cache["hits"], &cache["misses"], &cache["size"]), (&3.into(), &1.into(), &1.into()));
}

#[tokio::test]
async fn a_node_of_several_paths_is_reached_over_those_that_work() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let paths = vec![nowhere, url];
    let house = House::to(vec![NodeOptions { paths, ..node("a", "", 4) }]).await;
    for _ in 0..10 {
        assert_eq!(house.post(CHAT, ASK).await.status, 200);
    }
    let status = house.status().await;
    assert_eq!(status["nodes"][0]["breaker"], "closed", "a path that fails says nothing about its node");
    assert_eq!(status["nodes"][0]["paths"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_node_without_a_list_of_models_is_asked_for_it() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = House::to(vec![NodeOptions { models: vec![], ..node("a", &url, 1) }]).await;
    let ask = r#"{"model":"found","messages":[]}"#;
    loop {
        let answer = house.post(CHAT, ask).await;
        if answer.status == 200 {
            break;
        }
        assert_eq!(answer.code(), (503, "not_ready".to_owned()));
        assert_eq!(answer.header("retry-after"), "1");
    }
    assert_eq!(house.post(CHAT, ASK).await.code(), (404, "model_not_found".to_owned()));
}

#[tokio::test]
async fn a_node_that_cannot_be_asked_does_not_make_everybody_wait() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let house = House::to(vec![NodeOptions { models: vec![], ..node("a", &nowhere, 1) }]).await;
    while house.post(CHAT, ASK).await.code().1 == "not_ready" {
        tokio::task::yield_now().await;
    }
    assert_eq!(house.post(CHAT, ASK).await.code(), (404, "model_not_found".to_owned()));
}

#[tokio::test]
async fn a_door_that_stops_takes_nothing_new() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::to(vec![node("a", &engine.url, 1)]).await);
    let first = house.ask("none", ASK);
    let heard = engine.hears().await;
    house.llm.shutdown();
    assert_eq!(house.post(CHAT, ASK).await.code(), (503, "shutting_down".to_owned()));
    heard.reply_json(SAID);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn nodes_that_cannot_be_are_refused_by_name() {
    let refused = |nodes: Vec<NodeOptions>| {
        let watch =
            Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default())
                .unwrap();
        let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::public());
        let options = LlmOptions { nodes, ..LlmOptions::default() };
        LlmApi::new(options, upstream, Arc::new(watch)).unwrap_err().to_string()
    };
    let url = "http://engine";
    assert_eq!(refused(vec![node("", url, 1)]), "a node has no name");
    assert_eq!(refused(vec![node("a", url, 1), node("a", url, 1)]), r#"two nodes are named "a""#);
    assert_eq!(refused(vec![node("a", url, 0)]), r#"node "a" takes no requests"#);
    assert_eq!(refused(vec![NodeOptions { paths: vec![], ..node("a", url, 1) }]), r#"node "a" has no URL"#);
    assert!(refused(vec![node("a", "engine", 1)]).starts_with(r#"node "a": "#));
    let api_key = Some("a\nb".to_owned().into());
    assert_eq!(
        refused(vec![NodeOptions { api_key, ..node("a", url, 1) }]),
        r#"the key of node "a" cannot be sent in a header"#
    );
    let models = (0..1_001).map(|n| n.to_string()).collect();
    assert_eq!(refused(vec![NodeOptions { models, ..node("a", url, 1) }]), "more than 1000 models");
    let unknown = LlmError::Node(NodeError::Unknown { name: "b".to_owned() });
    assert_eq!(unknown.to_string(), r#"no node is named "b""#);
}
