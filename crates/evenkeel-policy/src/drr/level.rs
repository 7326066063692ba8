//! The DRR algorithm over one set of keys; the accounts are passed in.
//!
//! The central invariant: **a key is granted at most once per round**, and `granted` is the last round whose grant is
//! in its deficit. A key that becomes active again in a round that already granted it waits for the next round; a key
//! whose last grant is at least a round old is served first. So a key gains nothing by going idle, although idle keys
//! leave the ring.
//!
//! A round serves, in this order:
//! 1. `new_keys`: keys that just became active, one message each, charged in advance against this round's grant;
//! 2. `ring` and `joining` (keys that join the round), merged in one order, by label. A key from `new_keys` comes last
//!    in that order, where it spends the rest of its grant.
//!
//! Keys whose deficit becomes positive in the next round wait in `joining_next`, keys that are deeper in debt in the
//! debt wheel.
//!
//! The pairwise guarantee depends on the single order: if a new key were served first for a whole grant, or a debtor
//! returned at the start or end of a round, one key could be visited twice between two visits of another, which would
//! add a quantum to the bound.

use alloc::boxed::Box;

use super::account::{KeyAccount, KeyAccounts, KeyLocation};
use super::debt_wheel::DebtWheel;
use super::ring::{Ring, RoundOrder};
use super::{KeyStatus, NewKey};
use crate::cost::Cost;
use crate::weight::Weight;

/// Thousandths of a unit per unit.
const MILLI: i64 = 1_000;

/// Maximum debt in rounds; deeper debt is forgiven, so that the round counter cannot overflow. No real work takes so
/// long to pay off.
const DEBT_ROUNDS_MAX: i64 = 1 << 32;

/// Lists of one scheduler and its current round.
#[derive(Clone, Debug)]
pub(super) struct DrrLevel {
    new_key: NewKey,
    quantum: i64,
    round: u64,
    last_label: u64,
    new_keys: Ring,
    ring: RoundOrder,
    joining: Ring,
    joining_next: Ring,
    /// Allocated when a key is first in debt beyond the next round.
    debt_wheel: Option<Box<DebtWheel>>,
    /// Updated by every change, so that peeking only reads it.
    next_key: Option<u32>,
    active: u32,
    parked: u32,
}

