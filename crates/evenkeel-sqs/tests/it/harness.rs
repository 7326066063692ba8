//! A server with the SQS API in this process, and a client that exposes the raw response.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::store::Store;
use evenkeel_queue::store::disk::{DiskOptions, DiskStore};
use evenkeel_queue::store::memory::MemoryStore;
use evenkeel_queue::{Namespace, QueueSettings, Queues};
use evenkeel_server::access_key::{Credentials, MasterKey};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::{Listener, ListenerLimits};
use evenkeel_server::route::{Readiness, Routes, handler};
use evenkeel_server::tenant::{Authenticator, InsecurePolicy, TenantSettings, Tenants};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_sqs::{SqsApi, SqsOptions};
use evenkeel_telemetry::Registry;
use serde_json::Value;
use tokio::runtime::Runtime;

const QUEUES_MAX: usize = 1_000;
/// A response that takes longer fails the test instead of hanging it.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Memory,
    Disk,
}

/// The parts of a server that tests vary.
pub(crate) struct Setup {
    pub(crate) store: StoreKind,
    pub(crate) tenants: Vec<TenantSettings>,
    pub(crate) defaults: QueueSettings,
}

impl Default for Setup {
    fn default() -> Self {
        Self { store: StoreKind::Memory, tenants: Vec::new(), defaults: QueueSettings::default() }
    }
}

/// Returns the settings of a tenant with one API key.
pub(crate) fn tenant(name: &str) -> TenantSettings {
    let keys = vec![TenantKey::unnamed(KeyHash::of(&format!("ek-{name}")))];
    let account = Some(account(name));
    TenantSettings { name: name.to_owned(), keys, account, ..TenantSettings::default() }
}

/// Returns the account number of a tenant.
pub(crate) fn account(name: &str) -> AccountNumber {
    AccountNumber::from_random(name.bytes().fold(1, |number, byte| number * 131 + u64::from(byte)))
}

/// A running server; stopped on drop.
pub(crate) struct SqsServer {
    pub(crate) address: SocketAddr,
    api: Arc<SqsApi>,
    queues: Arc<Queues>,
    auth: Arc<Authenticator>,
    registry: Registry,
    runtime: Runtime,
    /// Removed on drop.
    directory: PathBuf,
}

impl SqsServer {
    /// Starts a server with a memory store and without tenants.
    pub(crate) fn start(name: &str) -> Self {
        Self::with(name, Setup::default())
    }

    /// Starts a server; `name` is unique among the tests of this crate.
    pub(crate) fn with(name: &str, setup: Setup) -> Self {
        let directory = std::env::temp_dir().join(format!("evenkeel-sqs-it-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let runtime = Runtime::new().unwrap();
        let store = open_store(setup.store, &directory);
        let registry = Registry::new();
        let (address, api, queues, auth) = runtime.block_on(async {
            let loopback = "127.0.0.1:0".parse().unwrap();
            let listener = Listener::bind(loopback, None, ListenerLimits::default()).await.unwrap();
            let address = listener.local_addr().unwrap();
            let tenants = Tenants::new(setup.tenants, Vec::new()).unwrap();
            let exposure = listener.exposure().unwrap();
            let auth = Arc::new(Authenticator::new(tenants, exposure, InsecurePolicy::default()).unwrap());
            let queues = Queues::open(store, QUEUES_MAX).await.unwrap();
            let options = SqsOptions { defaults: setup.defaults, ..SqsOptions::default() };
            let master = MasterKey::parse(MasterKey::draw().unwrap().expose()).unwrap();
            let api = SqsApi::new(options, queues.clone(), auth.clone(), master, &registry).unwrap();
            let mut routes = Routes::new(Readiness::default());
            let about = handler(async |_| Err(ApiError::NoRoute));
            api.add_routes(&mut routes, about).unwrap();
            tokio::spawn(listener.serve(auth.clone(), routes, std::future::pending()));
            (address, api, queues, auth)
        });
        Self { address, api, queues, auth, registry, runtime, directory }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the path of a file in the server's own directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the AWS credentials of a tenant.
    pub(crate) fn credentials(&self, tenant: &str) -> Credentials {
        let tenants = self.auth.tenants();
        let settings = &tenants.get(tenant).unwrap().settings;
        self.api.master_key().credentials(settings).into_iter().next().unwrap()
    }

    /// Creates a queue without an owner, as the administrator does.
    pub(crate) fn create_shared(&self, name: &str) {
        let created = self.queues.create(Namespace::Shared, name, QueueSettings::default(), String::new());
        self.runtime.block_on(created).unwrap();
    }

    /// Renders the metrics page.
    pub(crate) fn metrics(&self) -> String {
        self.api.update_metrics();
        self.registry.render()
    }

    /// Sends a request for an operation and reads the response.
    pub(crate) fn call(&self, operation: &str, body: &Value) -> Reply {
        self.post(&format!("x-amz-target: AmazonSQS.{operation}\r\n"), body)
    }

    /// Calls an operation that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, operation: &str, body: &Value) -> Value {
        let reply = self.call(operation, body);
        assert_eq!(reply.status, 200, "{operation}: {reply:?}");
        reply.json()
    }

    /// Sends a request with these headers and reads the response.
    pub(crate) fn post(&self, headers: &str, body: &Value) -> Reply {
        self.request("POST /", headers, &body.to_string())
    }

    /// Sends a request of any method and reads the response.
    pub(crate) fn request(&self, line: &str, headers: &str, body: &str) -> Reply {
        let mut socket = self.write(line, &format!("connection: close\r\n{headers}"), body);
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Sends a request on a keep-alive connection, as SDKs do, and leaves the response unread.
    pub(crate) fn send(&self, operation: &str, body: &Value) -> TcpStream {
        self.write("POST /", &format!("x-amz-target: AmazonSQS.{operation}\r\n"), &body.to_string())
    }

    fn write(&self, line: &str, headers: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(RESPONSE_WAIT_MAX)).unwrap();
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        socket
    }
}

impl Drop for SqsServer {
    fn drop(&mut self) {
        self.runtime.block_on(self.queues.shutdown());
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn open_store(kind: StoreKind, directory: &Path) -> Arc<dyn Store> {
    match kind {
        StoreKind::Memory => Arc::new(MemoryStore::new()),
        StoreKind::Disk => {
            Arc::new(DiskStore::open(directory.join("queues"), DiskOptions::default()).unwrap())
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The response head, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
