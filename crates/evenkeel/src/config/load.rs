//! `[load_manager]`, `[connection_pool]` and `[node_cache]`.
//!
//! Names, defaults, rules and error messages are those of the router load optimization specification (docs/specs.md).

use evenkeel_policy::backpressure::{
    BackpressureConfig, ConnectionPoolConfig, InvalidConfig, LoadManagerConfig, NodeCacheConfig,
    WaitQueueConfig,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::Duration;

use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::value::{Float, Integer};

const QUANTUM: std::ops::RangeInclusive<Integer> = Integer(1)..=Integer(1_000_000_000);

/// Reads the three sections. The second value is the DRR quantum, which is also in `[load_manager]`.
pub(super) fn read(root: &mut Section<'_>) -> (LoadManagerConfig, Cost) {
    let (wait_queue, backpressure, quantum) = load_manager(&mut root.section("load_manager"));
    let connection_pool = connection_pool(&mut root.section("connection_pool"));
    let node_cache = node_cache(&mut root.section("node_cache"));
    (LoadManagerConfig { wait_queue, connection_pool, node_cache, backpressure }, quantum)
}

fn load_manager(section: &mut Section<'_>) -> (WaitQueueConfig, BackpressureConfig, Cost) {
    let queue = read_wait_queue(section, "default_timeout_secs", &WaitQueueConfig::default());
    let max_delay = Float(BackpressureConfig::default().max_delay.as_millis() as f64);
    let max_delay = section.within("max_delay_ms", max_delay, Float(0.0)..=Float(60_000.0)).as_millis();
    let quantum = section.within("quantum_tokens", Integer(500), QUANTUM);
    (queue, backpressure(&queue, max_delay), Cost(quantum.as_u64()))
}

/// Reads the size, timeout and thresholds of a wait queue.
pub(super) fn read_wait_queue(
    section: &mut Section<'_>,
    timeout_key: &'static str,
    default: &WaitQueueConfig,
) -> WaitQueueConfig {
    let max_waiting = section.read("max_waiting", Integer(default.max_waiting as i64));
    let timeout = section.read(timeout_key, secs(default.default_timeout));
    let warning = section.read("warning_threshold", Float(default.warning_threshold));
    let overload = section.read("overload_threshold", Float(default.overload_threshold));
    let queue = WaitQueueConfig {
        max_waiting: max_waiting.value.as_usize(),
        default_timeout: timeout.value.as_secs(),
        warning_threshold: warning.value.0,
        overload_threshold: overload.value.0,
    };
    for error in queue.violations() {
        let origin = match error {
            InvalidConfig::DefaultTimeout => &timeout.origin,
            InvalidConfig::WarningThreshold => &warning.origin,
            // If only the warning threshold was set, it is the one to fix.
            InvalidConfig::OverloadThreshold => origin_of_first_set(&overload, &warning),
            InvalidConfig::MaxWaiting | InvalidConfig::MaxIdlePerHost | InvalidConfig::Ttl => {
                &max_waiting.origin
            }
        };
        section.error(origin, error);
    }
    queue
}

/// Returns the backpressure settings that belong to a wait queue.
pub(super) fn backpressure(queue: &WaitQueueConfig, max_delay: Duration) -> BackpressureConfig {
    BackpressureConfig {
        max_queue_size: queue.max_waiting,
        warning_threshold: queue.warning_threshold,
        overload_threshold: queue.overload_threshold,
        max_delay,
    }
}

fn origin_of_first_set<'a, T>(first: &'a SourcedValue<T>, second: &'a SourcedValue<T>) -> &'a ValueSource {
    if first.origin == ValueSource::Default { &second.origin } else { &first.origin }
}

fn connection_pool(section: &mut Section<'_>) -> ConnectionPoolConfig {
    let default = ConnectionPoolConfig::default();
    let max_idle = section.read("max_idle_per_host", Integer(default.max_idle_per_host as i64));
    let mut duration =
        |key, default: Duration| section.within(key, secs(default), Float(0.001)..=Float(86_400.0)).as_secs();
    let pool = ConnectionPoolConfig {
        max_idle_per_host: max_idle.value.as_usize(),
        idle_timeout: duration("idle_timeout_secs", default.idle_timeout),
        connect_timeout: duration("connect_timeout_secs", default.connect_timeout),
        request_timeout: duration("request_timeout_secs", default.request_timeout),
        tcp_keepalive: duration("tcp_keepalive_secs", default.tcp_keepalive),
        tcp_nodelay: section.read("tcp_nodelay", default.tcp_nodelay).value,
    };
    if let Err(error) = pool.validate() {
        section.error(&max_idle.origin, error);
    }
    pool
}

fn node_cache(section: &mut Section<'_>) -> NodeCacheConfig {
    let default = NodeCacheConfig::default();
    let capacity = Integer(default.max_capacity as i64);
    let capacity = section.within("max_capacity", capacity, Integer(0)..=Integer(10_000_000));
    let ttl = section.read("ttl_secs", secs(default.ttl));
    let cache = NodeCacheConfig { max_capacity: capacity.as_u64(), ttl: ttl.value.as_secs() };
    if let Err(error) = cache.validate() {
        section.error(&ttl.origin, error);
    }
    cache
}

fn secs(duration: Duration) -> Float {
    Float(duration.as_secs_f64())
}
