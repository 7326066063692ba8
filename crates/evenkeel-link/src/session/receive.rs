//! Frames and datagrams from the peer.

use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Instant;

use super::acks::Urgency;
use super::flow_table::{FlowKnowledge, Introduction, LinkFlow};
use super::receive_half::BadChunk;
use super::{LinkSession, Observation, ProtocolError, SessionEvent, StreamKey, Transmit};
use crate::flow::{FlowEnd, FlowId, FlowLane, ResetCode, ResetReason};
use crate::frame::{AckEntry, AckState, Chunk, ControlMessage, DatagramFrame, FlowAck, Frame};

/// Maximum number of pieces beyond gaps that all flows together store.
const RUNS_MAX: usize = 65_536;

impl LinkSession {
    /// Handles a frame, or a part of a chunk, that arrived on a stream.
    ///
    /// If it fails, the session has ended.
    pub fn handle_frame(&mut self, now: Instant, path: PathId, frame: Frame) -> Result<(), ProtocolError> {
        if self.has_ended {
            return Ok(());
        }
        self.alive_at = self.alive_at.max(now);
        let result = match frame {
            Frame::Open { flow, lane, target } => self.accept(now, flow, lane, target),
            Frame::Chunk(chunk) => self.receive_chunk(now, path, chunk),
        };
        self.fail_on_error(now, result)
    }

