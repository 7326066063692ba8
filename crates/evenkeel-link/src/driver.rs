//! Connects a session to its connections, its timer and its flows.
//!
//! The session decides; this module moves bytes. Every task locks the session, passes something in, and carries out
//! what the session then asks for, before it unlocks.
//!
//! Limits: the session bounds everything that is queued for a connection; a connection has one task per open stream in
//! each direction, and the peer may open `flows_max` + 8 streams.

mod reader;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use crate::flow::{FlowId, FlowLane, ResetCode, ResetReason};
use crate::metrics::SessionMetrics;
use crate::quic::{LinkClock, PathConnection};
use crate::session::{LinkSession, PathReplacement, SessionError, SessionEvent, SessionStatus, Transmit};
use writer::{PathWriter, StreamWork};

/// Time between two reads of the connections' measurements while data is in flight.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of accepted flows that wait for the application.
const ACCEPTED_MAX: usize = 1024;

/// Close code of a connection that a new one of the same path replaced.
pub(crate) const CLOSE_REPLACED: u32 = 1;
/// Close code of a connection whose session ended.
pub(crate) const CLOSE_ENDED: u32 = 2;

/// Flow that the peer opened, before the application has its two halves.
pub(crate) struct AcceptedFlow {
    pub(crate) flow: FlowId,
    pub(crate) lane: FlowLane,
    pub(crate) target: String,
}

/// Reason why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndOfSession {
    /// The session failed.
    #[error(transparent)]
    Failed(#[from] SessionError),
    /// The peer closed the link.
    #[error("the other side ended the link")]
    ClosedByPeer,
    /// This side ended it.
    #[error("the link was closed")]
    Closed,
    /// The peer has no such session.
    #[error("the other side does not know the session; it has restarted, or the link was down for too long")]
    UnknownToPeer,
}

/// Session with its connections and tasks.
pub(crate) struct Driver {
    clock: LinkClock,
    state: Mutex<State>,
    /// Notified when the session's timeout becomes earlier.
    timer: Arc<Notify>,
    metrics: SessionMetrics,
    ended: watch::Sender<Option<EndOfSession>>,
    accepted: mpsc::Sender<AcceptedFlow>,
}

struct State {
    session: LinkSession,
    paths: BTreeMap<PathId, ConnectedPath>,
    wakers: HashMap<FlowId, FlowWakers>,
    /// Number of the latest connection.
    generation: u64,
    /// Time for which the timer task is set.
    timer_at: Option<Instant>,
}

struct ConnectedPath {
    generation: u64,
    connection: PathConnection,
    writer: PathWriter,
    /// Notified when nothing was acknowledged for two probe timeouts.
    silent: Arc<Notify>,
}

#[derive(Default)]
struct FlowWakers {
    read: Option<Waker>,
    write: Option<Waker>,
}

