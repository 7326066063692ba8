//! Names and help texts of all metrics of this crate.
//!
//! Names that the specifications (docs/specs.md) define are unchanged: `llm_router_*` of router load optimization and
//! `nyx_*` of weighted round robin. The metrics of the actor scheduler facade belong to `evenkeel-actor` and are added
//! with [`Registry::add_source`](crate::Registry::add_source).

use crate::family::MetricDesc;

macro_rules! metrics {
    ($($name:ident = $text:literal: $help:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`: ", $help, ".")]
            pub const $name: MetricDesc = MetricDesc::new($text, $help);
        )*

        /// Every name with its help text, in the order of this file.
        pub const ALL: &[MetricDesc] = &[$($name),*];
    };
}

metrics! {
    QUEUE_SIZE = "llm_router_queue_size": "waiting requests";
    REQUEST_DURATION_SECONDS = "llm_router_request_duration_seconds":
        "time from a request's arrival to the end of its response";
    BACKPRESSURE_REJECTIONS_TOTAL = "llm_router_backpressure_rejections_total":
        "requests rejected or evicted because the queue was full or their deadline would have passed in it";
    CACHE_HITS_TOTAL = "llm_router_cache_hits_total": "requests sent to their cached node";
    CACHE_MISSES_TOTAL = "llm_router_cache_misses_total": "requests with an affinity key sent to another node";
    POOL_CONNECTIONS = "llm_router_pool_connections": "connections to nodes, active and idle";

    GEN_AI_SERVER_REQUEST_DURATION = "gen_ai_server_request_duration_seconds":
        "time from a model request's arrival to its last byte, by operation, models and error (if it failed)";
    GEN_AI_SERVER_TIME_TO_FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds":
        "time from the arrival of a streamed model request to its first token, by operation and models";
    GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai_server_time_per_output_token_seconds":
        "time per output token of a streamed model request after the first, by operation and models";
    GEN_AI_CLIENT_TOKEN_USAGE = "gen_ai_client_token_usage":
        "tokens of a model request as its engine reported them, by operation, models and type (input or output)";

    PATH_RTT_SECONDS = "nyx_multipath_path_rtt_seconds": "round-trip times of paths";
    PATH_ACTIVATED_TOTAL = "nyx_multipath_path_activated_total": "times a path became usable";
    PATH_DEACTIVATED_TOTAL = "nyx_multipath_path_deactivated_total": "times a path became unusable";
    ACTIVE_PATHS = "nyx_multipath_active_paths": "usable paths";
    WEIGHT_RATIO_DEVIATION = "nyx_wrr_weight_ratio_deviation":
        "mean deviation of the paths' shares of picks from their weights' shares, the largest of all schedulers";
    REORDER_DELAY_SECONDS = "nyx_multipath_reorder_delay_seconds": "time that data waited for data sent before it";
    REORDER_BUFFER_UTILIZATION = "nyx_multipath_reorder_buffer_utilization":
        "fraction of a flow's reorder buffer in use, by flow";
    PATH_RELATIVE_ENTROPY = "evenkeel_path_relative_entropy":
        "relative entropy of the paths' shares of picks, in nats, the largest of all schedulers";
    PATH_REWEIGHTS_TOTAL = "evenkeel_path_reweights_total": "changes of path weights, by result (applied or suppressed)";
    PATH_SHARE = "evenkeel_path_share": "a path's share of the last window, by source (node or link) and path";
    PATH_SHARE_EXPECTED = "evenkeel_path_share_expected":
        "share that a path's weight gave it while it was eligible, by source (node or link) and path";
    LINK_REINJECTED_BYTES_TOTAL = "evenkeel_link_reinjected_bytes_total":
        "bytes that had been sent before, on the same path or another, by link";
    LINK_DATAGRAM_SENT_TOTAL = "evenkeel_link_datagram_sent_total":
        "datagrams of flows sent on a path, copies and fragments included, by link and path";
    LINK_DATAGRAM_RECEIVED_TOTAL = "evenkeel_link_datagram_received_total":
        "datagrams of flows received on a path, copies and fragments included, by link and path";
    LINK_DATAGRAM_DROPPED_TOTAL = "evenkeel_link_datagram_dropped_total":
        "datagrams of flows dropped, by link and reason (duplicate, late, unsent or unread)";
    LINK_DATAGRAM_LOST_TOTAL = "evenkeel_link_datagram_lost_total":
        "datagrams of the other side that are missing: given up (stripe) or not arrived (pin, duplicate), by link";
    LINK_HOPS = "evenkeel_link_hops": "relays on the route of a path, by link and path";
    LINK_ROUTE_SWAPS_TOTAL = "evenkeel_link_route_swaps_total": "routes replaced by a better one, by link";
    LINK_ROUTE_FAILURES_TOTAL = "evenkeel_link_route_failures_total":
        "routes over relays that could not be set up, or over which the peer did not answer, by link and reason";
    RELAY_ASSOCIATIONS = "evenkeel_relay_associations": "clients that a relay forwards for";
    RELAY_PACKETS_TOTAL = "evenkeel_relay_packets_total": "packets that a relay forwarded, by direction";
    RELAY_BYTES_TOTAL = "evenkeel_relay_bytes_total": "bytes that a relay forwarded, by direction";
    RELAY_DROPPED_TOTAL = "evenkeel_relay_dropped_total":
        "packets that a relay could not forward, by direction";
    RELAY_REFUSED_TOTAL = "evenkeel_relay_refused_total": "packets and set-ups that a relay refused, by reason";
    LINK_BONDED_PATHS = "evenkeel_link_bonded_paths": "usable paths in the bonded lane, by link";
    LINK_BONDED_EXITS_TOTAL = "evenkeel_link_bonded_exits_total":
        "paths that left the bonded lane because they added too little, by link";
    LINK_CANDIDATE_PATHS = "evenkeel_link_candidate_paths":
        "usable paths that carry no traffic because of paths_active_max, by link";
    LINK_PATH_SWAPS_TOTAL = "evenkeel_link_path_swaps_total":
        "active paths that a candidate replaced, by link and cause (slower or unusable)";

    ACCEPTED_TOTAL = "evenkeel_accepted_total": "requests accepted, by pool and tenant";
    ADMITTED_TOTAL = "evenkeel_admitted_total": "requests admitted to the queue, by pool and tenant";
    DELAYED_TOTAL = "evenkeel_delayed_total": "requests delayed by backpressure, by pool and tenant";
    REJECTED_TOTAL = "evenkeel_rejected_total": "requests rejected, by pool, tenant and reason";
    REDIRECTED_TOTAL = "evenkeel_redirected_total":
        "requests handed over to a peer gateway, by pool, peer and kind of request";
    EVICTED_TOTAL = "evenkeel_evicted_total":
        "queued requests evicted for a tenant below its share, by pool and tenant";
    CANCELLED_TOTAL = "evenkeel_cancelled_total": "requests cancelled while waiting, by pool and tenant";
    DISPATCHED_TOTAL = "evenkeel_dispatched_total": "requests sent to a node, retries included, by pool and node";
    WAIT_SECONDS = "evenkeel_wait_seconds": "time that requests waited for a slot, by pool and tenant";
    FIRST_BYTE_SECONDS = "evenkeel_first_byte_seconds":
        "time from sending a request to the first byte of its response, by pool and node";
    FAILED_OVER_TOTAL = "evenkeel_failed_over_total":
        "failed attempts that were retried on another node, by pool and failure";
    FALLBACKS_TOTAL = "evenkeel_fallbacks_total":
        "requests submitted again for another model, by pool and reason (no_node, failed or capacity)";
    FINISHED_TOTAL = "evenkeel_finished_total": "requests that ended after getting a slot, by pool, tenant and outcome";
    COST_UNITS_TOTAL = "evenkeel_cost_units_total": "cost of finished requests, by pool and tenant";
    CLASS_WAITING = "evenkeel_class_waiting": "waiting requests of the LLM API, by class";
    CLASS_COST_UNITS_TOTAL = "evenkeel_class_cost_units_total": "cost of finished requests of the LLM API, by class";
    NODE_CHANGES_TOTAL = "evenkeel_node_changes_total": "events of nodes, by pool, node and event (label `to`)";
    NODE_SLOTS = "evenkeel_node_slots": "requests that a node may serve at once, by pool and node";
    NODE_BUSY = "evenkeel_node_busy": "slots of a node in use by this gateway, by pool and node";
    NODE_UP = "evenkeel_node_up":
        "1 if a node's last health check succeeded and its circuit breaker is not open, otherwise 0, by pool and node";
    NODE_BREAKER_STATE = "evenkeel_node_breaker_state":
        "state of a node's circuit breaker (0 closed, 1 half-open, 2 open), by pool and node";
    NODE_RESPONSES_TOTAL = "evenkeel_node_responses_total":
        "responses of nodes, those to failed attempts included, by pool, node and HTTP status";
    NODE_ENGINE_RUNNING = "evenkeel_node_engine_running":
        "requests an engine reports as running, including other clients', by pool and node";
    NODE_ENGINE_WAITING = "evenkeel_node_engine_waiting":
        "requests an engine reports as queued inside it, by pool and node";
    PATH_CHANGES_TOTAL = "evenkeel_path_changes_total": "changes of paths, by pool and new state";

    LABELS_OVER_TOTAL = "evenkeel_telemetry_labels_over_total":
        "label values recorded as `other` because of the cardinality limit, by metric";
    SPANS_EXPORTED_TOTAL = "evenkeel_telemetry_spans_exported_total": "spans accepted by the collector";
    SPANS_DROPPED_TOTAL = "evenkeel_telemetry_spans_dropped_total":
        "spans dropped because the queue was full or the collector did not accept them";
    SOURCES_SKIPPED_TOTAL = "evenkeel_telemetry_sources_skipped_total":
        "times a source's metrics were omitted from a scrape because they were invalid";
}
