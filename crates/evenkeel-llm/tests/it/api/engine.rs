//! A model server whose responses a test controls.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Collected};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// A running model server.
pub(crate) struct Engine {
    pub(crate) url: String,
    requests: mpsc::UnboundedReceiver<EngineRequest>,
}

/// A request that waits for its response.
pub(crate) struct EngineRequest {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    respond: oneshot::Sender<Response<ScriptedBody>>,
    /// Resolves once the response was read to its end, or its connection was closed.
    pub(crate) ended: oneshot::Receiver<Infallible>,
}

/// Writer of a response body. Dropping it ends the body.
pub(crate) type BodySender = mpsc::UnboundedSender<Result<Bytes, BodyAbort>>;

/// Aborts a response body.
#[derive(Debug)]
pub(crate) struct BodyAbort;

impl std::fmt::Display for BodyAbort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("aborted")
    }
}

impl std::error::Error for BodyAbort {}

impl Engine {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (on_request, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let on_request = on_request.clone();
                let service = service_fn(move |request| serve(request, on_request.clone()));
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        Self { url, requests }
    }

    /// Starts a server that handles every request with `reply`; returns its URL.
    pub(crate) async fn reply_always_with(reply: impl Fn(EngineRequest) + Send + 'static) -> String {
        let mut engine = Self::start().await;
        let url = engine.url.clone();
        tokio::spawn(async move {
            while let Some(received) = engine.requests.recv().await {
                reply(received);
            }
        });
        url
    }

    pub(crate) async fn next_request(&mut self) -> EngineRequest {
        self.requests.recv().await.unwrap()
    }

    /// Reports whether a request has arrived that `next_request` has not returned yet.
    pub(crate) fn has_request(&mut self) -> bool {
        !self.requests.is_empty()
    }
}

impl EngineRequest {
    /// Sends a whole response.
    pub(crate) fn reply(self, status: u16, headers: &[(&'static str, &str)], body: impl Into<Bytes>) {
        let (sender, script) = scripted_body();
        sender.send(Ok(body.into())).unwrap();
        // The client may have disconnected.
        let _ = self.respond.send(response(status, headers, script));
    }

    pub(crate) fn reply_json(self, body: &str) {
        self.reply(200, &[("content-type", "application/json")], body.to_owned());
    }

    /// Sends a response head.
    pub(crate) fn begin(
        self,
        headers: &[(&'static str, &str)],
    ) -> (BodySender, oneshot::Receiver<Infallible>) {
        let (sender, script) = scripted_body();
        let _ = self.respond.send(response(200, headers, script));
        (sender, self.ended)
    }

    /// Starts a stream of events.
    pub(crate) fn stream(self) -> (BodySender, oneshot::Receiver<Infallible>) {
        self.begin(&[("content-type", "text/event-stream")])
    }
}

/// Sends one event.
pub(crate) fn event(sender: &BodySender, event: &str) {
    sender.send(Ok(Bytes::from(format!("data: {event}\n\n")))).unwrap();
}

/// Sends several events.
pub(crate) fn events(sender: &BodySender, events: &[&str]) {
    events.iter().for_each(|data| event(sender, data));
}

async fn serve(
    request: Request<Incoming>,
    on_request: mpsc::UnboundedSender<EngineRequest>,
) -> Result<Response<ScriptedBody>, Infallible> {
    let (head, body) = request.into_parts();
    if head.method == Method::GET {
        return Ok(monitor_response(head.uri.path()));
    }
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let (respond, response) = oneshot::channel();
    let (alive, ended) = oneshot::channel();
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    on_request.send(EngineRequest { path, headers: head.headers, body, respond, ended }).unwrap();
    match response.await {
        // `alive` is dropped with the body, or with this future if the request is cancelled.
        Ok(response) => Ok(response.map(|script| ScriptedBody { alive: Some(alive), ..script })),
        Err(_) => std::future::pending().await,
    }
}

/// Returns the response to a monitor: the node is healthy and serves the model `found`.
fn monitor_response(path: &str) -> Response<ScriptedBody> {
    let (sender, script) = scripted_body();
    let (status, body) = match path {
        "/health" => (200, ""),
        "/v1/models" => (200, r#"{"object":"list","data":[{"id":"found","object":"model"}]}"#),
        _ => (404, ""),
    };
    sender.send(Ok(Bytes::from_static(body.as_bytes()))).unwrap();
    response(status, &[("content-type", "application/json")], script)
}

fn response(status: u16, headers: &[(&'static str, &str)], script: ScriptedBody) -> Response<ScriptedBody> {
    let mut response = Response::new(script);
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        response.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    response
}

fn scripted_body() -> (BodySender, ScriptedBody) {
    let (sender, chunks) = mpsc::unbounded_channel();
    (sender, ScriptedBody { chunks, alive: None })
}

/// A body that the test writes.
pub(crate) struct ScriptedBody {
    chunks: mpsc::UnboundedReceiver<Result<Bytes, BodyAbort>>,
    #[expect(dead_code, reason = "signals `ended` when it is dropped with the body")]
    alive: Option<oneshot::Sender<Infallible>>,
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = BodyAbort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAbort>>> {
        self.chunks.poll_recv(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
