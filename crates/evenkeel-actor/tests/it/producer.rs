//! Batching producers: batched messages behave like messages sent one by one.

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn the_messages_of_a_producer_keep_their_order() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let mut producer = actor.producer();
        for number in 0..100 {
            producer.tell(record(number));
            if number % 7 == 0 {
                producer.flush();
                harness.run();
            }
        }
        drop(producer);
        assert_eq!(harness.lines(), (0..100).map(|number| format!("a {number}")).collect::<Vec<_>>());
    });
}

#[test]
fn messages_over_capacity_follow_the_overflow_strategy() {
    use DeadLetterReason::{DroppedNewest, DroppedOldest, Full, Overflow};
    for (overflow, reason, dropped, kept) in [
        (OverflowStrategy::Reject, Full, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DropNewest, DroppedNewest, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DeadLetter, Overflow, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DropOldest, DroppedOldest, [0, 1], [2, 3, 4]),
    ] {
        explore(|harness| {
            let actor = harness.spawn(harness.puppet("a").capacity(3, overflow));
            let mut producer = actor.producer();
            (0..5).for_each(|number| producer.tell(record(number)));
            producer.flush();
            assert_eq!(harness.dead_letters(), dropped.map(|number| (reason, number)), "{overflow:?}");
            assert_eq!(harness.lines(), kept.map(|number| format!("a {number}")));
        });
    }
}

#[test]
fn messages_to_a_stopped_actor_become_dead_letters() {
    explore(|harness| {
        let actor = harness.recorder("a");
        let mut producer = actor.producer();
        (0..3).for_each(|number| producer.tell(record(number)));
        actor.stop(StopMode::Now);
        harness.run();
        drop(producer);
        let expected = [0, 1, 2].map(|number| (DeadLetterReason::Closed, number));
        assert_eq!(harness.dead_letters(), expected);
        assert_eq!(harness.system.dead_letters_total(), 3);
    });
}
