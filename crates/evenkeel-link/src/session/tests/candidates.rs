//! Path A is active, path B a candidate.

use super::*;

fn pair() -> Pair {
    Pair::with(SessionConfig { paths_active_max: 1, ..SessionConfig::default() })
}

fn roles(pair: &Pair) -> [TrafficRole; 2] {
    let paths = pair.ends[0].status(pair.now).paths;
    [paths[0].role, paths[1].role]
}

fn home(pair: &Pair, flow: FlowId) -> Option<PathId> {
    pair.ends[0].status(pair.now).flows.iter().find(|row| row.flow == flow)?.path
}

fn replacements(pair: &Pair) -> Vec<PathReplacement> {
    let replacement = |event: &SessionEvent| match event {
        SessionEvent::CandidateActivated { replacement } => Some(*replacement),
        _ => None,
    };
    pair.events[0].iter().filter_map(replacement).collect()
}

const A_ACTIVE: [TrafficRole; 2] = [TrafficRole::Active, TrafficRole::Candidate];
const B_ACTIVE: [TrafficRole; 2] = [TrafficRole::Candidate, TrafficRole::Active];

#[test]
fn a_candidate_carries_neither_data_nor_acknowledgements_while_the_active_path_is_healthy() {
    let mut pair = pair();
    for lane in [FlowLane::Stream, FlowLane::Bonded] {
        let flow = pair.open(lane);
        pair.run(Duration::from_millis(100));
        pair.write(0, flow, vec![1; 100_000]);
        pair.run(Duration::from_millis(100));
        assert_eq!(pair.read(1, flow).len(), 100_000);
    }
    assert_eq!(roles(&pair), A_ACTIVE);
    assert!(pair.sent.iter().all(|(path, _)| *path == A), "{:?}", pair.sent);
    assert!(!pair.acks.is_empty() && pair.acks.iter().all(|path| *path == A), "{:?}", pair.acks);
}

#[test]
fn a_faster_candidate_takes_the_flows_of_the_active_path_and_nothing_is_lost() {
    let mut pair = pair();
    let flow = pair.open(FlowLane::Stream);
    pair.write(0, flow, &b"first"[..]);
    pair.run(Duration::from_millis(100));
    assert_eq!(home(&pair, flow), Some(A));
    pair.rtts[0] = 3 * RTT;
    pair.cut(A, Cut::Frames);
    pair.write(0, flow, &b" second"[..]);
    pair.run(Duration::from_millis(800));
    assert_eq!(roles(&pair), A_ACTIVE, "ten samples are not over");
    pair.run(Duration::from_secs(3));
    assert_eq!((roles(&pair), home(&pair, flow)), (B_ACTIVE, Some(B)));
    assert_eq!(pair.read(1, flow), b"first second");
    let [swap] = replacements(&pair)[..] else { panic!("{:?}", replacements(&pair)) };
    assert_eq!((swap.removed, swap.added), (Some(A), B));
    let cause = "the p95 of 30.0ms without its own queue is worse than the candidate's of 10.0ms";
    assert_eq!(swap.cause.to_string(), cause);
    let totals = pair.ends[0].status(pair.now).totals;
    assert_eq!(totals.replacements, ReplacementCounts { slower: 1, unusable: 0 });
}

#[test]
fn a_candidate_carries_flows_at_once_when_the_active_path_fails_and_is_active_after_2_s() {
    let mut pair = pair();
    let flow = pair.open(FlowLane::Stream);
    pair.write(0, flow, &b"first"[..]);
    pair.ends.iter_mut().for_each(|session| session.handle_path_down(pair.now, A));
    pair.write(0, flow, &b" second"[..]);
    assert_eq!((home(&pair, flow), roles(&pair)), (Some(B), A_ACTIVE));
    assert_eq!(pair.read(1, flow), b"first second");
    pair.run(Duration::from_millis(2_200));
    assert_eq!(roles(&pair), B_ACTIVE);
    let expected = PathReplacement { removed: Some(A), added: B, cause: ReplacementCause::Unusable };
    assert_eq!(replacements(&pair), [expected]);
    pair.ends.iter_mut().for_each(|session| session.handle_path_up(pair.now, A));
    pair.run(Duration::from_secs(3));
    assert_eq!((home(&pair, flow), roles(&pair)), (Some(B), B_ACTIVE), "the first path is a candidate");
}

