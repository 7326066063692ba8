//! Peers that lie, and attackers between two nodes.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use evenkeel_cluster::{POOLS_MAX, REPORT_BYTES_MAX, TEXT_BYTES_MAX};
use http::{HeaderMap, HeaderValue, Response};
use parking_lot::Mutex;

use super::*;
use crate::log_counter::LogCounter;
use crate::node::full;

/// Returns the reason why a report is not believed, although it is signed.
async fn rejection_of(report: NodeReport) -> String {
    let server = serve_polls(start_target("b", move || report.clone())).await;
    let cluster = start_poller(&server);
    let error = error_of_peer(&cluster).await;
    assert_eq!(cluster.peers()[0].status, Status::Down);
    error
}

#[tokio::test]
async fn figures_that_cannot_be_true_are_not_believed() {
    let stats = [
        NodeStats { open_conns: 3, idle_conns: 4, ..busy_stats() },
        NodeStats { error_rate_1m: 1.5, ..busy_stats() },
        NodeStats { error_rate_1m: -0.1, ..busy_stats() },
        NodeStats { p95_latency_ms: -1.0, ..busy_stats() },
        NodeStats { p95_latency_ms: 1e12, ..busy_stats() },
        NodeStats { p95_latency_ms: f64::NAN, ..busy_stats() },
        NodeStats { latency_estimate_ms: f64::INFINITY, ..busy_stats() },
    ];
    for stats in stats {
        let error = rejection_of(serving(vec![pool("good", busy_stats()), pool("bad", stats)])).await;
        assert!(error.starts_with(r#"peer "b" is not believed: "#), "{error}");
    }
    let lie = NodeStats { open_conns: 3, idle_conns: 4, ..busy_stats() };
    let error = rejection_of(serving(vec![pool("bad", lie)])).await;
    assert_eq!(
        error,
        r#"peer "b" is not believed: pool 0 of the report is not valid: it has more idle connections than open ones"#
    );
}

#[tokio::test]
async fn reports_beyond_the_limits_are_not_believed() {
    let pools = |count: usize| (0..count).map(|n| pool(&n.to_string(), busy_stats())).collect();
    let error = rejection_of(serving(pools(POOLS_MAX + 1))).await;
    assert!(error.ends_with("the report has 257 pools, the limit is 256"), "{error}");
    let long_name = pool(&"x".repeat(TEXT_BYTES_MAX + 1), busy_stats());
    let error = rejection_of(serving(vec![long_name])).await;
    assert!(error.ends_with("its name is empty or too long"), "{error}");
    let unknown_database = PoolReport { database_id: String::new(), ..pool("shop", busy_stats()) };
    let error = rejection_of(serving(vec![unknown_database])).await;
    assert!(error.ends_with("its database id is empty or too long"), "{error}");
    let error = rejection_of(serving(vec![pool("shop", busy_stats()), pool("shop", busy_stats())])).await;
    assert!(error.ends_with("its name is not unique"), "{error}");
    let huge = pool(&"x".repeat(REPORT_BYTES_MAX), busy_stats());
    let error = rejection_of(serving(vec![huge])).await;
    assert_eq!(error, r#"peer "b" sent a report of more than 262144 bytes"#);
}

#[tokio::test]
async fn a_report_at_the_limits_is_believed() {
    let longest = |n: usize| format!("{n:0>width$}", width = TEXT_BYTES_MAX);
    let stats = NodeStats { open_conns: 4, idle_conns: 4, error_rate_1m: 1.0, ..busy_stats() };
    let pools: Vec<_> = (0..POOLS_MAX).map(|n| pool(&longest(n), stats)).collect();
    let server = serve_polls(start_target("b", move || serving(pools.clone()))).await;
    let cluster = start_poller(&server);
    assert_eq!(peer_when(&cluster, is_serving).await.report.unwrap().pools.len(), POOLS_MAX);
}

/// Returns the reason why an answer is not believed that `change` has changed on its way.
async fn rejection_of_changed(change: fn(&mut Response<Bytes>)) -> String {
    let target = start_target("b", || serving(vec![pool("shop", busy_stats())]));
    let server = Server::start(move |request| {
        let mut response = target.serve_poll(request.headers()).unwrap();
        change(&mut response);
        async move { Ok(response.map(full)) }
    })
    .await;
    let cluster = start_poller(&server);
    let error = error_of_peer(&cluster).await;
    assert!(cluster.peers()[0].report.is_none());
    error
}

#[tokio::test]
async fn a_report_that_was_changed_on_its_way_is_not_believed() {
    let error = rejection_of_changed(|response| {
        let text = String::from_utf8(response.body().to_vec()).unwrap();
        *response.body_mut() = text.replace("\"runningSql\":5", "\"runningSql\":0").into();
    });
    let wrong_signature = r#"peer "b" sent a report with a wrong signature: the cluster secrets differ"#;
    assert_eq!(error.await, wrong_signature);
    let error = rejection_of_changed(|response| {
        response.headers_mut().insert("x-evenkeel-signature", HeaderValue::from_static("AAAA"));
    });
    assert_eq!(error.await, wrong_signature);
    let error = rejection_of_changed(|response| {
        response.headers_mut().remove("x-evenkeel-signature");
    });
    assert_eq!(error.await, r#"peer "b" sent a report without a signature"#);
    let error = rejection_of_changed(|response| *response.body_mut() = Bytes::new());
    assert_eq!(error.await, wrong_signature);
}

/// Returns the reason why the second answer is not believed; `replay` makes it of the first one and the nonce.
async fn rejection_of_replayed(replay: fn(Response<Bytes>, &HeaderValue) -> Response<Bytes>) -> String {
    let target = start_target("b", || serving(vec![]));
    let recorded = Arc::new(Mutex::new(None::<Response<Bytes>>));
    let server = Server::start(move |request| {
        let mut recorded = recorded.lock();
        let response = match &*recorded {
            Some(first) => replay(first.clone(), &request.headers()["x-evenkeel-nonce"]),
            None => recorded.insert(target.serve_poll(request.headers()).unwrap()).clone(),
        };
        async move { Ok(response.map(full)) }
    })
    .await;
    let cluster = start_poller(&server);
    peer_when(&cluster, is_serving).await;
    let error = error_of_peer(&cluster).await;
    assert_eq!(cluster.peers()[0].status, Status::Down);
    assert_eq!(cluster.peers()[0].report.as_ref().unwrap().sequence, 0);
    error
}

#[tokio::test]
async fn a_replayed_report_is_not_believed() {
    let error = rejection_of_replayed(|first, _| first).await;
    assert_eq!(error, r#"peer "b" sent the answer to another poll"#);
    let error = rejection_of_replayed(|mut first, nonce| {
        first.headers_mut().insert("x-evenkeel-nonce", nonce.clone());
        first
    });
    assert!(error.await.contains("wrong signature"));
}

#[tokio::test]
async fn a_report_for_another_node_is_not_believed() {
    // An attacker passes the polls of "a" on to "c", which has the same secret.
    let c = start_target("c", || serving(vec![]));
    let polls = Arc::new(AtomicUsize::new(0));
    let passed = polls.clone();
    let server = Server::start(move |request| {
        passed.fetch_add(1, Ordering::Relaxed);
        let mut headers = request.headers().clone();
        headers.insert("x-evenkeel-target", HeaderValue::from_static("c"));
        let response = answer_poll(&c, &headers);
        async move { Ok(response) }
    })
    .await;
    let error = error_of_peer(&start_poller(&server)).await;
    assert_eq!(error, r#"peer "b" rejected the signature: the cluster secrets differ"#);
    assert!(0 < polls.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_poll_without_a_header_is_malformed() {
    let target = start_target("b", || serving(vec![]));
    let error = target.serve_poll(&HeaderMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "the poll has no valid header x-evenkeel-node");
    assert_eq!(error.status(), http::StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn forged_polls_cause_one_warning_also_between_malformed_and_misdirected_ones() {
    let recorded = Arc::new(Mutex::new(None::<HeaderMap>));
    let last = recorded.clone();
    let server = Server::start(move |request| {
        *last.lock() = Some(request.headers().clone());
        async { Ok(Response::new(full(""))) }
    })
    .await;
    error_of_peer(&start(options("b", vec![peer("c", &server.url())]), || serving(vec![]))).await;
    let misdirected = recorded.lock().take().unwrap();
    let mut forged = misdirected.clone();
    forged.insert("x-evenkeel-target", HeaderValue::from_static("a"));
    let mut malformed = forged.clone();
    malformed.remove("x-evenkeel-nonce");
    let node = start_poller(&server);
    let log = LogCounter::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for (poll, status) in
        [(&forged, 403), (&malformed, 400), (&forged, 403), (&misdirected, 421), (&forged, 403)]
    {
        assert_eq!(node.serve_poll(poll).unwrap_err().status(), status);
    }
    assert_eq!(log.warnings(), 1);
}
