//! The Virtual Token Counter as published: whoever was served least goes next, by tokens that were worked on.

use std::collections::VecDeque;

/// Counters of what was done for each client, and who waits.
#[derive(Clone, Debug)]
pub(super) struct Vtc {
    counters: Vec<u64>,
    waiting: Vec<VecDeque<usize>>,
}

impl Vtc {
    pub(super) fn new(clients: usize) -> Self {
        Self { counters: vec![0; clients], waiting: vec![VecDeque::new(); clients] }
    }

    /// Takes in a request; a client that had none waiting is lifted to the least of those that have.
    pub(super) fn arrive(&mut self, client: usize, number: usize) {
        if self.waiting[client].is_empty() {
            let others = (0..self.waiting.len()).filter(|other| !self.waiting[*other].is_empty());
            let least = others.map(|other| self.counters[other]).min().unwrap_or(0);
            self.counters[client] = self.counters[client].max(least);
        }
        self.waiting[client].push_back(number);
    }

    /// Takes out the next to be worked on.
    pub(super) fn next(&mut self) -> Option<usize> {
        let waiting = (0..self.waiting.len()).filter(|client| !self.waiting[*client].is_empty());
        let client = waiting.min_by_key(|client| self.counters[*client])?;
        self.waiting[client].pop_front()
    }

    /// Counts work that is done or begun.
    pub(super) fn count(&mut self, client: usize, units: u64) {
        self.counters[client] += units;
    }
}
