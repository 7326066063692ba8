//! Black holes and interfaces that are down.

use super::{Pair, ms, to_core, wait_until};
use evenkeel_test_network::{PathSpec, network_or_skip};

#[test]
fn a_black_hole_swallows_packets_until_it_is_closed() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let pair = Pair::new(&network);
    pair.echo().unwrap();
    network.path(1).black_hole(true);
    pair.send_numbered(&network, 5);
    assert_eq!(to_core(&network).black_holed, 5);
    assert_eq!(to_core(&network).delivered, 1);
    network.path(1).black_hole(false);
    pair.echo().unwrap();
}

#[test]
fn a_black_hole_swallows_packets_on_their_way() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(300))]);
    let pair = Pair::new(&network);
    pair.send_numbered(&network, 5);
    network.path(1).black_hole(true);
    wait_until(|| to_core(&network).black_holed == 5);
    assert_eq!(to_core(&network).delivered, 0);
}

#[test]
fn a_black_hole_may_have_one_direction() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let pair = Pair::new(&network);
    network.path(1).to_edge().black_hole(true);
    pair.edge.send_to(b"ping", pair.core_address()).unwrap();
    let (_, from) = pair.core.recv_from(&mut [0; 4]).unwrap();
    pair.core.send_to(b"pong", from).unwrap();
    wait_until(|| network.path(1).to_edge().counters().black_holed == 1);
    assert_eq!(to_core(&network).black_holed, 0);
}

#[test]
fn a_path_works_again_after_its_interface_was_down() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1)), PathSpec::unlimited(ms(1))]);
    let pair = Pair::new(&network);
    pair.echo().unwrap();
    network.path(1).down().unwrap();
    pair.core.send_to(b"lost", pair.edge.local_addr().unwrap()).unwrap();
    wait_until(|| network.path(1).to_edge().counters().black_holed == 1);
    network.path(1).up().unwrap();
    pair.echo().unwrap();
    assert_eq!(to_core(&network).delivered, 2);
    assert_eq!(network.path(2).to_core().counters().offered, 0);
}
