//! Polls: the figures of a peer, and a peer that is silent, draining, restarted or misconfigured.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::*;
use crate::log_counter::LogCounter;
use crate::node::full;

#[tokio::test]
async fn a_peer_reports_its_figures() {
    let stats = NodeStats { uptime_sec: u64::MAX, ..busy_stats() };
    let target = start_target("b", move || serving(vec![pool("shop", stats), pool("audit", busy_stats())]));
    let server = serve_polls(target).await;
    let options =
        options("a", vec![PeerOptions { url: "https://b.example/".to_owned(), ..peer("b", &server.url()) }]);
    let cluster = start(options, || serving(vec![]));
    let peer = peer_when(&cluster, is_serving).await;
    assert_eq!(
        (peer.index, &*peer.name, &*peer.url, peer.weight),
        (0, "b", "https://b.example", Weight::ONE)
    );
    assert_eq!(peer.error, None);
    let report = peer.report.unwrap();
    assert_eq!(report.pools, [pool("shop", stats), pool("audit", busy_stats())]);
    assert!(report.age(Instant::now()) < NEVER);
}

#[tokio::test]
async fn figures_are_renewed_at_every_poll_and_status_is_the_peers_own() {
    let status = Arc::new(Mutex::new(Status::Serving));
    let reported = status.clone();
    let target = start_target("b", move || NodeReport { status: *reported.lock(), pools: vec![] });
    let server = serve_polls(target).await;
    let cluster = start_poller(&server);
    let first = peer_when(&cluster, is_serving).await.report.unwrap();
    *status.lock() = Status::Draining;
    let second = peer_when(&cluster, |peer| peer.status == Status::Draining).await.report.unwrap();
    assert_eq!(second.boot, first.boot);
    assert!(first.sequence < second.sequence && first.clock_ms <= second.clock_ms);
    *status.lock() = Status::Down;
    let down = peer_when(&cluster, |peer| peer.status == Status::Down).await;
    assert_eq!(down.error.as_deref(), Some(r#"peer "b" reports that it is down"#));
}

/// A server that answers polls only while it is told to.
async fn pausable_server(target: Arc<Cluster>) -> (Server, Arc<AtomicBool>) {
    let is_paused = Arc::new(AtomicBool::new(false));
    let paused = is_paused.clone();
    let server = Server::start(move |request| {
        let response = answer_poll(&target, request.headers());
        let paused = paused.clone();
        async move {
            while paused.load(Ordering::Relaxed) {
                yield_now().await;
            }
            Ok(response)
        }
    });
    (server.await, is_paused)
}

#[tokio::test]
async fn a_silent_peer_turns_down_and_recovers_at_the_next_poll() {
    let (server, is_paused) = pausable_server(start_target("b", || serving(vec![]))).await;
    let options = ClusterOptions {
        poll_timeout: Duration::from_millis(20),
        down_after: Duration::from_millis(60),
        ..options("a", vec![peer("b", &server.url())])
    };
    let cluster = start(options, || serving(vec![]));
    peer_when(&cluster, is_serving).await;
    is_paused.store(true, Ordering::Relaxed);
    let reason = r#"peer "b" did not answer within 20ms"#;
    let is_down = |peer: &PeerSnapshot| peer.status == Status::Down && peer.error.as_deref() == Some(reason);
    let down = peer_when(&cluster, is_down).await;
    is_paused.store(false, Ordering::Relaxed);
    let recovered = peer_when(&cluster, |peer| is_serving(peer) && peer.error.is_none()).await;
    let sequence = |peer: PeerSnapshot| peer.report.unwrap().sequence;
    assert!(sequence(down) < sequence(recovered));
}

#[tokio::test]
async fn one_failed_poll_does_not_turn_a_peer_down() {
    let (server, is_paused) = pausable_server(start_target("b", || serving(vec![]))).await;
    let poll_timeout = Duration::from_millis(20);
    let options = ClusterOptions { poll_timeout, ..options("a", vec![peer("b", &server.url())]) };
    let cluster = start(options, || serving(vec![]));
    peer_when(&cluster, is_serving).await;
    is_paused.store(true, Ordering::Relaxed);
    let failed = peer_when(&cluster, |peer| peer.error.is_some()).await;
    assert_eq!(failed.status, Status::Serving);
}

#[tokio::test]
async fn a_peer_that_refuses_connections_is_down_with_the_reason() {
    let server = serve_polls(start_target("b", || serving(vec![]))).await;
    let url = server.url();
    server.stop().await;
    let cluster = start(options("a", vec![peer("b", &url)]), || serving(vec![]));
    assert_eq!(cluster.peers()[0].status, Status::Down);
    assert_eq!(cluster.peers()[0].error.as_deref(), Some(r#"peer "b" has not answered yet"#));
    let error = error_of_peer(&cluster).await;
    assert!(error.starts_with(r#"peer "b" does not answer: could not connect"#), "{error}");
    assert!(cluster.peers()[0].report.is_none());
}

#[tokio::test]
async fn nodes_with_different_secrets_say_so_on_both_sides_and_log_it_once() {
    let log = LogCounter::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let a_cell = Arc::new(std::sync::OnceLock::<Arc<Cluster>>::new());
    let served = a_cell.clone();
    let a_server = Server::start(move |request| {
        let response = answer_poll(served.get().unwrap(), request.headers());
        async move { Ok(response) }
    })
    .await;
    let secret = ClusterSecret::new("the secret of another cluster").unwrap();
    let b_options = ClusterOptions { secret, ..options("b", vec![peer("a", &a_server.url())]) };
    let b_cell = Arc::new(std::sync::OnceLock::<Arc<Cluster>>::new());
    let served = b_cell.clone();
    let b_server = Server::start(move |request| {
        let response = answer_poll(served.get().unwrap(), request.headers());
        async move { Ok(response) }
    })
    .await;
    let a = start_poller(&b_server);
    let b = start(b_options, || serving(vec![]));
    a_cell.set(a.clone()).unwrap();
    b_cell.set(b.clone()).unwrap();
    let a_error = error_of_peer(&a).await;
    let b_error = error_of_peer(&b).await;
    assert_eq!(a_error, r#"peer "b" rejected the signature: the cluster secrets differ"#);
    assert_eq!(b_error, r#"peer "a" rejected the signature: the cluster secrets differ"#);
    assert_eq!((a.peers()[0].status, b.peers()[0].status), (Status::Down, Status::Down));
    let polls = a_server.requests() + b_server.requests();
    while a_server.requests() + b_server.requests() < polls + 20 {
        yield_now().await;
    }
    // Each node logs that its poll was rejected, and that it rejected a poll.
    assert_eq!(log.warnings(), 4);
}

#[tokio::test]
async fn a_wrong_url_is_named() {
    let server = serve_polls(start_target("c", || serving(vec![]))).await;
    let error = error_of_peer(&start_poller(&server)).await;
    assert_eq!(error, format!(r#"peer "b" is not at {}: the node there has another name"#, server.url()));
    let server = Server::start(|_| async {
        let mut response = http::Response::new(full("no such route"));
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        Ok(response)
    });
    let server = server.await;
    let error = error_of_peer(&start_poller(&server)).await;
    assert_eq!(error, format!(r#"peer "b" is not at {}: no cluster is configured there"#, server.url()));
}

#[tokio::test]
async fn a_restarted_peer_is_known_by_its_new_boot() {
    let running = Arc::new(Mutex::new(start_target("b", || serving(vec![]))));
    let served = running.clone();
    let server = Server::start(move |request| {
        let response = answer_poll(&served.lock(), request.headers());
        async move { Ok(response) }
    })
    .await;
    let cluster = start_poller(&server);
    let first = peer_when(&cluster, is_serving).await.report.unwrap();
    let newer = |peer: &PeerSnapshot| peer.report.as_ref().is_some_and(|report| 2 <= report.sequence);
    peer_when(&cluster, newer).await;
    *running.lock() = start_target("b", || serving(vec![]));
    let boot = |peer: &PeerSnapshot| peer.report.as_ref().map(|report| report.boot);
    let restarted = peer_when(&cluster, |peer| boot(peer) != Some(first.boot)).await;
    assert_eq!((restarted.status, restarted.error), (Status::Serving, None));
}

#[tokio::test]
async fn at_most_one_poll_of_a_peer_is_open() {
    let open = Arc::new(AtomicUsize::new(0));
    let open_max = Arc::new(AtomicUsize::new(0));
    let counted = open_max.clone();
    let target = start_target("b", || serving(vec![]));
    let server = Server::start(move |request| {
        counted.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let response = answer_poll(&target, request.headers());
        let open = open.clone();
        async move {
            // Longer than the interval between polls.
            tokio::time::sleep(Duration::from_millis(10)).await;
            open.fetch_sub(1, Ordering::Relaxed);
            Ok(response)
        }
    })
    .await;
    let cluster = start_poller(&server);
    peer_when(&cluster, |peer| peer.report.as_ref().is_some_and(|report| 5 <= report.sequence)).await;
    assert_eq!(open_max.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_dropped_cluster_stops_its_polls() {
    let open = Arc::new(());
    let counted = open.clone();
    let server = Server::start(move |_| {
        let open = counted.clone();
        async move {
            core::future::pending::<()>().await;
            drop(open);
            Ok(http::Response::new(full("late")))
        }
    })
    .await;
    let without_polls = Arc::strong_count(&open);
    let cluster = start_poller(&server);
    while server.requests() == 0 {
        yield_now().await;
    }
    drop(cluster);
    while without_polls < Arc::strong_count(&open) {
        yield_now().await;
    }
    assert_eq!(server.requests(), 1);
}
