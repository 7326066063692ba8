//! Puts divided datagrams together.
//!
//! Limits: [`INCOMPLETE_MAX`] incomplete datagrams of [`INCOMPLETE_BYTES_MAX`] bytes together; the oldest are dropped.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::frame::Fragment;

/// Maximum number of incomplete datagrams.
const INCOMPLETE_MAX: usize = 64;

/// Maximum number of bytes of their fragments.
const INCOMPLETE_BYTES_MAX: usize = 256 * 1024;

/// Incomplete datagrams of a flow.
#[derive(Debug, Default)]
pub(super) struct FragmentBuffer {
    incomplete: BTreeMap<u64, IncompleteDatagram>,
    bytes: usize,
}

#[derive(Debug)]
struct IncompleteDatagram {
    parts: Vec<Option<Bytes>>,
}

impl IncompleteDatagram {
    fn bytes(&self) -> usize {
        self.parts.iter().flatten().map(Bytes::len).sum()
    }
}

/// Effect of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Assembly {
    Incomplete,
    /// The fragment had arrived before.
    Copy,
    Complete(Bytes),
}

impl FragmentBuffer {
    /// Adds a fragment of a datagram that was not complete before.
    pub(super) fn insert(&mut self, sequence: u64, fragment: Fragment, data: Bytes) -> Assembly {
        if fragment == Fragment::WHOLE {
            self.remove(sequence);
            return Assembly::Complete(data);
        }
        let count = usize::from(fragment.count);
        if self.incomplete.get(&sequence).is_some_and(|known| known.parts.len() != count) {
            self.remove(sequence);
        }
        let new = || IncompleteDatagram { parts: vec![None; count] };
        let entry = self.incomplete.entry(sequence).or_insert_with(new);
        let Some(part) = entry.parts.get_mut(usize::from(fragment.index)).filter(|part| part.is_none())
        else {
            return Assembly::Copy;
        };
        self.bytes += data.len();
        *part = Some(data);
        if entry.parts.iter().all(Option::is_some) {
            let parts = self.remove(sequence).map(|complete| complete.parts).unwrap_or_default();
            let whole: BytesMut = parts.into_iter().flatten().flatten().collect();
            return Assembly::Complete(whole.freeze());
        }
        while INCOMPLETE_MAX < self.incomplete.len() || INCOMPLETE_BYTES_MAX < self.bytes {
            let Some((&oldest, _)) = self.incomplete.first_key_value() else { break };
            self.remove(oldest);
        }
        Assembly::Incomplete
    }

    fn remove(&mut self, sequence: u64) -> Option<IncompleteDatagram> {
        let removed = self.incomplete.remove(&sequence)?;
        self.bytes -= removed.bytes();
        Some(removed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_make_a_whole_in_any_order_and_copies_do_not_matter() {
        let mut buffer = FragmentBuffer::default();
        assert_eq!(add(&mut buffer, 7, 2, 3, "c"), Assembly::Incomplete);
        assert_eq!(add(&mut buffer, 8, 0, 2, "x"), Assembly::Incomplete);
        assert_eq!(add(&mut buffer, 7, 0, 3, "a"), Assembly::Incomplete);
        assert_eq!(add(&mut buffer, 7, 0, 3, "a"), Assembly::Copy);
        assert_eq!(add(&mut buffer, 7, 1, 3, "b"), Assembly::Complete(Bytes::from_static(b"abc")));
        assert_eq!(buffer.bytes(), 1);
        assert_eq!(add(&mut buffer, 8, 1, 3, "y"), Assembly::Incomplete, "divided differently");
        assert_eq!(add(&mut buffer, 8, 0, 1, "whole"), Assembly::Complete(Bytes::from_static(b"whole")));
        assert_eq!((buffer.incomplete.len(), buffer.bytes()), (0, 0));
    }

    #[test]
    fn beyond_64_datagrams_or_256_kib_the_oldest_is_dropped() {
        let mut buffer = FragmentBuffer::default();
        for sequence in 0..100 {
            add(&mut buffer, sequence, 0, 2, "first");
        }
        assert_eq!((buffer.incomplete.len(), buffer.bytes()), (INCOMPLETE_MAX, 5 * INCOMPLETE_MAX));
        assert_eq!(add(&mut buffer, 30, 1, 2, "second"), Assembly::Incomplete, "its first half was dropped");
        assert_eq!(
            add(&mut buffer, 99, 1, 2, "second"),
            Assembly::Complete(Bytes::from_static(b"firstsecond"))
        );
        let large = "x".repeat(60_000);
        for sequence in 100..110 {
            add(&mut buffer, sequence, 0, 2, &large);
            assert!(buffer.bytes() <= INCOMPLETE_BYTES_MAX);
        }
    }

    fn add(buffer: &mut FragmentBuffer, sequence: u64, index: u8, count: u8, data: &str) -> Assembly {
        buffer.insert(sequence, Fragment { index, count }, Bytes::copy_from_slice(data.as_bytes()))
    }
}
