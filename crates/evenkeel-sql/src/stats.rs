//! The figures of one datasource by which nodes are compared, as the load-balancing specification names them
//! (docs/specs.md).
//!
//! Guarantees: each count is raised and lowered by a guard, so a request that is dropped leaves no trace. Errors of the
//! client's own SQL count as neither errors nor timeouts.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{Ewma, Gains, LatencyWindow, Outcome, RatioWindow};
use evenkeel_policy::time::{Duration, Instant};
use parking_lot::Mutex;

/// Cost of a statement before any was measured: a millisecond.
const TYPICAL_COST: Cost = Cost(1_000);
/// Expected cost of a transaction before any was measured: ten milliseconds.
const TYPICAL_TRANSACTION_COST: Cost = Cost(10_000);

/// Counts and measurements of one datasource.
#[derive(Debug)]
pub(crate) struct DatabaseStats {
    running: [AtomicU32; 3],
    measured: Mutex<Measured>,
}

#[derive(Debug)]
struct Measured {
    latency: LatencyWindow,
    latency_mean: Ewma,
    errors: RatioWindow,
    timeouts: RatioWindow,
    /// Time for which plain statements hold a connection.
    statement_hold: Ewma,
    transaction_hold: Ewma,
}

/// Something that is counted while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// A request on a SQL route, waiting and streaming ones included.
    HttpSession,
    Statement,
    Transaction,
}

/// Outcome of a statement, as far as the node is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementOutcome {
    /// Answered by the database, be it with an error of the client's SQL.
    Answered {
        first_response: Duration,
    },
    /// The connection failed, or the database refused it.
    Failed,
    TimedOut,
}

/// Measurements of the last minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quality {
    pub(crate) p95_latency_ms: f64,
    /// 0 before the first sample.
    pub(crate) latency_mean_ms: f64,
    pub(crate) latency_samples: u32,
    pub(crate) error_rate_1m: f64,
    pub(crate) timeouts_1m: u32,
}

impl DatabaseStats {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            running: Default::default(),
            measured: Mutex::new(Measured {
                latency: LatencyWindow::default(),
                latency_mean: Ewma::new(Gains::RTT),
                errors: RatioWindow::default(),
                timeouts: RatioWindow::default(),
                statement_hold: Ewma::new(Gains::RTT),
                transaction_hold: Ewma::new(Gains::RTT),
            }),
        })
    }

    /// Counts an activity until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, activity: Activity) -> ActivityGuard {
        self.running[activity as usize].fetch_add(1, Ordering::Relaxed);
        ActivityGuard { stats: self.clone(), activity }
    }

    pub(crate) fn running(&self, activity: Activity) -> u32 {
        self.running[activity as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, now: Instant, outcome: StatementOutcome) {
        let mut measured = self.measured.lock();
        match outcome {
            StatementOutcome::Answered { first_response } => {
                measured.latency.record(now, first_response);
                measured.latency_mean.record_millis(first_response);
                measured.errors.record(now, Outcome::Good);
            }
            StatementOutcome::Failed => measured.errors.record(now, Outcome::Bad),
            StatementOutcome::TimedOut => {
                measured.errors.record(now, Outcome::Bad);
                measured.timeouts.record(now, Outcome::Bad);
            }
        }
    }

    /// Records the time for which a connection was held.
    pub(crate) fn record_hold(&self, activity: Activity, held: Duration) {
        let mut measured = self.measured.lock();
        match activity {
            Activity::Transaction => measured.transaction_hold.record_millis(held),
            Activity::Statement | Activity::HttpSession => measured.statement_hold.record_millis(held),
        }
    }

    /// Returns the expected cost of a request: microseconds for which it will hold a connection.
    pub(crate) fn expected_cost(&self, activity: Activity) -> Cost {
        let measured = self.measured.lock();
        let (mean, typical) = match activity {
            Activity::Transaction => (measured.transaction_hold.mean(), TYPICAL_TRANSACTION_COST),
            Activity::Statement | Activity::HttpSession => (measured.statement_hold.mean(), TYPICAL_COST),
        };
        mean.map_or(typical, |millis| Cost((millis * 1e3) as u64).max(Cost(1)))
    }

    pub(crate) fn quality(&self, now: Instant) -> Quality {
        let measured = self.measured.lock();
        Quality {
            p95_latency_ms: measured.latency.p95(now).map_or(0.0, |p95| p95.as_secs_f64() * 1e3),
            latency_mean_ms: measured.latency_mean.mean().unwrap_or(0.0),
            latency_samples: u32::try_from(measured.latency.samples(now)).unwrap_or(u32::MAX),
            error_rate_1m: measured.errors.ratio(now).unwrap_or(0.0),
            timeouts_1m: u32::try_from(measured.timeouts.bad(now)).unwrap_or(u32::MAX),
        }
    }
}

