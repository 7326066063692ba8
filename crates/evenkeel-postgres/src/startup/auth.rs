//! Authentication: SCRAM-SHA-256 (with channel binding over TLS), MD5, and a clear-text password where nobody can read it.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::frontend;

use crate::backend::MessageBody;
use crate::config::ConnectConfig;
use crate::error::{ConnectError, PgError};
use crate::startup::malformed;
use crate::tls;
use crate::transport::{Peer, Transport};

/// Progress of a login.
pub(super) struct Login<'a> {
    config: &'a ConnectConfig,
    /// Reports whether a clear-text password cannot be read on its way.
    is_private: bool,
    /// Hash of the server's certificate.
    end_point: Option<Vec<u8>>,
    state: State,
}

enum State {
    Begun,
    Scram(ScramSha256),
    /// The server has proved that it knows the password.
    ScramVerified,
    Complete,
}

impl<'a> Login<'a> {
    pub(super) fn new(config: &'a ConnectConfig, transport: &Transport, peer: &Peer) -> Self {
        let end_point = match transport {
            Transport::Tls(stream) => {
                let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
                certificates.first().and_then(|certificate| tls::server_end_point(certificate))
            }
            Transport::Tcp(_) | Transport::Unix(_) => None,
        };
        Self { config, is_private: transport.is_private(peer), end_point, state: State::Begun }
    }

    pub(super) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Handles an authentication request and writes the response to it, if it needs one.
    pub(super) fn handle(&mut self, body: &[u8], response: &mut BytesMut) -> Result<(), PgError> {
        let mut body = MessageBody(body);
        match body.u32().map_err(malformed)? {
            0 => self.finish(),
            3 if self.is_private => write_password(self.password()?.as_bytes(), response),
            3 => Err(refused("the server asks for a clear-text password over a connection without TLS")),
            5 => {
                let salt = body.u32().map_err(malformed)?.to_be_bytes();
                let hash = md5_hash(self.config.user.as_bytes(), self.password()?.as_bytes(), salt);
                write_password(hash.as_bytes(), response)
            }
            10 => self.begin_scram(body, response),
            11 => {
                let State::Scram(scram) = &mut self.state else { return Err(out_of_order()) };
                scram.update(body.0).map_err(|error| refused(&error.to_string()))?;
                frontend::sasl_response(scram.message(), response)
                    .map_err(|error| refused(&error.to_string()))
            }
            12 => {
                let State::Scram(scram) = &mut self.state else { return Err(out_of_order()) };
                scram.finish(body.0).map_err(|error| refused(&error.to_string()))?;
                self.state = State::ScramVerified;
                Ok(())
            }
            method => Err(refused(&format!("the server asks for method {method}, which is not supported"))),
        }
    }

    /// Accepts AuthenticationOk, but not in the middle of SCRAM: the server would not have proved its identity.
    fn finish(&mut self) -> Result<(), PgError> {
        match self.state {
            State::Begun | State::ScramVerified => {
                self.state = State::Complete;
                Ok(())
            }
            State::Scram(_) | State::Complete => Err(out_of_order()),
        }
    }

    fn begin_scram(&mut self, mut body: MessageBody<'_>, response: &mut BytesMut) -> Result<(), PgError> {
        let mut offers_plain = false;
        let mut offers_plus = false;
        loop {
            match body.text().map_err(malformed)? {
                b"" => break,
                mechanism if mechanism == SCRAM_SHA_256.as_bytes() => offers_plain = true,
                mechanism if mechanism == SCRAM_SHA_256_PLUS.as_bytes() => offers_plus = true,
                _ => {}
            }
        }
        let (mechanism, binding) = match self.end_point.take() {
            Some(hash) if offers_plus => (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash)),
            // Tells the server that channel binding was possible, so that it notices if its offer was removed.
            Some(_) if offers_plain => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None if offers_plain => (SCRAM_SHA_256, ChannelBinding::unsupported()),
            _ => return Err(refused("the server offers no SASL mechanism that is supported")),
        };
        let scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        frontend::sasl_initial_response(mechanism, scram.message(), response)
            .map_err(|error| refused(&error.to_string()))?;
        self.state = State::Scram(scram);
        Ok(())
    }

    fn password(&self) -> Result<&'a str, PgError> {
        match &self.config.password {
            Some(password) => Ok(&password.0),
            None => Err(refused("the server asks for a password, and the URL has none")),
        }
    }
}

fn write_password(password: &[u8], response: &mut BytesMut) -> Result<(), PgError> {
    frontend::password_message(password, response).map_err(|error| refused(&error.to_string()))
}

fn refused(reason: &str) -> PgError {
    PgError::Connect(ConnectError::Auth { reason: reason.to_owned() })
}

fn out_of_order() -> PgError {
    PgError::Protocol { reason: "authentication messages are out of order".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const CLEAR_TEXT: &[u8] = &[0, 0, 0, 3];

    /// Answers a request for a clear-text password over TCP from a server at this address.
    async fn answer(address: &str) -> Result<BytesMut, PgError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let transport = Transport::Tcp(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let config = ConnectConfig::parse("postgres://u:secret@h/d").unwrap();
        let peer = Peer::Tcp(address.parse::<SocketAddr>().unwrap());
        let mut response = BytesMut::new();
        Login::new(&config, &transport, &peer).handle(CLEAR_TEXT, &mut response)?;
        Ok(response)
    }

    #[tokio::test]
    async fn a_clear_text_password_leaves_the_machine_only_over_tls() {
        assert!(answer("127.0.0.1:5432").await.unwrap().ends_with(b"secret\0"));
        assert!(answer("[::1]:5432").await.unwrap().ends_with(b"secret\0"));
        let error = answer("192.0.2.1:5432").await.unwrap_err();
        assert!(matches!(error, PgError::Connect(ConnectError::Auth { .. })), "{error:?}");
    }
}
