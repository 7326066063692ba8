//! A gateway in the edge, and a simulated model server in the core that it reaches over a link.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};

use evenkeel_sim_node::testing::{RawResponse, chat, open, read};
use evenkeel_test_network::Network;
use serde_json::{Value, json};

use super::process::{LoggedProcess, wait_for};
use super::sites::{LinkSide, Sites, wait_port};
use super::test_link::{LinkNetwork, MetricsPage};
use crate::test_dir::CommandOutput;

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Settings of a gateway that notices changes of its nodes soon.
const HEALTH: &str =
    "[llm.health]\ninterval_secs = 0.25\nmodels_interval_secs = 0.25\nload_interval_secs = 0.25\n";

/// The processes of both sites.
pub(crate) struct GatewaySite {
    pub(crate) gateway: LoggedProcess,
    _sim: LoggedProcess,
    /// `None` while the core does not listen.
    pub(crate) listener: Option<LoggedProcess>,
    pub(crate) sites: Sites,
    network: LinkNetwork,
    /// Address of the gateway.
    address: SocketAddr,
    /// Address of the model server.
    pub(crate) node: SocketAddr,
    /// UDP port of the core.
    port: u16,
}

/// A flow as the core sees it.
pub(crate) struct CoreFlow {
    pub(crate) id: u64,
    /// Number, from 1, of the path on which the core sends.
    pub(crate) path: usize,
    pub(crate) written_bytes: u64,
}

impl GatewaySite {
    /// Starts both sites over an emulated network.
    pub(crate) fn start(name: &str, network: Network, tokens_per_second: u32) -> Self {
        let mut site = Self::start_down(name, network, tokens_per_second);
        site.listen();
        site.wait_node("healthy", |node| node["health_error"].is_null() && node["models"] == json!(["sim"]));
        site.wait_active(2);
        site
    }

    /// Starts the edge and the model server; nothing listens for the link.
    pub(crate) fn start_down(name: &str, network: Network, tokens_per_second: u32) -> Self {
        let bind = || UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let port = network.core().run(bind);
        let paths =
            network.paths().iter().map(|path| format!("{}={}", path.interface(), path.core_address()));
        let paths: Vec<String> = paths.map(|path| format!("{path}:{port}")).collect();
        Self::start_in(name, LinkNetwork::Emulated(network), &paths, port, tokens_per_second)
    }

    /// Starts both sites over loopback, with a node behind the link.
    pub(crate) fn on_loopback(name: &str, tokens_per_second: u32) -> Self {
        // The port is known once the core listens.
        let sites = Sites::new(name, "");
        let network = LinkNetwork::Loopback;
        let (sim, node) = start_sim_node(&sites, &network, tokens_per_second);
        let listener = LoggedProcess::spawn("core", &mut sites.listen("127.0.0.1:0", &[node.to_string()]));
        let port = wait_port(&listener);
        let paths = ["127.0.0.1", "127.0.0.2"].map(|local| format!("{local}=127.0.0.1:{port}"));
        sites.dir.write("evenkeel.toml", &config(&sites, &paths, node));
        let (gateway, address) = start_gateway(&sites, &network);
        let site = Self { gateway, _sim: sim, listener: Some(listener), sites, network, address, node, port };
        site.wait_node("healthy", |node| node["health_error"].is_null() && node["models"] == json!(["sim"]));
        site
    }

    fn start_in(
        name: &str,
        network: LinkNetwork,
        paths: &[String],
        port: u16,
        tokens_per_second: u32,
    ) -> Self {
        let sites = Sites::new(name, "");
        let (sim, node) = start_sim_node(&sites, &network, tokens_per_second);
        sites.dir.write("evenkeel.toml", &config(&sites, paths, node));
        let (gateway, address) = start_gateway(&sites, &network);
        Self { gateway, _sim: sim, listener: None, sites, network, address, node, port }
    }

    /// Starts the core's side of the link.
    pub(crate) fn listen(&mut self) {
        let mut command = self.sites.listen(&format!("0.0.0.0:{}", self.port), &[self.node.to_string()]);
        let listener = self.network.run(LinkSide::Core, || LoggedProcess::spawn("core", &mut command));
        wait_port(&listener);
        self.listener = Some(listener);
    }

    /// Stops the gateway and starts it again.
    pub(crate) fn restart_gateway(&mut self) {
        self.gateway.signal();
        assert_eq!(self.gateway.wait(), Some(0));
        (self.gateway, self.address) = start_gateway(&self.sites, &self.network);
    }

    /// Replaces the gateway's config file and waits for the outcome of a reload; returns its log line.
    pub(crate) fn reload(&self, config: &str) -> Value {
        let reloads = || {
            let lines = [self.gateway.logged("reloaded"), self.gateway.logged("reload rejected")];
            lines.concat().len()
        };
        let before = reloads();
        self.sites.dir.write("evenkeel.toml", config);
        self.gateway.send_signal("HUP");
        wait_for("reload", || (before < reloads()).then_some(()));
        self.gateway.logged("reload").pop().unwrap()
    }

