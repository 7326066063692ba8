//! Requests over a link, each on a flow of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_link::forward::{AllowedTargets, serve_flow};
use evenkeel_link::identity::{ExistingKey, Identity};
use evenkeel_link::session::SessionConfig;
use evenkeel_link::{ConnectorSettings, LinkConnector, LinkListener};
use evenkeel_telemetry::{PathMetrics, Registry};
use evenkeel_upstream::{HeaderFilter, LinkTable, SendOnceError};
use tokio::net::TcpListener;

use super::*;

/// A link named `site-b` over loopback; its other side connects only to allowed targets.
struct TestLink {
    connector: LinkConnector,
    table: LinkTable,
}

impl TestLink {
    async fn start(allowed: &[&Origin]) -> Self {
        Self::with_config(allowed, SessionConfig::default()).await
    }

    /// Starts a link whose near side has these settings.
    async fn with_config(allowed: &[&Origin], near: SessionConfig) -> Self {
        let keys = Keys::create();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let peer = keys.near.fingerprint();
        let config = SessionConfig::default();
        let mut listener = LinkListener::bind(&keys.far, peer, &[any, any], config, metrics()).unwrap();
        let paths = listener.local_addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
        let target = |origin: &&Origin| origin.authority().split("://").nth(1).unwrap().parse().unwrap();
        let targets = Arc::new(AllowedTargets::new(allowed.iter().map(target).collect()));
        tokio::spawn(async move {
            while let Some(mut link) = listener.accept().await {
                let targets = targets.clone();
                tokio::spawn(async move {
                    while let Some(flow) = link.flows.next().await {
                        let targets = targets.clone();
                        tokio::spawn(async move {
                            serve_flow(flow.send, flow.recv, flow.target, &targets).await;
                        });
                    }
                });
            }
        });
        Self::connect(&keys, &paths, near)
    }

    /// Starts only the near side.
    fn start_down() -> Self {
        Self::connect(&Keys::create(), &["127.0.0.1:9".to_owned()], SessionConfig::default())
    }

    fn connect(keys: &Keys, paths: &[String], config: SessionConfig) -> Self {
        let peer = keys.far.fingerprint();
        let paths = paths.iter().map(|path| path.parse().unwrap()).collect();
        let settings = ConnectorSettings::direct("site-b", peer, paths, config);
        let connector = LinkConnector::start(&keys.near, settings, metrics()).unwrap();
        let table = LinkTable::default();
        table.insert("site-b", connector.link());
        Self { connector, table }
    }

    fn upstream(&self, settings: ConnectionPoolConfig) -> Upstream {
        upstream(settings).with_links(self.table.clone())
    }

    fn open_flows(&self) -> usize {
        self.connector.link().status().flows.len()
    }
}

struct Keys {
    near: Identity,
    far: Identity,
}

impl Keys {
    fn create() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str| Identity::create(&dir.path().join(name), ExistingKey::Keep).unwrap();
        Self { near: create("near"), far: create("far") }
    }
}

fn metrics() -> PathMetrics {
    PathMetrics::new(&Registry::new()).unwrap()
}

/// Returns an origin at which nothing listens.
async fn closed_origin() -> Origin {
    let closed = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    Origin::parse(&format!("http://{closed}")).unwrap()
}

