//! How far apart two clients drift while both wait.

use evenkeel_policy::cost::Cost;

/// How far apart the clients of a run drifted, at worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The most that one client got more than another since both began to wait.
    pub since_both_waited: Cost,
    /// The most that one client got more than another within any time in which both waited.
    pub within_any_time: Cost,
}

/// What each client got, and what was between each two of them while both waited.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    service: Vec<i64>,
    waits: Vec<bool>,
    pairs: Vec<Pair>,
    worst: Gap,
}

/// Two clients, and their difference while both wait: at first, at least, at most.
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

    /// Notes service that a client got.
    pub(super) fn serve(&mut self, client: usize, service: Cost) {
        self.service[client] += service.0 as i64;
    }

    /// Notes whether a client has requests that wait.
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

    /// Compares everybody who waits, once all that is done by now is noted.
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
