//! What a tenant of the demo got: counted by its clients, read by whoever shows it.

use std::time::Duration;

use parking_lot::Mutex;

/// How many of the latest waits are remembered.
const WAITS_MAX: usize = 4_096;

/// What a tenant got so far.
#[derive(Debug, Default)]
pub struct DemoStats(Mutex<DemoStatsInner>);

#[derive(Debug, Default)]
struct DemoStatsInner {
    figures: DemoTotals,
    /// In a circle.
    waits: Vec<Duration>,
    next: usize,
}

/// What a tenant got, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemoTotals {
    /// Questions asked.
    pub asked: u64,
    /// Questions answered in full.
    pub served: u64,
    /// Questions turned away because too many waited.
    pub turned_away: u64,
    /// Questions that ended in any other way, which none should.
    pub failed: u64,
    /// What the answers cost: tokens in, and twice the tokens out.
    pub cost: u64,
    /// How long questions wait for their turn, in the middle.
    pub wait_p50: Duration,
    /// How long they wait at worst, but for one in a hundred.
    pub wait_p99: Duration,
}

impl DemoStats {
    pub(super) fn asked(&self) {
        self.0.lock().figures.asked += 1;
    }

    pub(super) fn served(&self, cost: u64, wait: Duration) {
        let mut books = self.0.lock();
        books.figures.served += 1;
        books.figures.cost += cost;
        let at = books.next;
        books.next = (at + 1) % WAITS_MAX;
        match books.waits.get_mut(at) {
            Some(oldest) => *oldest = wait,
            None => books.waits.push(wait),
        }
    }

    pub(super) fn turned_away(&self) {
        self.0.lock().figures.turned_away += 1;
    }

    pub(super) fn failed(&self) {
        self.0.lock().figures.failed += 1;
    }

    /// Forgets how long questions waited so far.
    pub fn forget_waits(&self) {
        let mut books = self.0.lock();
        books.waits.clear();
        books.next = 0;
    }

    /// What it got so far.
    pub fn figures(&self) -> DemoTotals {
        let books = self.0.lock();
        let mut waits = books.waits.clone();
        waits.sort_unstable();
        let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
        DemoTotals { wait_p50: at(50), wait_p99: at(99), ..books.figures }
    }
}

impl DemoTotals {
    /// What came since `earlier`; waits are those that are remembered.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            asked: self.asked - earlier.asked,
            served: self.served - earlier.served,
            turned_away: self.turned_away - earlier.turned_away,
            failed: self.failed - earlier.failed,
            cost: self.cost - earlier.cost,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_told_by_their_middle_and_their_worst_and_old_ones_are_forgotten() {
        let ledger = DemoStats::default();
        assert_eq!(ledger.figures().wait_p99, Duration::ZERO);
        for _ in 0..WAITS_MAX {
            ledger.served(1, Duration::from_secs(60));
        }
        for millis in 0..WAITS_MAX as u64 {
            ledger.served(1, Duration::from_millis(millis));
        }
        let figures = ledger.figures();
        assert_eq!((figures.served, figures.cost), (2 * WAITS_MAX as u64, 2 * WAITS_MAX as u64));
        assert_eq!(
            (figures.wait_p50, figures.wait_p99),
            (Duration::from_millis(2_048), Duration::from_millis(4_055))
        );
    }
}
