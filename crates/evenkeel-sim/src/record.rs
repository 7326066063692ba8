//! Event trace of a simulation, and its summaries.

use std::fmt;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{Key, NodeId, PathId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

/// Something that happened to a request or a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    Arrived {
        request: u32,
        tenant: TenantId,
        key: Key,
    },
    Rejected {
        request: u32,
        tenant: TenantId,
    },
    /// Rejected while queued, to make room for another tenant.
    Evicted {
        request: u32,
        tenant: TenantId,
    },
    Dispatched {
        request: u32,
        tenant: TenantId,
        key: Key,
        node: NodeId,
        path: Option<PathId>,
        waited: Duration,
    },
    Finished {
        request: u32,
        tenant: TenantId,
        node: NodeId,
        actual: Cost,
    },
    WeightChanged {
        tenant: TenantId,
        weight: Weight,
    },
    /// A tenant's concurrency limit was set to 0.
    Parked {
        tenant: TenantId,
    },
    /// The limit of a parked tenant was lifted.
    Woken {
        tenant: TenantId,
    },
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    pub at: Instant,
    pub event: TraceEvent,
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRun {
    /// All events, in order.
    pub events: Vec<TimedEvent>,
    /// Requests still waiting at the end.
    pub still_waiting: usize,
    /// Number of times that a slot stayed free although a request could have used it. Counted only in scenarios that
    /// admit everything; 0 otherwise.
    pub idle_while_waiting: usize,
    /// Requests sent to their cached node.
    pub cache_hits: u64,
}

/// Summary of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSummary {
    pub arrived: usize,
    pub dispatched: usize,
    pub finished: usize,
    /// Requests rejected on arrival or evicted.
    pub rejected: usize,
    /// Total cost of its finished requests.
    pub service: Cost,
    /// Waits of all dispatched requests, sorted.
    pub waits: Vec<Duration>,
}

impl TenantSummary {
    /// Returns a percentile of the waits; zero if no request was dispatched.
    pub fn wait_percentile(&self, percent: usize) -> Duration {
        nearest_rank(&self.waits, percent)
    }
}

impl SimRun {
    /// Summarizes one tenant.
    pub fn tenant(&self, id: TenantId) -> TenantSummary {
        let mut summary = TenantSummary::default();
        for TimedEvent { event, .. } in &self.events {
            match *event {
                TraceEvent::Arrived { tenant, .. } if tenant == id => summary.arrived += 1,
                TraceEvent::Rejected { tenant, .. } | TraceEvent::Evicted { tenant, .. } if tenant == id => {
                    summary.rejected += 1;
                }
                TraceEvent::Dispatched { tenant, waited, .. } if tenant == id => {
                    summary.dispatched += 1;
                    summary.waits.push(waited);
                }
                TraceEvent::Finished { tenant, actual, .. } if tenant == id => {
                    summary.finished += 1;
                    summary.service += actual;
                }
                _ => {}
            }
        }
        summary.waits.sort_unstable();
        summary
    }

    /// Returns the tenants of all dispatched requests, in order.
    pub fn dispatched_tenants(&self) -> Vec<TenantId> {
        let sent = |timed: &TimedEvent| match timed.event {
            TraceEvent::Dispatched { tenant, .. } => Some(tenant),
            _ => None,
        };
        self.events.iter().filter_map(sent).collect()
    }

    /// Returns each tenant's share of the dispatches in overlapping windows of `window` dispatches each.
    ///
    /// Windows start about a tenth of their length apart.
    pub fn window_shares(&self, tenants: usize, window: usize) -> Vec<Vec<Share>> {
        let shares = |sent: &[TenantId]| {
            (0..tenants)
                .map(|tenant| sent.iter().filter(|other| other.index() == tenant).count())
                .map(|count| Share(count as f64 / window as f64))
                .collect()
        };
        self.dispatched_tenants().windows(window).step_by(window / 10 + 1).map(shares).collect()
    }

    /// Returns a hash of all events, to compare runs.
    pub fn fingerprint(&self) -> u64 {
        let text = format!("{:?}", self.events);
        // FNV-1a is enough, because nobody attacks this hash.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Returns a percentile of sorted values by the nearest-rank method; the default if there are none.
pub(crate) fn nearest_rank<T: Copy + Default>(sorted: &[T], percent: usize) -> T {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

/// A fraction, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.0)
    }
}
