//! Tickets: permission for one request, on behalf of a tenant, at one node.
//!
//! A ticket is base64url of: version, boot of the target, expiry by the target's clock, nonce, hash of method and path,
//! hash of the body, hops left, the names of issuer, target and tenant, the identity of the database, the visited nodes,
//! and a truncated HMAC-SHA256 of all that.
//!
//! Guarantees: a ticket is accepted at most once, by its target only, and not after a restart of it. No wall clock is
//! used.
//!
//! Limits: [`TICKET_BYTES_MAX`] characters, [`VISITED_MAX`] visited nodes, `used_tickets_max` remembered tickets.

mod used;

pub(crate) use used::UsedTickets;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use ring::digest::{Context, SHA256, digest};

use crate::key::{NoRandomness, Nonce, SigningKey};
use crate::report::BootId;

/// Name of the header that carries the ticket of a forwarded request.
pub const TICKET_HEADER: &str = "x-evenkeel-ticket";
/// Maximum length of a ticket.
pub const TICKET_BYTES_MAX: usize = 2048;
/// Maximum number of visited nodes.
pub const VISITED_MAX: usize = 8;

const VERSION: u8 = 2;
const NONCE_AT: usize = 1 + 8 + 8;
const HASH_LEN: usize = 32;
const MAC_LEN: usize = 16;

/// A request for which a ticket is issued.
#[derive(Clone, Copy, Debug)]
pub struct TicketRequest<'a> {
    pub tenant: &'a str,
    /// Identity of the database that the request is for; empty if its transaction decides.
    pub database_id: &'a str,
    pub method: &'a Method,
    /// Path of the request as its target will see it, without the ticket.
    pub path: &'a str,
    pub body: &'a [u8],
    /// Number of further nodes to which the target may pass the request.
    pub hops_left: u8,
    /// Nodes that the request visited; this one may be included.
    pub visited: &'a [String],
}

/// An accepted ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub tenant: String,
    /// Identity of the database that the request is for; empty if its transaction decides.
    pub database_id: String,
    /// Node that issued the ticket.
    pub issuer: String,
    pub hops_left: u8,
    /// Nodes that the request visited, the issuer included.
    pub visited: Vec<String>,
    pub(crate) nonce: Nonce,
    body_hash: [u8; HASH_LEN],
}

impl Ticket {
    /// Checks that the ticket was issued for a request with this body.
    pub fn check_body(&self, body: &[u8]) -> Result<(), TicketError> {
        if hash(body) == self.body_hash { Ok(()) } else { Err(TicketError::OtherBody) }
    }
}

/// Contents of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketFields {
    pub(crate) boot: BootId,
    /// Time by the target's clock, in milliseconds since its start.
    pub(crate) expires_ms: u64,
    pub(crate) nonce: Nonce,
    pub(crate) route_hash: [u8; HASH_LEN],
    pub(crate) body_hash: [u8; HASH_LEN],
    pub(crate) hops_left: u8,
    pub(crate) issuer: String,
    pub(crate) target: String,
    pub(crate) tenant: String,
    pub(crate) database_id: String,
    pub(crate) visited: Vec<String>,
}