/// Direction of a flow for which a task waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Driver {
    /// Starts the timer of a session; needs a Tokio runtime.
    ///
    /// The receiver yields the flows that the peer opens.
    pub(crate) fn start(
        session: LinkSession,
        clock: LinkClock,
        metrics: SessionMetrics,
    ) -> (Arc<Self>, mpsc::Receiver<AcceptedFlow>) {
        let (accepted, accepted_flows) = mpsc::channel(ACCEPTED_MAX);
        let state =
            State { session, paths: BTreeMap::new(), wakers: HashMap::new(), generation: 0, timer_at: None };
        let driver = Arc::new(Self {
            clock,
            state: Mutex::new(state),
            timer: Arc::default(),
            metrics,
            ended: watch::Sender::new(None),
            accepted,
        });
        tokio::spawn(run_timer(Arc::downgrade(&driver), driver.timer.clone()));
        (driver, accepted_flows)
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Calls the session, then sends what it has queued and handles its events.
    pub(crate) fn with<T>(self: &Arc<Self>, call: impl FnOnce(&mut LinkSession, Instant) -> T) -> T {
        let now = self.now();
        let mut state = self.state.lock();
        let result = call(&mut state.session, now);
        self.pump(&mut state, now);
        result
    }

    /// Calls `poll` on the session; if it is pending, the task is woken when the flow may proceed.
    pub(crate) fn poll_flow<T>(
        self: &Arc<Self>,
        flow: FlowId,
        direction: Direction,
        context: &Context<'_>,
        poll: impl FnOnce(&mut LinkSession, Instant) -> Poll<T>,
    ) -> Poll<T> {
        let now = self.now();
        let mut state = self.state.lock();
        let result = poll(&mut state.session, now);
        if result.is_pending() {
            let wakers = state.wakers.entry(flow).or_default();
            let waker = match direction {
                Direction::Read => &mut wakers.read,
                Direction::Write => &mut wakers.write,
            };
            waker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
        }
        self.pump(&mut state, now);
        result
    }

    /// Forgets the tasks that wait for a flow which its application has dropped.
    pub(crate) fn forget_wakers(&self, flow: FlowId) {
        self.state.lock().wakers.remove(&flow);
    }

    /// Gives a path a new connection, which replaces an earlier one.
    ///
    /// Returns a handle that is notified when nothing has been acknowledged on it for two probe timeouts.
    pub(crate) fn add_connection(self: &Arc<Self>, connection: PathConnection) -> Arc<Notify> {
        let silent = Arc::new(Notify::new());
        let path = PathId(connection.path().into());
        let now = self.now();
        let mut state = self.state.lock();
        if self.ended.borrow().is_some() {
            connection.close(CLOSE_ENDED, "the session has ended");
            return silent;
        }
        state.generation += 1;
        let generation = state.generation;
        let writer = PathWriter::new(self, &connection, path, generation);
        let entry =
            ConnectedPath { generation, connection: connection.clone(), writer, silent: silent.clone() };
        if let Some(replaced) = state.paths.insert(path, entry) {
            replaced.connection.close(CLOSE_REPLACED, "the path has a new connection");
        }
        // Fails if the path exists, as it always does on the connecting side.
        let _ = state.session.add_path(now, path, connection.name());
        state.session.handle_peer_lanes(now, connection.peer_lanes());
        state.session.handle_path_up(now, path);
        self.pump(&mut state, now);
        drop(state);
        reader::spawn(self, connection, path, generation);
        silent
    }

    /// Removes a path's connection, unless another one has replaced it, and tells the session.
    fn remove_connection(
        self: &Arc<Self>,
        path: PathId,
        generation: u64,
        tell: fn(&mut LinkSession, Instant, PathId),
    ) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.paths.get(&path).is_some_and(|current| current.generation == generation) {
            state.paths.remove(&path);
            tell(&mut state.session, now, path);
            self.pump(&mut state, now);
        }
    }

    /// Passes to the session what a connection has taken, unless another connection has replaced it.
    fn record_taken(self: &Arc<Self>, path: PathId, generation: u64, tell: impl FnOnce(&mut LinkSession)) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.paths.get(&path).is_some_and(|current| current.generation == generation) {
            tell(&mut state.session);
            self.pump(&mut state, now);
        }
    }

    /// Returns a snapshot of the session, and brings its metrics up to date.
    pub(crate) fn update_metrics(&self) -> SessionStatus {
        let now = self.now();
        let status = {
            let state = self.state.lock();
            let mut status = state.session.status(now);
            for path in &mut status.paths {
                let connected = state.paths.get(&path.path);
                path.relays = connected.and_then(|path| path.connection.relays()).map(<[String]>::to_vec);
            }
            status
        };
        self.metrics.update(&status);
        status
    }

    pub(crate) async fn wait_for_end(&self) -> EndOfSession {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(end)) => end.clone(),
            // The sender lives as long as `self`.
            _ => EndOfSession::Closed,
        }
    }

    /// Ends the session: its flows are reset and its connections closed.
    pub(crate) fn close(self: &Arc<Self>, end: EndOfSession) {
        let now = self.now();
        let mut state = self.state.lock();
        self.finish(&mut state, now, end);
    }

    fn finish(&self, state: &mut State, now: Instant, end: EndOfSession) {
        let reason = end.to_string();
        if self.ended.send_if_modified(|ended| ended.is_none() && ended.replace(end).is_none()) {
            state.session.end(now, &reason);
            for path in std::mem::take(&mut state.paths).into_values() {
                path.connection.close(CLOSE_ENDED, &reason);
            }
            wake_all(&mut state.wakers);
        }
    }

    /// Carries out everything that the session asks for.
    fn pump(&self, state: &mut State, now: Instant) {
        let mut has_sent = false;
        while let Some(transmit) = state.session.poll_transmit(now) {
            send(state, transmit);
            has_sent = true;
        }
        while let Some(datagram) = state.session.poll_datagram(now) {
            if let Some(path) = state.paths.get(&datagram.path) {
                // A datagram may be lost anyway; if the connection has ended, its reader reports it.
                let _ = path.connection.send_datagram(datagram.data);
            }
        }
        while let Some(observation) = state.session.poll_observation() {
            self.metrics.observe(observation);
        }
        while let Some(event) = state.session.poll_event() {
            self.handle_event(state, now, event);
        }
        let due = state.session.poll_timeout();
        let due = if has_sent { due.map(|due| due.min(now + SIGNALS_INTERVAL)) } else { due };
        if due.is_some_and(|due| state.timer_at.is_none_or(|timer_at| due < timer_at)) {
            self.timer.notify_one();
        }
    }

    fn handle_event(&self, state: &mut State, now: Instant, event: SessionEvent) {
        match event {
            SessionEvent::Accepted { flow, lane, target } => {
                // Fails if the application dropped `IncomingFlows`, or is behind by the maximum number of flows.
                if self.accepted.try_send(AcceptedFlow { flow, lane, target }).is_err() {
                    let reason = ResetReason::new(ResetCode::TOO_MANY_FLOWS, "the other side is busy");
                    state.session.reset(now, flow, reason);
                }
            }
            SessionEvent::Readable { flow } => wake(state, flow, Direction::Read),
            SessionEvent::Writable { flow } => wake(state, flow, Direction::Write),
            SessionEvent::FlowEnded { flow, .. } => {
                wake(state, flow, Direction::Read);
                wake(state, flow, Direction::Write);
            }
            SessionEvent::PathChanged { path, transition } => {
                self.metrics.record_transition(&transition);
                let path = state.session.path_name(path).unwrap_or_default();
                if transition.from.is_usable() || transition.to.is_usable() {
                    tracing::info!(path, "path changed from {transition}");
                } else {
                    tracing::debug!(path, "path changed from {transition}");
                }
            }
            SessionEvent::CandidateActivated { replacement } => log_replacement(&state.session, &replacement),
            SessionEvent::BondedLaneChanged { change } => {
                let path = state.session.path_name(change.path).unwrap_or_default();
                tracing::info!(path, "path {change}");
            }
            SessionEvent::PathSilent { path } => {
                if let Some(path) = state.paths.get(&path) {
                    path.silent.notify_one();
                }
            }
            SessionEvent::Goodbye => self.finish(state, now, EndOfSession::ClosedByPeer),
            SessionEvent::SessionFailed { error } => {
                self.finish(state, now, EndOfSession::Failed(error));
            }
        }
    }

    /// Passes the measurements of all connections to the session, and does what is due; returns the time of the next timeout.
    fn on_timer(self: &Arc<Self>) -> Option<Instant> {
        let now = self.now();
        let mut state = self.state.lock();
        let State { session, paths, .. } = &mut *state;
        let mut is_sending = false;
        for (&id, path) in paths {
            let signals = path.connection.signals();
            is_sending |= signals.in_flight > 0;
            session.handle_signals(now, id, signals);
            path.connection.follow_window();
        }
        session.handle_timeout(now);
        // Suppresses notifications while the session is pumped; the timer is set below.
        state.timer_at = Some(now);
        self.pump(&mut state, now);
        let due = state.session.poll_timeout();
        state.timer_at = if is_sending { due.map(|due| due.min(now + SIGNALS_INTERVAL)) } else { due };
        state.timer_at
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for path in self.state.get_mut().paths.values() {
            path.connection.close(CLOSE_ENDED, "the link was closed");
        }
    }
}

