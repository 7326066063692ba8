//! Messages sent to the index of an actor.

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::*;

use crate::harness::*;

#[test]
fn an_index_reaches_its_actor_as_long_as_it_lives() {
    explore(|harness| {
        let actor = harness.recorder("a");
        harness.system.tell(actor.index(), record(1));
        assert!(harness.system.actor_ref::<Msg>(actor.index()).is_some_and(|found| found.is(&actor)));
        assert_eq!(harness.lines(), ["a 1"]);
    });
}

#[test]
fn a_message_to_a_stale_index_is_dead_lettered_even_if_the_slot_was_reused() {
    explore(|harness| {
        let old = harness.recorder("old");
        let stale = old.index();
        old.stop(StopMode::Now);
        harness.run();
        drop(old);
        let new = harness.recorder("new");
        assert_eq!(new.index(), MailboxIndex { slot: stale.slot, generation: stale.generation + 1 });
        harness.system.tell(stale, 7_u32);
        assert_eq!(harness.lines(), [""; 0]);
        let letters = harness.system.take_dead_letters();
        let letter = letters.front().unwrap();
        assert_eq!((letters.len(), letter.to, letter.reason), (1, stale, DeadLetterReason::NoSuchActor));
        assert_eq!(letter.message.as_ref().unwrap().downcast_ref::<u32>(), Some(&7));
        assert!(harness.system.actor_ref::<Msg>(stale).is_none());
        assert_eq!(harness.metric("dead_letters_total", &[("reason", "no_such_actor")]), 1.0);
    });
}

#[test]
fn a_message_of_another_type_finds_no_actor() {
    explore(|harness| {
        let actor = harness.recorder("a");
        harness.system.tell(actor.index(), "of another type");
        assert_eq!((harness.lines().len(), actor.depth()), (0, 0));
        assert_eq!(harness.metric("dead_letters_total", &[("reason", "no_such_actor")]), 1.0);
    });
}
