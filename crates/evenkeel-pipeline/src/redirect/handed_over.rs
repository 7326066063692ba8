//! Estimate of a peer's load now, from figures that were measured earlier.
//!
//! The load of a peer comes from this gateway and from others. This gateway counts its own requests: a forwarded one until
//! it returns, and a redirected one for the time that the peer takes on average, because this gateway does not see its end.
//! The load from others is the rest of the figures. As the figures age, its estimate moves towards the mean of all reports,
//! half of the way in the time that a request takes.
//!
//! Limits: at most [`TIMESTAMPS_MAX`] times per list; the oldest is forgotten first.

use std::collections::VecDeque;

use evenkeel_policy::score::{HandedOver, NodeStats, RequestKind};
use evenkeel_policy::time::{Duration, Instant};

use super::{PeerFigures, RedirectMode};

const TIMESTAMPS_MAX: usize = 4_096;

/// Weight of a new report in the mean of the load from others.
const OTHERS_GAIN: f64 = 0.2;

/// Longest time for which a redirected request counts on a connection, and the longest for which it counts as waiting.
const TIME_AT_PEER_MAX: Duration = Duration::from_secs(60);

/// Requests handed over to one peer, and the load that others cause there.
#[derive(Debug, Default)]
pub(super) struct HandedOverLog {
    forwarded: Flow,
    /// Begins since the last figures; a forwarded one counts until its end.
    begins: Flow,
    /// Times of the requests that clients send to the peer, oldest first.
    redirected: VecDeque<Instant>,
    others_mean: Option<f64>,
    /// Time of the figures that were observed last.
    measured_at: Option<Instant>,
}

impl HandedOverLog {
    /// Records newer figures, and forgets requests that they make irrelevant.
    pub(super) fn observe(&mut self, figures: &PeerFigures) {
        if self.measured_at == Some(figures.measured_at) {
            return;
        }
        self.measured_at = Some(figures.measured_at);
        let others = self.others_then(figures);
        let mean = self.others_mean.unwrap_or(others);
        self.others_mean = Some(mean + OTHERS_GAIN * (others - mean));
        self.forwarded.forget_before(figures.measured_at);
        self.begins.forget_before(figures.measured_at);
        forget_before(
            &mut self.redirected,
            before(figures.measured_at, TimeAtPeer::of(&figures.stats).in_all),
        );
    }

    /// Returns the estimated change of the peer's load since its figures were measured.
    pub(super) fn change(&self, now: Instant, figures: &PeerFigures) -> HandedOver {
        let age = now.since(figures.measured_at);
        let time = TimeAtPeer::of(&figures.stats);
        let others_then = self.others_then(figures);
        let mean = self.others_mean.unwrap_or(others_then);
        let others = mean + (others_then - mean) / (1.0 + age.as_secs_f64() / time.served.as_secs_f64());
        // Requests that were waiting at the time of the report get connections as time passes.
        let in_all = time.in_all.saturating_sub(age).max(time.served);
        let ours = self.forwarded.running + count_from(&self.redirected, before(now, in_all));
        HandedOver {
            // Saturates; the load is far below the range.
            requests: (f64::from(ours) + others - load(&figures.stats)).round() as i32,
            begins: self.begins.change_since(figures.measured_at),
        }
    }

    pub(super) fn begin(&mut self, now: Instant, kind: RequestKind, mode: RedirectMode) {
        match mode {
            RedirectMode::Forward => self.forwarded.begin(now),
            RedirectMode::ByClient => push(&mut self.redirected, now),
        }
        if kind == RequestKind::BeginTx {
            self.begins.begin(now);
        }
    }

    /// Records the end of a forwarded request.
    pub(super) fn end(&mut self, now: Instant, kind: RequestKind) {
        self.forwarded.end(now);
        if kind == RequestKind::BeginTx {
            self.begins.end(now);
        }
    }

    /// Returns the load that others caused when the figures were measured.
    fn others_then(&self, figures: &PeerFigures) -> f64 {
        let measured_at = figures.measured_at;
        let forwarded = self.forwarded.running - self.forwarded.change_since(measured_at);
        let sent_from = before(measured_at, TimeAtPeer::of(&figures.stats).in_all);
        let redirected = count_from(&self.redirected, sent_from) - count_from(&self.redirected, measured_at);
        load(&figures.stats) - f64::from(forwarded + redirected)
    }
}

/// Requests whose ends this gateway sees.
#[derive(Debug, Default)]
struct Flow {
    running: i32,
    /// Times of begins and ends, oldest first.
    begun: VecDeque<Instant>,
    ended: VecDeque<Instant>,
}

impl Flow {
    fn begin(&mut self, now: Instant) {
        self.running += 1;
        push(&mut self.begun, now);
    }

    fn end(&mut self, now: Instant) {
        // The log of a peer that was gone is empty when it returns, so an end may have no begin.
        self.running = (self.running - 1).max(0);
        push(&mut self.ended, now);
    }

    fn change_since(&self, at: Instant) -> i32 {
        count_from(&self.begun, at) - count_from(&self.ended, at)
    }

    fn forget_before(&mut self, at: Instant) {
        forget_before(&mut self.begun, at);
        forget_before(&mut self.ended, at);
    }
}

/// Time that a request is expected to spend at a peer.
struct TimeAtPeer {
    /// Time on a connection.
    served: Duration,
    /// The same, with the wait for a connection.
    in_all: Duration,
}

