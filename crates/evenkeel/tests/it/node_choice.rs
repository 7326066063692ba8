//! Node choice at the real edge: latency before weight, and what the metrics show of it.

use std::thread;
use std::time::Duration;

use evenkeel::config::{Config, ConfigSources};
use evenkeel_sim_node::SimOptions;
use evenkeel_sim_node::testing::{TestNode, chat, fast};
use serde_json::{Value, json};

use crate::fleet::{CHAT, Fleet, tenant};

#[test]
fn configured_weights_share_chats_and_embeddings() {
    let nodes = [("heavy", 9, fast()), ("light", 1, fast())];
    let gateway = Gateway::start("weights", "", nodes);
    for index in 0..200 {
        gateway.post(CHAT, &conversation(index));
    }
    let chats = gateway.served("light");
    assert!((6.0..=34.0).contains(&chats), "{chats} of 200 conversations");
    for index in 0..200 {
        gateway.post("/v1/embeddings", &json!({"model": "sim", "input": index.to_string()}));
    }
    let embeddings = gateway.served("light") - chats;
    assert!((19.0..=22.0).contains(&embeddings), "{embeddings} of 200 embeddings");
}

#[test]
fn a_slow_node_gets_few_of_the_requests_that_a_fast_one_has_room_for() {
    for chooser in ["hot_cold", "score"] {
        let slow = SimOptions { first_token: Duration::from_secs(2), ..fast() };
        let config = format!("[llm]\nchooser = '{chooser}'\n");
        let gateway =
            Gateway::start(&format!("slow-{chooser}"), &config, [("fast", 1, fast()), ("slow", 1, slow)]);
        thread::scope(|scope| {
            for client in 0..4 {
                let gateway = &gateway;
                scope.spawn(move || {
                    for turn in 0..50 {
                        gateway.post(CHAT, &conversation(100 * client + turn));
                    }
                });
            }
        });
        let fast = gateway.served("fast");
        assert!(180.0 <= fast, "{chooser}: {fast} of 200");
    }
}

#[test]
fn the_metrics_count_cache_hits_misses_and_idle_connections() {
    let gateway = Gateway::start("cache", "", [("a", 1, fast()), ("b", 1, fast())]);
    for _ in 0..3 {
        gateway.post(CHAT, &conversation(1));
    }
    let counts = ["llm_router_cache_hits_total ", "llm_router_cache_misses_total "];
    assert_eq!(counts.map(|series| gateway.metric(series) as u64), [2, 1]);
    gateway.fleet.wait_idle();
    let idle = gateway.fleet.status()["pool"]["idle_connections"].as_f64().unwrap();
    assert!(idle >= 1.0);
    assert!(gateway.metric("llm_router_pool_connections ") >= 1.0, "idle connections count");
}

#[test]
fn the_uptime_of_an_engine_is_read_from_its_metrics() {
    let gateway = Gateway::start("uptime", "", [("a", 1, fast())]);
    let status = gateway.fleet.wait_status("scraped", |status| status["nodes"][0]["engine_load"].is_object());
    let uptime = &status["nodes"][0]["engine_load"]["uptime_sec"];
    assert!(uptime.as_u64().is_some_and(|uptime| uptime < 3_600), "{status:#}");
}

#[test]
fn an_unknown_chooser_is_an_error() {
    let file = Some(("test.toml".to_owned(), "[llm]\nchooser = 'scores'\n".to_owned()));
    let errors = Config::read(&ConfigSources { file, ..ConfigSources::default() }).unwrap_err().to_string();
    assert!(errors.contains("chooser must be \"hot_cold\" or \"score\""), "{errors}");
}

/// A gateway with nodes of given weights.
struct Gateway {
    fleet: Fleet,
    _nodes: Vec<TestNode>,
}

impl Gateway {
    fn start<const N: usize>(name: &str, config: &str, nodes: [(&str, u32, SimOptions); N]) -> Self {
        let mut config = format!("{config}{}", tenant("acme", ""));
        let mut started = Vec::new();
        for (node, weight, options) in nodes {
            let node_options = TestNode::start(SimOptions { slots: 16, ..options });
            config.push_str(&format!(
                "[[llm.nodes]]\nname = '{node}'\nurl = 'http://{}'\nmodels = ['sim']\nweight = {weight}\n\
                 max_concurrency = 16\n",
                node_options.address()
            ));
            started.push(node_options);
        }
        Self { fleet: Fleet::start(&format!("node-choice-{name}"), &config, vec![]), _nodes: started }
    }

    fn post(&self, path: &str, body: &Value) {
        let response = self.fleet.post("acme", path, body);
        assert_eq!(response.status, 200, "{}", response.body);
    }

    /// Returns the number of responses of a node.
    fn served(&self, node: &str) -> f64 {
        self.metric(&format!("evenkeel_first_byte_seconds_count{{pool=\"llm\",node=\"{node}\"}} "))
    }

    /// Returns the value of a series; 0 if it does not exist.
    fn metric(&self, series: &str) -> f64 {
        let page = self.fleet.get("/metrics").body;
        page.lines().find_map(|line| line.strip_prefix(series)).map_or(0.0, |value| value.parse().unwrap())
    }
}

fn conversation(id: usize) -> Value {
    chat(json!({"user": format!("user-{id}")}))
}
