//! Measurements that the session reads.

use std::sync::Arc;

use evenkeel_policy::time::{Duration, Instant};
use noq_proto::congestion::{Controller, ControllerFactory};

use super::super::{GatedCubicFactory, INITIAL_WINDOW};
use super::script::{LossKind, PACKET, Script};

#[test]
fn an_rtt_is_the_age_of_the_largest_packet_that_is_acknowledged() {
    let mut script = Script::new();
    let first = script.send(PACKET);
    let second = script.send(PACKET);
    script.pause(30.0);
    script.ack(second, 20.0);
    script.ack(first, 30.0);
    script.end_acks(0, second);
    let signals = script.signals();
    assert_eq!(signals.rtt_count, 1);
    assert_eq!(signals.rtt_latest, Some(Duration::from_millis(20)));
    script.round(1, 5.0);
    let signals = script.signals();
    assert_eq!((signals.rtt_count, signals.rtt_sum), (2, Duration::from_millis(25)));
    assert_eq!(signals.rtt_min, Some(Duration::from_millis(5)));
    script.round(1, 40.0);
    assert_eq!(script.signals().rtt_min, Some(Duration::from_millis(5)));
    assert_eq!(script.signals().rtt_latest, Some(Duration::from_millis(40)));
}

#[test]
fn a_late_acknowledgement_of_an_earlier_packet_gives_no_rtt() {
    let mut script = Script::new();
    let first = script.send(PACKET);
    let second = script.send(PACKET);
    script.ack(second, 20.0);
    script.end_acks(PACKET.into(), second);
    script.pause(10.0);
    script.ack(first, 30.0);
    script.end_acks(0, second);
    assert_eq!(script.signals().rtt_count, 1);
    assert_eq!(script.signals().acked_packets, 2);
}

#[test]
fn an_acknowledgement_dated_before_its_packet_gives_no_rtt() {
    let mut script = Script::new();
    script.round(1, 0.0);
    script.pause(1.0);
    let number = script.send(PACKET);
    script.ack(number, -1.0);
    script.end_acks(0, number);
    assert_eq!(script.signals().rtt_count, 0);
    assert_eq!(script.signals().acked_packets, 2);
}

#[test]
fn a_packet_that_a_retry_acknowledged_gives_no_rtt_to_the_next_acknowledgement() {
    let mut script = Script::new();
    script.send(PACKET);
    script.ack(7, 10.0);
    script.pause(10.0);
    script.ack(0, 10.0);
    script.end_acks(0, 7);
    assert_eq!(script.signals().rtt_count, 0);
}

#[test]
fn waiting_starts_with_a_packet_moves_with_acknowledgements_and_ends_with_the_last() {
    let mut script = Script::new();
    assert_eq!(script.signals().waiting_since, None);
    script.pause(1.0);
    let first = script.send(PACKET);
    assert_eq!(script.signals().waiting_since, Some(Instant::from_millis(1)));
    script.pause(1.0);
    let second = script.send(PACKET);
    assert_eq!(script.signals().waiting_since, Some(Instant::from_millis(1)));
    assert_eq!(script.signals().in_flight, 2 * u64::from(PACKET));
    script.pause(1.0);
    script.ack(first, 2.0);
    script.end_acks(PACKET.into(), first);
    assert_eq!(script.signals().waiting_since, Some(Instant::from_millis(3)));
    assert_eq!(script.signals().acked_at, Some(Instant::from_millis(3)));
    assert_eq!(script.signals().in_flight, u64::from(PACKET));
    script.pause(1.0);
    script.ack(second, 2.0);
    script.end_acks(0, second);
    assert_eq!(script.signals().waiting_since, None);
    assert_eq!(script.signals().in_flight, 0);
}

