//! A small HTTP server in front of a node.

use core::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use evenkeel_cluster::Cluster;
use http::{HeaderMap, Request, Response};
use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

pub(crate) type Body = BoxBody<Bytes, io::Error>;

/// Dropping it stops the listener and closes every connection.
pub(crate) struct Server {
    address: SocketAddr,
    serving: JoinHandle<()>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Serves requests; an error of `handle` closes the connection without a response.
    pub(crate) async fn start<F, R>(handle: F) -> Self
    where
        F: Fn(Request<Bytes>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Response<Body>>> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<AtomicUsize>::default();
        let counted = requests.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let handle = handle.clone();
                let requests = counted.clone();
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    requests.fetch_add(1, Ordering::Relaxed);
                    let handle = handle.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                        handle(Request::from_parts(head, body)).await
                    }
                });
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, serving, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of requests that were received.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Stops the listener and closes every connection.
    pub(crate) async fn stop(mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers a poll as the SQL API does.
pub(crate) fn answer_poll(cluster: &Cluster, headers: &HeaderMap) -> Response<Body> {
    match cluster.serve_poll(headers) {
        Ok(response) => response.map(full),
        Err(error) => {
            let mut response = Response::new(full(error.to_string()));
            *response.status_mut() = error.status();
            response
        }
    }
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

pub(crate) fn channel(channel: Channel<Bytes, io::Error>) -> Body {
    channel.boxed()
}
