//! Moves of ready messages to another queue, key by key and outside the delivery order.
//!
//! A move reads each message once from the store and skips messages without a destination. In delivery order, skipped
//! messages would be read again and again.

use evenkeel_policy::id::Key;

use super::QueueState;
use super::invisible::InvisibleState;
use crate::id::{Epoch, KeyId, Seq};
use crate::message::MessageMeta;

/// Maximum number of keys without messages that one call skips.
const SKIPPED_KEYS_MAX: usize = 65_536;

/// Position of a move; the default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCursor {
    /// Owner epoch in which `index` is valid; under another owner the move starts again.
    epoch: Epoch,
    index: usize,
    after: Seq,
    /// Last message that the move covers.
    until: Seq,
    /// Messages that the move has left in place.
    pub left: u64,
}

/// Next step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Read the messages of this key after this sequence number.
    Read(KeyId, Seq),
    /// Call again later, so that the actor handles other messages in between.
    Pause,
    Done,
}

impl QueueState {
    /// Returns the next step of a move.
    pub fn next_move(&self, cursor: &mut MoveCursor) -> MoveStep {
        if cursor.epoch != self.epoch {
            *cursor = MoveCursor { epoch: self.epoch, until: self.last_seq, ..MoveCursor::default() };
        }
        for _ in 0..SKIPPED_KEYS_MAX {
            if cursor.index >= self.schedule.keys.slots_len() {
                return MoveStep::Done;
            }
            match self.schedule.keys.get(Key(cursor.index as u32)) {
                Some(queue) if queue.pending() > 0 => return MoveStep::Read(queue.key, cursor.after),
                _ => self.next_move_key(cursor),
            }
        }
        MoveStep::Pause
    }

    /// Continues with the next key.
    pub fn next_move_key(&self, cursor: &mut MoveCursor) {
        cursor.index += 1;
        cursor.after = Seq(0);
    }

    /// Starts to move a message if it is ready: [`confirm_removal`](Self::confirm_removal) or
    /// [`revert_removal`](Self::revert_removal) must follow.
    pub fn begin_move(&mut self, key: KeyId, meta: MessageMeta) -> bool {
        let Some(index) = self.schedule.keys.find(key) else { return false };
        if self.invisible.contains(meta.seq) || meta.seq > self.last_seq || self.is_expired(&meta) {
            return false;
        }
        let Some(entry) = self.schedule.take(index, meta) else { return false };
        self.hide(index, entry, InvisibleState::Moving);
        self.update_schedule(index);
        true
    }
}

impl MoveCursor {
    /// Advances past a message; returns `false` if it was sent after the move started.
    pub fn advance(&mut self, seq: Seq) -> bool {
        self.after = seq;
        seq <= self.until
    }
}
