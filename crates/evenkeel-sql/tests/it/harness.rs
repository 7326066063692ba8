//! A server with the SQL API in this process on a real socket, and a client that exposes the raw response.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use evenkeel_cluster::{Cluster, ClusterOptions, ClusterSecret, NodeReport, PeerOptions};
use evenkeel_pipeline::{PipelineOptions, RedirectMode};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::score::{ScoreConfig, Status};
use evenkeel_policy::weight::Weight;
use evenkeel_postgres::{ConnectConfig, PoolConfig};
use evenkeel_server::access_key::{Credentials, MasterKey};
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::{Listener, ListenerLimits};
use evenkeel_server::route::{Readiness, Routes};
use evenkeel_server::tenant::{Authenticator, InsecurePolicy, TenantSettings, Tenants};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_sql::datasource::Datasource;
use evenkeel_sql::datasource::postgres::PostgresDatasource;
use evenkeel_sql::{DatasourceOptions, SqlApi, SqlLimits, SqlOptions};
use evenkeel_telemetry::{MetricLimits, Observer, Registry, RequestLogLimits};
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response that takes longer fails the test instead of hanging it.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(60);

/// The parts of a server that tests vary.
pub(crate) struct Setup {
    pub(crate) tenants: Vec<TenantSettings>,
    pub(crate) limits: SqlLimits,
    pub(crate) max_open_conns: u32,
    pub(crate) max_transaction_conns: u32,
    pub(crate) max_http_sessions: u32,
    pub(crate) signing_key: [u8; 32],
    pub(crate) score: ScoreConfig,
    pub(crate) redirect: RedirectMode,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            tenants: Vec::new(),
            limits: SqlLimits::default(),
            max_open_conns: 4,
            max_transaction_conns: 3,
            max_http_sessions: 1_000,
            signing_key: [7; 32],
            score: ScoreConfig::default(),
            redirect: RedirectMode::ByClient,
        }
    }
}

/// Binds a listener to a free port.
pub(crate) async fn bind() -> Listener {
    let loopback = "127.0.0.1:0".parse().unwrap();
    Listener::bind(loopback, None, ListenerLimits::default()).await.unwrap()
}

/// A node's part in a cluster.
pub(crate) struct Membership {
    pub(crate) node: String,
    pub(crate) secret: String,
    /// Names and addresses of the other nodes.
    pub(crate) peers: Vec<(String, SocketAddr)>,
}

impl Membership {
    fn start(&self, sql: Arc<OnceLock<Weak<SqlApi>>>) -> Arc<Cluster> {
        let peer = |(name, address): &(String, SocketAddr)| PeerOptions {
            name: name.clone(),
            origin: Origin::parse(&format!("http://{address}")).unwrap(),
            url: format!("http://{address}"),
            weight: Weight::ONE,
        };
        let secret = ClusterSecret::new(self.secret.clone()).unwrap();
        let options = ClusterOptions::new(&self.node, secret, self.peers.iter().map(peer).collect());
        let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::public());
        let report = move || match sql.get().and_then(Weak::upgrade) {
            Some(sql) => sql.report(),
            None => NodeReport { status: Status::Down, pools: Vec::new() },
        };
        Cluster::start(options, upstream, report).unwrap()
    }
}

/// Returns the settings of a tenant with the API key `ek-NAME`.
pub(crate) fn tenant(name: &str) -> TenantSettings {
    let keys = vec![TenantKey::unnamed(KeyHash::of(&format!("ek-{name}")))];
    TenantSettings { name: name.to_owned(), keys, ..TenantSettings::default() }
}

/// Returns the hash of the admin key `ek-root`.
fn admin_keys() -> Vec<KeyHash> {
    vec![KeyHash::of("ek-root")]
}

fn master_key() -> MasterKey {
    MasterKey::parse(&"7".repeat(64)).unwrap()
}

/// A running server.
pub(crate) struct SqlServer {
    pub(crate) address: SocketAddr,
    pub(crate) api: Arc<SqlApi>,
    pub(crate) registry: Registry,
    auth: Arc<Authenticator>,
}

