//! Forwarded requests, and the reports in their responses.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use evenkeel_cluster::{
    ForwardError, POLL_PATH, REPORT_HEADER, REPORT_HEADER_BYTES_MAX, ReceivedReport, TICKET_HEADER,
    TicketRequest,
};
use evenkeel_upstream::{UpstreamBody, UpstreamError};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::*;
use crate::node::{Body, channel, full};

const BODY: &[u8] = b"{\"sql\":\"DELETE FROM items\"}";

/// A node with one peer, of which it has a report.
struct Rig {
    a: Arc<Cluster>,
    b: Arc<Cluster>,
    server: Server,
    forwards: Arc<AtomicUsize>,
}

impl Rig {
    /// Starts two nodes; "b" answers polls, and `handle` answers forwarded requests.
    async fn start<F, R>(handle: F) -> Self
    where
        F: Fn(Arc<Cluster>, Request<Bytes>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Response<Body>>> + Send + 'static,
    {
        Self::with(ConnectionPoolConfig::default(), handle).await
    }

    async fn with<F, R>(settings: ConnectionPoolConfig, handle: F) -> Self
    where
        F: Fn(Arc<Cluster>, Request<Bytes>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Response<Body>>> + Send + 'static,
    {
        let b = start_target("b", || serving(vec![pool("shop", busy_stats())]));
        let served = b.clone();
        let forwards = Arc::<AtomicUsize>::default();
        let counted = forwards.clone();
        let server =
            Server::start(move |request| {
                let b = served.clone();
                let handle = handle.clone();
                let is_poll = request.uri().path() == POLL_PATH;
                counted.fetch_add(usize::from(!is_poll), Ordering::Relaxed);
                async move {
                    if is_poll { Ok(answer_poll(&b, request.headers())) } else { handle(b, request).await }
                }
            })
            .await;
        // One poll only, so that later reports can only come from forwarded responses.
        let options = ClusterOptions { poll_interval: NEVER, ..options("a", vec![peer("b", &server.url())]) };
        let upstream = Upstream::new(settings, TlsRoots::default());
        let a = Cluster::start(options, upstream, || serving(vec![])).unwrap();
        peer_when(&a, is_serving).await;
        Self { a, b, server, forwards }
    }

    fn ticket(&self) -> String {
        let method = &Method::POST;
        let request = TicketRequest {
            tenant: "acme",
            database_id: "db",
            method,
            path: "/execute",
            body: BODY,
            hops_left: 0,
            visited: &[],
        };
        self.a.issue_ticket(0, request).unwrap()
    }

    async fn forward(&self) -> Result<Response<UpstreamBody>, ForwardError> {
        let request = Request::post("/execute").body(Bytes::from_static(BODY)).unwrap();
        self.a.forward(0, &self.ticket(), request).await
    }

    fn forwards(&self) -> usize {
        self.forwards.load(Ordering::Relaxed)
    }

    fn known_report(&self) -> Arc<ReceivedReport> {
        self.a.peers()[0].report.clone().unwrap()
    }
}

/// Answers a forwarded request with its tenant, and with a report.
async fn serve_ticket(b: Arc<Cluster>, request: Request<Bytes>) -> io::Result<Response<Body>> {
    let ticket = request.headers()[TICKET_HEADER].to_str().unwrap();
    let ticket = b.accept_ticket(ticket, request.method(), request.uri().path()).unwrap();
    ticket.check_body(request.body()).unwrap();
    let mut response = Response::new(full(format!("hello {}", ticket.tenant)));
    response.headers_mut().insert(REPORT_HEADER, b.report_header(&ticket).unwrap());
    Ok(response)
}

async fn text(response: Response<UpstreamBody>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_forwarded_request_is_served_for_its_tenant() {
    let rig = Rig::start(serve_ticket).await;
    let response = rig.forward().await.unwrap();
    assert!(!response.headers().contains_key(REPORT_HEADER));
    assert_eq!(text(response).await, "hello acme");
}

#[tokio::test]
async fn a_forwarded_response_renews_the_figures_of_the_peer() {
    let rig = Rig::start(serve_ticket).await;
    let before = rig.known_report();
    for nth in 1..=3 {
        rig.forward().await.unwrap();
        let after = rig.known_report();
        assert_eq!((after.boot, after.sequence), (before.boot, before.sequence + nth));
        assert_eq!(after.pools, [pool("shop", busy_stats())]);
        assert!(before.received_at < after.received_at);
    }
}

/// Returns the number of the known report after two responses whose reports `change` has changed.
async fn sequence_after_changed(change: fn(&mut Option<HeaderValue>, HeaderValue) -> HeaderValue) -> u64 {
    let recorded = Arc::new(Mutex::new(None));
    let rig = Rig::start(move |b, request| {
        let recorded = recorded.clone();
        async move {
            let mut response = serve_ticket(b, request).await?;
            let report = response.headers_mut().remove(REPORT_HEADER).unwrap();
            response.headers_mut().insert(REPORT_HEADER, change(&mut recorded.lock(), report));
            Ok(response)
        }
    })
    .await;
    for _ in 0..2 {
        assert_eq!(text(rig.forward().await.unwrap()).await, "hello acme");
    }
    assert_eq!(rig.a.peers()[0].status, Status::Serving);
    rig.known_report().sequence
}

#[tokio::test]
async fn a_forged_or_replayed_report_in_a_response_is_ignored() {
    assert_eq!(sequence_after_changed(|_, report| report).await, 2);
    // The first response has no valid report; the second has the one of the first.
    let replay = |recorded: &mut Option<HeaderValue>, report| {
        recorded.replace(report).unwrap_or(HeaderValue::from_static("AAAA"))
    };
    assert_eq!(sequence_after_changed(replay).await, 0);
    let forge = |_: &mut Option<HeaderValue>, report: HeaderValue| {
        let mut bytes = URL_SAFE_NO_PAD.decode(report).unwrap();
        let figure = b"\"runningSql\":5";
        let at = bytes.windows(figure.len()).position(|part| part == figure).unwrap();
        bytes[at + figure.len() - 1] = b'0';
        HeaderValue::from_str(&URL_SAFE_NO_PAD.encode(bytes)).unwrap()
    };
    assert_eq!(sequence_after_changed(forge).await, 0);
    for forged in ["", "x", "!", &"A".repeat(400), &"A".repeat(REPORT_HEADER_BYTES_MAX + 4)] {
        let forged = HeaderValue::from_str(forged).unwrap();
        let rig = Rig::start(move |_, _| {
            let mut response = Response::new(full("hello"));
            response.headers_mut().insert(REPORT_HEADER, forged.clone());
            async move { Ok(response) }
        })
        .await;
        assert_eq!(text(rig.forward().await.unwrap()).await, "hello");
        let peer = rig.a.peers().remove(0);
        assert_eq!((peer.status, peer.report.unwrap().sequence), (Status::Serving, 0));
    }
}

#[tokio::test]
async fn a_report_that_is_too_long_for_a_header_is_left_out() {
    let pools: Vec<_> = (0..100).map(|n| pool(&n.to_string(), busy_stats())).collect();
    let many = start_target("b", move || serving(pools.clone()));
    let server = serve_polls(many.clone()).await;
    let a = start_poller(&server);
    peer_when(&a, is_serving).await;
    let method = &Method::POST;
    let request = TicketRequest {
        tenant: "acme",
        database_id: "db",
        method,
        path: "/",
        body: b"",
        hops_left: 0,
        visited: &[],
    };
    let ticket = a.issue_ticket(0, request).unwrap();
    let ticket = many.accept_ticket(&ticket, method, "/").unwrap();
    assert_eq!(many.report_header(&ticket), None);
}

#[tokio::test]
async fn a_late_response_from_before_a_restart_does_not_bring_the_old_boot_back() {
    let running = Arc::new(Mutex::new(start_target("b", || serving(vec![]))));
    let (arrive, arrived) = oneshot::channel();
    let (proceed, wait) = oneshot::channel();
    let gate = Arc::new(Mutex::new(Some((arrive, wait))));
    let served = running.clone();
    let server = Server::start(move |request| {
        let b = served.lock().clone();
        let gate = gate.clone();
        async move {
            if request.uri().path() == POLL_PATH {
                return Ok(answer_poll(&b, request.headers()));
            }
            let response = serve_ticket(b, request).await?;
            let (arrive, wait) = gate.lock().take().unwrap();
            arrive.send(()).unwrap();
            wait.await.map_err(io::Error::other)?;
            Ok(response)
        }
    })
    .await;
    let a = start_poller(&server);
    let first = peer_when(&a, is_serving).await.report.unwrap();
    let method = &Method::POST;
    let request = TicketRequest {
        tenant: "acme",
        database_id: "db",
        method,
        path: "/",
        body: b"",
        hops_left: 0,
        visited: &[],
    };
    let ticket = a.issue_ticket(0, request).unwrap();
    let forwarder = a.clone();
    let forwarded = tokio::spawn(async move {
        forwarder.forward(0, &ticket, Request::post("/").body(Bytes::new()).unwrap()).await
    });
    arrived.await.unwrap();
    *running.lock() = start_target("b", || serving(vec![]));
    let boot = |peer: &PeerSnapshot| peer.report.as_ref().map(|report| report.boot);
    let second = boot(&peer_when(&a, |peer| boot(peer) != Some(first.boot)).await);
    proceed.send(()).unwrap();
    let response = forwarded.await.unwrap().unwrap();
    assert_eq!(boot(&a.peers()[0]), second);
    assert_eq!(text(response).await, "hello acme");
}

#[tokio::test]
async fn the_response_streams() {
    let (sender, body) = Channel::<Bytes, io::Error>::new(1);
    let body = Arc::new(Mutex::new(Some(body)));
    let rig = Rig::start(move |_, _| {
        let body = body.lock().take().unwrap();
        async move { Ok(Response::new(channel(body))) }
    })
    .await;
    let mut sender = sender;
    let mut body = rig.forward().await.unwrap().into_body();
    for part in ["one", "two"] {
        sender.send_data(Bytes::from(part)).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), part);
    }
    drop(sender);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_peer_killed_in_the_middle_of_a_response_truncates_it() {
    let (sender, body) = Channel::<Bytes, io::Error>::new(1);
    let body = Arc::new(Mutex::new(Some(body)));
    let rig = Rig::start(move |_, _| {
        let body = body.lock().take().unwrap();
        async move { Ok(Response::new(channel(body))) }
    })
    .await;
    let mut sender = sender;
    let mut body = rig.forward().await.unwrap().into_body();
    sender.send_data(Bytes::from("one")).await.unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    rig.server.stop().await;
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Truncated { .. }), "{error:?}");
    assert_eq!(rig.forwards.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_peer_that_closes_after_reading_leaves_an_unknown_outcome_and_is_not_asked_again() {
    // The connection of the poll is kept alive and used again, or not.
    for max_idle_per_host in [8, 0] {
        let settings = ConnectionPoolConfig { max_idle_per_host, ..ConnectionPoolConfig::default() };
        let rig = Rig::with(settings, |_, _| async { Err(io::Error::other("killed")) }).await;
        let error = rig.forward().await.unwrap_err();
        assert!(matches!(error, ForwardError::OutcomeUnknown { .. }), "{error:?}");
        assert!(error.to_string().contains(r#"peer "b": connection closed before a response"#), "{error}");
        assert_eq!(rig.forwards(), 1);
    }
}

#[tokio::test]
async fn a_request_to_a_peer_that_refuses_connections_was_not_sent() {
    let settings = ConnectionPoolConfig { max_idle_per_host: 0, ..ConnectionPoolConfig::default() };
    let rig = Rig::with(settings, serve_ticket).await;
    let ticket = rig.ticket();
    rig.server.stop().await;
    let request = Request::post("/execute").body(Bytes::from_static(BODY)).unwrap();
    let error = rig.a.forward(0, &ticket, request).await.unwrap_err();
    assert!(matches!(error, ForwardError::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_request_without_a_peer_or_a_ticket_was_not_sent() {
    let rig = Rig::start(serve_ticket).await;
    let request = || Request::post("/execute").body(Bytes::from_static(BODY)).unwrap();
    let error = rig.a.forward(7, &rig.ticket(), request()).await.unwrap_err();
    assert_eq!(error, ForwardError::NotSent { reason: "there is no peer 7".to_owned() });
    for ticket in ["", "x\ny", "AAAA"] {
        let error = rig.a.forward(0, ticket, request()).await.unwrap_err();
        assert_eq!(error, ForwardError::NotSent { reason: "the ticket is malformed".to_owned() });
    }
    assert_eq!(rig.forwards(), 0);
    assert_eq!(rig.b.node(), "b");
}
