//! Delay, rate, queue, losses and order.

use super::{Pair, ms, to_core, wait_until};
use evenkeel_test_network::{Jitter, Limiter, Network, PacketLoss, PathSpec, network_or_skip};
use std::time::{Duration, Instant};

#[test]
fn an_echo_takes_at_least_twice_the_one_way_delay() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(20))]);
    let pair = Pair::new(&network);
    for _ in 0..10 {
        assert!(ms(40) <= pair.echo().unwrap());
    }
}

#[test]
fn a_new_delay_applies_to_the_next_packet() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let pair = Pair::new(&network);
    let fastest = (0..10).map(|_| pair.echo().unwrap()).min().unwrap();
    network.path(1).set(PathSpec::unlimited(ms(100)));
    assert!(ms(200) <= pair.echo().unwrap());
    assert!(fastest < ms(100), "{fastest:?}");
}

#[test]
fn directions_have_settings_of_their_own() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let pair = Pair::new(&network);
    network.path(1).to_edge().set(PathSpec::unlimited(ms(100)));
    assert!(ms(101) <= pair.echo().unwrap());
    network
        .path(1)
        .to_edge()
        .set(PathSpec { loss: PacketLoss::Independent(1.0), ..PathSpec::unlimited(ms(1)) });
    pair.core.send_to(b"pong", pair.edge.local_addr().unwrap()).unwrap();
    wait_until(|| network.path(1).to_edge().counters().lost == 1);
    assert_eq!(to_core(&network).lost, 0);
}

#[test]
fn the_rate_limits_the_bytes_delivered() {
    // The queue holds all packets, so the link is busy until the last has left, after 1.95 s.
    let network = network_or_skip!(&[PathSpec::new(8.0, ms(5)).with_queue(ms(2000))]);
    Pair::new(&network).send_numbered(&network, 1300);
    let sample = |delivered_min: u64| {
        wait_until(|| delivered_min <= to_core(&network).delivered);
        let before = Instant::now();
        let counters = to_core(&network);
        assert!(counters.delivered < 1300, "the machine is too busy: {counters:?}");
        (before, counters.delivered_bytes, Instant::now())
    };
    let (first_before, first_bytes, first_after) = sample(20);
    let (last_before, last_bytes, last_after) = sample(600);
    // The test may have been interrupted before and after it read the counters.
    let megabytes = (last_bytes - first_bytes) as f64 / 1e6;
    let rate_max = megabytes / last_before.duration_since(first_after).as_secs_f64();
    let rate_min = megabytes / last_after.duration_since(first_before).as_secs_f64();
    assert!(rate_min < 1.1 && 0.9 < rate_max, "{rate_min} to {rate_max} MB/s");
}

#[test]
fn a_full_queue_drops_packets_and_delays_the_others() {
    // The queue holds 20 packets, and a packet takes 12 ms.
    let network = network_or_skip!(&[PathSpec::new(1.0, ms(5)).with_queue(ms(240))]);
    let pair = Pair::new(&network);
    let start = Instant::now();
    pair.send_numbered(&network, 60);
    let counters = to_core(&network);
    assert!(20 <= counters.offered - counters.queue_dropped, "{counters:?}");
    assert!(0 < counters.queue_dropped, "{counters:?}");
    let accepted = counters.offered - counters.queue_dropped;
    wait_until(|| to_core(&network).delivered == accepted);
    assert!(ms(12) * u32::try_from(accepted).unwrap() <= start.elapsed());
    assert_eq!(to_core(&network).delivered_bytes, accepted * 1500);
}

#[test]
fn two_flows_share_the_queue_of_a_path() {
    // The queue holds 20 packets, and a packet takes 120 ms.
    let network = network_or_skip!(&[PathSpec::new(0.1, ms(5)).with_queue(ms(2400))]);
    let first = Pair::new(&network);
    let second = Pair::new(&network);
    first.send_numbered(&network, 30);
    let dropped = to_core(&network).queue_dropped;
    assert!(0 < dropped, "{dropped}");
    second.send_numbered(&network, 20);
    // Less than a packet per 120 ms has left since.
    assert!(dropped < to_core(&network).queue_dropped);
}

#[test]
fn a_policer_drops_packets_and_delays_none() {
    let spec = PathSpec { limiter: Limiter::Policer, ..PathSpec::new(0.1, ms(5)).with_queue(ms(2400)) };
    let network = network_or_skip!(&[spec]);
    let pair = Pair::new(&network);
    pair.send_numbered(&network, 60);
    // The bucket holds 20 packets, for which a queue would need 2.4 s; another packet needs 120 ms to fill.
    let start = Instant::now();
    let accepted = 60 - to_core(&network).queue_dropped;
    assert!((20..60).contains(&accepted), "{accepted}");
    wait_until(|| to_core(&network).delivered == accepted);
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn losses_have_their_ratio() {
    for loss in [PacketLoss::Independent(0.1), PacketLoss::Bursts { ratio: 0.1, length_mean: 4.0 }] {
        let network = network_or_skip!(&[PathSpec { loss, ..PathSpec::unlimited(ms(1)) }]);
        let pair = Pair::new(&network);
        pair.send_numbered(&network, 10_000);
        let lost = to_core(&network).lost;
        // The standard deviation is 30 for independent losses and 75 for bursts of four.
        assert!((500..1500).contains(&lost), "{loss:?}: {lost}");
        wait_until(|| to_core(&network).delivered == 10_000 - lost);
    }
}

#[test]
fn jitter_keeps_the_order_of_packets() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(5)).with_jitter(ms(10))]);
    assert!(received_numbers(&network).is_sorted());
}

#[test]
fn reordering_jitter_changes_the_order_of_packets() {
    let spec = PathSpec { jitter: Jitter::Reordering(ms(10)), ..PathSpec::unlimited(ms(5)) };
    let network = network_or_skip!(&[spec]);
    let mut numbers = received_numbers(&network);
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..50));
}

/// Sends packets, which the receiver's buffer can hold, and returns their numbers in the order of arrival.
fn received_numbers(network: &Network) -> Vec<u64> {
    let pair = Pair::new(network);
    pair.send_numbered(network, 50);
    (0..50).map(|_| pair.receive_number()).collect()
}
