//! One side of the link: its session, its connections and its applications.

use std::collections::BTreeMap;

use bytes::Bytes;
use evenkeel_link::flow::{FlowEnd, FlowId, Side};
use evenkeel_link::session::{LinkSession, PathReplacement, Read, SessionEvent};
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::BondChange;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::Instant;

use super::connection::ConnectionModel;
use super::datagram_traffic::{DatagramRun, DatagramSource};
use super::traffic::{PatternSink, PatternSource, WritePermission};
use super::{LinkPlan, SessionFailure, Timed, TimedTransition};

const READ_BYTES: usize = 64 * 1024;

/// One side of the link.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) session: LinkSession,
    /// Connection of each path; `None` while the path has none.
    pub(super) connections: Vec<Option<ConnectionModel>>,
    /// Applications by flow.
    applications: BTreeMap<FlowId, Application>,
    pub(super) transitions: Vec<TimedTransition>,
    pub(super) replacements: Vec<Timed<PathReplacement>>,
    pub(super) bonded_changes: Vec<Timed<BondChange>>,
    pub(super) failure: Option<SessionFailure>,
    /// Paths reported as silent and not yet reconnected.
    pub(super) silent: Vec<PathId>,
    /// End of each flow at this side, by index into `LinkPlan::flows`.
    pub(super) ends: BTreeMap<usize, FlowEnd>,
    /// Checker of the received bytes of each flow, by index into `LinkPlan::flows`; it stays after the flow has ended.
    pub(super) sinks: BTreeMap<usize, PatternSink>,
    /// Senders of datagrams, by index into `LinkPlan::flows`.
    datagram_sources: BTreeMap<usize, DatagramSource>,
    /// Index into `LinkPlan::flows` of each flow of datagrams of the other side.
    datagram_flows: BTreeMap<FlowId, usize>,
    /// Datagrams that arrived, by index into `LinkPlan::flows`.
    pub(super) datagrams: BTreeMap<usize, DatagramRun>,
    side: Side,
}

/// Application at one end of a flow.
#[derive(Debug)]
struct Application {
    /// Index of the flow's plan.
    plan: usize,
    source: PatternSource,
}

impl Endpoint {
    pub(super) fn new(side: Side, plan: &LinkPlan, phase: u64) -> Result<Self, SettingOutOfRange> {
        let mut session = LinkSession::new(side, plan.config.clone(), Instant::ORIGIN, phase)?;
        for path in (0..).map(PathId).take(plan.paths.len()) {
            // Fails only for a path that exists, or too many of them.
            let _ = session.add_path(Instant::ORIGIN, path, &format!("path {}", path.0));
        }
        Ok(Self {
            session,
            connections: plan.paths.iter().map(|_| None).collect(),
            applications: BTreeMap::new(),
            transitions: Vec::new(),
            replacements: Vec::new(),
            bonded_changes: Vec::new(),
            failure: None,
            silent: Vec::new(),
            ends: BTreeMap::new(),
            sinks: BTreeMap::new(),
            datagram_sources: BTreeMap::new(),
            datagram_flows: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            side,
        })
    }

    /// Opens the flow of a plan; the index of the plan is its target.
    pub(super) fn open(&mut self, now: Instant, plan: &LinkPlan, index: usize) {
        let lane = plan.flows[index].lane;
        match self.session.open(now, lane, &index.to_string()) {
            Ok(flow) if lane.datagram_mode().is_some() => {
                let source = DatagramSource::new(flow, plan.flows[index].bytes);
                self.datagram_sources.insert(index, source);
            }
            Ok(flow) => self.start(now, plan, index, flow),
            Err(_) => self.session.handle_timeout(now),
        }
    }

    fn start(&mut self, now: Instant, plan: &LinkPlan, index: usize, flow: FlowId) {
        let flow_plan = &plan.flows[index];
        let opener_seed = seed(plan, index, Writer::Opener);
        let acceptor_seed = seed(plan, index, Writer::Acceptor);
        let (source, sink) = if flow_plan.opener == self.side {
            let permission = match flow_plan.pace {
                Some(_) => WritePermission::Nothing,
                None => WritePermission::Everything,
            };
            let source = PatternSource::new(opener_seed, flow_plan.bytes, permission);
            (source, PatternSink::new(now, acceptor_seed, flow_plan.reply))
        } else {
            let permission =
                if has_delayed_fin(index) { WritePermission::Nothing } else { WritePermission::Everything };
            let source = PatternSource::new(acceptor_seed, flow_plan.reply, permission);
            (source, PatternSink::new(now, opener_seed, flow_plan.bytes))
        };
        self.applications.insert(flow, Application { plan: index, source });
        self.sinks.insert(index, sink);
        self.write(now, flow);
    }

    /// Lets the paced flow of a plan write; reports whether more writes follow.
    pub(super) fn write_paced(&mut self, now: Instant, index: usize) -> bool {
        if let Some(source) = self.datagram_sources.get_mut(&index) {
            let Some(data) = source.next(now) else { return false };
            return self.session.send_datagram(now, source.flow, data).is_ok();
        }
        let paced = self.applications.iter_mut().find(|(_, application)| application.plan == index);
        let Some((&flow, application)) = paced else { return false };
        let follows = application.source.allow_write();
        self.write(now, flow);
        follows
    }

