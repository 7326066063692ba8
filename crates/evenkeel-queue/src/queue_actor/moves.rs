//! Moves of waiting messages to another queue, some at a time.

use std::sync::Arc;

use evenkeel_actor::{ActorRef, Reply};

use super::{Msg, QueueActor, REFILL_BYTES_MAX, answer};
use crate::id::{KeyId, QueueId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::queue_state::{MoveCursor, MoveStep};
use crate::rejection::Rejection;
use crate::store::{Fetch, MessageChange, StoreError};

/// Messages read at once.
const READ_MAX: usize = 256;
/// Messages looked at before whoever asked hears of it.
const LOOK_MAX: usize = 4_096;

/// Some messages of a move, on their way.
pub(crate) struct MoveRequest {
    cursor: MoveCursor,
    to: Option<QueueId>,
    max: usize,
    /// What is to be moved, and where.
    found: Vec<(KeyId, MessageMeta, QueueId)>,
    looked: usize,
    is_over: bool,
    reply: Reply<Result<MoveProgress, Rejection>>,
}

/// What became of some messages of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveProgress {
    /// How many were moved.
    pub moved: u64,
    /// How many the whole move has left so far: they came from nowhere, or from a queue that is gone.
    pub left: u64,
    /// Where to go on; `None` when it is over.
    pub next: Option<MoveCursor>,
}

impl MoveRequest {
    pub(crate) fn new(
        cursor: MoveCursor,
        to: Option<QueueId>,
        max: usize,
        reply: Reply<Result<MoveProgress, Rejection>>,
    ) -> Self {
        Self { cursor, to, max, found: Vec::new(), looked: 0, is_over: false, reply }
    }

    fn has_enough(&self) -> bool {
        self.is_over || self.max <= self.found.len() || LOOK_MAX <= self.looked
    }

    /// Answers, once what was found is written down or is not.
    pub(super) fn end(self, result: Result<(), StoreError>) {
        let Self { cursor, found, is_over, reply, .. } = self;
        let moved = MoveProgress {
            moved: found.len() as u64,
            left: cursor.left,
            next: if is_over { None } else { Some(cursor) },
        };
        answer(reply, result.map(|()| moved).map_err(Rejection::Store));
    }
}

impl QueueActor {
    /// Looks for messages to move until there are enough, then has them moved.
    pub(super) fn move_on(&mut self, mut job: MoveRequest, me: ActorRef<Msg>) {
        match self.book.next_move(&mut job.cursor) {
            MoveStep::Read(key, after) if !job.has_enough() => {
                let fetch =
                    Fetch { queue: self.queue, key, after, count_max: READ_MAX, bytes_max: REFILL_BYTES_MAX };
                let done = move |found| me.tell(Msg::MoveFound(job, key, found));
                return self.store.fetch(fetch, Box::new(done));
            }
            MoveStep::Done => job.is_over = true,
            MoveStep::Read(..) | MoveStep::Pause => {}
        }
        if job.found.is_empty() {
            return job.end(Ok(()));
        }
        let seqs: Vec<Seq> = job.found.iter().map(|(_, header, _)| header.seq).collect();
        let changes =
            job.found.iter().map(|&(key, header, to)| MessageChange::Moved(key, header, to)).collect();
        let done = move |result| me.tell(Msg::Removed(seqs, result, Some(job)));
        self.store.commit(self.commit(changes), Box::new(done));
    }

    pub(super) fn move_found(
        &mut self,
        mut job: MoveRequest,
        key: KeyId,
        found: Result<Vec<(MessageMeta, Payload)>, StoreError>,
        me: ActorRef<Msg>,
    ) {
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                job.found.iter().for_each(|(_, header, _)| self.book.revert_removal(header.seq));
                return job.end(Err(why));
            }
        };
        self.book.set_now(self.clock.now());
        let known = Arc::clone(&self.known);
        let known = known.read();
        let mut is_end = true;
        for (header, _) in found {
            is_end = false;
            if job.has_enough() {
                break;
            }
            if !job.cursor.look(header.seq) {
                is_end = true;
                break;
            }
            job.looked += 1;
            let home = job.to.or(header.from.map(|from| from.queue));
            match home.filter(|home| *home != self.queue && known.contains(home)) {
                Some(to) if self.book.begin_move(key, header) => job.found.push((key, header, to)),
                // In a consumer's hands, to come later, or over.
                Some(_) => {}
                None => job.cursor.left += 1,
            }
        }
        drop(known);
        if is_end {
            self.book.end_lane(&mut job.cursor);
        }
        self.move_on(job, me);
    }
}
