//! Samples of a path, one per interval.
//!
//! The outcome of a single packet is too coarse: two losses of a normal congestion event would make a path unhealthy.
//! An interval of max(RTT, 100 ms) holds all packets of a busy path, so its sample has a loss *ratio*.

use super::{PathRule, Probe};
use crate::estimate::Outcome;
use crate::time::{Duration, Instant};

/// Change of a path's queue during an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueTrend {
    /// The queue did not grow: the path loses packets for other reasons than congestion.
    #[default]
    Steady,
    /// The queue grew: losses are congestion, which is not a defect of the path.
    Growing,
}

/// Outcomes of the packets of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalSample {
    /// Mean round trip; `None` if none was measured.
    pub rtt: Option<Duration>,
    /// Packets acknowledged.
    pub acked: u64,
    /// Packets lost.
    pub lost: u64,
    /// Change of the queue.
    pub queue: QueueTrend,
}

impl IntervalSample {
    /// Returns the fraction of the interval's packets that were lost, 0 without packets.
    pub fn loss_ratio(&self) -> f64 {
        self.lost as f64 / self.acked.saturating_add(self.lost).max(1) as f64
    }
}

/// Makes a sample of the only packet of its interval.
impl From<Probe> for IntervalSample {
    fn from(probe: Probe) -> Self {
        let rtt = if let Probe::Answered { rtt } = probe { Some(rtt) } else { None };
        let (acked, lost) = match probe.outcome() {
            Outcome::Good => (1, 0),
            Outcome::Bad => (0, 1),
        };
        Self { rtt, acked, lost, queue: QueueTrend::Steady }
    }
}

/// Collects the outcomes of a path's packets into interval samples.
#[derive(Clone, Debug)]
pub struct IntervalCollector {
    interval_min: Duration,
    started_at: Instant,
    current: IntervalSample,
    rtt_sum: Duration,
    rtts: u32,
}

impl IntervalCollector {
    /// Creates a collector whose first interval begins at `now`.
    pub fn new(rule: &PathRule, now: Instant) -> Self {
        Self {
            interval_min: rule.config.interval_min,
            started_at: now,
            current: IntervalSample::default(),
            rtt_sum: Duration::ZERO,
            rtts: 0,
        }
    }

    /// Records a round trip.
    pub fn record_rtt(&mut self, rtt: Duration) {
        self.rtt_sum = self.rtt_sum.saturating_add(rtt);
        self.rtts = self.rtts.saturating_add(1);
    }

    /// Records acknowledged packets.
    pub fn record_acked(&mut self, packets: u64) {
        self.current.acked = self.current.acked.saturating_add(packets);
    }

    /// Records lost packets.
    pub fn record_lost(&mut self, packets: u64) {
        self.current.lost = self.current.lost.saturating_add(packets);
    }

    /// Records that the queue grew, so that the interval's losses count as congestion.
    pub fn record_queue_growth(&mut self) {
        self.current.queue = QueueTrend::Growing;
    }

    /// Records the outcome of a probe or a request as that of one packet.
    pub fn record_probe(&mut self, probe: Probe) {
        let IntervalSample { rtt, acked, lost, .. } = probe.into();
        if let Some(rtt) = rtt {
            self.record_rtt(rtt);
        }
        self.record_acked(acked);
        self.record_lost(lost);
    }

    /// Ends the interval if it has lasted max(`rtt`, `interval_min`) and a packet was acknowledged or lost in it.
    ///
    /// `rtt` is the path's smoothed round trip.
    pub fn poll(&mut self, now: Instant, rtt: Option<Duration>) -> Option<IntervalSample> {
        let has_packets = self.current.acked > 0 || self.current.lost > 0;
        let interval = rtt.unwrap_or_default().max(self.interval_min);
        if !has_packets || now.since(self.started_at) < interval {
            return None;
        }
        self.started_at = now;
        let rtt = self.rtt_sum.checked_div(self.rtts);
        self.rtt_sum = Duration::ZERO;
        self.rtts = 0;
        Some(IntervalSample { rtt, ..core::mem::take(&mut self.current) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sample_holds_everything_recorded_in_its_interval() {
        let mut collector = collector();
        collector.record_acked(40);
        collector.record_rtt(10 * MS);
        collector.record_lost(2);
        collector.record_rtt(20 * MS);
        collector.record_probe(Probe::Answered { rtt: 30 * MS });
        collector.record_probe(Probe::Reached);
        collector.record_probe(Probe::Lost);
        collector.record_probe(Probe::Failed);
        assert_eq!(collector.poll(at(99), None), None);
        let sample = collector.poll(at(100), None).unwrap();
        let expected = IntervalSample { rtt: Some(20 * MS), acked: 42, lost: 4, queue: QueueTrend::Steady };
        assert_eq!(sample, expected);
        assert!((sample.loss_ratio() - 4.0 / 46.0).abs() < 1e-12);
    }

    #[test]
    fn an_interval_lasts_a_round_trip_and_at_least_100_ms() {
        for (rtt, interval_ms) in [(None, 100), (Some(30 * MS), 100), (Some(250 * MS), 250)] {
            let mut collector = collector();
            for interval in 1..4 {
                collector.record_acked(1);
                assert_eq!(collector.poll(at(interval * interval_ms - 1), rtt), None);
                assert!(collector.poll(at(interval * interval_ms), rtt).is_some());
            }
        }
    }

    #[test]
    fn an_interval_without_packets_gives_no_sample() {
        let mut collector = collector();
        collector.record_rtt(MS);
        collector.record_queue_growth();
        assert_eq!(collector.poll(at(5_000), None), None);
        collector.record_lost(1);
        let sample = collector.poll(at(5_000), None).unwrap();
        assert_eq!((sample.loss_ratio(), sample.queue), (1.0, QueueTrend::Growing));
        collector.record_lost(1);
        let next = collector.poll(at(5_100), None).unwrap();
        assert_eq!(next, IntervalSample { lost: 1, ..IntervalSample::default() });
    }

    #[test]
    fn counts_saturate() {
        let mut collector = collector();
        for _ in 0..2 {
            collector.record_acked(u64::MAX);
            collector.record_lost(u64::MAX);
            collector.record_rtt(Duration::MAX);
        }
        let sample = collector.poll(at(100), None).unwrap();
        assert_eq!((sample.acked, sample.lost), (u64::MAX, u64::MAX));
        assert!((0.0..=1.0).contains(&sample.loss_ratio()));
    }

    fn collector() -> IntervalCollector {
        IntervalCollector::new(&PathRule::default(), at(0))
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }
}
