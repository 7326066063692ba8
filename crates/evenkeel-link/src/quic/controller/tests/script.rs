//! A connection of which only the callbacks exist.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory};

use super::super::loss_gate::MIN_FILTER_LEN;
use super::super::{GatedCubic, GatedCubicFactory, SignalCell};
use crate::path_signals::PathSignals;
use crate::quic::clock::LinkClock;
use crate::quic::tests::sites::{RawClient, Sites};

pub(super) const PACKET: u16 = 1200;

/// Calls a controller as noq does.
pub(super) struct Script {
    pub(super) controller: GatedCubic,
    pub(super) cell: Arc<SignalCell>,
    pub(super) now: Instant,
    next: u64,
}

impl Script {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let cell = Arc::new(SignalCell::new(LinkClock { origin: now }));
        let controller = GatedCubic::new(cell.clone(), now, PACKET);
        Self { controller, cell, now, next: 0 }
    }

    /// Starts with a window of 100 packets, an RTT of 10 ms, and no limit by the application.
    pub(super) fn grown() -> Self {
        let mut script = Self::new();
        while script.window() < 100 * u64::from(PACKET) {
            script.round(script.window() / u64::from(PACKET), 10.0);
        }
        script
    }

    pub(super) fn window(&self) -> u64 {
        self.controller.window()
    }

    pub(super) fn signals(&self) -> PathSignals {
        self.cell.read()
    }

    pub(super) fn pause(&mut self, millis: f64) {
        self.now += Duration::from_secs_f64(millis / 1e3);
    }

    /// Sends a packet of `len` bytes and returns its number.
    pub(super) fn send(&mut self, len: u16) -> u64 {
        let number = self.next;
        self.next += 1;
        self.controller.on_packet_sent(self.now, len, number);
        self.controller.on_sent(self.now, len.into(), number);
        number
    }

    /// Acknowledges one packet that was sent `rtt` milliseconds ago, or later if negative, without ending the acknowledgement.
    pub(super) fn ack(&mut self, number: u64, rtt: f64) {
        let age = Duration::from_secs_f64(rtt.abs() / 1e3);
        let sent = if rtt < 0.0 { self.now + age } else { self.now - age };
        self.controller.on_ack(self.now, sent, PACKET.into(), number, false, &estimator());
    }

    pub(super) fn end_acks(&mut self, in_flight: u64, largest: u64) {
        self.controller.on_end_acks(self.now, in_flight, false, Some(largest));
    }

    /// Sends packets, and acknowledges all of them `rtt` milliseconds later.
    pub(super) fn round(&mut self, packets: u64, rtt: f64) {
        let numbers: Vec<_> = (0..packets).map(|_| self.send(PACKET)).collect();
        self.pause(rtt);
        for number in &numbers {
            self.ack(*number, rtt);
        }
        self.end_acks(0, *numbers.last().unwrap());
    }

    /// Gives the connection an RTT of `rtt` milliseconds that is no outlier.
    pub(super) fn stand(&mut self, rtt: f64) {
        (0..MIN_FILTER_LEN - 1).for_each(|_| self.round(1, rtt));
    }

    /// Sends two packets; the acknowledgement of the second after `rtt` milliseconds reveals that the first is lost.
    pub(super) fn lose(&mut self, rtt: f64, kind: LossKind) {
        let sent = self.now;
        let lost = self.send(PACKET);
        let acked = self.send(PACKET);
        self.pause(rtt);
        self.ack(acked, rtt);
        self.end_acks(PACKET.into(), acked);
        let len = if kind == LossKind::Ecn { 0 } else { PACKET };
        if kind != LossKind::Ecn {
            self.controller.on_packet_lost(PACKET, lost, self.now);
        }
        self.controller.on_congestion_event(
            self.now,
            sent,
            kind == LossKind::Persistent,
            kind == LossKind::Ecn,
            len.into(),
            lost,
        );
    }

    /// Loses a packet as [`Self::lose`] while all RTTs are alike, and returns whether the window was cut.
    pub(super) fn is_cut_by(&mut self, rtt: f64, kind: LossKind) -> bool {
        self.stand(rtt);
        let window = self.window();
        self.lose(rtt, kind);
        self.window() < window
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossKind {
    Single,
    Ecn,
    Persistent,
}

/// Returns an estimator, which only a connection can create.
fn estimator() -> RttEstimator {
    static ESTIMATOR: OnceLock<RttEstimator> = OnceLock::new();
    *ESTIMATOR.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(capture_estimator())
    })
}

async fn capture_estimator() -> RttEstimator {
    let sites = Sites::start();
    let captured = Arc::new(OnceLock::new());
    let factory = Arc::new(CaptureFactory {
        captured: captured.clone(),
        inner: Arc::new(GatedCubicFactory::new(Arc::new(SignalCell::new(LinkClock::start())))),
    });
    let mut transport = noq::TransportConfig::default();
    transport.congestion_controller_factory(factory);
    let cell = Arc::new(SignalCell::new(LinkClock::start()));
    let mut config = sites.edge_config.outgoing(&cell);
    config.transport_config(Arc::new(transport));
    RawClient::connect_with(sites.address, config).await.unwrap();
    *captured.get().expect("the handshake has acknowledgements")
}

struct CaptureFactory {
    captured: Arc<OnceLock<RttEstimator>>,
    inner: Arc<GatedCubicFactory>,
}

impl ControllerFactory for CaptureFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Capture { captured: self.captured.clone(), inner: self.inner.clone().build(now, mtu) })
    }
}

#[derive(Debug)]
struct Capture {
    captured: Arc<OnceLock<RttEstimator>>,
    inner: Box<dyn Controller>,
}

impl Controller for Capture {
    fn on_ack(&mut self, _: Instant, _: Instant, _: u64, _: u64, _: bool, rtt: &RttEstimator) {
        let _ = self.captured.set(*rtt);
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { captured: self.captured.clone(), inner: self.inner.clone_box() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
