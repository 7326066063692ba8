//! Whatever an engine does, a limit stays within its bounds.

use evenkeel_policy::concurrency_limit::{ConcurrencyLimit, LimitConfig};
use evenkeel_policy::time::Duration;
use proptest::prelude::*;

/// Something an engine does, or is seen to do.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// So much of the limit is used, and a first token comes after so many milliseconds.
    FirstToken {
        used: f64,
        millis: u64,
    },
    Refusal {
        in_flight: u32,
    },
    Queue {
        waiting: u32,
        in_flight: u32,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        20 => (0.0..1.2_f64, 0..5_000_u64).prop_map(|(used, millis)| Happens::FirstToken { used, millis }),
        1 => (0..400_u32).prop_map(|in_flight| Happens::Refusal { in_flight }),
        1 => (prop_oneof![Just(0), any::<u32>()], 0..400_u32).prop_map(|(waiting, in_flight)| Happens::Queue { waiting, in_flight }),
    ]
}

fn config() -> impl Strategy<Value = LimitConfig> {
    (1..50_u32, 0..300_u32, 0.0..1.0_f64, 1.0..10.0_f64).prop_map(|(min, more, part, tolerance)| {
        LimitConfig { min, max: min + more, initial: min + (f64::from(more) * part) as u32, tolerance }
    })
}

proptest! {
    #[test]
    fn it_stays_within_its_range_and_moves_in_bounded_steps(
        config in config(),
        history in proptest::collection::vec(happens(), 0..2_000),
    ) {
        let mut limit = ConcurrencyLimit::new(config).unwrap();
        let mut epoch = limit.on_send(0);
        let mut most_used = 0_u32;
        for what in history {
            let before = limit.status().limit;
            let is_eased = |limit: &ConcurrencyLimit| format!("{limit:?}").contains("Eased");
            let eased = is_eased(&limit);
            match what {
                Happens::FirstToken { used, millis } => {
                    let in_flight = (f64::from(limit.limit()) * used) as u32;
                    let sent_in = limit.on_send(in_flight);
                    most_used = if sent_in == epoch { most_used.max(in_flight) } else { in_flight };
                    epoch = sent_in;
                    limit.on_first_token(sent_in, Duration::from_millis(millis));
                }
                Happens::Refusal { in_flight } => {
                    let sent_in = limit.on_send(0);
                    limit.on_refusal(sent_in, in_flight);
                }
                Happens::Queue { waiting, in_flight } => limit.on_engine_queue(waiting, in_flight),
            }
            let after = limit.status().limit;
            prop_assert!((config.min..=config.max).contains(&limit.limit()), "{:?}", limit);
            prop_assert!(after <= before + before.sqrt().max(1.0) || eased, "{before} to {after}");
            // A step that lowers it may be followed by easing off.
            prop_assert!(before / 4.0 <= after || limit.limit() == config.min, "{before} to {after}");
            if before < after && !eased && !is_eased(&limit) {
                let used = match what {
                    Happens::FirstToken { .. } => most_used,
                    Happens::Queue { waiting: 0, in_flight } => in_flight,
                    Happens::Queue { .. } | Happens::Refusal { .. } => 0,
                };
                prop_assert!(0.75 * f64::from(before as u32) <= f64::from(used), "{what:?}: {used} of {before}");
            }
        }
    }
}
