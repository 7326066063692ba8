//! Model of one side's half of a QUIC connection: streams, congestion window, acknowledgements.
//!
//! A frame travels as one packet, whatever its length.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use evenkeel_link::frame::FrameDecoder;
use evenkeel_link::path_signals::PathSignals;
use evenkeel_link::session::{StreamKey, Transmit};
use evenkeel_policy::time::Instant;

use super::wire::PACKET_BYTES;

/// Streams that bonded frames are spread over.
const BONDED_STREAMS: u64 = 4;

const WINDOW_INITIAL: u64 = 10 * PACKET_BYTES;
const WINDOW_MIN: u64 = 2 * PACKET_BYTES;

/// One side's half of a connection.
#[derive(Debug)]
pub(super) struct ConnectionModel {
    /// Number of the connection on its path; events of earlier ones are ignored.
    pub(super) number: u64,
    signals: PathSignals,
    /// Frames that wait for the congestion window.
    backlog: VecDeque<Content>,
    /// Datagrams of flows that wait for the congestion window; they go before frames.
    datagrams: VecDeque<Bytes>,
    /// Packets without acknowledgement.
    packets: BTreeMap<u64, Packet>,
    next_packet: u64,
    open_streams: BTreeMap<SendStreamKey, SendStream>,
    next_stream: u64,
    bonded_turn: u64,
    received: BTreeMap<u64, ReceiveStream>,
    window_before_loss: u64,
    last_loss_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SendStreamKey {
    key: StreamKey,
    turn: u64,
}

#[derive(Clone, Copy, Debug)]
struct SendStream {
    id: u64,
    next_sequence: u64,
}

#[derive(Debug, Default)]
pub(super) struct ReceiveStream {
    next_sequence: u64,
    early: BTreeMap<u64, Bytes>,
    pub(super) decoder: FrameDecoder,
}

#[derive(Clone, Debug)]
struct Packet {
    content: Content,
    sent_at: Instant,
    attempts: u32,
}

/// Content of a packet.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Stream { key: StreamKey, stream: u64, sequence: u64, data: Bytes },
    Datagram(Bytes),
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Stream { data, .. } | Self::Datagram(data) => data.len() as u64,
        }
    }
}

/// Packet that leaves.
#[derive(Clone, Debug)]
pub(super) struct Departure {
    pub(super) packet: u64,
    pub(super) content: Content,
    /// Number of times it was sent before.
    pub(super) attempts: u32,
}

