//! Memory of ended transactions, so that a late request learns how its transaction ended.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::EndedBy;

/// Ended transactions, the oldest first.
#[derive(Debug)]
pub(super) struct EndedTransactions {
    by_number: HashMap<u64, EndedBy>,
    order: VecDeque<(u64, Instant)>,
    entries_max: usize,
    age_max: Duration,
}

impl EndedTransactions {
    pub(super) fn new(entries_max: usize, age_max: Duration) -> Self {
        Self { by_number: HashMap::new(), order: VecDeque::new(), entries_max, age_max }
    }

    pub(super) fn insert(&mut self, number: u64, ended_by: EndedBy, now: Instant) {
        self.expire(now);
        if self.entries_max <= self.order.len() {
            self.remove_oldest();
        }
        self.by_number.insert(number, ended_by);
        self.order.push_back((number, now));
    }

    pub(super) fn get(&mut self, number: u64, now: Instant) -> Option<EndedBy> {
        self.expire(now);
        self.by_number.get(&number).copied()
    }

    fn expire(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(_, at)| self.age_max <= now.saturating_duration_since(*at)) {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some((number, _)) = self.order.pop_front() {
            self.by_number.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_forgotten_with_age_and_beyond_the_limit() {
        let start = Instant::now();
        let mut ended = EndedTransactions::new(2, Duration::from_secs(300));
        ended.insert(1, EndedBy::Commit, start);
        assert_eq!(ended.get(1, start + Duration::from_secs(299)), Some(EndedBy::Commit));
        assert_eq!(ended.get(1, start + Duration::from_secs(300)), None);
        for number in 2..=4 {
            ended.insert(number, EndedBy::Rollback, start);
        }
        assert_eq!([2, 3, 4].map(|number| ended.get(number, start).is_some()), [false, true, true]);
    }
}
