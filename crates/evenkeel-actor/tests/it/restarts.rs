//! Properties of the restart limit and of the backoff.

use std::time::Duration;

use evenkeel_actor::guardian::{
    ActorError, Backoff, RestartHistory, Supervision, SupervisionDecision, decide,
};
use evenkeel_policy::time::Instant;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_restart_is_granted_exactly_if_the_window_holds_fewer_than_allowed(
        max_restarts in 0..8_u32,
        within in 1..200_u64,
        pauses in prop::collection::vec(0..60_u64, 1..300),
    ) {
        let within = Duration::from_millis(within);
        let supervision =
            Supervision::default().with_backoff(Backoff::NONE).with_max_restarts(max_restarts, within).unwrap();
        let mut history = RestartHistory::new();
        let mut now = Instant::ORIGIN;
        let mut granted: Vec<Instant> = Vec::new();
        for pause in pauses {
            now += Duration::from_millis(pause);
            let recent = granted.iter().filter(|restart| now.since(**restart) < within).count();
            let decision = decide(&supervision, &mut history, &ActorError::new("any"), now, 0);
            let may_restart = recent < max_restarts as usize;
            prop_assert_eq!(matches!(decision, SupervisionDecision::Restart { .. }), may_restart, "{:?}", decision);
            prop_assert_eq!(matches!(decision, SupervisionDecision::Stop { .. }), !may_restart);
            if may_restart {
                granted.push(now);
            }
            prop_assert_eq!(history.restarts() as usize, recent + usize::from(may_restart));
        }
    }

    #[test]
    fn a_delay_is_within_its_jitter_and_never_above_the_max(
        min in 1..10_000_u64,
        wider in 0..1_000_000_u64,
        factor in 1..10_u32,
        jitter_percent in 0..=100_u8,
        before in 0..100_u32,
        random in any::<u32>(),
    ) {
        let max = Duration::from_nanos(min + wider);
        let min = Duration::from_nanos(min);
        let backoff = Backoff::new(min, max, factor, jitter_percent).unwrap();
        let whole = backoff.delay(before, 0);
        prop_assert_eq!(whole, (0..before).fold(min, |delay, _| (delay * factor).min(max)));
        let delay = backoff.delay(before, random);
        prop_assert!(delay <= whole && whole <= max, "{:?} of {:?}", delay, whole);
        prop_assert!(delay * 100 >= whole * (100 - u32::from(jitter_percent)), "{:?} of {:?}", delay, whole);
    }

    #[test]
    fn a_larger_random_number_never_lengthens_the_delay(before in 0..20_u32, a in any::<u32>(), b in any::<u32>()) {
        let less = a.min(b);
        let more = a.max(b);
        prop_assert!(Backoff::DOUBLING.delay(before, more) <= Backoff::DOUBLING.delay(before, less));
    }
}
