//! Lost datagrams, lost connections, silent paths.

use super::*;
use evenkeel_policy::path::PathState;

/// Opens a flow, sends data and returns its path.
fn home_of(pair: &mut Pair, flow: FlowId) -> PathId {
    pair.write(0, flow, &b"first"[..]);
    pair.run(Duration::from_millis(20));
    pair.ends[0].status(pair.now).flows.iter().find(|row| row.flow == flow).unwrap().path.unwrap()
}

fn other(path: PathId) -> PathId {
    if path == A { B } else { A }
}

#[test]
fn a_flow_completes_after_all_acknowledgements_were_lost_for_a_second() {
    for lane in [FlowLane::Stream, FlowLane::Bonded] {
        let mut pair = Pair::new();
        pair.cut(A, Cut::Datagrams);
        pair.cut(B, Cut::Datagrams);
        let flow = pair.open(lane);
        for from in [0, 1] {
            pair.write(from, flow, vec![1; 5_000]);
            pair.finish(from, flow);
        }
        assert_eq!((pair.read(0, flow).len(), pair.read(1, flow).len()), (5_000, 5_000));
        pair.run(Duration::from_secs(1));
        assert_eq!(pair.end_of(0, flow), None, "the end is not acknowledged");
        pair.cuts = [Cut::None; 2];
        pair.run(Duration::from_secs(3));
        for at in [0, 1] {
            assert_eq!(pair.end_of(at, flow), Some(&FlowEnd::Finished), "{lane} lane, side {at}");
        }
    }
}

#[test]
fn a_sender_without_credit_hears_of_it_after_lost_acknowledgements() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    pair.write(0, flow, vec![1; 1_000_000]);
    pair.run(Duration::from_millis(500));
    pair.cut(A, Cut::Datagrams);
    pair.cut(B, Cut::Datagrams);
    assert_eq!(pair.read(1, flow).len() as u64, CREDIT_INITIAL);
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.read(1, flow), [] as [u8; 0], "the news of the credit were lost, with all repetitions");
    pair.cuts = [Cut::None; 2];
    pair.run(Duration::from_secs(3));
    assert!(!pair.read(1, flow).is_empty());
}

#[test]
fn a_flow_whose_first_connection_is_lost_is_opened_again_on_another_path() {
    for lane in [FlowLane::Stream, FlowLane::Bonded] {
        let mut pair = Pair::new();
        pair.cut(A, Cut::All);
        pair.cut(B, Cut::All);
        let flow = pair.open(lane);
        pair.write(0, flow, &b"early data"[..]);
        let lost = pair.sent.last().unwrap().0;
        pair.cut(other(lost), Cut::None);
        pair.ends.iter_mut().for_each(|session| session.handle_path_down(pair.now, lost));
        pair.run(Duration::from_millis(20));
        assert_eq!(pair.read(1, flow), b"early data", "{lane} lane");
    }
}

#[test]
fn a_repeated_open_is_ignored_even_after_the_flow_has_ended() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    let open = Frame::Open { flow, lane: FlowLane::Stream, target: "target".to_owned() };
    pair.ends[1].handle_frame(pair.now, B, open.clone()).unwrap();
    pair.reset(0, flow, "over");
    pair.ends[1].handle_frame(pair.now, B, open).unwrap();
    pair.exchange();
    let accepted = pair.events[1].iter().filter(|event| matches!(event, SessionEvent::Accepted { .. }));
    assert_eq!(accepted.count(), 1);
}

#[test]
fn a_reset_that_overtakes_the_open_wins() {
    let mut pair = Pair::new();
    pair.cut(A, Cut::All);
    pair.cut(B, Cut::All);
    let flow = pair.open(FlowLane::Stream);
    let lost = pair.sent.last().unwrap().0;
    pair.ends[0].reset(pair.now, flow, ResetReason::new(ResetCode::APPLICATION, "changed my mind"));
    pair.cut(other(lost), Cut::None);
    pair.ends.iter_mut().for_each(|session| session.handle_path_down(pair.now, lost));
    pair.run(Duration::from_millis(20));
    let open = Frame::Open { flow, lane: FlowLane::Stream, target: "target".to_owned() };
    pair.ends[1].handle_frame(pair.now, other(lost), open).unwrap();
    pair.exchange();
    assert_eq!(pair.events[1].iter().find(|event| matches!(event, SessionEvent::Accepted { .. })), None);
}

