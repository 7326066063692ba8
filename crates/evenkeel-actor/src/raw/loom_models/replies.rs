//! The reply of an ask is delivered or dropped once, and the wait ends once.

use core::task::{Poll, Waker};
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::super::oneshot::{Receiver, RecvError, Sender, channel};
use super::{Bell, check};
use crate::sync::UnsafeCell;

/// A reply that counts its drops; loom reports a drop that is not synchronized with its creation.
struct Answer {
    dropped: StdArc<AtomicUsize>,
    touched: UnsafeCell<()>,
}

// SAFETY: it moves from one thread to the other, which is what the models check.
unsafe impl Send for Answer {}

impl Answer {
    fn new(dropped: &StdArc<AtomicUsize>) -> Self {
        Self { dropped: dropped.clone(), touched: UnsafeCell::new(()) }
    }

    fn touch(&self) {
        self.touched.with_mut(|_| ());
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.touch();
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn answer(sender: Sender<Answer>, answer: Answer) -> Result<(), Answer> {
    answer.touch();
    sender.send(answer)
}

/// Waits for the end of the wait and returns its result.
fn wait<T>(receiver: &mut Receiver<T>, bell: &StdArc<Bell>) -> Result<T, RecvError> {
    let waker = Waker::from(bell.clone());
    loop {
        match receiver.poll_with(&waker, || waker.clone()) {
            Poll::Ready(end) => return end,
            Poll::Pending => bell.wait(),
        }
    }
}

#[test]
fn a_reply_reaches_the_receiver() {
    check(3, || {
        let (sender, mut receiver) = channel();
        let answerer = thread::spawn(move || sender.send(7));
        assert_eq!(wait(&mut receiver, &Bell::new()), Ok(7));
        assert_eq!(answerer.join().unwrap(), Ok(()));
    });
}

#[test]
fn of_a_reply_and_a_deadline_only_one_wakes_the_receiver() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let expiry = receiver.expiry();
        let bell = Bell::new();
        let waker = Waker::from(bell.clone());
        assert!(receiver.poll_with(&waker, || waker.clone()).is_pending());
        let made = Answer::new(&dropped);
        let answerer = thread::spawn(move || answer(sender, made).is_ok());
        let clock = thread::spawn(move || expiry.expire());
        assert!(answerer.join().unwrap(), "the receiver is still there");
        clock.join().unwrap();
        assert_eq!(bell.rings(), 1);
        assert!(wait(&mut receiver, &bell).is_ok(), "a reply that arrived is not discarded");
        drop(receiver);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_wait_ended_by_a_reply_and_a_deadline_is_woken_at_most_once() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let expiry = receiver.expiry();
        let bell = Bell::new();
        let made = Answer::new(&dropped);
        let answerer = thread::spawn(move || answer(sender, made).is_ok());
        let clock = thread::spawn(move || expiry.expire());
        let ended = wait(&mut receiver, &bell);
        assert!(answerer.join().unwrap(), "the receiver is still there");
        clock.join().unwrap();
        assert!(!matches!(&ended, Err(RecvError::Dropped)));
        assert!(bell.rings() <= 1);
        drop((ended, receiver));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_dropped_sender_and_a_deadline_end_the_wait() {
    check(3, || {
        let (sender, mut receiver) = channel::<u32>();
        let expiry = receiver.expiry();
        let quitter = thread::spawn(move || drop(sender));
        let clock = thread::spawn(move || expiry.expire());
        assert!(wait(&mut receiver, &Bell::new()).is_err());
        quitter.join().unwrap();
        clock.join().unwrap();
    });
}

#[test]
fn a_reply_without_a_receiver_is_returned_or_dropped_once() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = channel();
        let bell = Bell::new();
        let made = Answer::new(&dropped);
        let answerer = thread::spawn(move || drop(answer(sender, made)));
        let waker = Waker::from(bell.clone());
        drop(receiver.poll_with(&waker, || waker.clone()));
        drop(receiver);
        answerer.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn only_the_most_recent_waker_is_woken() {
    check(3, || {
        let (sender, mut receiver) = channel();
        let answerer = thread::spawn(move || sender.send(7));
        let first = Bell::new();
        let second = Bell::new();
        let waker = Waker::from(first.clone());
        let ended = match receiver.poll_with(&waker, || waker.clone()) {
            Poll::Ready(end) => end,
            Poll::Pending => wait(&mut receiver, &second),
        };
        assert_eq!(ended, Ok(7));
        assert_eq!(answerer.join().unwrap(), Ok(()));
        assert!(first.rings() + second.rings() <= 1);
    });
}

/// Sender, receiver and deadline handle are dropped in every order; loom reports a leak or a race.
#[test]
fn the_last_reference_frees_the_channel() {
    check(3, || {
        let dropped = StdArc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel();
        let expiry = receiver.expiry();
        let made = Answer::new(&dropped);
        let answerer = thread::spawn(move || drop(answer(sender, made)));
        let clock = thread::spawn(move || {
            expiry.expire();
            drop(expiry);
        });
        drop(receiver);
        answerer.join().unwrap();
        clock.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    });
}
