//! The reply to an ask is delivered or dropped exactly once, and the wait ends exactly once.

use core::task::{Poll, Waker};
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::super::oneshot::{Receiver, RecvError, Sender, channel};
use super::{TestWaker, check};
use crate::sync::UnsafeCell;

/// A reply that counts its drops; loom reports a drop that is not synchronized with its creation.
struct TestReply {
    dropped: StdArc<AtomicUsize>,
    touched: UnsafeCell<()>,
}

// SAFETY: it moves from one thread to the other, which is what the models check.
unsafe impl Send for TestReply {}

impl TestReply {
    fn new(dropped: &StdArc<AtomicUsize>) -> Self {
        Self { dropped: dropped.clone(), touched: UnsafeCell::new(()) }
    }

    fn touch(&self) {
        self.touched.with_mut(|_| ());
    }
}

impl Drop for TestReply {
    fn drop(&mut self) {
        self.touch();
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn send_reply(sender: Sender<TestReply>, reply: TestReply) -> Result<(), TestReply> {
    reply.touch();
    sender.send(reply)
}

/// Blocks until the wait ends and returns its result.
fn wait<T>(receiver: &mut Receiver<T>, test_waker: &StdArc<TestWaker>) -> Result<T, RecvError> {
    let waker = Waker::from(test_waker.clone());
    loop {
        match receiver.poll_recv(&waker, || waker.clone()) {
            Poll::Ready(result) => return result,
            Poll::Pending => test_waker.wait(),
        }
    }
}

#[test]
fn a_reply_reaches_the_receiver() {
    check(3, || {
        let (sender, mut receiver) = channel();
        let replier = thread::spawn(move || sender.send(7));
        assert_eq!(wait(&mut receiver, &TestWaker::new()), Ok(7));
        assert_eq!(replier.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_reply_and_a_deadline_wake_the_receiver_once() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let deadline = receiver.deadline();
        let test_waker = TestWaker::new();
        let waker = Waker::from(test_waker.clone());
        assert!(receiver.poll_recv(&waker, || waker.clone()).is_pending());
        let reply = TestReply::new(&dropped);
        let replier = thread::spawn(move || send_reply(sender, reply).is_ok());
        let timer = thread::spawn(move || deadline.time_out());
        assert!(replier.join().unwrap(), "the receiver is still there");
        timer.join().unwrap();
        assert_eq!(test_waker.wake_count(), 1);
        assert!(wait(&mut receiver, &test_waker).is_ok(), "a reply that arrived is not discarded");
        drop(receiver);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_receiver_that_polls_during_a_reply_and_a_deadline_is_woken_at_most_once() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let deadline = receiver.deadline();
        let test_waker = TestWaker::new();
        let reply = TestReply::new(&dropped);
        let replier = thread::spawn(move || send_reply(sender, reply).is_ok());
        let timer = thread::spawn(move || deadline.time_out());
        let result = wait(&mut receiver, &test_waker);
        assert!(replier.join().unwrap(), "the receiver is still there");
        timer.join().unwrap();
        assert!(!matches!(&result, Err(RecvError::SenderDropped)));
        assert!(test_waker.wake_count() <= 1);
        drop((result, receiver));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dropped_sender_and_a_deadline_end_the_wait() {
    check(3, || {
        let (sender, mut receiver) = channel::<u32>();
        let deadline = receiver.deadline();
        let dropper = thread::spawn(move || drop(sender));
        let timer = thread::spawn(move || deadline.time_out());
        assert!(wait(&mut receiver, &TestWaker::new()).is_err());
        dropper.join().unwrap();
        timer.join().unwrap();
    });
}

#[test]
fn a_reply_to_a_dropped_receiver_is_returned_or_dropped_once() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let test_waker = TestWaker::new();
        let reply = TestReply::new(&dropped);
        let replier = thread::spawn(move || drop(send_reply(sender, reply)));
        let waker = Waker::from(test_waker.clone());
        drop(receiver.poll_recv(&waker, || waker.clone()));
        drop(receiver);
        replier.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn only_the_most_recent_waker_is_woken() {
    check(3, || {
        let (sender, mut receiver) = channel();
        let replier = thread::spawn(move || sender.send(7));
        let first = TestWaker::new();
        let second = TestWaker::new();
        let waker = Waker::from(first.clone());
        let result = match receiver.poll_recv(&waker, || waker.clone()) {
            Poll::Ready(result) => result,
            Poll::Pending => wait(&mut receiver, &second),
        };
        assert_eq!(result, Ok(7));
        assert_eq!(replier.join().unwrap(), Ok(()));
        assert!(first.wake_count() + second.wake_count() <= 1);
    });
}

/// Drops sender, receiver and deadline handle in every order; loom reports a leak or a race.
#[test]
fn the_last_reference_frees_the_channel() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel();
        let deadline = receiver.deadline();
        let reply = TestReply::new(&dropped);
        let replier = thread::spawn(move || drop(send_reply(sender, reply)));
        let timer = thread::spawn(move || {
            deadline.time_out();
            drop(deadline);
        });
        drop(receiver);
        replier.join().unwrap();
        timer.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}
