//! State of the actor that most workloads use: it counts messages and signals when it has seen enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::clock::now_ns;

/// Countdown latch that wakes the thread that created it.
#[derive(Debug)]
pub struct Latch {
    left: AtomicU64,
    waiter: Thread,
}

impl Latch {
    /// Creates a latch that the calling thread can wait on.
    pub fn new(count: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(count), waiter: thread::current() })
    }

    /// Counts down by one, from any thread; the last call wakes the waiter.
    pub fn count_down(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waiter.unpark();
        }
    }

    /// Waits until the count is zero.
    pub fn wait(&self) {
        while self.left.load(Ordering::Acquire) != 0 {
            thread::park_timeout(Duration::from_millis(200));
        }
    }
}

/// Latencies from send to receive in nanoseconds, measured by one actor.
#[derive(Clone, Debug)]
pub struct Latencies(Arc<Mutex<Vec<u64>>>);

impl Latencies {
    /// Preallocates space for `count` latencies, so that nothing is reallocated while measuring.
    pub fn with_capacity(count: u64) -> Self {
        Self(Arc::new(Mutex::new(Vec::with_capacity(count as usize))))
    }

    /// Removes and returns the recorded latencies.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, latency: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
    }
}

/// State shared by the actors of all runtimes.
#[derive(Debug)]
pub struct Counter {
    seen: u64,
    expected: u64,
    done: Arc<Latch>,
    started: Option<Arc<Latch>>,
    latencies: Option<Latencies>,
}

impl Counter {
    /// Creates a counter that counts `done` down once it has seen `expected` messages.
    ///
    /// `started` is counted down by the actor's start hook.
    pub fn new(expected: u64, started: &Arc<Latch>, done: &Arc<Latch>) -> Self {
        Self { seen: 0, expected, done: done.clone(), started: Some(started.clone()), latencies: None }
    }

    /// Treats the value of every message as its send time and records the latency.
    #[must_use]
    pub fn recording(self, latencies: Latencies) -> Self {
        Self { latencies: Some(latencies), ..self }
    }

    /// Called by the actor's start hook.
    pub fn on_start(&mut self) {
        if let Some(started) = self.started.take() {
            started.count_down();
        }
    }

    /// Handles a tell.
    #[inline]
    pub fn on_tell(&mut self, value: u64) {
        if let Some(latencies) = &self.latencies {
            latencies.record(now_ns().saturating_sub(value));
        }
        self.seen += 1;
        if self.seen == self.expected {
            self.done.count_down();
        }
    }

    /// Handles an ask and returns the reply, which the caller checks.
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
    fn latencies_are_recorded_on_request() {
        let started = Latch::new(1);
        let done = Latch::new(1);
        let latencies = Latencies::with_capacity(2);
        let mut counter = Counter::new(2, &started, &done).recording(latencies.clone());
        counter.on_tell(now_ns());
        counter.on_tell(now_ns());
        assert_eq!(latencies.take().len(), 2);
        assert!(latencies.take().is_empty());
    }
}
