//! The demo: a gateway, three simulated model servers and the clients of three tenants, in one process.
//!
//! Only the models are simulated; connections, API keys, queues and streams are real. The same clients run twice: first
//! they all share one API key and are served in FIFO order, as behind a plain proxy; then each tenant has its own key.

mod client;
mod profile;
mod stats;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_server::api_key::{KeyHash, make_key};
use evenkeel_sim_node::{SimNode, SimOptions};
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use tokio::task::JoinSet;

use crate::config::{Config, ConfigSources};
use crate::data_dir::{DataDir, DataDirClaim};
use crate::gateway::Gateway;

pub use profile::{PROFILES, TenantProfile};
pub use stats::{DemoStats, DemoTotals, Wait};

use client::Client;

/// Name of the model that every node of the demo serves.
pub const MODEL: &str = "sim";
/// Number of slots per node.
pub const SLOTS: u32 = 4;
pub const NODES: [&str; 3] = ["red", "green", "blue"];
const TOKENS_PER_SECOND: u32 = 150;
/// Tenant of the key that all clients share in the first phase.
const SHARED_TENANT: &str = "everyone";
/// Large enough for every client, so that no request is rejected in either phase.
const WAITING_MAX: u32 = 1_000;
/// Longer than any wait in the first phase.
const WAIT_MAX_SECS: u64 = 60;
const DRAIN_SECS: u64 = 5;

/// Assignment of API keys to clients, one per phase of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScheme {
    Shared,
    PerTenant,
}

/// A running demo.
pub struct Demo {
    gateway: Gateway,
    nodes: Vec<SimNode>,
    shared_key: String,
    /// In the order of [`PROFILES`].
    tenant_keys: Vec<String>,
    clients: JoinSet<()>,
    data_dir: PathBuf,
}

impl Demo {
    /// Starts the nodes and the gateway; needs a Tokio runtime.
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
        let new_key = || make_key().map_err(|_| "the system's random number generator failed");
        let shared_key = new_key()?;
        let tenant_keys = PROFILES.iter().map(|_| new_key()).collect::<Result<Vec<_>, _>>()?;
        let data_dir = std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()));
        let text = config_text(listen, &data_dir.to_string_lossy(), &nodes, &shared_key, &tenant_keys);
        let file = Some(("demo".to_owned(), text));
        let config = Config::read(&ConfigSources { file, ..ConfigSources::default() })?;
        let DataDirClaim::Locked(claimed) = DataDir::claim(&data_dir)? else {
            return Err(format!("{}: another process uses this data directory", data_dir.display()).into());
        };
        let gateway = Gateway::start(config, claimed).await?;
        Ok(Self { gateway, nodes, shared_key, tenant_keys, clients: JoinSet::new(), data_dir })
    }

    /// Stops the current clients, cancelling their requests, and starts new ones with keys according to `scheme`.
    ///
    /// Returns fresh statistics per tenant, in the order of [`PROFILES`].
    pub async fn start_phase(&mut self, scheme: KeyScheme) -> Result<Vec<Arc<DemoStats>>, Box<dyn Error>> {
        self.clients.shutdown().await;
        let settings = ConnectionPoolConfig { max_idle_per_host: 100, ..Default::default() };
        let upstream = Upstream::new(settings, TlsRoots::public());
        let origin = Origin::parse(self.gateway.url())?;
        let mut stats = Vec::new();
        for (profile, tenant_key) in PROFILES.iter().zip(&self.tenant_keys) {
            let key = match scheme {
                KeyScheme::Shared => &self.shared_key,
                KeyScheme::PerTenant => tenant_key,
            };
            let tenant_stats = Arc::new(DemoStats::default());
            for number in 0..profile.clients {
                let client = Client::new(&upstream, &origin, key, profile, &tenant_stats, number)?;
                self.clients.spawn(client.run());
            }
            stats.push(tenant_stats);
        }
        Ok(stats)
    }

    pub fn url(&self) -> &str {
        self.gateway.url()
    }

    /// Returns the API key of the first tenant, for trying out the gateway.
    pub fn key(&self) -> &str {
        &self.tenant_keys[0]
    }

    /// Stops the clients, then the gateway and the nodes.
    pub async fn stop(mut self) -> Result<(), Box<dyn Error>> {
        self.clients.shutdown().await;
        let drained = self.gateway.stop().await;
        for node in self.nodes {
            node.shutdown().await;
        }
        // An error is ignored: the directory is small, and in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.data_dir);
        drained?;
        Ok(())
    }
}

fn config_text(
    listen: SocketAddr,
    data_dir: &str,
    nodes: &[SimNode],
    shared_key: &str,
    tenant_keys: &[String],
) -> String {
    let mut text = format!(
        "[server]\nlisten = \"{listen}\"\ndata_dir = {}\ndrain_secs = {DRAIN_SECS}\n\
         [load_manager]\nmax_waiting = {WAITING_MAX}\ndefault_timeout_secs = {WAIT_MAX_SECS}\n",
        serde_json::Value::from(data_dir),
    );
    for (name, node) in NODES.iter().zip(nodes) {
        let url = node.address();
        text += &format!(
            "[[llm.nodes]]\nname = \"{name}\"\nurl = \"http://{url}\"\nmodels = [\"{MODEL}\"]\nmax_concurrency = {SLOTS}\n"
        );
    }
    let mut add_tenant = |name: &str, key: &str, weight: u32| {
        let hash = KeyHash::of(key);
        text += &format!("[[tenants]]\nname = \"{name}\"\nkey_hashes = [\"{hash}\"]\nweight = {weight}\n");
    };
    add_tenant(SHARED_TENANT, shared_key, 1);
    for (profile, key) in PROFILES.iter().zip(tenant_keys) {
        add_tenant(profile.name, key, profile.weight);
    }
    text
}
