//! Losses that cut the window and losses that do not, and growth of the window.

use noq_proto::congestion::Controller;

use super::script::{LossKind, PACKET, Script};

#[test]
fn a_loss_at_a_low_rtt_is_hidden() {
    let mut script = Script::grown();
    assert!(!script.is_cut_by(10.0, LossKind::Single));
    assert!(!script.is_cut_by(12.9, LossKind::Single));
}

#[test]
fn a_rise_of_3_ms_is_congestion_on_a_steady_path() {
    assert!(!Script::grown().is_cut_by(12.99, LossKind::Single));
    assert!(Script::grown().is_cut_by(13.01, LossKind::Single));
}

#[test]
fn a_rise_of_half_the_recent_range_is_congestion() {
    let queued = || {
        let mut script = Script::grown();
        // The first slice of 200 ms that has no smaller RTT.
        (0..12).for_each(|_| script.round(1, 110.0));
        script
    };
    assert!(!queued().is_cut_by(59.0, LossKind::Single));
    assert!(queued().is_cut_by(61.0, LossKind::Single));
}

#[test]
fn a_loss_with_a_queue_is_hidden_while_losses_are_not_more_than_without_a_queue() {
    // 1 % of 1000 packets, then as many with a queue.
    let mut script = lossy(100, 10);
    let window = script.window();
    lose_in_packets(&mut script, 1000, 50.0, 100);
    let grown = script.window();
    assert!(window <= grown);
    lose_in_packets(&mut script, 100, 50.0, 5);
    assert!(script.window() < grown);
}

#[test]
fn few_losses_without_a_queue_are_no_usual_losses() {
    assert!(!lossy(100, 6).is_cut_by(50.0, LossKind::Single));
    // 4 losses, and 6 losses of 3000 packets.
    assert!(lossy(100, 4).is_cut_by(50.0, LossKind::Single));
    assert!(lossy(500, 6).is_cut_by(50.0, LossKind::Single));
}

#[test]
fn losses_without_a_queue_count_for_a_minute() {
    let after = |pause: f64| {
        let mut script = lossy(100, 10);
        script.pause(pause);
        script.is_cut_by(50.0, LossKind::Single)
    };
    assert!(!after(50_000.0));
    assert!(after(61_000.0));
}

#[test]
fn the_rtt_at_a_loss_is_the_smallest_of_the_last_eight() {
    let is_cut_after = |high: u64| {
        let mut script = Script::grown();
        (0..high).for_each(|_| script.round(1, 40.0));
        let window = script.window();
        script.lose(40.0, LossKind::Single);
        script.window() < window
    };
    assert!(!is_cut_after(6));
    assert!(is_cut_after(7));
}

#[test]
fn outliers_are_no_part_of_the_recent_range() {
    let mut script = Script::grown();
    for _ in 0..100 {
        (0..7).for_each(|_| script.round(1, 60.0));
        script.round(1, 15.0);
    }
    // Half of the range is 2.5 ms, and a rise of 3 ms counts.
    assert!(script.is_cut_by(14.0, LossKind::Single));
}

#[test]
fn an_acknowledgement_without_an_rtt_leaves_the_last_ones() {
    let mut script = Script::grown();
    script.stand(40.0);
    script.round(1, 40.0);
    let window = script.window();
    script.send(PACKET);
    let number = script.send(PACKET);
    script.ack(number, 10.0);
    // The newest packet had carried acknowledgements only.
    script.end_acks(PACKET.into(), number + 1);
    script.controller.on_packet_lost(PACKET, number - 1, script.now);
    script.controller.on_congestion_event(script.now, script.now, false, false, PACKET.into(), number - 1);
    assert!(script.window() < window);
}

#[test]
fn the_largest_rtt_counts_for_a_minute() {
    let queued = |pause: f64| {
        let mut script = Script::grown();
        // The first slice of 200 ms that has no smaller RTT.
        (0..12).for_each(|_| script.round(1, 110.0));
        script.pause(pause);
        script.round(1, 10.0);
        script
    };
    assert!(!queued(59_000.0).is_cut_by(20.0, LossKind::Single));
    assert!(queued(61_000.0).is_cut_by(20.0, LossKind::Single));
}

#[test]
fn the_smallest_rtt_counts_for_a_minute() {
    let rerouted = |pause: f64| {
        let mut script = Script::grown();
        script.stand(100.0);
        script.round(1, 100.0);
        script.pause(pause);
        script
    };
    assert!(rerouted(50_000.0).is_cut_by(101.0, LossKind::Single));
    assert!(!rerouted(61_000.0).is_cut_by(101.0, LossKind::Single));
}

