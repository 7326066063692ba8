//! Metrics of dispatched jobs.
//!
//! Limits: queues and owners beyond `queues_max` share the label value `other`. The label `owner` is empty for shared
//! queues.

use evenkeel_telemetry::{Counter, Family, Gauge, Label, MetricDesc, RegisterError, Registry};

const JOBS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_dispatch_jobs_total", "attempts at dispatched jobs, by queue and outcome");
const JOBS_RUNNING: MetricDesc = MetricDesc::new(
    "evenkeel_dispatch_jobs_running",
    "dispatched jobs running, including those waiting for a slot",
);

/// `done`, `failed`, `retried`, `deferred` and `lost`.
const OUTCOMES_MAX: usize = 5;

pub(super) struct DispatchMetrics {
    jobs: Family<Counter, 3>,
    running: Family<Gauge, 2>,
}

impl DispatchMetrics {
    pub(super) fn new(registry: &Registry, queues_max: usize) -> Result<Self, RegisterError> {
        let queue = Label { name: "queue", values_max: queues_max };
        let owner = Label { name: "owner", values_max: queues_max };
        let outcome = Label { name: "outcome", values_max: OUTCOMES_MAX };
        Ok(Self {
            jobs: registry.counters(JOBS_TOTAL, [queue, owner, outcome])?,
            running: registry.gauges(JOBS_RUNNING, [queue, owner])?,
        })
    }

    pub(super) fn count_attempt(&self, queue: &str, owner: &str, outcome: &str) {
        self.jobs.with([queue, owner, outcome]).count();
    }

    /// Counts a job as running until the guard is dropped.
    pub(super) fn start(&self, queue: &str, owner: &str) -> RunningGuard {
        let gauge = self.running.with([queue, owner]);
        gauge.add(1);
        RunningGuard(gauge)
    }
}

/// Decrements the gauge of running jobs on drop.
pub(super) struct RunningGuard(Gauge);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
