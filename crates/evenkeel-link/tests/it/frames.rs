//! Everything that is encoded is decoded again, wherever the bytes are cut.

use bytes::{Bytes, BytesMut};
use evenkeel_link::flow::{DatagramMode, FlowId, FlowLane, ResetCode, ResetReason};
use evenkeel_link::frame::{
    ACK_RANGES_MAX, AckEntry, AckState, AcksWriter, CHUNK_BYTES_MAX, Chunk, ControlDecoder, ControlMessage,
    DATAGRAM_BYTES_MAX, DatagramFrame, FRAGMENTS_MAX, FlowAck, Fragment, Frame, FrameDecoder, FrameError,
    MESSAGE_HEADER_BYTES_MAX, Message, NUMBER_MAX, OffsetRange, SendTime, encode_chunk_header,
    encode_message, encode_open, encode_probe,
};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..64_u64, 0..20_000_u64, 0..1_u64 << 31, 0..=NUMBER_MAX]
}

fn lane() -> impl Strategy<Value = FlowLane> {
    let modes = [DatagramMode::Stripe, DatagramMode::Pin, DatagramMode::Duplicate];
    prop_oneof![
        Just(FlowLane::Stream),
        Just(FlowLane::Bonded),
        Just(FlowLane::Redundant),
        proptest::sample::select(modes.to_vec()).prop_map(FlowLane::Datagram)
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    let open = (number(), lane(), "[ -~é]{0,100}").prop_map(|(flow, lane, target)| Frame::Open {
        flow: FlowId(flow),
        lane,
        target,
    });
    let chunk = (number(), 0..NUMBER_MAX - 20_000, any::<bool>(), 0..400_usize).prop_map(
        |(flow, offset, fin, len)| {
            let data = Bytes::from(vec![offset as u8; len.max(usize::from(!fin))]);
            Frame::Chunk(Chunk { flow: FlowId(flow), offset, fin, data })
        },
    );
    prop_oneof![open, chunk]
}

fn encode(frames: &[Frame]) -> Bytes {
    let mut out = BytesMut::new();
    for frame in frames {
        match frame {
            Frame::Open { flow, lane, target } => out.extend_from_slice(&encode_open(*flow, *lane, target)),
            Frame::Chunk(chunk) => {
                out.extend_from_slice(&encode_chunk_header(chunk));
                out.extend_from_slice(&chunk.data);
            }
        }
    }
    out.freeze()
}

/// Decodes pieces of the given lengths, in turns, and joins the parts of each chunk.
fn decode(mut bytes: Bytes, lengths: &[usize]) -> Vec<Frame> {
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    let mut is_partial = false;
    for len in lengths.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let mut piece = bytes.split_to((*len).min(bytes.len()));
        while let Some(frame) = decoder.decode(&mut piece).unwrap() {
            match (frame, frames.last_mut()) {
                (Frame::Chunk(part), Some(Frame::Chunk(chunk))) if is_partial => {
                    chunk.data = [&chunk.data[..], &part.data].concat().into();
                    chunk.fin = part.fin;
                }
                (frame, _) => frames.push(frame),
            }
            is_partial = !decoder.is_between_frames();
        }
    }
    frames
}

fn ack_state() -> impl Strategy<Value = AckState> {
    let ranges = proptest::collection::vec((1..1_u64 << 40, 1..1_u64 << 40), 0..=ACK_RANGES_MAX);
    let open = (0..1_u64 << 40, number(), ranges).prop_map(|(cumulative, credit, gaps)| {
        let mut end = cumulative;
        let ranges = gaps.into_iter().map(|(gap, len)| {
            let start = end + gap;
            end = start + len;
            OffsetRange { start, end }
        });
        AckState::Open(FlowAck { cumulative, credit, ranges: ranges.collect() })
    });
    prop_oneof![open, Just(AckState::Finished), Just(AckState::Closed), Just(AckState::Request)]
}

fn fragment() -> impl Strategy<Value = Fragment> {
    let divided = (2..=FRAGMENTS_MAX)
        .prop_flat_map(|count| (0..count).prop_map(move |index| Fragment { index, count }));
    prop_oneof![Just(Fragment::WHOLE), divided]
}

