//! The contenders of an overload case: processes on loopback, on ports that the OS picks, stopped on drop.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench_support::{HttpConnection, Process, RunError, free_port, start_haproxy};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{CONNECTIONS, REDUCTION, ThirdNode};
use crate::contender::evenkeel;
use crate::http_load;

/// Name of the first node at the database.
pub(super) const ENTRY_NODE: &str = "node-a";
/// Beginning of the names of slow nodes at the database.
pub(super) const SLOW_NODES: &str = "slow-";
const NAMES: [&str; 3] = ["a", "b", "c"];
const SECRET: &str = "the secret of the benchmark's cluster";
const READY_WAIT_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// One node with the connections of all three.
    OneNode,
    /// HAProxy, round robin, in front of three nodes that do not know each other.
    Haproxy,
    /// Three nodes; the first redirects clients to the others.
    Redirect,
    /// Three nodes; the first forwards requests to the others.
    Forward,
}

pub(super) struct OverloadSetup {
    pub(super) directory: PathBuf,
    pub(super) evenkeel: PathBuf,
    pub(super) database_url: String,
}

pub(super) struct Deployment {
    /// The address that clients know.
    pub(super) entry: SocketAddr,
    processes: Vec<Process>,
    nodes: Vec<NodeSettings>,
    arrangement: Arrangement,
    directory: PathBuf,
}

/// Settings of a node.
struct NodeSettings {
    name: &'static str,
    address: SocketAddr,
    connections: u32,
    speed: Speed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speed {
    Full,
    Slow,
}

impl Deployment {
    /// Starts all processes, which may not be ready yet.
    pub(super) fn start(
        label: &str,
        arrangement: Arrangement,
        third: ThirdNode,
        setup: &OverloadSetup,
    ) -> io::Result<Self> {
        let directory = setup.directory.join(label.replace([' ', '(', ')'], ""));
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        let nodes = nodes(arrangement, third)?;
        let cluster = match arrangement {
            Arrangement::OneNode | Arrangement::Haproxy => String::new(),
            Arrangement::Redirect => cluster(&nodes, "redirect"),
            Arrangement::Forward => cluster(&nodes, "forward"),
        };
        let mut processes = Vec::new();
        for node in &nodes {
            let directory = directory.join(node.name);
            fs::create_dir_all(&directory)?;
            let config = node_config(node, &cluster, &setup.database_url);
            processes.push(evenkeel::spawn(&setup.evenkeel, &directory, &config)?);
        }
        let mut entry = nodes[0].address;
        if arrangement == Arrangement::Haproxy {
            entry = free_port()?;
            let addresses: Vec<_> = nodes.iter().map(|node| node.address).collect();
            processes.push(start_haproxy(entry, &addresses, "roundrobin", &directory)?);
        }
        Ok(Self { entry, processes, nodes, arrangement, directory })
    }

    /// Waits until all nodes serve and, in a cluster, know each other's figures.
    pub(super) async fn wait_until_ready(&self) -> io::Result<()> {
        let peers = match self.arrangement {
            Arrangement::OneNode | Arrangement::Haproxy => 0,
            Arrangement::Redirect | Arrangement::Forward => self.nodes.len() - 1,
        };
        for node in &self.nodes {
            let what = format!("node {}", node.name);
            wait(&what, &self.directory, async || {
                is_ready(node, peers, &self.directory).await.unwrap_or(false)
            })
            .await?;
        }
        // HAProxy answers 503 until it has seen that a node is healthy.
        let is_healthy = async || get(self.entry, "/healthz", "").await.is_ok();
        wait("the entry", &self.directory, is_healthy).await
    }

