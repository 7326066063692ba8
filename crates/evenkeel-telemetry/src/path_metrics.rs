//! Metrics of paths (docs/specs.md, weighted round robin), fed by links and by nodes with several paths.
//!
//! Guarantees: without a source, the page has none of these metrics. The gauges are sums or maxima over the current
//! sources.
//!
//! Limits: at most [`SOURCES_MAX`], [`PATHS_MAX`] and [`FLOWS_MAX`] label values; further ones are recorded as `other`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::Transition;
use evenkeel_policy::swrr::{ReweightCounts, ShareWindow};
use parking_lot::Mutex;

use crate::family::{Family, Label};
use crate::metric::{Counter, FloatGauge, Gauge, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

/// Maximum number of links and nodes with series of their own.
const SOURCES_MAX: usize = 256;
/// Maximum number of different path names.
const PATHS_MAX: usize = 256;
/// Maximum number of flows with a reorder-buffer gauge.
const FLOWS_MAX: usize = 64;

/// Histogram buckets for round-trip times and reorder delays.
const LATENCY_BUCKETS: &[Duration] = &[
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// Metrics of all paths of the process; clones share them.
#[derive(Clone, Debug)]
pub struct PathMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    families: PathFamilies,
    sources: Mutex<Sources>,
}

#[derive(Debug)]
struct PathFamilies {
    rtt: Family<Histogram, 0>,
    activated: Family<Counter, 0>,
    deactivated: Family<Counter, 0>,
    active: Family<Gauge, 0>,
    deviation: Family<FloatGauge, 0>,
    entropy: Family<FloatGauge, 0>,
    reweights: Family<Counter, 1>,
    share: Family<FloatGauge, 2>,
    share_expected: Family<FloatGauge, 2>,
}

/// Metrics that only links have.
#[derive(Debug)]
struct LinkFamilies {
    reorder_delay: Family<Histogram, 0>,
    reorder_utilization: Family<FloatGauge, 1>,
    reinjected: Family<Counter, 1>,
    datagrams_sent: Family<Counter, 2>,
    datagrams_received: Family<Counter, 2>,
    datagrams_dropped: Family<Counter, 2>,
    datagrams_lost: Family<Counter, 1>,
    bonded: Family<Gauge, 1>,
    bonded_exits: Family<Counter, 1>,
    candidates: Family<Gauge, 1>,
    swaps: Family<Counter, 2>,
}

#[derive(Debug, Default)]
struct Sources {
    next: u64,
    current: BTreeMap<u64, SourceGauges>,
}

/// Last values of one source.
#[derive(Debug)]
struct SourceGauges {
    name: Arc<str>,
    active_paths: usize,
    deviation: f64,
    entropy: f64,
    reweights: ReweightCounts,
    kind: SourceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceKind {
    Node,
    Link,
}

/// Current values of one scheduler and its paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathGauges<'a> {
    /// Usable paths.
    pub active_paths: usize,
    /// Shares of the scheduler's last complete window.
    pub window: Option<&'a ShareWindow>,
    /// Changes of weights since the scheduler was created.
    pub reweights: ReweightCounts,
}

impl PathMetrics {
    /// Registers the metrics; they appear on the page once there is a source.
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let source = Label { name: "source", values_max: SOURCES_MAX };
        let path = Label { name: "path", values_max: PATHS_MAX };
        let result = Label { name: "result", values_max: 2 };
        let families = PathFamilies {
            rtt: registry.histograms(metric_names::PATH_RTT_SECONDS, [], LATENCY_BUCKETS)?,
            activated: registry.counters(metric_names::PATH_ACTIVATED_TOTAL, [])?,
            deactivated: registry.counters(metric_names::PATH_DEACTIVATED_TOTAL, [])?,
            active: registry.gauges(metric_names::ACTIVE_PATHS, [])?,
            deviation: registry.float_gauges(metric_names::WEIGHT_RATIO_DEVIATION, [])?,
            entropy: registry.float_gauges(metric_names::PATH_RELATIVE_ENTROPY, [])?,
            reweights: registry.counters(metric_names::PATH_REWEIGHTS_TOTAL, [result])?,
            share: registry.float_gauges(metric_names::PATH_SHARE, [source, path])?,
            share_expected: registry.float_gauges(metric_names::PATH_SHARE_EXPECTED, [source, path])?,
        };
        Ok(Self {
            inner: Arc::new(Inner { registry: registry.clone(), families, sources: Mutex::default() }),
        })
    }

    /// Returns the registry of the metrics.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Adds a source of path metrics: a node with several paths.
    pub fn add_source(&self, name: &str) -> PathSource {
        self.add(name, SourceKind::Node)
    }

    /// Adds a link, which is a source of path metrics and of those of its flows.
    pub fn add_link(&self, name: &str) -> Result<LinkMetrics, RegisterError> {
        let families = LinkFamilies::new(&self.inner.registry)?;
        Ok(LinkMetrics {
            reorder_delay: families.reorder_delay.with([]),
            reinjected: families.reinjected.with([name]),
            bonded: families.bonded.with([name]),
            bonded_exits: families.bonded_exits.with([name]),
            candidates: families.candidates.with([name]),
            swapped_slower: families.swaps.with([name, "slower"]),
            swapped_unusable: families.swaps.with([name, "unusable"]),
            families,
            paths: self.add(name, SourceKind::Link),
        })
    }

    fn add(&self, name: &str, kind: SourceKind) -> PathSource {
        let families = &self.inner.families;
        let name: Arc<str> = name.into();
        let gauges = SourceGauges {
            name: name.clone(),
            active_paths: 0,
            deviation: 0.0,
            entropy: 0.0,
            reweights: ReweightCounts::default(),
            kind,
        };
        let mut sources = self.inner.sources.lock();
        sources.next += 1;
        let id = sources.next;
        sources.current.insert(id, gauges);
        self.inner.set_totals(&sources);
        PathSource {
            metrics: self.clone(),
            id,
            name,
            rtt: families.rtt.with([]),
            activated: families.activated.with([]),
            deactivated: families.deactivated.with([]),
            applied: families.reweights.with(["applied"]),
            suppressed: families.reweights.with(["suppressed"]),
        }
    }
}

