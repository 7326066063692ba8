//! Samples the demand of the bonded lane and reviews its paths once per interval.

use evenkeel_policy::path::{BondChangeKind, BondDemand, BondPath};
use evenkeel_policy::time::Instant;

use super::flow_table::LinkFlow;
use super::{LinkSession, SessionEvent};
use crate::flow::FlowLane;

/// Traffic of the lane since the last review, sampled at every tick.
#[derive(Debug, Default)]
pub(super) struct LaneSamples {
    count: u32,
    /// Samples in which a flow had data to send, or its last data was on the way.
    busy: u32,
    /// Sum of the windows of these flows over the busy samples.
    window_sum: u64,
}

impl LaneSamples {
    fn record(&mut self, window: Option<u64>) {
        self.count += 1;
        if let Some(window) = window {
            self.busy += 1;
            self.window_sum = self.window_sum.saturating_add(window);
        }
    }

    fn demand(&self) -> BondDemand {
        if self.busy == 0 || 2 * self.busy < self.count {
            return BondDemand::Idle;
        }
        BondDemand::Busy { window: self.window_sum / u64::from(self.busy) }
    }
}

impl LinkSession {
    /// Samples the traffic of the bonded lane, and reviews its paths once per interval.
    pub(super) fn review_bonded_lane(&mut self, now: Instant) {
        let is_busy = |flow: &LinkFlow| flow.lane == FlowLane::Bonded && flow.send.has_demand();
        let windows = self.flows.iter().filter(|(_, flow)| is_busy(flow)).map(|(_, flow)| flow.send.window());
        let window =
            windows.fold(None, |sum: Option<u64>, window| Some(sum.unwrap_or(0).saturating_add(window)));
        self.lane_samples.record(window);
        let interval = self.config.bond.interval();
        if now.since(self.lane_reviewed_at) < interval {
            return;
        }
        let elapsed = now.since(std::mem::replace(&mut self.lane_reviewed_at, now));
        let demand = std::mem::take(&mut self.lane_samples).demand();
        let paths: Vec<BondPath> = self.paths.bond_measurements(now, elapsed);
        let changes = self.paths.bonded_lane.review(now, &paths, demand);
        if changes.is_empty() {
            return;
        }
        for change in changes {
            self.paths.bonded_exits += u64::from(change.kind == BondChangeKind::Left);
            self.events.push_back(SessionEvent::BondedLaneChanged { change });
        }
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_is_busy_if_half_of_the_samples_are_and_its_window_is_their_mean() {
        let mut samples = LaneSamples::default();
        assert_eq!(samples.demand(), BondDemand::Idle);
        for window in [None, Some(100), None, Some(300)] {
            samples.record(window);
        }
        assert_eq!(samples.demand(), BondDemand::Busy { window: 200 });
        samples.record(None);
        assert_eq!(samples.demand(), BondDemand::Idle);
    }
}
