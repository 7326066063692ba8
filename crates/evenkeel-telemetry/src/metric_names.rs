//! The names of all metrics of this crate, each with what it tells.
//!
//! Those of the specifications are kept to the letter: `llm_router_*` of seed 001, `nyx_*` of seed 000. Those of seed
//! 004 are the actors' own, and come to the page as a source.

use crate::family::MetricDesc;

macro_rules! metrics {
    ($($name:ident = $text:literal: $help:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`: ", $help, ".")]
            pub const $name: MetricDesc = MetricDesc::new($text, $help);
        )*

        /// Every name with its help, in the order of this page.
        pub const ALL: &[MetricDesc] = &[$($name),*];
    };
}

metrics! {
    QUEUE_SIZE = "llm_router_queue_size": "requests that wait";
    REQUEST_DURATION_SECONDS = "llm_router_request_duration_seconds":
        "from a request's arrival to the end of its answer";
    BACKPRESSURE_REJECTIONS_TOTAL = "llm_router_backpressure_rejections_total":
        "requests turned away or pushed out because the queue was full";
    CACHE_HITS_TOTAL = "llm_router_cache_hits_total": "requests whose node was remembered and could take them";
    CACHE_MISSES_TOTAL = "llm_router_cache_misses_total": "requests whose node had to be chosen";
    POOL_CONNECTIONS = "llm_router_pool_connections": "connections to nodes, active and idle";

    PATH_RTT_SECONDS = "nyx_multipath_path_rtt_seconds": "round trips over paths";
    PATH_ACTIVATED_TOTAL = "nyx_multipath_path_activated_total": "times a path came into use";
    PATH_DEACTIVATED_TOTAL = "nyx_multipath_path_deactivated_total": "times a path went out of use";
    ACTIVE_PATHS = "nyx_multipath_active_paths": "paths in use";
    WEIGHT_RATIO_DEVIATION = "nyx_wrr_weight_ratio_deviation":
        "mean deviation of the paths' shares of picks from their weights' shares";
    REORDER_DELAY_SECONDS = "nyx_multipath_reorder_delay_seconds": "how long data waited for data sent before it";
    REORDER_BUFFER_UTILIZATION = "nyx_multipath_reorder_buffer_utilization":
        "the part of a link's reorder buffer that is in use";

    ACCEPTED_TOTAL = "evenkeel_accepted_total": "requests that came in, by pool and tenant";
    ADMITTED_TOTAL = "evenkeel_admitted_total": "requests that got a place to wait, by pool and tenant";
    DELAYED_TOTAL = "evenkeel_delayed_total": "requests slowed down before they got a place, by pool and tenant";
    REJECTED_TOTAL = "evenkeel_rejected_total": "requests turned away, by pool, tenant and reason";
    PUSHED_OUT_TOTAL = "evenkeel_pushed_out_total":
        "requests that made room for a tenant below its share, by pool and tenant";
    CANCELLED_TOTAL = "evenkeel_cancelled_total": "requests whose asker went while they waited, by pool and tenant";
    DISPATCHED_TOTAL = "evenkeel_dispatched_total": "slots given to requests, by pool and node";
    WAIT_SECONDS = "evenkeel_wait_seconds": "how long requests waited for their slot, by pool and tenant";
    FIRST_BYTE_SECONDS = "evenkeel_first_byte_seconds":
        "from the slot to the first byte of the answer, by pool and node";
    FAILED_OVER_TOTAL = "evenkeel_failed_over_total":
        "attempts that failed and were made again elsewhere, by pool and failure";
    FINISHED_TOTAL = "evenkeel_finished_total": "requests that ended with a slot, by pool, tenant and ending";
    COST_UNITS_TOTAL = "evenkeel_cost_units_total": "what finished requests cost, by pool and tenant";
    NODE_CHANGES_TOTAL = "evenkeel_node_changes_total": "changes of nodes, by pool, node and what they became";
    NODE_SLOTS = "evenkeel_node_slots": "requests that a node may have at once, by pool and node";
    NODE_BUSY = "evenkeel_node_busy": "requests that a node has from here, by pool and node";
    NODE_ENGINE_RUNNING = "evenkeel_node_engine_running":
        "requests that an engine says it works on, whoever's they are, by pool and node";
    NODE_ENGINE_WAITING = "evenkeel_node_engine_waiting":
        "requests that an engine says wait inside of it, by pool and node";
    PATH_CHANGES_TOTAL = "evenkeel_path_changes_total": "changes of paths, by pool and what they became";

    LABELS_OVER_TOTAL = "evenkeel_telemetry_labels_over_total":
        "label values that became `other` because there are too many, by metric";
    SPANS_EXPORTED_TOTAL = "evenkeel_telemetry_spans_exported_total": "spans of traces that a collector took";
    SPANS_DROPPED_TOTAL = "evenkeel_telemetry_spans_dropped_total":
        "spans of traces that were dropped because too many waited or no collector took them";
    SOURCES_SKIPPED_TOTAL = "evenkeel_telemetry_sources_skipped_total":
        "times metrics of a part of the process were left out of a page because they were faulty";
}
