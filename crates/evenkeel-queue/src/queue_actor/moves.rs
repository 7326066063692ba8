//! Moves of ready messages to another queue, in batches.

use std::sync::Arc;

use evenkeel_actor::{ActorRef, Reply};

use super::{Msg, PREFETCH_BYTES_MAX, QueueActor, respond};
use crate::id::{KeyId, QueueId, Seq};
use crate::message::{MessageMeta, Payload};
use crate::queue_state::{MoveCursor, MoveStep};
use crate::rejection::Rejection;
use crate::store::{Fetch, MessageChange, StoreError};

/// Maximum number of messages per read.
const READ_MAX: usize = 256;
/// Maximum number of messages visited per batch.
const VISIT_MAX: usize = 4_096;

/// A batch of a move.
pub(crate) struct MoveRequest {
    cursor: MoveCursor,
    to: Option<QueueId>,
    max: usize,
    /// Messages to move, with their destination.
    found: Vec<(KeyId, MessageMeta, QueueId)>,
    visited: usize,
    is_done: bool,
    reply: Reply<Result<MoveProgress, Rejection>>,
}

/// Result of a batch of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveProgress {
    /// Messages moved by this batch.
    pub moved: u64,
    /// Messages that the move has left in place so far: they have no origin, or it was deleted or has another owner.
    pub left: u64,
    /// Position of the next batch; `None` when the move is done.
    pub next: Option<MoveCursor>,
}

impl MoveRequest {
    pub(crate) fn new(
        cursor: MoveCursor,
        to: Option<QueueId>,
        max: usize,
        reply: Reply<Result<MoveProgress, Rejection>>,
    ) -> Self {
        Self { cursor, to, max, found: Vec::new(), visited: 0, is_done: false, reply }
    }

    fn is_full(&self) -> bool {
        self.is_done || self.found.len() >= self.max || self.visited >= VISIT_MAX
    }

    /// Replies with the progress, or with the error of the write.
    pub(super) fn finish(self, result: Result<(), StoreError>) {
        let Self { cursor, found, is_done, reply, .. } = self;
        let progress = MoveProgress {
            moved: found.len() as u64,
            left: cursor.left,
            next: if is_done { None } else { Some(cursor) },
        };
        respond(reply, result.map(|()| progress).map_err(Rejection::Store));
    }
}

impl QueueActor {
    /// Reads messages until the batch is full, then commits the move.
    pub(super) fn continue_move(&mut self, mut request: MoveRequest, self_ref: ActorRef<Msg>) {
        match self.state.next_move(&mut request.cursor) {
            MoveStep::Read(key, after) if !request.is_full() => {
                let fetch = Fetch {
                    queue: self.queue,
                    key,
                    after,
                    messages_max: READ_MAX,
                    bytes_max: PREFETCH_BYTES_MAX,
                };
                let done = move |found| self_ref.tell(Msg::MoveFound(request, key, found));
                return self.store.read_next(fetch, Box::new(done));
            }
            MoveStep::Done => request.is_done = true,
            MoveStep::Read(..) | MoveStep::Pause => {}
        }
        if request.found.is_empty() {
            return request.finish(Ok(()));
        }
        let seqs: Vec<Seq> = request.found.iter().map(|(_, meta, _)| meta.seq).collect();
        let changes =
            request.found.iter().map(|&(key, meta, to)| MessageChange::Moved(key, meta, to)).collect();
        let done = move |result| self_ref.tell(Msg::Removed(seqs, result, Some(request)));
        self.store.commit(self.commit(changes), Box::new(done));
    }

    pub(super) fn on_move_found(
        &mut self,
        mut request: MoveRequest,
        key: KeyId,
        found: Result<Vec<(MessageMeta, Payload)>, StoreError>,
        self_ref: ActorRef<Msg>,
    ) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                request.found.iter().for_each(|(_, meta, _)| self.state.revert_removal(meta.seq));
                return request.finish(Err(error));
            }
        };
        self.state.set_now(self.clock.now());
        let known = Arc::clone(&self.known);
        let known = known.read();
        // A message never leaves its namespace, even if its origin was assigned to another owner.
        let namespace = known.get(&self.queue);
        let is_destination =
            |to: &QueueId| *to != self.queue && known.contains_key(to) && known.get(to) == namespace;
        let mut is_key_done = true;
        for (meta, _) in found {
            is_key_done = false;
            if request.is_full() {
                break;
            }
            if !request.cursor.advance(meta.seq) {
                is_key_done = true;
                break;
            }
            request.visited += 1;
            let target = request.to.or(meta.from.map(|from| from.queue));
            match target.filter(is_destination) {
                Some(to) if self.state.begin_move(key, meta) => request.found.push((key, meta, to)),
                // In flight, delayed or expired.
                Some(_) => {}
                None => request.cursor.left += 1,
            }
        }
        drop(known);
        if is_key_done {
            self.state.next_move_key(&mut request.cursor);
        }
        self.continue_move(request, self_ref);
    }
}
