//! Statistics of a queue and its keys, and the explanation of a message's state.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::KeyStatus;
use evenkeel_policy::estimate::{DecayingHistogram, Quantile};
use evenkeel_policy::weight::Weight;

use super::invisible::{InvisibleCounts, InvisibleState};
use super::{QueueState, Throttle};
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::MessageMeta;
use crate::rule::KeyRule;
use crate::time::{TimeUntil, UnixMillis};

/// Contents of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Ready and exhausted messages.
    pub pending: u64,
    pub in_flight: u64,
    pub delayed: u64,
    /// Bytes of all of these.
    pub bytes: u64,
    /// Messages deleted so far by TTL or retention.
    pub expired: u64,
    /// Messages with a TTL that are neither in flight nor being removed; messages being written count in any case.
    pub with_ttl: u64,
}

/// Contents and counters of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyStats {
    pub name: Arc<str>,
    /// The weight in force.
    pub weight: Weight,
    pub pending: u64,
    pub in_flight: u64,
    pub delayed: u64,
    /// Send time of the oldest ready message, among those in memory.
    pub oldest_sent_at: Option<UnixMillis>,
    /// The key's rule; for a key without `/` it is its tenant's.
    pub rule: KeyRule,
    /// Throttle in force, with or without ready messages.
    pub throttled: Option<Throttle>,
    /// Overdrawn deficit.
    pub debt: Cost,
    pub delivered: u64,
    /// Deliveries after the first of a message.
    pub redelivered: u64,
    /// Wait times until the first delivery; `None` before the key's first delivery.
    pub waits: Option<WaitPercentiles>,
}

/// Contents of a queue, and counters since its actor started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueStats {
    pub totals: QueueTotals,
    /// Keys with messages, or that had some within the last minute.
    pub keys: u64,
    pub delivered: u64,
    /// Deliveries after the first of a message.
    pub redelivered: u64,
    /// Wait times until the first delivery; `None` before the first delivery.
    pub waits: Option<WaitPercentiles>,
}

/// Wait times until the first delivery; each exceeds the exact quantile by at most half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPercentiles {
    pub p50: Duration,
    pub p99: Duration,
}

impl WaitPercentiles {
    fn read(waits: &DecayingHistogram) -> Option<Self> {
        Some(Self { p50: waits.quantile(Quantile::P50)?, p99: waits.quantile(Quantile::P99)? })
    }
}

/// Deliveries since the state was created.
#[derive(Debug, Default)]
pub(super) struct DeliveryStats {
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    pub(super) waits: DecayingHistogram,
}

/// State of a message, with the reason why it is not delivered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    InFlight {
        attempt: u32,
        until: UnixMillis,
        /// End of the TTL; after it the message is not redelivered.
        expires_at: Option<UnixMillis>,
    },
    Delayed {
        attempts: u32,
        until: UnixMillis,
        expires_at: Option<UnixMillis>,
    },
    /// Its last allowed delivery ended; the next receive moves it to the dead-letter queue.
    Exhausted {
        attempts: u32,
        /// Time of the move if nobody receives before.
        move_at: UnixMillis,
        expires_at: Option<UnixMillis>,
    },
    /// Its delete, or its move to another queue, is being stored.
    Leaving,
    Waiting {
        /// Messages of the same key that come first, at least.
        before: u64,
        /// State of the key among its tenant's keys.
        key: KeyStatus,
        /// State of the tenant among the tenants.
        tenant: KeyStatus,
        throttled: Option<Throttle>,
        /// End of the TTL, if the message is in memory.
        expires_at: Option<UnixMillis>,
    },
    /// Acknowledged, expired, or never sent.
    Unknown,
}

impl Explanation {
    /// Returns when the message's TTL ends, if it has one and is in memory.
    pub const fn expires_at(&self) -> Option<UnixMillis> {
        match self {
            Self::InFlight { expires_at, .. }
            | Self::Delayed { expires_at, .. }
            | Self::Exhausted { expires_at, .. }
            | Self::Waiting { expires_at, .. } => *expires_at,
            Self::Leaving | Self::Unknown => None,
        }
    }

    /// Describes the state in a sentence, with times relative to `now`.
    pub const fn describe(&self, now: UnixMillis) -> ExplanationDisplay<'_> {
        ExplanationDisplay { explanation: self, now }
    }
}

/// An [`Explanation`] as text.
#[derive(Clone, Copy, Debug)]
pub struct ExplanationDisplay<'a> {
    explanation: &'a Explanation,
    now: UnixMillis,
}

