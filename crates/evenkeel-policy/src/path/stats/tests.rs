use super::*;
use crate::path::PathConfig;
use alloc::string::ToString;
use alloc::vec::Vec;

const START: Instant = Instant::ORIGIN;
const INTERVAL: Duration = Duration::from_millis(100);
const FAST: Probe = answered(20);

#[test]
fn a_new_path_is_probed_at_once_and_active_after_three_answers() {
    let mut path = PathStats::new(rule());
    assert_eq!(path.retry_at(), Some(START));
    let probing = path.on_time(START).unwrap();
    assert_eq!(probing.to_string(), "INACTIVE to PROBING: backoff has elapsed");
    assert_eq!(probed(&mut path, &[FAST; 2]), []);
    assert_eq!(probed(&mut path, &[FAST]), [PathState::Active]);
}

#[test]
fn three_answers_to_the_last_four_probes_activate_a_path() {
    assert_eq!(probed(&mut probing(), &[FAST, Probe::Lost, FAST, FAST]), [PathState::Active]);
    assert_eq!(probed(&mut probing(), &[FAST, Probe::Lost, FAST, Probe::Lost, FAST]), []);
    let alternating = [Probe::Lost, FAST, FAST, Probe::Lost, FAST, FAST];
    assert_eq!(probed(&mut probing(), &alternating), [PathState::Active]);
}

#[test]
fn an_answer_without_a_round_trip_activates_a_path_but_is_no_sample_of_it() {
    let mut path = probing();
    assert_eq!(probed(&mut path, &[Probe::Reached; 3]), [PathState::Active]);
    assert_eq!((path.rtt(), path.p95(), path.baseline(START), path.answered()), (None, None, None, 0));
    assert_eq!(path.on_interval(START, single(Probe::Reached), None, Role::OneOfMany), None);
}

#[test]
fn probes_of_a_usable_path_are_no_samples() {
    let mut path = active();
    assert_eq!(probed(&mut path.0, &[answered(5_000), Probe::Lost, Probe::Lost, Probe::Lost]), []);
    assert_eq!((path.0.p95(), path.0.loss()), (Some(Duration::from_millis(20)), active().0.loss()));
}

#[test]
fn one_early_loss_does_not_count_as_total_loss() {
    let mut path = Sampled(probing(), START);
    assert_eq!(probed(&mut path.0, &[Probe::Lost, FAST, FAST, FAST]), [PathState::Active]);
    assert_eq!(path.samples(20, single(FAST)), []);
}

#[test]
fn a_p95_above_four_times_the_baseline_in_five_consecutive_samples_degrades_a_path() {
    let mut path = active();
    assert_eq!(path.samples(1, busy(81)), [], "one of twenty is not the p95");
    assert_eq!(path.samples(4, busy(81)), []);
    let degraded = path.sample(busy(81)).unwrap();
    assert_eq!(
        degraded.to_string(),
        "ACTIVE to DEGRADED: p95 of 81.0ms is too far above the usual round trip of 20.0ms"
    );
    assert_eq!(active().samples(50, busy(80)), [], "exactly four times is not slow");
}

#[test]
fn a_short_path_is_not_slow_below_slow_min() {
    let mut path = steady(1);
    assert_eq!(path.samples(50, busy(50)), []);
    assert_eq!(path.samples(50, busy(51)), [PathState::Degraded]);
}

#[test]
fn a_path_is_not_slow_for_being_longer_than_the_best() {
    let mut path = steady(800);
    let mut now = START;
    for _ in 0..2_000 {
        now += Duration::from_millis(800);
        let best = Some(Duration::from_millis(10));
        assert_eq!(path.0.on_interval(now, busy(800), best, Role::OneOfMany), None);
    }
    assert_eq!(path.0.state(), PathState::Active);
}

