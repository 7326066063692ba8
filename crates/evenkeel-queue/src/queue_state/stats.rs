//! What a queue tells about itself, and why a message waits.

use core::fmt;
use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::KeyStatus as Turn;
use evenkeel_policy::id::Key;
use evenkeel_policy::weight::Weight;

use super::wait_histogram::{WaitHistogram, WaitPercentiles};
use super::{InvisibleState, QueueState, Throttle};
use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::message::MessageMeta;
use crate::rule::KeyRule;
use crate::time::UnixMillis;

/// What a queue holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Messages that wait for their turn.
    pub pending: u64,
    /// Messages in consumers' hands.
    pub in_flight: u64,
    /// Messages that are not to be delivered yet.
    pub delayed: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Messages that were removed because their time was over: their own, or that for which the queue keeps any.
    pub expired: u64,
    /// Messages with a time of their own that wait or are delayed; of what is on its way into the book, everything.
    pub timed: u64,
}

/// What one key holds.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyStats {
    /// What it is called.
    pub name: Arc<str>,
    /// The weight in force.
    pub weight: Weight,
    /// Messages that wait for their turn.
    pub pending: u64,
    /// Messages in consumers' hands.
    pub in_flight: u64,
    /// Messages that are not to be delivered yet.
    pub delayed: u64,
    /// When the oldest message that waits was sent, as far as memory knows.
    pub oldest_sent_at: Option<UnixMillis>,
    /// What was set for it; for a key without `/` that is its tenant's.
    pub rule: KeyRule,
    /// What holds it back, with or without messages that wait.
    pub held: Option<Throttle>,
    /// What it has overdrawn.
    pub debt: Cost,
    /// Deliveries so far.
    pub delivered: u64,
    /// Of these, second and later ones of a message.
    pub redelivered: u64,
    /// How long messages that were sent to it waited; `None` before its first delivery.
    pub waits: Option<WaitPercentiles>,
}

/// What a queue holds, and how it has delivered since its keeper took it on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueStats {
    /// What it holds.
    pub totals: QueueTotals,
    /// Keys with messages, or that had some until a moment ago.
    pub keys: u64,
    /// Deliveries so far.
    pub delivered: u64,
    /// Of these, second and later ones of a message.
    pub redelivered: u64,
    /// How long messages that were sent to it waited; `None` before its first delivery.
    pub waits: Option<WaitPercentiles>,
}

/// Why a message is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// A consumer has it.
    InFlight {
        /// Which delivery.
        attempt: u32,
        /// Until then.
        until: UnixMillis,
        /// When its own time is over; once it is, it does not come back.
        expires_at: Option<UnixMillis>,
    },
    /// It is not to be delivered yet.
    Delayed {
        /// How often it was delivered.
        attempts: u32,
        /// Not before then.
        until: UnixMillis,
        /// When its own time is over.
        expires_at: Option<UnixMillis>,
    },
    /// Its acknowledgement, its move to the dead-letter queue, or that its time is over is being written down.
    Leaving,
    /// It waits for its turn.
    Waiting {
        /// So many of its key come before it, at least.
        before: u64,
        /// How its key stands among its tenant's keys.
        key: Turn,
        /// How its tenant stands among the tenants.
        tenant: Turn,
        /// What holds its key or its tenant back.
        held: Option<Throttle>,
        /// When its own time is over, if it is in memory.
        expires_at: Option<UnixMillis>,
    },
    /// Nobody knows it: acknowledged, expired, or never sent.
    Unknown,
}

impl Explanation {
    /// When the message's own time is over, if it has one and is in memory.
    pub const fn expires_at(&self) -> Option<UnixMillis> {
        match self {
            Self::InFlight { expires_at, .. }
            | Self::Delayed { expires_at, .. }
            | Self::Waiting { expires_at, .. } => *expires_at,
            Self::Leaving | Self::Unknown => None,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { attempt, until, .. } => {
                write!(f, "delivered for the {attempt}. time; its lease ends at {until}")?;
            }
            Self::Delayed { attempts: 0, until, .. } => write!(f, "sent with a delay; due at {until}")?,
            Self::Delayed { attempts, until, .. } => {
                write!(f, "given back after {attempts} deliveries; due at {until}")?;
            }
            Self::Leaving => f.write_str("leaving the queue: this is being written down")?,
            Self::Waiting { before, held: Some(held), .. } => {
                write!(f, "{before} messages of its key come first; {held}")?;
            }
            Self::Waiting { before, key, tenant, held: None, .. } => {
                write!(f, "{before} messages of its key come first; its tenant {}", TurnDisplay(*tenant))?;
                write!(f, ", its key within the tenant {}", TurnDisplay(*key))?;
            }
            Self::Unknown => f.write_str("not in the queue: acknowledged, expired, or never sent")?,
        }
        match self.expires_at() {
            Some(at) => write!(f, "; it expires at {at}"),
            None => Ok(()),
        }
    }
}

