//! The flows of a session, their identifiers, and the memory that they use together.
//!
//! Guarantees: an identifier is used once; the sums over all flows equal what the flows report.
//!
//! Limits: [`CLOSED_WINDOW`] identifiers per side are remembered after their flow has ended; older ones count as closed.

use std::collections::BTreeMap;

use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Instant;

use super::datagrams::DatagramHalves;
use super::receive_half::ReceiveHalf;
use super::send_half::SendHalf;
use crate::flow::{FlowEnd, FlowId, FlowLane, Side};

/// Number of identifiers of one side that are remembered.
pub(super) const CLOSED_WINDOW: u64 = 4_096;

/// One open flow.
#[derive(Debug)]
pub(super) struct LinkFlow {
    pub(super) lane: FlowLane,
    pub(super) send: SendHalf,
    pub(super) receive: ReceiveHalf,
    /// Datagrams of a flow that carries them; its byte streams then carry only their ends.
    pub(super) datagrams: Option<DatagramHalves>,
    pub(super) introduction: Introduction,
    /// Path of the flow's own stream.
    pub(super) home: Option<PathId>,
    /// Healthy active path that stalled the flow, and the time at which the flow left it.
    pub(super) hedged_from: Option<(PathId, Instant)>,
    /// Bytes on that stream that the connection has not taken.
    pub(super) home_queued: u64,
    /// Reports whether a read found nothing, and no event has followed.
    pub(super) wants_read: bool,
    /// Time of the last acknowledgement, or at which the wait for one began.
    pub(super) acked_at: Instant,
    /// Requests for an acknowledgement since then.
    pub(super) requests: u32,
}

/// Knowledge of the peer about a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Introduction {
    /// The peer may not have heard of the flow. Its data stays on one stream, behind the frame that opens it.
    Unconfirmed {
        target: String,
        /// Reports whether the frame was sent on the current stream.
        is_sent: bool,
    },
    /// The peer knows the flow.
    Confirmed,
}

impl LinkFlow {
    pub(super) fn new(now: Instant, lane: FlowLane, introduction: Introduction) -> Self {
        Self {
            lane,
            send: SendHalf::new(),
            receive: ReceiveHalf::new(),
            datagrams: lane.datagram_mode().map(DatagramHalves::new),
            introduction,
            home: None,
            hedged_from: None,
            home_queued: 0,
            wants_read: true,
            acked_at: now,
            requests: 0,
        }
    }

    /// Reports whether the flow's data takes its own stream.
    pub(super) fn has_own_stream(&self) -> bool {
        !matches!(self.lane, FlowLane::Bonded | FlowLane::Redundant)
            || self.introduction != Introduction::Confirmed
    }

    /// Reports whether the frame that opens the flow must be sent next.
    pub(super) fn needs_open(&self) -> bool {
        matches!(self.introduction, Introduction::Unconfirmed { is_sent: false, .. })
    }

    /// Reports whether the frame that opens the flow was sent, and the peer has not acknowledged it.
    pub(super) fn is_unconfirmed(&self) -> bool {
        matches!(self.introduction, Introduction::Unconfirmed { is_sent: true, .. })
    }

    /// Lets the frame that opens the flow be sent again, unless the peer knows the flow.
    pub(super) fn repeat_open(&mut self) -> bool {
        match &mut self.introduction {
            Introduction::Unconfirmed { is_sent, .. } => {
                *is_sent = false;
                true
            }
            Introduction::Confirmed => false,
        }
    }

    /// Reports whether both directions have ended.
    pub(super) fn is_over(&self) -> bool {
        self.send.is_done() && self.receive.is_read()
    }

    fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            retained: self.send.retained(),
            chunks: self.send.chunks(),
            buffered: self.receive.buffered(),
            windows: self.receive.window(),
            runs: self.receive.runs(),
            datagram_bytes: self.datagrams.as_ref().map_or(0, DatagramHalves::received_bytes),
        }
    }
}

