//! Metrics of the simulated engine, with vLLM's metric names.

use super::completion::Finish;
use super::slots::SlotPool;
use evenkeel_policy::exposition::{MetricKind, SampleValue, SeriesName, write_head};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Prometheus counters of one model.
#[derive(Debug, Default)]
pub(super) struct ModelCounters {
    pub(super) prompt_tokens: AtomicU64,
    pub(super) generation_tokens: AtomicU64,
    finished_stop: AtomicU64,
    finished_length: AtomicU64,
}

impl ModelCounters {
    pub(super) fn count_finished(&self, finish: Finish) {
        match finish {
            // vLLM counts a tool call as `stop`.
            Finish::Stop | Finish::ToolCalls => &self.finished_stop,
            Finish::Length => &self.finished_length,
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

/// Renders the metrics in the Prometheus text format.
///
/// `started_at` is in seconds since the epoch.
pub(super) fn render(
    models: &[String],
    slots: &SlotPool,
    counters: &[ModelCounters],
    started_at: f64,
) -> String {
    let mut text = String::new();
    render_into(&mut text, models, slots, counters, started_at).expect("writing to a string cannot fail");
    text
}

fn render_into(
    out: &mut String,
    models: &[String],
    slots: &SlotPool,
    counters: &[ModelCounters],
    started_at: f64,
) -> fmt::Result {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    write_head(out, "vllm:num_requests_running", Some("requests being processed"), MetricKind::Gauge)?;
    for (index, model) in models.iter().enumerate() {
        write_sample(out, "vllm:num_requests_running", model, None, u64::from(slots.load_of(index).running))?;
    }
    write_head(
        out,
        "vllm:num_requests_waiting",
        Some("requests waiting to be processed"),
        MetricKind::Gauge,
    )?;
    for (index, model) in models.iter().enumerate() {
        write_sample(out, "vllm:num_requests_waiting", model, None, u64::from(slots.load_of(index).waiting))?;
    }
    write_head(out, "vllm:prompt_tokens_total", Some("prompt tokens processed"), MetricKind::Counter)?;
    for (model, counters) in models.iter().zip(counters) {
        write_sample(out, "vllm:prompt_tokens_total", model, None, value(&counters.prompt_tokens))?;
    }
    write_head(out, "vllm:generation_tokens_total", Some("tokens generated"), MetricKind::Counter)?;
    for (model, counters) in models.iter().zip(counters) {
        write_sample(out, "vllm:generation_tokens_total", model, None, value(&counters.generation_tokens))?;
    }
    let name = "process_start_time_seconds";
    write_head(out, name, Some("start of the process since the epoch"), MetricKind::Gauge)?;
    SeriesName { name, labels: [].into_iter() }.write_sample(out, SampleValue::Float(started_at))?;
    let name = "vllm:request_success_total";
    write_head(out, name, Some("requests completed"), MetricKind::Counter)?;
    for (model, counters) in models.iter().zip(counters) {
        write_sample(out, name, model, Some("stop"), value(&counters.finished_stop))?;
        write_sample(out, name, model, Some("length"), value(&counters.finished_length))?;
    }
    Ok(())
}

fn write_sample(
    out: &mut String,
    name: &str,
    model: &str,
    finished_reason: Option<&str>,
    value: u64,
) -> fmt::Result {
    let reason = finished_reason.map(|reason| ("finished_reason", reason));
    let labels = core::iter::once(("model_name", model)).chain(reason);
    SeriesName { name, labels }.write_sample(out, SampleValue::Count(value))
}
