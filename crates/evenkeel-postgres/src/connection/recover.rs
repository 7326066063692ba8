//! Ends a statement whose exchange was dropped or stopped half-way, without ever cancelling the next one.
//!
//! The order: a CancelRequest on a connection of its own; the end of that connection, by which the server has signalled
//! the process; ReadyForQuery of the statement; one more round trip, before which the process has handled the signal.
//! If any step fails, the connection is discarded.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::time::Duration;

use postgres_protocol::message::frontend;
use tokio::time::timeout;

use super::ServerConnection;
use super::execute::write_closes;
use crate::cancel;
use crate::counters::{DiscardReason, increment};
use crate::error::PgError;
use crate::statement::TransactionStatus;
use crate::wire::{Sent, lost};

/// Time limit for ending a statement, and for a rollback after it.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(5);

impl ServerConnection {
    /// Ends the statement in flight, if there is one; an open transaction fails, but stays open.
    pub(crate) async fn recover(&mut self) -> Result<(), PgError> {
        if self.broken().is_some() {
            return Err(lost("the connection was lost earlier"));
        }
        if self.state.cancelling {
            // An earlier recovery was dropped; its cancel request may arrive at any time.
            self.discard_because(DiscardReason::Recovery);
            return Err(lost("an earlier cancellation was not completed"));
        }
        if self.state.ready_pending == 0 {
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

    async fn end_statement(&mut self) -> Result<(), PgError> {
        if !self.state.awaits_marker {
            match self.wire.sent() {
                Sent::Nothing => {
                    self.wire.discard_output();
                    self.state.ready_pending = 0;
                    self.state.preparing = None;
                    return Ok(());
                }
                // The server waits for the rest and runs nothing until it comes.
                Sent::Part => return Err(lost("the statement was sent only in part")),
                Sent::All => {}
            }
        }
        self.wire.flush().await?;
        if self.drain_received().await? {
            return Ok(());
        }
        // A COPY that is being refused ends by itself.
        if self.state.awaits_marker {
            return self.drain().await;
        }
        self.state.cancelling = true;
        increment(&self.counters.cancels_sent);
        cancel::request(&self.config, &self.peer, self.cancel_key).await?;
        self.drain().await?;
        write_closes(self.state.cache.take_closing(), &mut self.wire.output)?;
        frontend::sync(&mut self.wire.output);
        self.state.ready_pending = 1;
        self.wire.flush().await?;
        self.drain().await?;
        self.state.cancelling = false;
        Ok(())
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
            let Some(frame) = self.wire.next()? else {
                self.wire.fill().await?;
                continue;
            };
            self.state.observe(frame)?;
            if frame.kind == b'G' {
                self.write_copy_refusal();
            }
            self.wire.flush().await?;
        }
        if let Some(name) = self.state.preparing.take() {
            self.state.cache.close(name);
        }
        Ok(())
    }
}
