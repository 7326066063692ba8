//! Monitors: their requests and their reports.

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

use crate::pages::{Page, Pages, hanging_page, page};

const NODE: NodeId = NodeId(7);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns options that check as fast as possible, with a timeout that is never reached.
fn fast_checks() -> HealthOptions {
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

fn start_monitors(health: HealthOptions) -> Listener {
    let (sender, reports) = unbounded_channel();
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let monitors = Monitors::start(upstream, health, move |report| {
        let _ = sender.send(report);
    });
    Listener { monitors: monitors.unwrap(), reports }
}

fn target(origins: Vec<Origin>) -> MonitorTarget {
    MonitorTarget { node: NODE, origins, authorization: None }
}

impl Listener {
    fn watch(&self, origins: Vec<Origin>) {
        self.monitors.watch(target(origins)).unwrap();
    }

    /// Waits for the first finding that `select` accepts.
    async fn until<T>(&mut self, mut select: impl FnMut(Finding) -> Option<T>) -> T {
        loop {
            let report = self.reports.recv().await.expect("the monitors are running");
            assert_eq!(report.node, NODE);
            if let Some(found) = select(report.finding) {
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

    /// Waits for all findings of one discovery.
    async fn discovery(&mut self) -> (Engine, Option<u32>, Vec<String>) {
        let mut engine = None;
        let mut slots = None;
        let models = self.until(|finding| match finding {
            Finding::Engine(reported) => {
                engine = Some(reported);
                None
            }
            Finding::Slots(reported) => {
                slots = Some(reported);
                None
            }
            Finding::Models(models) => Some(models),
            Finding::Checked { .. } | Finding::Load(_) => None,
        });
        let models = models.await;
        (engine.expect("the engine is reported before its models"), slots, models)
    }
}

async fn discover(pages: Vec<Page>) -> (Engine, Option<u32>, Vec<String>) {
    let node = Pages::start(pages).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    listener.discovery().await
}

fn model_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test]
async fn engines_are_identified_by_the_owner_of_their_models() {
    let owners = [
        ("vllm", Engine::Vllm),
        ("sglang", Engine::Sglang),
        ("organization_owner", Engine::LmStudio),
        ("evenkeel-sim-node", Engine::SimNode),
    ];
    for (owner, engine) in owners {
        let list = format!(r#"{{"object":"list","data":[{{"id":"m","owned_by":"{owner}"}}]}}"#);
        let found = discover(vec![page("/v1/models", 200, &list)]).await;
        assert_eq!(found, (engine, None, model_names(&["m"])));
    }
}

#[tokio::test]
async fn llama_cpp_is_identified_by_its_header_and_reports_its_slots() {
    let pages = vec![
        page("/v1/models", 200, r#"{"data":[{"id":"gguf"}]}"#).with("server: llama.cpp"),
        page("/props", 200, r#"{"total_slots":4,"chat_template":""}"#),
    ];
    assert_eq!(discover(pages).await, (Engine::LlamaCpp, Some(4), model_names(&["gguf"])));
}

#[tokio::test]
async fn ollama_is_identified_by_its_version_or_its_tags() {
    let list = r#"{"data":[{"id":"qwen:latest","owned_by":"library"}]}"#;
    let pages = vec![page("/v1/models", 200, list), page("/api/version", 200, r#"{"version":"0.9.1"}"#)];
    assert_eq!(discover(pages).await, (Engine::Ollama, None, model_names(&["qwen:latest"])));
    let pages = vec![page("/api/tags", 200, r#"{"models":[{"name":"old:7b"}]}"#)];
    assert_eq!(discover(pages).await, (Engine::Ollama, None, model_names(&["old:7b"])));
}

#[tokio::test]
async fn tgi_is_identified_by_its_info_and_reports_its_slots() {
    let list = r#"{"data":[{"id":"org/m","owned_by":"org/m"}]}"#;
    let info = r#"{"model_id":"org/m","max_concurrent_requests":128,"version":"3"}"#;
    let pages = vec![page("/v1/models", 200, list), page("/info", 200, info)];
    assert_eq!(discover(pages).await, (Engine::Tgi, Some(128), model_names(&["org/m"])));
}

#[tokio::test]
async fn other_engines_are_identified_by_fingerprints() {
    let list = r#"{"data":[{"id":"m","owned_by":"me"}]}"#;
    let fingerprints = [
        ("/get_model_info", r#"{"model_path":"m","is_generation":true}"#, Engine::Sglang),
        ("/version", r#"{"version":"0.11.0"}"#, Engine::Vllm),
        ("/version", "not JSON", Engine::Unknown),
    ];
    for (path, reply, engine) in fingerprints {
        let pages = vec![page("/v1/models", 200, list), page(path, 200, reply)];
        assert_eq!(discover(pages).await, (engine, None, model_names(&["m"])));
    }
}

#[tokio::test]
async fn a_recognition_probe_that_hangs_does_not_hide_the_models() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m"}]}"#);
    for hanging in ["/api/version", "/props", "/version"] {
        let node = Pages::start(vec![page("/health", 200, ""), list.clone(), hanging_page(hanging)]).await;
        let timeout = Duration::from_millis(50);
        let mut listener = start_monitors(HealthOptions { timeout, ..fast_checks() });
        listener.watch(vec![node.origin()]);
        assert_eq!(listener.models().await, model_names(&["m"]), "{hanging} hangs");
    }
}

#[tokio::test]
async fn a_responding_node_is_healthy() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    for _ in 0..3 {
        assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
    }
}

#[tokio::test]
async fn a_node_without_a_health_endpoint_is_checked_by_its_model_list() {
    let list = page("/v1/models", 200, r#"{"data":[]}"#);
    let node = Pages::start(vec![list]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    for _ in 0..5 {
        assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
    }
    assert_eq!(node.request_count("/health"), 1, "the missing endpoint is requested once");
    assert!(node.request_count("/v1/models") >= 5);
}

#[tokio::test]
async fn an_overloaded_node_has_not_failed_and_one_with_a_server_error_has() {
    for status in [429, 503] {
        let node = Pages::start(vec![page("/health", status, "")]).await;
        let mut listener = start_monitors(fast_checks());
        listener.watch(vec![node.origin()]);
        assert!(matches!(listener.check().await, HealthCheckResult::Busy { .. }));
    }
    let node = Pages::start(vec![page("/health", 500, "")]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
}

#[tokio::test]
async fn an_unreachable_node_fails_and_a_silent_one_times_out() {
    let closed = crate::stub::Stub::start().await.origin();
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![closed]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
    let silent = crate::stub::Stub::start().await;
    let mut listener = start_monitors(HealthOptions { timeout: Duration::from_millis(1), ..fast_checks() });
    listener.watch(vec![silent.origin()]);
    assert_eq!(listener.check().await, HealthCheckResult::TimedOut);
}

#[tokio::test]
async fn a_reply_over_the_limit_fails() {
    let long = "x".repeat((4 << 20) + 1);
    let node = Pages::start(vec![page("/health", 200, &long)]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    assert!(matches!(listener.check().await, HealthCheckResult::Failed { .. }));
}

#[tokio::test]
async fn checks_are_an_interval_apart() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let interval = Duration::from_secs(5);
    let mut listener = start_monitors(HealthOptions { interval, ..fast_checks() });
    listener.watch(vec![node.origin()]);
    listener.check().await;
    pause();
    for _ in 0..3 {
        let started = Instant::now();
        listener.check().await;
        assert!(started.elapsed() >= interval - interval / 100, "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn an_engine_that_stops_reporting_its_load_has_no_load_and_stays_healthy() {
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
    let mut listener =
        start_monitors(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..fast_checks() });
    listener.watch(vec![node.origin()]);
    let load = |running| Some(EngineLoad { running, waiting: 2, ..EngineLoad::default() });
    assert_eq!(listener.load().await, load(3));
    node.replace(vec![health.clone(), list.clone(), metrics(9)]);
    while listener.load().await != load(9) {}
    node.replace(vec![health, list]);
    while listener.load().await.is_some() {}
    assert!(matches!(listener.check().await, HealthCheckResult::Healthy { .. }));
}

#[tokio::test]
async fn an_unknown_engine_is_not_scraped() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"someone"}]}"#);
    let node = Pages::start(vec![page("/health", 200, ""), list]).await;
    let mut listener =
        start_monitors(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..fast_checks() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.models().await, model_names(&["m"]));
    for _ in 0..20 {
        listener.check().await;
    }
    assert_eq!(node.request_count("/metrics"), 0);
}

#[tokio::test]
async fn llama_cpp_without_metrics_is_scraped_by_its_slots() {
    let list = page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#);
    let slots = page("/slots", 200, r#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]"#);
    let node = Pages::start(vec![list, page("/metrics", 501, "{}"), slots]).await;
    let mut listener =
        start_monitors(HealthOptions { load_interval: Some(Duration::from_millis(1)), ..fast_checks() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.load().await, Some(EngineLoad { running: 1, ..EngineLoad::default() }));
}

#[tokio::test]
async fn models_are_rediscovered_and_reported_on_change() {
    let list =
        |name| page("/v1/models", 200, &format!(r#"{{"data":[{{"id":"{name}","owned_by":"vllm"}}]}}"#));
    let health = page("/health", 200, "");
    let node = Pages::start(vec![health.clone(), list("old")]).await;
    let mut listener =
        start_monitors(HealthOptions { models_interval: Duration::from_millis(1), ..fast_checks() });
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.models().await, model_names(&["old"]));
    while node.request_count("/v1/models") < 5 {
        listener.check().await;
    }
    node.replace(vec![health, list("new")]);
    assert_eq!(listener.models().await, model_names(&["new"]), "the same list is not reported twice");
}

#[tokio::test]
async fn a_recovered_node_is_rediscovered_at_once() {
    let health = |status| page("/health", status, "");
    let list = |owner| page("/v1/models", 200, &format!(r#"{{"data":[{{"id":"m","owned_by":"{owner}"}}]}}"#));
    let node = Pages::start(vec![health(200), list("vllm")]).await;
    // The regular discovery runs only after an hour.
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    assert_eq!(listener.discovery().await.0, Engine::Vllm);
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
async fn a_node_that_is_still_loading_is_rediscovered_soon() {
    let loading = page("/v1/models", 503, "");
    let node = Pages::start(vec![page("/health", 503, ""), loading]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    while node.request_count("/v1/models") < 3 {
        listener.check().await;
    }
    node.replace(vec![page("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#)]);
    assert_eq!(listener.discovery().await, (Engine::LlamaCpp, None, model_names(&["m"])));
}

#[tokio::test]
async fn every_path_is_checked_and_any_of_them_serves_discovery() {
    let closed = crate::stub::Stub::start().await.origin();
    let list = r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#;
    let node = Pages::start(vec![page("/health", 200, ""), page("/v1/models", 200, list)]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![closed, node.origin()]);
    let mut failed = false;
    let mut healthy = false;
    let mut models = false;
    let all = listener.until(|finding| {
        match finding {
            Finding::Checked { path: Some(PathId(0)), check } => {
                failed = matches!(check, HealthCheckResult::Failed { .. });
            }
            Finding::Checked { path: Some(PathId(1)), check } => {
                healthy = matches!(check, HealthCheckResult::Healthy { .. });
            }
            Finding::Checked { path, .. } => panic!("unknown path {path:?}"),
            Finding::Models(reported) => models = reported == model_names(&["m"]),
            Finding::Engine(_) | Finding::Slots(_) | Finding::Load(_) => {}
        }
        (failed && healthy && models).then_some(())
    });
    all.await;
}

#[tokio::test]
async fn a_node_gets_its_api_key() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = start_monitors(fast_checks());
    let authorization = Some(HeaderValue::from_static("Bearer sk-node"));
    listener.monitors.watch(MonitorTarget { authorization, ..target(vec![node.origin()]) }).unwrap();
    listener.check().await;
    assert!(node.last_request().contains("authorization: Bearer sk-node\r\n"), "{}", node.last_request());
}

#[tokio::test]
async fn a_forgotten_node_is_not_reported() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = start_monitors(fast_checks());
    listener.monitors.watch(MonitorTarget { node: NodeId(1), ..target(vec![node.origin()]) }).unwrap();
    assert_eq!(listener.reports.recv().await.unwrap().node, NodeId(1));
    listener.monitors.forget(NodeId(1));
    while listener.reports.try_recv().is_ok() {}
    listener.watch(vec![node.origin()]);
    for _ in 0..20 {
        listener.check().await;
    }
}

#[tokio::test]
async fn a_failed_monitor_is_restarted() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let (sender, mut reports) = unbounded_channel();
    let failed = Arc::new(AtomicBool::new(false));
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let monitors = Monitors::start(upstream, fast_checks(), move |report| {
        assert!(failed.swap(true, Ordering::Relaxed), "panics on purpose, so that the monitor fails");
        let _ = sender.send(report);
    });
    monitors.as_ref().unwrap().watch(target(vec![node.origin()])).unwrap();
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
async fn dropping_the_monitors_ends_their_reports() {
    let node = Pages::start(vec![page("/health", 200, "")]).await;
    let mut listener = start_monitors(fast_checks());
    listener.watch(vec![node.origin()]);
    listener.check().await;
    let Listener { monitors, mut reports } = listener;
    drop(monitors);
    while reports.recv().await.is_some() {}
}

#[test]
fn monitors_need_a_runtime() {
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    let result = Monitors::start(upstream, fast_checks(), |_| {}).map(|_| ());
    assert_eq!(result.unwrap_err().to_string(), "monitors need a Tokio runtime");
}