    /// Returns the emulated network.
    pub(crate) fn network(&self) -> &Network {
        match &self.network {
            LinkNetwork::Emulated(network) => network,
            LinkNetwork::Loopback => panic!("loopback is not emulated"),
        }
    }

    /// Reports whether a program in the edge reaches the model server without the link.
    pub(crate) fn is_node_reachable_from_edge(&self) -> bool {
        self.network.run(LinkSide::Edge, || TcpStream::connect(self.node).is_ok())
    }

    pub(crate) fn get(&self, path: &str) -> RawResponse {
        read(self.send("GET", path, &Value::Null))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RawResponse {
        read(self.send("POST", path, body))
    }

    /// Sends a request to the gateway without reading the response.
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let request = self.request(method, path, body);
        self.network.run(LinkSide::Edge, || open(self.address, &request))
    }

    /// Requests a streamed response of this many tokens.
    pub(crate) fn stream(&self, tokens: u64) -> TcpStream {
        self.send("POST", CHAT, &chat(json!({"max_tokens": tokens, "stream": true})))
    }

    /// Runs a command of the binary in the edge.
    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        let mut command = self.sites.dir.command(args);
        CommandOutput::new(self.network.run(LinkSide::Edge, || command.output().unwrap()))
    }

    /// Waits until the model server runs this number of requests.
    pub(crate) fn wait_running(&self, count: u64) {
        let request = self.request("GET", "/metrics", &Value::Null);
        wait_for("number of running requests", || {
            let page = self.network.run(LinkSide::Core, || read(open(self.node, &request)));
            let running = MetricsPage(page.body).value("vllm:num_requests_running{model_name=\"sim\"}");
            (running as u64 == count).then_some(())
        });
    }

    /// Returns the status of the link in the gateway.
    pub(crate) fn link(&self) -> Value {
        self.get("/api/paths").json()["links"][0].clone()
    }

    /// Returns the flow on which the core has written most.
    pub(crate) fn largest_core_flow(&self) -> Option<CoreFlow> {
        let mut command = self.sites.status(LinkSide::Core, &["--json"]);
        let output = self.network.run(LinkSide::Core, || command.output().unwrap());
        let status: Value = serde_json::from_str(&CommandOutput::new(output).ok()).unwrap();
        let flow = |flow: &Value| {
            let number = |key: &str| flow[key].as_u64();
            let path = number("path")? as usize + 1;
            Some(CoreFlow { id: number("flow")?, path, written_bytes: number("written_bytes")? })
        };
        let flows = status[0]["sessions"].as_array()?.last()?["flows"].as_array()?.iter().filter_map(flow);
        flows.max_by_key(|flow| flow.written_bytes)
    }

    pub(crate) fn wait_active(&self, count: usize) {
        wait_for("active paths", || {
            let link = self.link();
            let active = link["paths"].as_array()?.iter().filter(|path| path["state"] == "ACTIVE").count();
            (count <= active).then_some(())
        });
    }

    /// Returns the text of a request with the admin key.
    fn request(&self, method: &str, path: &str, body: &Value) -> String {
        let key = self.sites.dir.read("evenkeel-data/admin.key");
        let key = key.trim();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let len = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
        )
    }

    /// Waits for a state of the first node; returns it.
    #[track_caller]
    pub(crate) fn wait_node(&self, state: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        wait_for(state, || {
            let node = self.get("/api/nodes").json()["nodes"][0].clone();
            is_met(&node).then_some(node)
        })
    }
}

/// Returns the configuration of a gateway with a link and a node behind it.
pub(crate) fn config(sites: &Sites, paths: &[String], node: SocketAddr) -> String {
    let mut text = HEALTH.to_owned();
    let peer = &sites.core_key;
    let _ =
        writeln!(text, "[[links]]\nname = 'site-b'\nkeys = 'edge-keys'\npeer = '{peer}'\npaths = {paths:?}");
    let _ = writeln!(text, "[[llm.nodes]]\nname = 'gpu'\nurl = 'http://{node}'\nvia = 'site-b'");
    text
}

fn start_gateway(sites: &Sites, network: &LinkNetwork) -> (LoggedProcess, SocketAddr) {
    let mut command = sites.dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    let gateway = network.run(LinkSide::Edge, || LoggedProcess::spawn("gateway", &mut command));
    let url = wait_for("start of the gateway", || {
        gateway.logged("started").iter().find_map(|line| Some(line["url"].as_str()?.to_owned()))
    });
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    (gateway, address)
}

fn start_sim_node(
    sites: &Sites,
    network: &LinkNetwork,
    tokens_per_second: u32,
) -> (LoggedProcess, SocketAddr) {
    let speed = tokens_per_second.to_string();
    let args = ["sim-node", "--ttft-ms", "0", "--tokens-per-second", &speed];
    let mut command = sites.dir.command(&args);
    let sim = network.run(LinkSide::Core, || LoggedProcess::spawn("sim-node", &mut command));
    let line = sim.wait_log("listening on http://")["message"].clone();
    let address = line.as_str().unwrap().split("http://").nth(1).unwrap().split(": ").next().unwrap();
    (sim, address.parse().unwrap())
}
