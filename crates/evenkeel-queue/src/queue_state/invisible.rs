//! Invisible messages: in flight (leased), delayed, exhausted (waiting for the move to the dead-letter queue), or being
//! removed.
//!
//! Invariants: a message is here or in its key's queue, never in both; `due` holds exactly the leases, delays, pending
//! moves and delete retries of `messages`; the counters match the states.

use std::collections::{BTreeSet, HashMap};

use evenkeel_policy::id::Key;

use super::key_queue::MessageEntry;
use crate::id::{Epoch, Seq};
use crate::receipt::DeliveryId;
use crate::time::UnixMillis;

/// Number of messages for which memory is kept.
const KEPT_MAX: usize = 1_024;

/// The invisible messages of a queue, indexed by sequence number and by due time.
#[derive(Debug, Default)]
pub(super) struct InvisibleMessages {
    messages: HashMap<Seq, InvisibleMessage>,
    /// Maximum length of `messages` since its memory was last returned.
    len_max: usize,
    due: BTreeSet<(UnixMillis, Seq)>,
    leased_count: u64,
    delayed_count: u64,
    expired_count: usize,
    /// Exhausted messages, which the next receive moves to the dead-letter queue.
    exhausted: BTreeSet<Seq>,
}

/// A message that is not ready for delivery.
#[derive(Debug)]
pub(super) struct InvisibleMessage {
    /// Index of the message's key in the key table.
    pub(super) index: Key,
    pub(super) entry: MessageEntry,
    pub(super) state: InvisibleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InvisibleState {
    Leased {
        until: UnixMillis,
        epoch: Epoch,
    },
    Delayed {
        until: UnixMillis,
    },
    /// The lease of the last allowed delivery ended; the message moves to the dead-letter queue at the next receive, at
    /// the latest at `move_at`.
    Exhausted {
        move_at: UnixMillis,
    },
    /// Acknowledged; the delete is not confirmed yet.
    Acking {
        prior: PriorState,
    },
    /// Moving to another queue; the write is not confirmed yet.
    Moving,
    /// Expired; the delete is not confirmed yet, or failed and is due again.
    Expired {
        retry_at: Option<UnixMillis>,
    },
}

impl InvisibleState {
    /// Reports whether the message counts against the concurrency limits of its key and tenant.
    pub(super) const fn is_outstanding(self) -> bool {
        matches!(self, Self::Leased { .. } | Self::Acking { .. } | Self::Moving)
    }

    /// Reports whether the message blocks later messages of its FIFO key; an expired one is never delivered again.
    pub(super) const fn is_unfinished(self) -> bool {
        !matches!(self, Self::Expired { .. })
    }

    /// Reports whether the message may be deleted by its TTL: nobody has leased it, and it is not being removed.
    pub(super) const fn has_ttl_in_force(self) -> bool {
        matches!(self, Self::Delayed { .. } | Self::Exhausted { .. })
    }

    /// Returns the state to restore if an acknowledgement is not stored; `None` if the message cannot be acknowledged.
    pub(super) const fn prior(self) -> Option<PriorState> {
        match self {
            Self::Leased { until, epoch } => Some(PriorState::Leased { until, epoch }),
            Self::Delayed { until } => Some(PriorState::Delayed { until }),
            Self::Exhausted { move_at } => Some(PriorState::Exhausted { move_at }),
            Self::Acking { .. } | Self::Moving | Self::Expired { .. } => None,
        }
    }

    const fn due(self) -> Option<UnixMillis> {
        match self {
            Self::Leased { until, .. } | Self::Delayed { until } | Self::Exhausted { move_at: until } => {
                Some(until)
            }
            Self::Expired { retry_at } => retry_at,
            Self::Acking { .. } | Self::Moving => None,
        }
    }
}

/// Numbers of a key's invisible messages, by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvisibleCounts {
    pub(super) in_flight: u64,
    pub(super) delayed: u64,
    /// Waiting for the move to the dead-letter queue.
    pub(super) exhausted: u64,
    /// Being acknowledged or moved.
    pub(super) removing: u64,
    /// Expired, with the delete not yet confirmed.
    pub(super) expiring: u64,
}

impl InvisibleCounts {
    pub(super) const NONE: Self = Self { in_flight: 0, delayed: 0, exhausted: 0, removing: 0, expiring: 0 };

    /// Returns the number of messages in this state.
    pub(super) fn of_mut(&mut self, state: InvisibleState) -> &mut u64 {
        match state {
            InvisibleState::Leased { .. } => &mut self.in_flight,
            InvisibleState::Delayed { .. } => &mut self.delayed,
            InvisibleState::Exhausted { .. } => &mut self.exhausted,
            InvisibleState::Acking { .. } | InvisibleState::Moving => &mut self.removing,
            InvisibleState::Expired { .. } => &mut self.expiring,
        }
    }
}

/// State of a message before its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorState {
    Leased { until: UnixMillis, epoch: Epoch },
    Delayed { until: UnixMillis },
    Exhausted { move_at: UnixMillis },
    Ready,
}

impl InvisibleMessage {
    /// Reports whether `delivery` is the message's current delivery, made in owner epoch `epoch`.
    pub(super) fn matches(&self, delivery: DeliveryId, epoch: Epoch) -> bool {
        self.entry.deliveries.number() == delivery.attempt && delivery.epoch == epoch
    }
}

