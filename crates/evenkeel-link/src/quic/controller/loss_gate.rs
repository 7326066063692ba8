//! Decision whether a loss means congestion.
//!
//! A full queue delays packets before it drops them. A loss while the RTT is low is therefore the radio's or the
//! cable's, and cutting the window would not prevent the next one. Losses beyond 5 % are never hidden: a policer drops
//! without delaying. A queue shorter than 3 ms cannot be told from noise.
//!
//! A queue delays every packet, but a busy machine or a radio delays some. RTTs are therefore judged by the smallest of a few:
//! otherwise, a single pause of 30 ms would make every loss in a queue of 5 ms look random for the next minute, and starve
//! other flows.

use std::collections::VecDeque;

use evenkeel_policy::time::{Duration, Instant};

use super::recent_range::RecentSlices;

/// Rise of the RTT that is noise on any path.
const RISE_MIN: Duration = Duration::from_millis(3);
/// The smallest of this many RTTs is the delay of all packets.
pub(super) const STANDING: usize = 8;
/// The range of the RTT is that of 300 × 200 ms; each slice counts with its smallest.
const SLICE: Duration = Duration::from_millis(200);
const SLICES: usize = 300;
/// Packets over which losses are counted.
const PACKETS: usize = 1000;
/// 5 % of [`PACKETS`].
const LOST_MAX: u32 = 50;

/// RTTs and losses of one connection.
#[derive(Clone, Debug)]
pub(super) struct LossGate {
    /// The last RTTs, the oldest first.
    latest: VecDeque<Duration>,
    slices: RecentSlices<Duration, SLICES>,
    outcomes: Outcomes,
}

impl LossGate {
    pub(super) fn new() -> Self {
        Self {
            latest: VecDeque::with_capacity(STANDING),
            slices: RecentSlices::new(SLICE),
            outcomes: Outcomes::new(),
        }
    }

    pub(super) fn record_rtt(&mut self, now: Instant, rtt: Duration) {
        if self.latest.len() == STANDING {
            self.latest.pop_front();
        }
        self.latest.push_back(rtt);
        let standing = self.standing().unwrap_or(rtt);
        let slot = self.slices.slot(now);
        *slot = Some(slot.map_or(standing, |smallest| smallest.min(standing)));
    }

    /// Returns the RTT of packets that met nothing but the queue.
    fn standing(&self) -> Option<Duration> {
        self.latest.iter().min().copied()
    }

    pub(super) fn record_acked(&mut self) {
        self.outcomes.record(false);
    }

    pub(super) fn record_lost(&mut self) {
        self.outcomes.record(true);
    }

    /// Forgets losses that led to a cut of the window.
    pub(super) fn restart(&mut self) {
        self.outcomes = Outcomes::new();
    }

    /// Returns whether a loss that is detected at `now` is to be hidden from the controller.
    pub(super) fn is_random(&mut self, now: Instant) -> bool {
        let Some(standing) = self.standing() else { return false };
        let Some(smallest) = self.slices.values(now).min() else { return false };
        let Some(largest) = self.slices.values(now).max() else { return false };
        let rise_max = RISE_MIN.max((largest - smallest) / 2);
        standing < smallest.saturating_add(rise_max) && self.outcomes.lost < LOST_MAX
    }
}

/// Fate of the last [`PACKETS`] packets.
#[derive(Clone, Debug)]
struct Outcomes {
    is_lost: [bool; PACKETS],
    next: usize,
    lost: u32,
}

impl Outcomes {
    const fn new() -> Self {
        Self { is_lost: [false; PACKETS], next: 0, lost: 0 }
    }

    fn record(&mut self, is_lost: bool) {
        let oldest = &mut self.is_lost[self.next];
        self.lost = self.lost + u32::from(is_lost) - u32::from(*oldest);
        *oldest = is_lost;
        self.next = (self.next + 1) % PACKETS;
    }
}
