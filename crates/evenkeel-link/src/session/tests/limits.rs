//! Violations of the protocol, and limits.

use super::*;
use crate::frame::{AckEntry, AckState, AcksWriter, Chunk, FlowAck};

/// Passes a frame to the listening side and returns its error.
fn reject(pair: &mut Pair, frame: Frame) -> ProtocolError {
    let error = pair.ends[1].handle_frame(pair.now, A, frame).unwrap_err();
    pair.exchange();
    assert_eq!(pair.failure(1), Some(&SessionError::Protocol(error.clone())));
    error
}

fn accepted() -> (Pair, FlowId) {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Bonded);
    (pair, flow)
}

#[test]
fn a_violation_of_the_protocol_ends_the_session_and_its_flows() {
    let (mut pair, flow) = accepted();
    let beyond = chunk(flow, CREDIT_INITIAL, b"x", false);
    let expected = ProtocolError::CreditExceeded { flow, end: CREDIT_INITIAL + 1, credit: CREDIT_INITIAL };
    assert_eq!(reject(&mut pair, beyond), expected);
    let reason = ResetReason::new(
        ResetCode::SESSION_LOST,
        "the peer violated the protocol: flow 2: data up to offset 262145 exceeds the credit of 262144",
    );
    assert_eq!(pair.end_of(1, flow), Some(&FlowEnd::Reset(reason)));
    assert_eq!(pair.ends[1].poll_timeout(), None);
    assert_eq!(pair.ends[1].open(pair.now, FlowLane::Stream, ""), Err(OpenFlowError::SessionEnded));
}

#[test]
fn data_after_the_end_and_a_second_end_are_violations() {
    for frames in [
        [(5, &b"x"[..], true), (6, b"y", false)],
        [(5, b"x", true), (3, b"", true)],
        [(5, b"xyz", false), (6, b"", true)],
    ] {
        let (mut pair, flow) = accepted();
        let [first, second] = frames.map(|(offset, data, fin)| chunk(flow, offset, data, fin));
        pair.ends[1].handle_frame(pair.now, A, first).unwrap();
        assert_eq!(reject(&mut pair, second), ProtocolError::DataAfterEnd { flow });
    }
}

#[test]
fn flows_of_the_wrong_side_are_violations() {
    let open = |flow| Frame::Open { flow, lane: FlowLane::Stream, target: String::new() };
    for flow in [FlowId(0), FlowId(3)] {
        assert_eq!(reject(&mut Pair::new(), open(flow)), ProtocolError::ForeignFlow { flow });
    }
    let unknown = chunk(FlowId(3), 0, b"x", false);
    assert_eq!(reject(&mut Pair::new(), unknown), ProtocolError::UnknownFlow { flow: FlowId(3) });
    let end = chunk(FlowId::CONTROL, 0, b"", true);
    assert_eq!(reject(&mut Pair::new(), end), ProtocolError::ControlEnded);
}

#[test]
fn an_acknowledgement_of_unsent_data_is_a_violation() {
    let range = crate::frame::OffsetRange { start: 10, end: 20 };
    for (state, is_violation) in [
        (AckState::Open(FlowAck { cumulative: 4, credit: 0, ranges: vec![] }), false),
        (AckState::Open(FlowAck { cumulative: 5, credit: 0, ranges: vec![] }), true),
        (AckState::Open(FlowAck { cumulative: 0, credit: 0, ranges: vec![range] }), true),
        (AckState::Finished, true),
    ] {
        let (mut pair, flow) = accepted();
        pair.cut(A, Cut::All);
        pair.cut(B, Cut::All);
        pair.write(0, flow, &b"data"[..]);
        let mut writer = AcksWriter::default();
        writer.push(&AckEntry { flow, state });
        let datagram = writer.finish().remove(0);
        let result = pair.ends[0].handle_datagram(pair.now, A, &datagram);
        assert_eq!(result.is_err(), is_violation, "{result:?}");
    }
}