impl TicketFields {
    /// Signs the ticket and returns its text.
    pub(crate) fn encode(&self, key: &SigningKey) -> Result<String, TicketError> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.boot.0.to_be_bytes());
        bytes.extend_from_slice(&self.expires_ms.to_be_bytes());
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.route_hash);
        bytes.extend_from_slice(&self.body_hash);
        bytes.push(self.hops_left);
        let texts = [&self.issuer, &self.target, &self.tenant, &self.database_id];
        for text in texts.into_iter().chain(&self.visited) {
            bytes.push(u8::try_from(text.len()).map_err(|_| TicketError::TooLong)?);
            bytes.extend_from_slice(text.as_bytes());
        }
        let mac = key.sign(&[&bytes]);
        bytes.extend_from_slice(&mac[..MAC_LEN]);
        let text = URL_SAFE_NO_PAD.encode(bytes);
        if TICKET_BYTES_MAX < text.len() || VISITED_MAX < self.visited.len() {
            return Err(TicketError::TooLong);
        }
        Ok(text)
    }

    /// Verifies the signature of a ticket and returns its contents.
    pub(crate) fn decode(text: &str, key: &SigningKey) -> Result<Self, TicketError> {
        let bytes = decode_text(text).ok_or(TicketError::Malformed)?;
        let signed_len = bytes.len().checked_sub(MAC_LEN).ok_or(TicketError::Malformed)?;
        let (signed, mac) = bytes.split_at(signed_len);
        if !key.is_truncated_valid(&[signed], mac) {
            return Err(TicketError::Signature);
        }
        Self::parse(signed).ok_or(TicketError::Malformed)
    }

    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let [version] = take(&mut bytes)?;
        if version != VERSION {
            return None;
        }
        let boot = BootId(u64::from_be_bytes(take(&mut bytes)?));
        let expires_ms = u64::from_be_bytes(take(&mut bytes)?);
        let nonce = take(&mut bytes)?;
        let route_hash = take(&mut bytes)?;
        let body_hash = take(&mut bytes)?;
        let [hops_left] = take(&mut bytes)?;
        let issuer = take_text(&mut bytes)?;
        let target = take_text(&mut bytes)?;
        let tenant = take_text(&mut bytes)?;
        let database_id = take_text(&mut bytes)?;
        let mut visited = Vec::new();
        while !bytes.is_empty() {
            if visited.len() == VISITED_MAX {
                return None;
            }
            visited.push(take_text(&mut bytes)?);
        }
        Some(Self {
            boot,
            expires_ms,
            nonce,
            route_hash,
            body_hash,
            hops_left,
            issuer,
            target,
            tenant,
            database_id,
            visited,
        })
    }

    /// Checks that the ticket is for this node and this request and has not expired; the caller checks that it is unused.
    pub(crate) fn check(&self, at: &TicketContext<'_>) -> Result<(), TicketError> {
        if self.target != at.node {
            return Err(TicketError::OtherTarget { target: self.target.clone(), node: at.node.to_owned() });
        }
        if self.boot != at.boot {
            return Err(TicketError::BeforeRestart);
        }
        if self.expires_ms <= at.clock_ms {
            return Err(TicketError::Expired);
        }
        // If this machine was suspended, issuers overestimate its clock until their next poll.
        let expires_max = at.clock_ms.saturating_add(at.lifetime_ms).saturating_add(EXPIRY_SLACK_MS);
        if expires_max < self.expires_ms {
            return Err(TicketError::ExpiryTooFar);
        }
        if self.route_hash != hash_route(at.method, at.path) {
            return Err(TicketError::OtherRoute);
        }
        Ok(())
    }

    pub(crate) fn into_ticket(self) -> Ticket {
        Ticket {
            tenant: self.tenant,
            database_id: self.database_id,
            issuer: self.issuer,
            hops_left: self.hops_left,
            visited: self.visited,
            nonce: self.nonce,
            body_hash: self.body_hash,
        }
    }
}

/// Tolerated error of an issuer's estimate of the target's clock.
const EXPIRY_SLACK_MS: u64 = 1_000;

/// The receiving node, its clock, and the request that presents the ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TicketContext<'a> {
    pub(crate) node: &'a str,
    pub(crate) boot: BootId,
    pub(crate) clock_ms: u64,
    pub(crate) lifetime_ms: u64,
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
}

/// Returns the nonce of a ticket without checking its signature.
pub(crate) fn read_nonce(text: &str) -> Option<Nonce> {
    take(&mut decode_text(text)?.get(NONCE_AT..)?)
}

fn decode_text(text: &str) -> Option<Vec<u8>> {
    if TICKET_BYTES_MAX < text.len() {
        return None;
    }
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Takes the next `N` bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Takes a text with its length in front.
fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let [len] = take(bytes)?;
    let (text, rest) = bytes.split_at_checked(len.into())?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}

pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH_LEN] {
    let mut hash = [0; HASH_LEN];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Hashes method and path; a method contains no space.
pub(crate) fn hash_route(method: &Method, path: &str) -> [u8; HASH_LEN] {
    let mut context = Context::new(&SHA256);
    context.update(method.as_str().as_bytes());
    context.update(b" ");
    context.update(path.as_bytes());
    let mut hash = [0; HASH_LEN];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

/// A ticket that cannot be issued or is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    #[error("there is no peer {peer}")]
    UnknownPeer { peer: usize },
    #[error("peer {peer:?} has not reported its clock yet")]
    NoReport { peer: String },
    #[error("the request has visited node {node:?} already")]
    AlreadyVisited { node: String },
    #[error(
        "the ticket would be too long: a name has at most 255 bytes, a ticket {TICKET_BYTES_MAX}, \
         and a request visits at most {VISITED_MAX} nodes"
    )]
    TooLong,
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    #[error("the ticket is malformed")]
    Malformed,
    #[error("the ticket has a wrong signature")]
    Signature,
    #[error("the ticket is for node {target:?}, this is {node:?}")]
    OtherTarget { target: String, node: String },
    #[error("the ticket is from before a restart of this node")]
    BeforeRestart,
    #[error("the ticket has expired")]
    Expired,
    #[error("the ticket expires too late: its issuer has a wrong idea of this node's clock")]
    ExpiryTooFar,
    #[error("the ticket is for another method or path")]
    OtherRoute,
    #[error("the ticket is for another body")]
    OtherBody,
    #[error("the ticket was used already")]
    AlreadyUsed,
    #[error("{max} used tickets have not expired yet, so no other is accepted")]
    TooManyUsed { max: usize },
}
