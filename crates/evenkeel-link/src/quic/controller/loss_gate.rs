//! Decision whether a loss means congestion.
//!
//! A full queue delays packets before it drops them. A loss at a low RTT is therefore not caused by congestion, and
//! cutting the window would not prevent the next one. At most 49 losses among the last 1000 packets are hidden, counted from
//! the last cut of the window: a policer drops without delaying. A queue shorter than 3 ms cannot be told from noise.
//!
//! A path that loses packets without a queue also loses them with one. There, a loss means congestion only if losses have
//! become more than the path's random loss explains; otherwise the window would shrink whenever a queue begins to form.
//!
//! A queue delays every packet, but a busy machine or a radio delays some. RTTs are therefore judged by the smallest of a few:
//! otherwise, a single pause of 30 ms would make every loss in a queue of 5 ms look random for the next minute, and starve
//! other flows.

use std::collections::VecDeque;

use evenkeel_policy::time::{Duration, Instant};

use super::recent_range::RecentSlices;

/// Rise of the RTT that is noise on any path.
const RISE_MIN: Duration = Duration::from_millis(3);
/// Number of RTTs whose minimum is compared, so that single delayed packets do not count.
pub(super) const MIN_FILTER_LEN: usize = 8;
/// The RTT range covers 300 slices of 200 ms, each represented by its smallest filtered RTT.
const SLICE: Duration = Duration::from_millis(200);
const SLICES: usize = 300;
/// Losses without a queue are counted for 12 × 5 s.
const COUNT_SLICE: Duration = Duration::from_secs(5);
const COUNT_SLICES: usize = 12;
/// Below these numbers, losses may come from a queue that drained before they were detected, so the path has no known
/// random loss.
const RANDOM_LOST_MIN: u32 = 5;
const RANDOM_LOSS_MIN: f64 = 0.005;
/// Packets over which losses are counted.
const PACKETS: usize = 1000;
/// Losses among the last [`PACKETS`] from which on none is hidden (5 %).
const LOST_MAX: u32 = 50;

/// RTTs and losses of one connection.
#[derive(Clone, Debug)]
pub(super) struct LossGate {
    /// The last RTTs, the oldest first.
    latest: VecDeque<Duration>,
    slices: RecentSlices<Duration, SLICES>,
    /// The latest RTTs show a queue, or there are none.
    has_queue: bool,
    /// Packets and losses while there was no queue.
    counts_without_queue: RecentSlices<PacketCounts, COUNT_SLICES>,
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
            latest: VecDeque::with_capacity(MIN_FILTER_LEN),
            slices: RecentSlices::new(SLICE),
            has_queue: true,
            counts_without_queue: RecentSlices::new(COUNT_SLICE),
            outcomes: Outcomes::new(),
        }
    }

    pub(super) fn record_rtt(&mut self, now: Instant, rtt: Duration) {
        if self.latest.len() == MIN_FILTER_LEN {
            self.latest.pop_front();
        }
        self.latest.push_back(rtt);
        let filtered = self.filtered_rtt().unwrap_or(rtt);
        let slot = self.slices.slot(now);
        *slot = Some(slot.map_or(filtered, |smallest| smallest.min(filtered)));
        let smallest = self.slices.values(now).min().unwrap_or(filtered);
        let largest = self.slices.values(now).max().unwrap_or(filtered);
        self.has_queue = smallest.saturating_add(RISE_MIN.max((largest - smallest) / 2)) <= filtered;
    }

    /// Returns the smallest of the last RTTs.
    fn filtered_rtt(&self) -> Option<Duration> {
        self.latest.iter().min().copied()
    }

    /// Records a packet that was acknowledged or lost.
    pub(super) fn record(&mut self, now: Instant, is_lost: bool) {
        self.outcomes.record(is_lost);
        if !self.has_queue {
            let counts = self.counts_without_queue.slot(now).get_or_insert_default();
            counts.all += 1;
            counts.lost += u32::from(is_lost);
        }
    }

    /// Forgets losses that led to a cut of the window.
    pub(super) fn restart(&mut self) {
        self.outcomes = Outcomes::new();
    }

    /// Reports whether a loss that is detected at `now` is hidden from the controller.
    pub(super) fn hides_loss(&mut self, now: Instant) -> bool {
        self.outcomes.lost < LOST_MAX && (!self.has_queue || self.is_within_random_loss(now))
    }

    /// Reports whether the losses since the last cut are explained by the path's random loss.
    fn is_within_random_loss(&mut self, now: Instant) -> bool {
        let counts = self.counts_without_queue.values(now).fold(PacketCounts::default(), |sum, slice| {
            PacketCounts { all: sum.all + slice.all, lost: sum.lost + slice.lost }
        });
        let ratio = f64::from(counts.lost) / f64::from(counts.all.max(1));
        if counts.lost < RANDOM_LOST_MIN || ratio < RANDOM_LOSS_MIN {
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
