//! Tasks that read a path's streams and datagrams.

use std::sync::{Arc, Weak};

use evenkeel_policy::id::PathId;

use super::{CLOSE_ENDED, CLOSE_REPLACED, Driver, EndOfSession};
use crate::frame::FrameDecoder;
use crate::quic::{PathConnection, RecvStream};
use crate::session::LinkSession;

/// Maximum number of bytes read from a stream at a time.
const READ_MAX: usize = 256 * 1024;

/// Starts the tasks that read a connection; they end with it.
pub(super) fn spawn(driver: &Arc<Driver>, connection: PathConnection, path: PathId, generation: u64) {
    tokio::spawn(read_datagrams(Arc::downgrade(driver), connection.clone(), path));
    tokio::spawn(accept_streams(Arc::downgrade(driver), connection, path, generation));
}

/// Accepts the peer's streams until the connection closes; then removes it, or ends the session, as the close code
/// says.
async fn accept_streams(driver: Weak<Driver>, connection: PathConnection, path: PathId, generation: u64) {
    let error = loop {
        match connection.accept_stream().await {
            Ok(stream) => {
                tokio::spawn(read_stream(driver.clone(), stream, path));
            }
            Err(error) => break error,
        }
    };
    let Some(driver) = driver.upgrade() else { return };
    tracing::debug!(path = connection.name(), %error, "the connection of a path ended");
    match PathConnection::close_code(&error) {
        Some(CLOSE_ENDED) => driver.close(EndOfSession::ClosedByPeer),
        Some(CLOSE_REPLACED) => {
            driver.remove_connection(path, generation, LinkSession::handle_connection_replaced);
        }
        _ => driver.remove_connection(path, generation, LinkSession::handle_path_down),
    }
}

async fn read_stream(driver: Weak<Driver>, mut stream: RecvStream, path: PathId) {
    let mut decoder = FrameDecoder::new();
    // No action is needed at the end: a finished stream has delivered its data, and the peer sends the data of a reset
    // or lost one again.
    while let Ok(Some(mut bytes)) = stream.read_chunk(READ_MAX).await {
        let Some(driver) = driver.upgrade() else { return };
        let is_valid = driver.with(|session, now| {
            loop {
                match decoder.decode(&mut bytes) {
                    Ok(None) => return true,
                    Ok(Some(frame)) => {
                        if session.handle_frame(now, path, frame).is_err() {
                            // The session has ended.
                            return false;
                        }
                    }
                    Err(error) => {
                        session.handle_protocol_error(now, error.into());
                        return false;
                    }
                }
            }
        });
        if !is_valid {
            return;
        }
    }
}

async fn read_datagrams(driver: Weak<Driver>, connection: PathConnection, path: PathId) {
    while let Ok(datagram) = connection.read_datagram().await {
        let Some(driver) = driver.upgrade() else { return };
        // An error has ended the session, which closes the connection.
        let _ = driver.with(|session, now| session.handle_datagram(now, path, &datagram));
    }
}
