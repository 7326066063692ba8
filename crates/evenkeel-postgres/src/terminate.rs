//! Termination of a server process whose statement cannot be cancelled, over a connection of its own.
//!
//! A statement can ignore a cancel request, and a client can stop the server from checking for a closed socket. It cannot
//! ignore `pg_terminate_backend`. Guarantee: no other process is hit, even if the process id was used again.

use std::time::Duration;

use postgres_protocol::message::frontend;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::config::ConnectConfig;
use crate::db_error::DbError;
use crate::error::PgError;
use crate::startup::{self, malformed};
use crate::transport::Peer;
use crate::wire::{Wire, lost};

/// Longest message on the connection.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most that the server's clock may differ from ours over the life of a connection.
const DRIFT_MAX: Duration = Duration::from_secs(10);

/// A connection's process on the server.
pub(crate) struct Process<'a> {
    pub(crate) config: &'a ConnectConfig,
    pub(crate) peer: &'a Peer,
    pub(crate) id: i32,
    pub(crate) opened_at: Instant,
}

impl Process<'_> {
    /// Terminates the process and waits until it has closed its connection; the caller limits the time.
    ///
    /// `turn` is held while the second connection is open.
    pub(crate) async fn terminate(self, wire: &mut Wire, turn: &Mutex<()>) -> Result<(), PgError> {
        let signalled = {
            let _turn = turn.lock().await;
            self.signal().await
        };
        if signalled.is_ok() {
            wire.ended().await;
            return Ok(());
        }
        // The process may have ended together with its server.
        let has_ended = timeout(Duration::ZERO, wire.ended()).await.is_ok();
        if has_ended { Ok(()) } else { signalled }
    }

    async fn signal(&self) -> Result<(), PgError> {
        let mut wire = startup::start_again(self.config, self.peer, MESSAGE_BYTES_MAX).await?;
        let age = self.opened_at.elapsed().saturating_sub(DRIFT_MAX);
        let sql = signal_sql(self.id, age);
        frontend::query(&sql, &mut wire.output).map_err(|error| lost(&error.to_string()))?;
        wire.flush().await?;
        let mut error = None;
        let ready = wire.read_until(|frame| {
            if frame.kind == b'E' {
                error = Some(DbError::parse(frame.body).map_err(malformed)?);
            }
            Ok((frame.kind == b'Z').then_some(()))
        });
        ready.await?;
        frontend::terminate(&mut wire.output);
        wire.flush().await?;
        wire.ended().await;
        error.map_or(Ok(()), |error| Err(PgError::Database(Box::new(error))))
    }
}

/// Returns a query that terminates the process, unless it began after the connection was opened.
fn signal_sql(process_id: i32, age: Duration) -> String {
    let seconds = age.as_secs();
    format!(
        "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
         WHERE pid = {process_id} AND datname = pg_catalog.current_database() AND usename = session_user \
         AND backend_start <= pg_catalog.clock_timestamp() - interval '{seconds} seconds'"
    )
}