impl DrrLevel {
    pub(super) fn new(new_key: NewKey, quantum: Cost) -> Self {
        Self {
            new_key,
            quantum: i64::try_from(quantum.0).unwrap_or(i64::MAX),
            // New accounts have `granted` 0, so under `First` they are due a grant.
            round: 1,
            last_label: 0,
            new_keys: Ring::EMPTY,
            ring: RoundOrder::EMPTY,
            joining: Ring::EMPTY,
            joining_next: Ring::EMPTY,
            debt_wheel: None,
            next_key: None,
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
        self.next_key
    }

    pub(super) fn add(&mut self, accounts: &mut KeyAccounts, key: u32, weight: Weight) {
        if accounts[key].location != KeyLocation::Idle {
            return;
        }
        self.catch_up(&mut accounts[key]);
        accounts[key].weight = weight;
        self.active += 1;
        self.activate(accounts, key);
    }

    /// Adds a key that has work but is excluded until it is woken.
    pub(super) fn add_parked(&mut self, accounts: &mut KeyAccounts, key: u32, weight: Weight) {
        if accounts[key].location != KeyLocation::Idle {
            return;
        }
        self.catch_up(&mut accounts[key]);
        accounts[key].weight = weight;
        accounts[key].location = KeyLocation::Parked;
        self.parked += 1;
    }

    pub(super) fn remove(&mut self, accounts: &mut KeyAccounts, key: u32) {
        match accounts[key].location {
            KeyLocation::Unknown | KeyLocation::Idle => return,
            KeyLocation::Parked => self.parked -= 1,
            KeyLocation::New | KeyLocation::Ring | KeyLocation::Joining | KeyLocation::DebtWheel => {
                self.unlink(accounts, key);
                self.active -= 1;
            }
        }
        accounts[key].location = KeyLocation::Idle;
        accounts[key].deficit = accounts[key].deficit.min(0);
        if self.active == 0 && self.new_key == NewKey::First {
            // A round without active keys ends, so that the next key to become active counts as idle for a round.
            self.round += 1;
        }
        self.advance(accounts);
    }

    pub(super) fn park(&mut self, accounts: &mut KeyAccounts, key: u32) {
        if !is_active(accounts[key].location) {
            return;
        }
        self.unlink(accounts, key);
        if self.new_key == NewKey::NextRound {
            // Under `NextRound` every active key has this round's grant from the round's start.
            self.accrue(&mut accounts[key], self.round);
        }
        accounts[key].location = KeyLocation::Parked;
        self.active -= 1;
        self.parked += 1;
        self.advance(accounts);
    }

    pub(super) fn wake(&mut self, accounts: &mut KeyAccounts, key: u32) {
        if accounts[key].location != KeyLocation::Parked {
            return;
        }
        self.parked -= 1;
        self.active += 1;
        self.catch_up(&mut accounts[key]);
        self.activate(accounts, key);
    }

    pub(super) fn consume(&mut self, accounts: &mut KeyAccounts, key: u32, cost: Cost) {
        let charge = -milli(cost);
        if self.next_key != Some(key) {
            self.adjust(accounts, key, charge);
            return;
        }
        let account = &mut accounts[key];
        if account.location != KeyLocation::New {
            self.accrue(account, self.round);
        }
        self.credit(account, charge);
        if account.location != KeyLocation::New && account.deficit > 0 {
            return;
        }
        if account.location == KeyLocation::Ring && self.positive_next_round(account) {
            // The common case: the key stays linked and only the cursor advances.
            self.ring.advance_cursor(accounts);
        } else {
            self.end_turn(accounts, key);
        }
        self.advance(accounts);
    }

    /// Relinks a key whose turn has ended; kept out of line to keep the common case short.
    #[inline(never)]
    fn end_turn(&mut self, accounts: &mut KeyAccounts, key: u32) {
        if accounts[key].location == KeyLocation::Joining && self.positive_next_round(&accounts[key]) {
            self.joining.remove(accounts, key);
            self.ring.insert_visited(accounts, key);
            accounts[key].location = KeyLocation::Ring;
        } else {
            self.unlink(accounts, key);
            self.link(accounts, key);
        }
    }

    /// Charges or refunds a key outside its turn.
    pub(super) fn adjust(&mut self, accounts: &mut KeyAccounts, key: u32, amount: i64) {
        let location = accounts[key].location;
        if !is_active(location) {
            self.catch_up(&mut accounts[key]);
        }
        let latest = self.latest_start(&accounts[key]);
        let account = &mut accounts[key];
        self.credit(account, amount);
        match location {
            KeyLocation::Unknown | KeyLocation::Idle => account.deficit = account.deficit.min(0),
            KeyLocation::Parked => {}
            KeyLocation::New | KeyLocation::Ring | KeyLocation::Joining | KeyLocation::DebtWheel => {
                self.relink(accounts, key, latest);
            }
        }
    }

    pub(super) fn update_weight(&mut self, accounts: &mut KeyAccounts, key: u32, weight: Weight) {
        if !is_active(accounts[key].location) {
            self.catch_up(&mut accounts[key]);
            accounts[key].weight = weight;
            return;
        }
        let latest = self.latest_start(&accounts[key]);
        // Grants already given count at the old weight.
        self.accrue(&mut accounts[key], self.granted_through());
        accounts[key].weight = weight;
        self.relink(accounts, key, latest);
    }

    /// Opens the next round in which a key can be served.
    pub(super) fn start_new_round(&mut self, accounts: &mut KeyAccounts) {
        self.open_round(accounts, self.round + 1);
        self.skip_empty_rounds(accounts);
    }

    /// Returns a key's balance; negative is debt. Under `NextRound` a round's grant counts from the round's start,
    /// under `First` from the key's turn.
    pub(super) fn balance(&self, accounts: &KeyAccounts, key: u32) -> i64 {
        let Some(account) = accounts.get(key) else { return 0 };
        if !is_active(account.location) {
            return self.caught_up(account).0;
        }
        let has_turn_coming = self.positive_from(account) <= self.round;
        self.accrued(account, if has_turn_coming { self.granted_through() } else { self.round })
    }

    pub(super) fn key_status(&self, accounts: &KeyAccounts, key: u32) -> KeyStatus {
        let Some(account) = accounts.get(key) else { return KeyStatus::Idle };
        match account.location {
            KeyLocation::Unknown | KeyLocation::Idle => KeyStatus::Idle,
            KeyLocation::Parked => KeyStatus::Parked,
            KeyLocation::DebtWheel => KeyStatus::InDebt { rounds: self.positive_from(account) - self.round },
            _ if self.next_key == Some(key) => KeyStatus::Next,
            KeyLocation::New => KeyStatus::Prioritized,
            KeyLocation::Ring | KeyLocation::Joining => KeyStatus::InRing,
        }
    }

    /// Returns a key's grant per round, in thousandths of a unit.
    fn grant(&self, account: &KeyAccount) -> i64 {
        i64::from(account.weight.millis()).saturating_mul(self.quantum)
    }

    /// Returns the last round whose grant counts as given to a key that is yet to be visited in this round.
    fn granted_through(&self) -> u64 {
        match self.new_key {
            NewKey::First => self.round - 1,
            NewKey::NextRound => self.round,
        }
    }

    /// Adds an amount to a key's deficit, which cannot fall below the maximum debt.
    fn credit(&self, account: &mut KeyAccount, amount: i64) {
        account.deficit = account.deficit.saturating_add(amount);
        // A grant is at least one thousandth, so a smaller debt is always within the limit; this cheap test saves the
        // multiplication.
        if account.deficit < -DEBT_ROUNDS_MAX {
            account.deficit = account.deficit.max(self.grant(account).saturating_mul(-DEBT_ROUNDS_MAX));
        }
    }

    /// Returns a key's deficit including every grant up to and including `through`.
    fn accrued(&self, account: &KeyAccount, through: u64) -> i64 {
        let rounds = i64::try_from(through.saturating_sub(account.granted)).unwrap_or(i64::MAX);
        account.deficit.saturating_add(self.grant(account).saturating_mul(rounds))
    }

    fn accrue(&self, account: &mut KeyAccount, through: u64) {
        if account.granted < through {
            account.deficit = self.accrued(account, through);
            account.granted = through;
        }
    }

    /// Returns an idle or parked key's balance and last granted round: past rounds pay its debt, credit is forfeited.
    ///
    /// A parked key's credit is kept for one more round, because parking the last key of a round ends that round.
    fn caught_up(&self, account: &KeyAccount) -> (i64, u64) {
        let credit_kept_from =
            if account.location == KeyLocation::Parked { self.round - 1 } else { self.round };
        if account.granted == self.round || (account.granted == credit_kept_from && account.deficit > 0) {
            return (account.deficit, account.granted);
        }
        (self.accrued(account, self.round - 1).min(0), self.round - 1)
    }

    fn catch_up(&self, account: &mut KeyAccount) {
        (account.deficit, account.granted) = self.caught_up(account);
    }

    /// Returns the first round in which a key has a positive deficit if none of its grants are spent.
    fn positive_from(&self, account: &KeyAccount) -> u64 {
        if account.deficit > 0 {
            return account.granted;
        }
        let rounds = account.deficit.unsigned_abs() / self.grant(account).unsigned_abs() + 1;
        account.granted.saturating_add(rounds)
    }

    /// Reports whether a key that had this round's grant has a positive deficit in the next, without dividing.
    fn positive_next_round(&self, account: &KeyAccount) -> bool {
        account.deficit > -self.grant(account)
    }

    /// Activates a key that is caught up.
    fn activate(&mut self, accounts: &mut KeyAccounts, key: u32) {
        let account = &mut accounts[key];
        let grant_due = account.granted < self.round;
        if self.new_key == NewKey::First && grant_due && self.positive_from(account) <= self.round {
            account.location = KeyLocation::New;
            self.new_keys.push_back(accounts, key);
        } else {
            if self.new_key == NewKey::NextRound && grant_due {
                // This round's grant may pay debt, but cannot be spent.
                (account.deficit, account.granted) = (self.accrued(account, self.round).min(0), self.round);
            }
            self.link(accounts, key);
        }
        self.advance(accounts);
    }

    /// Links an unlinked key into the list that serves it once its deficit is positive.
    fn link(&mut self, accounts: &mut KeyAccounts, key: u32) {
        let from = self.positive_from(&accounts[key]);
        let was_in_round = matches!(accounts[key].location, KeyLocation::Ring | KeyLocation::Joining);
        if from <= self.round + 1 || !was_in_round {
            // A key that leaves the round for the debt wheel keeps its label; any other key becomes the last in the
            // order.
            self.last_label += 1;
            accounts[key].label = self.last_label;
        }
        accounts[key].location = if from <= self.round {
            self.ring.push_back(accounts, key);
            KeyLocation::Ring
        } else if from == self.round + 1 {
            self.joining_next.push_back(accounts, key);
            KeyLocation::Joining
        } else {
            self.debt_wheel.get_or_insert_default().insert(accounts, key, from, self.round);
            KeyLocation::DebtWheel
        };
    }

    /// Returns the latest round in which a key's deficit may become positive for the key to stay in its list.
    fn latest_start(&self, account: &KeyAccount) -> u64 {
        match account.location {
            KeyLocation::New => self.round,
            KeyLocation::Ring | KeyLocation::Joining if self.positive_from(account) <= self.round => {
                self.round
            }
            KeyLocation::Ring | KeyLocation::Joining => self.round + 1,
            // These keys are not in a round: any change relinks a key in the debt wheel, and the others are not linked.
            KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked | KeyLocation::DebtWheel => 0,
        }
    }

    /// Moves an active key whose deficit or weight changed to another list if its deficit is not positive by round
    /// `latest`, or if it can be served sooner there; updates the next key.
    fn relink(&mut self, accounts: &mut KeyAccounts, key: u32, latest: u64) {
        let from = self.positive_from(&accounts[key]);
        let sooner = match accounts[key].location {
            KeyLocation::DebtWheel => true,
            KeyLocation::Joining => from <= self.round && self.round < latest,
            _ => false,
        };
        if sooner || latest < from {
            self.unlink(accounts, key);
            self.link(accounts, key);
        }
        self.advance(accounts);
    }

    fn unlink(&mut self, accounts: &mut KeyAccounts, key: u32) {
        match accounts[key].location {
            KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked => {}
            KeyLocation::New => self.new_keys.remove(accounts, key),
            KeyLocation::Ring => self.ring.remove(accounts, key),
            KeyLocation::Joining if self.joining_next.head() == Some(key) => {
                self.joining_next.remove(accounts, key);
            }
            // Removing a key that is not the head changes only its neighbours, so `joining` can also remove it from
            // `joining_next`.
            KeyLocation::Joining => self.joining.remove(accounts, key),
            KeyLocation::DebtWheel => {
                if let Some(debt_wheel) = &mut self.debt_wheel {
                    debt_wheel.remove(accounts, key);
                }
            }
        }
    }

    /// Updates the next key; under `First`, opens the next round once this one has no key left to serve.
    fn advance(&mut self, accounts: &mut KeyAccounts) {
        self.next_key = self.find_next(accounts);
        if self.next_key.is_some() || self.new_key == NewKey::NextRound {
            return;
        }
        if !self.ring.is_empty() {
            self.open_round(accounts, self.round + 1);
        }
        self.skip_empty_rounds(accounts);
    }

    fn find_next(&self, accounts: &KeyAccounts) -> Option<u32> {
        if let Some(key) = self.new_keys.head() {
            return Some(key);
        }
        match (self.ring.cursor(), self.joining.head()) {
            (Some(ring), Some(joining)) if accounts[joining].label < accounts[ring].label => Some(joining),
            (Some(ring), _) => Some(ring),
            (None, joining) => joining,
        }
    }

    /// Opens rounds until a key can be served, skipping those in which every active key is in debt.
    fn skip_empty_rounds(&mut self, accounts: &mut KeyAccounts) {
        while self.next_key.is_none() {
            let event = self.debt_wheel.as_ref().and_then(|debt_wheel| debt_wheel.next_event(self.round));
            let round = if self.joining_next.is_empty() { event } else { Some(self.round + 1) };
            let Some(round) = round else { return };
            self.open_round(accounts, round);
        }
    }

    /// Opens a round: restarts the ring and adds the keys that join.
    fn open_round(&mut self, accounts: &mut KeyAccounts, round: u64) {
        self.round = round;
        self.ring.restart();
        self.joining.append(accounts, &mut self.joining_next);
        if let Some(debt_wheel) = self.debt_wheel.take() {
            self.merge_paid_off(accounts, debt_wheel);
        }
        self.next_key = self.find_next(accounts);
    }

    /// Adds the keys whose debt this round's grant pays off to the keys that join the round, in the order of their
    /// labels.
    fn merge_paid_off(&mut self, accounts: &mut KeyAccounts, mut debt_wheel: Box<DebtWheel>) {
        let mut keys = core::mem::take(&mut debt_wheel.scratch);
        while let Some(key) = debt_wheel.pop_reached(accounts, self.round) {
            let due = self.positive_from(&accounts[key]);
            if due <= self.round {
                keys.push(key);
            } else {
                debt_wheel.insert(accounts, key, due, self.round);
            }
        }
        if !keys.is_empty() {
            while let Some(key) = self.joining.head() {
                self.joining.remove(accounts, key);
                keys.push(key);
            }
            keys.sort_unstable_by_key(|&key| accounts[key].label);
            for key in keys.drain(..) {
                self.joining.push_back(accounts, key);
                accounts[key].location = KeyLocation::Joining;
            }
        }
        debt_wheel.scratch = keys;
        self.debt_wheel = Some(debt_wheel);
    }
}

#[cfg(test)]
impl DrrLevel {
    /// Panics unless every list is sorted by label and holds only keys that belong there.
    pub(super) fn check(&self, accounts: &KeyAccounts) {
        let labels =
            |keys: &[u32]| keys.iter().map(|&key| accounts[key].label).collect::<alloc::vec::Vec<_>>();
        let ring = self.ring.keys(accounts);
        let joining = self.joining.keys(accounts);
        let joining_next = self.joining_next.keys(accounts);
        for list in [&ring, &joining, &joining_next] {
            assert!(labels(list).is_sorted(), "list not sorted by label: {:?}", labels(list));
        }
        let unvisited = self.ring.cursor().map_or(0, |cursor| {
            ring.len() - ring.iter().position(|&key| key == cursor).expect("the cursor is in the ring")
        });
        let has_turn_coming = |key: &u32| self.positive_from(&accounts[*key]) <= self.round;
        assert!(
            ring[ring.len() - unvisited..].iter().all(has_turn_coming),
            "in the ring without a deficit to spend"
        );
        assert!(joining.iter().all(has_turn_coming), "joins the round without a deficit to spend");
        assert!(
            !joining_next.iter().any(has_turn_coming),
            "waits for the next round although it can be served in this one"
        );
        let next_round = |key: &u32| self.positive_from(&accounts[*key]) <= self.round + 1;
        assert!(
            ring.iter().chain(&joining_next).all(next_round),
            "in the ring with more than a round of debt"
        );
    }
}

fn is_active(location: KeyLocation) -> bool {
    !matches!(location, KeyLocation::Unknown | KeyLocation::Idle | KeyLocation::Parked)
}

/// Converts units to thousandths of a unit.
pub(super) fn milli(cost: Cost) -> i64 {
    // `Cost::MAX` in thousandths fits in an i64.
    cost.0.min(Cost::MAX.0) as i64 * MILLI
}

/// Converts thousandths to whole units, rounding up.
pub(super) fn units(milli: u64) -> Cost {
    Cost(milli.div_ceil(MILLI.unsigned_abs()))
}
