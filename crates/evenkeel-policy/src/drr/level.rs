//! The rules of deficit round robin over one set of keys, with the accounts kept outside.
//!
//! One rule carries the rest: **a key is granted at most once per round**, and `granted` remembers the last
//! round whose grant is in its deficit. A key that comes back within the round that already granted it waits
//! for the next; one whose last grant is a round or more old goes first. Nobody gains by going idle, and
//! nothing needs to be kept in the ring to know it.
//!
//! A round serves, as far as there is anybody,
//! 1. `fast`: keys that just became active, one message each, on credit;
//! 2. `ring` and `due` (keys that join the round), merged in one order, by label, that never changes while a
//!    key has work. A key that went first stands at the end of it, with what that message leaves of its grant.
//!
//! Keys that have nothing to spend before the next round wait in `later`, deeper debtors in the calendar.
//!
//! The pairwise bound needs the one order. Going first with a whole grant, or coming back from the calendar
//! at either end of a round, would let one key be visited twice between two visits of another: a quantum more.

use alloc::boxed::Box;

use super::account::{KeyAccount, KeyAccounts, KeyLocation};
use super::debt_wheel::DebtWheel;
use super::ring::{Ring, RoundOrder};
use super::{KeyStatus, NewKey};
use crate::cost::Cost;
use crate::weight::Weight;

/// Thousandths of a unit per unit.
const MILLI: i64 = 1_000;

/// Deeper debt is forgiven: no honest work takes so many rounds to pay off, and rounds must stay countable.
const DEBT_ROUNDS_MAX: i64 = 1 << 32;

/// The lists of one scheduler, and the round they are in.
#[derive(Clone, Debug)]
pub(super) struct DrrLevel {
    new_key: NewKey,
    quantum: i64,
    round: u64,
    labels: u64,
    fast: Ring,
    ring: RoundOrder,
    due: Ring,
    later: Ring,
    /// Made when a key is first in debt beyond the next round.
    calendar: Option<Box<DebtWheel>>,
    /// Whose turn it is: settled by every change, so that peeking only reads it.
    turn: Option<u32>,
    active: u32,
    parked: u32,
}

impl DrrLevel {
    pub(super) fn new(new_key: NewKey, quantum: Cost) -> Self {
        Self {
            new_key,
            quantum: i64::try_from(quantum.0).unwrap_or(i64::MAX),
            // Fresh accounts say 0: under `First` they have a grant coming.
            round: 1,
            labels: 0,
            fast: Ring::EMPTY,
            ring: RoundOrder::EMPTY,
            due: Ring::EMPTY,
            later: Ring::EMPTY,
            calendar: None,
            turn: None,
            active: 0,
            parked: 0,
        }
    }

