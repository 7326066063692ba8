//! Nodes looked after: what is asked, and what is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_llm::{Engine, Finding, HealthCheckResult, HealthOptions, MonitorTarget, Monitors, Report};
use evenkeel_pipeline::EngineLoad;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::time::Duration;
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use http::HeaderValue;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, pause};

use crate::pages::{Page, Pages, page};

const NODE: NodeId = NodeId(7);
const HOUR: Duration = Duration::from_secs(3600);

/// Checks as fast as can be, and waits for answers for as long as it takes.
fn eager() -> HealthOptions {
    HealthOptions {
        interval: Duration::from_millis(1),
        timeout: HOUR,
        models_interval: HOUR,
        load_interval: None,
    }
}

struct Listener {
    monitors: Monitors,
    reports: UnboundedReceiver<Report>,
}

fn listen(health: HealthOptions) -> Listener {
    let (tell, reports) = unbounded_channel();
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let monitors = Monitors::start(upstream, health, move |report| {
        let _ = tell.send(report);
    });
    Listener { monitors: monitors.unwrap(), reports }
}

fn watched(origins: Vec<Origin>) -> MonitorTarget {
    MonitorTarget { node: NODE, origins, authorization: None }
}

impl Listener {
    fn watch(&self, origins: Vec<Origin>) {
        self.monitors.watch(watched(origins)).unwrap();
    }

    /// Waits for a finding that is wanted, past all others.
    async fn until<T>(&mut self, mut wanted: impl FnMut(Finding) -> Option<T>) -> T {
        loop {
            let report = self.reports.recv().await.expect("monitors go on");
            assert_eq!(report.node, NODE);
            if let Some(found) = wanted(report.finding) {
                return found;
            }
        }
    }

    async fn check(&mut self) -> HealthCheckResult {
        self.until(|finding| match finding {
            Finding::Checked { path: None, check } => Some(check),
            _ => None,
        })
        .await
    }

    async fn load(&mut self) -> Option<EngineLoad> {
        self.until(|finding| match finding {
            Finding::Load(load) => Some(load),
            _ => None,
        })
        .await
    }

    async fn models(&mut self) -> Vec<String> {
        self.until(|finding| match finding {
            Finding::Models(models) => Some(models),
            _ => None,
        })
        .await
    }

    /// Waits for everything that a survey tells.
    async fn survey(&mut self) -> (Engine, Option<u32>, Vec<String>) {
        let mut engine = None;
        let mut slots = None;
        let models = self.until(|finding| match finding {
            Finding::Engine(told) => {
                engine = Some(told);
                None
            }
            Finding::Slots(told) => {
                slots = Some(told);
                None
            }
            Finding::Models(models) => Some(models),
            Finding::Checked { .. } | Finding::Load(_) => None,
        });
        let models = models.await;
        (engine.expect("an engine is told before its models"), slots, models)
    }
}