#[test]
fn data_for_a_forgotten_flow_is_answered_and_resets_it() {
    let mut pair = Pair::new();
    let old = pair.open(FlowLane::Stream);
    // The listening side has forgotten the flow: it was reset, and 4096 others came later.
    pair.ends[1].flows.close(old, FlowEnd::Finished);
    pair.ends[1].flows.close(FlowId(old.0 + 2 * 4_097), FlowEnd::Finished);
    pair.write(0, old, &b"anybody there?"[..]);
    pair.run(Duration::from_millis(20));
    let reason = ResetReason::new(ResetCode::CLOSED, "the peer has closed the flow");
    assert_eq!(pair.end_of(0, old), Some(&FlowEnd::Reset(reason)));
}

/// With round trips of 10 ms, a probe timeout is between 35 and 45 ms.
#[test]
fn bonded_chunks_leave_a_silent_path_after_one_probe_timeout() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Bonded);
    pair.write(0, flow, &b"known"[..]);
    pair.run(Duration::from_millis(50));
    pair.cut(A, Cut::All);
    pair.write(0, flow, vec![1; 100_000]);
    pair.run(Duration::from_millis(30));
    assert!(pair.read(1, flow).len() < 100_000, "path A has swallowed a part");
    pair.run(Duration::from_millis(40));
    pair.read(1, flow);
    pair.run(Duration::from_millis(20));
    let status = pair.ends[1].status(pair.now);
    assert_eq!(status.flows[0].received, 100_005);
    assert!(pair.ends[0].status(pair.now).paths[1].counters.reinjected_bytes > 0);
}

#[test]
fn a_stream_lane_flow_leaves_a_silent_path_after_two_probe_timeouts() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    let home = home_of(&mut pair, flow);
    pair.cut(home, Cut::All);
    pair.write(0, flow, &b", second"[..]);
    pair.run(Duration::from_millis(60));
    assert_eq!(pair.read(1, flow), b"first", "one probe timeout has passed");
    pair.run(Duration::from_millis(60));
    assert_eq!(pair.read(1, flow), b", second");
    assert_eq!(pair.ends[0].status(pair.now).flows[0].path, Some(other(home)));
    assert!(pair.events[0].contains(&SessionEvent::PathSilent { path: home }));
    assert_eq!(pair.ends[0].status(pair.now).paths[home.index()].state, PathState::Degraded);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.ends[0].status(pair.now).paths[home.index()].state, PathState::Inactive);
}

#[test]
fn a_stall_of_the_driver_does_not_count_as_silence_of_the_path() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    let home = home_of(&mut pair, flow);
    pair.cut(home, Cut::All);
    pair.now += Duration::from_millis(300);
    pair.run(Duration::from_millis(30));
    assert!(!pair.ends[0].status(pair.now).paths[home.index()].silent);
    pair.now += Duration::from_millis(40);
    pair.run(Duration::from_millis(5));
    assert!(pair.ends[0].status(pair.now).paths[home.index()].silent, "a second stall is no excuse");
}

#[test]
fn a_flow_waits_on_its_silent_path_if_there_is_no_other_and_goes_on_when_it_answers() {
    let mut pair = Pair::new();
    pair.ends.iter_mut().for_each(|session| session.remove_path(pair.now, B));
    let flow = pair.open(FlowLane::Stream);
    pair.cut(A, Cut::All);
    pair.write(0, flow, &b"waits"[..]);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.end_of(0, flow), None);
    // The connection is lost at last, and a new one works.
    pair.cut(A, Cut::None);
    pair.ends.iter_mut().for_each(|session| session.handle_path_up(pair.now, A));
    pair.run(Duration::from_millis(20));
    assert_eq!(pair.read(1, flow), b"waits");
}

#[test]
fn without_any_answer_for_60_s_the_session_fails() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    pair.cut(A, Cut::All);
    pair.cut(B, Cut::All);
    pair.run(Duration::from_secs(59));
    assert_eq!(pair.failure(0), None);
    pair.run(Duration::from_secs(2));
    let error = SessionError::Timeout { timeout: Duration::from_secs(60) };
    assert_eq!(pair.failure(0), Some(&error));
    assert_eq!(error.to_string(), "no path answered for 60s");
    assert!(
        matches!(pair.end_of(0, flow), Some(FlowEnd::Reset(reason)) if reason.code == ResetCode::SESSION_LOST)
    );
}