impl fmt::Display for ExplanationDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.now;
        let in_time = |at| TimeUntil { at, now };
        match *self.explanation {
            Explanation::InFlight { attempt, until, .. } => {
                write!(f, "in flight: delivered {}, lease ends {}", Times(attempt), in_time(until))?;
            }
            Explanation::Delayed { attempts: 0, until, .. } => {
                write!(f, "delayed: first delivery {}", in_time(until))?;
            }
            Explanation::Delayed { attempts, until, .. } => {
                write!(f, "delayed: delivered {}, next delivery {}", Times(attempts), in_time(until))?;
            }
            Explanation::Exhausted { attempts, move_at, .. } => {
                let times = Times(attempts);
                write!(f, "exhausted: delivered {times}, moves to the dead-letter queue ")?;
                write!(f, "at the next receive or {}", in_time(move_at))?;
            }
            Explanation::Leaving => f.write_str("being removed: the write is not confirmed yet")?,
            Explanation::Waiting { before, throttled: Some(throttle), .. } => {
                write_position(f, before)?;
                throttle.describe(f, now)?;
            }
            Explanation::Waiting { before, key, tenant, throttled: None, .. } => {
                write_position(f, before)?;
                write!(f, "its tenant {}, its key within the tenant {}", Turn(tenant), Turn(key))?;
            }
            Explanation::Unknown => f.write_str("not in the queue: acknowledged, expired, or never sent")?,
        }
        match self.explanation.expires_at() {
            Some(at) => write!(f, "; expires {}", in_time(at)),
            None => Ok(()),
        }
    }
}

fn write_position(f: &mut fmt::Formatter<'_>, before: u64) -> fmt::Result {
    match before {
        1 => f.write_str("waiting: 1 message of its key comes first; "),
        before => write!(f, "waiting: {before} messages of its key come first; "),
    }
}

/// A number of occurrences: once, twice, 3 times.
struct Times(u32);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("once"),
            2 => f.write_str("twice"),
            times => write!(f, "{times} times"),
        }
    }
}

/// A key's or tenant's scheduling state, as a verb phrase.
struct Turn(KeyStatus);

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            KeyStatus::Idle => f.write_str("has no ready message"),
            KeyStatus::Parked => f.write_str("waits for a read from disk"),
            KeyStatus::Next => f.write_str("is next"),
            KeyStatus::Prioritized => f.write_str("has new-key priority"),
            KeyStatus::InRing => f.write_str("waits for its turn"),
            KeyStatus::InDebt { rounds: 1 } => f.write_str("pays off its debt for 1 round"),
            KeyStatus::InDebt { rounds } => write!(f, "pays off its debt for {rounds} rounds"),
        }
    }
}

impl QueueState {
    pub fn totals(&self) -> QueueTotals {
        QueueTotals {
            pending: self.schedule.pending + self.invisible.exhausted_count(),
            in_flight: self.invisible.leased_count(),
            delayed: self.invisible.delayed_count(),
            bytes: self.bytes,
            expired: self.expiry.total,
            with_ttl: self.expiry.with_ttl(),
        }
    }

    /// Returns the statistics of at most `max` keys, after the first `skip`.
    pub fn key_stats(&self, skip: usize, max: usize) -> Vec<KeyStats> {
        let keys = self.schedule.keys.iter().skip(skip).take(max);
        keys.map(|(index, queue)| {
            let InvisibleCounts { in_flight, delayed, exhausted, .. } = queue.invisible();
            KeyStats {
                name: queue.name.clone(),
                weight: queue.weight,
                pending: queue.pending() + exhausted,
                in_flight,
                delayed,
                oldest_sent_at: queue.ready().map(|entry| entry.meta.sent_at).next(),
                rule: self.rule(&queue.name),
                throttled: self.schedule.throttle(index, self.now),
                // The debt of a tenant's only key is recorded on the tenant.
                debt: self.schedule.drr.debt(index).max(self.schedule.drr.tenant_debt(queue.tenant)),
                delivered: queue.delivered,
                redelivered: queue.redelivered,
                waits: queue.waits.as_deref().and_then(WaitPercentiles::read),
            }
        })
        .collect()
    }

    pub fn stats(&self) -> QueueStats {
        QueueStats {
            totals: self.totals(),
            keys: self.schedule.keys.len() as u64,
            delivered: self.stats.delivered,
            redelivered: self.stats.redelivered,
            waits: WaitPercentiles::read(&self.stats.waits),
        }
    }

