//! Relays: UDP forwarders that a path goes over.
//!
//! A relay keeps an association per client address, with a socket per association: packets of the client go unchanged
//! through it to the next hop, and answers come back unchanged. QUIC runs end to end through a chain of relays.
//!
//! An association is set up by two exchanges over UDP, which authenticate both sides:
//!
//! ```text
//! client                                           relay
//!   hello, padded                             →                  keeps no state
//!                                             ←    challenge: cookie = time and MAC over client address and nonce
//!   token: cookie, next address, key, signature →                checks cookie, key, signature, next address
//!                                             ←    acceptance: key, signature
//! ```
//!
//! A client sets up a chain hop by hop, each hop through those before it. The messages are signed, not encrypted: a relay
//! is told only its next hop, but can read the set-ups of later relays, which it forwards.
//!
//! Guarantees:
//! - Nothing is forwarded for a client that has not proved its address and one of the allowed keys, and only to one of
//!   the allowed next addresses.
//! - A token is bound to its relay, its client's address and the time: elsewhere or later it is refused. A repeat of the
//!   latest token from the same address changes nothing; an older one is accepted again until its cookie expires, 10 s
//!   after the hello.
//! - Until a client has proved its address, it gets at most as many bytes as it sent, and costs no memory.
//!
//! Limits: [`RelayLimits`]; [`PACKET_LEN_MAX`] bytes per packet; a signature is checked only for allowed keys, and at
//! most [`SIGNATURES_PER_SECOND_MAX`] times per second.
//!
//! Files: `message` (the bytes), `setup_key` (signatures), `client` (set-up of a chain), `gate` (decisions of the relay),
//! `associations` (its table), `server` (its sockets).

mod associations;
mod client;
mod gate;
mod message;
mod server;
mod setup_key;

pub use associations::RelayLimits;
pub(crate) use client::{ChainError, Hop, set_up_chain};
pub use client::{RelayTarget, RelayTargetError, SetupError};
pub use gate::{RefusalReason, SIGNATURES_PER_SECOND_MAX};
pub use message::{MessageError, SETUP_LEN_MAX, SetupBody, SetupMessage};
pub use server::{PACKET_LEN_MAX, RelayConfig, RelayServer, RelayStartError, RelayStatus};
pub use setup_key::{NotEd25519, SetupKey};

#[cfg(test)]
mod tests;
