//! Decision whether a loss means congestion.
//!
//! A full queue delays packets before it drops them. A loss while the RTT is low is therefore the radio's or the
//! cable's, and cutting the window would not prevent the next one. Losses beyond 5 % are never hidden: a policer drops
//! without delaying. A queue shorter than 3 ms cannot be told from noise.
//!
//! A path that loses packets without a queue also loses them with one. There, a loss means congestion only if losses have
//! become more than the path's usual ones; otherwise the window would shrink whenever a queue begins to form.
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
/// Losses without a queue are counted for 12 × 5 s.
const CALM_SLICE: Duration = Duration::from_secs(5);
const CALM_SLICES: usize = 12;
/// Fewer losses without a queue are those of a queue that has drained before they were detected.
const CALM_LOST_MIN: u32 = 5;
const CALM_LOSS_MIN: f64 = 0.005;
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
    /// The latest RTT shows no queue.
    is_calm: bool,
    /// Packets without a queue.
    calm: RecentSlices<PacketCounts, CALM_SLICES>,
    outcomes: Outcomes,
}

#[derive(Clone, Copy, Debug, Default)]
struct PacketCounts {
    all: u32,
    lost: u32,
}

impl LossGate {
    pub(super) fn new() -> Self {
        Self {
            latest: VecDeque::with_capacity(STANDING),
            slices: RecentSlices::new(SLICE),
            is_calm: false,
            calm: RecentSlices::new(CALM_SLICE),
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
        let smallest = self.slices.values(now).min().unwrap_or(standing);
        let largest = self.slices.values(now).max().unwrap_or(standing);
        self.is_calm = standing < smallest.saturating_add(RISE_MIN.max((largest - smallest) / 2));
    }

    /// Returns the RTT of packets that met nothing but the queue.
    fn standing(&self) -> Option<Duration> {
        self.latest.iter().min().copied()
    }

    /// Records a packet that was acknowledged or lost.
    pub(super) fn record(&mut self, now: Instant, is_lost: bool) {
        self.outcomes.record(is_lost);
        if self.is_calm {
            let counts = self.calm.slot(now).get_or_insert_default();
            counts.all += 1;
            counts.lost += u32::from(is_lost);
        }
    }

    /// Forgets losses that led to a cut of the window.
    pub(super) fn restart(&mut self) {
        self.outcomes = Outcomes::new();
    }

    /// Returns whether a loss that is detected at `now` is to be hidden from the controller.
    pub(super) fn is_random(&mut self, now: Instant) -> bool {
        self.outcomes.lost < LOST_MAX && (self.is_calm || self.is_usual(now))
    }

    /// Returns whether losses since the last cut are not more than the path has without a queue.
    fn is_usual(&mut self, now: Instant) -> bool {
        let counts = self.calm.values(now).fold(PacketCounts::default(), |sum, slice| PacketCounts {
            all: sum.all + slice.all,
            lost: sum.lost + slice.lost,
        });
        let ratio = f64::from(counts.lost) / f64::from(counts.all.max(1));
        if counts.lost < CALM_LOST_MIN || ratio < CALM_LOSS_MIN {
            return false;
        }
        let expected = ratio * self.outcomes.count as f64;
        // Three standard deviations above twice the mean, which is not known exactly.
        f64::from(self.outcomes.lost) <= 2.0 * expected + 3.0 * expected.sqrt()
    }
}

/// Fate of the last [`PACKETS`] packets.
#[derive(Clone, Debug)]
struct Outcomes {
    is_lost: [bool; PACKETS],
    next: usize,
    count: usize,
    lost: u32,
}

impl Outcomes {
    const fn new() -> Self {
        Self { is_lost: [false; PACKETS], next: 0, count: 0, lost: 0 }
    }

    fn record(&mut self, is_lost: bool) {
        let oldest = &mut self.is_lost[self.next];
        self.lost = self.lost + u32::from(is_lost) - u32::from(*oldest);
        *oldest = is_lost;
        self.next = (self.next + 1) % PACKETS;
        self.count = PACKETS.min(self.count + 1);
    }
}