#[test]
fn a_malformed_datagram_ends_the_session() {
    let mut pair = Pair::new();
    assert!(pair.ends[0].handle_datagram(pair.now, A, b"\xff").is_err());
    pair.exchange();
    assert!(pair.failure(0).is_some());
}

#[test]
fn flows_beyond_the_limit_are_reset_with_the_reason() {
    let mut pair = Pair::with(SessionConfig { flows_max: 3, ..SessionConfig::default() });
    let flows: Vec<FlowId> = (0..3).map(|_| pair.open(FlowLane::Stream)).collect();
    let refused = pair.ends[0].open(pair.now, FlowLane::Stream, "");
    assert_eq!(refused, Err(OpenFlowError::TooManyFlows { flows_max: 3 }));
    pair.ends[0].config.flows_max = 4;
    let fourth = pair.open(FlowLane::Stream);
    let reason = ResetReason::new(ResetCode::TOO_MANY_FLOWS, "the link has 3 open flows, which is its limit");
    assert_eq!(pair.end_of(0, fourth), Some(&FlowEnd::Reset(reason)));
    pair.reset(0, flows[0], "over");
    let fifth = pair.open(FlowLane::Stream);
    assert_eq!(pair.end_of(0, fifth), None);
}

#[test]
fn flows_beyond_the_budget_are_refused_and_windows_grow_only_within_it() {
    let budget = 8 * CREDIT_INITIAL;
    let mut pair = Pair::with(SessionConfig { receive_budget: budget, ..SessionConfig::default() });
    let flow = pair.open(FlowLane::Bonded);
    for _ in 0..100 {
        pair.write(0, flow, vec![1; 100_000]);
        pair.run(Duration::from_millis(10));
        pair.read(1, flow);
    }
    let windows = pair.ends[1].status(pair.now).totals.receive_windows;
    assert_eq!(windows, budget / 4 * 3, "growth leaves a quarter to new flows");
    for _ in 0..2 {
        pair.open(FlowLane::Stream);
    }
    let refused = pair.open(FlowLane::Stream);
    assert!(matches!(pair.end_of(0, refused), Some(FlowEnd::Reset(_))));
    assert_eq!(pair.ends[1].status(pair.now).totals.receive_windows, budget);
    for _ in 0..100 {
        pair.write(0, flow, vec![1; 100_000]);
        pair.run(Duration::from_millis(10));
        pair.read(1, flow);
    }
    let windows = pair.ends[1].status(pair.now).totals.receive_windows;
    assert!(windows <= budget / 4 * 3, "the window of the flow shrinks: {windows}");
}

#[test]
fn too_many_separate_pieces_are_a_violation() {
    let config = SessionConfig { credit_bonded: 1 << 20, ..SessionConfig::default() };
    let mut pair = Pair::with(config);
    let flow = pair.open(FlowLane::Bonded);
    let piece = |number: u64| {
        Frame::Chunk(Chunk { flow, offset: 1 + 2 * number, fin: false, data: Bytes::from_static(b"x") })
    };
    let results: Vec<_> = (0..100_000)
        .map(|number| pair.ends[1].handle_frame(pair.now, A, piece(number)))
        .take_while(Result::is_ok)
        .collect();
    assert_eq!(results.len(), 65_536);
    assert!(pair.ends[1].has_ended);
}

#[test]
fn a_peer_that_acknowledges_no_control_messages_loses_the_session() {
    let mut pair = Pair::new();
    pair.cut(A, Cut::All);
    pair.cut(B, Cut::All);
    let mut opened = 0;
    while !pair.ends[1].has_ended {
        opened += 1;
        let id = FlowId(2 * opened);
        let open = Frame::Open { flow: id, lane: FlowLane::Stream, target: String::new() };
        pair.ends[1].handle_frame(pair.now, A, open).unwrap();
        pair.ends[1].reset(pair.now, id, ResetReason::new(ResetCode::APPLICATION, "x".repeat(200)));
    }
    assert!((4_000..6_000).contains(&opened), "{opened} resets");
    pair.exchange();
    assert_eq!(pair.failure(1), Some(&SessionError::Protocol(ProtocolError::ControlBacklog)));
}