    /// Returns the CPU time of all processes.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }
}

fn nodes(arrangement: Arrangement, third: ThirdNode) -> io::Result<Vec<NodeSettings>> {
    let node = |index: usize, connections, speed| -> io::Result<NodeSettings> {
        Ok(NodeSettings { name: NAMES[index], address: free_port()?, connections, speed })
    };
    let reduced = CONNECTIONS / REDUCTION;
    if arrangement == Arrangement::OneNode {
        let connections = match third {
            ThirdNode::Equal => 3 * CONNECTIONS,
            ThirdNode::Small | ThirdNode::Slow => 2 * CONNECTIONS + reduced,
        };
        return Ok(vec![node(0, connections, Speed::Full)?]);
    }
    let last = match third {
        ThirdNode::Equal => node(2, CONNECTIONS, Speed::Full)?,
        ThirdNode::Small => node(2, reduced, Speed::Full)?,
        ThirdNode::Slow => node(2, CONNECTIONS, Speed::Slow)?,
    };
    Ok(vec![node(0, CONNECTIONS, Speed::Full)?, node(1, CONNECTIONS, Speed::Full)?, last])
}

/// Returns the part of the configuration that all nodes of a cluster share.
fn cluster(nodes: &[NodeSettings], redirect: &str) -> String {
    let mut config = format!("\n[sql]\nredirect = '{redirect}'\n\n[cluster]\nsecret = \"{SECRET}\"\n");
    for NodeSettings { name, address, .. } in nodes {
        config += &format!("\n[[cluster.peers]]\nname = '{name}'\nurl = 'http://{address}'\n");
    }
    config
}

fn node_config(node: &NodeSettings, cluster: &str, database_url: &str) -> String {
    let NodeSettings { name, address, connections, speed } = node;
    let prefix = match speed {
        Speed::Full => "node-",
        Speed::Slow => SLOW_NODES,
    };
    let url = format!("{database_url}?application_name={prefix}{name}");
    let cluster = cluster.replace("[cluster]\n", &format!("[cluster]\nname = '{name}'\n"));
    let datasource = evenkeel::datasource(&url, *connections as usize);
    format!("[server]\nlisten = '{address}'\n{cluster}{datasource}")
}

/// Reports whether a node serves and knows the figures of so many peers.
async fn is_ready(node: &NodeSettings, peers: usize, directory: &Path) -> Result<bool, RunError> {
    // Also connects to the database, whose identity peers must know.
    get(node.address, "/healthz", "").await?;
    let key = fs::read_to_string(directory.join(node.name).join("data/admin.key"));
    let key = key.map_err(|error| RunError(error.to_string()))?;
    let sql = get(node.address, "/api/sql", &format!("authorization: Bearer {}\r\n", key.trim())).await?;
    let known = sql["datasources"][0]["peers"]["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(known.iter().filter(|peer| peer["scores"]["query"].is_number()).count() == peers)
}

async fn wait(what: &str, directory: &Path, is_done: impl AsyncFn() -> bool) -> io::Result<()> {
    let since = Instant::now();
    while !is_done().await {
        if READY_WAIT_MAX < since.elapsed() {
            return Err(io::Error::other(format!("{what} is not ready; see {}", directory.display())));
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn get(address: SocketAddr, path: &str, headers: &str) -> Result<Value, RunError> {
    let mut connection = HttpConnection::connect(address).await?;
    connection.write(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n").as_bytes()).await?;
    let response = http_load::receive(&mut connection).await?;
    if response.status != 200 {
        return Err(RunError(format!("status {}", response.status)));
    }
    serde_json::from_slice(&response.body).map_err(|error| RunError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_the_same_capacity() {
        let capacity = |arrangement, third| -> u32 {
            let of = |node: &NodeSettings| match node.speed {
                Speed::Full => node.connections,
                Speed::Slow => node.connections / REDUCTION,
            };
            nodes(arrangement, third).unwrap().iter().map(of).sum()
        };
        for third in [ThirdNode::Equal, ThirdNode::Small, ThirdNode::Slow] {
            let ideal = capacity(Arrangement::OneNode, third);
            for other in [Arrangement::Haproxy, Arrangement::Redirect, Arrangement::Forward] {
                assert_eq!(capacity(other, third), ideal, "{other:?} {third:?}");
            }
        }
    }
}
