//! Runs a plan: sessions send, wires delay and lose, connections acknowledge, drivers reconnect.

use std::collections::BTreeSet;

use bytes::Bytes;
use evenkeel_link::flow::{FlowId, Side};
use evenkeel_link::session::{StreamKey, Transmit};
use evenkeel_policy::id::PathId;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::{Duration, Instant};

use super::connection::{ConnectionModel, Content, Departure};
use super::endpoint::{Arrival, Endpoint};
use super::wire::{Fate, Wire};
use super::{LinkFlowRun, LinkPlan, LinkRun, PathFaultKind, SessionMemory};
use crate::event_queue::EventQueue;
use crate::rng::Rng;

/// Time between two readings of the connections' measurements.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(10);
const MEMORY_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an acknowledgement after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum retransmission timeout of a packet that a black hole dropped.
const RESEND_MIN: Duration = Duration::from_millis(100);
/// Maximum number of doublings of that timeout.
const RESEND_DOUBLINGS_MAX: u32 = 6;

const SIDES: [Side; 2] = [Side::Connecting, Side::Listening];

#[derive(Debug)]
enum LinkEvent {
    Arrive {
        sender: SenderId,
        packet: u64,
        content: Content,
    },
    Ack {
        sender: SenderId,
        packet: u64,
    },
    /// A packet is sent again; `is_loss` if others were acknowledged meanwhile.
    Resend {
        sender: SenderId,
        packet: u64,
        bytes: u64,
        is_loss: bool,
    },
    Signals {
        side: Side,
    },
    Timer {
        side: Side,
    },
    Memory,
    Connect {
        path: PathId,
    },
    Connected {
        path: PathId,
    },
    Close {
        path: PathId,
    },
    Open {
        flow: usize,
    },
    Write {
        flow: usize,
    },
    Quarter,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
struct SenderId {
    from: Side,
    path: PathId,
    /// Number of the connection; packets of replaced connections are ignored.
    number: u64,
}

#[derive(Debug)]
struct LinkWorld<'a> {
    plan: &'a LinkPlan,
    events: EventQueue<LinkEvent>,
    rng: Rng,
    endpoints: [Endpoint; 2],
    /// Wires of each side, by path.
    wires: [Vec<Wire>; 2],
    timers: [Option<Instant>; 2],
    connections: u64,
    /// Paths with an attempt to connect under way.
    connecting: BTreeSet<PathId>,
    /// Flows that have sent their first frame.
    sent: BTreeSet<FlowId>,
    received_in_first_quarter: u64,
    run: LinkRun,
}

/// Runs a plan.
pub fn run_link(plan: &LinkPlan) -> Result<LinkRun, SettingOutOfRange> {
    let mut world = LinkWorld::new(plan)?;
    let end = Instant::ORIGIN + plan.duration;
    while let Some(event) = world.events.next_until(end) {
        world.handle(event);
    }
    Ok(world.finish(end))
}

fn index(side: Side) -> usize {
    match side {
        Side::Connecting => 0,
        Side::Listening => 1,
    }
}

fn other(side: Side) -> Side {
    SIDES[1 - index(side)]
}

impl<'a> LinkWorld<'a> {
    fn new(plan: &'a LinkPlan) -> Result<Self, SettingOutOfRange> {
        let mut rng = Rng::new(plan.seed);
        let connecting = Endpoint::new(Side::Connecting, plan, rng.next_u64())?;
        let listening = Endpoint::new(Side::Listening, plan, rng.next_u64())?;
        let wires = || plan.paths.iter().map(Wire::new).collect();
        let run = LinkRun {
            path_bytes: vec![0; plan.paths.len()],
            flow_picks: vec![0; plan.paths.len()],
            fingerprint: 0xcbf2_9ce4_8422_2325,
            ..LinkRun::default()
        };
        let mut world = Self {
            plan,
            events: EventQueue::new(),
            rng,
            endpoints: [connecting, listening],
            wires: [wires(), wires()],
            timers: [None, None],
            connections: 0,
            connecting: BTreeSet::new(),
            sent: BTreeSet::new(),
            received_in_first_quarter: 0,
            run,
        };
        world.schedule_start();
        Ok(world)
    }

