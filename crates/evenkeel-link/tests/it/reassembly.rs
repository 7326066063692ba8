//! A receiver delivers every byte once and in order, however chunks are cut, repeated, overlapped and reordered.

use bytes::Bytes;
use evenkeel_link::flow::{FlowId, FlowLane, Side};
use evenkeel_link::frame::{Chunk, Frame};
use evenkeel_link::session::{LinkSession, Read, SessionConfig};
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Instant;
use proptest::prelude::*;

const NOW: Instant = Instant::from_secs(1);
const FLOW: FlowId = FlowId(2);
const PATH: PathId = PathId(0);

proptest! {
    #[test]
    fn every_byte_is_delivered_once_and_in_order(
        len in 1..60_000_usize,
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 1..9_000_usize), 1..60),
        order in any::<u64>(),
        read_max in 1..20_000_usize,
    ) {
        let data: Vec<u8> = (0..len).map(|at| ((at / 7) ^ at) as u8).collect();
        let mut session = receiver();
        // Random pieces, then the missing ones in order.
        let mut pieces: Vec<(usize, usize)> = cuts
            .into_iter()
            .map(|(start, piece_len)| {
                let start = start.index(len);
                (start, (start + piece_len).min(len))
            })
            .collect();
        pieces.sort_by_key(|(start, end)| (start ^ end ^ order as usize).wrapping_mul(0x9e37_79b9));
        pieces.extend((0..len).step_by(5_000).map(|start| (start, (start + 5_000).min(len))));
        let mut delivered = Vec::new();
        for (start, end) in pieces {
            receive(&mut session, &data[start..end], start, end == len);
            while let Read::Data(data) = session.read(NOW, FLOW, read_max) {
                delivered.extend_from_slice(&data);
            }
            prop_assert_eq!(&delivered[..], &data[..delivered.len()]);
        }
        prop_assert_eq!(delivered, data);
        prop_assert_eq!(session.read(NOW, FLOW, 1), Read::Finished);
        prop_assert_eq!(session.status(NOW).totals.receive_buffered, 0);
    }
}

fn receiver() -> LinkSession {
    let mut session = LinkSession::new(Side::Listening, SessionConfig::default(), NOW, 0).unwrap();
    session.add_path(NOW, PATH, "path").unwrap();
    session.handle_path_up(NOW, PATH);
    let open = Frame::Open { flow: FLOW, lane: FlowLane::Bonded, target: String::new() };
    session.handle_frame(NOW, PATH, open).unwrap();
    session
}

fn receive(session: &mut LinkSession, data: &[u8], offset: usize, fin: bool) {
    let data = Bytes::copy_from_slice(data);
    let chunk = Chunk { flow: FLOW, offset: offset as u64, fin, data };
    session.handle_frame(NOW, PATH, Frame::Chunk(chunk)).unwrap();
}
