//! No wake-up is lost, no message is reordered, and one thread runs the cell at a time.

use loom::thread;

use super::{Dequeue, ModelCell, ModelCommand, SUSPEND, check};

#[test]
fn every_message_of_two_senders_is_handled() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1);
            other.tell(2);
        });
        cell.tell(11);
        cell.tell(12);
        sender.join().unwrap();
        cell.assert_handled(&[&[1, 2], &[11, 12]]);
    });
}

#[test]
fn every_message_is_handled_by_a_custom_invoker() {
    check(3, || {
        let cell = ModelCell::with_dequeue(8, Dequeue::OneByOne);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1);
            other.tell(2);
        });
        cell.tell(11);
        sender.join().unwrap();
        cell.assert_handled(&[&[1, 2], &[11]]);
    });
}

#[test]
fn every_message_of_three_senders_is_handled() {
    check(2, || {
        let cell = ModelCell::new(8);
        let senders = [1, 2].map(|message| {
            let cell = cell.clone();
            thread::spawn(move || drop(cell.tell(message)))
        });
        cell.tell(3);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        cell.assert_handled(&[&[1], &[2], &[3]]);
    });
}

#[test]
fn private_messages_of_a_suspended_cell_are_handled_when_it_resumes() {
    check(2, || {
        let cell = ModelCell::new(8);
        // Both are taken in one batch, so the second waits in the private half.
        cell.queues.push(SUSPEND);
        cell.queues.push(1);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(2);
            other.tell(3);
        });
        cell.command(ModelCommand::Resume).unwrap();
        sender.join().unwrap();
        cell.assert_handled(&[&[SUSPEND, 1, 2, 3]]);
    });
}

#[test]
fn a_resume_that_races_with_the_suspension_is_not_lost() {
    check(2, || {
        let cell = ModelCell::new(8);
        let first = cell.clone();
        let second = cell.clone();
        let threads = [
            thread::spawn(move || drop(first.tell(SUSPEND))),
            thread::spawn(move || second.command(ModelCommand::Resume).unwrap()),
        ];
        cell.tell(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        cell.assert_handled(&[&[SUSPEND], &[1]]);
    });
}

#[test]
fn a_system_message_that_races_with_a_user_message_is_processed() {
    check(3, || {
        let cell = ModelCell::new(8);
        cell.tell(SUSPEND);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.tell(1);
        });
        cell.command(ModelCommand::Resume).unwrap();
        sender.join().unwrap();
        cell.assert_handled(&[&[SUSPEND, 1]]);
    });
}

#[test]
fn every_system_message_of_two_senders_is_processed() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            other.command(ModelCommand::Resume).unwrap();
            other.command(ModelCommand::Resume).unwrap();
        });
        cell.command(ModelCommand::Resume).unwrap();
        sender.join().unwrap();
        assert_eq!(cell.runner().commands, 3, "lost wake-up: a system message was not processed");
    });
}

#[test]
fn every_wake_up_is_seen_by_the_runner() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let future = thread::spawn(move || {
            other.signal();
            other.signal();
        });
        cell.tell(1);
        cell.signal();
        future.join().unwrap();
        assert_eq!(cell.runner().signals, 3, "the last wake-up was lost");
    });
}

#[test]
fn a_wake_up_reaches_a_suspended_cell() {
    check(3, || {
        let cell = ModelCell::new(8);
        let other = cell.clone();
        let future = thread::spawn(move || other.signal());
        cell.tell(SUSPEND);
        cell.tell(1);
        future.join().unwrap();
        assert_eq!(cell.runner().signals, 1, "the wake-up was lost");
        cell.assert_handled(&[&[SUSPEND]]);
    });
}
