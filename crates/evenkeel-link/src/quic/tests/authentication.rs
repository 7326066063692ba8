//! Keys: which sites connect, and the errors of those that do not.

use std::sync::Arc;
use std::time::Duration;

use noq::crypto::rustls::QuicClientConfig;
use rustls::version::TLS13;

use super::log_lines::LogLines;
use super::sites::{RawClient, Sites, config, connect, identity, impatient, new_session, raw_endpoint};
use crate::flow::LaneSupport;
use crate::quic::error::ConnectError;
use crate::quic::hello::{Hello, PathPurpose};
use crate::quic::tls::{PROTOCOLS, PinnedPeer};

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn sites_that_know_each_other_connect() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(7)).await.unwrap();
    assert_eq!(near.session().id(), far.session().id());
    assert_eq!((far.path(), far.name()), (7, "wan"));
    assert_eq!(near.remote_address(), Some(sites.address));
}

#[tokio::test]
async fn a_client_with_another_key_is_refused_on_both_sides_with_the_fingerprints() {
    let (log, _guard) = LogLines::record();
    let sites = Sites::start();
    let stranger = identity();
    let error = connect(sites.address, &config(&stranger, &sites.core), new_session(0)).await.unwrap_err();
    let stranger = stranger.fingerprint();
    let expected = sites.edge.fingerprint();
    let text = error.to_string();
    assert!(matches!(error, ConnectError::KeyRefused { own, .. } if own == stranger), "{error:?}");
    assert!(
        text.contains(&format!("127.0.0.1:{} does not accept our key {stranger}", sites.address.port())),
        "{text}"
    );
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let reason = format!("the peer presented {stranger} but {expected} is expected");
    assert!(lines[0].contains(&reason), "{lines:?}");
    assert!(sites.sessions.0.lock().is_empty());
}

#[tokio::test]
async fn a_server_with_another_key_is_refused_with_the_fingerprints() {
    let (log, _guard) = LogLines::record();
    let sites = Sites::start();
    let expected = identity();
    let error = connect(sites.address, &config(&sites.edge, &expected), new_session(0)).await.unwrap_err();
    let presented = sites.core.fingerprint();
    let expected = expected.fingerprint();
    let text = format!("the peer presented {presented} but {expected} is expected");
    assert_eq!(error.to_string(), text);
    while log.lines().is_empty() {
        tokio::task::yield_now().await;
    }
    let line = &log.lines()[0];
    assert!(line.contains(&format!("does not accept our key {presented}")), "{line}");
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let sites = Sites::start();
    let verifier = Arc::new(PinnedPeer::new(sites.core.fingerprint()));
    let mut tls = rustls::ClientConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = vec![PROTOCOLS[0].to_vec()];
    let error = raw_error(&sites, tls).await;
    assert!(matches!(error, ConnectError::KeyRefused { .. }), "{error:?}");
    assert!(sites.sessions.0.lock().is_empty());
}

#[tokio::test]
async fn a_peer_of_the_first_version_has_only_the_lanes_of_that_version() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(0)).await.unwrap();
    assert_eq!((near.peer_lanes(), far.peer_lanes()), (LaneSupport::All, LaneSupport::All));
    let mut tls = other_protocol(&sites);
    tls.alpn_protocols = vec![b"evenkeel-link/1".to_vec()];
    let quic = QuicClientConfig::try_from(tls).unwrap();
    let old = RawClient::connect_with(sites.address, noq::ClientConfig::new(Arc::new(quic))).await.unwrap();
    let hello = Hello { path: 1, name: String::new(), join: None, purpose: PathPurpose::Traffic };
    old.exchange(&hello.encode()).await;
    let far = sites.listener.accept().await.unwrap();
    assert_eq!(far.peer_lanes(), LaneSupport::StreamAndBonded);
}

#[tokio::test]
async fn a_client_of_another_protocol_is_refused() {
    let (log, _guard) = LogLines::record();
    let sites = Sites::start();
    let error = raw_error(&sites, other_protocol(&sites)).await;
    assert!(matches!(error, ConnectError::Version { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("does not speak version 1 of the link protocol"), "{text}");
    let line = &log.lines()[0];
    assert!(line.contains("does not speak version 1 of the link protocol"), "{line}");
}

#[tokio::test]
async fn a_server_of_another_protocol_is_named() {
    let sites = Sites::start();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(sites.core.certificate_chain(), sites.core.key())
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = noq::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let server = raw_endpoint(Some(noq::ServerConfig::with_crypto(Arc::new(tls))));
    let address = server.local_addr().unwrap();
    let accept = async { server.accept().await.unwrap().await };
    let (error, _) = tokio::join!(connect(address, &sites.edge_config, new_session(0)), accept);
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Version { .. }), "{error:?}");
}

