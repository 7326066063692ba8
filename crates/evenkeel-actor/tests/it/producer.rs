//! Messages sent many at a time are messages like others.

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn a_producers_messages_keep_their_order_whatever_the_actor_does() {
    explore(|world| {
        let actor = world.noter("a");
        let mut producer = actor.producer();
        for number in 0..100 {
            producer.tell(note(number));
            if number % 7 == 0 {
                producer.flush();
                world.run();
            }
        }
        drop(producer);
        assert_eq!(world.lines(), (0..100).map(|number| format!("a {number}")).collect::<Vec<_>>());
    });
}

#[test]
fn messages_over_capacity_follow_the_overflow_strategy() {
    use DeadLetterReason::{DroppedNewest, DroppedOldest, Full, Overflow};
    for (overflow, reason, buried, kept) in [
        (OverflowStrategy::Reject, Full, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DropNewest, DroppedNewest, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DeadLetter, Overflow, [3, 4], [0, 1, 2]),
        (OverflowStrategy::DropOldest, DroppedOldest, [0, 1], [2, 3, 4]),
    ] {
        explore(|world| {
            let actor = world.spawn(world.puppet("a").places(3, overflow));
            let mut producer = actor.producer();
            (0..5).for_each(|number| producer.tell(note(number)));
            producer.flush();
            assert_eq!(world.letters(), buried.map(|number| (reason, number)), "{overflow:?}");
            assert_eq!(world.lines(), kept.map(|number| format!("a {number}")));
        });
    }
}

#[test]
fn messages_to_a_stopped_actor_become_dead_letters() {
    explore(|world| {
        let actor = world.noter("a");
        let mut producer = actor.producer();
        (0..3).for_each(|number| producer.tell(note(number)));
        actor.stop(StopMode::Now);
        world.run();
        drop(producer);
        let expected = [0, 1, 2].map(|number| (DeadLetterReason::Closed, number));
        assert_eq!(world.letters(), expected);
        assert_eq!(world.system.dead_letters_total(), 3);
    });
}
