//! The state of the actor that most workloads use: it counts, and says when it has seen enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::clock::now_ns;

/// A countdown that wakes the thread that made it.
#[derive(Debug)]
pub struct Latch {
    left: AtomicU64,
    waiter: Thread,
}

impl Latch {
    /// Makes a latch for the calling thread to wait at.
    pub fn new(count: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(count), waiter: thread::current() })
    }

    /// Counts one down, from any thread; the last one wakes the waiter.
    pub fn count_down(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Waits until all are counted down.
    pub fn wait(&self) {
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park_timeout(Duration::from_millis(200));
        }
    }
}

/// Nanoseconds from send to receive, as one actor saw them.
#[derive(Clone, Debug)]
pub struct Delays(Arc<Mutex<Vec<u64>>>);

impl Delays {
    /// Makes room for `count` of them, so that none is ever moved while time is taken.
    pub fn with_capacity(count: u64) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(count as usize))))
    }

    /// Takes out what was noted.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, delay: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
    }
}

/// What an actor of any runtime is around.
#[derive(Debug)]
pub struct Counter {
    seen: u64,
    expected: u64,
    done: Arc<Latch>,
    started: Option<Arc<Latch>>,
    delays: Option<Delays>,
}

impl Counter {
    /// Makes a counter that counts `done` down once it has seen `expected` messages.
    ///
    /// `started` is counted down by the actor's start hook.
    pub fn new(expected: u64, started: &Arc<Latch>, done: &Arc<Latch>) -> Self {
        Self { seen: 0, expected, done: done.clone(), started: Some(started.clone()), delays: None }
    }

    /// Makes it read every message as the time of its sending and note the delay.
    #[must_use]
    pub fn noting(self, delays: Delays) -> Self {
        Self { delays: Some(delays), ..self }
    }

    /// What the actor's start hook calls, on a worker where the runtime has such a hook.
    pub fn on_start(&mut self) {
        if let Some(started) = self.started.take() {
            started.count_down();
        }
    }

    /// What the actor does with a message that wants no answer.
    #[inline]
    pub fn on_tell(&mut self, value: u64) {
        if let Some(delays) = &self.delays {
            delays.note(now_ns().saturating_sub(value));
        }
        self.seen += 1;
        if self.seen == self.expected {
            self.done.count_down();
        }
    }

    /// What the actor answers; the asker checks it.
    #[inline]
    pub fn on_ask(&mut self, value: u64) -> u64 {
        value + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latch_opens_when_the_last_message_is_seen() {
        let started = Latch::new(1);
        let done = Latch::new(1);
        let mut counter = Counter::new(3, &started, &done);
        counter.on_start();
        counter.on_start();
        started.wait();
        for left in [1, 1, 0] {
            counter.on_tell(1);
            assert_eq!(done.left.load(Ordering::Relaxed), left);
        }
        done.wait();
    }

    #[test]
    fn delays_are_noted_only_where_they_are_wanted() {
        let started = Latch::new(1);
        let done = Latch::new(1);
        let delays = Delays::with_capacity(2);
        let mut counter = Counter::new(2, &started, &done).noting(delays.clone());
        counter.on_tell(now_ns());
        counter.on_tell(now_ns());
        assert_eq!(delays.take().len(), 2);
        assert!(delays.take().is_empty());
    }
}
