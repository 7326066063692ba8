//! Recovery: builds the queue state from the store.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_policy::weight::Weight;

use super::invisible::InvisibleState;
use super::key_queue::MessageEntry;
use super::{DeliveryCount, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::time::UnixMillis;

/// A key, with a summary of its stored messages.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredKey {
    pub key: KeyId,
    pub name: Arc<str>,
    pub rule: KeyRule,
    /// Weight requested by a message of the key.
    pub requested_weight: Option<Weight>,
    pub first: Seq,
    pub last: Seq,
    pub count: u64,
    pub bytes: u64,
    /// Messages that have a TTL.
    pub expiring: Vec<MessageMeta>,
}

/// A stored message with a delivery state; a ready message that was never delivered has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    pub key: KeyId,
    pub meta: MessageMeta,
    pub deliveries: DeliveryCount,
    pub first_delivered_at: Option<UnixMillis>,
    pub state: StoredState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredState {
    Leased {
        until: UnixMillis,
        /// Epoch of the owner that made the delivery.
        epoch: Epoch,
    },
    Delayed {
        until: UnixMillis,
    },
    /// To be redelivered.
    Ready,
}

impl StoredMessage {
    /// Moves the end of the lease or delay `duration` earlier.
    #[must_use]
    pub fn earlier_by(mut self, duration: Duration) -> Self {
        match &mut self.state {
            StoredState::Leased { until, .. } | StoredState::Delayed { until } => {
                *until = UnixMillis::default() + until.since(UnixMillis::default() + duration);
            }
            StoredState::Ready => {}
        }
        self
    }
}

impl QueueState {
    /// Adds a stored key with the delivery states of its messages.
    ///
    /// The rules of the key and of its tenant must be set first.
    pub fn resume(
        &mut self,
        now: UnixMillis,
        stored: &StoredKey,
        states: &[StoredMessage],
    ) -> Result<(), Rejection> {
        self.now = now;
        if stored.count == 0 {
            return Ok(());
        }
        self.last_seq = self.last_seq.max(stored.last);
        let index = self.schedule.intern(stored.key, &stored.name)?;
        if let Some(weight) = stored.requested_weight.filter(|_| stored.rule.weight.is_none()) {
            self.schedule.set_key_weight(index, weight);
        }
        let skip: BTreeSet<Seq> = states.iter().map(|state| state.meta.seq).collect();
        self.schedule.pending += stored.count - skip.len() as u64;
        self.bytes += stored.bytes;
        self.schedule.key_mut(index).restore(stored.first, stored.count, stored.bytes, skip);
        for meta in &stored.expiring {
            self.expiry.insert(index, meta);
        }
        for message in states {
            let StoredMessage { meta, deliveries, first_delivered_at, .. } = *message;
            let entry = MessageEntry { deliveries, first_delivered_at, ..MessageEntry::new(meta) };
            match message.state {
                StoredState::Leased { until, epoch } => {
                    self.hide(index, entry, InvisibleState::Leased { until, epoch });
                }
                StoredState::Delayed { until } => self.hide(index, entry, InvisibleState::Delayed { until }),
                StoredState::Ready => self.schedule.requeue(index, entry),
            }
        }
        self.update_schedule(index);
        Ok(())
    }
}