fn log_replacement(session: &LinkSession, replacement: &PathReplacement) {
    let name = |path| session.path_name(path).unwrap_or_default();
    let path = name(replacement.added);
    if let Some(removed) = replacement.removed {
        let replaced = name(removed);
        tracing::info!(path, replaced, "candidate replaces an active path: {}", replacement.cause);
    } else {
        tracing::info!(path, "candidate becomes active: there are fewer active paths than allowed");
    }
}

fn send(state: &mut State, transmit: Transmit) {
    // Without a connection the session sends everything again on another path, except datagrams.
    let Some(ConnectedPath { writer, .. }) = state.paths.get_mut(&transmit.path()) else { return };
    match transmit {
        Transmit::Frame { stream, header, data, .. } => {
            writer.send(stream, StreamWork::Frame { header, data });
        }
        Transmit::Datagram { data, .. } => writer.send_datagram(data),
        Transmit::Finish { stream, .. } => writer.send(stream, StreamWork::Finish),
        Transmit::Abandon { stream, .. } => writer.send(stream, StreamWork::Abandon),
    }
}

fn wake(state: &mut State, flow: FlowId, direction: Direction) {
    if let Some(wakers) = state.wakers.get_mut(&flow) {
        let waker = match direction {
            Direction::Read => wakers.read.take(),
            Direction::Write => wakers.write.take(),
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn wake_all(wakers: &mut HashMap<FlowId, FlowWakers>) {
    for wakers in std::mem::take(wakers).into_values() {
        wakers.read.into_iter().chain(wakers.write).for_each(Waker::wake);
    }
}

/// Runs the timer until the session ends or its driver is dropped.
async fn run_timer(driver: Weak<Driver>, reset: Arc<Notify>) {
    loop {
        let Some(due) = driver.upgrade().and_then(|driver| Some(driver.on_timer()?.since(driver.now())))
        else {
            return;
        };
        // After the deadline or a reset, the loop handles what is due.
        let _ = timeout(due, reset.notified()).await;
    }
}
