//! The thread that carries packets between the two TUN devices of a path.
//!
//! While packets flow, the thread works once per [`TICK`]: it then reads and delivers everything at once, which costs less
//! than a wake-up per packet. So a packet arrives up to two ticks late, and never early. At most [`IN_TRANSIT_MAX`]
//! packets are on their way in each direction; further ones count as queue drops.

use crate::path::PathDirection;
use crate::shaper::{Fate, Shaper};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use rustix::thread::{gettid, set_current_timer_slack};
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tun_rs::SyncDevice;

/// Largest IP packet of a path.
pub(crate) const MTU: u16 = 1500;
const TICK: Duration = Duration::from_micros(250);
const IN_TRANSIT_MAX: usize = 1 << 16;
/// Packets read from one direction before those of the other get their turn.
const READ_MAX: usize = 512;
/// Above that of the processes under test, so that a busy machine does not become a slower path.
const NICE: i32 = -10;

/// A running emulator, stopped on drop.
#[derive(Debug)]
pub(crate) struct Emulator {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    /// Carries packets from each device to the other; the first direction starts at the first device.
    pub(crate) fn start(
        name: &str,
        devices: [SyncDevice; 2],
        directions: [&Arc<PathDirection>; 2],
        seed: u64,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let [first, second] = devices.map(Arc::new);
        let forwarders = [
            Forwarder::new(&first, &second, directions[0], seed),
            Forwarder::new(&second, &first, directions[1], seed.wrapping_add(1)),
        ];
        let thread = thread::Builder::new().name(format!("emulator-{name}")).spawn({
            let stop = Arc::clone(&stop);
            move || run(forwarders, &stop)
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).expect("an eventfd accepts a small number");
        if let Some(thread) = self.thread.take() {
            // A panic in the emulator has been printed already.
            let _ = thread.join();
        }
    }
}

fn run(mut forwarders: [Forwarder; 2], stop: &OwnedFd) {
    // Both calls only improve timing; without the right to a higher priority, the emulator is less exact.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let _ = setpriority_process(Some(gettid()), NICE);
    loop {
        let mut now = Instant::now();
        let mut any_read = false;
        for forwarder in &mut forwarders {
            any_read |= forwarder.read(now);
            now = Instant::now();
            forwarder.deliver(now);
        }
        let next_due = forwarders.iter().filter_map(Forwarder::next_due).min();
        let wait = next_due.map(|due| due.saturating_duration_since(now));
        // Devices are not watched during a tick, so that a packet does not end it.
        let is_tick = any_read || wait.is_some_and(|wait| wait <= TICK);
        let timeout = if is_tick { Some(TICK) } else { wait };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if !is_tick {
            fds.extend(forwarders.iter().map(|forwarder| PollFd::new(&*forwarder.input, PollFlags::IN)));
        }
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => unreachable!("poll with valid file descriptors: {error}"),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return;
        }
    }
}

/// One direction of a path.
struct Forwarder {
    input: Arc<SyncDevice>,
    output: Arc<SyncDevice>,
    direction: Arc<PathDirection>,
    shaper: Shaper,
    /// Ordered by the time of delivery.
    in_transit: VecDeque<Packet>,
    /// Buffers for further packets.
    spare: Vec<Vec<u8>>,
}

struct Packet {
    due: Instant,
    buffer: Vec<u8>,
    length: usize,
}

impl Forwarder {
    fn new(
        input: &Arc<SyncDevice>,
        output: &Arc<SyncDevice>,
        direction: &Arc<PathDirection>,
        seed: u64,
    ) -> Self {
        Self {
            input: Arc::clone(input),
            output: Arc::clone(output),
            direction: Arc::clone(direction),
            shaper: Shaper::new(seed, Instant::now()),
            in_transit: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Reads the packets that are waiting, and reports whether there were any.
    fn read(&mut self, now: Instant) -> bool {
        let mut state = self.direction.lock();
        for count in 0..READ_MAX {
            let mut buffer = self.spare.pop().unwrap_or_else(|| vec![0; MTU.into()]);
            // An error means that no packet is waiting; a device whose interface is down has none.
            let Ok(length) = rustix::io::read(&*self.input, &mut *buffer) else {
                self.spare.push(buffer);
                return count != 0;
            };
            state.counters.offered += 1;
            if state.black_hole {
                state.counters.black_holed += 1;
                self.spare.push(buffer);
                continue;
            }
            match self.shaper.offer(&state.spec, now, length) {
                Fate::Due(due) if self.in_transit.len() < IN_TRANSIT_MAX => {
                    let index = self.in_transit.partition_point(|packet| packet.due <= due);
                    self.in_transit.insert(index, Packet { due, buffer, length });
                    continue;
                }
                Fate::Due(_) | Fate::QueueDrop => state.counters.queue_dropped += 1,
                Fate::Lost => state.counters.lost += 1,
            }
            self.spare.push(buffer);
        }
        true
    }

    /// Delivers the packets that are due.
    fn deliver(&mut self, now: Instant) {
        // Locked during the write, so that a receiver of the packet finds it counted.
        let mut state = self.direction.lock();
        while let Some(packet) = self.in_transit.pop_front_if(|packet| packet.due <= now) {
            let bytes = &packet.buffer[..packet.length];
            // A write fails if the interface is down.
            if !state.black_hole && rustix::io::write(&*self.output, bytes).is_ok() {
                state.counters.delivered += 1;
                state.counters.delivered_bytes += packet.length as u64;
            } else {
                state.counters.black_holed += 1;
            }
            self.spare.push(packet.buffer);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.in_transit.front().map(|packet| packet.due)
    }
}
