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

use super::calendar::Calendar;
use super::ring::{Cycle, Ring};
use super::slot::{Place, Slots};
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
    labels: u64,
    fast: Ring,
    ring: Cycle,
    due: Ring,
    later: Ring,
    /// Made when a key is first in debt beyond the next round.
    calendar: Option<Box<Calendar>>,
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
            labels: 0,
            fast: Ring::EMPTY,
            ring: Cycle::EMPTY,
            due: Ring::EMPTY,
            later: Ring::EMPTY,
            calendar: None,
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

    pub(super) fn next(&self, slots: &Slots) -> Option<u32> {
        if let Some(key) = self.fast.head() {
            return Some(key);
        }
        match (self.ring.cursor(), self.due.head()) {
            (Some(ring), Some(due)) if slots[due].label < slots[ring].label => Some(due),
            (Some(ring), _) => Some(ring),
            (None, due) => due,
        }
    }

    pub(super) fn add(&mut self, slots: &mut Slots, key: u32, weight: Weight) {
        if slots[key].place != Place::Idle {
            return;
        }
        self.age(slots, key);
        slots[key].weight = weight;
        self.active += 1;
        self.enter(slots, key);
    }

    pub(super) fn remove(&mut self, slots: &mut Slots, key: u32) {
        match slots[key].place {
            Place::Idle => return,
            Place::Parked => self.parked -= 1,
            Place::Fast | Place::Ring | Place::Due | Place::Calendar => {
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
        self.age(slots, key);
        self.enter(slots, key);
    }

    pub(super) fn consume(&mut self, slots: &mut Slots, key: u32, cost: Cost) {
        let charge = -milli(cost);
        if self.next(slots) != Some(key) {
            self.shift(slots, key, charge);
            return;
        }
        if slots[key].place == Place::Fast {
            self.fast.remove(slots, key);
            slots[key].deficit = slots[key].deficit.saturating_add(charge);
            self.settle_in(slots, key);
            self.advance(slots);
            return;
        }
        self.accrue(slots, key, self.round);
        let slot = &mut slots[key];
        slot.deficit = slot.deficit.saturating_add(charge);
        let (deficit, place) = (slot.deficit, slot.place);
        if deficit > 0 {
            return;
        }
        if deficit <= -self.grant(slots, key) {
            self.unlink(slots, key);
            self.settle_in(slots, key);
        } else if place == Place::Ring {
            self.ring.turn(slots);
        } else {
            self.due.remove(slots, key);
            self.ring.insert_visited(slots, key);
            slots[key].place = Place::Ring;
        }
        self.advance(slots);
    }

    /// Charges or refunds a key without that being its turn's work.
    pub(super) fn shift(&mut self, slots: &mut Slots, key: u32, amount: i64) {
        let place = slots[key].place;
        if !is_active(place) {
            self.age(slots, key);
        }
        let latest = self.latest_start(slots, key);
        let slot = &mut slots[key];
        slot.deficit = slot.deficit.saturating_add(amount);
        match place {
            Place::Idle => slot.deficit = slot.deficit.min(0),
            Place::Parked => {}
            Place::Fast | Place::Ring | Place::Due | Place::Calendar => self.replace(slots, key, latest),
        }
    }

    pub(super) fn update_weight(&mut self, slots: &mut Slots, key: u32, weight: Weight) {
        if !is_active(slots[key].place) {
            self.age(slots, key);
            slots[key].weight = weight;
            return;
        }
        let latest = self.latest_start(slots, key);
        // The rounds it waited count at the weight it had.
        self.accrue(slots, key, self.round - 1);
        slots[key].weight = weight;
        self.replace(slots, key, latest);
    }

    /// Opens the next round in which somebody can be served.
    pub(super) fn start_new_round(&mut self, slots: &mut Slots) {
        self.open_round(slots, self.round + 1);
        self.skip_empty_rounds(slots);
    }

    /// Tells what a key may spend; negative is debt. Under `NextRound` a round's grant counts from its start, under
    /// `First` from the key's turn.
    pub(super) fn balance(&self, slots: &Slots, key: u32) -> i64 {
        let Some(slot) = slots.get(key) else { return 0 };
        if !is_active(slot.place) {
            return self.aged(slots, key).0;
        }
        let has_turn_coming = self.positive_from(slots, key) <= self.round;
        let upto = if has_turn_coming && self.new_key == NewKey::First { self.round - 1 } else { self.round };
        self.accrued(slots, key, upto)
    }

    pub(super) fn standing(&self, slots: &Slots, key: u32) -> Standing {
        let Some(slot) = slots.get(key) else { return Standing::Idle };
        match slot.place {
            Place::Idle => Standing::Idle,
            Place::Parked => Standing::Parked,
            Place::Calendar => Standing::InDebt { rounds: self.positive_from(slots, key) - self.round },
            _ if self.next(slots) == Some(key) => Standing::InTurn,
            Place::Fast => Standing::GoesFirst,
            Place::Ring | Place::Due => Standing::InRing,
        }
    }

    /// What one round gives to a key, in thousandths of a unit.
    fn grant(&self, slots: &Slots, key: u32) -> i64 {
        i64::from(slots[key].weight.millis()).saturating_mul(self.quantum)
    }

    /// A key's deficit with every grant up to and including a round's.
    fn accrued(&self, slots: &Slots, key: u32, upto: u64) -> i64 {
        let slot = &slots[key];
        let rounds = i64::try_from(upto.saturating_sub(slot.granted)).unwrap_or(i64::MAX);
        slot.deficit.saturating_add(self.grant(slots, key).saturating_mul(rounds))
    }

    fn accrue(&self, slots: &mut Slots, key: u32, upto: u64) {
        if slots[key].granted < upto {
            slots[key].deficit = self.accrued(slots, key, upto);
            slots[key].granted = upto;
        }
    }

    /// An idle or parked key's balance and last granted round: debt is paid by the rounds that passed, credit
    /// of an earlier round is forfeited.
    fn aged(&self, slots: &Slots, key: u32) -> (i64, u64) {
        let slot = &slots[key];
        if slot.granted == self.round {
            return (slot.deficit, slot.granted);
        }
        (self.accrued(slots, key, self.round - 1).min(0), self.round - 1)
    }

    fn age(&self, slots: &mut Slots, key: u32) {
        (slots[key].deficit, slots[key].granted) = self.aged(slots, key);
    }

    /// The first round in which a key's grants, if none are spent, leave it something to spend.
    fn positive_from(&self, slots: &Slots, key: u32) -> u64 {
        let slot = &slots[key];
        if slot.deficit > 0 {
            return slot.granted;
        }
        let rounds = slot.deficit.unsigned_abs() / self.grant(slots, key).unsigned_abs() + 1;
        slot.granted.saturating_add(rounds)
    }

    /// Lets an aged key take part.
    fn enter(&mut self, slots: &mut Slots, key: u32) {
        match self.new_key {
            NewKey::First => {
                let owed = slots[key].granted < self.round;
                if owed && self.positive_from(slots, key) <= self.round {
                    self.fast.push_back(slots, key);
                    slots[key].place = Place::Fast;
                    return;
                }
            }
            NewKey::NextRound if slots[key].granted < self.round => {
                // This round's grant may pay debt, but is not for spending.
                slots[key].deficit = self.accrued(slots, key, self.round).min(0);
                slots[key].granted = self.round;
            }
            NewKey::NextRound => {}
        }
        self.settle_in(slots, key);
        self.advance(slots);
    }

    /// Puts an unlinked key where it stands until it has something to spend.
    fn settle_in(&mut self, slots: &mut Slots, key: u32) {
        let from = self.positive_from(slots, key);
        let leaves_the_round = matches!(slots[key].place, Place::Ring | Place::Due);
        if from <= self.round + 1 || !leaves_the_round {
            // Only a debtor that leaves the round keeps its place in the order; everybody else comes last.
            self.labels += 1;
            slots[key].label = self.labels;
        }
        slots[key].place = if from <= self.round {
            self.ring.push_back(slots, key);
            Place::Ring
        } else if from == self.round + 1 {
            self.later.push_back(slots, key);
            Place::Due
        } else {
            self.calendar.get_or_insert_default().insert(slots, key, from, self.round);
            Place::Calendar
        };
    }

    /// The last round by which a key must have something to spend, to stand where it stands.
    fn latest_start(&self, slots: &Slots, key: u32) -> u64 {
        match slots[key].place {
            Place::Fast => self.round,
            Place::Ring | Place::Due if self.positive_from(slots, key) <= self.round => self.round,
            Place::Ring | Place::Due => self.round + 1,
            // Stands by its due round, so any change moves it.
            Place::Idle | Place::Parked | Place::Calendar => 0,
        }
    }

    /// Moves an active key whose deficit or weight changed, unless it has something to spend by `latest`.
    fn replace(&mut self, slots: &mut Slots, key: u32, latest: u64) {
        if self.positive_from(slots, key) > latest {
            self.unlink(slots, key);
            self.settle_in(slots, key);
        }
        self.advance(slots);
    }

    fn unlink(&mut self, slots: &mut Slots, key: u32) {
        match slots[key].place {
            Place::Idle | Place::Parked => {}
            Place::Fast => self.fast.remove(slots, key),
            Place::Ring => self.ring.remove(slots, key),
            Place::Due if self.later.head() == Some(key) => self.later.remove(slots, key),
            // Whoever is not its list's head is taken out alike of either list.
            Place::Due => self.due.remove(slots, key),
            Place::Calendar => {
                if let Some(calendar) = &mut self.calendar {
                    calendar.remove(slots, key);
                }
            }
        }
    }

    /// Under `First`, opens the next round as soon as this one has nobody left to serve.
    fn advance(&mut self, slots: &mut Slots) {
        if self.new_key == NewKey::NextRound || self.next(slots).is_some() {
            return;
        }
        if !self.ring.is_empty() {
            self.open_round(slots, self.round + 1);
        }
        self.skip_empty_rounds(slots);
    }

    /// Goes on to the round in which the first debtor can be served, when nobody else wants to be.
    fn skip_empty_rounds(&mut self, slots: &mut Slots) {
        while self.next(slots).is_none() {
            let event = self.calendar.as_ref().and_then(|calendar| calendar.next_event(self.round));
            let round = if self.later.is_empty() { event } else { Some(self.round + 1) };
            let Some(round) = round else { return };
            self.open_round(slots, round);
        }
    }

    /// Starts a round at its first key, with the keys that join it.
    fn open_round(&mut self, slots: &mut Slots, round: u64) {
        self.round = round;
        self.ring.restart();
        self.due.append(slots, &mut self.later);
        let Some(mut calendar) = self.calendar.take_if(|calendar| !calendar.is_empty()) else { return };
        let mut keys = core::mem::take(&mut calendar.scratch);
        while let Some(key) = calendar.pop_opened(slots, round) {
            let due = self.positive_from(slots, key);
            if due <= round {
                keys.push(key);
            } else {
                calendar.insert(slots, key, due, round);
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
                slots[key].place = Place::Due;
            }
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
