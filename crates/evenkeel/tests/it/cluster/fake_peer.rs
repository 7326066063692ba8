//! Peers that know the cluster's secret and do not behave: they report any figures and answer as the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use evenkeel_cluster::{
    Cluster, ClusterOptions, ClusterSecret, NodeReport, POLL_PATH, PeerOptions, PoolReport, TicketRequest,
};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::score::{NodeStats, Status};
use evenkeel_policy::weight::Weight;
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Node, SECRET, eventually};

/// Answer to a forwarded request.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The connection stays open.
    None,
    /// The connection is closed after these bytes.
    Bytes(&'static str),
}

/// A peer whose reports and answers the test chooses.
pub(super) struct FakePeer {
    pub(super) address: SocketAddr,
    script: Arc<Script>,
    _runtime: Runtime,
}

struct Script {
    cluster: Arc<Cluster>,
    report: Arc<Mutex<NodeReport>>,
    answer: Mutex<Answer>,
    /// Forwarded requests.
    received: AtomicUsize,
    /// Connections that stay open without an answer.
    open: Mutex<Vec<TcpStream>>,
}

impl FakePeer {
    pub(super) fn start(name: &str) -> Self {
        let runtime = runtime();
        let report = Arc::new(Mutex::new(NodeReport { status: Status::Serving, pools: Vec::new() }));
        let reported = report.clone();
        let cluster =
            start_cluster(&runtime, options(name, Vec::new()), move || reported.lock().unwrap().clone());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Script {
            cluster,
            report,
            answer: Mutex::new(Answer::None),
            received: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let served = script.clone();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let script = served.clone();
                thread::spawn(move || script.serve(connection));
            }
        });
        Self { address, script, _runtime: runtime }
    }

    /// Reports these figures for a database.
    pub(super) fn report(&self, database_id: &str, stats: NodeStats) {
        let pool = PoolReport { database_id: database_id.to_owned(), name: "main".to_owned(), stats };
        self.report_pools(vec![pool]);
    }

    pub(super) fn report_pools(&self, pools: Vec<PoolReport>) {
        self.script.report.lock().unwrap().pools = pools;
    }

    pub(super) fn answer(&self, answer: Answer) {
        *self.script.answer.lock().unwrap() = answer;
    }

    /// Returns the number of requests that were forwarded to this peer.
    pub(super) fn received(&self) -> usize {
        self.script.received.load(Ordering::Relaxed)
    }
}

impl Script {
    fn serve(&self, connection: TcpStream) {
        let mut reader = BufReader::new(connection);
        while let Some(request) = read_request(&mut reader) {
            if request.path == POLL_PATH {
                if reader.get_mut().write_all(&self.poll_response(&request.headers)).is_err() {
                    return;
                }
                continue;
            }
            self.received.fetch_add(1, Ordering::Relaxed);
            let answer = self.answer.lock().unwrap().clone();
            match answer {
                Answer::None => self.open.lock().unwrap().push(reader.into_inner()),
                // The node may have closed the connection.
                Answer::Bytes(bytes) => drop(reader.get_mut().write_all(bytes.as_bytes())),
            }
            return;
        }
    }

    fn poll_response(&self, headers: &HeaderMap) -> Vec<u8> {
        let response = match self.cluster.serve_poll(headers) {
            Ok(response) => response,
            Err(error) => {
                return format!("HTTP/1.1 {} no\r\ncontent-length: 0\r\n\r\n", error.status().as_u16())
                    .into_bytes();
            }
        };
        let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
        for (name, value) in response.headers() {
            bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        bytes.extend(format!("content-length: {}\r\n\r\n", response.body().len()).into_bytes());
        bytes.extend(response.body());
        bytes
    }
}

struct ReceivedRequest {
    path: String,
    headers: HeaderMap,
}

/// Reads a request with its body; `None` at the end of the connection.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HeaderMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
    }
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(ReceivedRequest { path, headers })
}

/// Figures of an idle node that has been up for long.
pub(super) fn idle() -> NodeStats {
    NodeStats {
        max_http_sessions: 1_000,
        max_open_conns: 100,
        max_transaction_conns: 50,
        open_conns: 10,
        idle_conns: 10,
        uptime_sec: 1_000_000,
        status: Status::Serving,
        ..NodeStats::default()
    }
}

/// A member of the cluster that only issues tickets.
pub(super) struct TicketIssuer {
    cluster: Arc<Cluster>,
    _runtime: Runtime,
}

impl TicketIssuer {
    /// Joins a cluster as node `d` and waits until these nodes have answered a poll.
    pub(super) fn join(nodes: &[Node], lifetime: Duration) -> Self {
        let peers = nodes.iter().map(|node| {
            let url = format!("http://{}", node.address);
            PeerOptions {
                name: node.name.clone(),
                origin: Origin::parse(&url).unwrap(),
                url,
                weight: Weight::ONE,
            }
        });
        let runtime = runtime();
        let options = ClusterOptions { ticket_lifetime: lifetime, ..options("d", peers.collect()) };
        let silent = || NodeReport { status: Status::Serving, pools: Vec::new() };
        let cluster = start_cluster(&runtime, options, silent);
        eventually("all nodes have answered", || cluster.peers().iter().all(|peer| peer.report.is_some()));
        Self { cluster, _runtime: runtime }
    }

    /// Issues a ticket for a `POST` to the node with this index.
    pub(super) fn issue(&self, node: usize, request: TicketText<'_>) -> String {
        let body = request.body.to_string();
        let visited: Vec<String> = request.visited.iter().map(|&node| node.to_owned()).collect();
        let request = TicketRequest {
            tenant: request.tenant,
            // The node decides by the body.
            database_id: "",
            method: &Method::POST,
            path: request.path,
            body: body.as_bytes(),
            hops_left: request.hops_left,
            visited: &visited,
        };
        self.cluster.issue_ticket(node, request).unwrap()
    }
}

/// Contents of a ticket.
#[derive(Clone, Copy)]
pub(super) struct TicketText<'a> {
    pub(super) tenant: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a Value,
    pub(super) hops_left: u8,
    pub(super) visited: &'a [&'a str],
}

fn options(name: &str, peers: Vec<PeerOptions>) -> ClusterOptions {
    ClusterOptions::new(name, ClusterSecret::new(SECRET).unwrap(), peers)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn start_cluster(
    runtime: &Runtime,
    options: ClusterOptions,
    report: impl Fn() -> NodeReport + Send + Sync + 'static,
) -> Arc<Cluster> {
    let _entered = runtime.enter();
    Cluster::start(options, Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default()), report)
        .unwrap()
}
