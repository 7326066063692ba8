//! A producer that waits for capacity is woken, however its wait races with the run that frees capacity.

use core::task::Waker;

use loom::thread;

use super::{ModelCell, ModelCommand, SUSPEND, TestWaker, check};
use crate::mailbox::PushResult;

#[test]
fn a_sender_waiting_for_capacity_is_woken() {
    check(3, || {
        let cell = ModelCell::new(1);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            assert_eq!(other.send(1, &TestWaker::new()), PushResult::Queued);
        });
        assert_eq!(cell.send(2, &TestWaker::new()), PushResult::Queued);
        sender.join().unwrap();
        cell.assert_handled(&[&[1], &[2]]);
    });
}

#[test]
fn a_sender_that_starts_to_wait_while_another_is_woken_is_woken_too() {
    check(3, || {
        let cell = ModelCell::new(1);
        cell.queues.push(0);
        let first = TestWaker::new();
        let waker = Waker::from(first.clone());
        assert!(cell.queues.wait_for_room(&mut None, &waker, &cell.state));
        let other = cell.clone();
        let sender = thread::spawn(move || {
            assert_eq!(other.send(2, &TestWaker::new()), PushResult::Queued);
        });
        cell.run_if_scheduled(cell.state.raise(super::USER));
        sender.join().unwrap();
        assert_eq!(first.wake_count(), 1);
        cell.assert_handled(&[&[0], &[2]]);
    });
}

#[test]
fn two_waiting_senders_are_both_woken() {
    check(2, || {
        let cell = ModelCell::new(1);
        cell.queues.push(0);
        let senders = [1, 2].map(|message| {
            let cell = cell.clone();
            thread::spawn(move || assert_eq!(cell.send(message, &TestWaker::new()), PushResult::Queued))
        });
        cell.run_if_scheduled(cell.state.raise(super::USER));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        cell.assert_handled(&[&[0], &[1], &[2]]);
    });
}

#[test]
fn a_sender_waiting_for_a_suspended_cell_is_woken_when_it_resumes() {
    check(3, || {
        let cell = ModelCell::new(1);
        cell.tell(SUSPEND);
        cell.tell(1);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            assert_eq!(other.send(2, &TestWaker::new()), PushResult::Queued);
        });
        cell.command(ModelCommand::Resume).unwrap();
        sender.join().unwrap();
        cell.assert_handled(&[&[SUSPEND, 1], &[2]]);
    });
}

#[test]
fn a_sender_that_starts_to_wait_while_the_cell_suspends_is_woken_when_it_resumes() {
    check(2, || {
        let cell = ModelCell::new(2);
        cell.queues.push(SUSPEND);
        cell.queues.push(1);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            assert_eq!(other.send(2, &TestWaker::new()), PushResult::Queued);
        });
        let other = cell.clone();
        let runner = thread::spawn(move || other.run_if_scheduled(other.state.raise(super::USER)));
        cell.command(ModelCommand::Resume).unwrap();
        sender.join().unwrap();
        runner.join().unwrap();
        cell.assert_handled(&[&[SUSPEND, 1], &[2]]);
    });
}

#[test]
fn a_waiting_sender_is_woken_when_the_cell_stops() {
    check(3, || {
        let cell = ModelCell::new(1);
        cell.tell(SUSPEND);
        cell.tell(1);
        let other = cell.clone();
        let sender = thread::spawn(move || {
            assert_eq!(other.send(2, &TestWaker::new()), PushResult::Closed(2));
        });
        cell.command(ModelCommand::Stop).unwrap();
        sender.join().unwrap();
        assert_eq!(cell.runner().dead_lettered, [1]);
    });
}
