//! What is counted of dispatched jobs.
//!
//! Bound: queues beyond the limit are `other`; outcomes are as many as there are.

use evenkeel_telemetry::{Counter, Family, Gauge, Label, MetricDesc, RegisterError, Registry};

const JOBS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_dispatch_jobs_total", "attempts at dispatched jobs, by queue and outcome");
const JOBS_RUNNING: MetricDesc = MetricDesc::new(
    "evenkeel_dispatch_jobs_running",
    "dispatched jobs under way, those that wait for a slot included",
);

/// How many outcomes there are.
const OUTCOMES_MAX: usize = 5;

pub(super) struct DispatchMetrics {
    jobs: Family<Counter, 2>,
    running: Family<Gauge, 1>,
}

impl DispatchMetrics {
    pub(super) fn new(registry: &Registry, queues_max: usize) -> Result<Self, RegisterError> {
        let queue = Label { name: "queue", values_max: queues_max };
        let outcome = Label { name: "outcome", values_max: OUTCOMES_MAX };
        Ok(Self {
            jobs: registry.counters(JOBS_TOTAL, [queue, outcome])?,
            running: registry.gauges(JOBS_RUNNING, [queue])?,
        })
    }

    /// Counts an attempt that has ended.
    pub(super) fn ended(&self, queue: &str, outcome: &str) {
        self.jobs.with([queue, outcome]).count();
    }

    /// Counts a job as under way, until what is returned is dropped.
    pub(super) fn begin(&self, queue: &str) -> RunningGuard {
        let gauge = self.running.with([queue]);
        gauge.add(1);
        RunningGuard(gauge)
    }
}

/// A job under way.
pub(super) struct RunningGuard(Gauge);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
