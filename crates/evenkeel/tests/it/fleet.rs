//! A gateway in this process, the simulated engines behind it, and its books.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use evenkeel::config::{Config, ConfigSources};
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::gateway::Gateway;
use evenkeel_server::api_key::KeyHash;
use evenkeel_sim_node::{Load, SimNode, SimOptions};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::folder::Folder;
use crate::raw::{Reply, open, read};

/// How long anything may take before a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// What is at a node's address.
pub(crate) enum Behind {
    /// A simulated engine of this process.
    Sim(SimOptions),
    /// Whatever is at this URL, said to serve `sim` with 8 slots.
    Url(String),
}

/// A gateway and the engines behind it; all of it ends with the test.
pub(crate) struct Fleet {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) sims: Vec<SimNode>,
    /// Dropped, it stops.
    _gateway: Gateway,
    _folder: Folder,
}

impl Fleet {
    /// Starts engines, and a gateway with these nodes besides what `config` says.
    pub(crate) fn start(name: &str, config: &str, nodes: Vec<(&str, Behind)>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let folder = Folder::new(name);
        let mut text = config.to_owned();
        let mut sims = Vec::new();
        for (name, behind) in nodes {
            let (url, models, slots) = match behind {
                Behind::Url(url) => (url, vec!["sim".to_owned()], 8),
                Behind::Sim(options) => {
                    let models = options.models.clone();
                    let slots = options.slots;
                    let sim = runtime.block_on(SimNode::bind(options)).unwrap();
                    let url = format!("http://{}", sim.address());
                    sims.push(sim);
                    (url, models, slots)
                }
            };
            text.push_str(&format!(
                "\n[[llm.nodes]]\nname = '{name}'\nurl = '{url}'\nmodels = {models:?}\nmax_concurrency = {slots}\n"
            ));
        }
        let gateway = runtime.block_on(serve(&folder, text));
        Self { address: gateway.address(), runtime, sims, _gateway: gateway, _folder: folder }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        read(open(self.address, &head))
    }

    pub(crate) fn post(&self, tenant: &str, path: &str, body: &Value) -> Reply {
        read(self.send(tenant, path, body))
    }

    /// Sends a request and leaves the answer to the caller.
    pub(crate) fn send(&self, tenant: &str, path: &str, body: &Value) -> TcpStream {
        open(self.address, &request(tenant, path, body))
    }

    /// What the gateway says of itself.
    pub(crate) fn status(&self) -> Value {
        self.get("/api/load-status").json()
    }

    /// Waits until the gateway says of itself what is wanted.
    #[track_caller]
    pub(crate) fn wait_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "not {what}: {status:#}");
        }
    }

    /// Waits until nobody waits and nothing is in flight, here and at every engine.
    #[track_caller]
    pub(crate) fn wait_idle(&self) {
        self.wait_status("idle", |status| held(status).is_empty());
        for sim in &self.sims {
            self.wait_load(sim, Load::default());
        }
    }

    /// Waits until an engine has so much to do.
    #[track_caller]
    pub(crate) fn wait_load(&self, sim: &SimNode, wanted: Load) {
        let mut load = sim.load();
        let came =
            async { tokio::time::timeout(PATIENCE, load.wait_for(|load| *load == wanted)).await.is_ok() };
        let came = self.runtime.block_on(came);
        assert!(came, "not {wanted:?}: {:?}", sim.load().borrow());
    }
}

async fn serve(folder: &Folder, text: String) -> Gateway {
    let sources = ConfigSources { file: Some(("test.toml".to_owned(), text)), ..ConfigSources::default() };
    let mut config = Config::read(&sources).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let DataDirClaim::Ours(folder) = DataDir::claim(&folder.file("data")).unwrap() else { panic!("taken") };
    Gateway::start(config, folder).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The lines of a config that make a tenant, whose key is `ek-` and its name.
pub(crate) fn tenant(name: &str, more: &str) -> String {
    let hash = KeyHash::of(&format!("ek-{name}"));
    format!("[[tenants]]\nname = '{name}'\nkey_hashes = ['{hash}']\n{more}\n")
}

/// A request as bytes.
pub(crate) fn request(tenant: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer ek-{tenant}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A tenant's part of the gateway's books; nothing while they know nothing of it.
pub(crate) fn of<'a>(status: &'a Value, tenant: &str) -> &'a Value {
    static NOBODY: Value = Value::Null;
    status["tenants"].as_array().unwrap().iter().find(|found| found["name"] == tenant).unwrap_or(&NOBODY)
}

/// Everything in the gateway's books that somebody holds, by its place in them.
pub(crate) fn held(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(status, "", &mut found);
    found
}

fn collect(value: &Value, place: &str, found: &mut Vec<String>) {
    const HELD: [&str; 5] = ["waiting", "in_flight", "in_flight_cost", "busy", "active_connections"];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if HELD.contains(&name.as_str()) && value != 0 {
                    found.push(format!("{place}/{name}: {value}"));
                }
                collect(value, &format!("{place}/{name}"), found);
            }
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| collect(value, &format!("{place}/{at}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
