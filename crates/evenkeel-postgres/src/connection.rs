//! One connection to the server: its socket, its state, and the order of its exchanges.
//!
//! Guarantee: every exchange may be dropped at any wait. The state says what is in flight, and `recover` ends it.

mod execute;
mod recover;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::time::Instant;

use crate::backend::{CommandTag, MessageBody};
use crate::cancel::CancelKey;
use crate::config::ConnectConfig;
use crate::counters::{DiscardReason, PoolCounters};
use crate::error::PgError;
use crate::frame::Frame;
use crate::session::{Session, SessionState};
use crate::startup::{ServerFacts, Started, malformed};
use crate::statement::{StatementLimits, TransactionStatus};
use crate::statement_cache::StatementCache;
use crate::transport::Peer;
use crate::wire::{Wire, lost};
use recover::Cancellation;

/// Idle time after which the socket is asked before it is reused.
const PEEK_AFTER: Duration = Duration::from_millis(1);

pub(crate) struct ServerConnection {
    wire: Wire,
    state: ConnectionState,
    config: Arc<ConnectConfig>,
    peer: Peer,
    cancel_key: CancelKey,
    limits: StatementLimits,
    counters: Arc<PoolCounters>,
    opened_at: Instant,
    idle_since: Instant,
    /// Set once the connection must not be used again.
    broken: Option<DiscardReason>,
}

/// State that follows from the messages sent and received.
struct ConnectionState {
    status: TransactionStatus,
    /// ReadyForQuery messages that the server owes.
    ready_pending: u32,
    /// Set while an EmptyQueryResponse must come before the last ReadyForQuery.
    awaits_marker: bool,
    cancellation: Cancellation,
    /// Name of the statement that is being prepared.
    preparing: Option<Box<str>>,
    cache: StatementCache,
    session: SessionState,
}

impl ServerConnection {
    pub(crate) fn new(
        started: Started,
        config: Arc<ConnectConfig>,
        limits: StatementLimits,
        statements_max: usize,
        counters: Arc<PoolCounters>,
    ) -> Self {
        let Started { wire, peer, facts: ServerFacts { cancel_key, version, read_only } } = started;
        let state = ConnectionState {
            status: TransactionStatus::Idle,
            ready_pending: 0,
            awaits_marker: false,
            cancellation: Cancellation::None,
            preparing: None,
            cache: StatementCache::new(statements_max),
            session: SessionState::new(read_only, version),
        };
        Self {
            wire,
            state,
            config,
            peer,
            cancel_key,
            limits,
            counters,
            opened_at: Instant::now(),
            idle_since: Instant::now(),
            broken: None,
        }
    }

    pub(crate) fn begin_session(&mut self, session: &Session) {
        self.state.session.begin(session);
    }

    /// Returns the owner of the connection's session.
    pub(crate) fn owner(&self) -> Option<u64> {
        self.state.session.owner()
    }

    pub(crate) fn status(&self) -> TransactionStatus {
        self.state.status
    }

    pub(crate) fn broken(&self) -> Option<DiscardReason> {
        self.broken
    }

    pub(crate) fn discard_because(&mut self, reason: DiscardReason) {
        self.broken.get_or_insert(reason);
    }

    /// Reports whether the connection can be lent to anybody: nothing in flight, no open transaction.
    pub(crate) fn is_clean(&self) -> bool {
        self.broken.is_none()
            && self.state.ready_pending == 0
            && self.state.cancellation.is_none()
            && self.state.status == TransactionStatus::Idle
    }

    /// Reports whether the server has neither closed the idle connection nor sent anything on it, without waiting.
    ///
    /// The socket itself is asked only after some time; before that, the events of the runtime suffice.
    pub(crate) fn is_quiet(&self) -> bool {
        self.wire.input.is_empty()
            && self.wire.transport.seems_quiet()
            && (self.idle_time() < PEEK_AFTER || self.wire.transport.is_quiet())
    }

    /// Begins the connection's idle time, and releases memory that only a large statement needed.
    pub(crate) fn rest(&mut self) {
        self.wire.input.shrink();
        self.idle_since = Instant::now();
    }

    pub(crate) fn idle_time(&self) -> Duration {
        self.idle_since.elapsed()
    }

    /// Closes the connection with a Terminate message, if that does not need to wait.
    pub(crate) fn terminate(mut self) {
        if self.is_clean() {
            let mut message = BytesMut::new();
            frontend::terminate(&mut message);
            self.wire.transport.write_now(&message);
        }
    }

    /// Fails if the connection cannot take a statement.
    fn check_usable(&self) -> Result<(), PgError> {
        if self.broken.is_some() {
            return Err(lost("the connection was lost earlier"));
        }
        if 0 < self.state.ready_pending || !self.state.cancellation.is_none() {
            return Err(PgError::Stopped);
        }
        Ok(())
    }

    /// Marks the connection as broken if an error ends it.
    fn record_failure(&mut self, error: &PgError) {
        let reason = match error {
            PgError::Session(_) => DiscardReason::Session,
            PgError::Protocol { .. } => DiscardReason::Protocol,
            _ => DiscardReason::Lost,
        };
        if error.ends_connection() {
            self.discard_because(reason);
        }
    }
}

impl ConnectionState {
    /// Records the consequences of a message for the connection; every reader of messages calls it.
    fn observe(&mut self, frame: Frame<'_>) -> Result<(), PgError> {
        match frame.kind {
            b'Z' => {
                self.status = parse_status(frame.body)?;
                if !self.awaits_marker {
                    self.ready_pending = self.ready_pending.saturating_sub(1);
                }
            }
            b'I' => self.awaits_marker = false,
            b'C' => self.observe_tag(&CommandTag::parse(frame.body).map_err(malformed)?),
            b'S' => {
                let mut body = MessageBody(frame.body);
                let name = body.text().map_err(malformed)?;
                if name == b"default_transaction_read_only" {
                    self.session.set_read_only(body.text().map_err(malformed)? == b"on");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn observe_tag(&mut self, tag: &CommandTag) {
        match tag.as_str() {
            "SET" | "RESET" => self.session.mark_changed(),
            "DISCARD ALL" => {
                self.session.mark_changed();
                self.cache.forget_all();
            }
            "DEALLOCATE ALL" => self.cache.forget_all(),
            // It may have been one of ours.
            "DEALLOCATE" => self.cache.close_all(),
            _ => {}
        }
    }
}

fn parse_status(body: &[u8]) -> Result<TransactionStatus, PgError> {
    match body {
        b"I" => Ok(TransactionStatus::Idle),
        b"T" => Ok(TransactionStatus::InTransaction),
        b"E" => Ok(TransactionStatus::Failed),
        _ => Err(PgError::Protocol { reason: "unknown transaction status".to_owned() }),
    }
}
