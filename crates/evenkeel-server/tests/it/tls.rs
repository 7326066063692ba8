//! TLS with self-signed certificates.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_server::tls::{Tls, TlsError};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{Setup, TestServer};

/// A temporary directory with a certificate and its key.
struct CertDir(PathBuf);

impl CertDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-server-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn cert(&self) -> PathBuf {
        self.0.join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }

    fn write(&self, pair: &CertifiedKey<KeyPair>) {
        fs::write(self.cert(), pair.cert.pem()).unwrap();
        fs::write(self.key(), pair.signing_key.serialize_pem()).unwrap();
    }

    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(&self.cert(), &self.key())
    }
}

impl Drop for CertDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn self_signed() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// Connects as a client that trusts this certificate only.
async fn connect(
    server: &TestServer,
    trusted: &CertificateDer<'static>,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, server.connect().await).await
}

async fn probe(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = String::new();
    while !response.ends_with("ok\n") {
        response.push(char::from(stream.read_u8().await.unwrap()));
    }
    response
}

#[tokio::test]
async fn a_reload_changes_the_certificate_and_drops_no_connection() {
    let files = CertDir::new("reload");
    let old = self_signed();
    let new = self_signed();
    files.write(&old);
    let tls = Arc::new(files.load().unwrap());
    let server = TestServer::with(Setup { tls: Some(tls.clone()), ..Setup::default() }).await;
    let mut before = connect(&server, old.cert.der(), &["http/1.1"]).await.unwrap();
    assert!(probe(&mut before).await.starts_with("HTTP/1.1 200"));
    files.write(&new);
    tls.reload().unwrap();
    assert!(connect(&server, old.cert.der(), &[]).await.is_err(), "the old certificate is still in use");
    assert!(
        probe(&mut connect(&server, new.cert.der(), &[]).await.unwrap()).await.starts_with("HTTP/1.1 200")
    );
    assert!(probe(&mut before).await.starts_with("HTTP/1.1 200"));
    fs::write(files.cert(), "nonsense").unwrap();
    assert!(tls.reload().is_err());
    assert!(connect(&server, new.cert.der(), &[]).await.is_ok(), "a failed reload removed the certificate");
}

#[tokio::test]
async fn alpn_negotiates_http2() {
    let files = CertDir::new("alpn");
    let own = self_signed();
    files.write(&own);
    let server =
        TestServer::with(Setup { tls: Some(Arc::new(files.load().unwrap())), ..Setup::default() }).await;
    let stream = connect(&server, own.cert.der(), &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let request =
        http::Request::get("https://localhost/livez").body(evenkeel_server::body::full("")).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_client_without_tls_is_disconnected_and_others_are_served() {
    let files = CertDir::new("plain");
    let own = self_signed();
    files.write(&own);
    let server =
        TestServer::with(Setup { tls: Some(Arc::new(files.load().unwrap())), ..Setup::default() }).await;
    assert!(!server.request("GET /livez", "").await.contains("HTTP"), "clear text got a response");
    assert!(connect(&server, own.cert.der(), &[]).await.is_ok());
}

#[test]
fn an_unusable_file_is_named_in_the_error() {
    let files = CertDir::new("errors");
    let own = self_signed();
    let other = self_signed();
    let error = || files.load().unwrap_err();
    assert!(matches!(error(), TlsError::File { path, .. } if path == files.cert()));
    files.write(&own);
    assert!(files.load().is_ok());
    fs::write(files.key(), other.signing_key.serialize_pem()).unwrap();
    assert!(matches!(
        error(),
        TlsError::Mismatch { cert, key } if cert == files.cert() && key == files.key()
    ));
    fs::write(files.key(), own.cert.pem()).unwrap();
    assert!(matches!(error(), TlsError::Empty { path } if path == files.key()));
    fs::remove_file(files.key()).unwrap();
    assert!(matches!(error(), TlsError::File { path, .. } if path == files.key()));
    fs::write(files.cert(), "").unwrap();
    assert!(matches!(error(), TlsError::Empty { path } if path == files.cert()));
}
