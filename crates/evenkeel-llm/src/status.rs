//! `GET /api/load-status` and `GET /api/nodes`: the current state as JSON.

use evenkeel_pipeline::{
    AdminState, BreakerState, CacheStats, Class, ClassStatus, Counts, EngineLoad, ModelId, ModelStatus,
    NodeStatus, OptimizedLoadManager, PathStatus, PoolStats, TenantStatus,
};
use evenkeel_policy::backpressure::BackpressureState;
use evenkeel_policy::concurrency_limit::LimitStatus;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::path::PathState;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use serde_json::{Value, json};

use crate::api::LlmApi;
use crate::models::json_response;
use crate::monitor::Engine;

/// Returns the state of the pipeline, its nodes and its tenants.
pub(crate) fn load(llm: &LlmApi, _: &ServerRequest) -> Result<Response, ApiError> {
    Ok(json_response(&load_json(llm)))
}

/// Lists the nodes.
pub(crate) fn nodes(llm: &LlmApi, _: &ServerRequest) -> Result<Response, ApiError> {
    let now = llm.scheduler.now();
    let nodes = llm.scheduler.inspect(|pipeline| pipeline.status().nodes);
    let nodes: Vec<_> = nodes.iter().map(|node| node_json(llm, node, now)).collect();
    Ok(json_response(&json!({"nodes": nodes})))
}

/// Describes the nodes with several paths.
pub(crate) fn paths_json(llm: &LlmApi) -> Vec<Value> {
    let now = llm.scheduler.now();
    let nodes = llm.scheduler.inspect(|pipeline| pipeline.status().nodes);
    let nodes = nodes.iter().filter(|node| !node.paths.is_empty()).map(|node| node_json(llm, node, now));
    nodes.map(|node| json!({"name": node["name"], "paths": node["paths"]})).collect()
}

fn load_json(llm: &LlmApi) -> Value {
    let now = llm.scheduler.now();
    let status = llm.scheduler.inspect(OptimizedLoadManager::status);
    json!({
        "state": state(status.state),
        "load_ratio": status.load_ratio,
        "waiting": status.waiting,
        "in_flight": status.in_flight,
        "pool": pool_json(llm.upstream.stats()),
        "cache": cache_json(status.cache),
        "counts": counts_json(&status.counts),
        "models": status.models.iter().map(|model| model_json(llm, model)).collect::<Vec<_>>(),
        "nodes": status.nodes.iter().map(|node| node_json(llm, node, now)).collect::<Vec<_>>(),
        "tenants": status.tenants.iter().map(|tenant| tenant_json(llm, tenant)).collect::<Vec<_>>(),
    })
}

fn pool_json(stats: PoolStats) -> Value {
    let PoolStats { active_connections, idle_connections, connections_created, connections_reused } = stats;
    json!({
        "active_connections": active_connections,
        "idle_connections": idle_connections,
        "connections_created": connections_created,
        "connections_reused": connections_reused,
    })
}

fn cache_json(stats: CacheStats) -> Value {
    let CacheStats { hits, misses, size, invalidations } = stats;
    json!({"hits": hits, "misses": misses, "size": size, "invalidations": invalidations})
}

fn counts_json(counts: &Counts) -> Value {
    json!({
        "dispatched": counts.dispatched,
        "finished": counts.finished,
        "queue_full": counts.queue_full,
        "evicted": counts.evicted,
        "timed_out": counts.timed_out,
        "would_miss_deadline": counts.would_miss_deadline,
        "refused": counts.rejected,
        "cancelled": counts.cancelled,
        "retried": counts.retried,
    })
}

fn model_json(llm: &LlmApi, status: &ModelStatus) -> Value {
    json!({
        "model": model_name(llm, status.model),
        "state": state(status.state),
        "load_ratio": status.load_ratio,
        "waiting": status.waiting,
        "background": status.background,
        "cost_per_second": status.rate,
    })
}

