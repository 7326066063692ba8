//! Datagram flows: delivery is not reliable, but each datagram has a sequence number.
//!
//! Opening, ending and resetting a flow are reliable.
//!
//! Limits: those of the [send queue](send_queue) and the [receiver] of each flow; [`RECEIVED_BYTES_MAX`] bytes
//! received by all flows; [`EARLY_MAX`] datagrams of flows that are not open yet.

mod fragments;
mod receiver;
mod reorder;
mod send_queue;
mod sequence_window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Instant;

use super::flow_table::{FlowKnowledge, LinkFlow};
use super::link_path::LinkPath;
use super::ready::ReadyFlows;
use super::{LinkSession, Observation, ProtocolError, Read, SessionEvent, Transmit};
use crate::flow::{DatagramMode, FlowEnd, FlowId, FlowLane};
use crate::frame::{FRAGMENTS_MAX, Fragment, MESSAGE_HEADER_BYTES_MAX, Message, SendTime, encode_message};
use receiver::DatagramReceiver;
pub(super) use reorder::{DEADLINE_MAX, ReleaseRule, deadline};
use send_queue::{NumberedDatagram, SendQueue};

/// Maximum length of a flow's datagram: the longest payload of a UDP datagram over IPv4.
pub const PAYLOAD_BYTES_MAX: usize = 65_507;

/// Maximum number of bytes that all flows together store of received datagrams; further datagrams are dropped.
const RECEIVED_BYTES_MAX: usize = 64 << 20;

/// Maximum number of datagrams that are stored until the frame arrives that opens their flow.
const EARLY_MAX: usize = 64;

/// State of all flows of datagrams.
#[derive(Debug, Default)]
pub(super) struct DatagramFlows {
    /// Flows with datagrams to send.
    pub(super) ready: ReadyFlows,
    /// Flows that wait for a path with room.
    blocked: BTreeSet<FlowId>,
    /// Flows with datagrams that wait for earlier ones, and the time at which the first of them has waited long enough.
    reordering: BTreeMap<FlowId, Instant>,
    /// Datagrams that arrived before the frame that opens their flow.
    early: VecDeque<EarlyDatagram>,
    /// Counters of the flows that have ended, and of dropped early datagrams.
    ended: DatagramCounters,
}

#[derive(Debug)]
struct EarlyDatagram {
    path: PathId,
    message: Message,
}

/// Both halves of a flow of datagrams.
#[derive(Debug)]
pub(super) struct DatagramHalves {
    mode: DatagramMode,
    send: SendQueue,
    receive: DatagramReceiver,
}

impl DatagramHalves {
    pub(super) fn new(mode: DatagramMode) -> Self {
        Self { mode, send: SendQueue::default(), receive: DatagramReceiver::new(mode) }
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.send.is_empty()
    }

    /// Returns the number of bytes received and not read.
    pub(super) fn received_bytes(&self) -> usize {
        self.receive.bytes()
    }

    pub(super) fn status(&self) -> DatagramFlowStatus {
        DatagramFlowStatus {
            counters: self.counters(),
            reorder_datagrams: self.receive.held() as u64,
            reorder_bytes: self.receive.held_bytes() as u64,
            reorder_utilisation: self.receive.utilisation(),
        }
    }

    fn counters(&self) -> DatagramCounters {
        DatagramCounters {
            sent: self.send.sent(),
            unsent: self.send.dropped(),
            received: self.receive.delivered(),
            duplicates: self.receive.duplicates(),
            lost: self.receive.lost(),
            late: self.receive.late(),
            unread: self.receive.dropped(),
        }
    }
}

/// Snapshot of a flow of datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatagramFlowStatus {
    pub counters: DatagramCounters,
    /// Datagrams that wait for earlier ones.
    pub reorder_datagrams: u64,
    /// Bytes of those datagrams.
    pub reorder_bytes: u64,
    /// Fraction of the reorder buffer in use.
    pub reorder_utilisation: f64,
}

/// Numbers of datagrams of one or several flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// Datagrams sent; copies count once.
    pub sent: u64,
    /// Datagrams that were not sent, because no path had room or they are too long.
    pub unsent: u64,
    /// Datagrams passed to the application, or ready for it.
    pub received: u64,
    /// Copies that were dropped.
    pub duplicates: u64,
    /// Missing sequence numbers: given up (`stripe`), or not arrived yet (`pin`, `duplicate`).
    pub lost: u64,
    /// Datagrams that arrived after they had been given up, and were dropped.
    pub late: u64,
    /// Datagrams dropped because a receive buffer was full; at the limits of all flows together, each fragment counts.
    pub unread: u64,
}

impl DatagramCounters {
    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.lost = self.lost.saturating_add(other.lost);
        self.late += other.late;
        self.unread += other.unread;
    }
}

