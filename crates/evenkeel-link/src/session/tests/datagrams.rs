//! Flows of datagrams over two paths.

use super::*;
use crate::flow::{DatagramMode, LaneSupport};
use crate::frame::{Fragment, Message, SendTime, encode_message};

const STRIPE: FlowLane = FlowLane::Datagram(DatagramMode::Stripe);
const PIN: FlowLane = FlowLane::Datagram(DatagramMode::Pin);
const DUPLICATE: FlowLane = FlowLane::Datagram(DatagramMode::Duplicate);
const C: PathId = PathId(2);

impl Pair {
    fn send(&mut self, from: usize, flow: FlowId, data: impl Into<Bytes>) {
        self.ends[from].send_datagram(self.now, flow, data.into()).unwrap();
        self.exchange();
    }

    /// Sends datagrams of two bytes that hold their number.
    fn send_numbers(&mut self, flow: FlowId, numbers: std::ops::Range<u16>) {
        for number in numbers {
            self.send(0, flow, number.to_be_bytes().to_vec());
        }
    }

    fn received(&mut self, at: usize, flow: FlowId) -> Vec<Bytes> {
        let mut all = Vec::new();
        while let Read::Data(data) = self.ends[at].receive_datagram(flow) {
            all.push(data);
        }
        all
    }

    fn received_numbers(&mut self, flow: FlowId) -> Vec<u16> {
        let all = self.received(1, flow);
        all.iter().map(|data| u16::from_be_bytes([data[0], data[1]])).collect()
    }

    /// Adds path C to the receiving end, as a candidate: only a flow with datagrams on it waits for it.
    fn add_candidate(&mut self) {
        self.ends[1].add_path(self.now, C, "path").unwrap();
        self.ends[1].handle_path_up(self.now, C);
        for rtt_count in 1..=100 {
            self.now += Duration::from_millis(5);
            self.pass_signals();
            let rtt_sum = RTT * rtt_count as u32;
            let acked_at = Some(self.now);
            let signals = PathSignals {
                rtt_count,
                rtt_sum,
                acked_packets: rtt_count,
                acked_at,
                ..PathSignals::default()
            };
            self.ends[1].handle_signals(self.now, C, signals);
            self.ends[1].handle_timeout(self.now);
        }
        let path = &self.ends[1].status(self.now).paths[C.index()];
        assert!(path.role == TrafficRole::Candidate && path.state.is_usable(), "{path:?}");
    }

    /// Delivers a datagram that has taken some milliseconds on a path; the sender's clock is ahead by `clock`.
    fn deliver_delayed(&mut self, clock: u64, flow: FlowId, path: PathId, sequence: u64, delay: u64) {
        let sent_at = SendTime(clock + SendTime::new(self.now).0 - 10 * delay);
        let fragment = Fragment::WHOLE;
        let message = Message { flow, sequence, sent_at, fragment, data: Bytes::from_static(b"xx") };
        self.ends[1].handle_datagram(self.now, path, &encode_message(&message)).unwrap();
    }

    fn counters(&self, at: usize) -> DatagramCounters {
        self.ends[at].status(self.now).totals.datagrams
    }
}

#[test]
fn datagrams_pass_in_both_directions_and_keep_their_lengths() {
    for lane in [STRIPE, PIN, DUPLICATE] {
        let mut pair = Pair::new();
        let flow = pair.open(lane);
        for len in [0, 1, 1_073, 1_074, 1_452, 9_000, PAYLOAD_BYTES_MAX] {
            let data = Bytes::from_iter((0..len).map(|index| (index / 7) as u8));
            pair.send(0, flow, data.clone());
            assert!(pair.received(1, flow) == [data.clone()], "{lane}: {len} bytes");
            pair.send(1, flow, data.clone());
            assert!(pair.received(0, flow) == [data], "{lane}: {len} bytes");
        }
        pair.send(0, flow, vec![0; PAYLOAD_BYTES_MAX + 1]);
        assert_eq!(pair.received(1, flow).len(), 0);
        let expected = DatagramCounters { sent: 7, unsent: 1, received: 7, ..pair.counters(0) };
        assert_eq!(pair.counters(0), expected, "{lane}");
    }
}

