//! Options of a cluster, and the checks that they pass before it starts.

use evenkeel_actor::{SpawnError, StartError};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_upstream::Origin;

use crate::key::{ClusterSecret, NoRandomness};

/// Maximum number of peers.
pub const PEERS_MAX: usize = 256;
/// Maximum length of a node's name.
pub const NODE_NAME_BYTES_MAX: usize = 128;
/// Shortest interval between polls.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Longest interval, timeout and lifetime.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Options of a cluster, as one node sees it.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Name of this node; every node has another.
    pub node: String,
    /// Equal at all nodes.
    pub secret: ClusterSecret,
    pub peers: Vec<PeerOptions>,
    /// Mean time between two polls of a peer.
    pub poll_interval: Duration,
    /// Time after which a poll has failed.
    pub poll_timeout: Duration,
    /// Time without a valid report after which a peer is DOWN.
    pub down_after: Duration,
    /// Time for which a ticket is valid, by its target's clock; equal at all nodes.
    pub ticket_lifetime: Duration,
    /// Maximum number of used tickets that have not expired yet; further tickets are refused.
    pub used_tickets_max: usize,
}

/// Options of one peer.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    pub name: String,
    /// Address at which this node reaches the peer.
    pub origin: Origin,
    /// URL at which clients reach the peer, without a trailing slash, for `Location`.
    pub url: String,
    pub weight: Weight,
}

impl ClusterOptions {
    /// Creates options with the default intervals and limits.
    pub fn new(node: impl Into<String>, secret: ClusterSecret, peers: Vec<PeerOptions>) -> Self {
        Self {
            node: node.into(),
            secret,
            peers,
            poll_interval: Duration::from_millis(250),
            poll_timeout: Duration::from_secs(1),
            down_after: Duration::from_secs(3),
            ticket_lifetime: Duration::from_secs(10),
            used_tickets_max: 1 << 19,
        }
    }

    /// Checks names, URLs and intervals.
    pub(crate) fn check(&self) -> Result<(), ClusterStartError> {
        check_name(&self.node)?;
        if PEERS_MAX < self.peers.len() {
            return Err(ClusterStartError::TooManyPeers { peers: self.peers.len() });
        }
        let durations = [self.poll_interval, self.poll_timeout, self.down_after, self.ticket_lifetime];
        if self.poll_interval < INTERVAL_MIN || durations.iter().any(|duration| INTERVAL_MAX < *duration) {
            return Err(ClusterStartError::Interval);
        }
        for (index, peer) in self.peers.iter().enumerate() {
            check_name(&peer.name)?;
            if peer.name == self.node {
                return Err(ClusterStartError::OwnPeer { name: peer.name.clone() });
            }
            for other in &self.peers[..index] {
                check_pair(other, peer)?;
            }
        }
        Ok(())
    }
}

/// Names travel in headers, so they consist of visible ASCII characters.
fn check_name(name: &str) -> Result<(), ClusterStartError> {
    let is_name =
        (1..=NODE_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(()) } else { Err(ClusterStartError::Name { name: name.to_owned() }) }
}

fn check_pair(one: &PeerOptions, other: &PeerOptions) -> Result<(), ClusterStartError> {
    if one.name == other.name {
        return Err(ClusterStartError::SameName { name: one.name.clone() });
    }
    let is_same_origin = one.origin.to_string() == other.origin.to_string();
    let is_same_url = one.url.trim_end_matches('/') == other.url.trim_end_matches('/');
    if is_same_origin || is_same_url {
        let url = if is_same_origin { one.origin.to_string() } else { one.url.clone() };
        return Err(ClusterStartError::SameUrl { one: one.name.clone(), other: other.name.clone(), url });
    }
    Ok(())
}

/// Options with which a cluster cannot start, or a failure to start its actors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterStartError {
    #[error(
        "{name:?} is not a node name: 1 to {NODE_NAME_BYTES_MAX} visible ASCII characters without spaces"
    )]
    Name { name: String },
    #[error("node {name:?} is its own peer; remove it from its list of peers")]
    OwnPeer { name: String },
    #[error("two peers are called {name:?}")]
    SameName { name: String },
    #[error("peers {one:?} and {other:?} have the same URL, {url}")]
    SameUrl { one: String, other: String, url: String },
    #[error("{peers} peers are configured, the limit is {PEERS_MAX}")]
    TooManyPeers { peers: usize },
    #[error(
        "polls are at least a millisecond apart, and no interval, timeout or lifetime is longer than an hour"
    )]
    Interval,
    #[error("a cluster needs a Tokio runtime")]
    NoRuntime,
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    #[error(transparent)]
    Actors(#[from] StartError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}
