//! A message is handled, dead-lettered or rejected: exactly one of the three, whenever the cell stops.

use loom::thread;

use super::{Miniature, Order, check};
use crate::mailbox::PushResult;

#[test]
fn a_message_that_races_with_a_stop_is_handled_dead_lettered_or_rejected() {
    check(3, || {
        let cell = Miniature::new(8);
        let other = cell.clone();
        let sender = thread::spawn(move || [1, 2].map(|message| other.tell(message)));
        cell.order(Order::Stop).unwrap();
        let sent = sender.join().unwrap();
        let owner = cell.owner();
        for (message, sent) in [1, 2].into_iter().zip(sent) {
            let handled = owner.seen.iter().filter(|seen| **seen == message).count();
            let buried = owner.buried.iter().filter(|buried| **buried == message).count();
            let refused = usize::from(sent == PushResult::Closed(message));
            assert_eq!(handled + buried + refused, 1, "{message}: {owner:?}, {sent:?}");
        }
    });
}

#[test]
fn two_senders_and_a_stop_account_for_every_message() {
    check(2, || {
        let cell = Miniature::new(8);
        let senders = [1, 2].map(|message| {
            let cell = cell.clone();
            thread::spawn(move || u32::from(cell.tell(message) == PushResult::Closed(message)))
        });
        cell.order(Order::Stop).unwrap();
        let refused: u32 = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        let owner = cell.owner();
        assert_eq!(owner.seen.len() + owner.buried.len() + refused as usize, 2, "{owner:?}");
    });
}

#[test]
fn of_two_racing_stops_one_is_processed() {
    check(3, || {
        let cell = Miniature::new(8);
        let other = cell.clone();
        let second = thread::spawn(move || other.order(Order::Stop));
        let first = cell.order(Order::Stop);
        let second = second.join().unwrap();
        // The later one may stay unread in the queue, which its sender cannot distinguish from processed; if
        // both were rejected, no one would have stopped the cell.
        assert!(first.is_ok() || second.is_ok());
        assert_ne!(cell.state.flags() & super::super::state::DEAD, 0, "stranded: no stop was processed");
    });
}
