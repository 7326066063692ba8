//! Decides the fate of each packet in one direction of a path, without I/O and without a clock.

use crate::rng::Rng;
use crate::spec::{Jitter, Limiter, PacketLoss, PathSpec};
use std::time::{Duration, Instant};

/// The smallest queue, as bytes: ten full packets.
const QUEUE_BYTES_MIN: f64 = 15_000.0;

#[derive(Debug)]
pub(crate) struct Shaper {
    rng: Rng,
    /// The time at which the last accepted packet has left the queue.
    busy_until: Instant,
    /// The latest delivery so far.
    last_due: Instant,
    in_loss_burst: bool,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Delivered at this time.
    Due(Instant),
    /// Dropped, because the queue is full or the policer's bucket is empty.
    QueueDrop,
    /// Lost on the way.
    Lost,
}

impl Shaper {
    pub(crate) fn new(seed: u64, now: Instant) -> Self {
        Self { rng: Rng::new(seed), busy_until: now, last_due: now, in_loss_burst: false }
    }

    /// Decides the fate of a packet of `bytes` that enters at `now`.
    pub(crate) fn offer(&mut self, spec: &PathSpec, now: Instant, bytes: usize) -> Fate {
        let Some(sent) = self.transmit(spec, now, bytes) else { return Fate::QueueDrop };
        if self.is_lost(spec.loss) {
            return Fate::Lost;
        }
        let mut due = sent + spec.one_way;
        match spec.jitter {
            Jitter::None => due = due.max(self.last_due),
            Jitter::InOrder(jitter) => due = (due + jitter.mul_f64(self.rng.unit())).max(self.last_due),
            Jitter::Reordering(jitter) => due += jitter.mul_f64(self.rng.unit()),
        }
        self.last_due = self.last_due.max(due);
        Fate::Due(due)
    }

    /// Returns the time at which the packet has left the limiter; `None` if the limiter drops it.
    fn transmit(&mut self, spec: &PathSpec, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(rate_mbit) = spec.rate_mbit else { return Some(now) };
        let time_of = |bytes: f64| Duration::from_secs_f64(bytes * 8.0 / (rate_mbit * 1e6));
        let start = self.busy_until.max(now);
        let end = start + time_of(bytes as f64);
        let backlog_max = spec.queue.max(time_of(QUEUE_BYTES_MIN));
        if backlog_max < end.duration_since(now) {
            return None;
        }
        self.busy_until = end;
        match spec.limiter {
            Limiter::Queue => Some(end),
            // The backlog stands for the tokens that have been taken from the bucket.
            Limiter::Policer => Some(now),
        }
    }

    fn is_lost(&mut self, loss: PacketLoss) -> bool {
        match loss {
            PacketLoss::None => false,
            PacketLoss::Independent(ratio) => self.rng.unit() < ratio,
            PacketLoss::Bursts { ratio, length_mean } => {
                let toggle =
                    if self.in_loss_burst { 1.0 / length_mean } else { ratio / (1.0 - ratio) / length_mean };
                self.in_loss_burst ^= self.rng.unit() < toggle;
                self.in_loss_burst
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1500;
    const DELAY: Duration = Duration::from_millis(10);

    #[test]
    fn packets_leave_at_the_rate_and_arrive_after_the_delay() {
        let spec = PathSpec::new(12.0, DELAY);
        let start = Instant::now();
        let dues = dues(&offer_at_once(&spec, start, 4));
        // A packet takes 1 ms at 12 Mbit/s.
        let expected: Vec<_> = (1..=4).map(|ms| start + DELAY + Duration::from_millis(ms)).collect();
        assert_eq!(dues, expected);
    }

    #[test]
    fn the_queue_drops_what_exceeds_it() {
        let spec = PathSpec::new(12.0, DELAY).with_queue(Duration::from_millis(20));
        let fates = offer_at_once(&spec, Instant::now(), 30);
        assert_eq!(dues(&fates).len(), 20);
        assert!(fates[20..].iter().all(|fate| *fate == Fate::QueueDrop), "{fates:?}");
    }

    #[test]
    fn the_smallest_queue_holds_ten_packets() {
        let spec = PathSpec::new(12.0, DELAY).with_queue(Duration::ZERO);
        assert_eq!(dues(&offer_at_once(&spec, Instant::now(), 30)).len(), 10);
    }

    #[test]
    fn a_policer_drops_the_excess_and_delays_nothing() {
        let queue = Duration::from_millis(20);
        let spec = PathSpec { limiter: Limiter::Policer, ..PathSpec::new(12.0, DELAY).with_queue(queue) };
        let start = Instant::now();
        assert_eq!(dues(&offer_at_once(&spec, start, 30)), [start + DELAY; 20]);
    }

    #[test]
    fn jitter_keeps_the_order_unless_it_may_reorder() {
        let jitter = Duration::from_millis(5);
        let start = Instant::now();
        let in_order = PathSpec::unlimited(DELAY).with_jitter(jitter);
        let reordering = PathSpec { jitter: Jitter::Reordering(jitter), ..in_order };
        let kept = dues(&offer_at_once(&in_order, start, 200));
        let mixed = dues(&offer_at_once(&reordering, start, 200));
        assert!(kept.is_sorted() && !mixed.is_sorted());
        for due in kept.iter().chain(&mixed) {
            assert!((start + DELAY..=start + DELAY + jitter).contains(due));
        }
        assert!(start + DELAY + jitter / 2 < *mixed.iter().max().unwrap());
    }

    #[test]
    fn a_shorter_delay_does_not_reorder() {
        let start = Instant::now();
        let mut shaper = Shaper::new(1, start);
        let slow = shaper.offer(&PathSpec::unlimited(DELAY), start, PACKET);
        let fast = shaper.offer(&PathSpec::unlimited(Duration::ZERO), start, PACKET);
        assert_eq!((slow, fast), (Fate::Due(start + DELAY), Fate::Due(start + DELAY)));
    }

    #[test]
    fn independent_losses_have_their_ratio() {
        let lost = losses(PacketLoss::Independent(0.1));
        let ratio = lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64;
        assert!((0.095..0.105).contains(&ratio), "{ratio}");
    }

    #[test]
    fn bursts_have_their_ratio_and_mean_length() {
        let lost = losses(PacketLoss::Bursts { ratio: 0.1, length_mean: 8.0 });
        let count = lost.iter().filter(|lost| **lost).count() as f64;
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let ratio = count / lost.len() as f64;
        assert!((0.09..0.11).contains(&ratio), "{ratio}");
        assert!((7.0..9.0).contains(&(count / bursts)), "{}", count / bursts);
    }

    fn offer_at_once(spec: &PathSpec, start: Instant, packets: usize) -> Vec<Fate> {
        let mut shaper = Shaper::new(1, start);
        (0..packets).map(|_| shaper.offer(spec, start, PACKET)).collect()
    }

    fn dues(fates: &[Fate]) -> Vec<Instant> {
        let due = |fate: &Fate| if let Fate::Due(due) = fate { Some(*due) } else { None };
        fates.iter().filter_map(due).collect()
    }

    fn losses(loss: PacketLoss) -> Vec<bool> {
        let spec = PathSpec { loss, ..PathSpec::unlimited(DELAY) };
        spec.assert_valid();
        offer_at_once(&spec, Instant::now(), 100_000).iter().map(|fate| *fate == Fate::Lost).collect()
    }
}
