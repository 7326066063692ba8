//! The Virtual Token Counter as published: the client that has received the least service, in tokens, is next.

use std::collections::VecDeque;

/// Service counter and waiting requests of each client.
#[derive(Clone, Debug)]
pub(super) struct Vtc {
    counters: Vec<u64>,
    waiting: Vec<VecDeque<usize>>,
}

impl Vtc {
    pub(super) fn new(clients: usize) -> Self {
        Self { counters: vec![0; clients], waiting: vec![VecDeque::new(); clients] }
    }

    /// Adds a request.
    ///
    /// If its client had none waiting, the client's counter is first raised to the lowest counter of a waiting client.
    pub(super) fn arrive(&mut self, client: usize, number: usize) {
        if self.waiting[client].is_empty() {
            let others = (0..self.waiting.len()).filter(|other| !self.waiting[*other].is_empty());
            let least = others.map(|other| self.counters[other]).min().unwrap_or(0);
            self.counters[client] = self.counters[client].max(least);
        }
        self.waiting[client].push_back(number);
    }

    /// Removes and returns the next request.
    pub(super) fn next(&mut self) -> Option<usize> {
        let waiting = (0..self.waiting.len()).filter(|client| !self.waiting[*client].is_empty());
        let client = waiting.min_by_key(|client| self.counters[*client])?;
        self.waiting[client].pop_front()
    }

    pub(super) fn count(&mut self, client: usize, units: u64) {
        self.counters[client] += units;
    }
}