    fn schedule_start(&mut self) {
        let events = &mut self.events;
        for side in SIDES {
            events.schedule(Duration::ZERO, LinkEvent::Signals { side });
        }
        events.schedule(Duration::ZERO, LinkEvent::Memory);
        events.schedule(self.plan.duration / 4, LinkEvent::Quarter);
        for (path, path_plan) in (0..).map(PathId).zip(&self.plan.paths) {
            events.schedule(Duration::ZERO, LinkEvent::Connect { path });
            for fault in &path_plan.faults {
                match fault.kind {
                    PathFaultKind::Refused => events.schedule(fault.from, LinkEvent::Close { path }),
                    PathFaultKind::Replaced => events.schedule(fault.from, LinkEvent::Connected { path }),
                    PathFaultKind::BlackHole | PathFaultKind::GrowingDelay(_) | PathFaultKind::Delayed(_) => {
                    }
                }
            }
        }
        for (flow, flow_plan) in self.plan.flows.iter().enumerate() {
            events.schedule(flow_plan.at, LinkEvent::Open { flow });
        }
    }

    fn handle(&mut self, event: LinkEvent) {
        let now = self.events.now();
        match event {
            LinkEvent::Arrive { sender, packet, content } => self.arrive(sender, packet, content),
            LinkEvent::Ack { sender, packet } => {
                if let Some(connection) = self.connection(sender) {
                    connection.on_ack(now, packet);
                    self.pump(sender.from);
                }
            }
            LinkEvent::Resend { sender, packet, bytes, is_loss } => {
                self.resend(sender, packet, bytes, is_loss);
            }
            LinkEvent::Signals { side } => {
                self.pass_signals(side);
                self.close_idle_connections(side);
                self.endpoints[index(side)].finish_flows();
                self.pump(side);
                self.events.schedule(SIGNALS_INTERVAL, LinkEvent::Signals { side });
            }
            LinkEvent::Timer { side } => {
                if self.timers[index(side)] == Some(now) {
                    self.timers[index(side)] = None;
                    self.pass_signals(side);
                    self.endpoints[index(side)].session.handle_timeout(now);
                    self.pump(side);
                }
            }
            LinkEvent::Memory => {
                self.measure_memory();
                self.events.schedule(MEMORY_INTERVAL, LinkEvent::Memory);
            }
            LinkEvent::Connect { path } => self.connect(path),
            LinkEvent::Connected { path } => self.connected(path),
            LinkEvent::Close { path } => self.close(path),
            LinkEvent::Open { flow } => self.open(flow),
            LinkEvent::Write { flow } => self.write(flow),
            LinkEvent::Quarter => self.received_in_first_quarter = self.received(),
        }
    }

    fn open(&mut self, flow: usize) {
        let now = self.events.now();
        let flow_plan = &self.plan.flows[flow];
        self.endpoints[index(flow_plan.opener)].open(now, self.plan, flow);
        if flow_plan.pace.is_some() {
            self.write(flow);
        }
        self.pump(flow_plan.opener);
    }

    fn write(&mut self, flow: usize) {
        let now = self.events.now();
        let flow_plan = &self.plan.flows[flow];
        let follows = self.endpoints[index(flow_plan.opener)].write_paced(now, flow);
        if let Some(pace) = flow_plan.pace.filter(|_| follows) {
            self.events.schedule(pace, LinkEvent::Write { flow });
        }
        self.pump(flow_plan.opener);
    }

    /// Tries to establish a connection; a listening side answers unless the path is dead.
    fn connect(&mut self, path: PathId) {
        let now = self.events.now();
        let wire = &self.wires[0][path.index()];
        if wire.is_dead(now) {
            self.endpoints[0].session.handle_failure(now, path);
            self.pump(Side::Connecting);
            self.events.schedule(CONNECT_INTERVAL, LinkEvent::Connect { path });
        } else {
            self.connecting.insert(path);
            self.events.schedule(2 * wire.delay(now), LinkEvent::Connected { path });
        }
    }

