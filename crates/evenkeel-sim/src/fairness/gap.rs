//! Gap in service between clients while both wait.

use evenkeel_policy::cost::Cost;

/// Largest gap between any two clients of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Largest difference in service since both began to wait.
    pub since_both_waited: Cost,
    /// Largest difference in service within any period in which both waited.
    pub within_any_time: Cost,
}

/// Service of each client, and the gap of each pair while both wait.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    service: Vec<i64>,
    waits: Vec<bool>,
    pairs: Vec<Pair>,
    worst: Gap,
}

/// Two clients, and the first, smallest and largest difference in service since both began to wait.
#[derive(Clone, Debug)]
struct Pair {
    of: (usize, usize),
    span: Option<(i64, i64, i64)>,
}

impl Accounts {
    pub(super) fn new(clients: usize) -> Self {
        let pair = |of| Pair { of, span: None };
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
            let (one, other) = pair.of;
            let both = self.waits[one] && self.waits[other];
            let difference = self.service[one] - self.service[other];
            pair.span = match pair.span {
                _ if !both => None,
                None => Some((difference, difference, difference)),
                span => span,
            };
        }
    }

    /// Updates the gaps of all pairs that wait; call it after all service up to now is recorded.
    pub(super) fn compare(&mut self) {
        for pair in &mut self.pairs {
            let Some((first, least, most)) = &mut pair.span else { continue };
            let difference = self.service[pair.of.0] - self.service[pair.of.1];
            (*least, *most) = (difference.min(*least), difference.max(*most));
            let since = Cost(difference.abs_diff(*first));
            let within = Cost(most.abs_diff(*least));
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