impl LinkFamilies {
    fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let flow = Label { name: "flow", values_max: FLOWS_MAX };
        let link = Label { name: "link", values_max: SOURCES_MAX };
        let cause = Label { name: "cause", values_max: 2 };
        let path = Label { name: "path", values_max: PATHS_MAX };
        let reason = Label { name: "reason", values_max: DATAGRAM_DROPS.len() };
        Ok(Self {
            reorder_delay: registry.histograms(metric_names::REORDER_DELAY_SECONDS, [], LATENCY_BUCKETS)?,
            reorder_utilization: registry.float_gauges(metric_names::REORDER_BUFFER_UTILIZATION, [flow])?,
            reinjected: registry.counters(metric_names::LINK_REINJECTED_BYTES_TOTAL, [link])?,
            datagrams_sent: registry.counters(metric_names::LINK_DATAGRAM_SENT_TOTAL, [link, path])?,
            datagrams_received: registry
                .counters(metric_names::LINK_DATAGRAM_RECEIVED_TOTAL, [link, path])?,
            datagrams_dropped: registry
                .counters(metric_names::LINK_DATAGRAM_DROPPED_TOTAL, [link, reason])?,
            datagrams_lost: registry.counters(metric_names::LINK_DATAGRAM_LOST_TOTAL, [link])?,
            bonded: registry.gauges(metric_names::LINK_BONDED_PATHS, [link])?,
            bonded_exits: registry.counters(metric_names::LINK_BONDED_EXITS_TOTAL, [link])?,
            candidates: registry.gauges(metric_names::LINK_CANDIDATE_PATHS, [link])?,
            swaps: registry.counters(metric_names::LINK_PATH_SWAPS_TOTAL, [link, cause])?,
        })
    }
}

