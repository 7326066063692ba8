//! Set-up of a chain of relays on a client's socket.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use evenkeel_policy::time::Duration;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::gate::RefusalReason;
use super::message::{COOKIE_LEN, NONCE_LEN, SETUP_LEN_MAX, SetupBody, SetupMessage};
use super::setup_key::{SetupKey, SignaturePurpose, Transcript, is_signed};
use crate::identity::{Fingerprint, FingerprintError};
use crate::quic::{RemoteAddress, TargetError, canonical};

/// Time for the set-up of one hop.
const HOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before a message is sent again; doubles each time.
const REPEAT_MIN: Duration = Duration::from_millis(250);

/// Relay as it is configured: `HOST:PORT=FINGERPRINT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayTarget {
    /// Address for the client, and for the relay before it in a route.
    pub address: RemoteAddress,
    /// Key of the relay.
    pub fingerprint: Fingerprint,
}

/// Error of parsing a [`RelayTarget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayTargetError {
    #[error("expected HOST:PORT=FINGERPRINT, such as 198.51.100.9:7500=sha256:..., not {text:?}")]
    NoFingerprint { text: String },
    #[error(transparent)]
    Address(#[from] TargetError),
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
}

impl FromStr for RelayTarget {
    type Err = RelayTargetError;

    fn from_str(text: &str) -> Result<Self, RelayTargetError> {
        let (address, fingerprint) =
            text.split_once('=').ok_or_else(|| RelayTargetError::NoFingerprint { text: text.to_owned() })?;
        Ok(Self { address: address.parse()?, fingerprint: fingerprint.parse()? })
    }
}

impl fmt::Display for RelayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Relay of a chain, with its current address.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: Fingerprint,
}

/// Error of the set-up at one relay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error("does not answer within {timeout:?}; check that it runs and that UDP reaches it")]
    NoAnswer { timeout: Duration },
    #[error("has the key {actual}, but {expected} is configured")]
    OtherKey { actual: Fingerprint, expected: Fingerprint },
    #[error("does not know our key; start it with --peer {own}")]
    UnknownPeer { own: Fingerprint },
    #[error("may not forward to {next}; start it with --next {next}")]
    NextNotAllowed { next: SocketAddr },
    #[error("refused the set-up: {reason}")]
    Refused { reason: RefusalReason },
    #[error("did not prove that it has the configured key")]
    WrongSignature,
    #[error("cannot be reached: {reason}")]
    Socket { reason: String },
}

impl SetupError {
    /// Returns the value of the metrics' label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoAnswer { .. } => "no_answer",
            Self::OtherKey { .. } => "other_key",
            Self::UnknownPeer { .. } => "unknown_peer",
            Self::NextNotAllowed { .. } => "next_not_allowed",
            Self::Refused { .. } => "refused",
            Self::WrongSignature => "wrong_signature",
            Self::Socket { .. } => "socket",
        }
    }
}

/// Error of the set-up of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChainError {
    /// The system of the client has no random numbers.
    NoRandomNumbers,
    /// The relay with the index `hop` failed.
    Relay { hop: usize, error: SetupError },
}

/// Sets up a chain of relays that ends at `target`; afterwards, packets to the first relay reach the target.
pub(crate) async fn set_up_chain(
    socket: &UdpSocket,
    key: &SetupKey,
    hops: &[Hop],
    target: SocketAddr,
) -> Result<(), ChainError> {
    let Some(first) = hops.first() else { return Ok(()) };
    for (index, hop) in hops.iter().enumerate() {
        let next = hops.get(index + 1).map_or(target, |next| next.address);
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| ChainError::NoRandomNumbers)?;
        let deadline = Instant::now() + HOP_TIMEOUT;
        let exchange = HopSetup { socket, first: first.address, key, hop, next, nonce, deadline };
        exchange.run().await.map_err(|error| ChainError::Relay { hop: index, error })?;
    }
    Ok(())
}

/// Set-up of one relay through those before it.
struct HopSetup<'a> {
    socket: &'a UdpSocket,
    first: SocketAddr,
    key: &'a SetupKey,
    hop: &'a Hop,
    next: SocketAddr,
    nonce: [u8; NONCE_LEN],
    deadline: Instant,
}