fn connect_error(response: &Result<String, UpstreamError>) -> &str {
    match response {
        Err(UpstreamError::Connect { error }) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_has_a_connection_of_its_own_that_closes_with_its_response() {
    let stub = Stub::start().await;
    let link = TestLink::start(&[&stub.origin()]).await;
    let upstream = link.upstream(defaults());
    let origin = stub.origin().over_link("site-b");
    let large = "x".repeat(3_000_000);
    for body in ["one", "two", &large] {
        let request = request(large.clone());
        let serving = async {
            let mut peer = stub.accept().await;
            assert!(peer.respond(body).await.ends_with(&large));
            peer.closed().await;
        };
        let exchange = async { rest(upstream.send(&origin, &request).await?).await };
        let ((), response) = join!(serving, exchange);
        assert!(response.as_deref() == Ok(body));
    }
    let stats = upstream.stats();
    assert_eq!((stats.connections_created, stats.connections_reused), (3, 0));
    assert_eq!((stats.active_connections, stats.idle_connections), (0, 0));
    assert_eq!(link.open_flows(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_response_closes_the_connection_of_the_other_side() {
    let stub = Stub::start().await;
    let link = TestLink::start(&[&stub.origin()]).await;
    let upstream = link.upstream(defaults());
    let origin = stub.origin().over_link("site-b");
    let serving = async {
        let mut peer = stub.accept().await;
        peer.request().await;
        peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
        peer
    };
    let (peer, response) = join!(serving, send(&upstream, &origin));
    let mut body = response.unwrap().into_body();
    assert_eq!(chunk(&mut body).await.as_deref(), Ok(&b"first"[..]));
    drop(body);
    peer.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_not_allowed_or_refuses_is_a_connect_error_with_the_cause() {
    let stub = Stub::start().await;
    let closed = closed_origin().await;
    let link = TestLink::start(&[&closed]).await;
    let upstream = link.upstream(defaults());
    let response = read(&upstream, &stub.origin().over_link("site-b")).await;
    let error = connect_error(&response);
    let target = stub.url().replace("http://", "");
    assert_eq!(
        error,
        format!("link \"site-b\": the other side does not allow {target}; start it with --allow {target}")
    );
    let response = read(&upstream, &closed.clone().over_link("site-b")).await;
    let error = connect_error(&response);
    assert!(error.starts_with("link \"site-b\": could not connect to 127.0.0.1:"), "{error}");
    assert!(error.contains("refused"), "{error}");
    // No byte reached the target, so a request that must not run twice may be sent elsewhere.
    let filter = HeaderFilter { keep: |_| true, add: &[] };
    let sent = upstream.send_once(&closed.over_link("site-b"), &request("{}"), filter).await;
    assert!(matches!(sent, Err(SendOnceError::NotSent(UpstreamError::Connect { .. }))), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_down_or_unknown_is_a_connect_error() {
    let link = TestLink::start_down();
    let upstream = link.upstream(defaults());
    let origin = Origin::parse("http://127.0.0.1:8000").unwrap();
    let response = read(&upstream, &origin.clone().over_link("site-b")).await;
    assert_eq!(connect_error(&response), "link \"site-b\": the link is down: none of its paths answers");
    let response = read(&upstream, &origin.over_link("site-c")).await;
    assert_eq!(connect_error(&response), "link \"site-c\": there is no such link");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_flows_of_a_link_finds_it_busy() {
    let stub = Stub::start().await;
    let config = SessionConfig { flows_max: 1, ..SessionConfig::default() };
    let link = TestLink::with_config(&[&stub.origin()], config).await;
    let upstream = link.upstream(defaults());
    let origin = stub.origin().over_link("site-b");
    let first = request("{}");
    let serving = async {
        let mut peer = stub.accept().await;
        let response = read(&upstream, &origin).await;
        peer.respond("one").await;
        response
    };
    let (refused, first) = join!(serving, async { rest(upstream.send(&origin, &first).await?).await });
    let Err(UpstreamError::LinkBusy { error }) = refused else { panic!("{refused:?}") };
    assert_eq!(error, "link \"site-b\": the link has 1 open flows, which is its limit");
    assert_eq!(first.as_deref(), Ok("one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_timeout_and_request_timeout_hold_over_a_link() {
    let stub = Stub::start().await;
    let link = TestLink::start(&[&stub.origin()]).await;
    let origin = stub.origin().over_link("site-b");
    assert!(link.connector.link().wait_up(Duration::from_secs(30)).await);
    let upstream =
        link.upstream(ConnectionPoolConfig { request_timeout: Duration::from_millis(200), ..defaults() });
    let (_peer, response) = join!(stub.accept(), read(&upstream, &origin));
    assert_eq!(response, Err(UpstreamError::Timeout));
    // The server accepts, but does not answer the TLS handshake.
    let https = Origin::parse(&stub.url().replace("http://", "https://")).unwrap().over_link("site-b");
    let upstream =
        link.upstream(ConnectionPoolConfig { connect_timeout: Duration::from_millis(200), ..defaults() });
    let (_peer, response) = join!(stub.accept(), read(&upstream, &https));
    assert_eq!(response, Err(UpstreamError::ConnectTimeout));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_works_over_a_link() {
    let identity = tls::identity("link");
    let origin = tls::serve(&identity, "localhost").await;
    let link = TestLink::start(&[&origin]).await;
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let trusting = Upstream::new(defaults(), roots).with_links(link.table.clone());
    assert_eq!(read(&trusting, &origin.clone().over_link("site-b")).await.as_deref(), Ok("safe"));
    let response = read(&link.upstream(defaults()), &origin.over_link("site-b")).await;
    assert!(matches!(response, Err(UpstreamError::Tls { .. })), "{response:?}");
    let closed = closed_origin().await;
    let https = Origin::parse(&closed.authority().replace("http://", "https://")).unwrap();
    let response = read(&trusting, &https.over_link("site-b")).await;
    assert!(connect_error(&response).contains("does not allow"), "{response:?}");
}
