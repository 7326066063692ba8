//! Connections over TLS.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_upstream::TlsRootsError;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A certificate for `localhost`, as a PEM file and in a server's configuration.
pub(crate) struct Identity {
    pub(crate) file: PathBuf,
    server: Arc<ServerConfig>,
}

pub(crate) fn identity(test: &str) -> Identity {
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = std::env::temp_dir().join(format!("evenkeel-upstream-{test}-{}.pem", std::process::id()));
    std::fs::write(&file, generated.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der()));
    let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![generated.cert.der().clone()], key)
        .unwrap();
    Identity { file, server: Arc::new(server) }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Starts a TLS server; returns its origin.
pub(crate) async fn serve(identity: &Identity, name: &str) -> Origin {
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http://127.0.0.1", &format!("https://{name}"))).unwrap();
    let acceptor = TlsAcceptor::from(identity.server.clone());
    tokio::spawn(async move {
        loop {
            let Ok(mut stream) = acceptor.accept(stub.accept().await.stream).await else { continue };
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request).await, Ok(1..)) {
                stream.write_all(stub::ok_response("safe").as_bytes()).await.unwrap();
            }
        }
    });
    origin
}

#[tokio::test]
async fn a_certificate_from_a_file_is_trusted() {
    let identity = identity("trusted");
    let origin = serve(&identity, "localhost").await;
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let upstream = Upstream::new(defaults(), roots);
    assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("safe"));
    assert_eq!(read(&upstream, &origin).await.as_deref(), Ok("safe"));
    assert_eq!(upstream.stats().connections_reused, 1);
}

#[tokio::test]
async fn an_untrusted_certificate_is_rejected() {
    let identity = identity("untrusted");
    let origin = serve(&identity, "localhost").await;
    let response = read(&upstream(defaults()), &origin).await;
    assert!(matches!(response, Err(UpstreamError::Tls { .. })), "{response:?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_rejected() {
    let identity = identity("misnamed");
    let origin = serve(&identity, "127.0.0.1").await;
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let response = read(&Upstream::new(defaults(), roots), &origin).await;
    assert!(matches!(response, Err(UpstreamError::Tls { .. })), "{response:?}");
}

#[tokio::test]
async fn over_tls_a_body_that_ends_with_its_connection_needs_close_notify() {
    let identity = identity("close-notify");
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http://127.0.0.1", "https://localhost")).unwrap();
    let roots = TlsRoots::default().with_file(&identity.file).unwrap();
    let upstream = Upstream::new(defaults(), roots);
    for close_notify in [true, false] {
        let serving = async {
            let acceptor = TlsAcceptor::from(identity.server.clone());
            let mut stream = acceptor.accept(stub.accept().await.stream).await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\neverything").await.unwrap();
            if close_notify {
                stream.shutdown().await.unwrap();
            }
        };
        let ((), response) = join!(serving, read(&upstream, &origin));
        match close_notify {
            true => assert_eq!(response.as_deref(), Ok("everything")),
            false => assert!(matches!(response, Err(UpstreamError::Truncated { .. })), "{response:?}"),
        }
    }
}

#[tokio::test]
async fn a_peer_without_tls_is_rejected() {
    let stub = Stub::start().await;
    let origin = Origin::parse(&stub.url().replace("http:", "https:")).unwrap();
    let serving = async {
        let mut peer = stub.accept().await;
        peer.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    };
    let upstream = upstream(defaults());
    let ((), response) = join!(serving, read(&upstream, &origin));
    assert!(matches!(response, Err(UpstreamError::Tls { .. })), "{response:?}");
}

#[test]
fn a_file_without_certificates_is_rejected() {
    let file = std::env::temp_dir().join(format!("evenkeel-upstream-empty-{}.pem", std::process::id()));
    std::fs::write(&file, "nothing").unwrap();
    let rejected = TlsRoots::default().with_file(&file).err();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        rejected,
        Some(TlsRootsError { path: file.clone(), error: "contains no certificate".to_owned() })
    );
    assert_eq!(TlsRoots::default().with_file(&file).err().map(|error| error.path), Some(file));
}