#[test]
fn after_a_reconnect_the_first_pick_depends_on_the_phase() {
    let first_pick = |phase| {
        let mut pair = Pair::new();
        pair.run(Duration::from_secs(3));
        pair.ends[0].phase = phase;
        for path in [A, B] {
            pair.ends[0].handle_path_down(pair.now, path);
        }
        for path in [A, B] {
            pair.ends[0].handle_path_up(pair.now, path);
        }
        pair.run(Duration::from_millis(5));
        pair.sent.clear();
        pair.open(FlowLane::Stream);
        pair.sent[0].0
    };
    assert_eq!([0, 1, 2].map(first_pick), [A, B, A]);
}

#[test]
fn a_path_whose_acknowledgements_have_no_round_trip_becomes_active() {
    let now = Instant::from_secs(1);
    let mut session = LinkSession::new(Side::Listening, SessionConfig::default(), now, 0).unwrap();
    session.add_path(now, A, "path").unwrap();
    session.handle_path_up(now, A);
    for step in 1..100 {
        let now = now + step * Duration::from_millis(5);
        let signals =
            PathSignals { acked_packets: step.into(), acked_at: Some(now), ..PathSignals::default() };
        session.handle_signals(now, A, signals);
        session.handle_timeout(now);
        while session.poll_datagram(now).is_some() {}
    }
    let status = session.status(now);
    assert_eq!((status.paths[0].state, status.paths[0].loss), (PathState::Active, 0.0));
}

#[test]
fn a_connection_that_the_peer_replaced_does_not_count_as_a_failure() {
    let state_after = |tell: fn(&mut LinkSession, Instant, PathId)| {
        let mut pair = Pair::new();
        for _ in 0..4 {
            tell(&mut pair.ends[0], pair.now, A);
            pair.ends[0].handle_path_up(pair.now, A);
        }
        pair.ends[0].status(pair.now).paths[A.index()].state
    };
    assert_eq!(state_after(LinkSession::handle_connection_replaced), PathState::Active);
    // Deactivated by the failures, and probed again because of the last connection.
    assert_eq!(state_after(LinkSession::handle_path_down), PathState::Probing);
}

#[test]
fn a_stream_that_carries_only_a_repeated_open_is_finished() {
    let now = Instant::from_secs(1);
    let mut session = LinkSession::new(Side::Connecting, SessionConfig::default(), now, 0).unwrap();
    session.add_path(now, A, "path").unwrap();
    session.handle_path_up(now, A);
    let flow = session.open(now, FlowLane::Stream, "target").unwrap();
    session.finish(flow);
    let stream = StreamKey::Flow(flow);
    let is_end = |transmit: &Transmit| *transmit == Transmit::Finish { path: A, stream };
    let first: Vec<_> = std::iter::from_fn(|| session.poll_transmit(now)).collect();
    assert!(first.last().is_some_and(is_end), "{first:?}");
    // Nothing is acknowledged, so the frame that opens the flow is sent again, on a new stream.
    let later = now + Duration::from_secs(2);
    session.handle_timeout(later);
    let again: Vec<_> = std::iter::from_fn(|| session.poll_transmit(later)).collect();
    assert!(
        matches!(again.first(), Some(Transmit::Frame { .. })) && again.last().is_some_and(is_end),
        "{again:?}"
    );
}

#[test]
fn data_does_not_wait_for_an_active_path_that_stalls_it_and_does_not_return_to_it() {
    for lane in [FlowLane::Stream, FlowLane::Bonded] {
        for stalling in [A, B] {
            let mut pair = Pair::new();
            let flow = pair.open(lane);
            pair.run(Duration::from_millis(100));
            pair.cut(stalling, Cut::Frames);
            pair.write(0, flow, vec![1; 200_000]);
            pair.run(Duration::from_secs(1));
            let before = pair.sent.len();
            pair.run(Duration::from_millis(300));
            assert_eq!(pair.read(1, flow).len(), 200_000, "{lane} lane, {stalling:?}");
            assert!(pair.sent[before..].iter().all(|(path, _)| *path == other(stalling)));
            assert_eq!(pair.ends[0].status(pair.now).paths[stalling.index()].state, PathState::Active);
        }
    }
}

#[test]
fn only_the_connecting_side_waits_forever_for_its_first_path() {
    let has_failed = |side| {
        let start = Instant::from_secs(1);
        let mut session = LinkSession::new(side, SessionConfig::default(), start, 0).unwrap();
        for second in 0..=61 {
            session.handle_timeout(start + Duration::from_secs(second));
        }
        std::iter::from_fn(|| session.poll_event())
            .any(|event| matches!(event, SessionEvent::SessionFailed { .. }))
    };
    assert!(!has_failed(Side::Connecting));
    assert!(has_failed(Side::Listening), "it would take the place of another session");
}
