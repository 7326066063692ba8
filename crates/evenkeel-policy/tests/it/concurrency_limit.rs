//! Guarantees of the adaptive concurrency limit under any behaviour of the engine.

use evenkeel_policy::concurrency_limit::{
    ConcurrencyLimit, LimitConfig, Output, PromptCache, PromptClass, ResponseDelivery,
};
use evenkeel_policy::time::{Duration, Instant};
use proptest::prelude::*;

/// Event of an engine, or an observation of it.
#[derive(Clone, Copy, Debug)]
enum EngineEvent {
    /// As many requests as the limit allows are sent, up to `demand`, and their first tokens arrive after `millis`.
    Round {
        demand: u32,
        prompt: u64,
        millis: u64,
        output: u64,
    },
    Refusal,
    Queue {
        waiting: u32,
        in_flight: u32,
    },
    Silent,
}

fn engine_event() -> impl Strategy<Value = EngineEvent> {
    prop_oneof![
        20 => (1..400_u32, 0..20_000_u64, 0..5_000_u64, 0..2_000_u64).prop_map(
            |(demand, prompt, millis, output)| EngineEvent::Round { demand, prompt, millis, output }
        ),
        1 => Just(EngineEvent::Refusal),
        1 => (prop_oneof![Just(0), any::<u32>()], 0..400_u32)
            .prop_map(|(waiting, in_flight)| EngineEvent::Queue { waiting, in_flight }),
        1 => Just(EngineEvent::Silent),
    ]
}

fn config() -> impl Strategy<Value = LimitConfig> {
    (1..50_u32, 0..300_u32, 0.0..1.0_f64, 1.05..10.0_f64).prop_map(|(min, range, fraction, tolerance)| {
        LimitConfig { min, max: min + range, initial: min + (f64::from(range) * fraction) as u32, tolerance }
    })
}

proptest! {
    #[test]
    fn the_limit_stays_within_its_range_and_rises_only_if_it_was_used(
        config in config(),
        history in proptest::collection::vec(engine_event(), 0..200),
    ) {
        let mut limit = ConcurrencyLimit::new(config, 7).unwrap();
        let mut now = Instant::from_secs(1);
        let mut highest = config.initial;
        for event in history {
            let before = limit.status().limit;
            let mut used = 0;
            match event {
                EngineEvent::Round { demand, prompt, millis, output } => {
                    let class = PromptClass::new(prompt, PromptCache::Cold);
                    used = demand.min(limit.limit());
                    let sent: Vec<_> =
                        (1..=used).map(|in_flight| limit.on_send(now, in_flight, class)).collect();
                    now += Duration::from_millis(millis);
                    sent.iter().for_each(|sent| limit.on_first_token(now, *sent));
                    let since = now;
                    now += Duration::from_millis(10);
                    for (left, sent) in (0..used).rev().zip(&sent) {
                        limit.on_output(now, &Output { amount: output, since, delivery: ResponseDelivery::Stream });
                        limit.on_end(now, *sent, left);
                    }
                }
                EngineEvent::Refusal => {
                    let sent = limit.on_send(now, 1, PromptClass::default());
                    limit.on_refusal(sent);
                    limit.on_end(now, sent, 0);
                }
                EngineEvent::Queue { waiting, in_flight } => {
                    used = in_flight;
                    limit.on_engine_queue(now, waiting, in_flight);
                }
                EngineEvent::Silent => limit.on_engine_silent(),
            }
            let after = limit.status().limit;
            prop_assert!((config.min..=config.max).contains(&after), "{:?}", limit);
            prop_assert!((1..=after).contains(&limit.limit()), "{:?}", limit);
            // A fall that did not pay is undone at any demand.
            prop_assert!(after <= highest || 3 * before <= 4 * used, "{before} to {after}, {used} in use");
            highest = highest.max(after);
        }
    }

    #[test]
    fn the_baseline_of_a_class_is_within_the_range_of_its_samples(
        millis in proptest::collection::vec(1..10_000_u64, 1..200),
    ) {
        let mut limit = ConcurrencyLimit::new(LimitConfig { max: 1, ..LimitConfig::default() }, 7).unwrap();
        let mut now = Instant::from_secs(1);
        let class = PromptClass::new(1_000, PromptCache::Warm);
        for millis in &millis {
            let sent = limit.on_send(now, 1, class);
            now += Duration::from_millis(*millis);
            limit.on_first_token(now, sent);
            limit.on_end(now, sent, 0);
        }
        let baseline = limit.baseline_ms(class).unwrap();
        let range = millis.iter().min().unwrap()..=millis.iter().max().unwrap();
        prop_assert!((**range.start() as f64 - 1e-6..=**range.end() as f64 + 1e-6).contains(&baseline));
    }
}
