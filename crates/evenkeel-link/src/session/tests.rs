//! Two sessions joined by paths without delay, which a test can cut.

mod candidates;
mod datagrams;
mod hop_changes;
mod limits;
mod loss;
mod redundant;

use super::*;
use crate::flow::FlowLane;
use crate::frame::{DatagramFrame, Frame, FrameDecoder};
use crate::path_signals::PathSignals;
use bytes::Bytes;
use evenkeel_policy::id::PathId;

const A: PathId = PathId(0);
const B: PathId = PathId(1);
const RTT: Duration = Duration::from_millis(10);

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    None,
    /// Datagrams are lost.
    Datagrams,
    /// Frames are on their way for very long, although packets are acknowledged.
    Frames,
    /// Datagrams of flows wait until [`Pair::deliver_held`].
    Held,
    /// Everything is lost.
    All,
}

/// Two sessions with paths A and B.
struct Pair {
    now: Instant,
    ends: [LinkSession; 2],
    cuts: [Cut; 2],
    cut_at: [Instant; 2],
    rtts: [Duration; 2],
    rtt_sums: [Duration; 2],
    /// Frames that were sent, by path.
    sent: Vec<(PathId, StreamKey)>,
    /// Paths of the batches of acknowledgements that were sent.
    acks: Vec<PathId>,
    /// Datagrams of flows that were sent, by path.
    datagrams: Vec<PathId>,
    held: Vec<(usize, PathId, Bytes)>,
    events: [Vec<SessionEvent>; 2],
    round_trips: u64,
}

impl Pair {
    fn new() -> Self {
        Self::with(SessionConfig::default())
    }

    fn with(config: SessionConfig) -> Self {
        let now = Instant::from_secs(1);
        let session = |side| LinkSession::new(side, config.clone(), now, 0).unwrap();
        let mut pair = Self {
            now,
            ends: [session(Side::Connecting), session(Side::Listening)],
            cuts: [Cut::None; 2],
            cut_at: [now; 2],
            rtts: [RTT; 2],
            rtt_sums: [Duration::ZERO; 2],
            sent: Vec::new(),
            acks: Vec::new(),
            datagrams: Vec::new(),
            held: Vec::new(),
            events: [Vec::new(), Vec::new()],
            round_trips: 0,
        };
        for end in &mut pair.ends {
            for path in [A, B] {
                end.add_path(now, path, "path").unwrap();
                end.handle_path_up(now, path);
            }
        }
        pair.run(Duration::from_millis(500));
        pair
    }

