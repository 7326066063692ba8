//! Decision whether a loss means congestion.
//!
//! A full queue delays packets before it drops them. A loss while the RTT is low is therefore the radio's or the
//! cable's, and cutting the window would not prevent the next one. Losses beyond 5 % are never hidden: a policer drops
//! without delaying.

use evenkeel_policy::time::{Duration, Instant};

use super::recent_range::RecentRange;

/// Rise of the RTT that is noise on any path.
const RISE_MIN: Duration = Duration::from_millis(3);
/// The RTT's range is that of 12 × 5 s.
const SLICE: Duration = Duration::from_secs(5);
const SLICES: usize = 12;
/// Packets over which losses are counted.
const PACKETS: usize = 1000;
/// 5 % of [`PACKETS`].
const LOST_MAX: u32 = 50;

/// RTTs and losses of one connection.
#[derive(Clone, Debug)]
pub(super) struct LossGate {
    rtts: RecentRange<SLICES>,
    latest: Option<Duration>,
    outcomes: Outcomes,
}

impl LossGate {
    pub(super) fn new() -> Self {
        Self { rtts: RecentRange::new(SLICE), latest: None, outcomes: Outcomes::new() }
    }

    pub(super) fn record_rtt(&mut self, now: Instant, rtt: Duration) {
        self.rtts.record(now, u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX));
        self.latest = Some(rtt);
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
        let Some(latest) = self.latest else { return false };
        let Some(range) = self.rtts.range(now) else { return false };
        let rise_max = RISE_MIN.max(Duration::from_nanos((range.max - range.min) / 2));
        latest < Duration::from_nanos(range.min).saturating_add(rise_max) && self.outcomes.lost < LOST_MAX
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
