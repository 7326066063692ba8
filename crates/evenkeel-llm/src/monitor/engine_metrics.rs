//! What engines say of their load: gauges in Prometheus' text format, or llama.cpp's slots as JSON.
//!
//! Bounds: a page is read once, from its beginning to its end; whatever is no sample of a wanted gauge is passed over,
//! and a number that cannot be counted (NaN, negative, infinite) is none. Nothing here panics or allocates.

use evenkeel_pipeline::EngineLoad;
use serde_json::Value;

use super::engine::Engine;

/// Where an engine says how loaded it is, and under which names.
struct GaugeNames {
    running: &'static str,
    waiting: &'static str,
    /// Older and newer names of the same.
    cache_used: &'static [&'static str],
}

/// Names the gauges of an engine; `None` for those that have none.
fn gauges(engine: Engine) -> Option<GaugeNames> {
    match engine {
        // The simulated engine speaks as vLLM does.
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

/// Tells whether an engine says anywhere how loaded it is.
pub(super) fn has_gauges(engine: Engine) -> bool {
    gauges(engine).is_some()
}

/// Reads a page of metrics; `None` if it does not say how many requests the engine works on.
///
/// An engine of several parts has a sample for each: counts add up, and the fullest cache counts.
pub fn read_metrics(engine: Engine, page: &[u8]) -> Option<EngineLoad> {
    let names = gauges(engine)?;
    let mut running = None;
    let mut waiting = 0.0;
    let mut cache_used = None;
    for line in page.split(|byte| *byte == b'\n') {
        let Some((name, value)) = sample(line) else { continue };
        if name == names.running.as_bytes() {
            running = Some(running.unwrap_or(0.0) + value);
        } else if name == names.waiting.as_bytes() {
            waiting += value;
        } else if names.cache_used.iter().any(|cache| name == cache.as_bytes()) {
            cache_used = Some(value.max(cache_used.unwrap_or(0.0)));
        }
    }
    // Casts saturate.
    running.map(|running| EngineLoad { running: running as u32, waiting: waiting as u32, cache_used })
}

/// Reads llama.cpp's `/slots`: a list, of which some are at work.
pub fn read_slots(said: &Value) -> Option<EngineLoad> {
    let is_busy = |slot: &Value| {
        // Older builds have a state, of which 0 is idle.
        slot["is_processing"].as_bool().or_else(|| slot["state"].as_u64().map(|state| state != 0))
    };
    let slots = said.as_array()?;
    let busy = slots.iter().map(is_busy).collect::<Option<Vec<bool>>>()?;
    let running = u32::try_from(busy.iter().filter(|busy| **busy).count()).unwrap_or(u32::MAX);
    Some(EngineLoad { running, ..EngineLoad::default() })
}

/// Takes a line apart into a name and a number that can be counted.
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
    (value.is_finite() && 0.0 <= value).then_some((name, value))
}

/// What follows the labels of a sample; `None` where they do not end, or tell of a part of a sum that is told, too.
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

/// SGLang tells its queue as a whole, with an empty priority, and each priority's besides.
fn is_part(labels: &[u8]) -> bool {
    const PRIORITY: &[u8] = b"priority=\"";
    let at = labels.windows(PRIORITY.len()).position(|window| window == PRIORITY);
    at.is_some_and(|at| labels.get(at + PRIORITY.len()) != Some(&b'"'))
}