impl LinkSession {
    /// Sends a datagram, which may be lost; one longer than [`PAYLOAD_BYTES_MAX`] is dropped.
    pub fn send_datagram(&mut self, now: Instant, flow: FlowId, data: Bytes) -> Result<(), FlowEnd> {
        self.check_open(flow)?;
        self.flows.update(flow, |flow| {
            let Some(halves) = &mut flow.datagrams else { return };
            if PAYLOAD_BYTES_MAX < data.len() {
                halves.send.record_dropped();
            } else {
                halves.send.push(now, data);
            }
        });
        self.wake(flow);
        Ok(())
    }

    /// Removes the next received datagram; it may be empty.
    pub fn receive_datagram(&mut self, flow: FlowId) -> Read {
        match self.check_open(flow) {
            Ok(()) => {}
            Err(FlowEnd::Finished) => return Read::Finished,
            Err(FlowEnd::Reset(reason)) => return Read::Reset(reason),
        }
        let read = self.flows.update(flow, |flow| {
            let data = flow.datagrams.as_mut().and_then(|halves| halves.receive.read());
            flow.wants_read = data.is_none();
            data
        });
        read.flatten().map_or(Read::Pending, Read::Data)
    }

    /// Queues all copies and fragments of the next datagram and returns the first queued transmission.
    pub(super) fn transmit_datagram(&mut self, now: Instant, id: FlowId) -> Option<Transmit> {
        let next_len = |flow: &mut LinkFlow| flow.datagrams.as_mut()?.send.next_len(now);
        let len = self.flows.update(id, next_len).flatten()?;
        let paths = self.datagram_paths(now, id, (len + MESSAGE_HEADER_BYTES_MAX) as u64);
        if paths.is_empty() {
            self.datagrams.blocked.insert(id);
            return None;
        }
        let take = |flow: &mut LinkFlow| flow.datagrams.as_mut()?.send.take();
        let NumberedDatagram { sequence, data } = self.flows.update(id, take).flatten()?;
        let packet_max = paths.iter().filter_map(|path| self.paths.get(*path)).map(LinkPath::datagram_max);
        let part_max = packet_max.min().unwrap_or_default().saturating_sub(MESSAGE_HEADER_BYTES_MAX);
        let part_max = part_max.max(data.len().div_ceil(FRAGMENTS_MAX.into())).max(1);
        let count = data.len().div_ceil(part_max).max(1);
        let sent_at = SendTime::new(now);
        for index in 0..count {
            let start = index * part_max;
            let part = data.slice(start..data.len().min(start + part_max));
            let fragment = Fragment { index: index as u8, count: count as u8 };
            let message = encode_message(&Message { flow: id, sequence, sent_at, fragment, data: part });
            for path in &paths {
                self.queue_datagram(*path, message.clone());
            }
        }
        self.transmits.pop_front()
    }

    fn queue_datagram(&mut self, path: PathId, data: Bytes) {
        if let Some(known) = self.paths.get_mut(path) {
            known.datagram_queued += data.len() as u64;
            known.counters.datagrams_sent += 1;
            known.counters.sent_bytes += data.len() as u64;
        }
        self.transmits.push_back(Transmit::Datagram { path, data });
    }

    /// Returns the paths that the next datagram of a flow takes; none if it must wait.
    fn datagram_paths(&mut self, now: Instant, id: FlowId, len: u64) -> Vec<PathId> {
        let Some(flow) = self.flows.get(id) else { return Vec::new() };
        let home = flow.home;
        let Some(DatagramHalves { mode, send, .. }) = &flow.datagrams else { return Vec::new() };
        match mode {
            DatagramMode::Stripe => self.paths.pick_for_datagram(now, len).into_iter().collect(),
            DatagramMode::Duplicate => self.paths.paths_for_copies(now, len),
            DatagramMode::Pin => {
                let lane = FlowLane::Datagram(DatagramMode::Pin);
                let pinned = send.pinned.or(home);
                let kept = pinned.filter(|path| self.paths.keeps_pinned(now, *path));
                let path = kept.or_else(|| self.paths.pick_for_flow(now, lane, pinned)).or(pinned);
                self.flows.update(id, |flow| {
                    if let Some(halves) = &mut flow.datagrams {
                        halves.send.pinned = path;
                    }
                });
                let has_room =
                    |path: &PathId| self.paths.get(*path).is_some_and(|path| path.takes_datagram(len));
                path.into_iter().filter(has_room).collect()
            }
        }
    }

    /// Lets the flows that wait for a path with room try again.
    pub(super) fn unblock_datagrams(&mut self) {
        for id in std::mem::take(&mut self.datagrams.blocked) {
            self.datagrams.ready.insert(id);
        }
    }