#[test]
fn a_smoothed_round_trip_above_the_ceiling_degrades_a_path() {
    let above = |rtt_ms: u64, best_ms| {
        let mut path = steady(rtt_ms);
        let best = Some(Duration::from_millis(best_ms));
        (0..20).find_map(|_| path.0.on_interval(START, busy(rtt_ms), best, Role::OneOfMany))
    };
    let degraded = above(1_001, 10).unwrap();
    assert_eq!(degraded.to_string(), "ACTIVE to DEGRADED: round trip of 1.0s is above the limit of 1.0s");
    assert_eq!(above(1_000, 10), None);
    assert_eq!(above(1_600, 200), None, "eight times the best");
    assert!(above(1_601, 200).is_some());
    assert_eq!(above(9_000, 10_000), None, "no path is above the ceiling that it sets itself");
}

#[test]
fn a_path_that_got_slower_for_good_is_compared_with_the_last_ten_minutes() {
    let mut path = active();
    assert_eq!(path.samples(5_800, busy(100)), [PathState::Degraded], "9 min 40 s");
    assert_eq!(path.samples(300, busy(100)), [PathState::Recovery, PathState::Active]);
    assert_eq!(path.0.baseline(path.1), Some(Duration::from_millis(100)));
}

#[test]
fn a_path_reports_the_mean_and_deviation_of_its_round_trips() {
    let mut path = probing();
    assert_eq!((path.rtt(), path.rtt_deviation()), (None, None));
    probed(&mut path, &[answered(10), answered(18)]);
    let micros = |span: Option<Duration>| span.unwrap().as_micros();
    assert_eq!((micros(path.rtt()), micros(path.rtt_deviation())), (11_000, 5_750));
}

#[test]
fn a_loss_of_more_than_8_percent_in_five_consecutive_samples_degrades_a_path() {
    let mut path = active();
    assert_eq!(path.samples(100, lossy(8)), []);
    assert_eq!(path.samples(4, lossy(9)), []);
    let degraded = path.sample(lossy(9)).unwrap();
    assert_eq!(degraded.to_string(), "ACTIVE to DEGRADED: loss of 9.0 % is too high");
    assert_eq!(
        path.samples(100, lossy(5)),
        [],
        "neither bad enough to be degraded nor good enough to recover"
    );
    assert_eq!(path.samples(2, lossy(4)), []);
    assert_eq!(path.samples(1, lossy(4)), [PathState::Recovery]);
    assert_eq!(path.samples(2, lossy(4)), [PathState::Active]);
}

/// Fed with single packets, as if each were a sample, the same congestion event would degrade the path.
#[test]
fn two_lost_packets_among_many_are_not_sickness() {
    let mut path = active();
    assert_eq!(path.samples(1, lossy(2)), []);
    assert_eq!(path.samples(10, lossy(0)), []);

    let mut packet_by_packet = active();
    let mut states = packet_by_packet.samples(2, single(Probe::Lost));
    states.extend(packet_by_packet.samples(98, single(FAST)));
    assert_eq!(states[0], PathState::Degraded);
}

#[test]
fn a_thin_path_is_judged_by_several_samples() {
    let mut path = active();
    for _ in 0..3 {
        assert_eq!(path.samples(1, single(Probe::Lost)), []);
        assert_eq!(path.samples(20, single(FAST)), [], "one lost of twenty is tolerated");
    }
    let mut degraded = path.samples(2, single(Probe::Lost));
    degraded.extend(path.samples(3, single(FAST)));
    assert_eq!(degraded, [PathState::Degraded]);
}

#[test]
fn losses_while_the_queue_grows_do_not_degrade_a_path() {
    let congested = IntervalSample { queue: QueueTrend::Growing, ..lossy(50) };
    let mut path = active();
    assert_eq!(path.samples(50, congested), []);
    assert_eq!(path.samples(50, lossy(0)), []);
    assert_ne!(active().samples(50, lossy(50)), []);
}

