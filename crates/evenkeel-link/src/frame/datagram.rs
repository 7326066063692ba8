//! Datagrams: acknowledgements, probes, and the datagrams of flows.

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_policy::time::Instant;

use super::reader::{NUMBER_MAX, Reader, put_number};
use super::{
    ACK_RANGES_MAX, DATAGRAM_BYTES_MAX, FRAGMENTS_MAX, FrameError, MESSAGE_BYTES_MAX,
    MESSAGE_HEADER_BYTES_MAX,
};
use crate::flow::FlowId;

const ACKS: u8 = 16;
const PROBE: u8 = 17;
const WHOLE_MESSAGE: u8 = 18;
const FRAGMENT: u8 = 19;

const OPEN: u8 = 0;
const FINISHED: u8 = 1;
const CLOSED: u8 = 2;
const REQUEST: u8 = 3;

/// Content of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatagramFrame {
    Acks(Vec<AckEntry>),
    /// Needs no reply: the connection itself acknowledges every datagram.
    Probe {
        id: u64,
    },
    Message(Message),
}

/// Datagram of a flow, or a fragment of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub flow: FlowId,
    /// Number of the datagram in its flow and direction, from 0.
    pub sequence: u64,
    /// Time at which it was sent, by the sender's clock.
    pub sent_at: SendTime,
    pub fragment: Fragment,
    pub data: Bytes,
}

/// Time by a clock whose start the peer does not know, in units of 0.1 ms: 29 h have a number of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTime(pub u64);

impl SendTime {
    /// Creates the value of a point in time.
    pub fn new(now: Instant) -> Self {
        Self(now.as_nanos() / 100_000)
    }

    /// Returns the time from the start of the sender's clock, in milliseconds.
    pub fn millis(self) -> f64 {
        self.0 as f64 / 10.0
    }
}

/// Position of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub index: u8,
    /// Number of fragments; 1 if the datagram is not divided.
    pub count: u8,
}

impl Fragment {
    /// A datagram that is not divided.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

/// Acknowledgement of one flow's data, or a request for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckEntry {
    pub flow: FlowId,
    pub state: AckState,
}

/// Content of an [`AckEntry`]; all but `Request` come from the receiver of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckState {
    /// The flow is open.
    Open(FlowAck),
    /// All data and the FIN were received, and the flow has ended at the receiver.
    Finished,
    /// The receiver has no record of the flow.
    Closed,
    /// The sender of the data asks for an acknowledgement.
    Request,
}

/// Acknowledgement of an open flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowAck {
    /// Offset before which everything was received.
    pub cumulative: u64,
    /// Offset before which the sender may send.
    pub credit: u64,
    /// Received ranges above `cumulative`, in ascending order and apart from each other.
    pub ranges: Vec<OffsetRange>,
}

/// Offsets from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub start: u64,
    pub end: u64,
}

impl DatagramFrame {
    /// Decodes a datagram.
    pub fn decode(datagram: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(datagram);
        let kind = reader.byte()?;
        let len_max = match kind {
            WHOLE_MESSAGE | FRAGMENT => MESSAGE_BYTES_MAX,
            _ => DATAGRAM_BYTES_MAX,
        };
        if len_max < datagram.len() {
            return Err(FrameError::DatagramTooLong { len: datagram.len(), len_max });
        }
        match kind {
            ACKS => {
                let mut entries = Vec::new();
                while !reader.is_empty() {
                    entries.push(AckEntry::parse(&mut reader)?);
                }
                Ok(Self::Acks(entries))
            }
            PROBE => {
                let id = reader.number()?;
                if reader.is_empty() { Ok(Self::Probe { id }) } else { Err(FrameError::TrailingBytes) }
            }
            WHOLE_MESSAGE | FRAGMENT => Message::parse(kind, &mut reader).map(Self::Message),
            kind => Err(FrameError::UnknownType { kind }),
        }
    }
}

