//! Guarantees of the estimators: their maximum error and how long samples count.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{
    DecayingHistogram, Ewma, Gains, LatencyWindow, MinWindow, Outcome, Quantile, RateWindow, RatioWindow,
    RecentLen, RecentSpans,
};
use evenkeel_policy::time::{Duration, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

const MILLI: u64 = 1_000_000;
const SLICE: u64 = 10_000 * MILLI;
const WINDOW: u64 = 6 * SLICE;
const SCALE_END: u64 = 1 << 42;

proptest! {
    #[test]
    fn an_ewma_never_leaves_the_range_of_its_samples(
        samples in vec(0.0..1e9_f64, 1..100), mean in 0.001..=1.0_f64, deviation in 0.001..=1.0_f64,
    ) {
        let mut ewma = Ewma::new(Gains::new(mean, deviation).unwrap());
        let mut lowest = f64::INFINITY;
        let mut highest = 0.0_f64;
        for sample in samples {
            ewma.record(sample).unwrap();
            lowest = lowest.min(sample);
            highest = highest.max(sample);
            let rounding = highest * 1e-12;
            let mean = ewma.mean().unwrap();
            prop_assert!(lowest - rounding <= mean && mean <= highest + rounding);
            let deviation = ewma.deviation().unwrap();
            prop_assert!((0.0..=highest + rounding).contains(&deviation));
        }
    }

    #[test]
    fn a_latency_quantile_is_within_3_125_percent_of_the_exact_one(
        samples in timeline(), pause in 0..2 * WINDOW, quantile in quantile(),
    ) {
        let window = recorded(&samples);
        let now = samples.last().unwrap().0 + pause;
        let mut sorted: Vec<u64> = live(&samples, now).collect();
        sorted.sort_unstable();
        prop_assert_eq!(window.samples(Instant::from_nanos(now)), sorted.len() as u64);
        let estimate = window.quantile(Instant::from_nanos(now), quantile.0);
        prop_assert_eq!(estimate.is_some(), !sorted.is_empty());
        let Some(estimate) = estimate else { return Ok(()) };
        let exact = Duration::from_nanos(nearest_rank(&sorted, quantile.1).min(SCALE_END));
        let error = estimate.abs_diff(exact);
        prop_assert!(error <= (exact / 32).max(Duration::from_nanos(32)), "{estimate:?} for {exact:?}");
    }

    #[test]
    fn a_decaying_quantile_overestimates_by_at_most_half(
        millis in vec(prop_oneof![0..50_u64, 0..4_000_000_000_u64], 1..300), quantile in quantile(),
    ) {
        let mut histogram = DecayingHistogram::EMPTY;
        let mut halves = [DecayingHistogram::EMPTY, DecayingHistogram::EMPTY];
        for (index, &millis) in millis.iter().enumerate() {
            histogram.record(Duration::from_millis(millis));
            halves[index % 2].record(Duration::from_millis(millis));
        }
        let mut sorted = millis;
        sorted.sort_unstable();
        let exact = nearest_rank(&sorted, quantile.1);
        let estimate = histogram.quantile(quantile.0).unwrap().as_millis() as u64;
        prop_assert!((exact..=exact + exact / 2).contains(&estimate), "{estimate} for {exact}");
        let [mut left, right] = halves;
        left.merge(&right);
        prop_assert_eq!(left, histogram);
    }

    #[test]
    fn a_sample_counts_for_at_least_the_window_minus_a_slice_and_at_most_the_window(
        at in 0..1_000 * SLICE, age in 0..2 * WINDOW,
    ) {
        let window = recorded(&[(at, 5 * MILLI)]);
        let counted = window.samples(Instant::from_nanos(at + age)) == 1;
        prop_assert!(counted || age > WINDOW - SLICE);
        prop_assert!(!counted || age < WINDOW);
    }

    #[test]
    fn the_minimum_of_a_window_is_exact(samples in timeline(), pause in 0..2 * WINDOW) {
        let mut window = MinWindow::new(Duration::from_nanos(10 * SLICE));
        for &(at, span) in &samples {
            window.record(Instant::from_nanos(at), Duration::from_nanos(span));
        }
        let now = samples.last().unwrap().0 + pause;
        let is_live = |at: u64| now / SLICE - at / SLICE < 10;
        let exact = samples.iter().filter(|&&(at, _)| is_live(at)).map(|&(_, span)| span).min();
        prop_assert_eq!(window.min(Instant::from_nanos(now)), exact.map(Duration::from_nanos));
    }

    #[test]
    fn merging_two_windows_equals_recording_all_samples_in_one(
        samples in timeline(), sides in vec(any::<bool>(), 200), quantile in quantile(),
    ) {
        let mut left = LatencyWindow::default();
        let mut right = LatencyWindow::default();
        for (&(at, latency), goes_left) in samples.iter().zip(sides) {
            let half = if goes_left { &mut left } else { &mut right };
            half.record(Instant::from_nanos(at), Duration::from_nanos(latency));
        }
        let now = samples.last().unwrap().0;
        let whole = recorded(&samples);
        let mut left_into_right = right.clone();
        left_into_right.merge(&left).unwrap();
        left.merge(&right).unwrap();
        for later in [0, SLICE, 3 * SLICE, WINDOW] {
            let now = Instant::from_nanos(now + later);
            for merged in [&left, &left_into_right] {
                prop_assert_eq!(merged.samples(now), whole.samples(now));
                prop_assert_eq!(merged.quantile(now, quantile.0), whole.quantile(now, quantile.0));
            }
        }
    }

    #[test]
    fn clock_steps_lose_no_sample_of_the_newest_slice(
        times in vec(prop_oneof![0..WINDOW, any::<u64>()], 1..50),
    ) {
        let mut window = LatencyWindow::default();
        let mut ratio = RatioWindow::default();
        let mut rate = RateWindow::default();
        for (before, &at) in times.iter().enumerate() {
            let now = Instant::from_nanos(at);
            window.record(now, Duration::from_millis(5));
            ratio.record(now, Outcome::Bad);
            rate.record(now, Cost::MESSAGE);
            prop_assert!((1..=before as u64 + 1).contains(&window.samples(now)));
            prop_assert_eq!(ratio.ratio(now), Some(1.0));
            prop_assert!(rate.per_second(now).is_none_or(|rate| rate.is_finite() && rate > 0.0));
        }
        let latest = times.iter().max().copied().unwrap();
        let newest = times.iter().skip_while(|&&at| at != latest).count() as u64;
        prop_assert!(newest <= window.samples(Instant::ORIGIN));
    }

    #[test]
    fn a_ratio_counts_exactly_the_outcomes_in_its_slices(
        gaps in vec((0..20_000 * MILLI, any::<bool>()), 1..100), pause in 0..2 * WINDOW,
    ) {
        const SLICE: u64 = 5_000 * MILLI;
        let mut window = RatioWindow::default();
        let mut at = 0;
        let mut outcomes = Vec::new();
        for (gap, is_bad) in gaps {
            at += gap;
            window.record(Instant::from_nanos(at), if is_bad { Outcome::Bad } else { Outcome::Good });
            outcomes.push((at, is_bad));
        }
        let now = at + pause;
        outcomes.retain(|&(at, _)| now / SLICE - at / SLICE < 12);
        let bad = outcomes.iter().filter(|(_, is_bad)| *is_bad).count() as u64;
        let total = outcomes.len() as u64;
        let now = Instant::from_nanos(now);
        prop_assert_eq!((window.bad(now), window.total(now)), (bad, total));
        prop_assert_eq!(window.ratio(now), (total > 0).then(|| bad as f64 / total as f64));
    }

    #[test]
    fn the_rate_of_a_steady_stream_is_off_by_at_most_one_record_per_slice(
        start in 0..WINDOW, gap in 10 * MILLI..=1_000 * MILLI, records in 2..400_u64, cost in 1..10_000_u64,
    ) {
        let mut window = RateWindow::default();
        for record in 0..records {
            window.record(Instant::from_nanos(start + record * gap), Cost(cost));
        }
        let span = (records - 1) * gap;
        let measured = window.per_second(Instant::from_nanos(start + span));
        prop_assert_eq!(measured.is_some(), span >= 1_000 * MILLI);
        let exact = cost as f64 * 1e9 / gap as f64;
        if let Some(measured) = measured {
            prop_assert!((measured - exact).abs() <= cost as f64 * 1.000_001, "{measured} for {exact}");
        }
    }

    #[test]
    fn quantiles_of_recent_spans_are_exact(
        spans in vec(0..50_u64, 1..200), len_max in 1..=32_usize, quantile in quantile(),
    ) {
        let mut recent = RecentSpans::new(RecentLen::new(len_max).unwrap());
        for (seen, &span) in spans.iter().enumerate() {
            recent.record(Duration::from_nanos(span));
            let mut sorted = spans[(seen + 1).saturating_sub(len_max)..=seen].to_vec();
            sorted.sort_unstable();
            let exact = Duration::from_nanos(nearest_rank(&sorted, quantile.1));
            prop_assert_eq!(recent.quantile(quantile.0), Some(exact));
        }
    }
}

/// Generates increasing times, each with a latency from zero to beyond the scale.
fn timeline() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let latency = (0..44_u32, any::<u64>()).prop_map(|(bits, random)| random % (1 << bits));
    vec((0..4_000 * MILLI, latency), 1..200).prop_map(|samples| {
        let later = |at: &mut u64, (gap, latency)| {
            *at += gap;
            Some((*at, latency))
        };
        samples.into_iter().scan(0, later).collect()
    })
}

/// Generates a quantile, with the same number in millionths.
fn quantile() -> impl Strategy<Value = (Quantile, u64)> {
    (0..=1_000_000_u64)
        .prop_map(|millionths| (Quantile::new(millionths as f64 / 1e6).expect("a fraction"), millionths))
}

fn recorded(samples: &[(u64, u64)]) -> LatencyWindow {
    let mut window = LatencyWindow::default();
    for &(at, latency) in samples {
        window.record(Instant::from_nanos(at), Duration::from_nanos(latency));
    }
    window
}

fn live(samples: &[(u64, u64)], now: u64) -> impl Iterator<Item = u64> {
    samples.iter().filter(move |(at, _)| now / SLICE - at / SLICE < 6).map(|&(_, latency)| latency)
}

fn nearest_rank(sorted: &[u64], millionths: u64) -> u64 {
    let rank = (sorted.len() as u64 * millionths).div_ceil(1_000_000).max(1);
    sorted[rank as usize - 1]
}
