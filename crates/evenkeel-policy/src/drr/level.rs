//! The rules of deficit round robin over one set of keys, with the accounts kept outside.
//!
//! One rule carries the rest: **a key is granted at most once per round**, and `granted` remembers the
//! last round it was. A key that comes back within the round that already granted it joins the end of the
//! ring; one whose last grant is a round or more old goes first. Nobody gains by going idle, and nothing
//! needs to be kept in the ring to know it.
//!
//! A round goes, as far as there is anybody:
//! 1. `fast`: keys that just became active, one message each;
//! 2. `ring` and `due` (keys the calendar gave back), merged in one order, by label, that never changes
//!    while a key has work;
//! 3. `rest`: keys that went first, with what that message left of their grant.
//!
//! The pairwise bound needs all three as they are. Going first with a whole grant, or coming back from the
//! calendar at either end of a round, would let another key be visited twice in between and cost a quantum.
//! In the ring, keys this round has granted follow those it has not, so its part of the round is over when
//! the cursor meets a key that was granted and has nothing left.

use alloc::boxed::Box;

use super::calendar::Calendar;
use super::ring::{Cycle, Ring};
use super::slot::{Place, Slot, Slots};
use super::{NewKey, Standing};
use crate::cost::Cost;
use crate::weight::Weight;

/// Thousandths of a unit per unit.
const MILLI: i64 = 1_000;

/// The lists of one scheduler, and the round they are in.
#[derive(Clone, Debug)]
pub(super) struct Level {
    new_key: NewKey,
    quantum: i64,
    round: u64,
    fast: Ring,
    ring: Cycle,
    due: Ring,
    rest: Ring,
    /// Made when a key is first in debt beyond a grant.
    calendar: Option<Box<Calendar>>,
    labels: u64,
    /// Whose turn it is: settled by every change, so that peeking only reads it.
    turn: Option<u32>,
    active: u32,
    parked: u32,
}

