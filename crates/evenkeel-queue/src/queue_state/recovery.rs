//! A book from what was written down.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_policy::weight::Weight;

use super::key_queue::MessageEntry;
use super::{DeliveryCount, InvisibleState, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;
use crate::rejection::Rejection;
use crate::rule::KeyRule;
use crate::time::UnixMillis;

/// A key, and what of it is in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredKey {
    /// The key.
    pub key: KeyId,
    /// What it is called.
    pub name: Arc<str>,
    /// What was set for it.
    pub rule: KeyRule,
    /// The weight its messages wished for.
    pub wished_weight: Option<Weight>,
    /// Its first message.
    pub first: Seq,
    /// Its last message.
    pub last: Seq,
    /// How many messages it has.
    pub count: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// Those of them that have a time of their own.
    pub expiring: Vec<MessageMeta>,
}

/// A message that is not simply waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its key.
    pub key: KeyId,
    /// What is known of it.
    pub header: MessageMeta,
    /// How often it was delivered.
    pub delivered: DeliveryCount,
    /// When it was first delivered.
    pub first_delivered_at: Option<UnixMillis>,
    /// What it is.
    pub standing: StoredState,
}

/// What a message that is not simply waiting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredState {
    /// In a consumer's hands.
    Leased {
        /// Until then.
        until: UnixMillis,
        /// By which owner of the queue.
        epoch: Epoch,
    },
    /// Not to be delivered before then.
    Delayed {
        /// Then.
        until: UnixMillis,
    },
    /// To be delivered again.
    Ready,
}

impl StoredMessage {
    /// The same, with what it lasts until so much sooner.
    #[must_use]
    pub fn sooner(mut self, span: Duration) -> Self {
        match &mut self.standing {
            StoredState::Leased { until, .. } | StoredState::Delayed { until } => {
                *until = UnixMillis::default() + until.since(UnixMillis::default() + span);
            }
            StoredState::Ready => {}
        }
        self
    }
}

impl QueueState {
    /// Takes in a key as the store has it, with those of its messages that are not simply waiting.
    ///
    /// What was set for it, and for its tenant, must be known already.
    pub fn resume(
        &mut self,
        now: UnixMillis,
        kept: &StoredKey,
        states: &[StoredMessage],
    ) -> Result<(), Rejection> {
        self.now = now;
        if kept.count == 0 {
            return Ok(());
        }
        self.told = self.told.max(kept.last);
        let at = self.lane_of(kept.key, &kept.name)?;
        if let Some(weight) = kept.wished_weight.filter(|_| kept.rule.weight.is_none()) {
            self.weigh(at, weight);
        }
        let ahead: BTreeSet<Seq> = states.iter().map(|state| state.header.seq).collect();
        self.totals.pending += kept.count - ahead.len() as u64;
        self.totals.bytes += kept.bytes;
        self.at(at).resume(kept.first, kept.count, kept.bytes, ahead);
        for header in &kept.expiring {
            self.ends.list(at, header);
        }
        for state in states {
            let StoredMessage { header, delivered, first_delivered_at, .. } = *state;
            let handle = MessageEntry { delivered, first_delivered_at, ..MessageEntry::new(header) };
            match state.standing {
                StoredState::Leased { until, epoch } => {
                    self.hide(at, handle, InvisibleState::Leased { until, epoch })
                }
                StoredState::Delayed { until } => self.hide(at, handle, InvisibleState::Delayed { until }),
                StoredState::Ready => {
                    self.totals.pending += 1;
                    self.at(at).requeue(handle);
                }
            }
        }
        self.update_schedule(at);
        Ok(())
    }
}