impl Inner {
    /// Sets the gauges without labels to the sum or the maximum of all sources.
    fn set_totals(&self, sources: &Sources) {
        let active: usize = sources.current.values().map(|source| source.active_paths).sum();
        let max = |value: fn(&SourceGauges) -> f64| sources.current.values().map(value).fold(0.0, f64::max);
        self.families.active.with([]).set(i64::try_from(active).unwrap_or(i64::MAX));
        self.families.deviation.with([]).set(max(|source| source.deviation));
        self.families.entropy.with([]).set(max(|source| source.entropy));
    }
}

/// A link or a node with several paths; dropping it removes its values.
#[derive(Debug)]
pub struct PathSource {
    metrics: PathMetrics,
    id: u64,
    name: Arc<str>,
    rtt: Histogram,
    activated: Counter,
    deactivated: Counter,
    applied: Counter,
    suppressed: Counter,
}

impl PathSource {
    /// Records a round trip of one of the paths.
    pub fn record_rtt(&self, rtt: Duration) {
        self.rtt.record(rtt);
    }

    /// Counts a path that became usable or unusable.
    pub fn record_transition(&self, transition: &Transition) {
        match (transition.from.is_usable(), transition.to.is_usable()) {
            (false, true) => self.activated.count(),
            (true, false) => self.deactivated.count(),
            (true, true) | (false, false) => {}
        }
    }

    /// Sets the gauges and advances the counts of changes of weights, before a scrape or when they change.
    pub fn update(&self, gauges: &PathGauges<'_>, path_name: impl Fn(PathId) -> String) {
        let mut sources = self.metrics.inner.sources.lock();
        let Some(source) = sources.current.get_mut(&self.id) else { return };
        source.active_paths = gauges.active_paths;
        source.deviation = gauges.window.map_or(0.0, ShareWindow::mean_deviation);
        source.entropy = gauges.window.map_or(0.0, ShareWindow::relative_entropy);
        let before = std::mem::replace(&mut source.reweights, gauges.reweights);
        self.applied.add(gauges.reweights.applied.saturating_sub(before.applied));
        self.suppressed.add(gauges.reweights.suppressed.saturating_sub(before.suppressed));
        let families = &self.metrics.inner.families;
        for share in gauges.window.map_or(&[][..], ShareWindow::shares) {
            let labels = [&*self.name, &path_name(share.path)];
            families.share.with(labels).set(share.observed);
            families.share_expected.with(labels).set(share.theory);
        }
        self.metrics.inner.set_totals(&sources);
    }
}

/// Removes the source's series, and all others with the last source.
impl Drop for PathSource {
    fn drop(&mut self) {
        let families = &self.metrics.inner.families;
        let mut sources = self.metrics.inner.sources.lock();
        sources.current.remove(&self.id);
        if sources.current.values().all(|source| source.name != self.name) {
            families.share.forget(&[&self.name]);
            families.share_expected.forget(&[&self.name]);
        }
        self.metrics.inner.set_totals(&sources);
        if sources.current.is_empty() {
            families.rtt.forget(&[]);
            families.activated.forget(&[]);
            families.deactivated.forget(&[]);
            families.active.forget(&[]);
            families.deviation.forget(&[]);
            families.entropy.forget(&[]);
            families.reweights.forget(&[]);
        }
    }
}

/// Reason for which a datagram of a flow was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramDrop {
    /// It is a copy of one that has arrived.
    Duplicate,
    /// It arrived after it had been given up.
    Late,
    /// No path had room, or it is too long.
    Unsent,
    /// The application did not read it, or there was no memory.
    Unread,
}

const DATAGRAM_DROPS: [DatagramDrop; 4] =
    [DatagramDrop::Duplicate, DatagramDrop::Late, DatagramDrop::Unsent, DatagramDrop::Unread];

impl DatagramDrop {
    fn label(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::Unsent => "unsent",
            Self::Unread => "unread",
        }
    }
}

