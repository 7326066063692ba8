//! Measurements of one connection, written by its controller and read by the session.

use parking_lot::Mutex;

use crate::path_signals::PathSignals;
use crate::quic::clock::LinkClock;

/// Latest measurements of one connection.
///
/// A connection that changes its address gets another controller with the same cell, so counters never fall.
#[derive(Debug)]
pub(in crate::quic) struct SignalCell {
    pub(super) clock: LinkClock,
    signals: Mutex<PathSignals>,
}

impl SignalCell {
    pub(in crate::quic) fn new(clock: LinkClock) -> Self {
        Self { clock, signals: Mutex::default() }
    }

    pub(in crate::quic) fn read(&self) -> PathSignals {
        *self.signals.lock()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut PathSignals)) {
        change(&mut self.signals.lock());
    }
}