    /// Handles a datagram of a flow, or a fragment of one.
    pub(super) fn receive_fragment(
        &mut self,
        now: Instant,
        path: PathId,
        message: Message,
    ) -> Result<(), ProtocolError> {
        if let Some(path) = self.paths.get_mut(path) {
            path.counters.datagrams_received += 1;
            path.counters.received_bytes += message.data.len() as u64;
            path.record_one_way(now, message.sent_at);
        }
        self.accept_message(now, path, message)
    }

    /// Passes a datagram to its flow, or keeps it until the flow is open.
    fn accept_message(&mut self, now: Instant, path: PathId, message: Message) -> Result<(), ProtocolError> {
        let id = message.flow;
        match self.flows.knowledge(id) {
            FlowKnowledge::Open => {}
            FlowKnowledge::Unused if id.opener() == self.side => {
                return Err(ProtocolError::UnknownFlow { flow: id });
            }
            FlowKnowledge::Unused => {
                if EARLY_MAX <= self.datagrams.early.len() {
                    self.datagrams.early.pop_front();
                    self.datagrams.ended.unread += 1;
                }
                self.datagrams.early.push_back(EarlyDatagram { path, message });
                return Ok(());
            }
            FlowKnowledge::Ended(_) | FlowKnowledge::Forgotten => return Ok(()),
        }
        if self.flows.get(id).is_none_or(|flow| flow.datagrams.is_none()) {
            return Err(ProtocolError::NoDatagramFlow { flow: id });
        }
        let is_full = RECEIVED_BYTES_MAX < self.flows.usage().datagram_bytes + message.data.len();
        self.flows.update(id, |flow| {
            let Some(halves) = &mut flow.datagrams else { return };
            if is_full {
                halves.receive.record_dropped();
            } else {
                halves.receive.receive(now, path, message);
            }
        });
        self.release_datagrams(now, id);
        Ok(())
    }

    /// Handles the datagrams that arrived before the frame that opens their flow.
    pub(super) fn receive_early(&mut self, now: Instant, id: FlowId) -> Result<(), ProtocolError> {
        let early = std::mem::take(&mut self.datagrams.early);
        let (of_flow, others): (VecDeque<_>, _) =
            early.into_iter().partition(|early| early.message.flow == id);
        self.datagrams.early = others;
        of_flow.into_iter().try_for_each(|early| self.accept_message(now, early.path, early.message))
    }

    /// Lets the application read the datagrams of a flow that do not have to wait any longer.
    fn release_datagrams(&mut self, now: Instant, id: FlowId) {
        let Some(halves) = self.flows.get(id).and_then(|flow| flow.datagrams.as_ref()) else { return };
        // Each side decides which paths it sends on, so a path that this side does not use may carry the flow.
        let used: BTreeSet<PathId> = halves.receive.paths().collect();
        let rule = self.paths.release_rule(now, &used);
        let released = self.flows.update(id, |flow| {
            let Some(halves) = &mut flow.datagrams else { return (Vec::new(), None, false) };
            let delays = halves.receive.release(now, &rule);
            let due_at = halves.receive.due_at(rule.deadline);
            let is_event_due = halves.receive.is_readable() && std::mem::take(&mut flow.wants_read);
            (delays, due_at, is_event_due)
        });
        let Some((delays, due_at, is_event_due)) = released else { return };
        for delay in delays {
            self.observe(Observation::ReorderDelay { delay });
        }
        match due_at {
            Some(due_at) => self.datagrams.reordering.insert(id, due_at),
            None => self.datagrams.reordering.remove(&id),
        };
        if is_event_due {
            self.events.push_back(SessionEvent::Readable { flow: id });
        }
    }

    /// Returns the time at which datagrams have waited long enough for earlier ones.
    pub(super) fn datagrams_due_at(&self) -> Option<Instant> {
        self.datagrams.reordering.values().min().copied()
    }

    /// Gives up the missing datagrams whose deadline has passed.
    pub(super) fn release_due_datagrams(&mut self, now: Instant) {
        let due = self.datagrams.reordering.iter().filter(|(_, due_at)| **due_at <= now);
        let due: Vec<FlowId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.release_datagrams(now, id);
        }
    }

    /// Forgets a flow that is about to be closed, except for its counters.
    pub(super) fn forget_datagrams(&mut self, id: FlowId) {
        if let Some(halves) = self.flows.get(id).and_then(|flow| flow.datagrams.as_ref()) {
            self.datagrams.ended.add(halves.counters());
            self.datagrams.ready.remove(id);
            self.datagrams.blocked.remove(&id);
            self.datagrams.reordering.remove(&id);
        }
    }

    /// Returns the sums over all flows, those that have ended included.
    pub(super) fn datagram_totals(&self) -> DatagramCounters {
        let mut totals = self.datagrams.ended;
        for (_, flow) in self.flows.iter() {
            if let Some(halves) = &flow.datagrams {
                totals.add(halves.counters());
            }
        }
        totals
    }
}
