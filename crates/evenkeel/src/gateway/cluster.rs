//! Starts the cluster: the peers of this node.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use evenkeel_cluster::{Cluster, ClusterOptions, ClusterSecret, NodeReport, PeerOptions};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::score::Status;
use evenkeel_sql::SqlApi;
use evenkeel_upstream::{TlsRoots, Upstream};

use super::StartError;
use crate::config::{ClusterConfig, Config, PeerConfig};

/// Time beyond the longest statement after which a peer that sends nothing has failed.
const RESPONSE_MARGIN: Duration = Duration::from_secs(30);

/// Time to connect to a peer; another one is tried then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The SQL API, which is created after the cluster that reports its figures.
pub(super) type SqlApiCell = Arc<OnceLock<Weak<SqlApi>>>;

/// Starts to poll the peers; `None` if this node has none.
pub(super) fn start(
    config: &Config,
    roots: TlsRoots,
    sql: SqlApiCell,
) -> Result<Option<Arc<Cluster>>, StartError> {
    let ClusterConfig { name, secret, peers } = &config.cluster;
    let node = name.clone().unwrap_or_else(host_name);
    let others: Vec<PeerOptions> = peers.iter().filter(|peer| peer.name != node).map(to_options).collect();
    let Some(secret) = secret.as_ref().filter(|_| !others.is_empty()) else { return Ok(None) };
    let secret = ClusterSecret::new(secret.expose().clone())?;
    let pool = ConnectionPoolConfig {
        connect_timeout: CONNECT_TIMEOUT,
        request_timeout: config.sql.limits.timeout_max + RESPONSE_MARGIN,
        ..config.llm.options.pipeline.load.connection_pool
    };
    let own_report = move || match sql.get().and_then(Weak::upgrade) {
        Some(sql) => sql.report(),
        None => NodeReport { status: Status::Down, pools: Vec::new() },
    };
    let options = ClusterOptions::new(node, secret, others);
    Ok(Some(Cluster::start(
        options,
        Upstream::new(pool, roots).with_link_local(config.server.link_local),
        own_report,
    )?))
}

fn to_options(peer: &PeerConfig) -> PeerOptions {
    PeerOptions {
        name: peer.name.clone(),
        origin: peer.origin.clone(),
        url: peer.url.clone(),
        weight: peer.weight,
    }
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