#[test]
fn one_outlier_in_twenty_changes_nothing() {
    let mut path = active();
    for _ in 0..10 {
        assert_eq!(path.samples(19, busy(20)), []);
        assert_eq!(path.samples(1, busy(900)), []);
    }
}

#[test]
fn a_degraded_path_recovers_after_three_good_samples_and_is_active_after_two_more() {
    let mut path = degraded();
    assert_eq!(path.samples(18, busy(20)), [], "p95 is slow until 19 of the last twenty are fast");
    assert_eq!(path.samples(2, busy(20)), []);
    assert_eq!(path.samples(1, busy(20)), [PathState::Recovery]);
    assert_eq!(path.samples(1, busy(20)), []);
    assert_eq!(path.samples(1, busy(20)), [PathState::Active]);
}

#[test]
fn one_unhealthy_sample_ends_a_recovery() {
    assert_eq!(recovering().samples(1, lossy(9)), [PathState::Degraded]);
    let mut path = recovering();
    assert_eq!(path.samples(1, busy(20)), []);
    assert_eq!(path.samples(1, lossy(9)), [PathState::Degraded]);
}

#[test]
fn silence_degrades_a_path_at_once_until_its_samples_are_good_again() {
    for mut path in [active(), recovering()] {
        let silent = path.0.on_silence(path.1, Role::OneOfMany).unwrap();
        assert_eq!((silent.to, silent.cause), (PathState::Degraded, Cause::Silent));
        assert_eq!(silent.cause.to_string(), "no acknowledgement for too long");
        assert_eq!(path.samples(2, busy(20)), []);
        assert_eq!(path.0.on_silence(path.1, Role::OneOfMany), None);
        assert_eq!(path.samples(2, busy(20)), [], "silence restarts the count of good samples");
        assert_eq!(path.samples(1, busy(20)), [PathState::Recovery]);
    }
    assert_eq!(probing().on_silence(START, Role::OneOfMany), None);
}

#[test]
fn a_path_that_stays_silent_is_deactivated_unless_it_is_the_last() {
    let silences = |role| {
        let mut path = active();
        (0..10).filter_map(|_| path.0.on_silence(path.1, role)).map(|change| change.to).collect::<Vec<_>>()
    };
    assert_eq!(silences(Role::OneOfMany), [PathState::Degraded, PathState::Inactive]);
    assert_eq!(silences(Role::Last), [PathState::Degraded]);
}

#[test]
fn two_hard_failures_deactivate_a_path_in_any_state() {
    for mut path in [probing(), active().0, degraded().0, recovering().0] {
        assert_eq!(probed(&mut path, &[Probe::Failed]), []);
        let off = path.on_probe(START, Probe::Failed, Role::OneOfMany).unwrap();
        assert_eq!((off.to, off.cause), (PathState::Inactive, Cause::RepeatedFailures));
    }
}

#[test]
fn an_answer_resets_the_count_of_hard_failures() {
    let probes = [Probe::Failed, FAST, Probe::Failed, FAST, Probe::Failed];
    assert_eq!(probed(&mut active().0, &probes), []);
    let mut path = active();
    assert_eq!(probed(&mut path.0, &[Probe::Failed]), []);
    path.sample(busy(20));
    path.sample(busy(20));
    assert_eq!(probed(&mut path.0, &[Probe::Failed]), [], "acknowledgements are answers");
}

#[test]
fn acknowledgements_older_than_a_failure_do_not_reset_the_count() {
    let mut path = active();
    assert_eq!(probed(&mut path.0, &[Probe::Failed]), []);
    path.sample(busy(20));
    assert_eq!(probed(&mut path.0, &[Probe::Failed]), [PathState::Inactive]);
}