/// Memory used by flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryUsage {
    /// Bytes stored until they are acknowledged.
    pub(super) retained: u64,
    /// Chunks beyond the acknowledged offsets.
    pub(super) chunks: usize,
    /// Bytes received and not read.
    pub(super) buffered: u64,
    /// Sum of the receive windows.
    pub(super) windows: u64,
    /// Separately stored pieces beyond gaps.
    pub(super) runs: usize,
    /// Bytes of received datagrams.
    pub(super) datagram_bytes: usize,
}

impl MemoryUsage {
    fn add(&mut self, other: Self) {
        self.retained += other.retained;
        self.chunks += other.chunks;
        self.buffered += other.buffered;
        self.windows += other.windows;
        self.runs += other.runs;
        self.datagram_bytes += other.datagram_bytes;
    }

    fn subtract(&mut self, other: Self) {
        self.retained -= other.retained;
        self.chunks -= other.chunks;
        self.buffered -= other.buffered;
        self.windows -= other.windows;
        self.runs -= other.runs;
        self.datagram_bytes -= other.datagram_bytes;
    }
}

/// Knowledge of this side about an identifier.
#[derive(Debug)]
pub(super) enum FlowKnowledge<'a> {
    Open,
    /// The flow ended, and its identifier is remembered.
    Ended(&'a FlowEnd),
    /// The identifier is too old to be remembered.
    Forgotten,
    /// The flow was never opened.
    Unused,
}

/// Identifiers of the flows that one side opens.
#[derive(Debug)]
struct IdSpace {
    /// Identifier after the highest one in use.
    next: FlowId,
    closed: BTreeMap<FlowId, FlowEnd>,
}

impl IdSpace {
    fn new(side: Side) -> Self {
        Self { next: side.first_flow(), closed: BTreeMap::new() }
    }

    fn note(&mut self, id: FlowId) {
        self.next = self.next.max(FlowId(id.0 + 2));
    }

    fn close(&mut self, id: FlowId, end: FlowEnd) {
        self.note(id);
        self.closed.insert(id, end);
        while let Some(entry) = self.closed.first_entry()
            && self.next.0 > entry.key().0 + 2 * CLOSED_WINDOW
        {
            entry.remove();
        }
    }

    fn knowledge(&self, id: FlowId) -> FlowKnowledge<'_> {
        match self.closed.get(&id) {
            Some(end) => FlowKnowledge::Ended(end),
            None if self.next.0 > id.0 + 2 * CLOSED_WINDOW => FlowKnowledge::Forgotten,
            None => FlowKnowledge::Unused,
        }
    }
}

/// The flows of a session.
#[derive(Debug)]
pub(super) struct FlowTable {
    side: Side,
    flows: BTreeMap<FlowId, LinkFlow>,
    usage: MemoryUsage,
    local: IdSpace,
    remote: IdSpace,
}

impl FlowTable {
    /// Creates a table with the control flow.
    pub(super) fn new(side: Side, now: Instant) -> Self {
        let local = IdSpace::new(side);
        let remote = IdSpace::new(side.other());
        let mut table = Self { side, flows: BTreeMap::new(), usage: MemoryUsage::default(), local, remote };
        table.insert(FlowId::CONTROL, LinkFlow::new(now, FlowLane::Stream, Introduction::Confirmed));
        table
    }

    /// Adds a flow that this side opens.
    pub(super) fn open(&mut self, flow: LinkFlow) -> FlowId {
        let id = self.local.next;
        self.insert(id, flow);
        id
    }

    /// Adds a flow; its identifier must be [unused](FlowKnowledge::Unused).
    pub(super) fn insert(&mut self, id: FlowId, flow: LinkFlow) {
        self.usage.add(flow.usage());
        self.flows.insert(id, flow);
        self.ids_of(id).note(id);
    }

