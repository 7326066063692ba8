//! One TCP stream from edge to core that always has data to send, and the progress of its receiver.
//!
//! Sender and receiver are threads of this process in the two namespaces. The receiver counts bytes as it reads them: data
//! that waits for earlier data does not count.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use bench_support::{RunError, thread_cpu};
use evenkeel_test_network::{Namespace, Network};
use rustix::thread::gettid;
use socket2::{Domain, Protocol, Socket, Type};

use crate::contender::{CongestionControl, StartedLink};
use crate::interrupt::InterruptFlag;

/// Time limit for the connection to be established.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a blocked thread checks whether it shall stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
const WRITE_BYTES: usize = 128 * 1024;
const READ_BYTES: usize = 256 * 1024;

/// Time without a longer gap after which a stream has recovered from a fault.
const RECOVERY: Duration = Duration::from_secs(4);

/// A running stream, stopped on drop.
pub(crate) struct BulkStream {
    state: Arc<StreamState>,
    sender: StreamThread,
    receiver: StreamThread,
    /// Received bytes at the last sample.
    last: u64,
    last_progress: Instant,
}

#[derive(Default)]
struct StreamState {
    received: AtomicU64,
    is_stopped: AtomicBool,
}

/// The receiver's progress during an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamProgress {
    pub(crate) bytes: u64,
    pub(crate) wall: Duration,
    /// The longest time in which no byte arrived.
    pub(crate) gap_max: Duration,
}

impl StreamProgress {
    pub(crate) fn mbit(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.wall.as_secs_f64()
    }
}

impl BulkStream {
    pub(crate) fn start(network: &Network, link: &StartedLink) -> io::Result<Self> {
        let state = Arc::new(StreamState::default());
        let listener = network.core().run(|| listen(link.protocol, link.listen))?;
        let receiver = StreamThread::start(network.core(), &state, move |state| receive(&listener, state))?;
        let congestion_control = link.congestion_control;
        let protocol = link.protocol;
        let address = link.connect;
        let sender = StreamThread::start(network.edge(), &state, move |state| {
            send(connect(protocol, congestion_control, address, state)?, state)
        })?;
        Ok(Self { state, sender, receiver, last: 0, last_progress: Instant::now() })
    }

    /// Returns the number of bytes that the receiver has read.
    pub(crate) fn received(&self) -> u64 {
        self.state.received.load(Ordering::Relaxed)
    }

    /// Returns the CPU time of the sending and of the receiving thread.
    pub(crate) fn cpu(&self) -> io::Result<[Duration; 2]> {
        Ok([thread_cpu(self.sender.id)?, thread_cpu(self.receiver.id)?])
    }

    /// Samples the receiver's progress for some time; fails if a thread has ended or the run is interrupted.
    ///
    /// A gap may have begun in the observation before.
    pub(crate) fn observe(
        &mut self,
        time: Duration,
        interrupt: &InterruptFlag,
    ) -> Result<StreamProgress, RunError> {
        self.observe_until(interrupt, |sample| time <= sample.wall)
    }

    /// Samples the receiver's progress until the longest gap has not grown for [`RECOVERY`], for at most `time_max`.
    pub(crate) fn observe_recovery(
        &mut self,
        time_max: Duration,
        interrupt: &InterruptFlag,
    ) -> Result<StreamProgress, RunError> {
        let mut gap_max = Duration::ZERO;
        let mut grown_at = Duration::ZERO;
        self.observe_until(interrupt, |sample| {
            if gap_max < sample.gap_max {
                gap_max = sample.gap_max;
                grown_at = sample.wall;
            }
            grown_at + RECOVERY <= sample.wall || time_max <= sample.wall
        })
    }

    fn observe_until(
        &mut self,
        interrupt: &InterruptFlag,
        mut is_over: impl FnMut(&StreamProgress) -> bool,
    ) -> Result<StreamProgress, RunError> {
        let start = Instant::now();
        let first = self.received();
        if first != self.last {
            self.last = first;
            self.last_progress = start;
        }
        let mut gap_max = Duration::ZERO;
        loop {
            sleep(SAMPLE_INTERVAL);
            let now = Instant::now();
            let received = self.received();
            gap_max = gap_max.max(now.duration_since(self.last_progress));
            if received != self.last {
                self.last = received;
                self.last_progress = now;
            }
            let sample =
                StreamProgress { bytes: self.last - first, wall: now.duration_since(start), gap_max };
            if is_over(&sample) {
                return Ok(sample);
            }
            interrupt.check()?;
            for (side, thread) in [("sender", &mut self.sender), ("receiver", &mut self.receiver)] {
                thread.check().map_err(|error| RunError(format!("{side}: {error}")))?;
            }
        }
    }
}

impl Drop for BulkStream {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::Relaxed);
        for thread in [&mut self.sender, &mut self.receiver] {
            if let Some(handle) = thread.handle.take() {
                // Errors during the measurement have been reported.
                let _ = handle.join();
            }
        }
    }
}

struct StreamThread {
    id: u32,
    handle: Option<JoinHandle<io::Result<()>>>,
}

impl StreamThread {
    fn start(
        namespace: &Namespace,
        state: &Arc<StreamState>,
        work: impl FnOnce(&StreamState) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (id_sender, id_receiver) = mpsc::channel();
        let state = Arc::clone(state);
        let handle = namespace.spawn(move || {
            // Fails only if the other side has given up.
            let _ = id_sender.send(gettid().as_raw_nonzero().get().unsigned_abs());
            work(&state)
        });
        let id = id_receiver.recv().map_err(io::Error::other)?;
        Ok(Self { id, handle: Some(handle) })
    }

    /// Fails if the thread has ended.
    fn check(&mut self) -> io::Result<()> {
        let Some(handle) = self.handle.take_if(|handle| handle.is_finished()) else { return Ok(()) };
        match handle.join() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) => Err(io::Error::other("the connection has ended")),
            Err(_) => Err(io::Error::other("the thread has panicked")),
        }
    }
}

fn listen(protocol: Protocol, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn receive(listener: &TcpListener, state: &StreamState) -> io::Result<()> {
    let (mut stream, _) = retry(state, || listener.accept())?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
    let mut buffer = vec![0; READ_BYTES];
    while !state.is_stopped.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                state.received.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn connect(
    protocol: Protocol,
    congestion_control: CongestionControl,
    address: SocketAddr,
    state: &StreamState,
) -> io::Result<TcpStream> {
    retry(state, || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
        socket.set_tcp_congestion(congestion_control.name().as_bytes())?;
        socket.connect(&address.into())?;
        Ok(socket.into())
    })
}

fn send(mut stream: TcpStream, state: &StreamState) -> io::Result<()> {
    stream.set_write_timeout(Some(STOP_CHECK_INTERVAL))?;
    let buffer = vec![0; WRITE_BYTES];
    while !state.is_stopped.load(Ordering::Relaxed) {
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tries something until it succeeds, for at most [`CONNECT_WAIT_MAX`].
fn retry<T>(state: &StreamState, attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < CONNECT_WAIT_MAX && !state.is_stopped.load(Ordering::Relaxed) => {
                sleep(RETRY_INTERVAL);
            }
            result => return result,
        }
    }
}
