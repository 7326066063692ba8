//! Frames and datagrams for the peer.

use bytes::Bytes;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Instant;

use super::flow_table::{FlowKnowledge, Introduction, LinkFlow};
use super::link_path::LinkPath;
use super::send_half::Transmission;
use super::status::TrafficRole;
use super::{Datagram, LinkSession, StreamKey, Transmit};
use crate::flow::{FlowEnd, FlowId, FlowLane};
use crate::frame::{
    ACK_RANGES_MAX, AckEntry, AckState, AcksWriter, CHUNK_HEADER_BYTES_MAX, Chunk, encode_chunk_header,
    encode_open,
};

/// Bytes of a flow's own stream that may wait for the connection.
const STREAM_QUEUE_MAX: u64 = 64 * 1024;

/// Maximum number of chunks of all flows beyond the acknowledged offsets.
const SESSION_CHUNKS_MAX: usize = 32_768;

/// Maximum number of ranges in a batch of acknowledgements, shared by its flows; each flow has at least one.
const BATCH_RANGES_MAX: usize = 16 * ACK_RANGES_MAX;

impl LinkSession {
    /// Returns the next work for a connection.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if self.has_ended {
            return None;
        }
        if let Some(transmit) = self.transmits.pop_front() {
            return Some(transmit);
        }
        while let Some(id) = self.ready_streams.next() {
            if let Some(transmit) = self.transmit_on_own_stream(now, id) {
                return Some(transmit);
            }
            self.ready_streams.remove(id);
        }
        while let Some(id) = self.datagrams.ready.next() {
            if let Some(transmit) = self.transmit_datagram(now, id) {
                return Some(transmit);
            }
            self.datagrams.ready.remove(id);
        }
        while !self.is_bonded_blocked
            && let Some(id) = self.ready_bonded.next()
        {
            let is_redundant = self.flows.get(id).is_some_and(|flow| flow.lane == FlowLane::Redundant);
            let transmit =
                if is_redundant { self.transmit_redundant(now, id) } else { self.transmit_bonded(now, id) };
            if let Some(transmit) = transmit {
                return Some(transmit);
            }
            if !self.is_bonded_blocked {
                self.ready_bonded.remove(id);
            }
        }
        None
    }

    /// Returns the next frame of a flow for its own stream, whose path is picked first if necessary.
    fn transmit_on_own_stream(&mut self, now: Instant, id: FlowId) -> Option<Transmit> {
        let flow = self.flows.get(id).filter(|flow| flow.has_own_stream())?;
        let needs_open = flow.needs_open();
        let queued = flow.home_queued;
        let len = if needs_open { 0 } else { self.sendable_len(id)? };
        if STREAM_QUEUE_MAX < queued + (len + CHUNK_HEADER_BYTES_MAX) as u64 {
            return None;
        }
        let path = match self.flows.get(id)?.home {
            Some(path) => path,
            None => {
                let lane = self.flows.get(id)?.lane;
                let path = self.paths.pick_for_flow(now, lane, None)?;
                self.flows.update(id, |flow| flow.home = Some(path));
                path
            }
        };
        let stream = StreamKey::Flow(id);
        if needs_open {
            let header = self.open_frame(id)?;
            if self
                .flows
                .get(id)
                .is_some_and(|flow| flow.send.is_end_sent() && flow.send.next_len().is_none())
            {
                // Only the frame that opens the flow is repeated, so nothing else ends this stream.
                self.transmits.push_back(Transmit::Finish { path, stream });
            }
            return Some(self.transmit(path, stream, header, Bytes::new()));
        }
        let chunk = self.take_chunk(now, id, path)?;
        if chunk.fin {
            self.transmits.push_back(Transmit::Finish { path, stream });
        }
        let header = encode_chunk_header(&chunk);
        Some(self.transmit(path, stream, header, chunk.data))
    }

    /// Returns the next frame of a bonded flow, for the path that is picked for it.
    fn transmit_bonded(&mut self, now: Instant, id: FlowId) -> Option<Transmit> {
        let flow = self.flows.get(id).filter(|flow| !flow.has_own_stream())?;
        let late_on = flow.send.next_was_on();
        let len = (self.sendable_len(id)? + CHUNK_HEADER_BYTES_MAX) as u64;
        let Some(path) = self.paths.pick_for_chunk(now, len, late_on) else {
            self.is_bonded_blocked = true;
            return None;
        };
        let chunk = self.take_chunk(now, id, path)?;
        let header = encode_chunk_header(&chunk);
        Some(self.transmit(path, StreamKey::Bonded, header, chunk.data))
    }

    /// Returns the next frame of a redundant flow, for one of the two best paths.
    ///
    /// Each path carries what only the other one carries, then new data. So neither waits for the other, and if one fails,
    /// the other has or gets everything without a timeout.
    fn transmit_redundant(&mut self, now: Instant, id: FlowId) -> Option<Transmit> {
        self.flows.get(id).filter(|flow| !flow.has_own_stream())?;
        let new_len = self.sendable_len(id);
        for path in self.paths.best_two(now) {
            let copy = self.flows.get(id)?.send.next_copy(path);
            let Some(len) = copy.map(|(_, len)| len).or(new_len) else { continue };
            if !self.paths.get(path)?.takes_chunk((len + CHUNK_HEADER_BYTES_MAX) as u64) {
                self.blocked_redundant.insert(id);
                continue;
            }
            let chunk = match copy {
                Some((offset, _)) => {
                    self.paths.get_mut(path)?.counters.sent_bytes += len as u64;
                    self.flows.update(id, |flow| flow.send.take_copy(id, offset, path))??
                }
                None => {
                    let chunk = self.take_chunk(now, id, path)?;
                    self.flows.update(id, |flow| flow.send.request_copy(chunk.offset));
                    chunk
                }
            };
            let header = encode_chunk_header(&chunk);
            return Some(self.transmit(path, StreamKey::Bonded, header, chunk.data));
        }
        None
    }

    /// Returns the number of data bytes in the next chunk of a flow; `None` if it has none to send.
    fn sendable_len(&mut self, id: FlowId) -> Option<usize> {
        let send = &self.flows.get(id)?.send;
        let len = send.next_len()?;
        if send.next_transmission() == Transmission::First && SESSION_CHUNKS_MAX <= self.flows.usage().chunks
        {
            self.is_chunk_blocked = true;
            return None;
        }
        Some(len)
    }

    fn open_frame(&mut self, id: FlowId) -> Option<Bytes> {
        let flow = self.flows.get(id)?;
        let lane = flow.lane;
        self.flows.update(id, |flow| match &mut flow.introduction {
            Introduction::Unconfirmed { target, is_sent } => {
                *is_sent = true;
                Some(encode_open(id, lane, target))
            }
            Introduction::Confirmed => None,
        })?
    }

    fn take_chunk(&mut self, now: Instant, id: FlowId, path: PathId) -> Option<Chunk> {
        let transmission = self.flows.get(id)?.send.next_transmission();
        let chunk = self.flows.update(id, |flow| {
            if !flow.send.awaits_ack() {
                flow.acked_at = now;
                flow.requests = 0;
            }
            flow.send.take(now, id, path)
        })??;
        let counters = &mut self.paths.get_mut(path)?.counters;
        counters.sent_bytes += chunk.data.len() as u64;
        if transmission == Transmission::Again {
            counters.reinjected_bytes += chunk.data.len() as u64;
        }
        Some(chunk)
    }

    /// Counts a frame as waiting for its connection.
    fn transmit(&mut self, path: PathId, stream: StreamKey, header: Bytes, data: Bytes) -> Transmit {
        let len = (header.len() + data.len()) as u64;
        if let Some(path) = self.paths.get_mut(path) {
            match stream {
                StreamKey::Flow(_) => path.stream_queued += len,
                StreamKey::Bonded => path.bonded_queued += len,
            }
        }
        if let StreamKey::Flow(id) = stream {
            self.flows.update(id, |flow| flow.home_queued += len);
        }
        Transmit::Frame { path, stream, header, data }
    }

    /// Records that the connection took `bytes` of the frames passed to it.
    pub fn handle_written(&mut self, path: PathId, stream: StreamKey, bytes: u64) {
        let Some(known) = self.paths.get_mut(path) else { return };
        match stream {
            StreamKey::Bonded => {
                known.bonded_queued = known.bonded_queued.saturating_sub(bytes);
                self.is_bonded_blocked = false;
                for id in std::mem::take(&mut self.blocked_redundant) {
                    self.wake(id);
                }
            }
            StreamKey::Flow(id) => {
                let is_home = |flow: &LinkFlow| flow.home == Some(path);
                if !self.flows.get(id).is_some_and(is_home) {
                    return;
                }
                known.stream_queued = known.stream_queued.saturating_sub(bytes);
                self.flows.update(id, |flow| flow.home_queued = flow.home_queued.saturating_sub(bytes));
                self.wake(id);
            }
        }
    }

    /// Records that the connection took a datagram of this length, or dropped it.
    pub fn handle_datagram_sent(&mut self, path: PathId, bytes: u64) {
        if let Some(path) = self.paths.get_mut(path) {
            path.datagram_queued = path.datagram_queued.saturating_sub(bytes);
            self.unblock_datagrams();
        }
    }

    /// Forgets the path of a flow's own stream.
    pub(super) fn release_home(&mut self, id: FlowId) {
        let Some((home, queued)) = self.flows.update(id, |flow| {
            let home = flow.home.take();
            flow.repeat_open();
            (home, std::mem::take(&mut flow.home_queued))
        }) else {
            return;
        };
        if let Some(path) = home.and_then(|home| self.paths.get_mut(home)) {
            path.stream_queued = path.stream_queued.saturating_sub(queued);
        }
    }

    /// Returns the next acknowledgements or probe to send, as a datagram.
    pub fn poll_datagram(&mut self, now: Instant) -> Option<Datagram> {
        if self.has_ended {
            return None;
        }
        if let Some(datagram) = self.packets.pop_front() {
            return Some(datagram);
        }
        self.paths.connected().next()?;
        let batch = self.acks.take(now)?;
        let mut writer = AcksWriter::default();
        let ranges_max = (BATCH_RANGES_MAX / batch.acks.len().max(1)).clamp(1, ACK_RANGES_MAX);
        for id in batch.acks {
            if let Some(state) = self.ack_state(id, ranges_max) {
                writer.push(&AckEntry { flow: id, state });
            }
        }
        for flow in batch.requests {
            writer.push(&AckEntry { flow, state: AckState::Request });
        }
        let datagrams = writer.finish();
        let without_candidates = self.paths.has_healthy_active(now);
        let takes_acks = |path: &&mut LinkPath| {
            path.is_connected && (path.role == TrafficRole::Active || !without_candidates)
        };
        for path in self.paths.ids() {
            let Some(path) = self.paths.get_mut(path).filter(takes_acks) else { continue };
            let for_path = datagrams.iter().map(|data| Datagram { path: path.id, data: data.clone() });
            self.packets.extend(for_path);
        }
        self.packets.pop_front()
    }

    /// Returns the state of a flow that the peer must know; `None` if it learns of it otherwise.
    fn ack_state(&mut self, id: FlowId, ranges_max: usize) -> Option<AckState> {
        match self.flows.knowledge(id) {
            FlowKnowledge::Open => {
                self.flows.update(id, |flow| AckState::Open(flow.receive.acknowledge(ranges_max)))
            }
            FlowKnowledge::Ended(FlowEnd::Finished) => Some(AckState::Finished),
            FlowKnowledge::Ended(FlowEnd::Reset(_)) => None,
            FlowKnowledge::Forgotten | FlowKnowledge::Unused => {
                self.acks.forget(id);
                Some(AckState::Closed)
            }
        }
    }
}
