//! Flows that may have something to send, in turns.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::flow::FlowId;

/// Flows that take turns.
#[derive(Debug, Default)]
pub(super) struct ReadyFlows {
    flows: BTreeSet<FlowId>,
    /// Flow that had the last turn.
    last: Option<FlowId>,
}

impl ReadyFlows {
    pub(super) fn insert(&mut self, flow: FlowId) {
        self.flows.insert(flow);
    }

    pub(super) fn remove(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
    }

    /// Returns the flow whose turn it is: the control flow, or the one after the last.
    pub(super) fn next(&mut self) -> Option<FlowId> {
        let first = self.flows.first().copied()?;
        if first == FlowId::CONTROL {
            return Some(first);
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.flows.range((after, Bound::Unbounded)).next().copied().unwrap_or(first);
        self.last = Some(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_take_turns_and_the_control_flow_comes_first() {
        let mut ready = ReadyFlows::default();
        assert_eq!(ready.next(), None);
        for flow in [2, 4, 9] {
            ready.insert(FlowId(flow));
        }
        let turns: Vec<u64> = (0..7).filter_map(|_| ready.next()).map(|flow| flow.0).collect();
        assert_eq!(turns, [2, 4, 9, 2, 4, 9, 2]);
        ready.insert(FlowId::CONTROL);
        ready.remove(FlowId(4));
        assert_eq!(ready.next(), Some(FlowId::CONTROL));
        ready.remove(FlowId::CONTROL);
        assert_eq!(ready.next(), Some(FlowId(9)));
    }
}
