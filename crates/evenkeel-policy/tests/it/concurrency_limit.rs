//! Guarantees of the adaptive concurrency limit under any behaviour of the engine.

use evenkeel_policy::concurrency_limit::{ConcurrencyLimit, LimitConfig};
use evenkeel_policy::time::Duration;
use proptest::prelude::*;

/// Event of an engine, or an observation of it.
#[derive(Clone, Copy, Debug)]
enum EngineEvent {
    /// A first token arrives while the fraction `used` of the limit is in flight.
    FirstToken {
        used: f64,
        millis: u64,
    },
    Rejection {
        in_flight: u32,
    },
    Queue {
        waiting: u32,
        in_flight: u32,
    },
}

fn engine_event() -> impl Strategy<Value = EngineEvent> {
    prop_oneof![
        20 => (0.0..1.2_f64, 0..5_000_u64)
            .prop_map(|(used, millis)| EngineEvent::FirstToken { used, millis }),
        1 => (0..400_u32).prop_map(|in_flight| EngineEvent::Rejection { in_flight }),
        1 => (prop_oneof![Just(0), any::<u32>()], 0..400_u32)
            .prop_map(|(waiting, in_flight)| EngineEvent::Queue { waiting, in_flight }),
    ]
}

fn config() -> impl Strategy<Value = LimitConfig> {
    (1..50_u32, 0..300_u32, 0.0..1.0_f64, 1.0..10.0_f64).prop_map(|(min, range, fraction, tolerance)| {
        LimitConfig { min, max: min + range, initial: min + (f64::from(range) * fraction) as u32, tolerance }
    })
}

proptest! {
    #[test]
    fn the_limit_stays_within_its_range_and_moves_in_bounded_steps(
        config in config(),
        history in proptest::collection::vec(engine_event(), 0..2_000),
    ) {
        let mut limit = ConcurrencyLimit::new(config).unwrap();
        let mut epoch = limit.on_send(0);
        let mut peak = 0_u32;
        for event in history {
            let before = limit.status().limit;
            let is_probing = |limit: &ConcurrencyLimit| format!("{limit:?}").contains("Probing");
            let probing = is_probing(&limit);
            match event {
                EngineEvent::FirstToken { used, millis } => {
                    let in_flight = (f64::from(limit.limit()) * used) as u32;
                    let sent_in = limit.on_send(in_flight);
                    peak = if sent_in == epoch { peak.max(in_flight) } else { in_flight };
                    epoch = sent_in;
                    limit.on_first_token(sent_in, Duration::from_millis(millis));
                }
                EngineEvent::Rejection { in_flight } => {
                    let sent_in = limit.on_send(0);
                    limit.on_rejection(sent_in, in_flight);
                }
                EngineEvent::Queue { waiting, in_flight } => limit.on_engine_queue(waiting, in_flight),
            }
            let after = limit.status().limit;
            prop_assert!((config.min..=config.max).contains(&limit.limit()), "{:?}", limit);
            prop_assert!(after <= before + before.sqrt().max(1.0) || probing, "{before} to {after}");
            // A decrease to half may be followed at once by a probe at half of that.
            prop_assert!(after >= before / 4.0 || limit.limit() == config.min, "{before} to {after}");
            if before < after && !probing && !is_probing(&limit) {
                let used = match event {
                    EngineEvent::FirstToken { .. } => peak,
                    EngineEvent::Queue { waiting: 0, in_flight } => in_flight,
                    EngineEvent::Queue { .. } | EngineEvent::Rejection { .. } => 0,
                };
                prop_assert!(f64::from(used) >= 0.75 * f64::from(before as u32), "{event:?}: {used} of {before}");
            }
        }
    }
}
