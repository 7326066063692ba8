//! Right to one of the pool's connections; a drop guard gives it back.

use std::sync::Arc;

use super::Pool;
use crate::connection::ServerConnection;
use crate::counters::DiscardReason;

/// State of a connection after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The connection can be lent again.
    Idle,
    Discarded,
}

pub(super) type ReleaseCallback = Box<dyn FnOnce(Release) + Send>;

pub(super) struct Loan {
    /// `None` once the loan has been passed on.
    pool: Option<Arc<Pool>>,
    /// `None` while the connection is being opened.
    pub(super) connection: Option<Box<ServerConnection>>,
    callback: Option<ReleaseCallback>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Lent,
    /// A task makes the connection clean; if it is dropped, the connection is discarded.
    Cleaning,
}

impl Loan {
    /// Creates the guard of a connection that is counted as in use.
    pub(super) fn new(pool: &Arc<Pool>, connection: Option<Box<ServerConnection>>) -> Self {
        Self { pool: Some(pool.clone()), connection, callback: None, stage: Stage::Lent }
    }

    /// Adds a callback for the release.
    pub(super) fn on_release(&mut self, callback: ReleaseCallback) {
        self.callback = Some(match self.callback.take() {
            None => callback,
            Some(first) => Box::new(|release| {
                first(release);
                callback(release);
            }),
        });
    }

    /// Closes a connection that the server closed, and takes another idle one in its place, if there is one.
    pub(super) fn replace(&mut self, owner: u64) {
        let Some(pool) = &self.pool else { return };
        let idle = pool.shared.lock().take_idle(owner);
        if let Some(closed) = std::mem::replace(&mut self.connection, idle) {
            pool.discard(closed, DiscardReason::Stale);
        }
    }

    /// Takes the connection out of a loan that nobody accepted; its count stays.
    pub(super) fn disarm(&mut self) -> Option<Box<ServerConnection>> {
        self.pool = None;
        self.connection.take()
    }

    /// Makes the connection clean, or ends its process if a statement cannot be cancelled; releases it afterwards.
    async fn clean(mut self) {
        if let (Some(pool), Some(connection)) = (&self.pool, &mut self.connection) {
            connection.clean().await;
            if connection.may_run_on() {
                connection.terminate_process(&pool.terminating).await;
            }
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let release = match self.connection.take() {
            None => {
                pool.put_permit();
                Release::Discarded
            }
            Some(connection) if connection.is_clean() => pool.put(connection),
            Some(connection) => {
                let is_ended = connection.broken().is_some() && !connection.may_run_on();
                let is_final = self.stage == Stage::Cleaning || is_ended;
                if !is_final && let Some(runtime) = pool.runtime.get().cloned() {
                    let loan = Self {
                        pool: Some(pool),
                        connection: Some(connection),
                        callback: self.callback.take(),
                        stage: Stage::Cleaning,
                    };
                    runtime.spawn(loan.clean());
                    return;
                }
                let reason = connection.broken().unwrap_or(DiscardReason::Recovery);
                pool.discard(connection, reason);
                pool.put_permit();
                Release::Discarded
            }
        };
        if let Some(callback) = self.callback.take() {
            callback(release);
        }
    }
}
