//! Metrics of the simulated engine, with the names that vLLM uses.

use super::completion::Finish;
use super::slots::SlotPool;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one model.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) prompt_tokens: AtomicU64,
    pub(super) generation_tokens: AtomicU64,
    finished_stop: AtomicU64,
    finished_length: AtomicU64,
}

impl Counters {
    pub(super) fn finished(&self, finish: Finish) {
        match finish {
            // vLLM counts a tool call as `stop`.
            Finish::Stop | Finish::ToolCalls => &self.finished_stop,
            Finish::Length => &self.finished_length,
        }
        .fetch_add(1, Ordering::Relaxed);
    }
}

/// Renders the Prometheus page.
pub(super) fn text(models: &[String], slots: &SlotPool, counters: &[Counters]) -> String {
    let mut text = String::new();
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    family(&mut text, "num_requests_running", "gauge", "requests that hold a slot");
    for (index, model) in models.iter().enumerate() {
        sample(&mut text, "num_requests_running", model, "", u64::from(slots.load_of(index).running));
    }
    family(&mut text, "num_requests_waiting", "gauge", "requests that wait for a slot");
    for (index, model) in models.iter().enumerate() {
        sample(&mut text, "num_requests_waiting", model, "", u64::from(slots.load_of(index).waiting));
    }
    family(&mut text, "prompt_tokens_total", "counter", "prompt tokens processed");
    for (model, counters) in models.iter().zip(counters) {
        sample(&mut text, "prompt_tokens_total", model, "", value(&counters.prompt_tokens));
    }
    family(&mut text, "generation_tokens_total", "counter", "tokens generated");
    for (model, counters) in models.iter().zip(counters) {
        sample(&mut text, "generation_tokens_total", model, "", value(&counters.generation_tokens));
    }
    family(&mut text, "request_success_total", "counter", "requests completed");
    for (model, counters) in models.iter().zip(counters) {
        let name = "request_success_total";
        sample(&mut text, name, model, ",finished_reason=\"stop\"", value(&counters.finished_stop));
        sample(&mut text, name, model, ",finished_reason=\"length\"", value(&counters.finished_length));
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}")
        .expect("writing to a string cannot fail");
}

fn sample(text: &mut String, name: &str, model: &str, labels: &str, value: u64) {
    writeln!(text, "vllm:{name}{{model_name=\"{model}\"{labels}}} {value}")
        .expect("writing to a string cannot fail");
}