/// Metrics of one link; dropping them removes its values.
#[derive(Debug)]
pub struct LinkMetrics {
    /// Metrics of its paths.
    pub paths: PathSource,
    families: LinkFamilies,
    reorder_delay: Histogram,
    reinjected: Counter,
    bonded: Gauge,
    bonded_exits: Counter,
    candidates: Gauge,
    swapped_slower: Counter,
    swapped_unusable: Counter,
}

impl LinkMetrics {
    /// Records the time that a chunk waited for an earlier one.
    pub fn record_reorder_delay(&self, delay: Duration) {
        self.reorder_delay.record(delay);
    }

    /// Sets the fraction of a flow's reorder buffer in use.
    pub fn set_reorder_utilization(&self, flow: &str, fraction: f64) {
        self.families.reorder_utilization.with([flow]).set(fraction);
    }

    /// Removes the gauge of a flow that ended.
    pub fn forget_flow(&self, flow: &str) {
        self.families.reorder_utilization.forget(&[flow]);
    }

    /// Counts bytes that were sent again over another path.
    pub fn add_reinjected_bytes(&self, bytes: u64) {
        self.reinjected.add(bytes);
    }

    /// Counts datagrams of flows that were sent and received on a path.
    pub fn add_datagrams(&self, path: &str, sent: u64, received: u64) {
        if 0 < sent + received {
            self.families.datagrams_sent.with([&self.paths.name, path]).add(sent);
            self.families.datagrams_received.with([&self.paths.name, path]).add(received);
        }
    }

    /// Counts datagrams of flows that were dropped.
    pub fn add_dropped_datagrams(&self, reason: DatagramDrop, datagrams: u64) {
        if 0 < datagrams {
            self.families.datagrams_dropped.with([&self.paths.name, reason.label()]).add(datagrams);
        }
    }

    /// Counts datagrams of flows that were given up.
    pub fn add_lost_datagrams(&self, datagrams: u64) {
        if 0 < datagrams {
            self.families.datagrams_lost.with([&self.paths.name]).add(datagrams);
        }
    }

    /// Sets the number of usable paths in the bonded lane.
    pub fn set_bonded_paths(&self, paths: usize) {
        self.bonded.set(i64::try_from(paths).unwrap_or(i64::MAX));
    }

    /// Counts paths that left the bonded lane.
    pub fn add_bonded_exits(&self, exits: u64) {
        self.bonded_exits.add(exits);
    }

    /// Sets the number of usable paths that are candidates.
    pub fn set_candidate_paths(&self, paths: usize) {
        self.candidates.set(i64::try_from(paths).unwrap_or(i64::MAX));
    }

    /// Counts active paths that a candidate replaced because they were slower.
    pub fn add_slower_replaced(&self, paths: u64) {
        self.swapped_slower.add(paths);
    }

    /// Counts active paths that a candidate replaced because they could not carry traffic.
    pub fn add_unusable_replaced(&self, paths: u64) {
        self.swapped_unusable.add(paths);
    }
}

/// Removes the link's series, and those of all flows with the last link.
impl Drop for LinkMetrics {
    fn drop(&mut self) {
        let sources = self.paths.metrics.inner.sources.lock();
        let others =
            || sources.current.iter().filter(|(id, _)| **id != self.paths.id).map(|(_, other)| other);
        if others().all(|other| other.name != self.paths.name) {
            let link = &[&*self.paths.name];
            self.families.reinjected.forget(link);
            self.families.datagrams_sent.forget(link);
            self.families.datagrams_received.forget(link);
            self.families.datagrams_dropped.forget(link);
            self.families.datagrams_lost.forget(link);
            self.families.bonded.forget(link);
            self.families.bonded_exits.forget(link);
            self.families.candidates.forget(link);
            self.families.swaps.forget(link);
        }
        if others().all(|other| other.kind == SourceKind::Node) {
            self.families.reorder_delay.forget(&[]);
            self.families.reorder_utilization.forget(&[]);
        }
    }
}
