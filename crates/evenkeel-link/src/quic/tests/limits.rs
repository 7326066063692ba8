//! Limits on peers, with and without the right key.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::log_lines::LogLines;
use super::sites::{RawClient, Sites, config, connect, identity, new_session};
use crate::quic::endpoint::PathRequest;
use crate::quic::error::ConnectError;
use crate::quic::hello::{Answer, Hello, MESSAGE_LEN_MAX, PathPurpose, RejectionCode};

#[tokio::test]
async fn a_hello_of_another_version_is_refused_with_both_versions() {
    let sites = Sites::start();
    let mut hello = hello(0);
    hello[1] = 2;
    let rejection = sites.connect_raw().await.rejection(&hello).await;
    assert_eq!(rejection.code, RejectionCode::Version);
    assert_eq!(rejection.text, "this side speaks version 1 of the link protocol, the peer version 2");
}

#[tokio::test]
async fn malformed_hellos_are_refused() {
    let (log, _guard) = LogLines::record();
    let sites = Sites::start();
    let valid = hello(0);
    let mut trailing = valid.clone();
    trailing.push(0);
    let mut unknown_kind = valid.clone();
    *unknown_kind.last_mut().unwrap() = 3;
    let mut cut_join = valid.clone();
    *cut_join.last_mut().unwrap() = 1;
    let long_name = [&[0, 1, 0, 65][..], &[b'n'; 65], &[0]].concat();
    for (hello, text) in [
        (&[][..], "the message is too short"),
        (&valid[..valid.len() - 1], "the message is too short"),
        (&cut_join, "the message is too short"),
        (&trailing, "the message is too long"),
        (&unknown_kind, "the hello has an unknown kind"),
        (&long_name, "the name of the path is too long"),
        (&[0; MESSAGE_LEN_MAX + 1], "the hello is too long"),
    ] {
        let rejection = sites.connect_raw().await.rejection(hello).await;
        assert_eq!((rejection.code, rejection.text.as_str()), (RejectionCode::Malformed, text));
    }
    assert!(sites.sessions.0.lock().is_empty());
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
}

#[tokio::test]
async fn a_path_has_a_number_below_128() {
    let mut sites = Sites::start();
    sites.connect(new_session(127)).await.unwrap();
    let error = sites.connect(new_session(128)).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{} refused the path: path 128 exceeds 127", sites.address));
}

#[tokio::test]
async fn a_peer_cannot_forge_log_lines_by_its_name() {
    let sites = Sites::start();
    let mut listener = sites.listener;
    let client = RawClient::connect(sites.address, &sites.edge_config).await.unwrap();
    let hello =
        Hello { path: 0, name: "a\nb\u{1b}[0m".to_owned(), join: None, purpose: PathPurpose::Traffic };
    client.exchange(&hello.encode()).await;
    assert_eq!(listener.accept().await.unwrap().name(), "a\u{fffd}b\u{fffd}[0m");
}

#[tokio::test]
async fn no_flow_data_precedes_the_hello() {
    let mut sites = Sites::start();
    let client = sites.connect_raw().await;
    let opened = timeout(Duration::from_millis(50), client.connection.open_uni()).await;
    assert!(opened.is_err(), "a stream was opened before the hello");
    assert!(matches!(client.exchange(&hello(0)).await, Answer::Welcome(_)));
    let _far = sites.listener.accept().await.unwrap();
    client.connection.open_uni().await.unwrap();
    let opened = timeout(Duration::from_millis(50), client.connection.open_bi()).await;
    assert!(opened.is_err(), "a second bidirectional stream was opened");
}

#[tokio::test]
async fn connections_without_a_hello_are_limited_per_source() {
    let sites = Sites::start();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(sites.connect_raw().await);
    }
    let error = connect(sites.address, &sites.edge_config, new_session(0)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Busy { .. }), "{error:?}");
    let refused = clients.pop().unwrap().rejection(b"").await;
    assert_eq!(refused.code, RejectionCode::Malformed);
    while connect(sites.address, &sites.edge_config, new_session(0)).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn two_hundred_strangers_cost_one_log_line_and_no_lasting_memory() {
    let (log, _guard) = LogLines::record();
    let mut sites = Sites::start();
    let stranger = config(&identity(), &sites.core);
    let mut attempts = JoinSet::new();
    for _ in 0..200 {
        let stranger = stranger.clone();
        let address = sites.address;
        attempts.spawn(async move { connect(address, &stranger, new_session(0)).await.unwrap_err() });
    }
    let errors = attempts.join_all().await;
    let refused = errors.iter().filter(|error| matches!(error, ConnectError::KeyRefused { .. })).count();
    let busy = errors.iter().filter(|error| matches!(error, ConnectError::Busy { .. })).count();
    assert_eq!(refused + busy, 200, "{errors:?}");
    assert!(0 < refused);
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
    assert!(sites.sessions.0.lock().is_empty());
    sites.connect(new_session(0)).await.unwrap();
}

#[tokio::test]
async fn probes_of_routes_are_limited() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let probe = PathRequest { session: Some(first.session()), purpose: PathPurpose::Probe, ..new_session(0) };
    let mut probes = Vec::new();
    let error = loop {
        match connect(sites.address, &sites.edge_config, probe).await {
            Ok(connection) => probes.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!(probes.len(), 64);
    assert_eq!(error.rejection().unwrap().code, RejectionCode::Busy);
}

fn hello(path: u8) -> Vec<u8> {
    Hello { path, name: "wan".to_owned(), join: None, purpose: PathPurpose::Traffic }.encode()
}