    /// Returns the next messages of each key without delivering them, at most `max`.
    pub fn peek(&self, max: usize) -> Vec<(KeyId, Arc<str>, MessageMeta)> {
        let keys = self.schedule.keys.iter();
        let ready = keys
            .flat_map(|(_, queue)| queue.ready().map(|entry| (queue.key, queue.name.clone(), entry.meta)));
        ready.filter(|(.., meta)| !self.is_expired(meta)).take(max).collect()
    }

    /// Explains the state of a message; a message that was moved here is found only while it is in memory.
    pub fn explain(&self, id: MessageId, here: QueueId) -> Explanation {
        let sent_here = if id.queue == here { self.explain_at(id.key, id.seq) } else { Explanation::Unknown };
        match sent_here {
            Explanation::Unknown => {
                self.find_moved(id).map_or(Explanation::Unknown, |(key, seq)| self.explain_at(key, seq))
            }
            known => known,
        }
    }

    fn find_moved(&self, id: MessageId) -> Option<(KeyId, Seq)> {
        let is_it = |meta: &MessageMeta| meta.from.is_some_and(|from| from.id == id);
        let invisible = self.invisible.iter().find(|message| is_it(&message.entry.meta));
        let invisible =
            invisible.map(|message| (self.schedule.key(message.index).key, message.entry.meta.seq));
        invisible.or_else(|| {
            self.schedule.keys.iter().find_map(|(_, queue)| {
                let entry = queue.ready().find(|entry| is_it(&entry.meta))?;
                Some((queue.key, entry.meta.seq))
            })
        })
    }

    fn explain_at(&self, key: KeyId, seq: Seq) -> Explanation {
        if let Some(message) = self.invisible.get(seq) {
            let attempts = message.entry.deliveries.attempts;
            let expires_at = message.entry.meta.expires_at;
            return match message.state {
                InvisibleState::Leased { until, .. } => {
                    Explanation::InFlight { attempt: attempts, until, expires_at }
                }
                InvisibleState::Delayed { until } => Explanation::Delayed { attempts, until, expires_at },
                InvisibleState::Exhausted { move_at } => {
                    Explanation::Exhausted { attempts, move_at, expires_at }
                }
                InvisibleState::Acking { .. } | InvisibleState::Moving | InvisibleState::Expired { .. } => {
                    Explanation::Leaving
                }
            };
        }
        let Some(index) = self.schedule.keys.find(key) else { return Explanation::Unknown };
        let queue = self.schedule.key(index);
        let before = match queue.position(seq) {
            Some(before) => before,
            None if queue.cursor() < seq && queue.on_disk_len() > 0 => queue.in_memory(),
            None => return Explanation::Unknown,
        };
        let expires_at = queue.ready().find(|entry| entry.meta.seq == seq);
        let expires_at = expires_at.and_then(|entry| entry.meta.expires_at);
        Explanation::Waiting {
            before,
            key: self.schedule.key_status(index),
            tenant: self.schedule.drr.tenant_status(queue.tenant),
            throttled: self.schedule.throttle(index, self.now),
            expires_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_counts_deliveries_and_gives_times_from_now() {
        let now = UnixMillis(1_794_857_847_000);
        let until = UnixMillis(1_794_857_876_477);
        let described = |explanation: Explanation| explanation.describe(now).to_string();
        let in_flight = |attempt| described(Explanation::InFlight { attempt, until, expires_at: None });
        assert_eq!(in_flight(1), "in flight: delivered once, lease ends in 29 s (19:37:56 UTC)");
        assert_eq!(in_flight(2), "in flight: delivered twice, lease ends in 29 s (19:37:56 UTC)");
        assert_eq!(in_flight(3), "in flight: delivered 3 times, lease ends in 29 s (19:37:56 UTC)");
        let delayed = Explanation::Delayed { attempts: 0, until, expires_at: Some(until) };
        let text = "delayed: first delivery in 29 s (19:37:56 UTC); expires in 29 s (19:37:56 UTC)";
        assert_eq!(described(delayed), text);
        let exhausted = Explanation::Exhausted { attempts: 2, move_at: until, expires_at: None };
        let text = "exhausted: delivered twice, moves to the dead-letter queue at the next receive or in 29 s (19:37:56 UTC)";
        assert_eq!(described(exhausted), text);
    }
}
