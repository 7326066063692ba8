//! Losses without congestion do not slow a link down as they slow TCP down.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use evenkeel_test_network::{Network, PacketLoss, PathSpec, network_or_skip};
use rustix::net::sockopt::set_tcp_congestion;

use crate::link::test_link::{Connection, ForwardLane, TestLink};
use crate::link::transfer::Transfer;
use crate::link::{MB, ms};

/// Time for which the link is measured, after its start; TCP is measured twice as long.
const SPAN: Duration = Duration::from_secs(4);

#[test]
fn a_link_outruns_kernel_cubic_on_a_path_with_independent_losses() {
    assert_outruns_cubic("loss", PacketLoss::Independent(0.01));
}

#[test]
fn a_link_outruns_kernel_cubic_on_a_path_with_bursts_of_losses() {
    assert_outruns_cubic("bursts", PacketLoss::Bursts { ratio: 0.01, length_mean: 3.0 });
}

/// Sends over the same path by the link, then by TCP.
///
/// The link gets 17 to 19 Mbit/s, kernel Cubic 1 to 3, but it may carry some megabytes before its first losses. So it starts
/// with more of them.
#[track_caller]
fn assert_outruns_cubic(name: &str, loss: PacketLoss) {
    let spec = PathSpec { loss, ..PathSpec::new(20.0, ms(50)) };
    let link = TestLink::start(name, network_or_skip!(&[spec]));
    link.wait_active(1);
    let connection = link.connect(ForwardLane::Bonded);
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    transfer.wait_progress(3 * MB);
    let own = bytes_in(SPAN, link.network(), transfer);

    link.network().path(1).set(spec.with_loss(0.1));
    let connection = connect_tcp(link.network());
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    transfer.wait_progress(MB / 20);
    link.network().path(1).set(spec);
    let cubic = bytes_in(2 * SPAN, link.network(), transfer);
    eprintln!("link: {own} bytes in {SPAN:?}, kernel Cubic: {cubic} bytes in twice the time");
    assert!(cubic < own, "link {own}, kernel Cubic {cubic}");
}

/// Returns the bytes that arrive in `span`, then checks all bytes of the transfer.
///
/// The rest arrives without losses, which would take TCP many seconds.
fn bytes_in(span: Duration, network: &Network, transfer: Transfer) -> u64 {
    let before = transfer.received();
    thread::sleep(span);
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
