//! However a stop races with sends, each message is either handled, dead-lettered or rejected.

use loom::thread;

use super::{ModelCell, ModelCommand, check};
use crate::mailbox::PushResult;

#[test]
fn a_message_that_races_with_a_stop_is_handled_dead_lettered_or_rejected() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let sender = thread::spawn(move || [1, 2].map(|message| other.tell(message)));
        cell.command(ModelCommand::Stop).unwrap();
        let sent = sender.join().unwrap();
        let runner = cell.runner();
        for (message, sent) in [1, 2].into_iter().zip(sent) {
            let handled = runner.handled.iter().filter(|handled| **handled == message).count();
            let dead_lettered =
                runner.dead_lettered.iter().filter(|dead_lettered| **dead_lettered == message).count();
            let rejected = usize::from(sent == PushResult::Closed(message));
            assert_eq!(handled + dead_lettered + rejected, 1, "{message}: {runner:?}, {sent:?}");
        }
    });
}

#[test]
fn two_senders_and_a_stop_account_for_every_message() {
    check(2, || {
        let cell = ModelCell::new(8);
        let senders = [1, 2].map(|message| {
            let cell = cell.clone();
            thread::spawn(move || u32::from(cell.tell(message) == PushResult::Closed(message)))
        });
        cell.command(ModelCommand::Stop).unwrap();
        let rejected: u32 = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        let runner = cell.runner();
        assert_eq!(runner.handled.len() + runner.dead_lettered.len() + rejected as usize, 2, "{runner:?}");
    });
}

#[test]
fn one_of_two_racing_stops_is_processed() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let second = thread::spawn(move || other.command(ModelCommand::Stop));
        let first = cell.command(ModelCommand::Stop);
        let second = second.join().unwrap();
        // One stop may stay unread in the queue, which its sender cannot notice. If both were rejected, the cell
        // would never stop.
        assert!(first.is_ok() || second.is_ok());
        assert_ne!(cell.state.flags() & super::super::state::DEAD, 0, "lost wake-up: no stop was processed");
    });
}