impl Level {
    pub(super) fn new(new_key: NewKey, quantum: Cost) -> Self {
        Self {
            new_key,
            quantum: i64::try_from(quantum.0).unwrap_or(i64::MAX),
            // Fresh accounts say 0: under `First` they have a grant coming.
            round: 1,
            fast: Ring::EMPTY,
            ring: Cycle::EMPTY,
            due: Ring::EMPTY,
            rest: Ring::EMPTY,
            calendar: None,
            labels: 0,
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

    pub(super) fn add(&mut self, slots: &mut Slots, key: u32, weight: Weight) {
        if slots[key].place != Place::Idle {
            return;
        }
        self.age(&mut slots[key]);
        slots[key].weight = weight;
        self.active += 1;
        self.enter(slots, key);
        self.advance(slots);
    }

    pub(super) fn remove(&mut self, slots: &mut Slots, key: u32) {
        match slots[key].place {
            Place::Idle => return,
            Place::Parked => self.parked -= 1,
            Place::Fast | Place::Ring | Place::Calendar | Place::Due | Place::Rest => {
                self.unlink(slots, key);
                self.active -= 1;
            }
        }
        slots[key].place = Place::Idle;
        slots[key].deficit = slots[key].deficit.min(0);
        self.advance(slots);
    }

    pub(super) fn park(&mut self, slots: &mut Slots, key: u32) {
        if !is_active(slots[key].place) {
            return;
        }
        self.unlink(slots, key);
        slots[key].place = Place::Parked;
        self.active -= 1;
        self.parked += 1;
        self.advance(slots);
    }

    pub(super) fn wake(&mut self, slots: &mut Slots, key: u32) {
        if slots[key].place != Place::Parked {
            return;
        }
        self.parked -= 1;
        self.active += 1;
        self.age(&mut slots[key]);
        self.enter(slots, key);
        self.advance(slots);
    }

    pub(super) fn consume(&mut self, slots: &mut Slots, key: u32, cost: Cost) {
        let charge = -milli(cost);
        if self.turn != Some(key) {
            self.shift(slots, key, charge);
            return;
        }
        let slot = &mut slots[key];
        self.accrue(slot);
        slot.deficit = slot.deficit.saturating_add(charge);
        if slot.place != Place::Fast && slot.deficit > 0 {
            return;
        }
        if slot.place == Place::Ring && !self.in_debt(slot) {
            // The common end of a turn: the key stays linked, only the ring moves on.
            self.ring.turn(slots);
        } else {
            self.end_turn(slots, key);
        }
        self.advance(slots);
    }

    /// Puts a key whose turn is over where it waits for the next; apart, to keep the common end short.
    #[inline(never)]
    fn end_turn(&mut self, slots: &mut Slots, key: u32) {
        if slots[key].place == Place::Due && !self.in_debt(&slots[key]) {
            self.due.remove(slots, key);
            self.ring.insert_at_cursor(slots, key);
            slots[key].place = Place::Ring;
        } else {
            self.unlink(slots, key);
            self.settle_in(slots, key);
        }
    }

    /// Charges or refunds a key without that being its turn's work.
    pub(super) fn shift(&mut self, slots: &mut Slots, key: u32, amount: i64) {
        let place = slots[key].place;
        if !is_active(place) {
            self.age(&mut slots[key]);
        }
        let latest = self.latest_start(slots, key);
        let slot = &mut slots[key];
        slot.deficit = slot.deficit.saturating_add(amount);
        match place {
            Place::Idle => slot.deficit = slot.deficit.min(0),
            Place::Parked => {}
            Place::Fast | Place::Ring | Place::Calendar | Place::Due | Place::Rest => {
                self.replace(slots, key, latest);
            }
        }
    }

    pub(super) fn update_weight(&mut self, slots: &mut Slots, key: u32, weight: Weight) {
        match slots[key].place {
            Place::Idle | Place::Parked => {
                self.age(&mut slots[key]);
                slots[key].weight = weight;
                return;
            }
            // The rounds it waited counted at the weight it had.
            Place::Calendar => self.accrue(&mut slots[key]),
            Place::Fast | Place::Ring | Place::Due | Place::Rest => {}
        }
        let latest = self.latest_start(slots, key);
        slots[key].weight = weight;
        self.replace(slots, key, latest);
    }

    /// Opens the next round in which somebody can be served.
    pub(super) fn start_new_round(&mut self, slots: &mut Slots) {
        self.open_round(slots, self.round + 1);
        self.skip_empty_rounds(slots);
        self.turn = self.find_turn(slots);
    }

    /// Tells what a key may spend; negative is debt. Under `NextRound` a round's grant counts from its start.
    pub(super) fn balance(&self, slots: &Slots, key: u32) -> i64 {
        let Some(slot) = slots.get(key) else { return 0 };
        match slot.place {
            Place::Idle | Place::Parked => self.aged(slot).0,
            Place::Calendar => self.accrued(slot),
            Place::Fast | Place::Ring | Place::Due | Place::Rest => match self.new_key {
                NewKey::First => slot.deficit,
                NewKey::NextRound => self.accrued(slot),
            },
        }
    }

    pub(super) fn standing(&self, slots: &Slots, key: u32) -> Standing {
        let Some(slot) = slots.get(key) else { return Standing::Idle };
        match slot.place {
            Place::Idle => Standing::Idle,
            Place::Parked => Standing::Parked,
            Place::Calendar => Standing::InDebt { rounds: self.positive_from(slot) - self.round },
            _ if self.turn == Some(key) => Standing::InTurn,
            Place::Fast => Standing::GoesFirst,
            Place::Ring | Place::Due | Place::Rest => Standing::InRing,
        }
    }

    /// Finds whose turn it is in this round.
    #[inline]
    fn find_turn(&self, slots: &Slots) -> Option<u32> {
        if let Some(key) = self.fast.head() {
            return Some(key);
        }
        let in_ring = self.ring.cursor().filter(|&key| self.may_serve(&slots[key]));
        match (in_ring, self.due.head()) {
            (Some(ring), Some(due)) if slots[due].label < slots[ring].label => Some(due),
            (Some(ring), _) => Some(ring),
            (None, Some(due)) => Some(due),
            (None, None) => self.rest.head(),
        }
    }

    fn may_serve(&self, slot: &Slot) -> bool {
        slot.granted < self.round || slot.deficit > 0
    }

    /// Tells whether the next grant will not outweigh what a key owes.
    fn in_debt(&self, slot: &Slot) -> bool {
        slot.deficit <= -self.grant(slot)
    }

    /// What one round gives to a key, in thousandths of a unit.
    fn grant(&self, slot: &Slot) -> i64 {
        // The largest weight times the largest quantum is far inside an i64.
        i64::from(slot.weight.millis()) * self.quantum
    }

    fn grants(&self, slot: &Slot, rounds: u64) -> i64 {
        let rounds = i64::try_from(rounds).unwrap_or(i64::MAX);
        self.grant(slot).saturating_mul(rounds)
    }

    fn accrued(&self, slot: &Slot) -> i64 {
        slot.deficit.saturating_add(self.grants(slot, self.round - slot.granted))
    }

    /// Writes down every grant up to and including this round's.
    fn accrue(&self, slot: &mut Slot) {
        if slot.granted < self.round {
            slot.deficit = self.accrued(slot);
            slot.granted = self.round;
        }
    }

    /// An idle or parked key's balance and last granted round: debt is paid by the rounds that passed, credit
    /// of an earlier round is forfeited.
    fn aged(&self, slot: &Slot) -> (i64, u64) {
        if slot.granted == self.round {
            return (slot.deficit, slot.granted);
        }
        let missed = self.round - 1 - slot.granted;
        let paid = slot.deficit.saturating_add(self.grants(slot, missed));
        (paid.min(0), self.round - 1)
    }

    fn age(&self, slot: &mut Slot) {
        (slot.deficit, slot.granted) = self.aged(slot);
    }

    /// The first round in which a key's grants, if none are spent, leave it something to spend.
    fn positive_from(&self, slot: &Slot) -> u64 {
        if slot.deficit > 0 {
            return slot.granted;
        }
        let rounds = slot.deficit.unsigned_abs() / self.grant(slot).unsigned_abs() + 1;
        slot.granted.saturating_add(rounds)
    }

    /// Lets an aged key take part: first if this round owes it a grant, else behind everybody.
    fn enter(&mut self, slots: &mut Slots, key: u32) {
        if slots[key].granted < self.round {
            match self.new_key {
                NewKey::First if self.positive_from(&slots[key]) <= self.round => {
                    self.fast.push_back(slots, key);
                    slots[key].place = Place::Fast;
                    return;
                }
                NewKey::First => self.accrue(&mut slots[key]),
                NewKey::NextRound => {
                    // This round's grant may pay debt, but is not for spending.
                    slots[key].deficit = self.accrued(&slots[key]).min(0);
                    slots[key].granted = self.round;
                }
            }
        }
        self.settle_in(slots, key);
    }

    /// Puts a key that has had this round's grant where the rest of it, or its debt, places it.
    fn settle_in(&mut self, slots: &mut Slots, key: u32) {
        let deficit = slots[key].deficit;
        if deficit > 0 {
            self.rest.push_back(slots, key);
            slots[key].place = Place::Rest;
            return;
        }
        let in_debt = self.in_debt(&slots[key]);
        if !in_debt || !matches!(slots[key].place, Place::Ring | Place::Due) {
            // Only a debtor out of the round keeps its place; everybody else comes last.
            self.labels += 1;
            slots[key].label = self.labels;
        }
        if in_debt {
            let due = self.positive_from(&slots[key]);
            self.calendar.get_or_insert_default().insert(slots, key, due, self.round);
            slots[key].place = Place::Calendar;
        } else {
            self.ring.push_back(slots, key);
            slots[key].place = Place::Ring;
        }
    }

    /// The last round by which a key must have something to spend, to stand where it stands.
    fn latest_start(&self, slots: &Slots, key: u32) -> u64 {
        match slots[key].place {
            Place::Fast | Place::Due | Place::Rest => self.round,
            Place::Ring if self.may_serve(&slots[key]) => self.round,
            Place::Ring => self.round + 1,
            // Stands by its due round, so any change moves it.
            Place::Idle | Place::Parked | Place::Calendar => 0,
        }
    }

    /// Moves an active key whose deficit or weight changed, unless it has something to spend by `latest`.
    fn replace(&mut self, slots: &mut Slots, key: u32, latest: u64) {
        if self.positive_from(&slots[key]) > latest {
            self.unlink(slots, key);
            self.accrue(&mut slots[key]);
            self.settle_in(slots, key);
        }
        self.advance(slots);
    }

    fn unlink(&mut self, slots: &mut Slots, key: u32) {
        match slots[key].place {
            Place::Idle | Place::Parked => {}
            Place::Fast => self.fast.remove(slots, key),
            Place::Ring => self.ring.remove(slots, key),
            Place::Due => self.due.remove(slots, key),
            Place::Rest => self.rest.remove(slots, key),
            Place::Calendar => {
                if let Some(calendar) = &mut self.calendar {
                    calendar.remove(slots, key);
                }
            }
        }
    }

    /// Settles whose turn it is; under `First`, opens the next round as soon as this one has nobody left to serve.
    #[inline]
    fn advance(&mut self, slots: &mut Slots) {
        self.turn = self.find_turn(slots);
        if self.turn.is_none() && self.new_key == NewKey::First {
            self.open_next_round(slots);
        }
    }

    #[inline(never)]
    fn open_next_round(&mut self, slots: &mut Slots) {
        if !self.ring.is_empty() {
            self.open_round(slots, self.round + 1);
        }
        self.skip_empty_rounds(slots);
        self.turn = self.find_turn(slots);
    }

    /// Goes on to the round in which the first debtor can be served, when nobody else wants to be.
    fn skip_empty_rounds(&mut self, slots: &mut Slots) {
        while self.ring.is_empty() && self.find_turn(slots).is_none() {
            let Some(event) = self.calendar.as_ref().and_then(|calendar| calendar.next_event(self.round))
            else {
                return;
            };
            self.open_round(slots, event);
        }
    }

    /// Starts a round at its first key, with the keys whose debt it pays off.
    fn open_round(&mut self, slots: &mut Slots, round: u64) {
        self.round = round;
        self.ring.restart();
        let Some(mut calendar) = self.calendar.take_if(|calendar| !calendar.is_empty()) else { return };
        let mut keys = core::mem::take(&mut calendar.scratch);
        while let Some(key) = calendar.pop_opened(slots, round) {
            let due = self.positive_from(&slots[key]);
            if due <= round {
                keys.push(key);
            } else {
                calendar.insert(slots, key, due, round);
            }
        }
        // Left over from a round that was cut short.
        while let Some(key) = self.due.head() {
            self.due.remove(slots, key);
            keys.push(key);
        }
        keys.sort_unstable_by_key(|&key| slots[key].label);
        for key in keys.drain(..) {
            self.due.push_back(slots, key);
            slots[key].place = Place::Due;
        }
        calendar.scratch = keys;
        self.calendar = Some(calendar);
    }
}

fn is_active(place: Place) -> bool {
    !matches!(place, Place::Idle | Place::Parked)
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
