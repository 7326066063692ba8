//! CancelRequest: asks the server, over a connection of its own, to cancel the statement of another connection.

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::{Malformed, MessageBody};
use crate::config::ConnectConfig;
use crate::connect;
use crate::error::PgError;
use crate::transport::Peer;
use crate::wire::lost;

/// Identifies a connection to the server.
#[derive(Clone, Copy, Default)]
pub(crate) struct CancelKey {
    process_id: i32,
    secret: i32,
}

impl core::fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "process {}", self.process_id)
    }
}

impl CancelKey {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut body = MessageBody(body);
        Ok(Self { process_id: body.i32()?, secret: body.i32()? })
    }

    pub(crate) fn process_id(self) -> i32 {
        self.process_id
    }
}

/// Requests the cancellation and waits until the server has closed the request's connection.
///
/// The server closes it after it has signalled the process, so no signal is sent after this returns `Ok`.
pub(crate) async fn request(config: &ConnectConfig, peer: &Peer, key: CancelKey) -> Result<(), PgError> {
    let mut transport = connect::open_again(config, peer).await?;
    let mut request = BytesMut::new();
    frontend::cancel_request(key.process_id, key.secret, &mut request);
    let exchange = async {
        transport.write_all(&request).await?;
        transport.flush().await?;
        transport.read(&mut [0]).await
    };
    match exchange.await {
        Ok(0) => Ok(()),
        Ok(_) => Err(PgError::Protocol { reason: "the server answered a cancel request".to_owned() }),
        // The server ends TLS without a closing alert.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(lost(&error.to_string())),
    }
}
