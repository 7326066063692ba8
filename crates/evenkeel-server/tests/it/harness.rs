//! A server with a few routes, and clients that write raw bytes.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::body::{self, BodyError, Response};
use evenkeel_server::disconnect::Disconnect;
use evenkeel_server::listener::{DrainReport, Listener, ListenerLimits};
use evenkeel_server::route::{Readiness, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, Authenticator, Caller, InsecurePolicy, TenantSettings, Tenants};
use evenkeel_server::tenant_key::TenantKey;
use evenkeel_server::tls::Tls;
use http::Method;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) readiness: Readiness,
    /// Lets one request to `/slow` finish.
    pub(crate) release: Arc<Notify>,
    /// Requests to `/slow`, `/stream` and `/flood`.
    pub(crate) arrivals: mpsc::Receiver<Disconnect>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<DrainReport>,
}

/// The parts of a server that tests vary.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) limits: ListenerLimits,
    pub(crate) tenants: Vec<TenantSettings>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), setup.tls, setup.limits).await.unwrap();
        let tenants = Tenants::new(setup.tenants, vec![KeyHash::of("ek-root")]).unwrap();
        let auth =
            Authenticator::new(tenants, listener.exposure().unwrap(), InsecurePolicy::default()).unwrap();
        let readiness = Readiness::default();
        let release = Arc::new(Notify::new());
        let (arrived, arrivals) = mpsc::channel(16);
        let routes = routes(readiness.clone(), release.clone(), arrived);
        let (stop, stopped) = oneshot::channel();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or(()) };
            listener.serve(Arc::new(auth), routes, stopped).await.unwrap()
        });
        Self { address, readiness, release, arrivals, stop, serving }
    }

    /// Begins the shutdown; the handle resolves to its report.
    pub(crate) fn stop(self) -> JoinHandle<DrainReport> {
        self.stop.send(()).unwrap();
        self.serving
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Writes bytes, and reads until the server closes the connection.
    pub(crate) async fn send_raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        // A server that rejects early closes the connection during the write.
        let _ = stream.write_all(bytes.as_ref()).await;
        read_all(&mut stream).await
    }

    /// Sends one request with `connection: close`, and reads the response.
    pub(crate) async fn request(&self, line: &str, headers: &str) -> String {
        self.send_raw(format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"))
            .await
    }
}

/// Reads until the server closes or resets the connection. Bytes that are not UTF-8 become `\u{fffd}`.
pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut part).await {
        all.extend_from_slice(&part[..read]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads until the bytes end with `end`.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut all = Vec::new();
    while !all.ends_with(end.as_bytes()) {
        all.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(all).unwrap()
}

pub(crate) fn tenant(name: &str, key: &str) -> TenantSettings {
    TenantSettings {
        name: name.to_owned(),
        keys: vec![TenantKey::unnamed(KeyHash::of(key))],
        ..TenantSettings::default()
    }
}

fn routes(readiness: Readiness, release: Arc<Notify>, arrived: mpsc::Sender<Disconnect>) -> Routes {
    let mut routes = Routes::new(readiness);
    let mut add = |method, path, access, handler| routes.add(method, path, access, handler).unwrap();
    add(Method::POST, "/echo", Access::Tenant, handler(echo));
    add(Method::GET, "/whoami", Access::Tenant, handler(whoami));
    add(Method::GET, "/admin", Access::Admin, handler(async |_| Ok(text("admin"))));
    add(Method::GET, "/panic", Access::Public, handler(async |_| panic!("a bug in the handler")));
    add(Method::GET, "/v1/*", Access::Tenant, handler(async |_| Ok(text("fallback"))));
    let slow_arrived = arrived.clone();
    let slow = handler(move |request: ServerRequest| {
        let arrived = slow_arrived.clone();
        let release = release.clone();
        async move {
            arrived.send(request.disconnect).await.unwrap();
            release.notified().await;
            Ok(text("slow"))
        }
    });
    add(Method::GET, "/slow", Access::Tenant, slow);
    let flood_arrived = arrived.clone();
    let flood = handler(move |request: ServerRequest| {
        let arrived = flood_arrived.clone();
        async move {
            arrived.send(request.disconnect).await.unwrap();
            Ok(Response::new(Flood.boxed_unsync()))
        }
    });
    add(Method::GET, "/flood", Access::Tenant, flood);
    let stream = handler(move |request: ServerRequest| {
        let arrived = arrived.clone();
        async move {
            arrived.send(request.disconnect).await.unwrap();
            Ok(Response::new(Once(Some(Bytes::from_static(b"first"))).boxed_unsync()))
        }
    });
    add(Method::GET, "/stream", Access::Tenant, stream);
    routes
}

async fn echo(mut request: ServerRequest) -> Result<Response, ApiError> {
    Ok(Response::new(body::full(request.read_body().await?.bytes)))
}

async fn whoami(request: ServerRequest) -> Result<Response, ApiError> {
    match request.caller {
        Caller::Tenant(tenant) => Ok(text(tenant.settings.name.clone())),
        Caller::Public | Caller::Admin(_) => Err(ApiError::Internal),
    }
}

fn text(text: impl Into<Bytes>) -> Response {
    Response::new(body::full(text))
}

/// A body with one frame that never ends.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// An endless body, as fast as the client reads.
struct Flood;

impl http_body::Body for Flood {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 64 * 1024])))))
    }
}