fn node_json(llm: &LlmApi, status: &NodeStatus, now: Instant) -> Value {
    let node = llm.nodes.get(status.node);
    let name = match &node {
        Some(node) => node.options.name.clone(),
        // A node that is being removed has left the registry.
        None => llm
            .scheduler
            .observer()
            .metrics()
            .node_name(status.node)
            .map_or("leaving".to_owned(), |name| name.to_string()),
    };
    let urls: Vec<String> = node.iter().flat_map(|node| node.origins()).map(ToString::to_string).collect();
    let remaining = |until: Instant| millis(until.since(now));
    let (breaker, open_ms) = match status.breaker {
        BreakerState::Closed => ("closed", None),
        BreakerState::HalfOpen => ("half_open", None),
        BreakerState::Open { until, .. } => ("open", Some(remaining(until))),
    };
    let tenant_name = |id: &TenantId| llm.tenants.get(*id).map(|tenant| tenant.settings.name.clone());
    let closed_to: Vec<String> = status.closed_to.iter().filter_map(tenant_name).collect();
    json!({
        "name": name,
        "engine": llm.nodes.engine(status.node).map(Engine::name),
        "urls": urls,
        "via": node.as_ref().and_then(|node| node.options.via.clone()),
        "extra_paths": node.as_ref().map(|node| node.options.extra_paths.clone()).unwrap_or_default(),
        "inject_stream_options": node.as_ref().is_none_or(|node| node.options.inject_stream_options),
        "health_error": llm.nodes.health_error(status.node),
        "slots": status.slots,
        "adaptive": status.limit.map(limit_json),
        "engine_load": status.engine.map(|load| engine_json(load, status.external_load)),
        "busy": status.busy,
        "in_flight_cost": status.in_flight.0,
        "weight": status.weight.as_f64(),
        "admin_state": admin_state(status.admin_state),
        "breaker": breaker,
        "open_ms": open_ms,
        "cooldown_ms": status.cooldown_until.map(remaining),
        "closed_to": closed_to,
        "unreachable_ms": status.unreachable_since.map(|since| millis(now.since(since))),
        "p95_ms": status.p95.map(millis),
        "error_rate": status.error_rate,
        "models": status.models.iter().map(|model| model_name(llm, *model)).collect::<Vec<_>>(),
        "paths": status.paths.iter().map(|path| path_json(&urls, path)).collect::<Vec<_>>(),
    })
}

fn limit_json(limit: LimitStatus) -> Value {
    json!({"limit": limit.limit, "idle_first_token_ms": limit.baseline_ms, "first_token_ms": limit.recent_ms})
}

fn engine_json(load: EngineLoad, external: u32) -> Value {
    let EngineLoad { running, waiting, cache_used, uptime } = load;
    json!({
        "running": running,
        "waiting": waiting,
        "cache_used": cache_used,
        "external": external,
        "uptime_sec": uptime.map(|uptime| uptime.as_secs()),
    })
}

fn path_json(urls: &[String], status: &PathStatus) -> Value {
    json!({
        "url": urls.get(status.path.index()),
        "state": path_state(status.state),
        "rtt_ms": status.rtt.map(millis),
        "weight": status.weight,
        "in_flight": status.in_flight,
    })
}

fn tenant_json(llm: &LlmApi, status: &TenantStatus) -> Value {
    let unlimited = status.concurrency_max == u32::MAX;
    json!({
        "name": tenant_name(llm, status.tenant),
        "weight": status.weight.as_f64(),
        "concurrency_max": if unlimited { Value::Null } else { status.concurrency_max.into() },
        "waiting": status.waiting,
        "in_flight": status.in_flight,
        "in_flight_cost": status.in_flight_cost.0,
        "served_cost": status.served.0,
        "classes": {
            "high": class_json(&status.classes[Class::High.index()]),
            "normal": class_json(&status.classes[Class::Normal.index()]),
            "low": class_json(&status.classes[Class::Low.index()]),
            "background": class_json(&status.background),
        },
    })
}

fn class_json(status: &ClassStatus) -> Value {
    json!({"waiting": status.waiting, "served_cost": status.served.0})
}

fn tenant_name(llm: &LlmApi, id: TenantId) -> String {
    let known = llm.tenants.get(id).map(|tenant| tenant.settings.name.clone());
    known
        .unwrap_or_else(|| llm.scheduler.observer().metrics().tenant_name(id).unwrap_or("unnamed").to_owned())
}

fn model_name(llm: &LlmApi, model: ModelId) -> String {
    llm.nodes.model_name(model).map_or_else(String::new, |name| name.to_string())
}

fn state(state: BackpressureState) -> &'static str {
    match state {
        BackpressureState::Normal => "normal",
        BackpressureState::Warning => "warning",
        BackpressureState::Overloaded => "overloaded",
    }
}

fn admin_state(state: AdminState) -> &'static str {
    match state {
        AdminState::Serving => "serving",
        AdminState::Draining => "draining",
        AdminState::Removing => "leaving",
    }
}

fn path_state(state: PathState) -> &'static str {
    match state {
        PathState::Inactive => "inactive",
        PathState::Probing => "probing",
        PathState::Active => "active",
        PathState::Degraded => "degraded",
        PathState::Recovery => "recovery",
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
