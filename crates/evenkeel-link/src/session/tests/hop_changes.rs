//! A hop change replaces the connection of a path, and nothing else: the scheduler never sees hops.

use super::*;

/// Picks of a session, and the weights and states of its paths at the end.
#[derive(Debug, PartialEq)]
struct Course {
    picks: Vec<(PathId, StreamKey)>,
    paths: Vec<(Option<u32>, evenkeel_policy::path::PathState)>,
}

/// Hop changes of path A: none, or one every so many steps.
type ChangeEvery = Option<u64>;

#[test]
fn a_hop_change_leaves_the_sequence_of_picks_identical() {
    let unchanged = course(None);
    let on = |path| unchanged.picks.iter().filter(|(picked, _)| *picked == path).count();
    assert!(on(A) > 100 && on(B) > 100, "both paths are picked: {} and {}", on(A), on(B));
    for every in [8, 24, 104] {
        assert_eq!(course(Some(every)), unchanged, "a change every {every} steps");
    }
}

#[test]
fn a_hop_change_keeps_weights_states_and_the_paths_of_flows_while_data_is_on_its_way() {
    let mut pair = Pair::new();
    pair.run(Duration::from_secs(3));
    let flows: Vec<FlowId> = (0..4).map(|_| pair.open(FlowLane::Stream)).collect();
    pair.run(Duration::from_millis(100));
    let before = pair.ends[0].status(pair.now);
    pair.cut(A, Cut::Frames);
    for flow in &flows {
        pair.write(0, *flow, vec![1; 100_000]);
    }
    let now = pair.now;
    pair.ends[0].handle_path_up(now, A);
    pair.cut(A, Cut::None);
    let after = pair.ends[0].status(now);
    for (before, after) in before.paths.iter().zip(&after.paths) {
        assert_eq!((before.weight, before.state, before.rtt), (after.weight, after.state, after.rtt));
        assert_eq!((before.counters.activated, before.counters.deactivated), (1, 0));
        assert_eq!((after.counters.activated, after.counters.deactivated), (1, 0));
    }
    let homes = |status: &SessionStatus| status.flows.iter().map(|flow| flow.path).collect::<Vec<_>>();
    assert_eq!(homes(&after), homes(&before));
    assert!(homes(&after).contains(&Some(A)), "{after:?}");
    pair.run(Duration::from_millis(500));
    for flow in flows {
        assert_eq!(pair.read(1, flow).len(), 100_000);
    }
}

/// Runs a session with varying samples and with traffic on both lanes.
fn course(change_every: ChangeEvery) -> Course {
    let mut pair = Pair::new();
    let bonded = pair.open(FlowLane::Bonded);
    // Some of them are on each path.
    let streams: Vec<FlowId> = (0..4).map(|_| pair.open(FlowLane::Stream)).collect();
    pair.write(0, bonded, vec![1; 1_000]);
    pair.run(Duration::from_millis(100));
    pair.sent.clear();
    // Counters of a connection start at zero, samples of a path go on.
    let mut counters = [pair.round_trips; 2].map(|count| PathSignals {
        rtt_count: count,
        rtt_sum: RTT * u32::try_from(count).unwrap(),
        acked_packets: count,
        ..PathSignals::default()
    });
    for step in 0..2_000_u64 {
        pair.now += Duration::from_millis(5);
        let now = pair.now;
        // Everything written is acknowledged by the seventh step after it.
        if change_every.is_some_and(|every| step % every == 7) {
            pair.ends.iter_mut().for_each(|session| session.handle_path_up(now, A));
            counters[A.index()] = PathSignals::default();
        }
        for path in [A, B] {
            let signals = &mut counters[path.index()];
            signals.rtt_count += 1;
            signals.rtt_sum += sample(path, step);
            signals.acked_packets += 1;
            signals.acked_at = Some(now);
            let signals = *signals;
            pair.ends.iter_mut().for_each(|session| session.handle_signals(now, path, signals));
        }
        pair.ends.iter_mut().for_each(|session| session.handle_timeout(now));
        if step % 8 == 0 {
            pair.write(0, bonded, vec![1; 40_000]);
            for stream in &streams {
                pair.write(0, *stream, vec![1; 1_000]);
            }
            let short = pair.open(FlowLane::Stream);
            pair.finish(0, short);
            pair.finish(1, short);
            pair.read(1, short);
        }
        pair.read(1, bonded);
        for stream in &streams {
            pair.read(1, *stream);
        }
        pair.exchange();
    }
    let status = pair.ends[0].status(pair.now);
    Course {
        picks: pair
            .sent
            .into_iter()
            .filter(|(_, stream)| *stream != StreamKey::Flow(FlowId::CONTROL))
            .collect(),
        paths: status.paths.iter().map(|path| (path.weight, path.state)).collect(),
    }
}

/// Round trips that vary by a factor of two, and slowly by another.
fn sample(path: PathId, step: u64) -> Duration {
    let slow = 5 + (step / 40) % 6;
    let fast = 5 + (step * 7 + u64::from(path.0) * 3) % 6;
    Duration::from_millis((slow + fast) * (1 + u64::from(path.0)))
}