/// A response as it was received.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl RawResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the JSON of a successful response.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Returns status and code of an error.
    pub(crate) fn error(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// Creates a datasource for the PostgreSQL database at `url`.
pub(crate) fn postgres(url: &str, connections_max: u32) -> Arc<dyn Datasource> {
    let mut config = PoolConfig::new(ConnectConfig::parse(url).unwrap());
    config.connections_max = connections_max as usize;
    PostgresDatasource::new(config)
}

impl SqlServer {
    /// Starts a server in front of one PostgreSQL database.
    pub(crate) async fn on_postgres(url: &str, setup: Setup) -> Self {
        let source = postgres(url, setup.max_open_conns);
        Self::start(vec![("main", source)], setup).await
    }

    pub(crate) async fn start(sources: Vec<(&str, Arc<dyn Datasource>)>, setup: Setup) -> Self {
        Self::start_on(bind().await, sources, setup, None).await
    }

    /// Starts a server on a bound listener, as a node of a cluster if `membership` is set.
    pub(crate) async fn start_on(
        listener: Listener,
        sources: Vec<(&str, Arc<dyn Datasource>)>,
        setup: Setup,
        membership: Option<Membership>,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let tenants = Tenants::new(setup.tenants, admin_keys()).unwrap();
        let exposure = listener.exposure().unwrap();
        let auth = Arc::new(Authenticator::new(tenants, exposure, InsecurePolicy::default()).unwrap());
        let registry = Registry::new();
        let observer =
            Observer::new(&registry, "sql", MetricLimits::default(), RequestLogLimits::default()).unwrap();
        let datasource = |name: &str| DatasourceOptions {
            name: name.to_owned(),
            max_open_conns: setup.max_open_conns,
            max_transaction_conns: setup.max_transaction_conns,
            max_http_sessions: setup.max_http_sessions,
            role: None,
        };
        let mut pipeline = PipelineOptions::default();
        pipeline.load.wait_queue.max_waiting = 1_000;
        pipeline.load.backpressure.max_queue_size = 1_000;
        pipeline.load.wait_queue.warning_threshold = 0.9;
        pipeline.load.backpressure.warning_threshold = 0.9;
        pipeline.load.wait_queue.overload_threshold = 1.0;
        pipeline.load.backpressure.overload_threshold = 1.0;
        let options = SqlOptions {
            datasources: sources.iter().map(|(name, _)| datasource(name)).collect(),
            limits: setup.limits,
            pipeline,
            score: setup.score,
            redirect: setup.redirect,
            node: "test".to_owned(),
            signing_key: setup.signing_key,
            master_key: master_key(),
        };
        let sql_slot = Arc::new(OnceLock::<Weak<SqlApi>>::new());
        let cluster = membership.map(|membership| membership.start(sql_slot.clone()));
        let sources = sources.into_iter().map(|(_, source)| source).collect();
        let api = SqlApi::new(options, sources, auth.clone(), cluster.clone(), Arc::new(observer), &registry)
            .unwrap();
        sql_slot.get_or_init(|| Arc::downgrade(&api));
        api.set_tenants(&auth.tenants().all()).unwrap();
        let mut routes = Routes::new(Readiness::default());
        api.add_routes(&mut routes).unwrap();
        if let Some(cluster) = &cluster {
            evenkeel_server::cluster::add_routes(cluster, &mut routes).unwrap();
        }
        tokio::spawn(listener.serve(auth.clone(), routes, std::future::pending()));
        Self { address, api, registry, auth }
    }

    /// Replaces the tenants, as a reload does.
    pub(crate) fn reload(&self, tenants: Vec<TenantSettings>) {
        self.auth.reload(tenants, admin_keys()).unwrap();
        self.api.set_tenants(&self.auth.tenants().all()).unwrap();
    }

    /// Returns the AWS credentials of a tenant.
    pub(crate) fn credentials(&self, tenant: &str) -> Credentials {
        let tenants = self.auth.tenants();
        master_key().credentials(&tenants.get(tenant).unwrap().settings).into_iter().next().unwrap()
    }

    /// Returns a client without an API key.
    pub(crate) fn client(&self) -> Client {
        Client::at(self.address)
    }

    /// Returns a client with the API key of a tenant.
    pub(crate) fn client_of(&self, tenant: &str) -> Client {
        self.client().with("authorization", &format!("Bearer ek-{tenant}"))
    }

    /// Returns what `/api/sql` shows to an administrator.
    pub(crate) async fn describe(&self) -> Value {
        self.client_of("root").get("/api/sql").await.ok()
    }

    /// Returns the figures of the first datasource.
    pub(crate) async fn stats(&self) -> Value {
        self.client().get("/healthz").await.json()["datasources"][0]["stats"].clone()
    }
}

/// A client that opens a connection per request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    /// Value of `Host`; `None` means the address.
    host: Option<String>,
    headers: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { address, host: None, headers: Vec::new() }
    }

    /// Sends another `Host`.
    pub(crate) fn with_host(self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self }
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) async fn get(&self, path: &str) -> RawResponse {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> RawResponse {
        self.send("POST", path, &body.to_string()).await
    }

    /// Runs a query and returns its response.
    pub(crate) async fn query(&self, sql: &str, params: Value) -> RawResponse {
        self.post("/query", json!({"sql": sql, "params": params})).await
    }

    /// Runs a statement that writes and returns its response.
    pub(crate) async fn execute(&self, sql: &str, params: Value) -> RawResponse {
        self.post("/execute", json!({"sql": sql, "params": params})).await
    }

    /// Begins a transaction and returns its id.
    pub(crate) async fn begin(&self, body: Value) -> String {
        self.post("/tx/begin", body).await.ok()["txId"].as_str().unwrap().to_owned()
    }

    /// Runs a statement in a transaction.
    pub(crate) async fn execute_in(&self, tx_id: &str, sql: &str) -> RawResponse {
        self.post("/execute", json!({"sql": sql, "txId": tx_id})).await
    }

    /// Sends a request and returns the open connection, from which the caller reads or which it drops.
    pub(crate) async fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // HTTP/1.0 responses end with the connection, without chunks.
        let mut head = format!(
            "{method} {path} HTTP/1.0\r\nhost: {}\r\ncontent-length: {}\r\n",
            self.host.clone().unwrap_or_else(|| self.address.to_string()),
            body.len()
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> RawResponse {
        let mut stream = self.open(method, path, body).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(RESPONSE_WAIT_MAX, stream.read_to_end(&mut bytes)).await;
        read.expect("a response in time").unwrap();
        parse(&bytes)
    }
}

fn parse(bytes: &[u8]) -> RawResponse {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    RawResponse { status, headers, body: body.to_owned() }
}

/// Polls until `check` holds, or fails the test after a minute.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..6_000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}
