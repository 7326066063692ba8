//! The demo: a gateway, three simulated model servers and three tenants of unequal appetite, in one process.
//!
//! Everything is real but the model: sockets, keys, queues, streams. Tenants are clients like any other and know
//! only the gateway's address and their keys.

mod client;
mod profile;
mod stats;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_server::api_key::{KeyHash, make_key};
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use tokio::task::JoinSet;

use crate::config::{Config, ConfigSources};
use crate::data_dir::{DataDir, DataDirClaim};
use crate::gateway::Gateway;
use evenkeel_sim_node::{SimNode, SimOptions};

pub use profile::{APPETITES, TenantProfile};
pub use stats::{DemoStats, DemoTotals};

use client::Client;

/// The model that every node of the demo serves.
pub const MODEL: &str = "sim";
const NODES: [&str; 3] = ["red", "green", "blue"];
const SLOTS: u32 = 4;
const TOKENS_PER_SECOND: u32 = 150;

/// A running demo.
pub struct Demo {
    gateway: Gateway,
    nodes: Vec<SimNode>,
    tenants: Vec<Tenant>,
    clients: JoinSet<()>,
    folder: PathBuf,
}

/// A tenant of the demo.
pub struct Tenant {
    /// What it is like.
    pub appetite: &'static TenantProfile,
    /// The key it calls with.
    pub key: String,
    /// What it got so far.
    pub ledger: Arc<DemoStats>,
}

impl Demo {
    /// Starts everything but the traffic, on the runtime this is called on.
    pub async fn start(listen: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let mut nodes = Vec::new();
        for seed in 0..NODES.len() as u64 {
            let options = SimOptions {
                models: vec![MODEL.to_owned()],
                slots: SLOTS,
                tokens_per_second: TOKENS_PER_SECOND,
                seed,
                ..SimOptions::default()
            };
            nodes.push(SimNode::bind(options).await?);
        }
        let mut tenants = Vec::new();
        for appetite in &APPETITES {
            let key = make_key().map_err(|_| "the system gives no random numbers")?;
            tenants.push(Tenant { appetite, key, ledger: Arc::default() });
        }
        let folder = std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()));
        let text = config(listen, &folder.to_string_lossy(), &nodes, &tenants);
        let file = Some(("demo".to_owned(), text));
        let config = Config::read(&ConfigSources { file, ..ConfigSources::default() })?;
        let DataDirClaim::Ours(claimed) = DataDir::claim(&folder)? else {
            return Err(format!("{}: another process holds this folder", folder.display()).into());
        };
        let gateway = Gateway::start(config, claimed).await?;
        Ok(Self { gateway, nodes, tenants, clients: JoinSet::new(), folder })
    }

    /// Lets the tenants ask.
    pub fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        let upstream = Upstream::new(
            ConnectionPoolConfig { max_idle_per_host: 100, ..Default::default() },
            TlsRoots::public(),
        );
        let origin = Origin::parse(self.gateway.url())?;
        for tenant in &self.tenants {
            for number in 0..tenant.appetite.clients {
                let client = Client::new(&upstream, &origin, tenant, number)?;
                self.clients.spawn(client.ask_on());
            }
        }
        Ok(())
    }

    /// Where the gateway is.
    pub fn url(&self) -> &str {
        self.gateway.url()
    }

    /// Where the model servers are, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        NODES.into_iter().zip(self.nodes.iter().map(SimNode::address))
    }

    /// Who asks.
    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Ends the traffic, then everything else.
    pub async fn stop(mut self) -> Result<(), Box<dyn Error>> {
        self.clients.shutdown().await;
        let drained = self.gateway.stop().await;
        for node in self.nodes {
            node.shutdown().await;
        }
        // Left behind, it would only be a few bytes among temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
        drained?;
        Ok(())
    }
}

fn config(listen: SocketAddr, folder: &str, nodes: &[SimNode], tenants: &[Tenant]) -> String {
    let mut text = format!(
        "[server]\nlisten = \"{listen}\"\ndata_dir = {}\ndrain_secs = {}\n",
        serde_json::Value::from(folder),
        Duration::from_secs(5).as_secs(),
    );
    for (name, node) in NODES.iter().zip(nodes) {
        let url = node.address();
        text += &format!(
            "[[llm.nodes]]\nname = \"{name}\"\nurl = \"http://{url}\"\nmodels = [\"{MODEL}\"]\nmax_concurrency = {SLOTS}\n"
        );
    }
    for Tenant { appetite, key, .. } in tenants {
        let hash = KeyHash::of(key);
        let TenantProfile { name, weight, .. } = appetite;
        text += &format!("[[tenants]]\nname = \"{name}\"\nkey_hashes = [\"{hash}\"]\nweight = {weight}\n");
    }
    text
}
