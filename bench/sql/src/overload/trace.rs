//! The queries of a turn: when they arrive, and how long each needs a connection.
//!
//! Arrivals are random, as of independent clients. Service times have a bounded Pareto distribution: most queries are
//! short, and the longest tenth needs 40 % of the total time. The same seed gives the same trace.

use std::time::Duration;

use bench_support::SplitMix64;

/// Mean service time in seconds.
const SERVICE_MEAN: f64 = 0.020;
/// Ratio of the longest to the shortest service time.
const SERVICE_SPREAD: f64 = 100.0;
/// Exponent of the tail; below 2, so that a longer spread would have an unlimited variance.
const TAIL: f64 = 1.5;

#[derive(Debug, PartialEq)]
pub(super) struct Trace {
    /// In the order of arrival.
    pub(super) queries: Vec<TracedQuery>,
    /// Time in which they arrive.
    pub(super) window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TracedQuery {
    pub(super) arrival: Duration,
    pub(super) service: Duration,
}

impl Trace {
    /// Draws the queries that need `load` connections on average, for about the time of `window`.
    ///
    /// The window is stretched or shortened, so that the load of the drawn queries is exact.
    pub(super) fn new(seed: u64, load: f64, window: Duration) -> Self {
        let mut random = SplitMix64::new(seed);
        let count = (load * window.as_secs_f64() / SERVICE_MEAN).round() as usize;
        let services: Vec<_> = (0..count).map(|_| draw_service(unit(&mut random))).collect();
        let window = services.iter().sum::<f64>() / load;
        let mut arrivals: Vec<_> = (0..count).map(|_| unit(&mut random) * window).collect();
        arrivals.sort_by(f64::total_cmp);
        let queries = arrivals.into_iter().zip(services).map(|(arrival, service)| TracedQuery {
            arrival: Duration::from_secs_f64(arrival),
            service: Duration::from_secs_f64(service),
        });
        Self { queries: queries.collect(), window: Duration::from_secs_f64(window) }
    }
}

/// Draws a number in 0..1.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.next_number() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns the service time in seconds below which this part of all service times is.
fn draw_service(part: f64) -> f64 {
    let cut = SERVICE_SPREAD.powf(-TAIL);
    let mean_of_unit = TAIL / (TAIL - 1.0) * (1.0 - SERVICE_SPREAD.powf(1.0 - TAIL)) / (1.0 - cut);
    let shortest = SERVICE_MEAN / mean_of_unit;
    shortest * (1.0 - part * (1.0 - cut)).powf(-1.0 / TAIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(20);

    #[test]
    fn a_seed_repeats_its_trace_and_another_seed_gives_another() {
        assert_eq!(Trace::new(7, 13.5, WINDOW), Trace::new(7, 13.5, WINDOW));
        assert_ne!(Trace::new(7, 13.5, WINDOW), Trace::new(8, 13.5, WINDOW));
    }

    #[test]
    fn the_load_is_exact_and_the_window_about_as_long_as_asked() {
        let trace = Trace::new(1, 13.5, WINDOW);
        let total: Duration = trace.queries.iter().map(|query| query.service).sum();
        let load = total.as_secs_f64() / trace.window.as_secs_f64();
        assert!((load - 13.5).abs() < 1e-6, "{load}");
        let stretch = trace.window.as_secs_f64() / WINDOW.as_secs_f64();
        assert!((0.9..1.1).contains(&stretch), "{stretch}");
        assert!(trace.queries.is_sorted_by_key(|query| query.arrival));
        assert!(trace.queries.iter().all(|query| query.arrival < trace.window));
    }

    #[test]
    fn service_times_are_bounded_and_their_tail_is_heavy() {
        let mut services: Vec<_> =
            Trace::new(1, 13.5, WINDOW).queries.iter().map(|one| one.service).collect();
        services.sort_unstable();
        let longest = services[services.len() - 1].as_secs_f64();
        let shortest = services[0].as_secs_f64();
        assert!(0.007 < shortest && longest < 0.75, "{shortest} {longest}");
        let tenth: Duration = services[services.len() * 9 / 10..].iter().sum();
        let share = tenth.as_secs_f64() / services.iter().sum::<Duration>().as_secs_f64();
        assert!((0.3..0.6).contains(&share), "{share}");
    }
}
