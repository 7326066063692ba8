//! A gateway in front of engines, and its clients.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_llm::{Concurrency, LlmApi, LlmOptions, NodeOptions};
use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::{Listener, ListenerLimits};
use evenkeel_server::route::{Readiness, Routes};
use evenkeel_server::tenant::{Authenticator, InsecurePolicy, TenantSettings, Tenants};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_telemetry::trace::{TraceOptions, Tracer};
use evenkeel_telemetry::{MetricLimits, Observer, PathMetrics, Registry, RequestLogLimits, RouterMetrics};
use evenkeel_upstream::{TlsRoots, Upstream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const CHAT_BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
pub(crate) const CHAT_STREAM_BODY: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
pub(crate) const COMPLETION: &str = r#"{"id":"x","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) llm: Arc<LlmApi>,
    pub(crate) auth: Arc<Authenticator>,
    pub(crate) registry: Registry,
    tracer: Option<Arc<Tracer>>,
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct ReadResponse {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

impl ReadResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns the status and the error code.
    pub(crate) fn status_and_code(&self) -> (u16, String) {
        (self.status, self.json()["error"]["code"].as_str().unwrap_or("none").to_owned())
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Returns a header's value; panics if it is missing.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no header {name}"));
        value.to_str().unwrap()
    }
}

/// A node that serves model `m`.
pub(crate) fn node(name: &str, url: &str, slots: u32) -> NodeOptions {
    NodeOptions {
        name: name.to_owned(),
        paths: vec![url.to_owned()],
        via: None,
        models: vec!["m".to_owned()],
        max_concurrency: Some(Concurrency::Fixed(slots)),
        weight: Weight::ONE,
        api_key: None,
        extra_paths: Vec::new(),
        inject_stream_options: true,
    }
}

pub(crate) fn tenant(name: &str) -> TenantSettings {
    let keys = vec![TenantKey::unnamed(KeyHash::of(&format!("ek-{name}")))];
    TenantSettings { name: name.to_owned(), keys, ..TenantSettings::default() }
}

impl Gateway {
    pub(crate) async fn with_nodes(nodes: Vec<NodeOptions>) -> Self {
        Self::start_with(LlmOptions { nodes, ..LlmOptions::default() }, vec![]).await
    }

    pub(crate) async fn start_with(options: LlmOptions, tenants: Vec<TenantSettings>) -> Self {
        Self::start(options, tenants, None).await
    }

    /// Starts a gateway that traces all requests.
    pub(crate) async fn traced(nodes: Vec<NodeOptions>, tenants: Vec<TenantSettings>) -> Self {
        let tracer = Tracer::new(&Registry::new(), TraceOptions::default()).unwrap();
        let options = LlmOptions { nodes, ..LlmOptions::default() };
        Self::start(options, tenants, Some(Arc::new(tracer))).await
    }

    async fn start(options: LlmOptions, tenants: Vec<TenantSettings>, tracer: Option<Arc<Tracer>>) -> Self {
        let registry = Registry::new();
        let observer =
            Observer::new(&registry, "llm", MetricLimits::default(), RequestLogLimits::default()).unwrap();
        let observer = observer.with_paths(PathMetrics::new(&registry).unwrap());
        let mut observer = observer.with_router(RouterMetrics::new(&registry).unwrap());
        if let Some(tracer) = &tracer {
            observer = observer.with_tracer(tracer.clone());
        }
        let upstream = Upstream::new(options.pipeline.load.connection_pool, TlsRoots::public());
        let llm = LlmApi::new(options, upstream, Arc::new(observer)).unwrap();
        let listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), None, ListenerLimits::default()).await.unwrap();
        let tenants = Tenants::new(tenants, vec![KeyHash::of("ek-root")]).unwrap();
        llm.set_tenants(&tenants.all()).unwrap();
        let auth =
            Authenticator::new(tenants, listener.exposure().unwrap(), InsecurePolicy::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let auth = Arc::new(auth);
        let mut routes = Routes::new(Readiness::default());
        llm.add_routes(&mut routes).unwrap();
        tokio::spawn(listener.serve(auth.clone(), routes, std::future::pending()));
        Self { address, llm, auth, registry, tracer }
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        self.tracer.as_ref().unwrap()
    }

    /// Connects a client. Dropping it disconnects.
    pub(crate) async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        Client { requests, connection }
    }

    /// Sends a request with the key `ek-none`, which belongs to no tenant, and reads the whole response.
    pub(crate) async fn post(&self, path: &str, body: &str) -> ReadResponse {
        self.post_as("none", path, body).await
    }

    pub(crate) async fn post_as(&self, tenant: &str, path: &str, body: &str) -> ReadResponse {
        let mut client = self.client().await;
        let response = client.send(Method::POST, tenant, path, body).await;
        read_response(response).await
    }

    /// Sends a request with these headers and without a tenant's key.
    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &str) -> ReadResponse {
        let mut client = self.client().await;
        let response = client.send_with(Method::POST, path, headers, body).await;
        read_response(response).await
    }

    pub(crate) async fn call(&self, method: Method, tenant: &str, path: &str, body: &str) -> ReadResponse {
        let mut client = self.client().await;
        let response = client.send(method, tenant, path, body).await;
        read_response(response).await
    }

    /// Sends a chat in the background.
    pub(crate) fn spawn_chat(self: &Arc<Self>, tenant: &'static str, body: &'static str) -> PendingResponse {
        let gateway = self.clone();
        tokio::spawn(async move { gateway.post_as(tenant, CHAT, body).await })
    }

    pub(crate) async fn status(&self) -> Value {
        self.call(Method::GET, "root", "/api/load-status", "").await.json()
    }

    /// Waits until `count` requests are queued.
    pub(crate) async fn wait_until_queued(&self, count: usize) {
        while self.llm.update_gauges().queue_size != count {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until nothing is queued or in flight and no connection is active, and checks that nothing is leaked.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let status = self.status().await;
            let remaining = [&status["in_flight"], &status["waiting"], &status["pool"]["active_connections"]];
            if remaining.iter().all(|count| **count == 0) {
                let nodes = status["nodes"].as_array().unwrap();
                assert!(
                    nodes.iter().all(|node| node["busy"] == 0 && node["in_flight_cost"] == 0),
                    "{status}"
                );
                let tenants = status["tenants"].as_array().unwrap();
                assert!(
                    tenants.iter().all(|tenant| tenant["in_flight"] == 0 && tenant["in_flight_cost"] == 0),
                    "{status}"
                );
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) type PendingResponse = tokio::task::JoinHandle<ReadResponse>;

/// A client's connection.
pub(crate) struct Client {
    requests: SendRequest<Full<Bytes>>,
    connection: tokio::task::JoinHandle<()>,
}

impl Client {
    pub(crate) async fn send(
        &mut self,
        method: Method,
        tenant: &str,
        path: &str,
        body: &str,
    ) -> Response<Incoming> {
        let key = format!("Bearer ek-{tenant}");
        self.send_with(method, path, &[("authorization", &key)], body).await
    }

    pub(crate) async fn send_with(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.request(request.body(body.to_owned()).unwrap()).await
    }

    /// Sends a request without adding headers.
    pub(crate) async fn request(&mut self, request: Request<String>) -> Response<Incoming> {
        self.requests.send_request(request.map(|body| Full::new(Bytes::from(body)))).await.unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub(crate) async fn read_response(response: Response<Incoming>) -> ReadResponse {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    ReadResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.into()).unwrap(),
    }
}

/// Reads the next chunk of a body.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Option<String> {
    let frame = body.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().into()).unwrap())
}
