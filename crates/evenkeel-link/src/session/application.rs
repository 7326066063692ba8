//! Calls of the application: open, write, read, reset.

use bytes::Bytes;
use evenkeel_policy::time::{Duration, Instant};

use super::acks::ACK_INTERVAL;
use super::flow_table::{FlowKnowledge, Introduction, LinkFlow};
use super::{CREDIT_INITIAL, LinkSession, OpenFlowError, ProtocolError, Read, SessionError, SessionEvent};
use crate::flow::{FlowEnd, FlowId, FlowLane, ResetCode, ResetReason, TARGET_BYTES_MAX};
use crate::frame::ControlMessage;

/// Bytes that a flow may retain whatever its rate, while the budget of all flows lasts.
const RETAINED_MIN: u64 = 1 << 20;

/// Bytes that a flow may retain even if other flows have used up the budget, so that receivers that stop reading stall only
/// their own flows.
const RETAINED_ALWAYS: u64 = 64 * 1024;

/// Room for a queue on the path, in the estimate of the bytes on their way.
const QUEUE_ALLOWANCE: Duration = Duration::from_millis(50);

/// Bytes that a flow must take before a blocked application is woken.
const WRITABLE_MIN: u64 = 64 * 1024;

/// Bytes of unacknowledged control messages after which the session fails.
const CONTROL_BACKLOG_MAX: u64 = 1 << 20;

impl LinkSession {
    /// Opens a flow to `target`, which the peer's application interprets; data may be written at once.
    pub fn open(&mut self, now: Instant, lane: FlowLane, target: &str) -> Result<FlowId, OpenFlowError> {
        if self.has_ended {
            return Err(OpenFlowError::SessionEnded);
        }
        if !self.peer_lanes.has(lane) {
            return Err(OpenFlowError::LaneUnsupported { lane });
        }
        if TARGET_BYTES_MAX < target.len() {
            return Err(OpenFlowError::TargetTooLong { len: target.len() });
        }
        self.check_room()?;
        if !self.has_been_connected && self.flows.len() == 0 {
            // The flow waits for the first connection as long as for a later one.
            self.alive_at = now;
        }
        let introduction = Introduction::Unconfirmed { target: target.to_owned(), is_sent: false };
        let id = self.flows.open(LinkFlow::new(now, lane, introduction));
        self.wake(id);
        Ok(id)
    }

    /// Checks that another flow may be opened.
    pub(super) fn check_room(&self) -> Result<(), OpenFlowError> {
        let flows_max = self.config.flows_max;
        if flows_max as usize <= self.flows.len() {
            return Err(OpenFlowError::TooManyFlows { flows_max });
        }
        if self.config.receive_budget < self.flows.usage().windows + CREDIT_INITIAL {
            return Err(OpenFlowError::BudgetExhausted);
        }
        Ok(())
    }

    /// Returns the number of bytes that the next write takes.
    pub fn writable(&self, now: Instant, flow: FlowId) -> usize {
        let Some(flow) = self.flows.get(flow).filter(|flow| !flow.send.is_finished()) else { return 0 };
        let retained = flow.send.retained();
        let of_flow = self.retained_max(now, flow).saturating_sub(retained);
        let of_all = self.config.send_budget.saturating_sub(self.flows.usage().retained);
        let always = RETAINED_ALWAYS.saturating_sub(retained);
        usize::try_from(of_flow.min(of_all.max(always))).unwrap_or(usize::MAX)
    }

    /// Returns the number of bytes that a flow may retain: those on their way until their acknowledgement, and half as
    /// many.
    fn retained_max(&self, now: Instant, flow: &LinkFlow) -> u64 {
        let rtt = self.paths.rtt_max(now).unwrap_or_default();
        let delay = rtt + QUEUE_ALLOWANCE + ACK_INTERVAL;
        let on_their_way = flow.send.rate(now).unwrap_or_default() * delay.as_secs_f64();
        ((1.5 * on_their_way) as u64).clamp(RETAINED_MIN, self.credit_max(flow.lane).max(RETAINED_MIN))
    }

    fn credit_max(&self, lane: FlowLane) -> u64 {
        match lane {
            FlowLane::Stream | FlowLane::Datagram(_) => self.config.credit_stream,
            FlowLane::Bonded | FlowLane::Redundant => self.config.credit_bonded,
        }
    }