#[test]
fn a_datagram_is_divided_by_the_mtu_of_the_path() {
    let mut pair = Pair::new();
    let flow = pair.open(PIN);
    pair.send(0, flow, vec![0; 1_400]);
    assert_eq!(pair.datagrams.len(), 2, "every path carries 1100 bytes");
    for path in [A, B] {
        let signals = PathSignals { datagram_max: 1_427, ..PathSignals::default() };
        let now = pair.now;
        pair.ends[0].handle_signals(now, path, signals);
    }
    pair.datagrams.clear();
    pair.send(0, flow, vec![0; 1_400]);
    assert_eq!(pair.datagrams.len(), 1);
    pair.send(0, flow, vec![0; 1_401]);
    assert_eq!(pair.datagrams.len(), 3);
}

#[test]
fn a_striped_flow_takes_all_paths_and_is_delivered_in_order() {
    let mut pair = Pair::new();
    let flow = pair.open(STRIPE);
    pair.cut(B, Cut::Held);
    pair.send_numbers(flow, 0..20);
    let on_b = pair.datagrams.iter().filter(|path| **path == B).count();
    assert!((5..=15).contains(&on_b), "{on_b} of 20");
    let before = pair.received_numbers(flow);
    assert!(before.len() < 20 - on_b, "datagrams of A wait for those of B: {before:?}");
    let waiting = pair.ends[1].status(pair.now).flows[0].datagrams.unwrap();
    assert_eq!(waiting.reorder_datagrams as usize, 20 - on_b - before.len());
    assert!(waiting.reorder_utilisation > 0.0 && waiting.reorder_bytes == 2 * waiting.reorder_datagrams);
    pair.deliver_held();
    let after = pair.received_numbers(flow);
    assert_eq!([before, after].concat(), (0..20).collect::<Vec<_>>());
    assert_eq!((pair.counters(1).lost, pair.counters(1).late), (0, 0));
}

#[test]
fn a_striped_flow_goes_on_after_the_deadline_and_drops_what_is_late() {
    let mut pair = Pair::new();
    let flow = pair.open(STRIPE);
    pair.cut(B, Cut::Held);
    pair.send_numbers(flow, 0..20);
    let held = pair.held.len() as u64;
    // Both paths have the same round trip, so datagrams wait for the shortest time.
    let due = pair.ends[1].poll_timeout().unwrap();
    assert!(due <= pair.now + Duration::from_millis(5), "{due:?} after {:?}", pair.now);
    pair.run(Duration::from_millis(5));
    let received = pair.received_numbers(flow);
    assert!(received.is_sorted() && received.len() as u64 == 20 - held, "{received:?}");
    pair.deliver_held();
    // Datagrams of B after the last one of A are not late.
    let last = received.last().copied();
    let after = pair.received_numbers(flow);
    assert!(after.len() < 3 && after.first().copied() > last.filter(|_| !after.is_empty()), "{after:?}");
    let counters = pair.counters(1);
    assert_eq!((counters.late, counters.lost), (held - after.len() as u64, held - after.len() as u64));
    let delays = std::iter::from_fn(|| pair.ends[1].poll_observation());
    assert!(delays.into_iter().any(|delay| matches!(delay, Observation::ReorderDelay { .. })));
}