#[test]
fn flows_return_from_a_candidate_when_the_active_path_is_back_within_2_s() {
    let mut pair = pair();
    let flow = pair.open(FlowLane::Stream);
    pair.ends.iter_mut().for_each(|session| session.handle_path_down(pair.now, A));
    pair.write(0, flow, &b"first"[..]);
    assert_eq!(home(&pair, flow), Some(B));
    pair.ends.iter_mut().for_each(|session| session.handle_path_up(pair.now, A));
    pair.run(Duration::from_secs(1));
    assert_eq!((home(&pair, flow), roles(&pair)), (Some(A), A_ACTIVE));
    pair.write(0, flow, &b" second"[..]);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.read(1, flow), b"first second");
}

/// Opens a flow and lets path A, which stays healthy, stall it until it has moved to path B.
fn hedged_flow(pair: &mut Pair) -> FlowId {
    let flow = pair.open(FlowLane::Stream);
    pair.run(Duration::from_millis(100));
    pair.cut(A, Cut::Frames);
    pair.write(0, flow, vec![1; 1_000]);
    let start = pair.now;
    while home(pair, flow) == Some(A) {
        assert!(pair.now.since(start) < Duration::from_secs(5), "the flow stays on the path that stalls it");
        pair.run(Duration::from_millis(5));
    }
    flow
}

#[test]
fn a_flow_does_not_return_for_a_minute_to_a_healthy_active_path_that_stalled_it() {
    let mut pair = pair();
    let flow = hedged_flow(&mut pair);
    let start = pair.now;
    pair.run(Duration::from_millis(200));
    assert_eq!(pair.read(1, flow).len(), 1_000);
    for _ in 0..580 {
        pair.write(0, flow, vec![1; 1_000]);
        pair.run(Duration::from_millis(100));
        assert_eq!(pair.read(1, flow).len(), 1_000, "after {:?}", pair.now.since(start));
    }
    assert_eq!((home(&pair, flow), roles(&pair)), (Some(B), A_ACTIVE));
    pair.run(Duration::from_secs(3));
    assert_eq!(home(&pair, flow), Some(A));
}

#[test]
fn a_flow_returns_to_a_path_that_stalled_it_once_that_path_has_been_unhealthy() {
    let mut pair = pair();
    let flow = hedged_flow(&mut pair);
    pair.ends.iter_mut().for_each(|session| session.handle_path_down(pair.now, A));
    pair.run(Duration::from_millis(200));
    assert_eq!(home(&pair, flow), Some(B));
    pair.cut(A, Cut::None);
    pair.ends.iter_mut().for_each(|session| session.handle_path_up(pair.now, A));
    pair.run(Duration::from_secs(1));
    assert_eq!((home(&pair, flow), roles(&pair)), (Some(A), A_ACTIVE));
}

#[test]
fn a_candidate_becomes_active_when_the_active_path_is_removed() {
    let mut pair = pair();
    pair.ends[0].remove_path(pair.now, A);
    pair.run(Duration::from_millis(200));
    assert_eq!(pair.ends[0].status(pair.now).paths[0].role, TrafficRole::Active);
    assert_eq!(replacements(&pair)[0].removed, None);
}

#[test]
fn the_first_paths_are_active_in_whatever_order_they_are_added() {
    let config = SessionConfig { paths_active_max: 2, ..SessionConfig::default() };
    let mut session = LinkSession::new(Side::Listening, config, Instant::ORIGIN, 0).unwrap();
    for path in [2, 1, 3, 0] {
        session.add_path(Instant::ORIGIN, PathId(path), "path").unwrap();
    }
    let paths = session.status(Instant::ORIGIN).paths;
    let active: Vec<u32> =
        paths.iter().filter(|path| path.role == TrafficRole::Active).map(|path| path.path.0).collect();
    assert_eq!(active, [0, 1]);
}

#[test]
fn at_least_one_path_must_be_allowed() {
    for paths_active_max in [0, 129] {
        let config = SessionConfig { paths_active_max, ..SessionConfig::default() };
        let error = LinkSession::new(Side::Connecting, config, Instant::ORIGIN, 0).unwrap_err();
        assert_eq!(error.setting, "paths_active_max");
    }
}
