//! One path: its connection's measurements, its health, and its silence.

use std::collections::VecDeque;

use evenkeel_policy::estimate::{Ewma, Gains};
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondPath, IntervalCollector, IntervalSample, PathRule, PathStats, Streak};
use evenkeel_policy::time::{Duration, Instant};

use super::active_set::PrunedP95;
use super::path_table::BONDED_QUEUE_MAX;
use super::status::{PathCounters, TrafficRole};
use crate::frame::{DATAGRAM_BYTES_MAX, SendTime};
use crate::path_signals::PathSignals;

/// Probe timeout before the first round trip is measured.
const PTO_INITIAL: Duration = Duration::from_millis(500);

/// Slack in the probe timeout for a peer or a machine that is busy.
const PTO_SLACK: Duration = Duration::from_millis(25);

/// Time without a measured round trip after which a usable path is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// Time between the probes of a path that is not usable yet.
const PROBE_INTERVAL_PROBING: Duration = Duration::from_millis(50);

/// Maximum number of unanswered probes that are remembered.
const PROBES_MAX: usize = 64;

/// Smallest increase of the round trip that counts as a queue.
const QUEUE_MIN: Duration = Duration::from_millis(3);

/// If two reads of the signals are further apart than this, acknowledgements may have arrived unseen; silence is then
/// counted from the later read.
const DRIVER_STALL_MIN: Duration = Duration::from_millis(30);

/// Time after which the delay of received datagrams is out of date.
const ONE_WAY_AGE_MAX: Duration = Duration::from_secs(2);

/// Bytes of flows' datagrams that may wait for a connection.
///
/// The connection has a queue of its own; datagrams that wait here can still take another path.
const DATAGRAM_QUEUE_MAX: u64 = 4 * 1024;

/// One path of a session.
#[derive(Debug)]
pub(super) struct LinkPath {
    pub(super) id: PathId,
    pub(super) name: String,
    pub(super) is_connected: bool,
    pub(super) stats: PathStats,
    pub(super) counters: PathCounters,
    pub(super) role: TrafficRole,
    /// Comparison with the candidates, of an active path.
    pub(super) streak: Streak,
    pub(super) pruned: Option<PrunedP95>,
    /// Time since which the path cannot carry traffic, as of the last tick.
    pub(super) ineligible_since: Option<Instant>,
    /// Bytes of bonded frames that the connection has not taken.
    pub(super) bonded_queued: u64,
    /// Bytes of other frames that the connection has not taken.
    pub(super) stream_queued: u64,
    /// Bytes of flows' datagrams that the connection has not taken.
    pub(super) datagram_queued: u64,
    rule: PathRule,
    collector: IntervalCollector,
    signals: PathSignals,
    /// Acknowledged bytes at the last review of the bonded lane.
    reviewed_bytes: u64,
    /// Number of times that the measurements were read in the current interval.
    reads: u32,
    /// Number of those at which frames waited for the connection.
    backlogged_reads: u32,
    /// End of the time in which the p95 has a sample of a backlogged interval.
    backlogged_until: Instant,
    /// Round trips in milliseconds.
    rtt: Ewma,
    one_way: Option<OneWayDelay>,
    /// Times of the unanswered probes of a probing path, the oldest first.
    probes: VecDeque<Instant>,
    /// Time at which a round trip was last measured.
    measured_at: Instant,
    /// Time of the last probe.
    probed_at: Instant,
    /// Number of probe timeouts of the current silence that have been handled.
    silence: u32,
    /// Time at which the measurements were last read.
    read_at: Instant,
    /// End of the first stall of the driver in the current silence.
    resumed_at: Option<Instant>,
}

/// Delay of received datagrams of flows on a path, in milliseconds.
///
/// It contains the difference between the clocks of the two sides. That is the same on all paths, but may be negative, so
/// an [`Ewma`] does not take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneWayDelay {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    at: Instant,
}

