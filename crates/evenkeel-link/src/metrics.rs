//! Metrics of one session.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::id::PathId;
use evenkeel_policy::path::Transition;
use evenkeel_policy::swrr::ReweightCounts;
use evenkeel_telemetry::{DatagramDrop, LinkMetrics, PathGauges, PathMetrics, RegisterError};
use parking_lot::Mutex;

use crate::flow::FlowId;
use crate::session::{DatagramCounters, Observation, ReplacementCounts, SessionStatus, TrafficRole};

/// Metrics of one session; the series of a link are removed with its last session.
pub(crate) struct SessionMetrics {
    name: String,
    link: LinkMetrics,
    state: Mutex<Reported>,
}

/// Values that the metrics contain already.
#[derive(Default)]
struct Reported {
    reinjected_bytes: u64,
    replacements: ReplacementCounts,
    bonded_exits: u64,
    datagrams: DatagramCounters,
    /// Datagrams sent and received by path.
    path_datagrams: BTreeMap<PathId, PathDatagrams>,
    flows: BTreeSet<FlowId>,
}

#[derive(Clone, Copy, Default)]
struct PathDatagrams {
    sent: u64,
    received: u64,
}

impl SessionMetrics {
    pub(crate) fn new(metrics: &PathMetrics, link: &str) -> Result<Self, RegisterError> {
        Ok(Self { name: link.to_owned(), link: metrics.add_link(link)?, state: Mutex::default() })
    }

    /// Returns the label of a flow; each link numbers its flows from the start.
    fn flow_label(&self, flow: FlowId) -> String {
        format!("{}/{flow}", self.name)
    }

    pub(crate) fn observe(&self, observation: Observation) {
        match observation {
            Observation::Rtt { rtt, .. } => self.link.paths.record_rtt(rtt),
            Observation::ReorderDelay { delay } => self.link.record_reorder_delay(delay),
        }
    }

    pub(crate) fn record_transition(&self, transition: &Transition) {
        self.link.paths.record_transition(transition);
    }

    /// Sets the gauges, and advances the counters, to the values of a snapshot.
    pub(crate) fn update(&self, status: &SessionStatus) {
        let usable =
            |role| status.paths.iter().filter(move |path| path.state.is_usable() && path.role == role);
        let active_paths = usable(TrafficRole::Active).count();
        let bonded_paths = usable(TrafficRole::Active).filter(|path| path.bonded).count();
        let reweights = ReweightCounts {
            applied: status.totals.reweights_applied,
            suppressed: status.totals.reweights_suppressed,
        };
        let gauges = PathGauges { active_paths, window: status.window.as_ref(), reweights };
        let name = |id| {
            status
                .paths
                .iter()
                .find(|path| path.path == id)
                .map_or_else(String::new, |path| path.name.clone())
        };
        self.link.paths.update(&gauges, name);
        self.link.set_candidate_paths(usable(TrafficRole::Candidate).count());
        self.link.set_bonded_paths(bonded_paths);
        let mut reported = self.state.lock();
        self.add_replacements(&mut reported, status.totals.replacements);
        let exits = status.totals.bonded_exits;
        self.link.add_bonded_exits(exits.saturating_sub(reported.bonded_exits));
        reported.bonded_exits = exits.max(reported.bonded_exits);
        let reinjected: u64 = status.paths.iter().map(|path| path.counters.reinjected_bytes).sum();
        // Another snapshot, taken later, may have been reported already.
        self.link.add_reinjected_bytes(reinjected.saturating_sub(reported.reinjected_bytes));
        reported.reinjected_bytes = reinjected.max(reported.reinjected_bytes);
        self.add_datagrams(&mut reported, status);
        let flows: BTreeSet<FlowId> = status.flows.iter().map(|flow| flow.flow).collect();
        for ended in reported.flows.difference(&flows) {
            self.link.forget_flow(&self.flow_label(*ended));
        }
        for flow in &status.flows {
            self.link.set_reorder_utilization(&self.flow_label(flow.flow), flow.reorder_utilisation);
        }
        reported.flows = flows;
    }

    fn add_datagrams(&self, reported: &mut Reported, status: &SessionStatus) {
        for path in &status.paths {
            let before = reported.path_datagrams.entry(path.path).or_default();
            let sent = path.counters.datagrams_sent;
            let received = path.counters.datagrams_received;
            self.link.add_datagrams(
                &path.name,
                sent.saturating_sub(before.sent),
                received.saturating_sub(before.received),
            );
            *before = PathDatagrams { sent: sent.max(before.sent), received: received.max(before.received) };
        }
        let DatagramCounters { sent, received, duplicates, late, unsent, unread, lost } =
            status.totals.datagrams;
        let before = reported.datagrams;
        let drops = [
            (DatagramDrop::Duplicate, duplicates, before.duplicates),
            (DatagramDrop::Late, late, before.late),
            (DatagramDrop::Unsent, unsent, before.unsent),
            (DatagramDrop::Unread, unread, before.unread),
        ];
        for (reason, now, before) in drops {
            self.link.add_dropped_datagrams(reason, now.saturating_sub(before));
        }
        self.link.add_lost_datagrams(lost.saturating_sub(before.lost));
        reported.datagrams = DatagramCounters {
            sent,
            received,
            duplicates: duplicates.max(before.duplicates),
            late: late.max(before.late),
            unsent: unsent.max(before.unsent),
            unread: unread.max(before.unread),
            lost: lost.max(before.lost),
        };
    }

    fn add_replacements(&self, reported: &mut Reported, counts: ReplacementCounts) {
        let before = reported.replacements;
        self.link.add_slower_replaced(counts.slower.saturating_sub(before.slower));
        self.link.add_unusable_replaced(counts.unusable.saturating_sub(before.unusable));
        reported.replacements = ReplacementCounts {
            slower: counts.slower.max(before.slower),
            unusable: counts.unusable.max(before.unusable),
        };
    }
}
