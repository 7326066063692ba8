//! A gateway in the test process with simulated nodes behind it.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use evenkeel::config::{Config, ConfigSources};
use evenkeel::data_dir::{DataDir, DataDirClaim};
use evenkeel::gateway::Gateway;
use evenkeel_server::api_key::KeyHash;
use evenkeel_sim_node::{Load, SimNode, SimOptions};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::test_dir::TestDir;
use evenkeel_sim_node::testing::{RawResponse, open, read};

/// Turns a test that would hang into one that fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Server to which a node of the gateway sends its requests.
pub(crate) enum Backend {
    /// A simulated node in the test process.
    Sim(SimOptions),
    /// A URL, configured to serve `sim` with 8 slots.
    Url(String),
}

/// A gateway and the nodes behind it.
pub(crate) struct Fleet {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) sims: Vec<SimNode>,
    /// Stops when dropped.
    _gateway: Gateway,
    dir: TestDir,
}

impl Fleet {
    /// Starts the nodes, and a gateway with these nodes in addition to `config`.
    pub(crate) fn start(name: &str, config: &str, nodes: Vec<(&str, Backend)>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = TestDir::new(name);
        let mut text = config.to_owned();
        let mut sims = Vec::new();
        for (name, backend) in nodes {
            let (url, models, slots) = match backend {
                Backend::Url(url) => (url, vec!["sim".to_owned()], 8),
                Backend::Sim(options) => {
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
        let gateway = runtime.block_on(serve(&dir, text));
        Self { address: gateway.address(), runtime, sims, _gateway: gateway, dir }
    }

    /// Sends a request with the admin key.
    pub(crate) fn get(&self, path: &str) -> RawResponse {
        let key = self.dir.read("data/admin.key");
        let key = key.trim();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        read(open(self.address, &head))
    }

    pub(crate) fn post(&self, tenant: &str, path: &str, body: &Value) -> RawResponse {
        read(self.send(tenant, path, body))
    }

    /// Sends a request without reading the response.
    pub(crate) fn send(&self, tenant: &str, path: &str, body: &Value) -> TcpStream {
        open(self.address, &request(tenant, path, body))
    }

    /// Returns `/api/load-status`.
    pub(crate) fn status(&self) -> Value {
        self.get("/api/load-status").json()
    }

    /// Waits until `is_reached` accepts `/api/load-status`; `state` names the awaited state in the panic message.
    #[track_caller]
    pub(crate) fn wait_status(&self, state: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.status();
            if is_reached(&status) {
                return status;
            }
            assert!(started.elapsed() < TIMEOUT, "not {state}: {status:#}");
        }
    }

    /// Waits until no request is queued or in flight, in the gateway and in every node.
    #[track_caller]
    pub(crate) fn wait_idle(&self) {
        self.wait_status("idle", |status| in_use(status).is_empty());
        for sim in &self.sims {
            self.wait_load(sim, Load::default());
        }
    }

    /// Waits until a node has this load.
    #[track_caller]
    pub(crate) fn wait_load(&self, sim: &SimNode, wanted: Load) {
        let mut load = sim.load();
        let reached =
            async { tokio::time::timeout(TIMEOUT, load.wait_for(|load| *load == wanted)).await.is_ok() };
        let reached = self.runtime.block_on(reached);
        assert!(reached, "not {wanted:?}: {:?}", sim.load().borrow());
    }
}

async fn serve(dir: &TestDir, text: String) -> Gateway {
    let sources = ConfigSources { file: Some(("test.toml".to_owned(), text)), ..ConfigSources::default() };
    let mut config = Config::read(&sources).unwrap_or_else(|errors| panic!("{errors}"));
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let DataDirClaim::Locked(data_dir) = DataDir::claim(&dir.file("data")).unwrap() else {
        panic!("the data directory is in use")
    };
    Gateway::start(config, data_dir).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the configuration of a tenant whose API key is `ek-` plus its name.
pub(crate) fn tenant(name: &str, more: &str) -> String {
    let hash = KeyHash::of(&format!("ek-{name}"));
    format!("[[tenants]]\nname = '{name}'\nkey_hashes = ['{hash}']\n{more}\n")
}

/// Returns the bytes of a request.
pub(crate) fn request(tenant: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ek-{tenant}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the status of a tenant; null if there is none.
pub(crate) fn tenant_status<'a>(status: &'a Value, tenant: &str) -> &'a Value {
    static NO_STATUS: Value = Value::Null;
    status["tenants"].as_array().unwrap().iter().find(|found| found["name"] == tenant).unwrap_or(&NO_STATUS)
}

/// Lists the gauges of resources in use that are not zero, each with its path in the status.
pub(crate) fn in_use(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(status, "", &mut found);
    found
}

fn collect(value: &Value, path: &str, found: &mut Vec<String>) {
    const GAUGES: [&str; 5] = ["waiting", "in_flight", "in_flight_cost", "busy", "active_connections"];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if GAUGES.contains(&name.as_str()) && value != 0 {
                    found.push(format!("{path}/{name}: {value}"));
                }
                collect(value, &format!("{path}/{name}"), found);
            }
        }
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(index, value)| collect(value, &format!("{path}/{index}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
