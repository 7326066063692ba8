//! Gap in service between two clients while both have waiting requests.

use evenkeel_policy::cost::Cost;

/// Largest gap between any two clients of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Largest difference in service since both began to wait.
    pub since_both_waited: Cost,
    /// Largest difference in service over any interval in which both waited.
    pub within_any_time: Cost,
}

/// Service that each client received, and the gap of each pair while both wait.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    service: Vec<i64>,
    waits: Vec<bool>,
    pairs: Vec<Pair>,
    worst: Gap,
}

/// Two clients, and their difference in service while both wait.
#[derive(Clone, Debug)]
struct Pair {
    clients: (usize, usize),
    difference: Option<Difference>,
}

/// Difference in service of two clients since both began to wait.
#[derive(Clone, Copy, Debug)]
struct Difference {
    first: i64,
    min: i64,
    max: i64,
}

impl Accounts {
    pub(super) fn new(clients: usize) -> Self {
        let pair = |clients| Pair { clients, difference: None };
        let pairs = (0..clients).flat_map(|one| (0..one).map(move |other| (one, other))).map(pair).collect();
        Self { service: vec![0; clients], waits: vec![false; clients], pairs, worst: Gap::default() }
    }

    pub(super) fn serve(&mut self, client: usize, service: Cost) {
        self.service[client] += service.0 as i64;
    }

    pub(super) fn record_waiting(&mut self, client: usize, waiting: usize) {
        let waits = waiting > 0;
        if self.waits[client] == waits {
            return;
        }
        self.waits[client] = waits;
        for pair in &mut self.pairs {
            let (one, other) = pair.clients;
            let both = self.waits[one] && self.waits[other];
            let difference = self.service[one] - self.service[other];
            pair.difference = match pair.difference {
                _ if !both => None,
                None => Some(Difference { first: difference, min: difference, max: difference }),
                known => known,
            };
        }
    }

    /// Updates the gaps of all pairs that wait; must be called after all service up to now has been recorded.
    pub(super) fn compare(&mut self) {
        for pair in &mut self.pairs {
            let Some(Difference { first, min, max }) = &mut pair.difference else { continue };
            let difference = self.service[pair.clients.0] - self.service[pair.clients.1];
            *min = difference.min(*min);
            *max = difference.max(*max);
            let since = Cost(difference.abs_diff(*first));
            let within = Cost(max.abs_diff(*min));
            self.worst.since_both_waited = self.worst.since_both_waited.max(since);
            self.worst.within_any_time = self.worst.within_any_time.max(within);
        }
    }

    pub(super) fn worst(&self) -> Gap {
        self.worst
    }

    pub(super) fn service(&self, client: usize) -> Cost {
        Cost(self.service[client].unsigned_abs())
    }
}