#[test]
fn the_deadline_follows_the_delays_of_the_datagrams_whatever_the_clocks_show() {
    for clock in [10_000_000_000_u64, 0] {
        let mut pair = Pair::new();
        let flow = pair.open(STRIPE);
        // The round trips are equal, but the datagrams of B take 40 ms longer.
        for sequence in 0..50 {
            let (path, delay) = if sequence % 2 == 0 { (A, 3) } else { (B, 43) };
            pair.deliver_delayed(clock, flow, path, sequence, delay);
        }
        pair.deliver_delayed(clock, flow, A, 51, 3);
        let due = pair.ends[1].datagrams_due_at().unwrap();
        assert_eq!(due.since(pair.now), Duration::from_millis(40));
    }
}

#[test]
fn every_striped_flow_waits_for_its_own_deadline() {
    const SLOW: FlowId = FlowId(2);
    const FAST: FlowId = FlowId(4);
    for last in [SLOW, FAST] {
        let mut pair = Pair::with(SessionConfig { paths_active_max: 2, ..SessionConfig::default() });
        pair.add_candidate();
        for flow in [SLOW, FAST] {
            let open = Frame::Open { flow, lane: STRIPE, target: String::new() };
            pair.ends[1].handle_frame(pair.now, A, open).unwrap();
        }
        for sequence in (0..50).step_by(2) {
            pair.deliver_delayed(0, SLOW, A, sequence, 3);
            pair.deliver_delayed(0, SLOW, C, sequence + 1, 43);
            pair.deliver_delayed(0, FAST, A, sequence, 3);
            pair.deliver_delayed(0, FAST, B, sequence + 1, 3);
        }
        for flow in [SLOW, FAST] {
            assert_eq!(pair.received(1, flow).len(), 50);
        }
        let first = if last == FAST { SLOW } else { FAST };
        for flow in [first, last] {
            pair.deliver_delayed(0, flow, A, 51, 3);
        }
        let mut wakes = Vec::new();
        while let Some(due) = pair.ends[1].datagrams_due_at() {
            assert!(wakes.len() < 2, "woken too often: {wakes:?}");
            pair.ends[1].handle_timeout(due);
            wakes.push((due.since(pair.now), pair.received(1, FAST).len(), pair.received(1, SLOW).len()));
        }
        assert_eq!(wakes, [(Duration::from_millis(5), 1, 0), (Duration::from_millis(40), 0, 1)]);
    }
}

#[test]
fn a_path_that_is_250_ms_slower_takes_no_datagrams_of_a_striped_flow() {
    let mut pair = Pair::new();
    pair.rtts[1] = RTT + Duration::from_millis(260);
    pair.run(Duration::from_secs(10));
    assert!(pair.ends[0].status(pair.now).paths[1].state.is_usable());
    let flow = pair.open(STRIPE);
    pair.send_numbers(flow, 0..100);
    assert!(pair.datagrams.iter().all(|path| *path == A), "{:?}", pair.datagrams);
    pair.rtts[1] = RTT;
    pair.run(Duration::from_secs(10));
    pair.send_numbers(flow, 0..100);
    assert!(pair.datagrams.contains(&B));
}

#[test]
fn a_pinned_flow_stays_on_one_path_until_it_is_silent() {
    let mut pair = Pair::new();
    let flow = pair.open(PIN);
    pair.send_numbers(flow, 0..20);
    let pinned = pair.datagrams[0];
    assert!(pair.datagrams.iter().all(|path| *path == pinned), "{:?}", pair.datagrams);
    pair.cut(pinned, Cut::All);
    pair.run(Duration::from_millis(200));
    pair.datagrams.clear();
    pair.received(1, flow);
    pair.send_numbers(flow, 20..40);
    let other = PathId(1 - pinned.0);
    assert!(pair.datagrams.iter().all(|path| *path == other), "{:?}", pair.datagrams);
    assert_eq!(pair.received_numbers(flow), (20..40).collect::<Vec<_>>());
}