async fn surveyed(pages: Vec<Page>) -> (Engine, Option<u32>, Vec<String>) {
    let node = Pages::start(pages).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    listener.survey().await
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test]
async fn engines_that_name_themselves_are_known_by_their_models() {
    let owners = [
        ("vllm", Engine::Vllm),
        ("sglang", Engine::Sglang),
        ("organization_owner", Engine::LmStudio),
        ("evenkeel-sim-node", Engine::SimNode),
    ];
    for (owner, engine) in owners {
        let list = format!(r#"{{"object":"list","data":[{{"id":"m","owned_by":"{owner}"}}]}}"#);
        let found = surveyed(vec![page("/v1/models", 200, &list)]).await;
        assert_eq!(found, (engine, None, named(&["m"])));
    }
}

#[tokio::test]
async fn llama_cpp_is_known_by_its_header_and_tells_its_slots() {
    let pages = vec![
        page("/v1/models", 200, r#"{"data":[{"id":"gguf"}]}"#).with("server: llama.cpp"),
        page("/props", 200, r#"{"total_slots":4,"chat_template":""}"#),
    ];
    assert_eq!(surveyed(pages).await, (Engine::LlamaCpp, Some(4), named(&["gguf"])));
}

#[tokio::test]
async fn ollama_is_known_by_its_version_or_by_its_tags() {
    let list = r#"{"data":[{"id":"qwen:latest","owned_by":"library"}]}"#;
    let pages = vec![page("/v1/models", 200, list), page("/api/version", 200, r#"{"version":"0.9.1"}"#)];
    assert_eq!(surveyed(pages).await, (Engine::Ollama, None, named(&["qwen:latest"])));
    let pages = vec![page("/api/tags", 200, r#"{"models":[{"name":"old:7b"}]}"#)];
    assert_eq!(surveyed(pages).await, (Engine::Ollama, None, named(&["old:7b"])));
}

#[tokio::test]
async fn tgi_is_known_by_its_info_and_tells_its_slots() {
    let list = r#"{"data":[{"id":"org/m","owned_by":"org/m"}]}"#;
    let info = r#"{"model_id":"org/m","max_concurrent_requests":128,"version":"3"}"#;
    let pages = vec![page("/v1/models", 200, list), page("/info", 200, info)];
    assert_eq!(surveyed(pages).await, (Engine::Tgi, Some(128), named(&["org/m"])));
}

#[tokio::test]
async fn engines_whose_models_are_owned_by_others_are_known_by_clues() {
    let list = r#"{"data":[{"id":"m","owned_by":"me"}]}"#;
    let clues = [
        ("/get_model_info", r#"{"model_path":"m","is_generation":true}"#, Engine::Sglang),
        ("/version", r#"{"version":"0.11.0"}"#, Engine::Vllm),
        ("/version", "not JSON", Engine::Unknown),
    ];
    for (path, said, engine) in clues {
        let pages = vec![page("/v1/models", 200, list), page(path, 200, said)];
        assert_eq!(surveyed(pages).await, (engine, None, named(&["m"])));
    }
}

#[tokio::test]
async fn a_node_that_answers_is_well() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    for _ in 0..3 {
        assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
    }
}

#[tokio::test]
async fn a_node_without_health_is_asked_for_its_models() {
    let list = page("/v1/models", 200, r#"{"data":[]}"#);
    let node = Pages::start(vec![list]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    for _ in 0..5 {
        assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
    }
    assert_eq!(node.asked("/health"), 1, "asked once, it is not asked again");
    assert!(5 <= node.asked("/v1/models"));
}

#[tokio::test]
async fn a_busy_node_is_not_broken_and_a_broken_one_is() {
    for status in [429, 503] {
        let node = Pages::start(vec![page("/health", status, "")]).await;
        let mut listener = listen(eager());
        listener.watch(vec![node.origin()]);
        assert!(matches!(listener.check().await, HealthCheckResult::Busy { .. }));
    }
    let node = Pages::start(vec![page("/health", 500, "")]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
}

#[tokio::test]
async fn a_node_that_is_not_there_fails_and_one_that_says_nothing_is_lost() {
    let gone = crate::stub::Stub::start().await.origin();
    let mut listener = listen(eager());
    listener.watch(vec![gone]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
    let silent = crate::stub::Stub::start().await;
    let mut listener = listen(HealthOptions { timeout: Duration::from_millis(1), ..eager() });
    listener.watch(vec![silent.origin()]);
    assert_eq!(listener.check().await, HealthCheckResult::TimedOut);
}

#[tokio::test]
async fn an_answer_without_end_fails() {
    let long = "x".repeat((4 << 20) + 1);
    let node = Pages::start(vec![page("/health", 200, &long)]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
}

#[tokio::test]
async fn checks_are_an_interval_apart() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let interval = Duration::from_secs(5);
    let mut listener = listen(HealthOptions { interval, ..eager() });
    listener.watch(vec![node.origin()]);
    listener.check().await;
    pause();
    for _ in 0..3 {
        let began = Instant::now();
        listener.check().await;
        assert!(interval - interval / 100 <= began.elapsed(), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn an_engine_that_says_how_loaded_it_is_is_asked_until_it_does_not_and_is_well_all_the_while() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#);
    let health = page("/health", 200, "");
    let metrics = |running| {
        page(
            "/metrics",
            200,
            &format!("vllm:num_requests_running{{engine=\"0\"}} {running}.0\nvllm:num_requests_waiting 2\n"),
        )
    };
    let node = Pages::start(vec![health.clone(), list.clone(), metrics(3)]).await;
    let mut listener = listen(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..eager() });
    listener.watch(vec![node.origin()]);
    let told = |running| Some(EngineLoad { running, waiting: 2, cache_used: None });
    assert_eq!(listener.load().await, told(3));
    node.replace(vec![health.clone(), list.clone(), metrics(9)]);
    while listener.load().await != told(9) {}
    node.replace(vec![health, list]);
    while listener.load().await.is_some() {}
    assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
}

#[tokio::test]
async fn an_engine_that_nobody_knows_is_not_asked_how_loaded_it_is() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"somebody"}]}"#);
    let node = Pages::start(vec![page("/health", 200, ""), list]).await;
    let mut listener = listen(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..eager() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.models().await, named(&["m"]));
    for _ in 0..20 {
        listener.check().await;
    }
    assert_eq!(node.asked("/metrics"), 0);
}

#[tokio::test]
async fn llama_cpp_without_metrics_is_asked_for_its_slots() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#);
    let slots = page("/slots", 200, r#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]"#);
    let node = Pages::start(vec![list, page("/metrics", 501, "{}"), slots]).await;
    let mut listener = listen(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..eager() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.load().await, Some(EngineLoad { running: 1, ..EngineLoad::default() }));
}

#[tokio::test]
async fn models_are_asked_for_again_and_told_when_they_change() {
    let list =
        |name| page("/v1/models", 200, &format!(r#"{{"data":[{{"id":"{name}","owned_by":"vllm"}}]}}"#));
    let health = page("/health", 200, "");
    let node = Pages::start(vec![health.clone(), list("old")]).await;
    let mut listener = listen(HealthOptions { models_interval: Duration::from_millis(1), ..eager() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.models().await, named(&["old"]));
    while node.asked("/v1/models") < 5 {
        listener.check().await;
    }
    node.replace(vec![health, list("new")]);
    assert_eq!(listener.models().await, named(&["new"]), "the same list is not told twice");
}

#[tokio::test]
async fn a_node_that_comes_back_is_asked_at_once_what_it_is() {
    let health = |status| page("/health", status, "");
    let list = |owner| page("/v1/models", 200, &format!(r#"{{"data":[{{"id":"m","owned_by":"{owner}"}}]}}"#));
    let node = Pages::start(vec![health(200), list("vllm")]).await;
    // What is asked after an hour only cannot be what is told here.
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.survey().await.0, Engine::Vllm);
    node.replace(vec![health(500)]);
    while !matches!(listener.check().await, HealthCheckResult::Failed { .. }) {}
    node.replace(vec![health(200), list("sglang")]);
    let engine = listener.until(|finding| match finding {
        Finding::Engine(engine) => Some(engine),
        _ => None,
    });
    assert_eq!(engine.await, Engine::Sglang);
}

#[tokio::test]
async fn a_node_that_is_loading_is_asked_again_soon() {
    let loading = page("/v1/models", 503, "");
    let node = Pages::start(vec![page("/health", 503, ""), loading]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    while node.asked("/v1/models") < 3 {
        listener.check().await;
    }
    node.replace(vec![page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#)]);
    assert_eq!(listener.survey().await, (Engine::LlamaCpp, None, named(&["m"])));
}

#[tokio::test]
async fn every_path_is_checked_and_any_tells_what_the_node_serves() {
    let gone = crate::stub::Stub::start().await.origin();
    let list = r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#;
    let node = Pages::start(vec![page("/health", 200, ""), page("/v1/models", 200, list)]).await;
    let mut listener = listen(eager());
    listener.watch(vec![gone, node.origin()]);
    let mut failed = false;
    let mut well = false;
    let mut models = false;
    let all = listener.until(|finding| {
        match finding {
            Finding::Checked { path: Some(PathId(0)), check } => {
                failed = matches!(check, HealthCheckResult::Failed { .. });
            }
            Finding::Checked { path: Some(PathId(1)), check } => {
                well = matches!(check, HealthCheckResult::Healthy { .. })
            }
            Finding::Checked { path, .. } => panic!("nobody has path {path:?}"),
            Finding::Models(told) => models = told == named(&["m"]),
            Finding::Engine(_) | Finding::Slots(_) | Finding::Load(_) => {}
        }
        (failed && well && models).then_some(())
    });
    all.await;
}

#[tokio::test]
async fn a_node_is_called_with_its_key() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = listen(eager());
    let authorization = Some(HeaderValue::from_static("Bearer sk-node"));
    listener.monitors.watch(MonitorTarget { authorization, ..watched(vec![node.origin()]) }).unwrap();
    listener.check().await;
    assert!(node.last_request().contains("authorization: Bearer sk-node\r\n"), "{}", node.last_request());
}

#[tokio::test]
async fn nothing_is_told_of_a_node_that_was_forgotten() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = listen(eager());
    listener.monitors.watch(MonitorTarget { node: NodeId(1), ..watched(vec![node.origin()]) }).unwrap();
    assert_eq!(listener.reports.recv().await.unwrap().node, NodeId(1));
    listener.monitors.forget(NodeId(1));
    while listener.reports.try_recv().is_ok() {}
    listener.watch(vec![node.origin()]);
    for _ in 0..20 {
        listener.check().await;
    }
}

#[tokio::test]
async fn a_monitor_that_fails_comes_back() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let (tell, mut reports) = unbounded_channel();
    let failed = Arc::new(AtomicBool::new(false));
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let monitors = Monitors::start(upstream, eager(), move |report| {
        assert!(failed.swap(true, Ordering::Relaxed), "the first report fails its monitor");
        let _ = tell.send(report);
    });
    monitors.as_ref().unwrap().watch(watched(vec![node.origin()])).unwrap();
    let mut checks = 0;
    let mut engines = 0;
    while checks < 3 || engines < 1 {
        match reports.recv().await.unwrap().finding {
            Finding::Checked { .. } => checks += 1,
            Finding::Engine(_) => engines += 1,
            Finding::Models(_) | Finding::Slots(_) | Finding::Load(_) => {}
        }
    }
}

#[tokio::test]
async fn monitors_that_are_dropped_end() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = listen(eager());
    listener.watch(vec![node.origin()]);
    listener.check().await;
    let Listener { monitors, mut reports } = listener;
    drop(monitors);
    while reports.recv().await.is_some() {}
}

#[test]
fn there_is_no_monitor_without_a_runtime() {
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let refused = Monitors::start(upstream, eager(), |_| {}).map(|_| ());
    assert_eq!(refused.unwrap_err().to_string(), "no runtime to look after nodes on");
}