#[test]
fn a_loss_before_the_first_rtt_is_not_hidden() {
    let mut script = Script::new();
    let window = script.window();
    let number = script.send(PACKET);
    script.controller.on_packet_lost(PACKET, number, script.now);
    script.controller.on_congestion_event(script.now, script.now, false, false, PACKET.into(), number);
    assert!(script.window() < window);
}

#[test]
fn marked_packets_are_not_hidden() {
    assert!(Script::grown().is_cut_by(10.0, LossKind::Ecn));
}

#[test]
fn persistent_congestion_is_not_hidden() {
    let mut script = Script::grown();
    assert!(script.is_cut_by(10.0, LossKind::Persistent));
    assert_eq!(script.window(), 2 * u64::from(PACKET));
}

#[test]
fn losses_of_5_percent_are_not_hidden_and_are_counted_anew_after_a_cut() {
    let mut script = Script::grown();
    for _ in 0..2 {
        for loss in 1..50 {
            assert!(!script.is_cut_by(10.0, LossKind::Single), "loss {loss}");
        }
        assert!(script.is_cut_by(10.0, LossKind::Single));
    }
}

#[test]
fn losses_count_among_the_last_thousand_packets() {
    let is_cut_after = |packets: u64| {
        let mut script = Script::grown();
        for _ in 0..49 {
            script.lose(10.0, LossKind::Single);
        }
        script.round(packets, 10.0);
        script.is_cut_by(10.0, LossKind::Single)
    };
    assert!(is_cut_after(800));
    assert!(!is_cut_after(1000));
}

#[test]
fn losses_that_cubic_ignores_during_recovery_keep_counting() {
    let mut script = Script::grown();
    let before = script.now;
    assert!(script.is_cut_by(40.0, LossKind::Single));
    for _ in 0..50 {
        let number = script.send(PACKET);
        script.controller.on_packet_lost(PACKET, number, script.now);
        script.controller.on_congestion_event(script.now, before, false, false, PACKET.into(), number);
    }
    script.round(1, 10.0);
    assert!(script.is_cut_by(10.0, LossKind::Single));
}

#[test]
fn a_loss_that_was_none_undoes_its_own_cut_only() {
    let mut script = Script::grown();
    script.stand(40.0);
    let full = script.window();
    script.lose(40.0, LossKind::Single);
    assert!(script.window() < full);
    script.pause(100.0);
    script.stand(10.0);
    let cut = script.window();
    script.lose(10.0, LossKind::Single);
    script.controller.on_spurious_congestion_event();
    assert_eq!(script.window(), cut);

    let mut script = Script::grown();
    script.stand(40.0);
    let full = script.window();
    script.lose(40.0, LossKind::Single);
    script.controller.on_spurious_congestion_event();
    assert!(full <= script.window());
}

#[test]
fn the_window_grows_only_while_half_of_it_is_used() {
    let mut script = Script::grown();
    let packets = script.window() / u64::from(PACKET);
    let window = script.window();
    script.pause(1_100.0);
    script.round(packets / 2 - 5, 10.0);
    assert_eq!(script.window(), window);
    script.round(packets / 2 + 5, 10.0);
    assert!(window < script.window());
}

#[test]
fn the_peak_in_flight_counts_for_a_second() {
    let grows_after = |pause: f64| {
        let mut script = Script::grown();
        let window = script.window();
        script.pause(pause);
        script.round(1, 10.0);
        window < script.window()
    };
    assert!(grows_after(800.0));
    assert!(!grows_after(1_100.0));
}

#[test]
fn the_window_grows_over_an_rtt_above_a_second() {
    let mut script = Script::new();
    for _ in 0..5 {
        let window = script.window();
        script.round(window / u64::from(PACKET), 2_000.0);
        assert!(window < script.window());
    }
}

#[test]
fn the_metrics_are_those_of_cubic() {
    let mut script = Script::grown();
    script.stand(40.0);
    script.lose(40.0, LossKind::Single);
    let metrics = script.controller.metrics();
    assert_eq!(metrics.congestion_window, script.window());
    assert_eq!(metrics.ssthresh, Some(script.window()));
}

/// Loses every `interval`th packet without a queue, `count` times.
fn lossy(interval: u64, count: u64) -> Script {
    let mut script = Script::grown();
    lose_in_packets(&mut script, interval * count, 10.0, interval);
    script
}

fn lose_in_packets(script: &mut Script, packets: u64, rtt: f64, interval: u64) {
    for _ in 0..packets / interval {
        script.round(interval - 2, rtt);
        script.lose(rtt, LossKind::Single);
    }
}