impl InvisibleMessages {
    pub(super) fn insert(&mut self, message: InvisibleMessage) {
        let seq = message.entry.meta.seq;
        self.due.extend(message.state.due().map(|due| (due, seq)));
        match message.state {
            InvisibleState::Leased { .. } => self.leased_count += 1,
            InvisibleState::Delayed { .. } => self.delayed_count += 1,
            InvisibleState::Expired { .. } => self.expired_count += 1,
            InvisibleState::Exhausted { .. } => drop(self.exhausted.insert(seq)),
            InvisibleState::Acking { .. } | InvisibleState::Moving => {}
        }
        self.messages.insert(seq, message);
        self.len_max = self.len_max.max(self.messages.len());
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<InvisibleMessage> {
        let message = self.messages.remove(&seq)?;
        if let Some(due) = message.state.due() {
            self.due.remove(&(due, seq));
        }
        match message.state {
            InvisibleState::Leased { .. } => self.leased_count -= 1,
            InvisibleState::Delayed { .. } => self.delayed_count -= 1,
            InvisibleState::Expired { .. } => self.expired_count -= 1,
            InvisibleState::Exhausted { .. } => drop(self.exhausted.remove(&seq)),
            InvisibleState::Acking { .. } | InvisibleState::Moving => {}
        }
        self.shrink();
        Some(message)
    }

    /// Returns the memory of past messages once few are left.
    fn shrink(&mut self) {
        let len = self.messages.len();
        // The map's capacity is no measure: it does not count the slots of removed entries.
        if KEPT_MAX < self.len_max && len < self.len_max / 8 {
            self.messages.shrink_to(KEPT_MAX.max(2 * len));
            self.len_max = len;
        }
    }

    pub(super) fn get(&self, seq: Seq) -> Option<&InvisibleMessage> {
        self.messages.get(&seq)
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        self.messages.contains_key(&seq)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &InvisibleMessage> {
        self.messages.values()
    }

    /// Returns the message whose lease, delay, move or retry is due first, if any is due.
    pub(super) fn due_message(&self, now: UnixMillis) -> Option<Seq> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, seq)| *seq)
    }

    /// Returns when the next lease, delay, move or retry is due.
    pub(super) fn next_due_at(&self) -> Option<UnixMillis> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(super) fn leased_count(&self) -> u64 {
        self.leased_count
    }

    pub(super) fn delayed_count(&self) -> u64 {
        self.delayed_count
    }

    /// Returns the number of expired messages that are not deleted yet.
    pub(super) fn expired_count(&self) -> usize {
        self.expired_count
    }

    pub(super) fn exhausted_count(&self) -> u64 {
        self.exhausted.len() as u64
    }

    pub(super) fn first_exhausted(&self) -> Option<Seq> {
        self.exhausted.first().copied()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Checks `due` and the counters against `messages`.
    pub(super) fn audit(&self) -> Result<(), String> {
        let due: BTreeSet<(UnixMillis, Seq)> =
            self.messages.iter().filter_map(|(&seq, message)| Some((message.state.due()?, seq))).collect();
        if due != self.due {
            return Err(format!("due is {:?}, expected {due:?} from the messages", self.due));
        }
        let is_exhausted =
            |message: &InvisibleMessage| matches!(message.state, InvisibleState::Exhausted { .. });
        let exhausted = self.messages.iter().filter(|(_, message)| is_exhausted(message));
        let exhausted: BTreeSet<Seq> = exhausted.map(|(&seq, _)| seq).collect();
        if exhausted != self.exhausted {
            return Err(format!(
                "exhausted is {:?}, expected {exhausted:?} from the messages",
                self.exhausted
            ));
        }
        let count = |is_counted: fn(&InvisibleState) -> bool| {
            self.messages.values().filter(|message| is_counted(&message.state)).count()
        };
        let counts = [
            count(|state| matches!(state, InvisibleState::Leased { .. })),
            count(|state| matches!(state, InvisibleState::Delayed { .. })),
            count(|state| matches!(state, InvisibleState::Expired { .. })),
        ];
        let counters = [self.leased_count as usize, self.delayed_count as usize, self.expired_count];
        if counts == counters {
            Ok(())
        } else {
            Err(format!("counters are {counters:?}, counted {counts:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageMeta;
    use evenkeel_policy::cost::Cost;

    #[test]
    fn the_memory_of_many_past_messages_is_returned() {
        let mut messages = InvisibleMessages::default();
        for seq in (0..100_000).map(Seq) {
            let sent_at = UnixMillis(1);
            let meta = MessageMeta { seq, sent_at, size: 1, cost: Cost(1), from: None, expires_at: None };
            let state = InvisibleState::Delayed { until: UnixMillis(2) };
            messages.insert(InvisibleMessage { index: Key(0), entry: MessageEntry::new(meta), state });
        }
        (0..99_999).for_each(|seq| assert!(messages.remove(Seq(seq)).is_some()));
        assert!(messages.contains(Seq(99_999)) && messages.audit() == Ok(()));
        let capacity = messages.messages.capacity();
        assert!(capacity <= 2 * KEPT_MAX, "{capacity} slots are kept for one message");
    }
}
