//! How messages end by themselves: their own time is over, or their queue has kept them as long as it keeps any.
//!
//! Bound: one that is over is not delivered, and is kept until its removal is written down. Of those that wait or are
//! delayed, whoever receives or not, one with a time of its own is removed a tenth of a second later; of the others, each
//! key's first is looked at, and those behind it once they are first. Of those that waited, whoever found them, at most
//! `OVER_MAX` are being removed at once; the next go when these are gone. A message with a time of its own takes some
//! 150 bytes while it waits; one without takes nothing here, and its key an entry.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::id::Key;

use super::key_queue::MessageEntry;
use super::{Disposition, InvisibleState, QueueState};
use crate::id::{KeyId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::time::UnixMillis;

/// Messages that end within this time of each other are removed together.
const EXPIRY_BATCH_WINDOW: Duration = Duration::from_millis(100);
/// While so many are being removed, no more of those that wait are.
const EXPIRING_MAX: usize = 1_024;

/// When to look for messages that are over.
#[derive(Debug, Default)]
pub(super) struct ExpiryIndex {
    /// Messages with a time of their own that wait or are delayed, by when it is over.
    own: BTreeMap<(UnixMillis, Seq), (Key, MessageMeta)>,
    /// Lanes with messages that wait, by when the first was sent, or one before it.
    lanes: BTreeSet<(UnixMillis, Key)>,
    /// How many are over and not gone yet.
    pub(super) over: usize,
    /// Lanes whose turn came while no more could be removed, and whose next message is over.
    held: BTreeSet<Key>,
}

impl ExpiryIndex {
    /// Lists a message that waits or is delayed.
    pub(super) fn list(&mut self, at: Key, header: &MessageMeta) {
        if let Some(expires_at) = header.expires_at {
            self.own.insert((expires_at, header.seq), (at, *header));
        }
    }

    /// Lists a message no longer: a consumer has it, or it leaves.
    pub(super) fn unlist(&mut self, header: &MessageMeta) {
        if let Some(expires_at) = header.expires_at {
            self.own.remove(&(expires_at, header.seq));
        }
    }

    /// Counts the messages that are listed.
    pub(super) fn timed(&self) -> u64 {
        self.own.len() as u64
    }

    pub(super) fn list_lane(&mut self, at: Key, sent_at: UnixMillis) {
        self.lanes.insert((sent_at, at));
    }

    pub(super) fn unlist_lane(&mut self, at: Key, sent_at: UnixMillis) {
        self.lanes.remove(&(sent_at, at));
    }

    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.lanes.clear();
        self.held.clear();
        self.over = 0;
    }

    fn pop_own(&mut self, now: UnixMillis) -> Option<(Key, MessageMeta)> {
        let first = self.own.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    fn pop_lane(&mut self, now: UnixMillis, retention: Duration) -> Option<Key> {
        self.lanes.first().filter(|(sent_at, _)| *sent_at + retention <= now)?;
        self.lanes.pop_first().map(|(_, at)| at)
    }
}

impl QueueState {
    /// Tells whether a message's time is over.
    pub(super) fn is_expired(&self, header: &MessageMeta) -> bool {
        header.expires_at.is_some_and(|at| at <= self.now)
            || header.sent_at + self.limits.retention <= self.now
    }

    /// Names the moment at which messages that are over are to be looked for.
    pub(super) fn next_end(&self) -> Option<UnixMillis> {
        if self.room_for_ends() == 0 {
            return None;
        }
        let own = self.ends.own.first_key_value().map(|((at, _), _)| *at);
        let kept = self.ends.lanes.first().map(|(sent_at, _)| *sent_at + self.limits.retention);
        own.into_iter().chain(kept).min().map(|at| at + EXPIRY_BATCH_WINDOW)
    }

    /// Counts how many more of those that wait may be removed now.
    pub(super) fn room_for_ends(&self) -> usize {
        EXPIRING_MAX.saturating_sub(self.ends.over)
    }

    /// Leaves a lane out of the turns until there is room to remove its next message; others go on.
    pub(super) fn park_until_expiry_room(&mut self, at: Key) {
        self.drr.park(at);
        self.ends.held.insert(at);
    }

    /// Has lanes take part again that waited for room.
    pub(super) fn go_on_after_ends(&mut self) {
        for at in core::mem::take(&mut self.ends.held) {
            // It may have been emptied meanwhile, and forgotten.
            if self.lanes[at.index()].is_some() {
                self.update_schedule(at);
            }
        }
    }

    /// Ends messages that wait or are delayed and whose time is over, and looks at at most `max` of them and lanes.
    pub(super) fn expire_some(&mut self, max: usize, ended: &mut Vec<Disposition>) {
        let mut left = self.room_for_ends().min(max);
        while left > 0 {
            let Some((at, header)) = self.ends.pop_own(self.now) else { break };
            left -= 1;
            let is_delayed = self
                .out
                .get(&header.seq)
                .is_some_and(|out| matches!(out.how, InvisibleState::Delayed { .. }));
            let handle = if is_delayed {
                self.take_out(header.seq).map(|out| out.handle)
            } else {
                self.take_waiting(at, header)
            };
            debug_assert!(handle.is_some(), "{header:?} is listed and does not wait");
            if let Some(handle) = handle {
                let (key, header) = self.expire(at, handle);
                ended.push(Disposition::Expired { key, header });
                self.update_schedule(at);
            }
        }
        while left > 0 {
            let Some(at) = self.ends.pop_lane(self.now, self.limits.retention) else { break };
            left -= 1;
            self.at(at).listed_since = None;
            self.end_firsts(at, &mut left, ended);
            // Lists it again, if something is left.
            self.update_schedule(at);
        }
    }

    /// Ends a lane's first messages as long as they are over.
    fn end_firsts(&mut self, at: Key, left: &mut usize, ended: &mut Vec<Disposition>) {
        while *left > 0 {
            let Some(header) = self.first_over(at) else { break };
            let Some(handle) = self.take_waiting(at, header) else { break };
            let (key, header) = self.expire(at, handle);
            ended.push(Disposition::Expired { key, header });
            *left -= 1;
        }
    }

    fn first_over(&self, at: Key) -> Option<MessageMeta> {
        self.lane(at).firsts().find(|header| self.is_expired(header)).copied()
    }

    /// Has a message leave that is out of its lane: [`acked`](Self::acked) or [`undo_ack`](Self::undo_ack) must follow.
    pub(super) fn expire(&mut self, at: Key, handle: MessageEntry) -> (KeyId, MessageMeta) {
        let key = self.at(at).key;
        let header = handle.header;
        self.hide(at, handle, InvisibleState::Expired { again: None });
        (key, header)
    }

    /// Takes a message out that waits, wherever it does.
    pub(super) fn take_waiting(&mut self, at: Key, header: MessageMeta) -> Option<MessageEntry> {
        let mut handle = self.at(at).take_by_seq(header)?;
        self.payload_bytes -= handle.payload.take().as_ref().map_or(0, Payload::size);
        self.totals.pending -= 1;
        Some(handle)
    }

    /// Lists those of a lane no longer that were counted behind its window and are not in the store.
    pub(super) fn unlist_missing(&mut self, at: Key) {
        let Self { ends, out, lanes, .. } = self;
        let Some(lane) = &lanes[at.index()] else { return };
        let is_there = |seq: Seq| seq <= lane.cursor() || out.contains_key(&seq) || lane.back(seq).is_some();
        ends.own.retain(|(_, seq), (of, _)| *of != at || is_there(*seq));
    }

    /// Has a lane looked at when the first of its messages that wait is over.
    pub(super) fn list_first(&mut self, at: Key) {
        let lane = self.lane(at);
        let Some(first) = lane.firsts().map(|header| header.sent_at).min() else { return };
        let listed = lane.listed_since;
        if listed.is_some_and(|listed| listed <= first) {
            return;
        }
        if let Some(listed) = listed {
            self.ends.unlist_lane(at, listed);
        }
        self.ends.list_lane(at, first);
        self.at(at).listed_since = Some(first);
    }
}