    fn connected(&mut self, path: PathId) {
        let now = self.events.now();
        self.connecting.remove(&path);
        if self.wires[0][path.index()].is_dead(now) {
            self.events.schedule(CONNECT_INTERVAL, LinkEvent::Connect { path });
            return;
        }
        self.connections += 1;
        for side in SIDES {
            let endpoint = &mut self.endpoints[index(side)];
            endpoint.connections[path.index()] = Some(ConnectionModel::new(self.connections));
            endpoint.session.handle_path_up(now, path);
        }
        SIDES.into_iter().for_each(|side| self.pump(side));
    }

    /// Closes a path's connection at both sides, and lets the connecting side try again.
    fn close(&mut self, path: PathId) {
        let now = self.events.now();
        for side in SIDES {
            let endpoint = &mut self.endpoints[index(side)];
            if endpoint.connections[path.index()].take().is_some() {
                endpoint.session.handle_path_down(now, path);
            }
        }
        SIDES.into_iter().for_each(|side| self.pump(side));
        self.reconnect(path);
    }

    fn reconnect(&mut self, path: PathId) {
        if self.connecting.insert(path) {
            self.events.schedule(CONNECT_INTERVAL, LinkEvent::Connect { path });
        }
    }

    fn close_idle_connections(&mut self, side: Side) {
        let now = self.events.now();
        let is_idle = |connection: &Option<ConnectionModel>| {
            let since = connection.as_ref().and_then(|connection| connection.signals().waiting_since);
            since.is_some_and(|since| IDLE_TIMEOUT < now.since(since))
        };
        let connections = self.endpoints[index(side)].connections.iter();
        let idle: Vec<PathId> =
            (0..).map(PathId).zip(connections).filter(|(_, c)| is_idle(c)).map(|(path, _)| path).collect();
        for path in idle {
            self.close(path);
        }
    }

    fn pass_signals(&mut self, side: Side) {
        let now = self.events.now();
        let Endpoint { session, connections, .. } = &mut self.endpoints[index(side)];
        for (path, connection) in (0..).map(PathId).zip(connections) {
            if let Some(connection) = connection {
                session.handle_signals(now, path, connection.signals());
            }
        }
    }

    /// Returns the sender's half of a connection, if it is the current one.
    fn connection(&mut self, sender: SenderId) -> Option<&mut ConnectionModel> {
        let connection = self.endpoints[index(sender.from)].connections[sender.path.index()].as_mut();
        connection.filter(|connection| connection.number == sender.number)
    }

    /// Passes everything on that a session and its connections have to do.
    fn pump(&mut self, side: Side) {
        let now = self.events.now();
        loop {
            let mut is_done = true;
            while let Some(transmit) = self.endpoints[index(side)].session.poll_transmit(now) {
                is_done = false;
                self.count(&transmit);
                let path = transmit.path();
                if let Some(connection) = &mut self.endpoints[index(side)].connections[path.index()] {
                    connection.push(transmit);
                }
            }
            while let Some(datagram) = self.endpoints[index(side)].session.poll_datagram(now) {
                let connection = &mut self.endpoints[index(side)].connections[datagram.path.index()];
                if let Some(connection) = connection {
                    let sender = SenderId { from: side, path: datagram.path, number: connection.number };
                    let departure = connection.send_datagram(now, datagram.data);
                    self.depart(sender, departure);
                }
            }
            for path in (0..).map(PathId).take(self.plan.paths.len()) {
                is_done &= !self.send_frames(side, path);
            }
            let lines = self.endpoints[index(side)].handle_events(now, self.plan);
            is_done &= lines.is_empty();
            lines.iter().for_each(|line| self.record(line.as_bytes()));
            if is_done {
                break;
            }
        }
        for path in std::mem::take(&mut self.endpoints[index(side)].silent) {
            if side == Side::Connecting {
                self.reconnect(path);
            }
        }
        self.set_timer(side);
    }

