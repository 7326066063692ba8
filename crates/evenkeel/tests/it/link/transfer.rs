//! Random bytes over a connection, counted and hashed at both ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring::digest::{Context, SHA256};

use super::process::wait_for;
use super::{MB, ms};

/// Bytes by which the sender is ahead of the receiver at most; the buffers of sockets would take seconds to drain.
const LEAD_MAX: u64 = 2 * MB;

/// Time between two looks at the progress of a transfer.
const POLL: Duration = Duration::from_millis(10);

/// One direction of a connection that carries random bytes; ends with the end of the stream.
pub(crate) struct Transfer {
    sender: JoinHandle<Summary>,
    receiver: JoinHandle<Summary>,
    received: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

/// Number and SHA-256 of the bytes at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Summary {
    bytes: u64,
    digest: Vec<u8>,
}

impl Transfer {
    /// Starts to send `len` bytes.
    pub(crate) fn start(from: &TcpStream, to: &TcpStream, len: u64) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let mut from = from.try_clone().unwrap();
        let mut to = to.try_clone().unwrap();
        let stop = is_stopped.clone();
        let counter = received.clone();
        let sender = thread::spawn(move || send(&mut from, len, &stop, &counter));
        let counter = received.clone();
        let receiver = thread::spawn(move || receive(&mut to, &counter));
        Self { sender, receiver, received, is_stopped }
    }

    /// Starts to send bytes until [`Self::stop`].
    pub(crate) fn start_endless(from: &TcpStream, to: &TcpStream) -> Self {
        Self::start(from, to, u64::MAX)
    }

    /// Returns the number of bytes that arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until this many more bytes have arrived.
    #[track_caller]
    pub(crate) fn wait_progress(&self, bytes: u64) {
        let until = self.received() + bytes;
        wait_for("progress of the transfer", || (until <= self.received()).then_some(()));
    }

    /// Watches the transfer for a time; returns the longest time in which nothing arrived.
    pub(crate) fn longest_stall(&self, span: Duration) -> Duration {
        let start = Instant::now();
        let mut seen = (self.received(), start);
        let mut longest = Duration::ZERO;
        while start.elapsed() < span {
            thread::sleep(POLL);
            let received = self.received();
            if received != seen.0 {
                seen = (received, Instant::now());
            }
            longest = longest.max(seen.1.elapsed());
        }
        longest
    }

    /// Ends several streams at once; see [`Self::finish`].
    #[track_caller]
    pub(crate) fn stop_all(transfers: impl IntoIterator<Item = Self>) {
        let transfers: Vec<Self> = transfers.into_iter().collect();
        transfers.iter().for_each(|transfer| transfer.is_stopped.store(true, Ordering::Relaxed));
        for transfer in transfers {
            transfer.finish();
        }
    }

    /// Ends the stream; see [`Self::finish`].
    #[track_caller]
    pub(crate) fn stop(self) -> u64 {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.finish()
    }

    /// Waits until all bytes have arrived, and checks that they are those that were sent; returns their number.
    #[track_caller]
    pub(crate) fn finish(self) -> u64 {
        let sent = self.sender.join().unwrap();
        let received = self.receiver.join().unwrap();
        assert_eq!(received, sent);
        received.bytes
    }
}

fn send(to: &mut TcpStream, len: u64, stop: &AtomicBool, received: &AtomicU64) -> Summary {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ len;
    let mut digest = Context::new(&SHA256);
    let mut sent = 0;
    let mut buffer = [0; 16_384];
    while sent < len && !stop.load(Ordering::Relaxed) {
        if LEAD_MAX < sent - received.load(Ordering::Relaxed) {
            thread::sleep(ms(1));
            continue;
        }
        for word in buffer.chunks_exact_mut(8) {
            // Marsaglia's xorshift64.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&random.to_le_bytes());
        }
        let part = &buffer[..buffer.len().min(usize::try_from(len - sent).unwrap_or(usize::MAX))];
        to.write_all(part).unwrap();
        digest.update(part);
        sent += part.len() as u64;
    }
    to.shutdown(Shutdown::Write).unwrap();
    Summary { bytes: sent, digest: digest.finish().as_ref().to_vec() }
}

fn receive(from: &mut TcpStream, counter: &AtomicU64) -> Summary {
    let mut digest = Context::new(&SHA256);
    let mut buffer = [0; 65_536];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                digest.update(&buffer[..len]);
                counter.fetch_add(len as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {} bytes", counter.load(Ordering::Relaxed)),
        }
    }
    Summary { bytes: counter.load(Ordering::Relaxed), digest: digest.finish().as_ref().to_vec() }
}