impl HopSetup<'_> {
    async fn run(&self) -> Result<(), SetupError> {
        let cookie = self
            .exchange(SetupBody::Hello, |body| match body {
                SetupBody::Challenge { cookie } => Some(cookie),
                _ => None,
            })
            .await?;
        let transcript = self.transcript(cookie);
        let signature = self.key.sign(SignaturePurpose::Token, &transcript);
        let token = SetupBody::Token { cookie, next: self.next, key: self.key.public(), signature };
        let is_authentic = self
            .exchange(token, |body| match body {
                SetupBody::Accepted { key, signature } => Some(
                    Fingerprint::of_ed25519(&key) == self.hop.fingerprint
                        && is_signed(&key, SignaturePurpose::Acceptance, &transcript, &signature),
                ),
                _ => None,
            })
            .await?;
        if is_authentic { Ok(()) } else { Err(SetupError::WrongSignature) }
    }

    fn transcript(&self, cookie: [u8; COOKIE_LEN]) -> Transcript {
        Transcript {
            relay: self.hop.fingerprint,
            client: self.key.fingerprint(),
            nonce: self.nonce,
            cookie,
            next: self.next,
        }
    }

    /// Sends a message until it is answered.
    async fn exchange<T>(
        &self,
        body: SetupBody,
        read: impl Fn(SetupBody) -> Option<T>,
    ) -> Result<T, SetupError> {
        let message = SetupMessage { relay: self.hop.fingerprint, nonce: self.nonce, body }.encode();
        let mut pause = REPEAT_MIN;
        while Instant::now() < self.deadline {
            self.socket
                .send_to(&message, self.first)
                .await
                .map_err(|error| SetupError::Socket { reason: error.to_string() })?;
            let until = self.deadline.min(Instant::now() + pause);
            pause *= 2;
            while let Ok(body) = timeout_at(until, self.receive()).await {
                if let SetupBody::Refused { reason, by } = body {
                    return Err(self.explain(reason, by));
                }
                if let Some(answer) = read(body) {
                    return Ok(answer);
                }
            }
        }
        Err(SetupError::NoAnswer { timeout: HOP_TIMEOUT })
    }

    /// Waits for an answer of this exchange; ignores everything else.
    async fn receive(&self) -> SetupBody {
        let mut buffer = [0; SETUP_LEN_MAX + 1];
        loop {
            // An error concerns an earlier packet, which is sent again.
            let Ok((len, from)) = self.socket.recv_from(&mut buffer).await else { continue };
            if canonical(from) != canonical(self.first) {
                continue;
            }
            match SetupMessage::decode(&buffer[..len]) {
                Ok(SetupMessage { relay, nonce, body })
                    if relay == self.hop.fingerprint && nonce == self.nonce =>
                {
                    return body;
                }
                _ => {}
            }
        }
    }

    fn explain(&self, reason: RefusalReason, by: Fingerprint) -> SetupError {
        match reason {
            RefusalReason::OtherRelay => SetupError::OtherKey { actual: by, expected: self.hop.fingerprint },
            RefusalReason::UnknownPeer => SetupError::UnknownPeer { own: self.key.fingerprint() },
            RefusalReason::NextNotAllowed => SetupError::NextNotAllowed { next: self.next },
            RefusalReason::Malformed
            | RefusalReason::ForgedCookie
            | RefusalReason::StaleCookie
            | RefusalReason::WrongSignature
            | RefusalReason::PeerFull
            | RefusalReason::Busy
            | RefusalReason::NoSocket => SetupError::Refused { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINGERPRINT: &str = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    #[test]
    fn a_relay_is_an_address_and_a_fingerprint() {
        let relay: RelayTarget = format!("relay-a.example:7500={FINGERPRINT}").parse().unwrap();
        assert_eq!(relay.fingerprint, FINGERPRINT.parse().unwrap());
        assert_eq!(relay.to_string(), "relay-a.example:7500");
        for (text, part) in [
            ("192.0.2.1:7500".to_owned(), "expected HOST:PORT=FINGERPRINT"),
            (format!("192.0.2.1={FINGERPRINT}"), "has no port"),
            ("192.0.2.1:7500=sha256:x".to_owned(), "43 characters"),
        ] {
            let error = text.parse::<RelayTarget>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
