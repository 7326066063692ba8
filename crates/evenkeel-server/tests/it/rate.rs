//! Properties of the rate limit's sliding window under random traffic.

use evenkeel_policy::time::{Duration, Instant};
use evenkeel_server::rate_window::{MinuteWindow, RateDecision};
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_sixty_seconds_contain_more_than_the_limit(
        limit in 1_u64..50,
        calls in prop::collection::vec((0_u64..20_000, 1_u64..10), 1..300),
    ) {
        let mut minute = MinuteWindow::default();
        let mut now = Instant::ORIGIN;
        let mut taken = Vec::new();
        for (millis, amount) in calls {
            now += Duration::from_millis(millis);
            if minute.try_acquire(amount, limit, now) == RateDecision::Allowed {
                taken.push((now, amount));
            }
            let minute_ago = taken.iter().filter(|(at, _)| now.since(*at) <= Duration::from_secs(60));
            prop_assert!(minute_ago.map(|(_, amount)| amount).sum::<u64>() <= limit);
        }
    }

    #[test]
    fn an_amount_fits_after_retry_after_and_not_a_nanosecond_earlier(
        limit in 1_u64..50,
        calls in prop::collection::vec((0_u64..3_000, 1_u64..10), 1..200),
    ) {
        let mut minute = MinuteWindow::default();
        let mut now = Instant::ORIGIN;
        for (millis, amount) in calls {
            now += Duration::from_millis(millis);
            if let RateDecision::Limited { retry_after } = minute.try_acquire(amount, limit, now) {
                prop_assert!(retry_after <= Duration::from_secs(61));
                let early = now + (retry_after - Duration::from_nanos(1));
                prop_assert_ne!(minute.clone().try_acquire(amount, limit, early), RateDecision::Allowed);
                prop_assert_eq!(minute.clone().try_acquire(amount, limit, now + retry_after), RateDecision::Allowed);
            }
        }
    }
}