impl ConnectionModel {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            signals: PathSignals { window: WINDOW_INITIAL, ..PathSignals::default() },
            backlog: VecDeque::new(),
            datagrams: VecDeque::new(),
            packets: BTreeMap::new(),
            next_packet: 0,
            open_streams: BTreeMap::new(),
            next_stream: 0,
            bonded_turn: 0,
            received: BTreeMap::new(),
            window_before_loss: u64::MAX,
            last_loss_at: Instant::ORIGIN,
        }
    }

    pub(super) fn signals(&self) -> PathSignals {
        self.signals
    }

    /// Takes over the work that the session passes to a stream.
    pub(super) fn push(&mut self, transmit: Transmit) {
        match transmit {
            Transmit::Frame { stream: key, header, data, .. } => {
                let turn = if key == StreamKey::Bonded { self.bonded_turn % BONDED_STREAMS } else { 0 };
                self.bonded_turn += u64::from(key == StreamKey::Bonded);
                let mut frame = BytesMut::from(&header[..]);
                frame.extend_from_slice(&data);
                let stream = self.open_streams.entry(SendStreamKey { key, turn }).or_insert_with(|| {
                    self.next_stream += 1;
                    SendStream { id: self.next_stream, next_sequence: 0 }
                });
                let sequence = stream.next_sequence;
                stream.next_sequence += 1;
                self.backlog.push_back(Content::Stream {
                    key,
                    stream: stream.id,
                    sequence,
                    data: frame.freeze(),
                });
            }
            Transmit::Datagram { data, .. } => self.datagrams.push_back(data),
            Transmit::Finish { stream: key, .. } => {
                self.open_streams.remove(&SendStreamKey { key, turn: 0 });
            }
            Transmit::Abandon { stream: key, .. } => {
                let Some(abandoned) = self.open_streams.remove(&SendStreamKey { key, turn: 0 }) else {
                    return;
                };
                let is_other = |content: &Content| !matches!(content, Content::Stream { stream, .. } if *stream == abandoned.id);
                self.backlog.retain(is_other);
                self.packets.retain(|_, packet| is_other(&packet.content));
                self.signals.in_flight = self.packets.values().map(|packet| packet.content.len()).sum();
                if self.packets.is_empty() {
                    self.signals.waiting_since = None;
                }
            }
        }
    }

    /// Sends acknowledgements or a probe, whatever the window.
    pub(super) fn send_datagram(&mut self, now: Instant, data: Bytes) -> Departure {
        self.depart(now, Content::Datagram(data))
    }

    /// Sends the next datagram of a flow, or frame, if the window allows it.
    pub(super) fn send_frame(&mut self, now: Instant) -> Option<Departure> {
        if self.signals.window <= self.signals.in_flight {
            return None;
        }
        let datagram = self.datagrams.pop_front().map(Content::Datagram);
        let content = datagram.or_else(|| self.backlog.pop_front())?;
        Some(self.depart(now, content))
    }

    fn depart(&mut self, now: Instant, content: Content) -> Departure {
        if self.packets.is_empty() {
            self.signals.waiting_since = Some(now);
        }
        self.next_packet += 1;
        self.signals.in_flight += content.len();
        self.packets.insert(self.next_packet, Packet { content: content.clone(), sent_at: now, attempts: 1 });
        Departure { packet: self.next_packet, content, attempts: 0 }
    }

    /// Sends a packet again, unless it was acknowledged or its stream abandoned; a lost datagram is dropped.
    pub(super) fn send_again(&mut self, now: Instant, packet: u64) -> Option<Departure> {
        let known = self.packets.get_mut(&packet)?;
        if matches!(known.content, Content::Datagram(_)) {
            self.settle(packet);
            return None;
        }
        known.sent_at = now;
        known.attempts += 1;
        Some(Departure { packet, content: known.content.clone(), attempts: known.attempts - 1 })
    }

    /// Reduces the window after a loss that the other packets reveal, once for all packets sent before it.
    pub(super) fn on_loss(&mut self, now: Instant, packet: u64) {
        self.signals.lost_packets += 1;
        if self.packets.get(&packet).is_none_or(|packet| packet.sent_at <= self.last_loss_at) {
            return;
        }
        self.last_loss_at = now;
        self.window_before_loss = self.signals.window;
        self.signals.window = (self.signals.window * 7 / 10).max(WINDOW_MIN);
    }

    /// Records an acknowledgement.
    pub(super) fn on_ack(&mut self, now: Instant, packet: u64) {
        let Some(known) = self.packets.get(&packet) else { return };
        let len = known.content.len();
        let rtt = now.since(known.sent_at);
        let attempts = known.attempts;
        let is_limited = self.signals.window / 2 <= self.signals.in_flight;
        self.settle(packet);
        let signals = &mut self.signals;
        signals.acked_packets += len.div_ceil(PACKET_BYTES);
        signals.acked_bytes += len;
        signals.acked_at = Some(now);
        signals.waiting_since = (!self.packets.is_empty()).then_some(now);
        if attempts == 1 {
            signals.rtt_count += 1;
            signals.rtt_sum += rtt;
            signals.rtt_latest = Some(rtt);
            signals.rtt_min = Some(signals.rtt_min.map_or(rtt, |min| min.min(rtt)));
        }
        if is_limited {
            self.grow_window(len);
        }
    }

    /// Grows the window: fast below its size before the last loss, slowly above, as Cubic does.
    fn grow_window(&mut self, acked: u64) {
        let window = self.signals.window;
        let part = acked as f64 / window as f64;
        let growth = if self.window_before_loss == u64::MAX {
            acked as f64
        } else if window < self.window_before_loss {
            (self.window_before_loss - window) as f64 / 4.0 * part + PACKET_BYTES as f64 * part
        } else {
            2.0 * PACKET_BYTES as f64 * part
        };
        self.signals.window += growth as u64;
    }

    fn settle(&mut self, packet: u64) {
        if let Some(packet) = self.packets.remove(&packet) {
            self.signals.in_flight = self.signals.in_flight.saturating_sub(packet.content.len());
        }
        if self.packets.is_empty() {
            self.signals.waiting_since = None;
        }
    }

    /// Returns the stream's data that is now in order, with its decoder.
    pub(super) fn receive(
        &mut self,
        stream: u64,
        sequence: u64,
        data: Bytes,
    ) -> (Vec<Bytes>, &mut FrameDecoder) {
        let stream = self.received.entry(stream).or_default();
        if stream.next_sequence <= sequence {
            stream.early.insert(sequence, data);
        }
        let mut ordered = Vec::new();
        while let Some(data) = stream.early.remove(&stream.next_sequence) {
            stream.next_sequence += 1;
            ordered.push(data);
        }
        (ordered, &mut stream.decoder)
    }
}