impl OneWayDelay {
    /// Adds a sample, with the gains of a round trip.
    fn record(&mut self, now: Instant, sample: f64) {
        let error = sample - self.mean;
        self.deviation += (error.abs() - self.deviation) / 4.0;
        self.mean += error / 8.0;
        self.at = now;
    }
}

/// Changes since the previous signals of a path.
#[derive(Debug, Default)]
pub(super) struct SignalsOutcome {
    /// Round trip that was measured.
    pub(super) rtt: Option<Duration>,
    /// Number of probes that were answered.
    pub(super) answered: usize,
    /// Reports whether the connection answered after it had been silent.
    pub(super) has_ended_silence: bool,
}

/// Change of the number of probe timeouts that have expired in a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilenceStep {
    Unchanged,
    /// Another probe timeout is complete.
    Timeout,
    /// Another two probe timeouts of the silence are complete.
    SecondTimeout,
}

impl LinkPath {
    pub(super) fn new(id: PathId, name: &str, rule: PathRule, now: Instant) -> Self {
        Self {
            id,
            name: name.to_owned(),
            is_connected: false,
            stats: PathStats::new(rule),
            counters: PathCounters::default(),
            role: TrafficRole::Active,
            streak: Streak::default(),
            pruned: None,
            ineligible_since: None,
            bonded_queued: 0,
            stream_queued: 0,
            datagram_queued: 0,
            rule,
            collector: IntervalCollector::new(&rule, now),
            signals: PathSignals::default(),
            reviewed_bytes: 0,
            reads: 0,
            backlogged_reads: 0,
            backlogged_until: now,
            rtt: Ewma::new(Gains::RTT),
            one_way: None,
            probes: VecDeque::new(),
            measured_at: now,
            probed_at: now,
            silence: 0,
            read_at: now,
            resumed_at: None,
        }
    }

    /// Resets everything that belongs to a connection.
    pub(super) fn set_connected(&mut self, now: Instant, is_connected: bool) {
        self.is_connected = is_connected;
        self.bonded_queued = 0;
        self.stream_queued = 0;
        self.datagram_queued = 0;
        self.collector = IntervalCollector::new(&self.rule, now);
        self.signals = PathSignals::default();
        self.reviewed_bytes = 0;
        self.probes.clear();
        self.silence = 0;
        self.read_at = now;
        self.resumed_at = None;
        if is_connected {
            // The first probe is due at once.
            self.measured_at = Instant::ORIGIN;
            self.probed_at = Instant::ORIGIN;
        }
    }

    /// Returns the samples of the current interval.
    pub(super) fn interval(&self) -> IntervalCollector {
        self.collector.clone()
    }

    /// Continues an interval with a new connection.
    pub(super) fn resume_interval(&mut self, interval: IntervalCollector) {
        self.collector = interval;
    }

    /// Records the connection's counters.
    pub(super) fn record_signals(&mut self, now: Instant, signals: PathSignals) -> SignalsOutcome {
        let was_silent = self.is_silent(now);
        self.reads += 1;
        self.backlogged_reads += u32::from(self.queued() > 0);
        let before = std::mem::replace(&mut self.signals, signals);
        let samples = signals.rtt_count.saturating_sub(before.rtt_count);
        let sum = signals.rtt_sum.saturating_sub(before.rtt_sum);
        let rtt = sum.checked_div(u32::try_from(samples).unwrap_or(u32::MAX));
        if let Some(rtt) = rtt {
            self.measured_at = now;
            self.rtt.record_millis(rtt);
            self.collector.record_rtt(rtt);
        }
        let acked = signals.acked_packets.saturating_sub(before.acked_packets);
        self.collector.record_acked(acked);
        let lost = signals.lost_packets.saturating_sub(before.lost_packets);
        self.collector.record_lost(lost);
        if lost > 0 && self.has_queue() {
            self.collector.record_queue_growth();
        }
        let is_stalled = DRIVER_STALL_MIN < now.since(std::mem::replace(&mut self.read_at, now));
        if signals.waiting_since != before.waiting_since {
            self.silence = 0;
            self.resumed_at = None;
        }
        if is_stalled && self.resumed_at.is_none() {
            self.resumed_at = Some(now);
        }
        // Of a side that mostly receives, few acknowledgements have a round trip, because its newest packets carry only
        // acknowledgements.
        let answered = self.probes.len().min(usize::try_from(acked).unwrap_or(usize::MAX));
        self.probes.drain(..answered);
        SignalsOutcome { rtt, answered, has_ended_silence: was_silent && !self.is_silent(now) }
    }

