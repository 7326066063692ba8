//! Namespaces, and the path that a packet takes.

use super::{WAIT_MAX, ms, wait_until};
use evenkeel_test_network::{Network, PathSpec, network_or_skip};
use socket2::{Domain, Socket, Type};
use std::net::{SocketAddr, UdpSocket};

#[test]
fn a_packet_takes_the_path_of_its_source_address() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1)); 3]);
    let core = network.core().run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    core.set_read_timeout(Some(WAIT_MAX)).unwrap();
    for (index, path) in network.paths().iter().enumerate() {
        let edge = network.edge().run(|| UdpSocket::bind((path.edge_address(), 0)).unwrap());
        // To the address of another path.
        let target =
            SocketAddr::from((network.path(3 - index).core_address(), core.local_addr().unwrap().port()));
        edge.send_to(b"ping", target).unwrap();
        core.recv(&mut [0; 4]).unwrap();
        let mut expected = [0; 3];
        expected[..=index].fill(1);
        assert_eq!(delivered(&network), expected);
    }
}

#[test]
fn a_packet_takes_the_path_of_the_interface_that_its_socket_is_bound_to() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1)); 3]);
    for (index, path) in network.paths().iter().enumerate() {
        let edge = network.edge().run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.bind_device(Some(path.interface().as_bytes())).unwrap();
            UdpSocket::from(socket)
        });
        edge.send_to(b"ping", "10.0.2.2:9").unwrap();
        let mut expected = [0; 3];
        expected[..=index].fill(1);
        wait_until(|| delivered(&network) == expected);
    }
}

#[test]
fn two_networks_do_not_see_each_other() {
    let first = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let second = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    let pair = super::Pair::new(&first);
    super::Pair::new(&second).echo().unwrap();
    assert_eq!((delivered(&first), delivered(&second)), (vec![0], vec![1]));
    pair.echo().unwrap();
    assert_eq!((delivered(&first), delivered(&second)), (vec![1], vec![1]));
}

#[test]
fn a_command_runs_in_its_namespace() {
    let network = network_or_skip!(&[PathSpec::unlimited(ms(1))]);
    for (namespace, address) in [(network.edge(), "10.0.1.1/24"), (network.core(), "10.0.1.2/24")] {
        let output = namespace.command("ip").args(["-brief", "address"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("p1") && text.contains(address), "{text}");
    }
}

#[test]
fn a_thread_runs_in_its_namespace() {
    let network = network_or_skip!(&[]);
    let listener = network.edge().spawn(|| UdpSocket::bind("127.0.0.1:0").unwrap()).join().unwrap();
    let address = listener.local_addr().unwrap();
    // The port is free in another namespace.
    network.core().run(|| UdpSocket::bind(address).unwrap());
    network.edge().run(|| UdpSocket::bind(address).unwrap_err());
}

fn delivered(network: &Network) -> Vec<u64> {
    network.paths().iter().map(|path| path.to_core().counters().delivered).collect()
}