    /// Sends the frames that a connection's window allows; reports whether there were any.
    fn send_frames(&mut self, side: Side, path: PathId) -> bool {
        let now = self.events.now();
        let mut has_sent = false;
        while let Endpoint { session, connections, .. } = &mut self.endpoints[index(side)]
            && let Some(connection) = connections[path.index()].as_mut()
            && let Some(departure) = connection.send_frame(now)
        {
            has_sent = true;
            let sender = SenderId { from: side, path, number: connection.number };
            match &departure.content {
                Content::Stream { key, data, .. } => session.handle_written(path, *key, data.len() as u64),
                Content::Datagram(data) => session.handle_datagram_sent(path, data.len() as u64),
            }
            self.depart(sender, departure);
        }
        has_sent
    }

    /// Counts the first frame of each flow by path, and all bytes.
    fn count(&mut self, transmit: &Transmit) {
        if let Transmit::Datagram { path, data } = transmit {
            self.run.path_bytes[path.index()] += data.len() as u64;
        }
        let Transmit::Frame { path, stream, data, .. } = transmit else { return };
        self.run.path_bytes[path.index()] += data.len() as u64;
        if let StreamKey::Flow(flow) = stream
            && *flow != FlowId::CONTROL
            && self.sent.insert(*flow)
        {
            self.run.flow_picks[path.index()] += 1;
        }
    }

    fn depart(&mut self, sender: SenderId, departure: Departure) {
        let len = departure.content.len();
        self.carry(sender, departure, len);
    }

    fn carry(&mut self, sender: SenderId, departure: Departure, bytes: u64) {
        let now = self.events.now();
        let Departure { packet, content, attempts } = departure;
        let wire = &mut self.wires[index(sender.from)][sender.path.index()];
        let rtt = 2 * wire.delay(now);
        match wire.carry(now, bytes, &mut self.rng) {
            Fate::Arrive(at) => {
                let mut delay = at.since(now);
                let disorder = self.plan.paths[sender.path.index()].disorder;
                if let Content::Datagram(_) = content
                    && self.rng.unit() < disorder
                {
                    if self.rng.unit() < 0.5 {
                        let first = LinkEvent::Arrive { sender, packet, content: content.clone() };
                        self.events.schedule(delay, first);
                    }
                    delay += Duration::from_millis(self.rng.below(50));
                }
                self.events.schedule(delay, LinkEvent::Arrive { sender, packet, content });
            }
            Fate::Lost { again } => {
                let event = LinkEvent::Resend { sender, packet, bytes: again, is_loss: true };
                self.events.schedule(rtt.mul_f64(1.25), event);
            }
            Fate::Swallowed => self.schedule_resend(sender, packet, bytes, attempts),
        }
    }

    fn schedule_resend(&mut self, sender: SenderId, packet: u64, bytes: u64, attempts: u32) {
        let rtt = 2 * self.wires[index(sender.from)][sender.path.index()].delay(self.events.now());
        let after = RESEND_MIN.max(2 * rtt) * (1 << attempts.min(RESEND_DOUBLINGS_MAX));
        self.events.schedule(after, LinkEvent::Resend { sender, packet, bytes, is_loss: false });
    }

    fn resend(&mut self, sender: SenderId, packet: u64, bytes: u64, is_loss: bool) {
        let now = self.events.now();
        let Some(connection) = self.connection(sender) else { return };
        if is_loss {
            connection.on_loss(now, packet);
        }
        if let Some(departure) = connection.send_again(now, packet) {
            self.carry(sender, departure, bytes);
        }
        self.pump(sender.from);
    }

    fn arrive(&mut self, sender: SenderId, packet: u64, content: Content) {
        let now = self.events.now();
        let to = other(sender.from);
        if self.connection(SenderId { from: to, ..sender }).is_none() {
            return;
        }
        self.record(&packet.to_le_bytes());
        let back = &self.wires[index(to)][sender.path.index()];
        if back.is_dead(now) {
            self.schedule_resend(sender, packet, content.len(), 1);
        } else {
            self.events.schedule(back.delay(now), LinkEvent::Ack { sender, packet });
        }
        match content {
            Content::Datagram(data) => {
                // An error has ended the session, which reports it.
                let _ = self.endpoints[index(to)].session.handle_datagram(now, sender.path, &data);
            }
            Content::Stream { stream, sequence, data, .. } => self.receive(sender, stream, sequence, &data),
        }
        self.pump(to);
    }