#[test]
fn a_path_that_only_loses_packets_is_deactivated() {
    let mut path = active();
    path.samples(2, single(Probe::Lost));
    path.samples(1, busy(20));
    assert!(!path.samples(5, single(Probe::Lost)).contains(&PathState::Inactive));
    assert_eq!(path.samples(1, single(Probe::Lost)), [PathState::Inactive]);

    let mut path = probing();
    assert_eq!(probed(&mut path, &[Probe::Lost; 6]), [PathState::Inactive]);
}

#[test]
fn the_last_usable_path_is_never_deactivated() {
    let (mut path, now) = {
        let Sampled(path, now) = active();
        (path, now)
    };
    let mut lose = |role| path.on_interval(now, single(Probe::Lost), None, role);
    let to: Vec<PathState> = (0..50).filter_map(|_| lose(Role::Last)).map(|change| change.to).collect();
    assert_eq!(to, [PathState::Degraded]);
    assert_eq!(lose(Role::OneOfMany).map(|change| change.to), Some(PathState::Inactive));

    let mut path = active().0;
    assert!((0..50).all(|_| path.on_probe(START, Probe::Failed, Role::Last).is_none()));
}

#[test]
fn a_probing_path_is_deactivated_even_if_no_other_is_usable() {
    let mut path = probing();
    let mut fail = || path.on_probe(START, Probe::Failed, Role::Last);
    assert_eq!(fail(), None);
    assert_eq!(fail().map(|change| change.to), Some(PathState::Inactive));
}

#[test]
fn the_backoff_grows_with_each_consecutive_outage() {
    let mut path = probing();
    let mut now = START;
    let mut backoffs = Vec::new();
    for _ in 0..7 {
        for _ in 0..2 {
            path.on_probe(now, Probe::Failed, Role::OneOfMany);
        }
        let retry_at = path.retry_at().unwrap();
        assert_eq!(path.on_time(Instant::from_nanos(retry_at.as_nanos() - 1)), None);
        assert!(path.on_time(retry_at).is_some());
        backoffs.push(retry_at.since(now).as_secs());
        now = retry_at;
    }
    assert_eq!(backoffs, [1, 2, 4, 8, 16, 30, 30]);
    probed(&mut path, &[FAST, FAST, FAST, Probe::Failed, Probe::Failed]);
    assert_eq!(path.retry_at(), Some(Instant::from_secs(1)));
}

#[test]
fn a_new_connection_ends_the_backoff() {
    let mut path = active().0;
    assert_eq!(path.on_connection(), None, "the path is usable");
    probed(&mut path, &[Probe::Failed, Probe::Failed]);
    let probing = path.on_connection().unwrap();
    assert_eq!(probing.to_string(), "INACTIVE to PROBING: a new connection was established");
    assert_eq!(probed(&mut path, &[FAST; 3]), [PathState::Active]);
}

#[test]
fn a_late_answer_does_not_shorten_a_backoff() {
    let mut path = PathStats::new(rule());
    assert_eq!(probed(&mut path, &[FAST; 10]), []);
    assert_eq!(path.on_interval(START, busy(20), None, Role::OneOfMany), None);
    assert_eq!((path.p95(), path.rtt(), path.answered()), (None, None, 0));
}

#[test]
fn a_path_probed_again_keeps_only_its_baseline() {
    let mut path = degraded();
    probed(&mut path.0, &[Probe::Failed, Probe::Failed]);
    path.1 += Duration::from_secs(1);
    path.0.on_time(path.1).unwrap();
    assert_eq!((path.0.p95(), path.0.loss(), path.0.answered()), (None, Loss::NONE, 0));
    for _ in 0..3 {
        path.0.on_probe(path.1, answered(90), Role::OneOfMany);
    }
    assert_eq!(path.0.state(), PathState::Active);
    assert_eq!(path.samples(5, busy(90)), [PathState::Degraded], "still slow compared with 20 ms before");
}