    /// Exchanges everything for some time, in steps of 5 ms.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(5);
            self.pass_signals();
            let now = self.now;
            self.ends.iter_mut().for_each(|session| session.handle_timeout(now));
            self.exchange();
        }
    }

    /// Every path that is not cut had a round trip since the last step.
    fn pass_signals(&mut self) {
        self.round_trips += 1;
        for (path, cut) in [A, B].into_iter().zip(self.cuts) {
            let is_dead = cut == Cut::All;
            let round_trips = if is_dead { 0 } else { self.round_trips };
            self.rtt_sums[path.index()] += self.rtts[path.index()];
            let signals = PathSignals {
                rtt_count: round_trips,
                rtt_sum: if is_dead { Duration::ZERO } else { self.rtt_sums[path.index()] },
                acked_packets: round_trips,
                waiting_since: is_dead.then_some(self.cut_at[path.index()]),
                acked_at: (!is_dead).then_some(self.now),
                ..PathSignals::default()
            };
            let now = self.now;
            self.ends.iter_mut().for_each(|session| session.handle_signals(now, path, signals));
        }
    }

    fn cut(&mut self, path: PathId, cut: Cut) {
        self.cuts[path.index()] = cut;
        self.cut_at[path.index()] = self.now;
    }

    fn exchange(&mut self) {
        loop {
            let mut is_done = true;
            for from in [0, 1] {
                while let Some(transmit) = self.ends[from].poll_transmit(self.now) {
                    is_done = false;
                    self.deliver(from, transmit);
                }
                while let Some(datagram) = self.ends[from].poll_datagram(self.now) {
                    is_done = false;
                    if matches!(DatagramFrame::decode(&datagram.data), Ok(DatagramFrame::Acks(_))) {
                        self.acks.push(datagram.path);
                    }
                    if matches!(self.cuts[datagram.path.index()], Cut::None | Cut::Frames | Cut::Held) {
                        let _ = self.ends[1 - from].handle_datagram(self.now, datagram.path, &datagram.data);
                    }
                }
                while let Some(event) = self.ends[from].poll_event() {
                    self.events[from].push(event);
                }
            }
            if is_done {
                break;
            }
        }
    }

    fn deliver(&mut self, from: usize, transmit: Transmit) {
        if let Transmit::Datagram { path, data } = transmit {
            return self.deliver_datagram(from, path, data);
        }
        let Transmit::Frame { path, stream, header, data } = transmit else { return };
        self.sent.push((path, stream));
        if self.cuts[path.index()] == Cut::All {
            return;
        }
        self.ends[from].handle_written(path, stream, (header.len() + data.len()) as u64);
        if self.cuts[path.index()] == Cut::Frames {
            return;
        }
        let mut decoder = FrameDecoder::new();
        for mut input in [header, data] {
            while let Some(frame) = decoder.decode(&mut input).unwrap() {
                let _ = self.ends[1 - from].handle_frame(self.now, path, frame);
            }
        }
    }

    fn deliver_datagram(&mut self, from: usize, path: PathId, data: Bytes) {
        self.datagrams.push(path);
        let cut = self.cuts[path.index()];
        if cut == Cut::All {
            return;
        }
        self.ends[from].handle_datagram_sent(path, data.len() as u64);
        match cut {
            Cut::None | Cut::Frames => {
                let _ = self.ends[1 - from].handle_datagram(self.now, path, &data);
            }
            Cut::Held => self.held.push((from, path, data)),
            Cut::Datagrams | Cut::All => {}
        }
    }

    /// Delivers the datagrams that were held.
    fn deliver_held(&mut self) {
        for (from, path, data) in std::mem::take(&mut self.held) {
            let _ = self.ends[1 - from].handle_datagram(self.now, path, &data);
        }
        self.exchange();
    }

    fn open(&mut self, lane: FlowLane) -> FlowId {
        let flow = self.ends[0].open(self.now, lane, "target").unwrap();
        self.exchange();
        flow
    }

    fn write(&mut self, from: usize, flow: FlowId, data: impl Into<Bytes>) -> usize {
        let written = self.ends[from].write(self.now, flow, data.into()).unwrap();
        self.exchange();
        written
    }

    fn finish(&mut self, from: usize, flow: FlowId) {
        self.ends[from].finish(flow);
        self.exchange();
    }

    fn reset(&mut self, from: usize, flow: FlowId, text: &str) {
        self.ends[from].reset(self.now, flow, ResetReason::new(ResetCode::APPLICATION, text));
        self.exchange();
    }

    /// Reads everything that has arrived.
    fn read(&mut self, at: usize, flow: FlowId) -> Vec<u8> {
        let mut all = Vec::new();
        while let Read::Data(data) = self.ends[at].read(self.now, flow, 5_000) {
            all.extend_from_slice(&data);
        }
        self.exchange();
        all
    }

    fn next_read(&mut self, at: usize, flow: FlowId) -> Read {
        self.ends[at].read(self.now, flow, 5_000)
    }

    fn end_of(&self, at: usize, flow: FlowId) -> Option<&FlowEnd> {
        self.events[at].iter().find_map(|event| match event {
            SessionEvent::FlowEnded { flow: ended, end } if *ended == flow => Some(end),
            _ => None,
        })
    }

    fn failure(&self, at: usize) -> Option<&SessionError> {
        self.events[at].iter().find_map(|event| match event {
            SessionEvent::SessionFailed { error } => Some(error),
            _ => None,
        })
    }
}

