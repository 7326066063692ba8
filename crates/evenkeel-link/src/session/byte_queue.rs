//! Queue of bytes that merges small pieces.
//!
//! Limits: besides its bytes, the queue uses memory for at most one piece per 2 KiB.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Length below which a piece is copied, so that many small writes neither become many small chunks nor keep the buffers
/// alive that they are parts of.
const COPY_BELOW: usize = 4 * 1024;

/// Length at which copied pieces are no longer extended.
const BLOCK_BYTES: usize = 16 * 1024;

/// First-in, first-out queue of bytes.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    pieces: VecDeque<Bytes>,
    /// Small pieces behind all of `pieces`.
    tail: BytesMut,
    len: usize,
}

impl ByteQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the length of the longest piece that [`pop`](Self::pop) can return.
    pub(super) fn front_len(&self) -> usize {
        self.pieces.front().map_or(self.tail.len(), Bytes::len)
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < COPY_BELOW {
            self.tail.extend_from_slice(&piece);
            if self.tail.len() < BLOCK_BYTES {
                return;
            }
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        if piece.len() >= COPY_BELOW {
            self.pieces.push_back(piece);
        }
    }

    /// Removes the first piece, or its first `max` bytes; empty if the queue is.
    pub(super) fn pop(&mut self, max: usize) -> Bytes {
        let popped = match self.pieces.front_mut() {
            Some(front) if max < front.len() => front.split_to(max),
            Some(_) => self.pieces.pop_front().unwrap_or_default(),
            None => self.tail.split_to(max.min(self.tail.len())).freeze(),
        };
        self.len -= popped.len();
        popped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let mut queue = ByteQueue::default();
        let mut expected = Vec::new();
        for (number, len) in [1, 5_000, 3, 4_000, 4_096, 2, 20_000, 0, 7].into_iter().enumerate() {
            let piece = vec![number as u8; len];
            expected.extend_from_slice(&piece);
            queue.push(piece.into());
        }
        assert_eq!(queue.len(), expected.len());
        let mut popped = Vec::new();
        while !queue.is_empty() {
            assert!(queue.front_len() > 0);
            popped.extend_from_slice(&queue.pop(3_000));
        }
        assert_eq!(popped, expected);
        assert_eq!(queue.pop(10), Bytes::new());
    }

    #[test]
    fn many_small_pieces_become_few() {
        let mut queue = ByteQueue::default();
        for _ in 0..100_000 {
            queue.push(Bytes::from_static(b"x"));
        }
        assert_eq!(queue.pieces.len(), 100_000 / BLOCK_BYTES);
        assert_eq!(queue.front_len(), BLOCK_BYTES);
    }
}
