//! Losses without congestion do not slow a link down as they slow TCP down.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use evenkeel_test_network::{Network, PacketLoss, PathSpec, network_or_skip};
use rustix::net::sockopt::set_tcp_congestion;

use crate::link::test_link::{Connection, ForwardLane, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

/// Both transports are measured for this time, after their start.
const SPAN: Duration = Duration::from_secs(4);

#[test]
fn a_link_outruns_kernel_cubic_on_a_path_with_independent_losses() {
    assert_outruns_cubic("loss", PacketLoss::Independent(0.01));
}

#[test]
fn a_link_outruns_kernel_cubic_on_a_path_with_bursts_of_losses() {
    assert_outruns_cubic("bursts", PacketLoss::Bursts { ratio: 0.01, length_mean: 4.0 });
}

/// Sends over the same path by the link, then by TCP. The link gets about 19 Mbit/s, kernel Cubic 2 to 4.
#[track_caller]
fn assert_outruns_cubic(name: &str, loss: PacketLoss) {
    let spec = PathSpec { loss, ..PathSpec::new(20.0, ms(40)) };
    let link = TestLink::start(name, network_or_skip!(&[spec]));
    link.wait_active(1);
    let own = bytes_in_span(link.network(), &link.connect(ForwardLane::Bonded), 3 * MB);
    link.network().path(1).set(spec);
    let cubic = bytes_in_span(link.network(), &connect_tcp(link.network()), MB / 4);
    eprintln!("bytes in {SPAN:?}: link {own}, kernel Cubic {cubic}");
    assert!(cubic * 5 / 2 < own, "link {own}, kernel Cubic {cubic}");
}

/// Sends to the core; returns the bytes that arrived in [`SPAN`] after the first `skipped`, and checks all of them.
///
/// The rest arrives without losses, which would take TCP many seconds.
fn bytes_in_span(network: &Network, connection: &Connection, skipped: u64) -> u64 {
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    transfer.wait_progress(skipped);
    let before = transfer.received();
    thread::sleep(SPAN);
    let bytes = transfer.received() - before;
    network.path(1).set(PathSpec::unlimited(ms(1)));
    transfer.stop();
    bytes
}

fn connect_tcp(network: &Network) -> Connection {
    let listener = network.core().run(|| TcpListener::bind((network.path(1).core_address(), 0)).unwrap());
    let edge = network.edge().run(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    set_tcp_congestion(&edge, "cubic").unwrap();
    let (core, _) = listener.accept().unwrap();
    Connection { edge, core }
}