#[test]
fn data_and_both_ends_arrive_in_both_directions() {
    for lane in [FlowLane::Stream, FlowLane::Bonded, FlowLane::Redundant] {
        let mut pair = Pair::new();
        let flow = pair.open(lane);
        let accepted = SessionEvent::Accepted { flow, lane, target: "target".to_owned() };
        assert!(pair.events[1].contains(&accepted));
        pair.write(0, flow, &b"request"[..]);
        pair.finish(0, flow);
        assert_eq!(pair.read(1, flow), b"request");
        assert_eq!(pair.next_read(1, flow), Read::Finished);
        assert_eq!(pair.end_of(1, flow), None, "the other direction is open");
        pair.write(1, flow, &b"response"[..]);
        pair.finish(1, flow);
        assert_eq!(pair.read(0, flow), b"response");
        pair.run(Duration::from_millis(20));
        for at in [0, 1] {
            assert_eq!(pair.end_of(at, flow), Some(&FlowEnd::Finished));
            assert_eq!(pair.next_read(at, flow), Read::Finished);
            assert!(pair.ends[at].is_drained());
            assert_eq!(pair.ends[at].status(pair.now).flows, []);
        }
        assert_eq!(pair.ends[0].write(pair.now, flow, Bytes::new()), Err(FlowEnd::Finished));
    }
}

#[test]
fn a_reset_reaches_the_peer_with_its_reason() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    pair.write(0, flow, &b"data"[..]);
    pair.reset(1, flow, "connection refused");
    let reason = ResetReason::new(ResetCode::APPLICATION, "connection refused");
    let end = FlowEnd::Reset(reason.clone());
    for at in [0, 1] {
        assert_eq!(pair.end_of(at, flow), Some(&end));
        assert_eq!(pair.next_read(at, flow), Read::Reset(reason.clone()));
        assert_eq!(pair.ends[at].write(pair.now, flow, Bytes::new()), Err(end.clone()));
    }
}

#[test]
fn a_goodbye_reaches_the_peer() {
    let mut pair = Pair::new();
    pair.ends[0].goodbye(pair.now);
    pair.run(Duration::from_millis(20));
    assert!(pair.events[1].contains(&SessionEvent::Goodbye));
    assert!(pair.ends[0].is_drained());
}

#[test]
fn a_bonded_flow_takes_all_paths_once_the_peer_knows_it() {
    let mut pair = Pair::new();
    pair.cut(A, Cut::Datagrams);
    pair.cut(B, Cut::Datagrams);
    let flow = pair.open(FlowLane::Bonded);
    pair.write(0, flow, vec![1; 60_000]);
    let own = StreamKey::Flow(flow);
    let first = pair.sent.iter().find(|(_, stream)| *stream == own).unwrap().0;
    assert!(pair.sent.iter().all(|(_, stream)| *stream != StreamKey::Bonded), "{:?}", pair.sent);
    assert!(pair.sent.iter().filter(|(_, stream)| *stream == own).all(|(path, _)| *path == first));
    pair.cuts = [Cut::None; 2];
    pair.run(Duration::from_millis(100));
    pair.sent.clear();
    pair.write(0, flow, vec![1; 100_000]);
    for path in [A, B] {
        assert!(pair.sent.contains(&(path, StreamKey::Bonded)), "{:?}", pair.sent);
    }
}

#[test]
fn an_application_that_does_not_read_stalls_only_its_own_flow() {
    let mut pair = Pair::new();
    let unread = pair.open(FlowLane::Stream);
    let read = pair.open(FlowLane::Stream);
    while pair.write(0, unread, vec![1; 100_000]) > 0 {
        pair.run(Duration::from_millis(20));
    }
    pair.events[0].clear();
    let stalled = pair.ends[1].status(pair.now).totals.receive_buffered;
    assert_eq!(stalled, CREDIT_INITIAL, "no more than the credit arrives");
    let mut written = 0;
    let mut received = 0;
    for _ in 0..100 {
        written += pair.write(0, read, vec![2; 100_000]);
        pair.run(Duration::from_millis(10));
        received += pair.read(1, read).len();
    }
    assert!(received > 9_000_000 && received <= written, "{received} of {written}");
    assert!(!pair.events[0].contains(&SessionEvent::Writable { flow: unread }));
    assert_eq!(pair.read(1, unread).len() as u64, CREDIT_INITIAL);
    pair.run(Duration::from_millis(50));
    assert!(pair.events[0].contains(&SessionEvent::Writable { flow: unread }));
}

