//! Parsing of engines' load metrics: recorded pages and arbitrary bytes.

use std::time::{Duration, SystemTime};

use evenkeel_llm::{Engine, read_metrics, read_slots};
use evenkeel_pipeline::EngineLoad;
use proptest::prelude::*;
use serde_json::json;

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

const VLLM: &str = r#"# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 10734.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 5.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 2.0
vllm:num_requests_waiting{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.75
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1.75e+02
"#;

/// vLLM 0.6, where the cache gauge has another name.
const VLLM_OLD: &str = r#"vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 4.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
"#;

const SGLANG: &str = r#"# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"} 162.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",priority=""} 2826.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",priority="0"} 2000.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",priority="1"} 826.0
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:gen_throughput{model_name="meta-llama/Llama-3.1-8B-Instruct"} 86.50814177726902
"#;

const LLAMA_CPP: &str = "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 3141
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
llamacpp:n_busy_slots_per_decode 3.87
";

const TGI: &str = "# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4

# TYPE tgi_queue_size gauge
tgi_queue_size 7
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le=\"1\"} 0
tgi_request_generated_tokens_sum 8123
";

fn load(running: u32, waiting: u32, cache_used: Option<f64>) -> Option<EngineLoad> {
    Some(EngineLoad { running, waiting, cache_used, ..EngineLoad::default() })
}

const METRICS: [(Engine, &str); 5] = [
    (Engine::Vllm, VLLM),
    (Engine::Vllm, VLLM_OLD),
    (Engine::Sglang, SGLANG),
    (Engine::LlamaCpp, LLAMA_CPP),
    (Engine::Tgi, TGI),
];

#[test]
fn the_metrics_of_every_engine_are_parsed() {
    let read: Vec<_> =
        METRICS.iter().map(|(engine, text)| read_metrics(*engine, text.as_bytes(), NOW)).collect();
    assert_eq!(
        read,
        [
            load(12, 3, Some(0.75)),
            load(3, 4, Some(0.5)),
            load(162, 2_826, Some(0.28)),
            load(4, 46, None),
            load(4, 7, None),
        ]
    );
}

#[test]
fn the_metrics_of_another_engine_are_ignored() {
    assert_eq!(read_metrics(Engine::Tgi, VLLM.as_bytes(), NOW), None);
    for engine in [Engine::Ollama, Engine::LmStudio, Engine::Unknown] {
        assert_eq!(read_metrics(engine, VLLM.as_bytes(), NOW), None);
    }
}

#[test]
fn odd_lines_and_invalid_values_are_skipped() {
    let read = |text: &str| read_metrics(Engine::Vllm, text.as_bytes(), NOW);
    let running = "vllm:num_requests_running";
    assert_eq!(read(&format!("{running}{{a=\"}} 9\\\"\",b=\"{{\"}} 5 1700000000000\r\n")), load(5, 0, None));
    assert_eq!(read(&format!("  {running}\t6  ")), load(6, 0, None));
    assert_eq!(read(&format!("{running} 1e99")), load(u32::MAX, 0, None));
    for odd in [" NaN", " -1", " +Inf", " ", "", "{a=\"b\"", "{a=\"b} 5", " x", "_extra 9", "{} "] {
        assert_eq!(read(&format!("{running}{odd}\n# {running} 7\n")), None, "{odd}");
    }
}

#[test]
fn the_uptime_is_that_of_the_process_that_started_last() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_100);
    let uptime = |text: &str| {
        let text = format!("vllm:num_requests_running 1\n{text}");
        read_metrics(Engine::Vllm, text.as_bytes(), now).unwrap().uptime
    };
    let started = "process_start_time_seconds 1.70000000025e+09\n";
    assert_eq!(uptime(started), Some(Duration::from_millis(99_750)));
    assert_eq!(uptime(&format!("process_start_time_seconds 1e9\n{started}")), uptime(started));
    assert_eq!(
        uptime("process_start_time_seconds 2e9\n"),
        Some(Duration::ZERO),
        "the engine's clock is ahead"
    );
    assert_eq!(uptime(""), None);
    assert_eq!(uptime("process_start_time_seconds 1e99\n"), None);
}

#[test]
fn llama_cpps_slots_are_counted_in_both_formats() {
    assert_eq!(
        read_slots(&json!([{"id": 0, "is_processing": true}, {"is_processing": false}])),
        load(1, 0, None)
    );
    assert_eq!(read_slots(&json!([{"state": 1}, {"state": 0}, {"state": 1}])), load(2, 0, None));
    for reply in [json!({"error": "no"}), json!([1]), json!([{}])] {
        assert_eq!(read_slots(&reply), None, "{reply}");
    }
}

proptest! {
    #[test]
    fn arbitrary_metrics_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        for (engine, _) in METRICS {
            let _ = read_metrics(engine, &text, NOW);
        }
    }

    #[test]
    fn truncated_or_changed_metrics_do_not_panic(index in 0..METRICS.len(), cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (engine, text) = METRICS[index];
        let mut text = text.as_bytes()[..cut.index(text.len())].to_vec();
        if !text.is_empty() {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let _ = read_metrics(engine, &text, NOW);
    }

    #[test]
    fn unrelated_lines_change_nothing(
        index in 0..METRICS.len(),
        noise in proptest::collection::vec("[a-z_:#]{0,12}[{]?[a-z=\"\\\\,]{0,8}[}]?[ 0-9.eE+-]{0,8}", 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let (engine, text) = METRICS[index];
        let mut lines: Vec<&str> = text.lines().collect();
        let at = at.index(lines.len() + 1);
        lines.splice(at..at, noise.iter().map(String::as_str));
        let noisy = lines.join("\n");
        prop_assert_eq!(read_metrics(engine, noisy.as_bytes(), NOW), read_metrics(engine, text.as_bytes(), NOW));
    }
}