    pub(super) fn new_key(&self) -> NewKey {
        self.new_key
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn active(&self) -> u32 {
        self.active
    }

    pub(super) fn parked(&self) -> u32 {
        self.parked
    }

    pub(super) fn next(&self) -> Option<u32> {
        self.turn
    }

    pub(super) fn add(&mut self, slots: &mut KeyAccounts, key: u32, weight: Weight) {
        if slots[key].place != KeyLocation::Idle {
            return;
        }
        self.age(&mut slots[key]);
        slots[key].weight = weight;
        self.active += 1;
        self.enter(slots, key);
    }

    /// Makes a key known as having work without letting it take part until it is woken.
    pub(super) fn add_parked(&mut self, slots: &mut KeyAccounts, key: u32, weight: Weight) {
        if slots[key].place != KeyLocation::Idle {
            return;
        }
        self.age(&mut slots[key]);
        slots[key].weight = weight;
        slots[key].place = KeyLocation::Parked;
        self.parked += 1;
    }

    pub(super) fn remove(&mut self, slots: &mut KeyAccounts, key: u32) {
        match slots[key].place {
            KeyLocation::Unknown | KeyLocation::Idle => return,
            KeyLocation::Parked => self.parked -= 1,
            KeyLocation::Fast | KeyLocation::Ring | KeyLocation::Due | KeyLocation::Calendar => {
                self.unlink(slots, key);
                self.active -= 1;
            }
        }
        slots[key].place = KeyLocation::Idle;
        slots[key].deficit = slots[key].deficit.min(0);
        if self.active == 0 && self.new_key == NewKey::First {
            // A round that nobody is left in is over: whoever comes next has been idle throughout it.
            self.round += 1;
        }
        self.advance(slots);
    }

    pub(super) fn park(&mut self, slots: &mut KeyAccounts, key: u32) {
        if !is_active(slots[key].place) {
            return;
        }
        self.unlink(slots, key);
        if self.new_key == NewKey::NextRound {
            // The round's grant was given when it was opened.
            self.accrue(&mut slots[key], self.round);
        }
        slots[key].place = KeyLocation::Parked;
        self.active -= 1;
        self.parked += 1;
        self.advance(slots);
    }

    pub(super) fn wake(&mut self, slots: &mut KeyAccounts, key: u32) {
        if slots[key].place != KeyLocation::Parked {
            return;
        }
        self.parked -= 1;
        self.active += 1;
        self.age(&mut slots[key]);
        self.enter(slots, key);
    }

    pub(super) fn consume(&mut self, slots: &mut KeyAccounts, key: u32, cost: Cost) {
        let charge = -milli(cost);
        if self.turn != Some(key) {
            self.shift(slots, key, charge);
            return;
        }
        let slot = &mut slots[key];
        if slot.place != KeyLocation::Fast {
            self.accrue(slot, self.round);
        }
        self.credit(slot, charge);
        if slot.place != KeyLocation::Fast && slot.deficit > 0 {
            return;
        }
        if slot.place == KeyLocation::Ring && self.positive_next_round(slot) {
            // The common end of a turn: the key stays linked, only the ring moves on.
            self.ring.turn(slots);
        } else {
            self.end_turn(slots, key);
        }
        self.advance(slots);
    }

    /// Puts a key whose turn is over where it waits for the next; apart, to keep the common end short.
    #[inline(never)]
    fn end_turn(&mut self, slots: &mut KeyAccounts, key: u32) {
        if slots[key].place == KeyLocation::Due && self.positive_next_round(&slots[key]) {
            self.due.remove(slots, key);
            self.ring.insert_visited(slots, key);
            slots[key].place = KeyLocation::Ring;
        } else {
            self.unlink(slots, key);
            self.settle_in(slots, key);
        }
    }

    /// Charges or refunds a key without that being its turn's work.
    pub(super) fn shift(&mut self, slots: &mut KeyAccounts, key: u32, amount: i64) {
        let place = slots[key].place;
        if !is_active(place) {
            self.age(&mut slots[key]);
        }
        let latest = self.latest_start(&slots[key]);
        let slot = &mut slots[key];
        self.credit(slot, amount);
        match place {
            KeyLocation::Unknown | KeyLocation::Idle => slot.deficit = slot.deficit.min(0),
            KeyLocation::Parked => {}
            KeyLocation::Fast | KeyLocation::Ring | KeyLocation::Due | KeyLocation::Calendar => {
                self.replace(slots, key, latest)
            }
        }
    }

    pub(super) fn update_weight(&mut self, slots: &mut KeyAccounts, key: u32, weight: Weight) {
        if !is_active(slots[key].place) {
            self.age(&mut slots[key]);
            slots[key].weight = weight;
            return;
        }
        let latest = self.latest_start(&slots[key]);
        // The grants it has been given count at the weight it had.
        self.accrue(&mut slots[key], self.given());
        slots[key].weight = weight;
        self.replace(slots, key, latest);
    }

    /// Opens the next round in which somebody can be served.
    pub(super) fn start_new_round(&mut self, slots: &mut KeyAccounts) {
        self.open_round(slots, self.round + 1);
        self.skip_empty_rounds(slots);
    }

    /// Tells what a key may spend; negative is debt. Under `NextRound` a round's grant counts from its start, under
    /// `First` from the key's turn.
    pub(super) fn balance(&self, slots: &KeyAccounts, key: u32) -> i64 {
        let Some(slot) = slots.get(key) else { return 0 };
        if !is_active(slot.place) {
            return self.aged(slot).0;
        }
        let has_turn_coming = self.positive_from(slot) <= self.round;
        self.accrued(slot, if has_turn_coming { self.given() } else { self.round })
    }

    pub(super) fn standing(&self, slots: &KeyAccounts, key: u32) -> KeyStatus {
        let Some(slot) = slots.get(key) else { return KeyStatus::Idle };
        match slot.place {
            KeyLocation::Unknown | KeyLocation::Idle => KeyStatus::Idle,
            KeyLocation::Parked => KeyStatus::Parked,
            KeyLocation::Calendar => KeyStatus::InDebt { rounds: self.positive_from(slot) - self.round },
            _ if self.turn == Some(key) => KeyStatus::InTurn,
            KeyLocation::Fast => KeyStatus::GoesFirst,
            KeyLocation::Ring | KeyLocation::Due => KeyStatus::InRing,
        }
    }

    /// What one round gives to a key, in thousandths of a unit.
    fn grant(&self, slot: &KeyAccount) -> i64 {
        i64::from(slot.weight.millis()).saturating_mul(self.quantum)
    }

    /// The last round whose grant counts as given to a key that has its turn still coming.
    fn given(&self) -> u64 {
        match self.new_key {
            NewKey::First => self.round - 1,
            NewKey::NextRound => self.round,
        }
    }

    /// Adds an amount to what a key may spend, down to the deepest debt.
    fn credit(&self, slot: &mut KeyAccount, amount: i64) {
        slot.deficit = slot.deficit.saturating_add(amount);
        // Less than this is not too deep at any weight and quantum; looking first keeps a charge short.
        if slot.deficit < -DEBT_ROUNDS_MAX {
            slot.deficit = slot.deficit.max(self.grant(slot).saturating_mul(-DEBT_ROUNDS_MAX));
        }
    }

    /// A key's deficit with every grant up to and including a round's.
    fn accrued(&self, slot: &KeyAccount, upto: u64) -> i64 {
        let rounds = i64::try_from(upto.saturating_sub(slot.granted)).unwrap_or(i64::MAX);
        slot.deficit.saturating_add(self.grant(slot).saturating_mul(rounds))
    }

    fn accrue(&self, slot: &mut KeyAccount, upto: u64) {
        if slot.granted < upto {
            slot.deficit = self.accrued(slot, upto);
            slot.granted = upto;
        }
    }

    /// An idle or parked key's balance and last granted round: debt is paid by the rounds that passed, credit is
    /// forfeited.
    ///
    /// A parked key's credit outlives one round change, because parking the last key of a round is what ends it.
    fn aged(&self, slot: &KeyAccount) -> (i64, u64) {
        let fresh = if slot.place == KeyLocation::Parked { self.round - 1 } else { self.round };
        if slot.granted == self.round || (slot.granted == fresh && slot.deficit > 0) {
            return (slot.deficit, slot.granted);
        }
        (self.accrued(slot, self.round - 1).min(0), self.round - 1)
    }

    fn age(&self, slot: &mut KeyAccount) {
        (slot.deficit, slot.granted) = self.aged(slot);
    }

    /// The first round in which a key's grants, if none are spent, leave it something to spend.
    fn positive_from(&self, slot: &KeyAccount) -> u64 {
        if slot.deficit > 0 {
            return slot.granted;
        }
        let rounds = slot.deficit.unsigned_abs() / self.grant(slot).unsigned_abs() + 1;
        slot.granted.saturating_add(rounds)
    }

    /// Tells the same of a key that had this round's grant and the very next round, without dividing.
    fn positive_next_round(&self, slot: &KeyAccount) -> bool {
        slot.deficit > -self.grant(slot)
    }

    /// Lets an aged key take part.
    fn enter(&mut self, slots: &mut KeyAccounts, key: u32) {
        let slot = &mut slots[key];
        let owed = slot.granted < self.round;
        if self.new_key == NewKey::First && owed && self.positive_from(slot) <= self.round {
            slot.place = KeyLocation::Fast;
            self.fast.push_back(slots, key);
        } else {
            if self.new_key == NewKey::NextRound && owed {
                // This round's grant may pay debt, but is not for spending.
                (slot.deficit, slot.granted) = (self.accrued(slot, self.round).min(0), self.round);
            }
            self.settle_in(slots, key);
        }
        self.advance(slots);
    }

    /// Puts an unlinked key where it stands until it has something to spend.
    fn settle_in(&mut self, slots: &mut KeyAccounts, key: u32) {
        let from = self.positive_from(&slots[key]);
        let leaves_the_round = matches!(slots[key].place, KeyLocation::Ring | KeyLocation::Due);
        if from <= self.round + 1 || !leaves_the_round {
            // Only a debtor that leaves the round keeps its place in the order; everybody else comes last.
            self.labels += 1;
            slots[key].label = self.labels;
        }
        slots[key].place = if from <= self.round {
            self.ring.push_back(slots, key);
            KeyLocation::Ring
        } else if from == self.round + 1 {
            self.later.push_back(slots, key);
            KeyLocation::Due
        } else {
            self.calendar.get_or_insert_default().insert(slots, key, from, self.round);
            KeyLocation::Calendar
        };
    }

    /// The last round by which a key must have something to spend, to stand where it stands.
    fn latest_start(&self, slot: &KeyAccount) -> u64 {
        match slot.place {
            KeyLocation::Fast => self.round,
            KeyLocation::Ring | KeyLocation::Due if self.positive_from(slot) <= self.round => self.round,
            KeyLocation::Ring | KeyLocation::Due => self.round + 1,
            // Nobody stands by these: a debtor is moved by any change, the others are nowhere.
            KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked | KeyLocation::Calendar => 0,
        }
    }

    /// Moves an active key whose deficit or weight changed, unless it has something to spend by `latest` and cannot be
    /// served sooner elsewhere.
    fn replace(&mut self, slots: &mut KeyAccounts, key: u32, latest: u64) {
        let from = self.positive_from(&slots[key]);
        let sooner = match slots[key].place {
            KeyLocation::Calendar => true,
            KeyLocation::Due => from <= self.round && self.round < latest,
            _ => false,
        };
        if sooner || latest < from {
            self.unlink(slots, key);
            self.settle_in(slots, key);
        }
        self.advance(slots);
    }

    fn unlink(&mut self, slots: &mut KeyAccounts, key: u32) {
        match slots[key].place {
            KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked => {}
            KeyLocation::Fast => self.fast.remove(slots, key),
            KeyLocation::Ring => self.ring.remove(slots, key),
            KeyLocation::Due if self.later.head() == Some(key) => self.later.remove(slots, key),
            // Whoever is not its list's head is taken out alike of either list.
            KeyLocation::Due => self.due.remove(slots, key),
            KeyLocation::Calendar => {
                if let Some(calendar) = &mut self.calendar {
                    calendar.remove(slots, key);
                }
            }
        }
    }

    /// Settles whose turn it is; under `First`, opens the next round as soon as this one has nobody left to serve.
    fn advance(&mut self, slots: &mut KeyAccounts) {
        self.turn = self.first_in_line(slots);
        if self.turn.is_some() || self.new_key == NewKey::NextRound {
            return;
        }
        if !self.ring.is_empty() {
            self.open_round(slots, self.round + 1);
        }
        self.skip_empty_rounds(slots);
    }

    fn first_in_line(&self, slots: &KeyAccounts) -> Option<u32> {
        if let Some(key) = self.fast.head() {
            return Some(key);
        }
        match (self.ring.cursor(), self.due.head()) {
            (Some(ring), Some(due)) if slots[due].label < slots[ring].label => Some(due),
            (Some(ring), _) => Some(ring),
            (None, due) => due,
        }
    }

    /// Goes on to the round in which the first debtor can be served, when nobody else wants to be.
    fn skip_empty_rounds(&mut self, slots: &mut KeyAccounts) {
        while self.turn.is_none() {
            let event = self.calendar.as_ref().and_then(|calendar| calendar.next_event(self.round));
            let round = if self.later.is_empty() { event } else { Some(self.round + 1) };
            let Some(round) = round else { return };
            self.open_round(slots, round);
        }
    }

    /// Starts a round at its first key, with the keys that join it.
    fn open_round(&mut self, slots: &mut KeyAccounts, round: u64) {
        self.round = round;
        self.ring.restart();
        self.due.append(slots, &mut self.later);
        if let Some(calendar) = self.calendar.take() {
            self.open_due(slots, calendar);
        }
        self.turn = self.first_in_line(slots);
    }

    /// Merges the keys whose debt the round has paid off into those that join it.
    fn open_due(&mut self, slots: &mut KeyAccounts, mut calendar: Box<DebtWheel>) {
        let mut keys = core::mem::take(&mut calendar.scratch);
        while let Some(key) = calendar.pop_opened(slots, self.round) {
            let due = self.positive_from(&slots[key]);
            if due <= self.round {
                keys.push(key);
            } else {
                calendar.insert(slots, key, due, self.round);
            }
        }
        if !keys.is_empty() {
            while let Some(key) = self.due.head() {
                self.due.remove(slots, key);
                keys.push(key);
            }
            keys.sort_unstable_by_key(|&key| slots[key].label);
            for key in keys.drain(..) {
                self.due.push_back(slots, key);
                slots[key].place = KeyLocation::Due;
            }
        }
        calendar.scratch = keys;
        self.calendar = Some(calendar);
    }
}

#[cfg(test)]
impl DrrLevel {
    /// Fails unless every list is sorted by label and holds who belongs there.
    pub(super) fn check(&self, slots: &KeyAccounts) {
        let labels = |keys: &[u32]| keys.iter().map(|&key| slots[key].label).collect::<alloc::vec::Vec<_>>();
        let ring = self.ring.keys(slots);
        let due = self.due.keys(slots);
        let later = self.later.keys(slots);
        for list in [&ring, &due, &later] {
            assert!(labels(list).is_sorted(), "out of order: {:?}", labels(list));
        }
        let unvisited = self.ring.cursor().map_or(0, |cursor| {
            ring.len() - ring.iter().position(|&key| key == cursor).expect("the cursor is in the ring")
        });
        let has_turn_coming = |key: &u32| self.positive_from(&slots[*key]) <= self.round;
        assert!(
            ring[ring.len() - unvisited..].iter().all(has_turn_coming),
            "visited without anything to spend"
        );
        assert!(due.iter().all(has_turn_coming), "joins the round without anything to spend");
        assert!(!later.iter().any(has_turn_coming), "waits for a round although this one is its own");
        let next_round = |key: &u32| self.positive_from(&slots[*key]) <= self.round + 1;
        assert!(ring.iter().chain(&later).all(next_round), "in deeper debt than the ring holds");
    }
}

fn is_active(place: KeyLocation) -> bool {
    !matches!(place, KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked)
}

/// Turns an amount into thousandths of a unit.
pub(super) fn milli(cost: Cost) -> i64 {
    // `Cost::MAX` in thousandths is far inside an i64.
    cost.0.min(Cost::MAX.0) as i64 * MILLI
}

/// Turns thousandths into whole units, rounding up.
pub(super) fn units(milli: u64) -> Cost {
    Cost(milli.div_ceil(MILLI.unsigned_abs()))
}
