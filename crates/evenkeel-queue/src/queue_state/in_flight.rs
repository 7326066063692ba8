//! Messages that are not ready: in flight (leased), delayed, or being removed.
//!
//! Invariants: a message is here or in its key's queue, never in both; `due` holds exactly the leases, delays and
//! delete retries of `messages`; the counts match the states.

use std::collections::{BTreeSet, HashMap};

use evenkeel_policy::id::Key;

use super::key_queue::MessageEntry;
use crate::id::{Epoch, Seq};
use crate::receipt::DeliveryId;
use crate::time::UnixMillis;

/// The invisible messages of a queue, by sequence number and by when their state ends.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    messages: HashMap<Seq, InvisibleMessage>,
    due: BTreeSet<(UnixMillis, Seq)>,
    leased: u64,
    delayed: u64,
    expired: usize,
}

/// A message that is not ready for delivery.
#[derive(Debug)]
pub(super) struct InvisibleMessage {
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
    /// Reports whether the message counts against limits and blocks later ones of a FIFO key.
    ///
    /// An expired message does neither: it is never delivered again.
    pub(super) const fn is_unsettled(self) -> bool {
        matches!(self, Self::Leased { .. } | Self::Acking { .. } | Self::Moving)
    }

    const fn due(self) -> Option<UnixMillis> {
        match self {
            Self::Leased { until, .. } | Self::Delayed { until } => Some(until),
            Self::Expired { retry_at } => retry_at,
            Self::Acking { .. } | Self::Moving => None,
        }
    }
}

/// State of a message before its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorState {
    Leased { until: UnixMillis, epoch: Epoch },
    Delayed { until: UnixMillis },
    Ready,
}

impl InvisibleMessage {
    /// Reports whether `delivery` names this delivery, made by the owner `epoch`.
    pub(super) fn matches(&self, delivery: DeliveryId, epoch: Epoch) -> bool {
        self.entry.deliveries.number() == delivery.attempt && epoch == delivery.epoch
    }
}

impl InFlight {
    pub(super) fn insert(&mut self, message: InvisibleMessage) {
        let seq = message.entry.meta.seq;
        self.due.extend(message.state.due().map(|due| (due, seq)));
        match message.state {
            InvisibleState::Leased { .. } => self.leased += 1,
            InvisibleState::Delayed { .. } => self.delayed += 1,
            InvisibleState::Expired { .. } => self.expired += 1,
            InvisibleState::Acking { .. } | InvisibleState::Moving => {}
        }
        self.messages.insert(seq, message);
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<InvisibleMessage> {
        let message = self.messages.remove(&seq)?;
        if let Some(due) = message.state.due() {
            self.due.remove(&(due, seq));
        }
        match message.state {
            InvisibleState::Leased { .. } => self.leased -= 1,
            InvisibleState::Delayed { .. } => self.delayed -= 1,
            InvisibleState::Expired { .. } => self.expired -= 1,
            InvisibleState::Acking { .. } | InvisibleState::Moving => {}
        }
        Some(message)
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

    /// Returns the first message whose lease, delay or retry time has passed.
    pub(super) fn first_due(&self, now: UnixMillis) -> Option<Seq> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, seq)| *seq)
    }

    /// Returns when the next lease, delay or retry time passes.
    pub(super) fn next_due(&self) -> Option<UnixMillis> {
        self.due.first().map(|(due, _)| *due)
    }

    pub(super) fn leased(&self) -> u64 {
        self.leased
    }

    pub(super) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// Returns how many messages are expired and not deleted yet.
    pub(super) fn expired(&self) -> usize {
        self.expired
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Checks the invariants in the module header.
    pub(super) fn audit(&self) -> Result<(), String> {
        let due: BTreeSet<(UnixMillis, Seq)> =
            self.messages.iter().filter_map(|(&seq, message)| Some((message.state.due()?, seq))).collect();
        if due != self.due {
            return Err(format!("due is {:?}, the messages say {due:?}", self.due));
        }
        let count = |is_counted: fn(&InvisibleState) -> bool| {
            self.messages.values().filter(|message| is_counted(&message.state)).count()
        };
        let counts = [
            count(|state| matches!(state, InvisibleState::Leased { .. })),
            count(|state| matches!(state, InvisibleState::Delayed { .. })),
            count(|state| matches!(state, InvisibleState::Expired { .. })),
        ];
        let counters = [self.leased as usize, self.delayed as usize, self.expired];
        if counts == counters {
            Ok(())
        } else {
            Err(format!("counters are {counters:?}, counted {counts:?}"))
        }
    }
}
