//! Emulated networks with real sockets. Sockets use the addresses of path 1 unless a test says otherwise.

mod clean_up;
mod faults;
mod routes;
mod shape;

use evenkeel_test_network::{Network, PathCounters};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every wait.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Payload of a packet of 1500 bytes.
const FULL: usize = 1472;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A UDP socket on each side.
struct Pair {
    edge: UdpSocket,
    core: UdpSocket,
}

impl Pair {
    fn new(network: &Network) -> Self {
        let edge = network.edge().run(|| UdpSocket::bind((network.path(1).edge_address(), 0)).unwrap());
        let core = network.core().run(|| UdpSocket::bind((network.path(1).core_address(), 0)).unwrap());
        for socket in [&edge, &core] {
            socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        }
        Self { edge, core }
    }

    fn core_address(&self) -> SocketAddr {
        self.core.local_addr().unwrap()
    }

    /// Sends a datagram from edge to core and back, and returns the round-trip time.
    fn echo(&self) -> io::Result<Duration> {
        let mut buffer = [0; FULL];
        let sent = Instant::now();
        self.edge.send_to(b"ping", self.core_address())?;
        let (length, from) = self.core.recv_from(&mut buffer)?;
        self.core.send_to(&buffer[..length], from)?;
        self.edge.recv(&mut buffer)?;
        Ok(sent.elapsed())
    }

    /// Sends full packets from edge to core, each with its number, not faster than the emulator reads them.
    fn send_numbered(&self, network: &Network, count: u64) {
        let before = to_core(network).offered;
        for number in 0..count {
            let mut payload = [0; FULL];
            payload[..8].copy_from_slice(&number.to_be_bytes());
            self.edge.send_to(&payload, self.core_address()).unwrap();
            if number % 100 == 99 {
                wait_until(|| before + number < to_core(network).offered);
            }
        }
        wait_until(|| to_core(network).offered == before + count);
    }

    /// Receives the number of a packet.
    fn receive_number(&self) -> u64 {
        let mut payload = [0; FULL];
        self.core.recv(&mut payload).unwrap();
        u64::from_be_bytes(payload[..8].try_into().unwrap())
    }
}

fn to_core(network: &Network) -> PathCounters {
    network.path(1).to_core().counters()
}

/// Waits for a condition, and panics if it does not become true.
fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_MAX, "the condition did not become true within {WAIT_MAX:?}");
        thread::sleep(ms(1));
    }
}
