//! Options with which a cluster does not start.

use evenkeel_cluster::{ClusterStartError, NODE_NAME_BYTES_MAX, PEERS_MAX};

use super::*;

fn start_error(options: ClusterOptions) -> ClusterStartError {
    let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
    Cluster::start(options, upstream, || serving(vec![])).unwrap_err()
}

#[tokio::test]
async fn a_node_is_not_its_own_peer() {
    let error = start_error(options("a", vec![peer("a", "http://127.0.0.1:1")]));
    assert_eq!(error.to_string(), r#"node "a" is its own peer; remove it from its list of peers"#);
}

#[tokio::test]
async fn two_peers_have_neither_the_same_name_nor_the_same_url() {
    let error = start_error(options("a", vec![peer("b", "http://x:1"), peer("b", "http://x:2")]));
    assert_eq!(error.to_string(), r#"two peers are called "b""#);
    let error = start_error(options("a", vec![peer("b", "http://x:1"), peer("c", "http://X:1/")]));
    assert_eq!(error.to_string(), r#"peers "b" and "c" have the same URL, http://x:1"#);
    let other_address = PeerOptions { url: "http://x:1/".to_owned(), ..peer("c", "http://10.0.0.1:1") };
    let error = start_error(options("a", vec![peer("b", "http://x:1"), other_address]));
    assert_eq!(error.to_string(), r#"peers "b" and "c" have the same URL, http://x:1"#);
}

#[tokio::test]
async fn a_name_that_no_header_can_carry_is_refused() {
    for name in ["", "two words", "b\n", "münchen", &"x".repeat(NODE_NAME_BYTES_MAX + 1)] {
        assert!(matches!(start_error(options(name, vec![])), ClusterStartError::Name { .. }), "{name:?}");
        let peers = vec![peer(name, "http://x:1")];
        assert!(matches!(start_error(options("a", peers)), ClusterStartError::Name { .. }), "{name:?}");
    }
}

#[tokio::test]
async fn more_peers_than_the_limit_are_refused() {
    let peers =
        |count| (0..count).map(|n| peer(&format!("n{n}"), &format!("http://127.0.0.1:1/{n}"))).collect();
    assert_eq!(
        start_error(options("a", peers(PEERS_MAX + 1))),
        ClusterStartError::TooManyPeers { peers: PEERS_MAX + 1 }
    );
    assert_eq!(start(options("a", peers(PEERS_MAX)), || serving(vec![])).peers().len(), PEERS_MAX);
}

#[tokio::test]
async fn intervals_outside_of_their_range_are_refused() {
    let too_often = ClusterOptions { poll_interval: Duration::ZERO, ..options("a", vec![]) };
    assert_eq!(start_error(too_often), ClusterStartError::Interval);
    let too_long = ClusterOptions { ticket_lifetime: NEVER * 2, ..options("a", vec![]) };
    assert_eq!(start_error(too_long), ClusterStartError::Interval);
}

#[test]
fn a_cluster_needs_a_runtime() {
    assert_eq!(start_error(options("a", vec![])), ClusterStartError::NoRuntime);
}

#[tokio::test]
async fn nodes_with_the_same_secret_derive_the_same_keys() {
    let a = start_target("a", || serving(vec![]));
    let b = start_target("b", || serving(vec![]));
    assert_eq!(a.node(), "a");
    assert_eq!(a.secret_key(b"transactions"), b.secret_key(b"transactions"));
    assert_ne!(a.secret_key(b"transactions"), a.secret_key(b"receipts"));
}
