//! Sessions: their start, joins, and forged joins.

use super::sites::{RawClient, Sites, config, connect, new_session, raw_endpoint};
use crate::quic::endpoint::PathRequest;
use crate::quic::error::ConnectError;
use crate::quic::hello::{Answer, Hello, Join, PathPurpose, PathRejection, RejectionCode};
use crate::quic::session_key::{PathExport, ProofSide, SessionId, SessionKey};

#[tokio::test]
async fn later_paths_join_the_session_of_the_first() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    for path in 1..4 {
        let request = PathRequest { session: Some(first.session()), ..new_session(path) };
        let (near, far) = sites.connect(request).await.unwrap();
        assert_eq!(near.session().id(), first.session().id());
        assert_eq!(far.session().id(), first.session().id());
        assert_eq!(far.path(), path);
    }
    assert_eq!(sites.sessions.0.lock().len(), 1);
}

#[tokio::test]
async fn the_next_path_finds_the_session_even_if_the_driver_has_not_taken_the_first() {
    let sites = Sites::start();
    let first = connect(sites.address, &sites.edge_config, new_session(0)).await.unwrap();
    let request = PathRequest { session: Some(first.session()), ..new_session(1) };
    let second = connect(sites.address, &sites.edge_config, request).await.unwrap();
    assert_eq!(second.session().id(), first.session().id());
}

#[tokio::test]
async fn a_probe_of_a_session_is_welcomed_but_is_no_path() {
    let mut sites = Sites::start();
    let (first, _far_first) = sites.connect(new_session(0)).await.unwrap();
    let session = Some(first.session());
    let probe = PathRequest { session, purpose: PathPurpose::Probe, ..new_session(0) };
    let near = connect(sites.address, &sites.edge_config, probe).await.unwrap();
    near.send_datagram(vec![0; 64].into()).unwrap();
    let (_near, far) = sites.connect(PathRequest { session, ..new_session(1) }).await.unwrap();
    assert_eq!(far.path(), 1, "the probe is not accepted as a path");
    assert!(near.close_reason().is_none() && first.close_reason().is_none());
}

#[tokio::test]
async fn sessions_have_different_numbers() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let (second, _) = sites.connect(new_session(0)).await.unwrap();
    assert_ne!(first.session().id(), second.session().id());
}

#[tokio::test]
async fn an_unknown_session_is_refused_with_its_code() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    sites.sessions.0.lock().clear();
    let request = PathRequest { session: Some(first.session()), ..new_session(1) };
    let error = sites.connect(request).await.unwrap_err();
    assert_eq!(error.rejection().unwrap().code, RejectionCode::UnknownSession);
    let text =
        format!("{} refused the path: session {} is unknown here", sites.address, first.session().id());
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_replayed_join_is_refused() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let client = sites.connect_raw().await;
    let hello = join_hello(&client, first.session());
    assert!(matches!(client.exchange(&hello).await, Answer::Welcome(_)));
    sites.listener.accept().await.unwrap();
    let rejection = sites.connect_raw().await.rejection(&hello).await;
    assert_eq!(rejection.code, RejectionCode::WrongProof);
}

#[tokio::test]
async fn a_join_with_the_key_of_another_session_is_refused() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let (second, _) = sites.connect(new_session(0)).await.unwrap();
    let client = sites.connect_raw().await;
    let join = Join {
        session: first.session().id(),
        proof: second
            .session()
            .prove(ProofSide::Connecting, &PathExport::new(&client.connection, 1).unwrap()),
    };
    let hello = Hello { path: 1, name: String::new(), join: Some(join), purpose: PathPurpose::Traffic };
    let rejection = client.rejection(&hello.encode()).await;
    let text = format!("the proof for session {} is wrong", first.session().id());
    assert_eq!(rejection, PathRejection::new(RejectionCode::WrongProof, text));
}

#[tokio::test]
async fn a_proof_for_another_path_is_refused() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let client = sites.connect_raw().await;
    let mut hello = join_hello(&client, first.session());
    hello[2] += 1;
    assert_eq!(client.rejection(&hello).await.code, RejectionCode::WrongProof);
}

#[tokio::test]
async fn a_server_that_does_not_know_the_session_is_not_believed() {
    let mut sites = Sites::start();
    let (first, _) = sites.connect(new_session(0)).await.unwrap();
    let (second, _) = sites.connect(new_session(0)).await.unwrap();
    let named = first.session().id();
    for (session, signer, reason) in [
        (named, second.session(), "it did not prove that it knows the session"),
        (second.session().id(), first.session(), "it named another session"),
    ] {
        let server = raw_endpoint(Some(config(&sites.core, &sites.edge).endpoint()));
        let address = server.local_addr().unwrap();
        let request = PathRequest { session: Some(first.session()), ..new_session(1) };
        let impostor = answer(&server, session, signer);
        let (result, _connection) = tokio::join!(connect(address, &sites.edge_config, request), impostor);
        let error = result.unwrap_err();
        assert!(
            matches!(error, ConnectError::BadWelcome { reason: given, .. } if given == reason),
            "{error}"
        );
    }
}

/// Welcomes a client to `session` with a proof of another key.
async fn answer(server: &noq::Endpoint, session: SessionId, signer: &SessionKey) -> noq::Connection {
    let connection = server.accept().await.unwrap().await.unwrap();
    let (mut send, mut recv) = connection.accept_bi().await.unwrap();
    recv.read_to_end(1024).await.unwrap();
    let export = PathExport::new(&connection, 1).unwrap();
    let welcome = Join { session, proof: signer.prove(ProofSide::Accepting, &export) };
    send.write_all(&Answer::Welcome(welcome).encode()).await.unwrap();
    send.finish().unwrap();
    connection
}

/// Returns a valid join of path 1.
fn join_hello(client: &RawClient, session: &SessionKey) -> Vec<u8> {
    let export = PathExport::new(&client.connection, 1).unwrap();
    let join = Join { session: session.id(), proof: session.prove(ProofSide::Connecting, &export) };
    Hello { path: 1, name: "wan1".to_owned(), join: Some(join), purpose: PathPurpose::Traffic }.encode()
}
