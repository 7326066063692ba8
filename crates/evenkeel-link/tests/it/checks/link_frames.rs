//! Any bytes may arrive from a peer: they are decoded the same wherever they are cut, and a session that gets them
//! neither panics nor stores more than its limits.

use bytes::Bytes;
use evenkeel_link::flow::{DatagramMode, FlowLane, ResetCode, ResetReason, Side};
use evenkeel_link::frame::{
    AcksWriter, CHUNK_BYTES_MAX, ControlDecoder, DatagramFrame, Frame, FrameDecoder, FrameError,
    encode_message,
};
use evenkeel_link::session::{LinkSession, Read, SessionConfig, SessionEvent, Transmit};
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};

/// Checks one input.
pub(crate) fn check(input: &[u8]) {
    check_stream(input);
    check_control(input);
    check_datagram(input);
    check_session(input);
}

fn check_stream(input: &[u8]) {
    let whole = decode([input]);
    for len in [1, 2, 3, 7, 64] {
        assert_eq!(decode(input.chunks(len)), whole, "in pieces of {len} bytes");
    }
    for at in (0..=input.len()).step_by(1 + input.len() / 16) {
        assert_eq!(decode([&input[..at], &input[at..]]), whole, "cut at {at}");
    }
}

/// Decodes a stream; adjacent parts of a chunk are joined, so that the result does not depend on the pieces.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut rest = 0;
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(Frame::Chunk(part))) => {
                    assert!(part.data.len() <= CHUNK_BYTES_MAX);
                    match frames.last_mut() {
                        Some(Frame::Chunk(chunk)) if rest > 0 => {
                            assert_eq!(chunk.offset + chunk.data.len() as u64, part.offset);
                            chunk.data = [&chunk.data[..], &part.data].concat().into();
                            chunk.fin = part.fin;
                        }
                        _ => frames.push(Frame::Chunk(part)),
                    }
                    rest = usize::from(!decoder.is_between_frames());
                }
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(input.is_empty(), "input was left");
    }
    (frames, None)
}

fn check_control(input: &[u8]) {
    let mut decoder = ControlDecoder::default();
    let mut bytes = Bytes::copy_from_slice(input);
    let mut encoded = Vec::new();
    while let Ok(Some(message)) = decoder.decode(&mut bytes) {
        encoded.extend_from_slice(&message.encode());
    }
    assert!(input.starts_with(&encoded), "a message has two encodings");
}

fn check_datagram(input: &[u8]) {
    match DatagramFrame::decode(input) {
        Ok(DatagramFrame::Acks(entries)) => {
            let mut writer = AcksWriter::default();
            entries.iter().for_each(|entry| writer.push(entry));
            let encoded = writer.finish();
            let is_same = encoded == [input] || (entries.is_empty() && encoded.is_empty());
            assert!(is_same, "acks have two encodings");
        }
        Ok(DatagramFrame::Message(message)) => {
            assert_eq!(encode_message(&message), input, "a message has two encodings");
        }
        Ok(DatagramFrame::Probe { .. }) | Err(_) => {}
    }
}

/// Feeds the input to a session as a script: each record has a kind, a length and that many bytes; a record that lets time
/// pass has no bytes.
fn check_session(input: &[u8]) {
    let config = SessionConfig { flows_max: 8, receive_budget: 4 << 20, ..SessionConfig::default() };
    let mut now = Instant::from_secs(1);
    let mut session = LinkSession::new(Side::Listening, config, now, 0).unwrap();
    for path in [PathId(0), PathId(1)] {
        session.add_path(now, path, "path").unwrap();
        session.handle_path_up(now, path);
    }
    let own = session.open(now, FlowLane::Bonded, "target").unwrap();
    let _ = session.write(now, own, Bytes::from(vec![7; 40_000]));
    let striped = session.open(now, FlowLane::Datagram(DatagramMode::Stripe), "target").unwrap();
    let _ = session.send_datagram(now, striped, Bytes::from(vec![7; 3_000]));
    let mut decoders = [FrameDecoder::new(), FrameDecoder::new()];
    let mut rest = input;
    while let [kind, len, after @ ..] = rest {
        let is_pause = kind >> 1 & 3 == 3;
        let (record, after) = after.split_at(if is_pause { 0 } else { after.len().min(usize::from(*len)) });
        rest = after;
        let path = PathId(u32::from(kind & 1));
        match kind >> 1 & 3 {
            0 | 1 => {
                let mut bytes = Bytes::copy_from_slice(record);
                while let Ok(Some(frame)) = decoders[path.index()].decode(&mut bytes) {
                    let _ = session.handle_frame(now, path, frame);
                }
            }
            2 => {
                let _ = session.handle_datagram(now, path, record);
            }
            _ => {
                now += Duration::from_millis(10 * u64::from(*len));
                session.handle_timeout(now);
            }
        }
        drain(&mut session, now, kind & 0x80 != 0);
        let totals = session.status(now).totals;
        assert!(totals.receive_buffered <= totals.receive_windows, "{totals:?}");
        assert!(totals.receive_windows <= 4 << 20, "{totals:?}");
        assert!(totals.send_retained <= 1 << 20, "{totals:?}");
        // Eight flows, each with a reorder buffer, fragments and datagrams for the application.
        assert!(totals.datagram_bytes <= 8 * (1 << 21), "{totals:?}");
    }
}

/// Does what a driver and an application do.
fn drain(session: &mut LinkSession, now: Instant, is_reader: bool) {
    while let Some(transmit) = session.poll_transmit(now) {
        match transmit {
            Transmit::Frame { path, stream, header, data } => {
                session.handle_written(path, stream, (header.len() + data.len()) as u64);
            }
            Transmit::Datagram { path, data } => session.handle_datagram_sent(path, data.len() as u64),
            Transmit::Finish { .. } | Transmit::Abandon { .. } => {}
        }
    }
    while session.poll_datagram(now).is_some() {}
    while let Some(event) = session.poll_event() {
        match event {
            SessionEvent::Readable { flow } if is_reader => {
                while let Read::Data(data) = session.read(now, flow, 1_000) {
                    assert!(!data.is_empty() && data.len() <= 1_000);
                }
                while let Read::Data(_) = session.receive_datagram(flow) {}
            }
            SessionEvent::Accepted { flow, lane: FlowLane::Stream, .. } => {
                session.reset(now, flow, ResetReason::new(ResetCode::APPLICATION, "unwanted"));
            }
            _ => {}
        }
    }
}