struct TurnDisplay(Turn);

impl fmt::Display for TurnDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Turn::Idle => f.write_str("has nothing to serve"),
            Turn::Parked => f.write_str("waits for the store"),
            Turn::Next => f.write_str("is in turn"),
            Turn::Prioritized => f.write_str("goes first"),
            Turn::InRing => f.write_str("waits its turn in the ring"),
            Turn::InDebt { rounds } => write!(f, "pays off earlier work for {rounds} rounds"),
        }
    }
}

impl QueueState {
    /// Tells what the queue holds.
    pub fn totals(&self) -> QueueTotals {
        QueueTotals { timed: self.ends.timed(), ..self.totals }
    }

    /// Tells what each key holds, from the `skip`th on, at most `max`.
    pub fn key_stats(&self, skip: usize, max: usize) -> Vec<KeyStats> {
        let known = self.lanes.iter().enumerate().filter_map(|(number, lane)| Some((number, lane.as_ref()?)));
        known
            .skip(skip)
            .take(max)
            .map(|(number, lane)| KeyStats {
                name: lane.name.clone(),
                weight: lane.weight,
                pending: lane.pending(),
                in_flight: lane.in_flight,
                delayed: lane.delayed,
                oldest_sent_at: lane.ready().map(|handle| handle.header.sent_at).next(),
                rule: self.rule(&lane.name),
                held: self.throttle(Key(number as u32)),
                // A key that is all its tenant has is charged as its tenant.
                debt: self.drr.debt(Key(number as u32)).max(self.drr.tenant_debt(lane.tenant)),
                delivered: lane.delivered,
                redelivered: lane.redelivered,
                waits: lane.waits.as_deref().and_then(WaitHistogram::read),
            })
            .collect()
    }

    /// Tells what the queue holds and how it has delivered.
    pub fn stats(&self) -> QueueStats {
        QueueStats {
            totals: self.totals(),
            keys: self.keys.len() as u64,
            delivered: self.delivered,
            redelivered: self.redelivered,
            waits: self.waits.read(),
        }
    }

    /// Names the next messages without touching them, key by key.
    pub fn peek(&self, max: usize) -> Vec<(KeyId, Arc<str>, MessageMeta)> {
        let lanes = self.lanes.iter().flatten();
        let all =
            lanes.flat_map(|lane| lane.ready().map(|handle| (lane.key, lane.name.clone(), handle.header)));
        all.filter(|(.., header)| !self.is_expired(header)).take(max).collect()
    }

    /// Says why a message of this queue is where it is; one that was moved here, once it is in memory.
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
        let is_it = |header: &MessageMeta| header.from.is_some_and(|from| from.id == id);
        let out = self.out.values().find(|out| is_it(&out.handle.header));
        let out = out.map(|out| (self.lane(out.lane).key, out.handle.header.seq));
        out.or_else(|| {
            self.lanes.iter().flatten().find_map(|lane| {
                let handle = lane.ready().find(|handle| is_it(&handle.header))?;
                Some((lane.key, handle.header.seq))
            })
        })
    }

    fn explain_at(&self, key: KeyId, seq: Seq) -> Explanation {
        if let Some(out) = self.out.get(&seq) {
            let attempts = out.handle.delivered.attempts;
            let expires_at = out.handle.header.expires_at;
            return match out.how {
                InvisibleState::Leased { until, .. } => {
                    Explanation::InFlight { attempt: attempts, until, expires_at }
                }
                InvisibleState::Delayed { until } => Explanation::Delayed { attempts, until, expires_at },
                InvisibleState::Acking { .. } | InvisibleState::Moving | InvisibleState::Expired { .. } => {
                    Explanation::Leaving
                }
            };
        }
        let Some((at, lane)) =
            self.keys.get(&key).and_then(|&at| Some((at, self.lanes[at.index()].as_ref()?)))
        else {
            return Explanation::Unknown;
        };
        let before = match lane.position(seq) {
            Some(before) => before,
            None if lane.cursor() < seq && lane.on_disk_len() > 0 => lane.in_memory(),
            None => return Explanation::Unknown,
        };
        let key = self.drr.key_status(at);
        let tenant = self.drr.tenant_status(lane.tenant);
        let expires_at = lane.ready().find(|handle| handle.header.seq == seq);
        let expires_at = expires_at.and_then(|handle| handle.header.expires_at);
        Explanation::Waiting { before, key, tenant, held: self.throttle(at), expires_at }
    }
}