    /// Removes a flow and remembers its end; an identifier that was never opened can no longer be.
    pub(super) fn close(&mut self, id: FlowId, end: FlowEnd) {
        if let Some(flow) = self.flows.remove(&id) {
            self.usage.subtract(flow.usage());
        }
        self.ids_of(id).close(id, end);
    }

    fn ids_of(&mut self, id: FlowId) -> &mut IdSpace {
        if id.opener() == self.side { &mut self.local } else { &mut self.remote }
    }

    pub(super) fn knowledge(&self, id: FlowId) -> FlowKnowledge<'_> {
        if self.flows.contains_key(&id) {
            return FlowKnowledge::Open;
        }
        let ids = if id.opener() == self.side { &self.local } else { &self.remote };
        ids.knowledge(id)
    }

    pub(super) fn get(&self, id: FlowId) -> Option<&LinkFlow> {
        self.flows.get(&id)
    }

    /// Changes a flow and updates the sums; `None` if there is no such flow.
    pub(super) fn update<T>(&mut self, id: FlowId, change: impl FnOnce(&mut LinkFlow) -> T) -> Option<T> {
        let flow = self.flows.get_mut(&id)?;
        self.usage.subtract(flow.usage());
        let result = change(flow);
        self.usage.add(flow.usage());
        Some(result)
    }

    /// Iterates over the flows in the order of their ids, the control flow first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (FlowId, &LinkFlow)> {
        self.flows.iter().map(|(id, flow)| (*id, flow))
    }

    pub(super) fn ids(&self) -> Vec<FlowId> {
        self.flows.keys().copied().collect()
    }

    /// Returns the number of flows besides the control flow.
    pub(super) fn len(&self) -> usize {
        self.flows.len().saturating_sub(1)
    }

    pub(super) fn usage(&self) -> MemoryUsage {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{ResetCode, ResetReason};
    use bytes::Bytes;

    const NOW: Instant = Instant::ORIGIN;

    fn flow() -> LinkFlow {
        LinkFlow::new(NOW, FlowLane::Stream, Introduction::Confirmed)
    }

    #[test]
    fn identifiers_are_used_once() {
        let mut table = FlowTable::new(Side::Listening, NOW);
        let first = table.open(flow());
        table.close(first, FlowEnd::Finished);
        assert_eq!((first, table.open(flow())), (FlowId(3), FlowId(5)));
        assert!(matches!(table.knowledge(first), FlowKnowledge::Ended(FlowEnd::Finished)));
        assert!(matches!(table.knowledge(FlowId(7)), FlowKnowledge::Unused));
    }

    #[test]
    fn of_each_side_4096_identifiers_are_remembered() {
        let mut table = FlowTable::new(Side::Connecting, NOW);
        let reset = FlowEnd::Reset(ResetReason::new(ResetCode::CLOSED, "closed"));
        for number in 0..10_000 {
            table.close(FlowId(3 + 2 * number), reset.clone());
            let own = table.open(flow());
            table.close(own, FlowEnd::Finished);
        }
        assert_eq!(table.remote.closed.len() as u64, CLOSED_WINDOW);
        assert_eq!(table.local.closed.len() as u64, CLOSED_WINDOW);
        assert!(matches!(table.knowledge(FlowId(3)), FlowKnowledge::Forgotten));
        assert!(matches!(table.knowledge(FlowId(3 + 2 * 9_999)), FlowKnowledge::Ended(_)));
    }

    #[test]
    fn the_sums_follow_every_change() {
        let mut table = FlowTable::new(Side::Connecting, NOW);
        let before = table.usage();
        let id = table.open(flow());
        table.update(id, |flow| flow.send.push(Bytes::from_static(b"data")));
        assert_eq!(table.usage().retained, 4);
        assert_eq!(table.usage().windows, 2 * before.windows);
        table.close(id, FlowEnd::Finished);
        assert_eq!(table.usage(), before);
    }
}