#[test]
fn a_sender_retains_at_most_its_limits() {
    let mut pair = Pair::with(SessionConfig { send_budget: 1 << 20, ..SessionConfig::default() });
    pair.cut(A, Cut::All);
    pair.cut(B, Cut::All);
    let first = pair.open(FlowLane::Stream);
    let second = pair.open(FlowLane::Stream);
    assert_eq!(pair.write(0, first, vec![1; 1_000_000]), 1_000_000);
    let left = pair.write(0, second, vec![1; 1_000_000]);
    assert_eq!(left, 64 * 1024, "more than the rest of the budget, so that no flow is stalled by others");
    assert_eq!(pair.ends[0].writable(pair.now, first), 0);
    assert_eq!(pair.ends[0].writable(pair.now, second), 0);
    pair.reset(0, first, "over");
    assert!(pair.events[0].contains(&SessionEvent::Writable { flow: second }));
}

#[test]
fn a_setting_out_of_range_is_rejected() {
    let config = SessionConfig { flows_max: 0, ..SessionConfig::default() };
    let error = LinkSession::new(Side::Connecting, config, Instant::ORIGIN, 0).unwrap_err();
    assert_eq!(error.setting, "flows_max");
}

#[test]
fn observations_that_nobody_polls_are_dropped() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.ends[0].observations.len(), OBSERVATIONS_MAX);
    let observation = pair.ends[0].poll_observation();
    assert!(matches!(observation, Some(Observation::Rtt { rtt: RTT, .. })), "{observation:?}");
}

#[test]
fn frames_wait_for_the_connection_only_up_to_the_limits_of_their_queues() {
    let mut pair = Pair::new();
    let bonded = pair.open(FlowLane::Bonded);
    pair.run(Duration::from_millis(50));
    let stream = pair.open(FlowLane::Stream);
    for flow in [bonded, stream] {
        pair.ends[0].write(pair.now, flow, vec![1; 1_000_000].into()).unwrap();
    }
    let mut queued = std::collections::BTreeMap::new();
    while let Some(transmit) = pair.ends[0].poll_transmit(pair.now) {
        let Transmit::Frame { path, stream, header, data } = transmit else { continue };
        *queued.entry((stream, path)).or_insert(0) += header.len() + data.len();
    }
    let room = |stream, path| queued.get(&(stream, path)).copied().unwrap_or(0);
    for path in [A, B] {
        assert!((32_768..33_000).contains(&room(StreamKey::Bonded, path)), "{queued:?}");
    }
    let own = room(StreamKey::Flow(stream), A) + room(StreamKey::Flow(stream), B);
    assert!((48_000..=65_536).contains(&own), "{queued:?}");
    pair.ends[0].handle_written(A, StreamKey::Bonded, 16_390);
    let next = pair.ends[0].poll_transmit(pair.now).unwrap();
    assert!(matches!(next, Transmit::Frame { path: A, stream: StreamKey::Bonded, .. }), "{next:?}");
}

#[test]
fn at_most_32_768_chunks_of_all_flows_are_on_their_way() {
    let mut pair = Pair::new();
    pair.cut(A, Cut::Datagrams);
    pair.cut(B, Cut::Datagrams);
    let flows: Vec<FlowId> = (0..10).map(|_| pair.open(FlowLane::Stream)).collect();
    for flow in flows.iter().copied().cycle().take(10 * 4_000) {
        pair.write(0, flow, &b"x"[..]);
    }
    assert_eq!(pair.ends[0].flows.usage().chunks, 32_768);
    pair.cuts = [Cut::None; 2];
    pair.run(Duration::from_secs(3));
    let received: usize = flows.into_iter().map(|flow| pair.read(1, flow).len()).sum();
    assert_eq!(received, 10 * 4_000, "the rest follows");
}