#[test]
fn the_rules_follow_the_settings() {
    let config = PathConfig {
        slow_factor: 2.0,
        slow_min: Duration::from_millis(1),
        ceiling_factor: 3.0,
        ceiling_min: Duration::from_millis(300),
        degrade_samples: 1,
        ..PathConfig::default()
    };
    let path = || {
        let mut path = PathStats::new(PathRule::new(config).unwrap());
        path.on_time(START);
        assert_eq!(probed(&mut path, &[answered(200); 3]), [PathState::Active]);
        path
    };
    let sample = |mut path: PathStats, rtt_ms, best_ms| {
        let best = Some(Duration::from_millis(best_ms));
        path.on_interval(START, busy(rtt_ms), best, Role::OneOfMany).map(|change| change.cause)
    };
    assert_eq!(sample(path(), 400, 200), None);
    assert!(matches!(sample(path(), 401, 200), Some(Cause::Slow { .. })));
    assert_eq!(sample(path(), 200, 1), None);
    assert!(matches!(sample(path(), 1_200, 1), Some(Cause::AboveCeiling { .. })));
}

#[test]
fn a_path_takes_less_than_a_kilobyte() {
    assert!(size_of::<PathStats>() < 1_000, "{} bytes", size_of::<PathStats>());
}

const fn answered(millis: u64) -> Probe {
    Probe::Answered { rtt: Duration::from_millis(millis) }
}

/// Returns a lossless sample of a hundred packets.
fn busy(rtt_ms: u64) -> IntervalSample {
    IntervalSample { rtt: Some(Duration::from_millis(rtt_ms)), acked: 100, ..IntervalSample::default() }
}

/// Returns a sample of a hundred packets, of which some were lost.
fn lossy(lost: u64) -> IntervalSample {
    IntervalSample { acked: 100 - lost, lost, ..busy(20) }
}

fn single(probe: Probe) -> IntervalSample {
    probe.into()
}

fn probed(path: &mut PathStats, probes: &[Probe]) -> Vec<PathState> {
    let mut probe = |probe| path.on_probe(START, probe, Role::OneOfMany).map(|transition| transition.to);
    probes.iter().filter_map(|&outcome| probe(outcome)).collect()
}

/// A path beside a best path of 10 ms, with the time of its last sample.
struct Sampled(PathStats, Instant);

impl Sampled {
    fn sample(&mut self, sample: IntervalSample) -> Option<Transition> {
        self.1 += INTERVAL;
        self.0.on_interval(self.1, sample, Some(Duration::from_millis(10)), Role::OneOfMany)
    }

    fn samples(&mut self, count: u32, sample: IntervalSample) -> Vec<PathState> {
        (0..count).filter_map(|_| self.sample(sample)).map(|transition| transition.to).collect()
    }
}

fn probing() -> PathStats {
    let mut path = PathStats::new(rule());
    path.on_time(START);
    path
}

/// Returns an active path whose round trip has been `rtt_ms` in its last twenty samples.
fn steady(rtt_ms: u64) -> Sampled {
    let mut path = Sampled(probing(), START);
    assert_eq!(probed(&mut path.0, &[answered(rtt_ms); 3]), [PathState::Active]);
    for _ in 0..20 {
        path.1 += INTERVAL;
        path.0.on_interval(path.1, busy(rtt_ms), None, Role::OneOfMany);
    }
    assert_eq!(path.0.state(), PathState::Active);
    path
}

fn active() -> Sampled {
    steady(20)
}

fn degraded() -> Sampled {
    let mut path = active();
    assert_eq!(path.samples(6, busy(81)), [PathState::Degraded]);
    path
}

fn recovering() -> Sampled {
    let mut path = degraded();
    assert_eq!(path.samples(21, busy(20)), [PathState::Recovery]);
    path
}

/// Returns the default rule, but with a `slow_min` below the round trips of these tests.
fn rule() -> PathRule {
    PathRule::new(PathConfig { slow_min: Duration::from_millis(50), ..PathConfig::default() }).unwrap()
}