    fn receive(&mut self, sender: SenderId, stream: u64, sequence: u64, data: &Bytes) {
        let now = self.events.now();
        let disorder = self.plan.paths[sender.path.index()].disorder;
        let cut = self.rng.below(data.len() as u64 + 1) as usize;
        let repeat = self.rng.unit() < disorder;
        let arrival = Arrival { path: sender.path, stream, sequence, data, cut, repeat };
        self.endpoints[index(other(sender.from))].receive(now, arrival);
    }

    fn set_timer(&mut self, side: Side) {
        let now = self.events.now();
        let Some(due) = self.endpoints[index(side)].session.poll_timeout() else { return };
        // A session must not ask for the same time forever.
        let due = due.max(now + Duration::from_micros(100));
        let timer = &mut self.timers[index(side)];
        if timer.is_none_or(|set| due < set || set <= now) {
            *timer = Some(due);
            self.events.schedule(due.since(now), LinkEvent::Timer { side });
        }
    }

    fn measure_memory(&mut self) {
        let now = self.events.now();
        let most = &mut self.run.memory_max;
        for endpoint in &self.endpoints {
            let totals = endpoint.session.status(now).totals;
            *most = SessionMemory {
                receive_buffered: most.receive_buffered.max(totals.receive_buffered),
                receive_windows: most.receive_windows.max(totals.receive_windows),
                send_retained: most.send_retained.max(totals.send_retained),
            };
        }
    }

    /// Adds to the fingerprint (FNV-1a).
    fn record(&mut self, bytes: &[u8]) {
        let now = self.events.now().as_nanos().to_le_bytes();
        for byte in now.iter().chain(bytes) {
            self.run.fingerprint = (self.run.fingerprint ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn received(&self) -> u64 {
        let sinks = self.endpoints.iter().flat_map(|endpoint| endpoint.sinks.values());
        sinks.map(|sink| sink.received).sum()
    }

    fn finish(mut self, end: Instant) -> LinkRun {
        let measured = self.plan.duration.mul_f64(0.75).as_secs_f64();
        let received = self.received() - self.received_in_first_quarter;
        self.run.goodput_mbit = received as f64 * 8.0 / 1e6 / measured;
        for (number, flow_plan) in self.plan.flows.iter().enumerate() {
            let opener = &self.endpoints[index(flow_plan.opener)];
            let acceptor = &self.endpoints[index(other(flow_plan.opener))];
            let mut flow = LinkFlowRun { end: opener.ends.get(&number).cloned(), ..LinkFlowRun::default() };
            if let Some(sink) = acceptor.sinks.get(&number) {
                flow.received = sink.received;
                flow.completed_at = sink.completed_at;
                flow.gap_max = sink.gap(end);
            }
            flow.datagrams = acceptor.datagrams.get(&number).cloned();
            flow.replied = opener.sinks.get(&number).map_or(0, |sink| sink.received);
            self.run.flows.push(flow);
        }
        let sinks = self.endpoints.iter().flat_map(|endpoint| endpoint.sinks.values());
        self.run.wrong_bytes = sinks.map(|sink| sink.wrong_bytes).sum();
        for endpoint in &self.endpoints {
            let paths = endpoint.session.status(end).paths;
            self.run.reinjected_bytes += paths.iter().map(|path| path.counters.reinjected_bytes).sum::<u64>();
        }
        self.run.datagrams = self.endpoints[1].session.status(end).totals.datagrams;
        let [connecting, _] = self.endpoints;
        LinkRun {
            transitions: connecting.transitions,
            replacements: connecting.replacements,
            bonded_changes: connecting.bonded_changes,
            failure: connecting.failure,
            ..self.run
        }
    }
}
