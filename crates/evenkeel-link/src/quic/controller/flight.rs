//! Packets in flight, as far as callbacks show them.
//!
//! noq tells the bytes in flight with every acknowledgement, before it looks for losses. In between they are counted
//! here, with two gaps: a lost MTU probe and packets of discarded handshake keys leave without a callback. MTU probes,
//! recognisable by their size, are therefore not counted as packets that wait, and both counts must agree that
//! something waits.

use evenkeel_policy::time::Instant;

/// Packets in flight of one connection.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    mtu: u16,
    bytes: u64,
    /// Packets without MTU probes.
    packets: u64,
    probe: Option<u64>,
    waiting_since: Option<Instant>,
}

impl Flight {
    pub(super) fn new(mtu: u16) -> Self {
        Self { mtu, bytes: 0, packets: 0, probe: None, waiting_since: None }
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// Counts a packet that asks for an acknowledgement.
    pub(super) fn send(&mut self, now: Instant, len: u16, number: u64) {
        self.bytes += u64::from(len);
        if self.mtu < len {
            self.probe = Some(number);
            return;
        }
        self.packets += 1;
        self.waiting_since.get_or_insert(now);
    }

    pub(super) fn acknowledge(&mut self, number: u64) {
        if self.probe == Some(number) {
            self.probe = None;
        } else {
            self.packets = self.packets.saturating_sub(1);
        }
    }

    /// Takes over the bytes in flight after an acknowledgement.
    pub(super) fn set_bytes(&mut self, now: Instant, bytes: u64) {
        self.bytes = bytes;
        if bytes == 0 {
            self.packets = 0;
            self.probe = None;
        }
        self.waiting_since = Some(now);
        self.settle();
    }

    pub(super) fn lose(&mut self, len: u16) {
        self.bytes = self.bytes.saturating_sub(u64::from(len));
        self.packets = self.packets.saturating_sub(1);
        self.settle();
    }

    fn settle(&mut self) {
        if self.bytes() == 0 {
            self.waiting_since = None;
        }
    }

    /// Returns the bytes in flight; 0 if only an MTU probe is.
    pub(super) fn bytes(&self) -> u64 {
        if self.packets == 0 { 0 } else { self.bytes }
    }

    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.waiting_since
    }
}
