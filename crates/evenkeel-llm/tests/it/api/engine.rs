//! A model server that answers what a test tells it to, when it tells it to.

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
    heard: mpsc::UnboundedReceiver<Heard>,
}

/// A request that waits for its answer.
pub(crate) struct Heard {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    answer: oneshot::Sender<Response<Script>>,
    /// Ends when nobody wants the answer any more, or has all of it.
    pub(crate) ended: oneshot::Receiver<Infallible>,
}

/// What writes the rest of an answer; dropped, the answer ends.
pub(crate) type Pen = mpsc::UnboundedSender<Result<Bytes, Cut>>;

/// What breaks an answer off.
#[derive(Debug)]
pub(crate) struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}

impl std::error::Error for Cut {}

impl Engine {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (hear, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let hear = hear.clone();
                let service = service_fn(move |request| answer(request, hear.clone()));
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        Self { url, heard }
    }

    /// Answers every request alike.
    pub(crate) async fn always(reply: impl Fn(Heard) + Send + 'static) -> String {
        let mut engine = Self::start().await;
        let url = engine.url.clone();
        tokio::spawn(async move {
            while let Some(heard) = engine.heard.recv().await {
                reply(heard);
            }
        });
        url
    }

    /// The next request.
    pub(crate) async fn hears(&mut self) -> Heard {
        self.heard.recv().await.unwrap()
    }

    /// Whether a request has come that was not yet looked at.
    pub(crate) fn has_heard(&mut self) -> bool {
        !self.heard.is_empty()
    }
}

impl Heard {
    /// Answers in one piece.
    pub(crate) fn reply(self, status: u16, headers: &[(&'static str, &str)], body: impl Into<Bytes>) {
        let (pen, script) = script();
        pen.send(Ok(body.into())).unwrap();
        // The client may have gone.
        let _ = self.answer.send(response(status, headers, script));
    }

    pub(crate) fn reply_json(self, body: &str) {
        self.reply(200, &[("content-type", "application/json")], body.to_owned());
    }

    /// Begins an answer.
    pub(crate) fn begin(self, headers: &[(&'static str, &str)]) -> (Pen, oneshot::Receiver<Infallible>) {
        let (pen, script) = script();
        let _ = self.answer.send(response(200, headers, script));
        (pen, self.ended)
    }

    /// Begins a stream of events.
    pub(crate) fn stream(self) -> (Pen, oneshot::Receiver<Infallible>) {
        self.begin(&[("content-type", "text/event-stream")])
    }
}

/// Writes one event.
pub(crate) fn event(pen: &Pen, event: &str) {
    pen.send(Ok(Bytes::from(format!("data: {event}\n\n")))).unwrap();
}

/// Writes several events.
pub(crate) fn events(pen: &Pen, events: &[&str]) {
    events.iter().for_each(|said| event(pen, said));
}

async fn answer(
    request: Request<Incoming>,
    hear: mpsc::UnboundedSender<Heard>,
) -> Result<Response<Script>, Infallible> {
    let (head, body) = request.into_parts();
    if head.method == Method::GET {
        return Ok(looked_after(head.uri.path()));
    }
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let (answer, answered) = oneshot::channel();
    let (keep, ended) = oneshot::channel();
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let heard = Heard { path, headers: head.headers, body, answer, ended };
    hear.send(heard).unwrap();
    match answered.await {
        // Held until nobody reads the body; a request that is given up drops it here.
        Ok(response) => Ok(response.map(|script| Script { keep: Some(keep), ..script })),
        Err(_) => std::future::pending().await,
    }
}

/// What monitors are told: it is well, and serves `found`.
fn looked_after(path: &str) -> Response<Script> {
    let (pen, script) = script();
    let (status, said) = match path {
        "/health" => (200, ""),
        "/v1/models" => (200, r#"{"object":"list","data":[{"id":"found","object":"model"}]}"#),
        _ => (404, ""),
    };
    pen.send(Ok(Bytes::from_static(said.as_bytes()))).unwrap();
    response(status, &[("content-type", "application/json")], script)
}

fn response(status: u16, headers: &[(&'static str, &str)], script: Script) -> Response<Script> {
    let mut response = Response::new(script);
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        response.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    response
}

fn script() -> (Pen, Script) {
    let (pen, written) = mpsc::unbounded_channel();
    (pen, Script { written, keep: None })
}

/// A body that is what the test writes.
pub(crate) struct Script {
    written: mpsc::UnboundedReceiver<Result<Bytes, Cut>>,
    #[expect(dead_code, reason = "dropped with the body, which is what it is for")]
    keep: Option<oneshot::Sender<Infallible>>,
}

impl Body for Script {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.written.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
