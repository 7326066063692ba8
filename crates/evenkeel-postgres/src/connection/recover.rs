//! Ends a statement whose exchange was dropped or stopped half-way, without ever cancelling the next one.
//!
//! The order: a CancelRequest on a connection of its own; the end of that connection, by which the server has signalled
//! the process; ReadyForQuery of the statement; one more round trip, before which the process has handled the signal.
//! If any step fails, the connection is discarded, after the server's process has been terminated (`terminate`). A recovery
//! that is dropped can be taken up again at the same step.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::time::Duration;

use postgres_protocol::message::frontend;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ServerConnection;
use super::execute::write_closes;
use crate::cancel;
use crate::counters::{DiscardReason, increment};
use crate::error::PgError;
use crate::statement::TransactionStatus;
use crate::terminate;
use crate::wire::{Sent, lost};

/// Time limit for ending a statement with a rollback after it, and then for terminating the process if that fails.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// Progress of a cancel request.
pub(super) enum Cancellation {
    /// No cancel request can hit a statement.
    None,
    /// A task sends the request, so that it is completed even if the recovery is dropped.
    Requested(JoinHandle<Result<(), PgError>>),
    /// The server has signalled the process; the statement's ReadyForQuery is awaited.
    Signalled,
    /// The last round trip is awaited.
    Barrier,
}

impl Cancellation {
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl ServerConnection {
    /// Ends the statement in flight, if there is one; an open transaction fails, but stays open.
    pub(crate) async fn recover(&mut self) -> Result<(), PgError> {
        if self.broken().is_some() {
            return Err(lost("the connection was lost earlier"));
        }
        if self.state.ready_pending == 0 && self.state.cancellation.is_none() {
            return Ok(());
        }
        let result = match timeout(RECOVERY_MAX, self.end_statement()).await {
            Ok(result) => result,
            Err(_) => Err(lost("the statement could not be cancelled in time")),
        };
        if result.is_err() {
            self.discard_because(DiscardReason::Recovery);
        }
        result
    }

    /// Makes the connection clean: ends the statement in flight and rolls an open transaction back.
    pub(crate) async fn clean(&mut self) {
        let cleaning = async {
            self.recover().await?;
            if self.state.status != TransactionStatus::Idle {
                self.command("ROLLBACK").await?;
            }
            Ok::<_, PgError>(())
        };
        let is_done = matches!(timeout(RECOVERY_MAX, cleaning).await, Ok(Ok(())));
        if !is_done || !self.is_clean() {
            self.discard_because(DiscardReason::Recovery);
        }
    }

    /// Reports whether the statement of a discarded connection may still run, although it was cancelled.
    pub(crate) fn may_run_on(&self) -> bool {
        let is_in_flight = 0 < self.state.ready_pending || !self.state.cancellation.is_none();
        self.broken == Some(DiscardReason::Recovery) && is_in_flight
    }

    /// Terminates the server's process and waits until it has ended.
    pub(crate) async fn terminate_process(&mut self, turn: &Mutex<()>) {
        let process = terminate::Process {
            config: &self.config,
            peer: &self.peer,
            id: self.cancel_key.process_id(),
            opened_at: self.opened_at,
        };
        match timeout(RECOVERY_MAX, process.terminate(&mut self.wire, turn)).await {
            Ok(Ok(())) => increment(&self.counters.processes_terminated),
            Ok(Err(_)) | Err(_) => self.broken = Some(DiscardReason::StillRunning),
        }
    }

    async fn end_statement(&mut self) -> Result<(), PgError> {
        loop {
            match &mut self.state.cancellation {
                Cancellation::None => {
                    if self.ends_by_itself().await? {
                        return Ok(());
                    }
                    self.request_cancel();
                }
                Cancellation::Requested(request) => {
                    request.await.unwrap_or_else(|error| Err(lost(&error.to_string())))?;
                    self.state.cancellation = Cancellation::Signalled;
                }
                Cancellation::Signalled => {
                    self.drain().await?;
                    write_closes(self.state.cache.take_closing(), &mut self.wire.output)?;
                    frontend::sync(&mut self.wire.output);
                    self.state.ready_pending = 1;
                    self.state.cancellation = Cancellation::Barrier;
                }
                Cancellation::Barrier => {
                    self.wire.flush().await?;
                    self.drain().await?;
                    self.state.cancellation = Cancellation::None;
                    return Ok(());
                }
            }
        }
    }

    /// Ends the statement without a cancel request, if it was not sent, has ended already or is a refused COPY.
    async fn ends_by_itself(&mut self) -> Result<bool, PgError> {
        if self.state.awaits_marker {
            self.wire.flush().await?;
            self.drain().await?;
            return Ok(true);
        }
        match self.wire.sent() {
            Sent::Nothing => {
                self.wire.discard_output();
                self.state.ready_pending = 0;
                self.state.preparing = None;
                return Ok(true);
            }
            // The server waits for the rest and runs nothing until it comes.
            Sent::Part => return Err(lost("the statement was sent only in part")),
            Sent::All => self.wire.flush().await?,
        }
        self.drain_received().await
    }

    fn request_cancel(&mut self) {
        increment(&self.counters.cancels_sent);
        let config = self.config.clone();
        let peer = self.peer.clone();
        let key = self.cancel_key;
        let request = async move {
            let requesting = timeout(RECOVERY_MAX, cancel::request(&config, &peer, key));
            requesting.await.unwrap_or_else(|_| Err(lost("the cancel request was not answered in time")))
        };
        self.state.cancellation = Cancellation::Requested(tokio::spawn(request));
    }

    /// Drains the messages that have arrived; returns `true` if the server is ready.
    async fn drain_received(&mut self) -> Result<bool, PgError> {
        poll_fn(|cx| match pin!(self.drain()).poll(cx) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| true)),
            Poll::Pending => Poll::Ready(Ok(false)),
        })
        .await
    }

    /// Reads and ignores the rest of the reply.
    async fn drain(&mut self) -> Result<(), PgError> {
        while 0 < self.state.ready_pending {
            let frame = match self.wire.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.wire.flush().await?;
                    self.wire.fill().await?;
                    continue;
                }
                Err(PgError::ResultTooLarge { .. }) => continue,
                Err(error) => return Err(error),
            };
            self.state.observe(frame)?;
            if frame.kind == b'G' {
                self.write_copy_refusal();
            }
        }
        if let Some(name) = self.state.preparing.take() {
            self.state.cache.close(name);
        }
        Ok(())
    }
}