    /// Takes the first bytes of `data` and returns their number.
    ///
    /// [`SessionEvent::Writable`] follows if it is less than the length of `data`.
    pub fn write(&mut self, now: Instant, flow: FlowId, mut data: Bytes) -> Result<usize, FlowEnd> {
        self.check_open(flow)?;
        if self.flows.get(flow).is_some_and(|flow| flow.send.is_finished()) {
            return Err(FlowEnd::Finished);
        }
        let len = self.writable(now, flow).min(data.len());
        let is_short = len < data.len();
        self.flows.update(flow, |flow| flow.send.push(data.split_to(len)));
        if is_short {
            self.blocked_writers.insert(flow);
        }
        self.wake(flow);
        Ok(len)
    }

    /// Returns the end of a flow that is not open.
    pub(super) fn check_open(&self, flow: FlowId) -> Result<(), FlowEnd> {
        match self.flows.knowledge(flow) {
            FlowKnowledge::Open => Ok(()),
            FlowKnowledge::Ended(end) => Err(end.clone()),
            FlowKnowledge::Forgotten | FlowKnowledge::Unused => {
                Err(FlowEnd::Reset(ResetReason::new(ResetCode::CLOSED, "the flow is closed")))
            }
        }
    }

    /// Wakes the applications whose flows take data again.
    pub(super) fn notify_writers(&mut self, now: Instant) {
        let free = |id: &FlowId| {
            let Some(flow) = self.flows.get(*id) else { return false };
            let writable = self.writable(now, *id) as u64;
            WRITABLE_MIN <= writable || (writable > 0 && flow.send.retained() == 0)
        };
        let writers: Vec<FlowId> = self.blocked_writers.iter().copied().filter(free).collect();
        for flow in writers {
            self.blocked_writers.remove(&flow);
            self.events.push_back(SessionEvent::Writable { flow });
        }
    }

    /// Ends the data of this side; the other direction stays open.
    pub fn finish(&mut self, flow: FlowId) {
        if flow != FlowId::CONTROL {
            self.flows.update(flow, |flow| flow.send.finish());
            self.wake(flow);
        }
    }

    /// Aborts a flow in both directions.
    pub fn reset(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        if self.check_open(flow).is_err() || flow == FlowId::CONTROL {
            return;
        }
        self.end_flow(now, flow, FlowEnd::Reset(reason.clone()));
        self.send_control(now, &ControlMessage::Reset { flow, reason });
    }

    /// Announces the end of the session to the peer; [`is_drained`](Self::is_drained) reports when everything is acknowledged.
    pub fn goodbye(&mut self, now: Instant) {
        self.send_control(now, &ControlMessage::Goodbye);
    }

    /// Reports whether the peer has acknowledged everything.
    pub fn is_drained(&self) -> bool {
        self.flows.usage().retained == 0
    }

    pub(super) fn send_control(&mut self, now: Instant, message: &ControlMessage) {
        let encoded = message.encode();
        let retained = self.flows.update(FlowId::CONTROL, |flow| {
            flow.send.push(encoded);
            flow.send.retained()
        });
        if retained.is_some_and(|retained| CONTROL_BACKLOG_MAX < retained) {
            self.fail(now, SessionError::Protocol(ProtocolError::ControlBacklog));
        }
        self.wake(FlowId::CONTROL);
    }

    /// Removes at most `max` bytes of received data.
    pub fn read(&mut self, now: Instant, flow: FlowId, max: usize) -> Read {
        match self.check_open(flow) {
            Ok(()) => {}
            Err(FlowEnd::Finished) => return Read::Finished,
            Err(FlowEnd::Reset(reason)) => return Read::Reset(reason),
        }
        let data = self.flows.update(flow, |flow| flow.receive.read(max)).unwrap_or_default();
        if !data.is_empty() {
            self.renew_credit(flow, data.len() as u64);
            self.end_flow_if_over(now, flow);
            return Read::Data(data);
        }
        let is_read = self.flows.update(flow, |flow| {
            flow.wants_read = true;
            flow.receive.is_read()
        });
        if is_read == Some(true) { Read::Finished } else { Read::Pending }
    }

    /// Renews the credit for data that was read. The window grows while the budget lasts, and shrinks otherwise.
    pub(super) fn renew_credit(&mut self, id: FlowId, read: u64) {
        let unclaimed = (self.config.receive_budget / 4 * 3).saturating_sub(self.flows.usage().windows);
        let Some(flow) = self.flows.get(id) else { return };
        let window = flow.receive.window();
        let growth_max = self.credit_max(flow.lane).saturating_sub(window).min(unclaimed);
        let growth = (2 * read).min(growth_max).max(CREDIT_INITIAL.saturating_sub(window));
        let update = self.flows.update(id, |flow| {
            flow.receive.grow_window(growth);
            flow.receive.credit_update()
        });
        if let Some(urgency) = update.flatten() {
            self.acks.mark(id, urgency);
        }
    }
}
