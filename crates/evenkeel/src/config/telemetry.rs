//! `[telemetry]`: logs, metrics and what is remembered for `explain`.

use std::io::stderr;

use evenkeel_door::tenant::Access;
use evenkeel_telemetry::logs::{Format, LogOptions};
use evenkeel_telemetry::{JournalLimits, MeterLimits};

use super::reader::Section;
use super::value::Whole;

/// `[telemetry]`.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    /// What is logged, and how.
    pub logs: LogOptions,
    /// Who may read `/metrics`.
    pub metrics: Access,
    /// How many tenants and nodes have metrics of their own.
    pub meters: MeterLimits,
    /// How many queues have metrics of their own.
    pub queues_max: usize,
    /// How much is remembered.
    pub journal: JournalLimits,
}

pub(super) fn read(section: &mut Section<'_>) -> TelemetryConfig {
    let filter = section.read("log", "info".to_owned());
    let formats = [("auto", None), ("human", Some(Format::Human)), ("json", Some(Format::Json))];
    let format = section.word("log_format", "auto", &formats).unwrap_or_else(|| Format::of(&stderr()));
    let logs = LogOptions::new(Some(&filter.value), format).unwrap_or_else(|wrong| {
        section.mistake(&filter.origin, wrong);
        LogOptions::new(None, format).expect("the default filter is one")
    });
    let metrics = section.word("metrics", "admin", &[("admin", Access::Admin), ("public", Access::Public)]);
    let (meters, journal) = (MeterLimits::default(), JournalLimits::default());
    let mut count = |key, default: usize, least, most| {
        section.within(key, Whole(default as i64), Whole(least)..=Whole(most)).as_usize()
    };
    TelemetryConfig {
        logs,
        metrics,
        meters: MeterLimits {
            tenants_max: count("tenants_max", meters.tenants_max, 1, 10_000),
            nodes_max: count("nodes_max", meters.nodes_max, 1, 10_000),
        },
        queues_max: count("queues_max", 256, 1, 10_000),
        journal: JournalLimits {
            requests_max: count("requests_max", journal.requests_max, 0, 1_000_000),
            steps_max: count("steps_max", journal.steps_max, 1, 1_000),
            changes_max: count("changes_max", journal.changes_max, 0, 100_000),
        },
    }
}
