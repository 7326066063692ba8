//! The process's limit of file descriptors.

use evenkeel_server::connections::RESERVED;
use evenkeel_server::listener::ListenerLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors besides those of clients' connections: files, and connections to nodes.
const OTHERS: u64 = 256;

/// Raises the soft limit to the hard one, and warns if it is too low for the configured connections.
pub(super) fn raise_limit(limits: &ListenerLimits) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // A limit that cannot be raised stays as it is, and is checked below.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // No limit is never too low.
    let Some(limit) = getrlimit(Resource::Nofile).current else { return };
    let needed = (limits.connections_max + RESERVED) as u64 + OTHERS;
    if limit < needed {
        let connections_max = limits.connections_max;
        tracing::warn!(target: "evenkeel", limit, needed, connections_max, "the limit of file descriptors is too low for connections_max; raise it (ulimit -n, LimitNOFILE) or lower connections_max");
    }
}
