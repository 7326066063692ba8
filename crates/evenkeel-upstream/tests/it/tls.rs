//! Nodes behind TLS.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_upstream::BadRoots;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A certificate for `localhost`, as a file and as a server's.
struct Identity {
    file: PathBuf,
    server: Arc<ServerConfig>,
}

fn identity(test: &str) -> Identity {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("evenkeel-llm-{test}-{}.pem", std::process::id()));
    std::fs::write(&file, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    Identity { file, server: Arc::new(server) }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Answers every connection's requests behind TLS, and tells where.
async fn serve(identity: &Identity, name: &str) -> Origin {
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http://127.0.0.1", &format!("https://{name}"))).unwrap();
    let acceptor = TlsAcceptor::from(identity.server.clone());
    tokio::spawn(async move {
        loop {
            let Ok(mut stream) = acceptor.accept(stub.accept().await.stream).await else { continue };
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request).await, Ok(1..)) {
                stream.write_all(stub::whole("safe").as_bytes()).await.unwrap();
            }
        }
    });
    origin
}

#[tokio::test]
async fn a_node_is_believed_by_an_authority_from_a_file() {
    let identity = identity("believed");
    let origin = serve(&identity, "localhost").await;
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let upstream = Upstream::new(defaults(), roots);
    assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("safe"));
    assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("safe"));
    assert_eq!(upstream.stats().connections_reused, 1);
}

#[tokio::test]
async fn a_node_that_nobody_vouches_for_is_not_asked() {
    let identity = identity("unbelieved");
    let origin = serve(&identity, "localhost").await;
    let answer = read(&upstream(defaults()), &origin).await;
    assert!(matches!(answer, Err(UpstreamError::Tls { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_node_under_another_name_is_not_asked() {
    let identity = identity("misnamed");
    let origin = serve(&identity, "127.0.0.1").await;
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let answer = read(&Upstream::new(defaults(), roots), &origin).await;
    assert!(matches!(answer, Err(UpstreamError::Tls { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_cut_unless_the_node_says_goodbye() {
    let identity = identity("goodbye");
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http://127.0.0.1", "https://localhost")).unwrap();
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let upstream = Upstream::new(defaults(), roots);
    for goodbye in [true, false] {
        let serving = async {
            let acceptor = TlsAcceptor::from(identity.server.clone());
            let mut stream = acceptor.accept(stub.accept().await.stream).await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\neverything").await.unwrap();
            if goodbye {
                stream.shutdown().await.unwrap();
            }
        };
        let ((), answer) = join!(serving, read(&upstream, &origin));
        match goodbye {
            true => assert_eq!(answer.as_deref(), Ok("everything")),
            false => assert!(matches!(answer, Err(UpstreamError::Cut { .. })), "{answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_node_that_does_not_speak_tls_is_not_asked() {
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http:", "https:")).unwrap();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    };
    let upstream = upstream(defaults());
    let ((), answer) = join!(serving, read(&upstream, &origin));
    assert!(matches!(answer, Err(UpstreamError::Tls { .. })), "{answer:?}");
}

#[test]
fn a_file_without_authorities_is_refused() {
    let file = std::env::temp_dir().join(format!("evenkeel-llm-empty-{}.pem", std::process::id()));
    std::fs::write(&file, "nothing").unwrap();
    let refused = TlsRoots::default().with_file(&file).err();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(refused, Some(BadRoots { path: file.clone(), error: "holds no certificate".to_owned() }));
    assert_eq!(TlsRoots::default().with_file(&file).err().map(|bad| bad.path), Some(file));
}
