//! Slots of the scheduler that hold a connection, charged by the microsecond.
//!
//! Guarantees: a slot is released exactly once, when its connection can be lent again or was discarded, not when the
//! client goes away. While it is held, its charge is raised at least every [`REPORT_INTERVAL`], so that a tenant pays for
//! a long transaction while it lasts.
//!
//! Limits: one entry per slot of the scheduler.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_pipeline::AttemptFailure;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_scheduler::SlotGuard;
use parking_lot::Mutex;

use crate::stats::{Activity, DatabaseStats};

/// Time between two reports of the cost of held slots.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// All slots that are held.
#[derive(Default)]
pub(crate) struct HeldSlots {
    held: Mutex<HashMap<u64, Arc<HeldSlot>>>,
    next: AtomicU64,
}

/// A slot and the time since when it is held.
pub(crate) struct HeldSlot {
    id: u64,
    since: Instant,
    activity: Activity,
    stats: Arc<DatabaseStats>,
    state: Mutex<SlotState>,
}

struct SlotState {
    /// `None` once released.
    slot: Option<SlotGuard>,
    /// Set once the scheduler knows that the node answered.
    is_answered: bool,
    phase: SlotPhase,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPhase {
    /// The database has not lent a connection yet.
    Connecting,
    Lent,
}

impl HeldSlots {
    pub(crate) fn hold(
        &self,
        slot: SlotGuard,
        activity: Activity,
        stats: Arc<DatabaseStats>,
    ) -> Arc<HeldSlot> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = Some(slot);
        let phase = SlotPhase::Connecting;
        let state = SlotState { slot, is_answered: false, phase, outcome: Outcome::Good };
        let held =
            Arc::new(HeldSlot { id, since: Instant::now(), activity, stats, state: Mutex::new(state) });
        self.held.lock().insert(id, held.clone());
        held
    }

    /// Reports to the scheduler what every held slot has cost so far.
    pub(crate) fn report_costs(&self) {
        // Copied, so that the lock is not held while a report starts other requests.
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        for slot in held {
            if let Some(guard) = &mut slot.state.lock().slot {
                guard.report_cost(slot.cost());
            }
        }
    }

    /// Marks that the database has lent a connection for this slot.
    pub(crate) fn connected(&self, held: &HeldSlot) {
        held.state.lock().phase = SlotPhase::Lent;
    }

    /// Releases the slot of a connection that can be lent again or was discarded.
    pub(crate) fn release(&self, held: &HeldSlot) {
        let mut state = held.state.lock();
        // The callback also runs when connecting fails; then `connect_failed` or `abandon` releases the slot.
        if state.phase == SlotPhase::Connecting {
            return;
        }
        let Some(slot) = state.slot.take() else { return };
        let outcome = state.outcome;
        let is_answered = state.is_answered;
        drop(state);
        self.forget(held);
        held.stats.record_hold(held.activity, held.since.elapsed());
        match outcome {
            Outcome::Good if !is_answered => slot.complete_whole(held.cost()),
            Outcome::Good | Outcome::Bad => slot.complete(held.cost(), outcome),
        }
    }

    /// Releases the slot of a request that got no connection, by the database's fault if there is a `failure`.
    pub(crate) fn connect_failed(&self, held: &HeldSlot, failure: Option<AttemptFailure>) {
        let Some(slot) = held.state.lock().slot.take() else { return };
        self.forget(held);
        match failure {
            // The only node of its kind failed, so the scheduler has no other to try.
            Some(failure) => drop(slot.fail(failure, Cost::ZERO)),
            None => drop(slot),
        }
    }

    /// Releases the slot of a request that was dropped while it waited for a connection.
    pub(crate) fn abandon(&self, held: &HeldSlot) {
        let is_connecting = held.state.lock().phase == SlotPhase::Connecting;
        if is_connecting {
            self.connect_failed(held, None);
        }
    }

    fn forget(&self, held: &HeldSlot) {
        self.held.lock().remove(&held.id);
    }
}

impl HeldSlot {
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().slot.is_some()
    }

    /// Records that the database, not the client, was at fault.
    pub(crate) fn mark_failed(&self) {
        self.state.lock().outcome = Outcome::Bad;
    }

    /// Reports to the scheduler that a connection was lent, which counts as an answer and closes a half-open circuit breaker at once instead of at the
    /// end of a long statement or transaction.
    pub(crate) fn mark_answered(&self) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slot.as_ref().filter(|_| !state.is_answered) {
            slot.on_first_byte();
            state.is_answered = true;
        }
    }

    fn cost(&self) -> Cost {
        Cost(u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX).max(1))
    }
}