    /// Reports whether the latest round trip shows a queue on the path.
    fn has_queue(&self) -> bool {
        let Some((latest, min)) = self.signals.rtt_latest.zip(self.signals.rtt_min) else { return false };
        min + QUEUE_MIN.max(min / 4) <= latest
    }

    /// Ends the current interval if it is over.
    pub(super) fn poll_interval(&mut self, now: Instant) -> Option<IntervalSample> {
        let sample = self.collector.poll(now, self.rtt())?;
        if 0 < self.backlogged_reads && self.reads <= 2 * self.backlogged_reads {
            self.backlogged_until = now + self.rule.p95_span(self.rtt().unwrap_or_default());
        }
        self.reads = 0;
        self.backlogged_reads = 0;
        Some(sample)
    }

    /// Returns the smoothed round trip; `None` before the first one.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.mean().map(millis)
    }

    pub(super) fn rtt_deviation(&self) -> Option<Duration> {
        self.rtt.deviation().map(millis)
    }

    /// Records the delay of a received datagram.
    pub(super) fn record_one_way(&mut self, now: Instant, sent_at: SendTime) {
        let sample = SendTime::new(now).millis() - sent_at.millis();
        let known = self.one_way.get_or_insert(OneWayDelay { mean: sample, deviation: 0.0, at: now });
        known.record(now, sample);
    }

    /// Returns the delay of the datagrams received lately.
    pub(super) fn one_way(&self, now: Instant) -> Option<OneWayDelay> {
        self.one_way.filter(|delay| now.since(delay.at) < ONE_WAY_AGE_MAX)
    }

    /// Returns the probe timeout: an acknowledgement that takes longer is unusual.
    pub(super) fn pto(&self) -> Duration {
        match self.rtt().zip(self.rtt_deviation()) {
            Some((rtt, deviation)) => {
                rtt.saturating_add(deviation.saturating_mul(4)).saturating_add(PTO_SLACK)
            }
            None => PTO_INITIAL,
        }
    }

    /// Reports whether the path can carry traffic.
    pub(super) fn is_eligible(&self, now: Instant) -> bool {
        self.is_connected && self.stats.state().is_usable() && !self.is_silent(now)
    }

    pub(super) fn set_role(&mut self, role: TrafficRole) {
        self.role = role;
        self.streak = Streak::default();
    }

    /// Reports whether traffic may have filled the path's queue in one of the samples of its p95.
    pub(super) fn is_backlogged(&self, now: Instant) -> bool {
        now < self.backlogged_until
    }

    /// Returns the measurements since the last review of the bonded lane, `elapsed` ago.
    pub(super) fn bond_measurement(&mut self, now: Instant, elapsed: Duration) -> Option<BondPath> {
        let before = std::mem::replace(&mut self.reviewed_bytes, self.signals.acked_bytes);
        let acked = self.signals.acked_bytes.saturating_sub(before) as f64;
        let rtt = self.rtt().filter(|rtt| !rtt.is_zero())?;
        // A path that had nothing to send could have carried a window per round trip.
        let possible = self.signals.window as f64 / rtt.as_secs_f64();
        let capacity = possible.max(acked / elapsed.as_secs_f64().max(f64::MIN_POSITIVE));
        let baseline = self.stats.baseline(now).unwrap_or(rtt);
        Some(BondPath { path: self.id, capacity, rtt, baseline, loss: self.stats.loss() })
    }

    /// Reports whether the connection has waited for an acknowledgement for more than a probe timeout.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.waited(now) > self.pto()
    }

    /// Reports whether it has waited for two probe timeouts.
    pub(super) fn is_long_silent(&self, now: Instant) -> bool {
        self.waited(now) > 2 * self.pto()
    }

    fn waited(&self, now: Instant) -> Duration {
        self.silent_since().map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns the start of the silence; time in which the driver did not read the signals does not count.
    fn silent_since(&self) -> Option<Instant> {
        let since = self.signals.waiting_since?;
        Some(self.resumed_at.map_or(since, |resumed_at| resumed_at.max(since)))
    }

    /// Returns the time of the next probe timeout of a silence.
    pub(super) fn silence_due_at(&self) -> Option<Instant> {
        let since = self.silent_since().filter(|_| self.is_connected)?;
        // The silence is longer than the timeout, not equal to it.
        Some(since + self.pto().saturating_mul(self.silence.saturating_add(1)) + Duration::from_nanos(1))
    }

    /// Counts the probe timeouts of a silence that have passed.
    pub(super) fn count_silence(&mut self, now: Instant) -> SilenceStep {
        let before = self.silence;
        if self.silence_due_at().is_some_and(|due| due <= now) {
            let timeouts = self.waited(now).as_nanos() / self.pto().as_nanos().max(1);
            self.silence = u32::try_from(timeouts).unwrap_or(u32::MAX).max(before.saturating_add(1));
        }
        if before / 2 < self.silence / 2 {
            SilenceStep::SecondTimeout
        } else if before < self.silence {
            SilenceStep::Timeout
        } else {
            SilenceStep::Unchanged
        }
    }

    /// Returns the time of the next probe; on a usable path, traffic that measures round trips postpones it.
    ///
    /// Not all traffic does: a side that only receives sends acknowledgements, which are not acknowledged.
    pub(super) fn probe_due_at(&self) -> Option<Instant> {
        if !self.is_connected || self.stats.retry_at().is_some() {
            return None;
        }
        if !self.stats.state().is_usable() {
            // Acknowledgements of flows travel on this path too, but only probes are counted.
            return Some(self.probed_at + PROBE_INTERVAL_PROBING);
        }
        Some(self.measured_at.max(self.probed_at) + PROBE_INTERVAL)
    }

    /// Records that a probe was sent.
    pub(super) fn record_probe(&mut self, now: Instant) {
        self.probed_at = now;
        if !self.stats.state().is_usable() && self.probes.len() < PROBES_MAX {
            self.probes.push_back(now);
        }
    }

    /// Returns the time at which the oldest unanswered probe counts as lost.
    pub(super) fn probe_expires_at(&self) -> Option<Instant> {
        Some(*self.probes.front()? + 2 * self.pto())
    }

    /// Removes the oldest unanswered probe if it counts as lost.
    pub(super) fn expire_probe(&mut self, now: Instant) -> bool {
        let is_lost = self.probe_expires_at().is_some_and(|expiry| expiry <= now);
        if is_lost {
            self.probes.pop_front();
        }
        is_lost
    }

    /// Returns the bytes that wait for the connection.
    pub(super) fn queued(&self) -> u64 {
        self.bonded_queued + self.stream_queued + self.datagram_queued
    }

    /// Reports whether the connection has room for a bonded or redundant chunk whose frame has `len` bytes.
    pub(super) fn takes_chunk(&self, len: u64) -> bool {
        self.bonded_queued + len <= BONDED_QUEUE_MAX
    }

    /// Reports whether the connection has room for a datagram whose fragments have `len` bytes.
    pub(super) fn takes_datagram(&self, len: u64) -> bool {
        self.datagram_queued == 0 || self.datagram_queued + len <= DATAGRAM_QUEUE_MAX
    }

    /// Returns the length of the longest datagram that the connection sends.
    pub(super) fn datagram_max(&self) -> usize {
        self.signals.datagram_max.max(DATAGRAM_BYTES_MAX)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.signals.in_flight
    }

    pub(super) fn acked_at(&self) -> Option<Instant> {
        self.signals.acked_at
    }
}

pub(super) fn millis(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX)
}