#[test]
fn a_lost_packet_is_no_longer_in_flight() {
    let mut script = Script::new();
    script.lose(10.0, LossKind::Single);
    let signals = script.signals();
    assert_eq!((signals.lost_packets, signals.acked_packets), (1, 1));
    assert_eq!((signals.in_flight, signals.waiting_since), (0, None));
}

#[test]
fn a_lost_packet_of_acknowledgements_is_not_counted() {
    let mut script = Script::new();
    script.send(PACKET);
    script.controller.on_packet_lost(0, 0, script.now);
    let signals = script.signals();
    assert_eq!((signals.lost_packets, signals.in_flight), (0, PACKET.into()));
    assert!(signals.waiting_since.is_some());
}

/// noq reports the loss of an MTU probe by no callback.
#[test]
fn nothing_waits_for_a_lost_mtu_probe() {
    let mut script = Script::new();
    let packet = script.send(PACKET);
    let probe = script.send(PACKET + 252);
    script.ack(packet, 10.0);
    script.end_acks(u64::from(PACKET) + 252, packet);
    assert_eq!(script.signals().waiting_since, None, "probe {probe}");
    assert_eq!(script.signals().in_flight, 0);
}

#[test]
fn an_acknowledged_mtu_probe_is_not_mistaken_for_a_packet() {
    let mut script = Script::new();
    let probe = script.send(PACKET + 252);
    assert_eq!(script.signals().waiting_since, None);
    script.send(PACKET);
    script.controller.on_mtu_update(PACKET + 252);
    script.ack(probe, 10.0);
    script.end_acks(PACKET.into(), probe);
    assert_eq!(script.signals().in_flight, u64::from(PACKET));
    assert!(script.signals().waiting_since.is_some());
}

#[test]
fn packets_of_a_size_that_a_probe_proved_are_no_probes() {
    let mut script = Script::new();
    script.controller.on_mtu_update(PACKET + 252);
    script.send(PACKET + 252);
    assert!(script.signals().waiting_since.is_some());
}

/// Packets of handshake keys that are discarded leave the flight without a callback.
#[test]
fn nothing_waits_for_packets_of_discarded_keys() {
    let mut script = Script::new();
    script.send(PACKET);
    let packet = script.send(PACKET);
    script.ack(packet, 10.0);
    script.end_acks(0, packet);
    assert_eq!(script.signals().waiting_since, None);
    let packet = script.send(PACKET);
    script.send(PACKET + 252);
    script.ack(packet, 10.0);
    script.end_acks(u64::from(PACKET) + 252, packet);
    assert_eq!(script.signals().waiting_since, None, "the discarded packet is still counted");
}

#[test]
fn the_window_is_published() {
    let mut script = Script::new();
    assert_eq!(script.signals().window, INITIAL_WINDOW);
    script.round(10, 10.0);
    assert_eq!(script.signals().window, script.window());
    assert!(INITIAL_WINDOW < script.window());
    script.lose(40.0, LossKind::Single);
    assert_eq!(script.signals().window, script.window());
    script.controller.on_spurious_congestion_event();
    assert_eq!(script.signals().window, script.window());
    script.controller.on_mtu_update(60_000);
    assert_eq!(script.window(), 120_000);
    assert_eq!(script.signals().window, 120_000);
}

#[test]
fn controllers_of_one_connection_share_its_counters() {
    let script = Script::grown();
    let before = script.signals();
    let mut copy = script.controller.clone_box();
    assert_eq!(script.signals(), before);
    copy.on_packet_lost(PACKET, 0, script.now);
    assert_eq!(script.signals().lost_packets, 1);
    // The peer moved to another network.
    let fresh = Arc::new(GatedCubicFactory::new(script.cell.clone())).build(script.now, PACKET);
    assert_eq!(fresh.window(), INITIAL_WINDOW);
    let after = script.signals();
    assert_eq!((after.acked_packets, after.lost_packets), (before.acked_packets, 1));
    assert_eq!((after.window, after.in_flight, after.waiting_since), (INITIAL_WINDOW, 0, None));
}
