//! Statistics of one tenant's requests in one phase of the demo, measured by its clients.

use std::collections::HashMap;
use std::time::Duration;

use evenkeel_policy::estimate::{LatencyWindow, Quantile};
use evenkeel_policy::time::Instant;
use parking_lot::Mutex;

/// Window of the wait quantiles; longer than a phase of the default length.
const WAIT_WINDOW: Duration = Duration::from_mins(10);

/// Statistics shared by the clients of one tenant. Times are relative to its creation.
#[derive(Debug)]
pub struct DemoStats {
    origin: tokio::time::Instant,
    inner: Mutex<DemoStatsInner>,
}

#[derive(Debug)]
struct DemoStatsInner {
    since: Instant,
    totals: DemoTotals,
    waits: LatencyWindow,
    /// Requests that have no response yet, by client.
    pending: HashMap<u32, Instant>,
}

/// Totals of one tenant in the measured part of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemoTotals {
    /// Duration of the measured part.
    pub measured: Duration,
    pub served: u64,
    /// Requests that the gateway rejected because it was overloaded.
    pub rejected: u64,
    /// Requests that failed for any other reason; a healthy demo has none.
    pub failed: u64,
    /// Tokens in responses.
    pub tokens: u64,
    /// Cost as the gateway charges it: prompt tokens and twice the response tokens.
    pub cost: u64,
    pub wait_p50: Wait,
    pub wait_p99: Wait,
}

/// Time that a request waited for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    pub duration: Duration,
    /// The request is still queued, so `duration` is a lower bound.
    pub is_pending: bool,
}

impl Default for DemoStats {
    fn default() -> Self {
        let waits = LatencyWindow::new(WAIT_WINDOW).expect("the window has six slices of whole nanoseconds");
        let inner = DemoStatsInner {
            since: Instant::ORIGIN,
            totals: DemoTotals::default(),
            waits,
            pending: HashMap::new(),
        };
        Self { origin: tokio::time::Instant::now(), inner: Mutex::new(inner) }
    }
}

impl DemoStats {
    pub(super) fn record_sent(&self, client: u32) {
        let now = self.now();
        self.inner.lock().pending.insert(client, now);
    }

    /// Records a response head: the request has a slot, after `wait` in the gateway's queue.
    pub(super) fn record_started(&self, client: u32, wait: Duration) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.pending.remove(&client);
        inner.waits.record(now, wait);
    }

    pub(super) fn record_served(&self, tokens: u64, cost: u64) {
        let totals = &mut self.inner.lock().totals;
        totals.served += 1;
        totals.tokens += tokens;
        totals.cost += cost;
    }

    pub(super) fn record_rejected(&self, client: u32) {
        let mut inner = self.inner.lock();
        inner.pending.remove(&client);
        inner.totals.rejected += 1;
    }

    pub(super) fn record_failed(&self, client: u32) {
        let mut inner = self.inner.lock();
        inner.pending.remove(&client);
        inner.totals.failed += 1;
    }

    /// Resets the measurement at the end of the warm-up, except the count of failures.
    pub fn restart(&self) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.totals = DemoTotals { failed: inner.totals.failed, ..DemoTotals::default() };
        inner.waits = LatencyWindow::new(WAIT_WINDOW).expect("the window was valid before");
        inner.since = now;
    }

    /// Returns the totals since the last restart.
    ///
    /// The quantiles include requests that are still queued, with their wait so far; otherwise they would miss the
    /// longest waits of a short phase.
    pub fn totals(&self) -> DemoTotals {
        let now = self.now();
        let inner = self.inner.lock();
        let mut with_pending = inner.waits.clone();
        for &sent in inner.pending.values() {
            with_pending.record(now, now.since(sent));
        }
        let quantile = |quantile: Quantile| {
            let finished = inner.waits.quantile(now, quantile).unwrap_or_default();
            let all = with_pending.quantile(now, quantile).unwrap_or_default();
            Wait { duration: all, is_pending: finished < all }
        };
        DemoTotals {
            measured: now.since(inner.since),
            wait_p50: quantile(Quantile::P50),
            wait_p99: quantile(Quantile::P99),
            ..inner.totals
        }
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_queued_request_is_included_with_its_wait_so_far() {
        let stats = DemoStats::default();
        stats.record_sent(0);
        stats.record_started(0, Duration::from_millis(100));
        assert!(!stats.totals().wait_p99.is_pending);
        stats.record_sent(1);
        tokio::time::advance(Duration::from_secs(8)).await;
        let wait = stats.totals().wait_p99;
        assert!(wait.is_pending);
        assert!((7.5..8.5).contains(&wait.duration.as_secs_f64()), "{wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_discards_the_warm_up_except_failures() {
        let stats = DemoStats::default();
        stats.record_sent(0);
        stats.record_started(0, Duration::from_secs(60));
        stats.record_served(10, 25);
        stats.record_sent(0);
        stats.record_failed(0);
        stats.restart();
        tokio::time::advance(Duration::from_secs(2)).await;
        let expected = DemoTotals { measured: Duration::from_secs(2), failed: 1, ..DemoTotals::default() };
        assert_eq!(stats.totals(), expected);
    }
}
