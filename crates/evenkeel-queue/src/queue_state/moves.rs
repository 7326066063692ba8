//! Messages on their way to another queue, key by key and out of turn.
//!
//! A move looks at each message once, where the store has it, and leaves those that have nowhere to go: moved in
//! turn they would come first again and again.

use super::{InvisibleState, QueueState};
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;

/// At most so many keys without messages are passed over in one go.
const PASS_MAX: usize = 65_536;

/// How far a move has come; the default begins one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCursor {
    /// Whose numbers of keys these are; with another owner the move begins anew.
    epoch: Epoch,
    lane: usize,
    after: Seq,
    /// Later messages are none of this move's.
    until: Seq,
    /// How many messages it has left where they were.
    pub left: u64,
}

/// What a move looks at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Messages of this key after this one.
    Read(KeyId, Seq),
    /// There may be more, after others were heard.
    Pause,
    /// Nothing more.
    Done,
}

impl QueueState {
    /// Says what a move looks at next.
    pub fn next_move(&self, cursor: &mut MoveCursor) -> MoveStep {
        if cursor.epoch != self.epoch {
            *cursor = MoveCursor { epoch: self.epoch, until: self.told, ..MoveCursor::default() };
        }
        for _ in 0..PASS_MAX {
            match self.lanes.get(cursor.lane) {
                None => return MoveStep::Done,
                Some(Some(lane)) if lane.pending() > 0 => return MoveStep::Read(lane.key, cursor.after),
                Some(_) => self.end_lane(cursor),
            }
        }
        MoveStep::Pause
    }

    /// Goes on with the next key.
    pub fn end_lane(&self, cursor: &mut MoveCursor) {
        cursor.lane += 1;
        cursor.after = Seq(0);
    }

    /// Begins to move a message that waits: [`acked`](Self::acked) or [`undo_ack`](Self::undo_ack) must follow.
    pub fn begin_move(&mut self, key: KeyId, header: MessageMeta) -> bool {
        let Some(&at) = self.keys.get(&key) else { return false };
        if self.out.contains_key(&header.seq) || self.told < header.seq || self.is_expired(&header) {
            return false;
        }
        let Some(handle) = self.take_waiting(at, header) else { return false };
        self.hide(at, handle, InvisibleState::Moving);
        self.update_schedule(at);
        true
    }
}

impl MoveCursor {
    /// Notes that a message was looked at; `false` when it is none of this move's.
    pub fn look(&mut self, seq: Seq) -> bool {
        self.after = seq;
        seq <= self.until
    }
}