    /// Handles a datagram that arrived on a path.
    ///
    /// If it fails, the session has ended.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.has_ended {
            return Ok(());
        }
        self.alive_at = self.alive_at.max(now);
        let result = match DatagramFrame::decode(datagram) {
            Ok(DatagramFrame::Probe { .. }) => Ok(()),
            Ok(DatagramFrame::Message(message)) => self.receive_fragment(now, path, message),
            Ok(DatagramFrame::Acks(entries)) => {
                let result = entries.into_iter().try_for_each(|entry| self.receive_ack_entry(now, entry));
                self.notify_writers(now);
                result
            }
            Err(error) => Err(error.into()),
        };
        self.fail_on_error(now, result)
    }

    fn fail_on_error(
        &mut self,
        now: Instant,
        result: Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        if let Err(error) = &result {
            self.fail(now, error.clone().into());
        }
        result
    }

    /// Accepts a flow of the peer. A repeated frame is ignored, except that it asks for an acknowledgement.
    fn accept(
        &mut self,
        now: Instant,
        id: FlowId,
        lane: FlowLane,
        target: String,
    ) -> Result<(), ProtocolError> {
        if id.opener() == self.side || id < self.side.other().first_flow() {
            return Err(ProtocolError::ForeignFlow { flow: id });
        }
        match self.flows.knowledge(id) {
            FlowKnowledge::Open | FlowKnowledge::Ended(FlowEnd::Finished) => {
                self.acks.mark(id, Urgency::AtOnce);
                return Ok(());
            }
            FlowKnowledge::Ended(FlowEnd::Reset(_)) | FlowKnowledge::Forgotten => return Ok(()),
            FlowKnowledge::Unused => {}
        }
        if let Err(error) = self.check_room() {
            let reason = ResetReason::new(ResetCode::TOO_MANY_FLOWS, error.to_string());
            self.flows.close(id, FlowEnd::Reset(reason.clone()));
            self.send_control(now, &ControlMessage::Reset { flow: id, reason });
            return Ok(());
        }
        self.flows.insert(id, LinkFlow::new(now, lane, Introduction::Confirmed));
        self.acks.mark(id, Urgency::Soon);
        self.events.push_back(SessionEvent::Accepted { flow: id, lane, target });
        self.receive_early(now, id)
    }

    fn receive_chunk(&mut self, now: Instant, path: PathId, chunk: Chunk) -> Result<(), ProtocolError> {
        let id = chunk.flow;
        let end = chunk.offset + chunk.data.len() as u64;
        if let Some(path) = self.paths.get_mut(path) {
            path.counters.received_bytes += chunk.data.len() as u64;
        }
        match self.flows.knowledge(id) {
            FlowKnowledge::Open => {}
            // The peer learns of a reset from the control flow.
            FlowKnowledge::Ended(FlowEnd::Reset(_)) => return Ok(()),
            FlowKnowledge::Unused if id.opener() == self.side => {
                return Err(ProtocolError::UnknownFlow { flow: id });
            }
            FlowKnowledge::Ended(FlowEnd::Finished) | FlowKnowledge::Forgotten | FlowKnowledge::Unused => {
                self.acks.mark(id, Urgency::Soon);
                return Ok(());
            }
        }
        let received = self.flows.update(id, |flow| {
            let receipt = flow.receive.receive(now, chunk)?;
            let is_event_due = receipt.is_readable && std::mem::take(&mut flow.wants_read);
            Ok((receipt, is_event_due, flow.receive.is_complete()))
        });
        let (receipt, is_event_due, is_complete) = match received {
            Some(Ok(received)) => received,
            Some(Err(BadChunk::BeyondCredit)) => {
                let credit = self.flows.get(id).map_or(0, |flow| flow.receive.credit());
                return Err(ProtocolError::CreditExceeded { flow: id, end, credit });
            }
            Some(Err(BadChunk::AfterEnd)) => return Err(ProtocolError::DataAfterEnd { flow: id }),
            None => return Ok(()),
        };
        if RUNS_MAX < self.flows.usage().runs {
            return Err(ProtocolError::TooManyRuns { flow: id });
        }
        self.duplicate_bytes += receipt.duplicate;
        for delay in receipt.delays {
            self.observe(Observation::ReorderDelay { delay });
        }
        self.acks.mark(id, if is_complete { Urgency::AtOnce } else { Urgency::Soon });
        if id == FlowId::CONTROL {
            return self.receive_control(now, is_complete);
        }
        if is_event_due {
            self.events.push_back(SessionEvent::Readable { flow: id });
        }
        self.end_flow_if_over(now, id);
        Ok(())
    }

    /// Handles the messages on the control flow.
    fn receive_control(&mut self, now: Instant, is_complete: bool) -> Result<(), ProtocolError> {
        if is_complete {
            return Err(ProtocolError::ControlEnded);
        }
        while let Some(mut data) = self
            .flows
            .update(FlowId::CONTROL, |flow| flow.receive.read(usize::MAX))
            .filter(|data| !data.is_empty())
        {
            self.renew_credit(FlowId::CONTROL, data.len() as u64);
            while let Some(message) = self.control.decode(&mut data)? {
                match message {
                    ControlMessage::Reset { flow, reason } => self.receive_reset(now, flow, reason),
                    ControlMessage::Goodbye if !std::mem::replace(&mut self.has_peer_left, true) => {
                        self.events.push_back(SessionEvent::Goodbye);
                    }
                    ControlMessage::Goodbye => {}
                }
            }
        }
        Ok(())
    }

    fn receive_reset(&mut self, now: Instant, id: FlowId, reason: ResetReason) {
        match self.flows.knowledge(id) {
            FlowKnowledge::Open if id != FlowId::CONTROL => self.end_flow(now, id, FlowEnd::Reset(reason)),
            // The frame that opens the flow may still be on its way.
            FlowKnowledge::Unused if id.opener() != self.side => {
                self.flows.close(id, FlowEnd::Reset(reason));
            }
            _ => {}
        }
    }

    fn receive_ack_entry(&mut self, now: Instant, entry: AckEntry) -> Result<(), ProtocolError> {
        let id = entry.flow;
        let is_open = matches!(self.flows.knowledge(id), FlowKnowledge::Open);
        match entry.state {
            AckState::Request => self.acks.mark(id, Urgency::AtOnce),
            AckState::Open(ack) if is_open => self.receive_ack(now, id, &ack)?,
            AckState::Finished if is_open => {
                self.receive_end(now, id, |flow| flow.send.is_end_sent())
                    .ok_or(ProtocolError::AckOfUnsent { flow: id })?;
            }
            AckState::Closed if is_open => {
                if self
                    .receive_end(now, id, |flow| flow.send.is_end_sent() && flow.send.is_delivered())
                    .is_none()
                {
                    let reason = ResetReason::new(ResetCode::CLOSED, "the peer has closed the flow");
                    self.end_flow(now, id, FlowEnd::Reset(reason));
                }
            }
            AckState::Open(_) | AckState::Finished | AckState::Closed => {}
        }
        Ok(())
    }

    fn receive_ack(&mut self, now: Instant, id: FlowId, ack: &FlowAck) -> Result<(), ProtocolError> {
        let outcome = self.flows.update(id, |flow| {
            flow.acked_at = now;
            flow.requests = 0;
            let had_own_stream = flow.has_own_stream();
            flow.introduction = Introduction::Confirmed;
            flow.send.acknowledge(now, ack).map(|_| had_own_stream && !flow.has_own_stream())
        });
        let has_left_stream = outcome.transpose().map_err(|_| ProtocolError::AckOfUnsent { flow: id })?;
        if has_left_stream == Some(true) {
            self.leave_own_stream(id);
        }
        if std::mem::take(&mut self.is_chunk_blocked) {
            self.wake_all();
        }
        self.wake(id);
        self.end_flow_if_over(now, id);
        Ok(())
    }

    /// Finishes the stream on which a bonded or redundant flow was opened; from now on its chunks take several paths.
    fn leave_own_stream(&mut self, id: FlowId) {
        self.ready_streams.remove(id);
        let Some(flow) = self.flows.get(id) else { return };
        if let Some(path) = flow.home
            && !flow.send.is_end_sent()
        {
            self.transmits.push_back(Transmit::Finish { path, stream: StreamKey::Flow(id) });
        }
        if flow.lane == FlowLane::Redundant {
            self.flows.update(id, |flow| flow.send.request_copies());
        }
        self.release_home(id);
    }

    /// Records that everything sent has arrived, if a condition holds; `None` if it does not.
    fn receive_end(
        &mut self,
        now: Instant,
        id: FlowId,
        condition: impl FnOnce(&LinkFlow) -> bool,
    ) -> Option<()> {
        self.flows.get(id).filter(|flow| condition(flow))?;
        self.flows.update(id, |flow| flow.send.acknowledge_all());
        self.end_flow_if_over(now, id);
        Some(())
    }
}