impl Message {
    fn parse(kind: u8, reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let flow = FlowId(reader.number()?);
        let sequence = reader.number()?;
        if sequence == NUMBER_MAX {
            return Err(FrameError::NumberTooLarge);
        }
        let sent_at = SendTime(reader.number()?);
        let mut fragment = Fragment::WHOLE;
        if kind == FRAGMENT {
            fragment = Fragment { index: reader.byte()?, count: reader.byte()? };
            let Fragment { index, count } = fragment;
            if !(2..=FRAGMENTS_MAX).contains(&count) || count <= index {
                return Err(FrameError::BadFragment { index, count });
            }
        }
        // A copy, so that a stored datagram does not retain the buffer of many packets.
        Ok(Self { flow, sequence, sent_at, fragment, data: Bytes::copy_from_slice(reader.rest()) })
    }
}

/// Encodes a datagram of a flow; a fragment must not exceed the limits.
pub fn encode_message(message: &Message) -> Bytes {
    let Message { flow, sequence, sent_at, fragment, data } = message;
    let mut out = BytesMut::with_capacity(MESSAGE_HEADER_BYTES_MAX + data.len());
    out.put_u8(if *fragment == Fragment::WHOLE { WHOLE_MESSAGE } else { FRAGMENT });
    put_number(&mut out, flow.0);
    put_number(&mut out, *sequence);
    put_number(&mut out, sent_at.0);
    if *fragment != Fragment::WHOLE {
        out.put_slice(&[fragment.index, fragment.count]);
    }
    out.put_slice(data);
    out.freeze()
}

impl AckEntry {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let flow = FlowId(reader.number()?);
        let state = match reader.byte()? {
            OPEN => AckState::Open(FlowAck::parse(reader)?),
            FINISHED => AckState::Finished,
            CLOSED => AckState::Closed,
            REQUEST => AckState::Request,
            kind => return Err(FrameError::UnknownType { kind }),
        };
        Ok(Self { flow, state })
    }

    fn put(&self, out: &mut BytesMut) {
        put_number(out, self.flow.0);
        match &self.state {
            AckState::Open(ack) => {
                out.put_u8(OPEN);
                ack.put(out);
            }
            AckState::Finished => out.put_u8(FINISHED),
            AckState::Closed => out.put_u8(CLOSED),
            AckState::Request => out.put_u8(REQUEST),
        }
    }
}

impl FlowAck {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let cumulative = reader.number()?;
        let credit = reader.number()?;
        let count = usize::from(reader.byte()?);
        if ACK_RANGES_MAX < count {
            return Err(FrameError::TooManyRanges { count });
        }
        let mut ranges = Vec::with_capacity(count);
        let mut end = cumulative;
        for _ in 0..count {
            let gap = reader.number()?;
            let len = reader.number()?;
            if gap == 0 || len == 0 || NUMBER_MAX < end + gap + len {
                return Err(FrameError::BadRange);
            }
            let start = end + gap;
            end = start + len;
            ranges.push(OffsetRange { start, end });
        }
        Ok(Self { cumulative, credit, ranges })
    }

    /// Appends the acknowledgement with its first [`ACK_RANGES_MAX`] ranges.
    fn put(&self, out: &mut BytesMut) {
        let ranges = &self.ranges[..self.ranges.len().min(ACK_RANGES_MAX)];
        put_number(out, self.cumulative);
        put_number(out, self.credit);
        out.put_u8(ranges.len() as u8);
        let mut end = self.cumulative;
        for range in ranges {
            put_number(out, range.start - end);
            put_number(out, range.end - range.start);
            end = range.end;
        }
    }
}

/// Encodes acknowledgements into as few datagrams as hold them.
#[derive(Debug, Default)]
pub struct AcksWriter {
    complete: Vec<Bytes>,
    current: BytesMut,
}

impl AcksWriter {
    /// Appends an entry.
    pub fn push(&mut self, entry: &AckEntry) {
        let before = self.current.len();
        if before == 0 {
            self.current.put_u8(ACKS);
        }
        let start = self.current.len();
        entry.put(&mut self.current);
        if DATAGRAM_BYTES_MAX < self.current.len() {
            let entry = self.current.split_off(start);
            self.complete.push(self.current.split().freeze());
            self.current.put_u8(ACKS);
            self.current.unsplit(entry);
        }
    }

    /// Returns the datagrams.
    pub fn finish(mut self) -> Vec<Bytes> {
        if !self.current.is_empty() {
            self.complete.push(self.current.freeze());
        }
        self.complete
    }
}

/// Encodes a probe.
pub fn encode_probe(id: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(16);
    out.put_u8(PROBE);
    put_number(&mut out, id);
    out.freeze()
}
