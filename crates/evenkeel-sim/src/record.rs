//! What happened, and what it adds up to.

use std::fmt;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{Key, NodeId, PathId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

/// One thing that happened to a request or a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields say what the variant's sentence names")]
pub enum TraceEvent {
    /// A request arrived.
    Arrived { request: u32, tenant: TenantId, key: Key },
    /// It was turned away.
    Rejected { request: u32, tenant: TenantId },
    /// It was turned away while it waited, to make room for another.
    Evicted { request: u32, tenant: TenantId },
    /// It was sent to a node.
    Dispatched {
        request: u32,
        tenant: TenantId,
        key: Key,
        node: NodeId,
        path: Option<PathId>,
        waited: Duration,
    },
    /// It was done.
    Finished { request: u32, tenant: TenantId, node: NodeId, actual: Cost },
    /// A tenant has another weight.
    Reweighed { tenant: TenantId, weight: Weight },
    /// A tenant was set aside.
    Parked { tenant: TenantId },
    /// A tenant was woken.
    Woken { tenant: TenantId },
}

/// An event and when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// When it happened.
    pub at: Instant,
    /// What happened.
    pub event: TraceEvent,
}

/// A simulation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRun {
    /// Everything that happened, in order.
    pub events: Vec<TimedEvent>,
    /// How many requests still waited at the end.
    pub left_waiting: usize,
    /// How often a slot was free while somebody could have been served; counted where nobody is slowed or turned away.
    pub idle_while_waiting: usize,
    /// How often a request went to the node that its like had been served on.
    pub cache_hits: u64,
}

/// What one tenant saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSummary {
    /// How many of its requests arrived.
    pub arrived: usize,
    /// How many were sent to a node.
    pub dispatched: usize,
    /// How many were done.
    pub finished: usize,
    /// How many were turned away on arrival or pushed out.
    pub rejected: usize,
    /// What its work cost in the end.
    pub service: Cost,
    /// How long each request waited that was sent, shortest first.
    pub waits: Vec<Duration>,
}

impl TenantSummary {
    /// The wait that so many of a hundred requests stay within; zero when none was sent.
    pub fn wait_percentile(&self, percent: usize) -> Duration {
        let rank = (self.waits.len() * percent).div_ceil(100).saturating_sub(1);
        self.waits.get(rank).copied().unwrap_or(Duration::ZERO)
    }
}

impl SimRun {
    /// Adds up what one tenant saw.
    pub fn tenant(&self, wanted: TenantId) -> TenantSummary {
        let mut summary = TenantSummary::default();
        for TimedEvent { event, .. } in &self.events {
            match *event {
                TraceEvent::Arrived { tenant, .. } if tenant == wanted => summary.arrived += 1,
                TraceEvent::Rejected { tenant, .. } | TraceEvent::Evicted { tenant, .. }
                    if tenant == wanted =>
                {
                    summary.rejected += 1;
                }
                TraceEvent::Dispatched { tenant, waited, .. } if tenant == wanted => {
                    summary.dispatched += 1;
                    summary.waits.push(waited);
                }
                TraceEvent::Finished { tenant, actual, .. } if tenant == wanted => {
                    summary.finished += 1;
                    summary.service += actual;
                }
                _ => {}
            }
        }
        summary.waits.sort_unstable();
        summary
    }

    /// Whose requests were sent, in order.
    pub fn dispatches(&self) -> Vec<TenantId> {
        let sent = |stamped: &TimedEvent| match stamped.event {
            TraceEvent::Dispatched { tenant, .. } => Some(tenant),
            _ => None,
        };
        self.events.iter().filter_map(sent).collect()
    }

    /// Each tenant's part of every window of so many requests sent in a row.
    pub fn window_shares(&self, tenants: usize, window: usize) -> Vec<Vec<Share>> {
        let count = |sent: &[TenantId]| {
            (0..tenants)
                .map(|tenant| sent.iter().filter(|other| other.index() == tenant).count())
                .map(|count| Share(count as f64 / window as f64))
                .collect()
        };
        self.dispatches().windows(window).step_by(window / 10 + 1).map(count).collect()
    }

    /// A number that two runs share only if they are the same event by event.
    pub fn fingerprint(&self) -> u64 {
        let text = format!("{:?}", self.events);
        // FNV-1a: enough to compare runs, which nobody forges.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// A part of a whole, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.0)
    }
}