/// Counts an activity until it is dropped.
#[derive(Debug)]
pub(crate) struct ActivityGuard {
    stats: Arc<DatabaseStats>,
    activity: Activity,
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.stats.running[self.activity as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_secs(100);

    #[test]
    fn a_guard_counts_until_it_is_dropped() {
        let stats = DatabaseStats::new();
        let guards = [stats.begin(Activity::Statement), stats.begin(Activity::Statement)];
        assert_eq!(stats.running(Activity::Statement), 2);
        assert_eq!(stats.running(Activity::Transaction), 0);
        drop(guards);
        assert_eq!(stats.running(Activity::Statement), 0);
    }

    #[test]
    fn the_error_rate_is_a_true_ratio_and_timeouts_are_errors() {
        let stats = DatabaseStats::new();
        let first_response = Duration::from_millis(20);
        for _ in 0..7 {
            stats.record(NOW, StatementOutcome::Answered { first_response });
        }
        stats.record(NOW, StatementOutcome::Failed);
        stats.record(NOW, StatementOutcome::TimedOut);
        stats.record(NOW, StatementOutcome::TimedOut);
        let quality = stats.quality(NOW);
        assert!((quality.error_rate_1m - 0.3).abs() < 1e-9, "{quality:?}");
        assert_eq!((quality.timeouts_1m, quality.latency_samples), (2, 7));
        assert!((quality.p95_latency_ms - 20.0).abs() < 1.0, "{quality:?}");
        assert!((quality.latency_mean_ms - 20.0).abs() < 1e-9, "{quality:?}");
        let later = stats.quality(NOW + Duration::from_secs(61));
        assert_eq!((later.timeouts_1m, later.latency_samples), (0, 0));
    }

    /// By Little's law, the mean tells how many of the redirected statements still run; a high quantile of a mix of fast
    /// and slow ones would count far too many.
    #[test]
    fn a_rare_slow_statement_hardly_changes_the_mean() {
        let stats = DatabaseStats::new();
        for count in 1..=200 {
            let millis = if count % 15 == 0 { 500 } else { 1 };
            let first_response = Duration::from_millis(millis);
            stats.record(NOW, StatementOutcome::Answered { first_response });
        }
        let quality = stats.quality(NOW);
        assert!(quality.latency_mean_ms * 5.0 < quality.p95_latency_ms, "{quality:?}");
    }

    #[test]
    fn the_expected_cost_follows_the_measured_time() {
        let stats = DatabaseStats::new();
        assert_eq!(stats.expected_cost(Activity::Statement), TYPICAL_COST);
        assert_eq!(stats.expected_cost(Activity::Transaction), TYPICAL_TRANSACTION_COST);
        stats.record_hold(Activity::Statement, Duration::from_millis(5));
        assert_eq!(stats.expected_cost(Activity::Statement), Cost(5_000));
        assert_eq!(stats.expected_cost(Activity::Transaction), TYPICAL_TRANSACTION_COST);
    }
}