proptest! {
    #[test]
    fn frames_are_decoded_wherever_the_stream_is_cut(
        frames in proptest::collection::vec(frame(), 0..20),
        lengths in proptest::collection::vec(1..300_usize, 1..20),
    ) {
        prop_assert_eq!(decode(encode(&frames), &lengths), frames);
    }

    #[test]
    fn acknowledgements_are_decoded_and_every_datagram_fits(
        states in proptest::collection::vec((number(), ack_state()), 0..40),
    ) {
        let entries: Vec<AckEntry> =
            states.into_iter().map(|(flow, state)| AckEntry { flow: FlowId(flow), state }).collect();
        let mut writer = AcksWriter::default();
        entries.iter().for_each(|entry| writer.push(entry));
        let mut decoded = Vec::new();
        for datagram in writer.finish() {
            prop_assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
            let DatagramFrame::Acks(entries) = DatagramFrame::decode(&datagram).unwrap() else { panic!() };
            decoded.extend(entries);
        }
        prop_assert_eq!(decoded, entries);
    }

    #[test]
    fn datagrams_of_flows_are_decoded(
        flow in number(), sequence in 0..NUMBER_MAX, at in number(), fragment in fragment(), len in 0..3_000_usize,
    ) {
        let data = Bytes::from(vec![7; len]);
        let message = Message { flow: FlowId(flow), sequence, sent_at: SendTime(at), fragment, data };
        let encoded = encode_message(&message);
        prop_assert!(encoded.len() <= len + MESSAGE_HEADER_BYTES_MAX);
        prop_assert_eq!(DatagramFrame::decode(&encoded), Ok(DatagramFrame::Message(message)));
    }

    #[test]
    fn control_messages_are_decoded_wherever_the_stream_is_cut(
        resets in proptest::collection::vec((number(), any::<u32>(), "[ -~é]{0,200}"), 0..10),
        cut in 1..100_usize,
    ) {
        let mut messages: Vec<ControlMessage> = resets
            .into_iter()
            .map(|(flow, code, text)| {
                ControlMessage::Reset { flow: FlowId(flow), reason: ResetReason::new(ResetCode(code), text) }
            })
            .collect();
        messages.push(ControlMessage::Goodbye);
        let encoded: Vec<u8> = messages.iter().flat_map(ControlMessage::encode).collect();
        let mut decoder = ControlDecoder::default();
        let mut decoded = Vec::new();
        for piece in encoded.chunks(cut) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(message) = decoder.decode(&mut piece).unwrap() {
                decoded.push(message);
            }
        }
        prop_assert_eq!(decoded, messages);
    }
}

#[test]
fn a_probe_is_decoded() {
    let id = 1_u64 << 40;
    assert_eq!(DatagramFrame::decode(&encode_probe(id)), Ok(DatagramFrame::Probe { id }));
}

#[test]
fn malformed_frames_are_rejected() {
    let rejects = |bytes: &[u8]| FrameDecoder::new().decode(&mut Bytes::copy_from_slice(bytes)).unwrap_err();
    assert_eq!(rejects(&[0]), FrameError::UnknownType { kind: 0 });
    assert_eq!(rejects(&[3, 0x40, 0x02]), FrameError::LongNumber);
    assert_eq!(rejects(&[3, 2, 0, 0]), FrameError::EmptyChunk);
    assert_eq!(rejects(&[1, 2, 1, 0xff]), FrameError::NotUtf8);
    let len = CHUNK_BYTES_MAX as u64 + 1;
    let too_long = [&[3, 2, 0, 0x80][..], &(len as u32).to_be_bytes()[1..]].concat();
    assert_eq!(rejects(&too_long), FrameError::ChunkTooLong { len });
    let mut beyond = vec![4, 2];
    beyond.extend_from_slice(&u64::MAX.to_be_bytes());
    beyond.push(0);
    assert_eq!(rejects(&beyond), FrameError::NumberTooLarge, "no offset is left for the end");
}

#[test]
fn malformed_datagrams_are_rejected() {
    let rejects = |bytes: &[u8]| DatagramFrame::decode(bytes).unwrap_err();
    assert_eq!(rejects(&[]), FrameError::Truncated);
    assert_eq!(rejects(&[9]), FrameError::UnknownType { kind: 9 });
    assert_eq!(rejects(&[17, 1, 0]), FrameError::TrailingBytes);
    assert_eq!(rejects(&[16, 2]), FrameError::Truncated);
    assert_eq!(rejects(&[16, 2, 4]), FrameError::UnknownType { kind: 4 });
    assert_eq!(rejects(&[16, 2, 0, 1, 1, 62]), FrameError::TooManyRanges { count: 62 });
    assert_eq!(rejects(&[16, 2, 0, 1, 1, 1, 0, 1]), FrameError::BadRange, "touches the cumulative offset");
    assert_eq!(rejects(&[16, 2, 0, 1, 1, 1, 1, 0]), FrameError::BadRange, "empty");
    assert_eq!(rejects(&[18, 2]), FrameError::Truncated);
    for (index, count) in [(0, 0), (0, 1), (2, 2), (0, 65)] {
        assert_eq!(rejects(&[19, 2, 0, 5, index, count, 7]), FrameError::BadFragment { index, count });
    }
    let len = 65_536;
    assert_eq!(rejects(&vec![18; len]), FrameError::DatagramTooLong { len, len_max: len - 1 });
    assert_eq!(rejects(&[0; 1_201]), FrameError::DatagramTooLong { len: 1_201, len_max: DATAGRAM_BYTES_MAX });
}
