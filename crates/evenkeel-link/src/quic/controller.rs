//! Gated Cubic: Cubic that does not see random losses, and reports what it sees to the session.
//!
//! On 50 Mbit/s and 30 ms with 1 % of random loss, Cubic gets 2.2 Mbit/s and gated Cubic 47; on links without random loss
//! both behave alike, unless the queue is shorter than 3 ms. A sender that is limited by flow control is not
//! application-limited for noq, so the window would grow without being tested; here it does not grow while the peak in
//! flight is below half of it.

mod flight;
mod loss_gate;
mod recent_range;
mod signal_cell;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_policy::time::Duration;
use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};

use flight::Flight;
use loss_gate::LossGate;
use recent_range::RecentRange;
pub(super) use signal_cell::SignalCell;

/// Congestion window of a new connection: ten packets, as Cubic's default.
pub(super) const INITIAL_WINDOW: u64 = 12_000;
/// The peak of the bytes in flight covers the last second, in slices of 100 ms.
const PEAK_SLICE: Duration = Duration::from_millis(100);
const PEAK_SLICES: usize = 10;

/// Creates the controller of one connection.
pub(super) struct GatedCubicFactory {
    signals: Arc<SignalCell>,
}

impl GatedCubicFactory {
    pub(super) fn new(signals: Arc<SignalCell>) -> Self {
        Self { signals }
    }
}

impl ControllerFactory for GatedCubicFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(GatedCubic::new(self.signals.clone(), now, mtu))
    }
}

/// Congestion controller of one connection.
///
/// noq clones it when the peer's address changes, and for snapshots; clones write to the same cell, but only one of
/// them is called.
#[derive(Clone, Debug)]
struct GatedCubic {
    cubic: Cubic,
    gate: LossGate,
    flight: Flight,
    peak: RecentRange<PEAK_SLICES>,
    /// Newest packet of the acknowledgement that is being processed.
    newest: Option<Acknowledged>,
    is_last_loss_hidden: bool,
    signals: Arc<SignalCell>,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    at: Instant,
    sent: Instant,
    number: u64,
}

impl GatedCubic {
    fn new(signals: Arc<SignalCell>, now: Instant, mtu: u16) -> Self {
        let mut config = CubicConfig::default();
        config.initial_window(INITIAL_WINDOW);
        let controller = Self {
            cubic: Cubic::new(Arc::new(config), now, mtu),
            gate: LossGate::new(),
            flight: Flight::new(mtu),
            peak: RecentRange::new(PEAK_SLICE),
            newest: None,
            is_last_loss_hidden: false,
            signals,
        };
        controller.publish();
        controller
    }

    fn at(&self, now: Instant) -> evenkeel_policy::time::Instant {
        self.signals.clock.at(now)
    }

    fn publish(&self) {
        self.signals.update(|signals| {
            signals.in_flight = self.flight.bytes();
            signals.window = self.cubic.window();
            signals.waiting_since = self.flight.waiting_since();
        });
    }

    fn is_app_limited(&mut self, now: Instant, is_app_limited: bool) -> bool {
        let now = self.at(now);
        let peak = self.peak.range(now).map_or(0, |range| range.max);
        is_app_limited || peak < self.cubic.window() / 2
    }

    /// Returns the RTT of an acknowledgement, whose largest packet number is `largest`.
    ///
    /// It is known only if that packet elicits acknowledgements and is newly acknowledged. noq dates a batch of received
    /// packets by its beginning, so over loopback an acknowledgement may seem to precede its packet.
    fn rtt(&mut self, largest: Option<u64>) -> Option<Duration> {
        let newest = self.newest.take().filter(|newest| largest == Some(newest.number))?;
        newest.at.checked_duration_since(newest.sent).filter(|rtt| !rtt.is_zero())
    }
}

impl Controller for GatedCubic {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest: u64) {
        self.cubic.on_sent(now, bytes, largest);
    }

    fn on_packet_sent(&mut self, now: Instant, len: u16, number: u64) {
        let at = self.at(now);
        self.flight.send(at, len, number);
        self.peak.record(at, self.flight.bytes());
        self.cubic.on_packet_sent(now, len, number);
        self.publish();
    }

    fn on_cwnd_limited(&mut self) {
        self.cubic.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        number: u64,
        is_app_limited: bool,
        rtt: &RttEstimator,
    ) {
        // With an RTT above a second, nothing may have been sent during the last second.
        let at = self.at(now);
        self.peak.record(at, self.flight.bytes());
        // After a Retry, noq acknowledges the first packet without calling `on_end_acks`.
        let is_newer = |newest: &Acknowledged| newest.at != now || newest.number < number;
        if self.newest.as_ref().is_none_or(is_newer) {
            self.newest = Some(Acknowledged { at: now, sent, number });
        }
        self.flight.acknowledge(number);
        self.gate.record(at, false);
        let is_app_limited = self.is_app_limited(now, is_app_limited);
        self.cubic.on_ack(now, sent, bytes, number, is_app_limited, rtt);
        self.signals.update(|signals| {
            signals.acked_packets += 1;
            signals.acked_bytes += bytes;
        });
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, is_app_limited: bool, largest: Option<u64>) {
        let at = self.at(now);
        self.flight.set_bytes(at, in_flight);
        let rtt = self.rtt(largest);
        if let Some(rtt) = rtt {
            self.gate.record_rtt(at, rtt);
        }
        let is_app_limited = self.is_app_limited(now, is_app_limited);
        self.cubic.on_end_acks(now, in_flight, is_app_limited, largest);
        self.signals.update(|signals| {
            signals.acked_at = Some(at);
            if let Some(rtt) = rtt {
                signals.rtt_count += 1;
                signals.rtt_sum += rtt;
                signals.rtt_latest = Some(rtt);
                signals.rtt_min = Some(signals.rtt_min.map_or(rtt, |min| min.min(rtt)));
            }
        });
        self.publish();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost: u64,
    ) {
        self.is_last_loss_hidden = !is_persistent && !is_ecn && self.gate.hides_loss(self.at(now));
        if self.is_last_loss_hidden {
            return;
        }
        let window = self.cubic.window();
        self.cubic.on_congestion_event(now, sent, is_persistent, is_ecn, lost_bytes, largest_lost);
        if self.cubic.window() < window {
            self.gate.restart();
        }
        self.publish();
    }

    fn on_packet_lost(&mut self, len: u16, number: u64, now: Instant) {
        self.cubic.on_packet_lost(len, number, now);
        // A packet that carries only acknowledgements has length 0 here.
        if len == 0 {
            return;
        }
        self.flight.lose(len);
        self.gate.record(self.at(now), true);
        self.signals.update(|signals| signals.lost_packets += 1);
        self.publish();
    }

    fn on_spurious_congestion_event(&mut self) {
        // Cubic was not told of this spurious loss; it would undo an earlier, real reduction.
        if !self.is_last_loss_hidden {
            self.cubic.on_spurious_congestion_event();
            self.publish();
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.flight.set_mtu(mtu);
        self.cubic.on_mtu_update(mtu);
        self.publish();
    }

    fn on_ack_frequency_update(&mut self, threshold: u64, delay_max: Duration) {
        self.cubic.on_ack_frequency_update(threshold, delay_max);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