    fn write(&mut self, now: Instant, flow: FlowId) {
        let Some(application) = self.applications.get_mut(&flow) else { return };
        let source = &mut application.source;
        loop {
            let data = source.next();
            if data.is_empty() {
                break;
            }
            let len = data.len();
            let Ok(written) = self.session.write(now, flow, data) else { return };
            source.record_written(written);
            if written < len {
                return;
            }
        }
        // `finish_flows` sends the FIN of the others later, in a frame of its own.
        if !has_delayed_fin(application.plan) {
            self.finish(flow);
        }
    }

    fn finish(&mut self, flow: FlowId) {
        let Some(application) = self.applications.get_mut(&flow) else { return };
        if application.source.is_complete() && !application.source.is_finished {
            application.source.is_finished = true;
            self.session.finish(flow);
        }
    }

    /// Finishes the flows to which everything is written.
    pub(super) fn finish_flows(&mut self) {
        let flows: Vec<FlowId> = self.applications.keys().copied().collect();
        flows.into_iter().for_each(|flow| self.finish(flow));
    }

    fn read(&mut self, now: Instant, flow: FlowId) {
        if let Some(&index) = self.datagram_flows.get(&flow) {
            let run = self.datagrams.entry(index).or_default();
            while let Read::Data(data) = self.session.receive_datagram(flow) {
                run.record(now, &data);
            }
        }
        let Some(application) = self.applications.get_mut(&flow) else { return };
        let plan = application.plan;
        loop {
            match self.session.read(now, flow, READ_BYTES) {
                Read::Data(data) => {
                    if let Some(sink) = self.sinks.get_mut(&plan) {
                        sink.check(now, &data);
                    }
                }
                Read::Finished if flow.opener() != self.side => {
                    application.source.allow_all();
                    return self.write(now, flow);
                }
                Read::Finished | Read::Pending | Read::Reset(_) => return,
            }
        }
    }

    /// Handles the events of the session; returns a line for each.
    pub(super) fn handle_events(&mut self, now: Instant, plan: &LinkPlan) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(event) = self.session.poll_event() {
            lines.push(format!("{event:?}"));
            match event {
                SessionEvent::Accepted { flow, lane, target } => {
                    let index = target.parse().unwrap_or(0);
                    if lane.datagram_mode().is_some() {
                        self.datagram_flows.insert(flow, index);
                    } else {
                        self.start(now, plan, index, flow);
                    }
                    self.read(now, flow);
                }
                SessionEvent::Readable { flow } => self.read(now, flow),
                SessionEvent::Writable { flow } => self.write(now, flow),
                SessionEvent::FlowEnded { flow, end } => {
                    if let Some(application) = self.applications.remove(&flow) {
                        self.ends.insert(application.plan, end);
                    }
                }
                SessionEvent::PathChanged { path, transition } => {
                    self.transitions.push(TimedTransition { at: now, path, transition });
                }
                SessionEvent::CandidateActivated { replacement: event } => {
                    self.replacements.push(Timed { at: now, event });
                }
                SessionEvent::BondedLaneChanged { change: event } => {
                    self.bonded_changes.push(Timed { at: now, event });
                }
                SessionEvent::PathSilent { path } => self.silent.push(path),
                SessionEvent::SessionFailed { error } => {
                    self.failure = Some(SessionFailure { at: now, error });
                }
                SessionEvent::Goodbye => {}
            }
        }
        while self.session.poll_observation().is_some() {}
        lines
    }

    /// Passes a stream's data to the session, cut at `cut`; `repeat` delivers every frame twice.
    pub(super) fn receive(&mut self, now: Instant, arrival: Arrival<'_>) {
        let Arrival { path, stream, sequence, data, cut, repeat } = arrival;
        let Some(connection) = self.connections.get_mut(path.index()).and_then(Option::as_mut) else {
            return;
        };
        let (pieces, decoder) = connection.receive(stream, sequence, data.clone());
        for mut piece in pieces {
            let rest = piece.split_off(cut.min(piece.len()));
            for mut input in [piece, rest] {
                while let Ok(Some(frame)) = decoder.decode(&mut input) {
                    // An error has ended the session, which reports it.
                    if repeat {
                        let _ = self.session.handle_frame(now, path, frame.clone());
                    }
                    let _ = self.session.handle_frame(now, path, frame);
                }
            }
        }
    }
}

/// Data of a stream that arrives.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    pub(super) path: PathId,
    pub(super) stream: u64,
    pub(super) sequence: u64,
    pub(super) data: &'a Bytes,
    pub(super) cut: usize,
    pub(super) repeat: bool,
}

/// Reports whether a flow sends its FIN in a separate frame, and its acceptor replies only after reading everything; every
/// second flow does.
fn has_delayed_fin(index: usize) -> bool {
    index.is_multiple_of(2)
}

/// Side of a flow that writes a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Opener,
    Acceptor,
}

/// Returns the seed of the bytes that the opener or the acceptor writes.
fn seed(plan: &LinkPlan, index: usize, writer: Writer) -> u64 {
    let direction = u64::from(writer == Writer::Acceptor);
    plan.seed ^ ((2 * index as u64 + direction) << 32)
}