#[tokio::test]
async fn a_silent_server_is_reported_as_down_or_blocked() {
    let sites = Sites::start();
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = connect(address, &impatient(&sites.edge_config, SHORT), new_session(0)).await.unwrap_err();
    let text = format!("no answer from {address} within 200ms; the path is down, or UDP is blocked");
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_server_that_completes_the_handshake_and_falls_silent_is_reported() {
    let sites = Sites::start();
    let server = raw_endpoint(Some(config(&sites.core, &sites.edge).endpoint()));
    let address = server.local_addr().unwrap();
    let accept = async { server.accept().await.unwrap().await };
    let edge_config = impatient(&sites.edge_config, SHORT);
    let (error, _connection) = tokio::join!(connect(address, &edge_config, new_session(0)), accept);
    let text = format!("{address} did not answer the hello within 200ms");
    assert_eq!(error.unwrap_err().to_string(), text);
}

#[tokio::test]
async fn an_address_without_a_route_is_named() {
    let sites = Sites::start();
    let endpoint = crate::quic::PathEndpoint::client("lo=[2001:db8::7]:7443".parse().unwrap()).unwrap();
    let error = endpoint.connect(&sites.edge_config, &new_session(0)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("no route to [2001:db8::7]:7443: "), "{text}");
}

#[tokio::test]
async fn a_name_is_resolved_at_every_connect_and_its_addresses_are_tried_in_turn() {
    let mut sites = Sites::start();
    let port = sites.address.port();
    // The name may have an IPv6 address first, where nobody listens.
    let config = impatient(&sites.edge_config, Duration::from_secs(1));
    let endpoint = crate::quic::PathEndpoint::client(format!("localhost:{port}").parse().unwrap()).unwrap();
    for _ in 0..2 {
        let near = endpoint.connect(&config, &new_session(0)).await.unwrap();
        assert_eq!(near.remote_address(), Some(sites.address));
        sites.listener.accept().await.unwrap();
    }
    let endpoint = crate::quic::PathEndpoint::client("nosuch.invalid:7443".parse().unwrap()).unwrap();
    let error = endpoint.connect(&config, &new_session(0)).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot resolve nosuch.invalid: "), "{error}");
}

#[tokio::test]
async fn a_path_that_was_silent_gets_another_socket() {
    let mut sites = Sites::start();
    let endpoint = super::sites::endpoint(sites.address);
    let config = &sites.edge_config;
    let first = endpoint.connect(config, &new_session(0)).await.unwrap();
    let far = sites.listener.accept().await.unwrap();
    let port = far.remote_address().unwrap().port();
    endpoint.mark_silent();
    let session = Some(first.session());
    let request = crate::quic::PathRequest { session, ..new_session(0) };
    let _second = endpoint.connect(config, &request).await.unwrap();
    let far = sites.listener.accept().await.unwrap();
    assert_ne!(far.remote_address().unwrap().port(), port);
}

/// Sends a valid hello over other TLS settings, and explains the error.
async fn raw_error(sites: &Sites, tls: rustls::ClientConfig) -> ConnectError {
    let tls = noq::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let error = match RawClient::connect_with(sites.address, tls).await {
        Err(error) => error,
        Ok(client) => {
            let hello = Hello { path: 0, name: String::new(), join: None, purpose: PathPurpose::Traffic };
            let (mut send, _recv) = client.connection.open_bi().await.unwrap();
            // The connection may be closed already.
            let _ = send.write_all(&hello.encode()).await;
            client.connection.closed().await
        }
    };
    ConnectError::explain(error, sites.address, sites.edge.fingerprint())
}

fn other_protocol(sites: &Sites) -> rustls::ClientConfig {
    let verifier = Arc::new(PinnedPeer::new(sites.core.fingerprint()));
    let mut tls = rustls::ClientConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(sites.edge.certificate_chain(), sites.edge.key())
        .unwrap();
    tls.alpn_protocols = vec![b"evenkeel-link/2".to_vec()];
    tls
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