#[test]
fn an_idle_path_is_probed_every_200_ms_and_a_new_one_every_50() {
    let mut pair = Pair::new();
    let now = pair.now;
    let session = &mut pair.ends[0];
    session.add_path(now, PathId(2), "new").unwrap();
    session.handle_path_up(now, PathId(2));
    let mut probes_in = |second: u64, acks: bool| {
        let mut probes = [0; 3];
        for millis in 0..1_000 {
            let now = now + Duration::from_millis(1_000 * second + millis);
            if acks {
                session.acks.mark(FlowId::CONTROL, Urgency::Soon);
            }
            session.handle_timeout(now);
            while let Some(datagram) = session.poll_datagram(now) {
                let is_probe =
                    matches!(DatagramFrame::decode(&datagram.data), Ok(DatagramFrame::Probe { .. }));
                probes[datagram.path.index()] += usize::from(is_probe);
            }
        }
        probes
    };
    let [used, _, new] = probes_in(0, true);
    let are_expected = (4..=6).contains(&used) && (18..=21).contains(&new);
    assert!(are_expected, "acknowledgements are no probes: {used}, {new}");
    let [used, ..] = probes_in(2, false);
    assert!((4..=6).contains(&used), "{used}");
}

#[test]
fn a_connected_path_carries_traffic_before_it_is_active_if_there_is_no_other() {
    let now = Instant::from_secs(1);
    let mut session = LinkSession::new(Side::Connecting, SessionConfig::default(), now, 0).unwrap();
    session.add_path(now, A, "first").unwrap();
    session.open(now, FlowLane::Stream, "target").unwrap();
    assert_eq!(session.poll_transmit(now), None, "there is no connection");
    session.handle_path_up(now, A);
    assert_eq!(session.poll_transmit(now).map(|transmit| transmit.path()), Some(A));
}

#[test]
fn the_bonded_lane_gets_the_round_trip_without_the_queue() {
    let mut pair = Pair::new();
    pair.rtts[0] = 50 * RTT;
    pair.run(Duration::from_secs(10));
    let measured = pair.ends[0].paths.bond_measurements(pair.now, Duration::from_secs(1));
    let path = measured.iter().find(|measured| measured.path == A).unwrap();
    assert_eq!(path.baseline, RTT);
    assert!(path.rtt > 40 * RTT, "{path:?}");
}

#[test]
fn a_session_that_has_ended_has_no_answering_path() {
    let mut pair = Pair::new();
    assert!(pair.ends[0].has_answering_path(pair.now));
    pair.ends[0].end(pair.now, "closed");
    assert!(!pair.ends[0].has_answering_path(pair.now));
}

#[test]
fn status_shows_paths_flows_and_totals() {
    let mut pair = Pair::new();
    let flow = pair.open(FlowLane::Stream);
    pair.write(0, flow, vec![1; 1_000]);
    pair.run(Duration::from_millis(20));
    let status = pair.ends[0].status(pair.now);
    assert_eq!(status.paths.len(), 2);
    let path = status.paths.iter().find(|path| path.counters.sent_bytes > 0).unwrap();
    assert!(path.connected && !path.silent && path.weight.is_some(), "{path:?}");
    assert_eq!(path.rtt, Some(RTT));
    assert_eq!(path.counters.activated, 1);
    let [row] = &status.flows[..] else { panic!("{:?}", status.flows) };
    assert_eq!((row.flow, row.written, row.acked, row.path), (flow, 1_000, 1_000, Some(path.path)));
    let row = &pair.ends[1].status(pair.now).flows[0];
    assert_eq!((row.received, row.read, row.reorder_bytes), (1_000, 0, 0));
    assert_eq!(pair.ends[1].status(pair.now).totals.receive_buffered, 1_000);
}

fn chunk(flow: FlowId, offset: u64, data: &'static [u8], fin: bool) -> Frame {
    Frame::Chunk(crate::frame::Chunk { flow, offset, fin, data: Bytes::from_static(data) })
}
