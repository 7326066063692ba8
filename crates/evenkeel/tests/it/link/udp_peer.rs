//! UDP sockets of tests: numbered datagrams, and a server that answers them.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::process::{TIMEOUT, poll_until_timeout};

/// Time that a socket waits for a datagram at a time.
const POLL: Duration = Duration::from_millis(20);

/// A UDP server that answers every datagram with its content, and counts.
pub(crate) struct EchoServer {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    clients: Arc<Mutex<Vec<SocketAddr>>>,
    is_stopped: Arc<Mutex<bool>>,
}

impl EchoServer {
    /// Answers the datagrams of a socket, which is bound in the server's network namespace.
    pub(crate) fn start(socket: UdpSocket) -> Self {
        let address = socket.local_addr().unwrap();
        socket.set_read_timeout(Some(POLL)).unwrap();
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let clients = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let is_stopped = Arc::<Mutex<bool>>::default();
        let server = Self {
            address,
            received: received.clone(),
            clients: clients.clone(),
            is_stopped: is_stopped.clone(),
        };
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while !*is_stopped.lock().unwrap() {
                let Ok((len, client)) = socket.recv_from(&mut buffer) else { continue };
                received.lock().unwrap().push(buffer[..len].to_vec());
                let mut clients = clients.lock().unwrap();
                if !clients.contains(&client) {
                    clients.push(client);
                }
                socket.send_to(&buffer[..len], client).unwrap();
            }
        });
        server
    }

    /// Returns the numbers of the datagrams that have arrived, in the order of their arrival.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.received.lock().unwrap().iter().map(|data| number(data)).collect()
    }

    /// Returns the number of different addresses that datagrams came from.
    pub(crate) fn clients(&self) -> usize {
        self.clients.lock().unwrap().len()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        *self.is_stopped.lock().unwrap() = true;
    }
}

/// Returns a datagram that begins with a number.
pub(crate) fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut data = vec![number as u8; len.max(4)];
    data[..4].copy_from_slice(&number.to_be_bytes());
    data
}

fn number(data: &[u8]) -> u32 {
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

/// Sends datagrams until one is answered, because the first ones may be lost while the link starts.
#[track_caller]
pub(crate) fn wait_answer(client: &UdpSocket, data: &[u8]) {
    client.set_read_timeout(Some(10 * POLL)).unwrap();
    let mut buffer = vec![0; 65_536];
    let answered = poll_until_timeout(|| {
        client.send(data).ok()?;
        let len = client.recv(&mut buffer).ok()?;
        (buffer[..len] == *data).then_some(())
    });
    assert!(answered.is_some(), "no answer within {TIMEOUT:?}");
    drain(client);
}

/// Drops what has arrived.
fn drain(client: &UdpSocket) {
    client.set_read_timeout(Some(10 * POLL)).unwrap();
    let mut buffer = [0; 16];
    while client.recv(&mut buffer).is_ok() {}
}

/// Returns the numbers of all answers, until none has arrived for a second.
pub(crate) fn answers(client: &UdpSocket) -> Vec<u32> {
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut buffer = vec![0; 65_536];
    let mut numbers = Vec::new();
    loop {
        match client.recv(&mut buffer) {
            Ok(len) => numbers.push(number(&buffer[..len])),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return numbers;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