#[test]
fn a_duplicated_flow_takes_every_path_and_loses_nothing_with_one_of_them() {
    let mut pair = Pair::new();
    let flow = pair.open(DUPLICATE);
    pair.send_numbers(flow, 0..10);
    let counters = pair.counters(1);
    assert_eq!((counters.received, counters.duplicates, counters.lost), (10, 10, 0));
    assert_eq!(pair.counters(0).sent, 10, "copies count once");
    for path in [A, B] {
        assert_eq!(pair.ends[0].status(pair.now).paths[path.index()].counters.datagrams_sent, 10);
        assert_eq!(pair.ends[1].status(pair.now).paths[path.index()].counters.datagrams_received, 10);
    }
    pair.cut(A, Cut::All);
    pair.send_numbers(flow, 10..20);
    assert_eq!(pair.received_numbers(flow), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_duplicated_flow_takes_a_candidate_if_there_is_one_active_path() {
    let mut pair = Pair::with(SessionConfig { paths_active_max: 1, ..SessionConfig::default() });
    let flow = pair.open(DUPLICATE);
    pair.send_numbers(flow, 0..10);
    assert_eq!((pair.counters(1).received, pair.counters(1).duplicates), (10, 10));
}

#[test]
fn datagrams_that_arrive_before_their_flow_is_open_are_delivered() {
    let mut pair = Pair::new();
    pair.cut(A, Cut::Frames);
    pair.cut(B, Cut::Frames);
    let flow = pair.open(STRIPE);
    pair.send_numbers(flow, 0..10);
    assert_eq!(pair.end_of(1, flow), None);
    pair.cut(A, Cut::None);
    pair.cut(B, Cut::None);
    pair.run(Duration::from_secs(1));
    let accepted = SessionEvent::Accepted { flow, lane: STRIPE, target: "target".to_owned() };
    assert!(pair.events[1].contains(&accepted));
    assert_eq!(pair.received_numbers(flow), (0..10).collect::<Vec<_>>());
    let paths = pair.ends[1].status(pair.now).paths;
    assert_eq!(paths.iter().map(|path| path.counters.datagrams_received).sum::<u64>(), 10);
}

#[test]
fn at_most_64_datagrams_wait_for_the_opening_of_their_flows_and_the_others_count_as_unread() {
    let mut pair = Pair::new();
    for sequence in 0..100 {
        let message = Message {
            flow: FlowId(8),
            sequence,
            sent_at: SendTime(0),
            fragment: Fragment::WHOLE,
            data: Bytes::from_static(b"xx"),
        };
        pair.ends[1].handle_datagram(pair.now, A, &encode_message(&message)).unwrap();
    }
    let open = Frame::Open { flow: FlowId(8), lane: PIN, target: String::new() };
    pair.ends[1].handle_frame(pair.now, A, open).unwrap();
    assert_eq!(pair.received(1, FlowId(8)).len(), 64);
    assert_eq!((pair.counters(1).received, pair.counters(1).unread), (64, 36));
}

#[test]
fn all_flows_together_store_at_most_64_mib_of_datagrams() {
    let mut pair = Pair::new();
    let data = Bytes::from(vec![7; 60_000]);
    for flow in (2..152).step_by(2).map(FlowId) {
        let open = Frame::Open { flow, lane: STRIPE, target: String::new() };
        pair.ends[1].handle_frame(pair.now, A, open).unwrap();
        // Every second datagram is missing.
        for sequence in (1..34).step_by(2) {
            let fragment = Fragment::WHOLE;
            let message = Message { flow, sequence, sent_at: SendTime(0), fragment, data: data.clone() };
            pair.ends[1].handle_datagram(pair.now, A, &encode_message(&message)).unwrap();
        }
        let totals = pair.ends[1].status(pair.now).totals;
        assert!(totals.datagram_bytes <= 64 << 20, "{totals:?}");
    }
    let totals = pair.ends[1].status(pair.now).totals;
    assert!(totals.datagram_bytes > 60 << 20 && totals.datagrams.unread > 0, "{totals:?}");
}

#[test]
fn without_a_path_datagrams_wait_for_a_second_at_most() {
    let mut pair = Pair::new();
    let flow = pair.open(DUPLICATE);
    let now = pair.now;
    for path in [A, B] {
        pair.ends[0].handle_path_down(now, path);
    }
    pair.send_numbers(flow, 0..10);
    assert_eq!(pair.datagrams, []);
    pair.now += Duration::from_millis(800);
    pair.send_numbers(flow, 10..20);
    pair.now += Duration::from_millis(800);
    let now = pair.now;
    pair.ends[0].handle_path_up(now, A);
    pair.exchange();
    assert_eq!(pair.received_numbers(flow), (10..20).collect::<Vec<_>>());
    assert_eq!(pair.counters(0).unsent, 10);
}

#[test]
fn a_path_without_room_does_not_stop_a_flow_on_another() {
    let mut pair = Pair::new();
    let flows = [pair.open(PIN), pair.open(PIN)];
    pair.send(0, flows[0], &b"x"[..]);
    pair.send(0, flows[1], &b"x"[..]);
    assert_ne!(pair.datagrams[0], pair.datagrams[1], "weights are equal");
    // The connection takes nothing any more, but the path is not silent yet.
    let full = pair.datagrams[0];
    pair.cut(full, Cut::All);
    for _ in 0..20 {
        pair.send(0, flows[0], vec![0; 1_000]);
    }
    let stuck = pair.datagrams.iter().filter(|path| **path == full).count();
    assert!((2..10).contains(&stuck), "4 KiB wait for the connection, the rest in the flow: {stuck}");
    pair.received(1, flows[1]);
    pair.send(0, flows[1], &b"goes on"[..]);
    assert_eq!(pair.received(1, flows[1]), ["goes on"]);
}

#[test]
fn a_datagram_of_a_byte_stream_is_a_violation() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    let message =
        Message { flow, sequence: 0, sent_at: SendTime(0), fragment: Fragment::WHOLE, data: Bytes::new() };
    let result = pair.ends[1].handle_datagram(pair.now, A, &encode_message(&message));
    assert_eq!(result, Err(ProtocolError::NoDatagramFlow { flow }));
}

#[test]
fn a_peer_of_an_older_version_gets_no_flow_of_datagrams() {
    let now = Instant::from_secs(1);
    let mut session = LinkSession::new(Side::Connecting, SessionConfig::default(), now, 0).unwrap();
    session.add_path(now, A, "first").unwrap();
    let waiting = session.open(now, DUPLICATE, "target").unwrap();
    let stream = session.open(now, FlowLane::Stream, "target").unwrap();
    session.send_datagram(now, waiting, Bytes::from_static(b"data")).unwrap();
    session.handle_peer_lanes(now, LaneSupport::StreamAndBonded);
    session.handle_path_up(now, A);
    let Read::Reset(reason) = session.receive_datagram(waiting) else { panic!("the flow is open") };
    assert_eq!(reason.code, ResetCode::REFUSED);
    assert!(reason.text.contains("older version of evenkeel, which has no lane \"duplicate\""), "{reason}");
    assert_eq!(session.open(now, PIN, "target"), Err(OpenFlowError::LaneUnsupported { lane: PIN }));
    while let Some(transmit) = session.poll_transmit(now) {
        let is_known =
            matches!(transmit, Transmit::Frame { stream: StreamKey::Flow(id), .. } if id == stream);
        assert!(is_known, "{transmit:?}");
    }
}

#[test]
fn the_counters_of_ended_flows_remain_in_the_totals() {
    let mut pair = Pair::new();
    let flow = pair.open(DUPLICATE);
    pair.send_numbers(flow, 0..10);
    let before = [pair.counters(0), pair.counters(1)];
    pair.reset(0, flow, "idle");
    pair.run(Duration::from_millis(20));
    assert_eq!(pair.ends[1].status(pair.now).flows, []);
    assert_eq!([pair.counters(0), pair.counters(1)], before);
}