impl TimeAtPeer {
    /// Assumes [`TIME_AT_PEER_MAX`] until the peer has measured latencies.
    fn of(stats: &NodeStats) -> Self {
        let served = Duration::try_from_secs_f64(stats.latency_estimate_ms / 1_000.0).ok();
        let served =
            served.filter(|served| !served.is_zero()).unwrap_or(TIME_AT_PEER_MAX).min(TIME_AT_PEER_MAX);
        let queue = f64::from(stats.wait_conn_count) / f64::from(stats.max_open_conns.max(1));
        Self { served, in_all: served + served.mul_f64(queue).min(TIME_AT_PEER_MAX) }
    }
}

/// Returns the number of requests that hold a connection of the peer or wait for one.
fn load(stats: &NodeStats) -> f64 {
    f64::from(stats.open_conns.saturating_sub(stats.idle_conns)) + f64::from(stats.wait_conn_count)
}

fn before(at: Instant, span: Duration) -> Instant {
    Instant::ORIGIN + at.since(Instant::ORIGIN).saturating_sub(span)
}

fn count_from(times: &VecDeque<Instant>, from: Instant) -> i32 {
    let newer = times.len() - times.partition_point(|at| *at < from);
    i32::try_from(newer).unwrap_or(i32::MAX)
}

fn forget_before(times: &mut VecDeque<Instant>, from: Instant) {
    times.drain(..times.partition_point(|at| *at < from));
}

fn push(times: &mut VecDeque<Instant>, now: Instant) {
    if times.len() == TIMESTAMPS_MAX {
        times.pop_front();
    }
    times.push_back(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::id::PeerId;
    use evenkeel_policy::weight::Weight;

    #[test]
    fn a_forwarded_request_counts_until_it_returns() {
        let mut log = HandedOverLog::default();
        log.observe(&figures(0, 3));
        for at in [1, 2, 3] {
            log.begin(millis(at), RequestKind::Query, RedirectMode::Forward);
        }
        assert_eq!(change(&log, 4, &figures(0, 3)), 3);
        log.end(millis(5), RequestKind::Query);
        assert_eq!(change(&log, 6, &figures(0, 3)), 2);
        // Two of ours and three of others run at 6 ms; all of ours have returned by 10 ms.
        log.observe(&figures(6, 5));
        assert_eq!(change(&log, 7, &figures(6, 5)), 0);
        log.end(millis(8), RequestKind::Query);
        log.end(millis(8), RequestKind::Query);
        assert_eq!(change(&log, 10, &figures(6, 5)), -2);
    }

    #[test]
    fn a_redirected_request_counts_for_the_time_that_the_peer_takes() {
        let mut log = HandedOverLog::default();
        log.observe(&figures(0, 3));
        for at in [1, 2, 15] {
            log.begin(millis(at), RequestKind::Query, RedirectMode::ByClient);
        }
        for (at, expected) in [(15, 3), (21, 3), (22, 2), (23, 1), (36, 0)] {
            assert_eq!(change(&log, at, &figures(0, 3)), expected, "at {at} ms");
        }
        let unmeasured = PeerFigures { stats: NodeStats::default(), ..figures(0, 0) };
        assert_eq!(
            log.change(millis(250), &unmeasured).requests,
            3,
            "without a latency, until newer figures"
        );
    }

    #[test]
    fn the_load_of_others_moves_towards_its_mean() {
        let mut log = HandedOverLog::default();
        log.observe(&figures(0, 4));
        log.observe(&figures(250, 9));
        // The mean is 4 + 0.2 · 5 = 5.
        let changes = [250, 270, 310, 450].map(|at| change(&log, at, &figures(250, 9)));
        assert_eq!(changes, [0, -2, -3, -4]);
    }

    #[test]
    fn a_begin_of_a_client_counts_as_open_until_newer_figures() {
        let mut log = HandedOverLog::default();
        log.observe(&figures(0, 0));
        log.begin(millis(1), RequestKind::BeginTx, RedirectMode::ByClient);
        assert_eq!(log.change(millis(200), &figures(0, 0)), HandedOver { requests: 0, begins: 1 });
        log.observe(&figures(250, 0));
        assert_eq!(log.change(millis(250), &figures(250, 0)), HandedOver::default());
    }

    #[test]
    fn each_list_of_times_is_limited() {
        let mut log = HandedOverLog::default();
        log.observe(&figures(0, 0));
        for _ in 0..TIMESTAMPS_MAX + 10 {
            log.begin(millis(1), RequestKind::BeginTx, RedirectMode::Forward);
            log.begin(millis(1), RequestKind::Query, RedirectMode::ByClient);
            log.end(millis(1), RequestKind::BeginTx);
        }
        let lists = [&log.forwarded.begun, &log.forwarded.ended, &log.begins.begun, &log.begins.ended];
        assert!(lists.iter().all(|times| times.len() == TIMESTAMPS_MAX));
        assert_eq!(log.redirected.len(), TIMESTAMPS_MAX);
        assert_eq!(change(&log, 2, &figures(0, 0)), 4_096);
    }

    fn change(log: &HandedOverLog, now: u64, figures: &PeerFigures) -> i32 {
        log.change(millis(now), figures).requests
    }

    /// Returns figures of a peer that takes 20 ms per request.
    fn figures(measured_at: u64, in_use: u32) -> PeerFigures {
        let stats = NodeStats {
            open_conns: in_use,
            max_open_conns: 10,
            latency_estimate_ms: 20.0,
            ..NodeStats::default()
        };
        PeerFigures { peer: PeerId(0), weight: Weight::ONE, stats, measured_at: millis(measured_at) }
    }

    fn millis(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }
}
