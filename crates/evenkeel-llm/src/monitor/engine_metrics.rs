//! Load metrics of engines: gauges in Prometheus' text format, or llama.cpp's slots as JSON.
//!
//! Guarantees: one pass over the text; lines other than samples of the wanted gauges are skipped, and so are NaN,
//! negative and infinite values. Nothing here panics or allocates.

use std::time::{Duration, SystemTime};

use evenkeel_pipeline::EngineLoad;
use serde_json::Value;

use super::engine::Engine;

/// Gauge of a process's start, in seconds since the epoch, which Prometheus' client libraries export.
const START_TIME: &[u8] = b"process_start_time_seconds";

/// Names of an engine's load gauges.
struct GaugeNames {
    running: &'static str,
    waiting: &'static str,
    /// Alternative names, by version.
    cache_used: &'static [&'static str],
}

/// Returns the gauges of an engine, if it has any.
fn gauge_names(engine: Engine) -> Option<GaugeNames> {
    match engine {
        // The simulated engine has vLLM's metrics.
        Engine::Vllm | Engine::SimNode => Some(GaugeNames {
            running: "vllm:num_requests_running",
            waiting: "vllm:num_requests_waiting",
            cache_used: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
        }),
        Engine::Sglang => Some(GaugeNames {
            running: "sglang:num_running_reqs",
            waiting: "sglang:num_queue_reqs",
            cache_used: &["sglang:token_usage"],
        }),
        Engine::LlamaCpp => Some(GaugeNames {
            running: "llamacpp:requests_processing",
            waiting: "llamacpp:requests_deferred",
            cache_used: &["llamacpp:kv_cache_usage_ratio"],
        }),
        Engine::Tgi => {
            Some(GaugeNames { running: "tgi_batch_current_size", waiting: "tgi_queue_size", cache_used: &[] })
        }
        Engine::Ollama | Engine::LmStudio | Engine::Unknown => None,
    }
}

/// Reports whether an engine has load gauges.
pub(super) fn has_gauges(engine: Engine) -> bool {
    gauge_names(engine).is_some()
}

/// Parses an engine's metrics; `None` if the number of running requests is missing.
///
/// An engine with several workers has a sample for each: counts are added, and `cache_used` is the highest value.
/// The uptime is that of the process which started last, by `process_start_time_seconds`.
pub fn read_metrics(engine: Engine, text: &[u8], now: SystemTime) -> Option<EngineLoad> {
    let names = gauge_names(engine)?;
    let mut running = None;
    let mut waiting = 0.0;
    let mut cache_used = None;
    let mut started_at: Option<f64> = None;
    for line in text.split(|byte| *byte == b'\n') {
        let Some((name, value)) = sample(line) else { continue };
        if name == names.running.as_bytes() {
            running = Some(running.unwrap_or(0.0) + value);
        } else if name == names.waiting.as_bytes() {
            waiting += value;
        } else if names.cache_used.iter().any(|cache| name == cache.as_bytes()) {
            cache_used = Some(value.max(cache_used.unwrap_or(0.0)));
        } else if name == START_TIME {
            started_at = Some(value.max(started_at.unwrap_or(0.0)));
        }
    }
    // Casts saturate.
    Some(EngineLoad {
        running: running? as u32,
        waiting: waiting as u32,
        cache_used,
        uptime: started_at.and_then(|started_at| uptime(started_at, now)),
    })
}

/// Returns the time since `started_at`, in seconds since the epoch; none if the engine's clock is ahead.
fn uptime(started_at: f64, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(now.saturating_sub(Duration::try_from_secs_f64(started_at).ok()?))
}

/// Parses llama.cpp's `/slots`: counts the slots that are processing.
pub fn read_slots(reply: &Value) -> Option<EngineLoad> {
    let is_busy = |slot: &Value| {
        // Older builds have `state`, where 0 is idle.
        slot["is_processing"].as_bool().or_else(|| slot["state"].as_u64().map(|state| state != 0))
    };
    let slots = reply.as_array()?;
    let busy = slots.iter().map(is_busy).collect::<Option<Vec<bool>>>()?;
    let running = u32::try_from(busy.iter().filter(|busy| **busy).count()).unwrap_or(u32::MAX);
    Some(EngineLoad { running, ..EngineLoad::default() })
}

/// Parses a sample line into name and value; `None` unless the value is finite and not negative.
fn sample(line: &[u8]) -> Option<(&[u8], f64)> {
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| *byte == b'{' || byte.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name[0] == b'#' {
        return None;
    }
    let rest = match rest.strip_prefix(b"{") {
        Some(labels) => after_labels(labels)?,
        None => rest,
    };
    let value = rest.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    let value: f64 = core::str::from_utf8(value).ok()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((name, value))
}

/// Returns the text after a sample's labels; `None` if they have no closing brace, or if another sample already
/// includes this one.
fn after_labels(labels: &[u8]) -> Option<&[u8]> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in labels.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => {
                let (within, after) = labels.split_at(at);
                return (!is_part(within)).then_some(&after[1..]);
            }
            _ => {}
        }
    }
    None
}

/// Reports whether a sample is SGLang's queue length for one priority; the total has an empty priority.
fn is_part(labels: &[u8]) -> bool {
    const PRIORITY: &[u8] = b"priority=\"";
    let at = labels.windows(PRIORITY.len()).position(|window| window == PRIORITY);
    at.is_some_and(|at| labels.get(at + PRIORITY.len()) != Some(&b'"'))
}
