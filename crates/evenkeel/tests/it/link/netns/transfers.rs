//! Bytes of forwarded connections arrive once and in order, and so do their ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use evenkeel_test_network::{Network, PathSpec, network_or_skip};
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;

use crate::link::sites::LinkSide;
use crate::link::test_link::{Connection, ForwardLane, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

/// Three unequal paths, two of them with losses.
const UNEQUAL: [PathSpec; 3] = [
    PathSpec::new(20.0, ms(10)).with_loss(0.001),
    PathSpec::new(10.0, ms(40)).with_loss(0.01),
    PathSpec::new(10.0, ms(5)),
];

fn bytes_to_core(network: &Network) -> Vec<u64> {
    network.paths().iter().map(|path| path.to_core().counters().delivered_bytes).collect()
}

#[test]
fn bonded_bytes_arrive_unchanged_in_both_directions_over_unequal_paths_with_losses() {
    let link = TestLink::start("bonded", network_or_skip!(&UNEQUAL));
    link.wait_active(3);
    let connection = link.connect(ForwardLane::Bonded);
    let before = bytes_to_core(link.network());
    let up = Transfer::start(&connection.edge, &connection.core, 24 * MB);
    let down = Transfer::start(&connection.core, &connection.edge, 20 * MB);
    assert_eq!((up.finish(), down.finish()), (24 * MB, 20 * MB));
    let after = bytes_to_core(link.network());
    let carried: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    eprintln!("bytes to the core by path: {carried:?}");
    assert!(carried.iter().all(|&bytes| bytes > MB), "{carried:?}");
}

#[test]
fn stream_lane_bytes_arrive_unchanged_in_both_directions_over_unequal_paths_with_losses() {
    let link = TestLink::start("stream", network_or_skip!(&UNEQUAL));
    link.wait_active(3);
    let connections: Vec<Connection> = (0..4).map(|_| link.connect(ForwardLane::Stream)).collect();
    let transfers: Vec<Transfer> = connections
        .iter()
        .flat_map(|Connection { edge, core }| {
            [Transfer::start(edge, core, 4 * MB), Transfer::start(core, edge, 3 * MB)]
        })
        .collect();
    let received: u64 = transfers.into_iter().map(Transfer::finish).sum();
    assert_eq!(received, 28 * MB);
}

#[test]
fn the_end_of_a_stream_closes_one_direction_and_a_reset_both() {
    let link =
        TestLink::start("ends", network_or_skip!(&[PathSpec::new(20.0, ms(5)), PathSpec::new(20.0, ms(15))]));
    link.wait_active(2);
    for lane in [ForwardLane::Stream, ForwardLane::Bonded] {
        let Connection { mut edge, mut core } = link.connect(lane);
        edge.write_all(b"question").unwrap();
        edge.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut core), Ok(b"question".to_vec()), "{lane:?}");
        core.write_all(b"answer").unwrap();
        core.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut edge), Ok(b"answer".to_vec()), "{lane:?}");

        let Connection { edge, mut core } = link.connect(lane);
        core.write_all(b"unread").unwrap();
        reset(edge);
        assert_eq!(read_to_end(&mut core), Err(ErrorKind::ConnectionReset), "{lane:?}, from the edge");

        let Connection { mut edge, core } = link.connect(lane);
        edge.write_all(b"unread").unwrap();
        reset(core);
        assert_eq!(read_to_end(&mut edge), Err(ErrorKind::ConnectionReset), "{lane:?}, from the core");
    }
    for side in [LinkSide::Edge, LinkSide::Core] {
        link.wait_session(side, "end of all flows", |session| session["flows"] == json!([]));
    }
}

fn read_to_end(socket: &mut TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).map_err(|error| error.kind())?;
    Ok(bytes)
}

/// Closes a connection with a TCP reset.
fn reset(socket: TcpStream) {
    set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
}
