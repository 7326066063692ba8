//! TLS with certificates made for the test.

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

use crate::harness::{House, Plan};

/// A folder with a certificate and its key, gone at the end.
struct Folder(PathBuf);

impl Folder {
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

    fn write(&self, made: &CertifiedKey<KeyPair>) {
        fs::write(self.cert(), made.cert.pem()).unwrap();
        fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
    }

    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(&self.cert(), &self.key())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn made() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

/// Connects as one who trusts this certificate and no other.
async fn connect(
    house: &House,
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
    TlsConnector::from(Arc::new(config)).connect(name, house.connect().await).await
}

async fn probe(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with("ok\n") {
        answer.push(char::from(stream.read_u8().await.unwrap()));
    }
    answer
}

#[tokio::test]
async fn a_reload_changes_the_certificate_and_drops_no_connection() {
    let folder = Folder::new("reload");
    let old = made();
    let new = made();
    folder.write(&old);
    let tls = Arc::new(folder.load().unwrap());
    let house = House::with(Plan { tls: Some(tls.clone()), ..Plan::default() }).await;
    let mut before = connect(&house, old.cert.der(), &["http/1.1"]).await.unwrap();
    assert!(probe(&mut before).await.starts_with("HTTP/1.1 200"));
    folder.write(&new);
    tls.reload().unwrap();
    assert!(connect(&house, old.cert.der(), &[]).await.is_err(), "the old certificate is still shown");
    assert!(
        probe(&mut connect(&house, new.cert.der(), &[]).await.unwrap()).await.starts_with("HTTP/1.1 200")
    );
    assert!(probe(&mut before).await.starts_with("HTTP/1.1 200"));
    fs::write(folder.cert(), "nonsense").unwrap();
    assert!(tls.reload().is_err());
    assert!(connect(&house, new.cert.der(), &[]).await.is_ok(), "a bad reload took the certificate away");
}

#[tokio::test]
async fn h2_is_agreed_on_if_the_client_wants_it() {
    let folder = Folder::new("alpn");
    let own = made();
    folder.write(&own);
    let house = House::with(Plan { tls: Some(Arc::new(folder.load().unwrap())), ..Plan::default() }).await;
    let stream = connect(&house, own.cert.der(), &["h2", "http/1.1"]).await.unwrap();
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
async fn a_client_without_tls_harms_nobody() {
    let folder = Folder::new("plain");
    let own = made();
    folder.write(&own);
    let house = House::with(Plan { tls: Some(Arc::new(folder.load().unwrap())), ..Plan::default() }).await;
    assert!(!house.ask("GET /livez", "").await.contains("HTTP"), "clear text was answered");
    assert!(connect(&house, own.cert.der(), &[]).await.is_ok());
}

#[test]
fn files_that_do_not_serve_are_named() {
    let folder = Folder::new("errors");
    let own = made();
    let other = made();
    let told = || folder.load().unwrap_err();
    assert!(matches!(told(), TlsError::File { path, .. } if path == folder.cert()));
    folder.write(&own);
    assert!(folder.load().is_ok());
    fs::write(folder.key(), other.signing_key.serialize_pem()).unwrap();
    assert_eq!(told(), TlsError::Mismatch { cert: folder.cert(), key: folder.key() });
    fs::write(folder.key(), own.cert.pem()).unwrap();
    assert_eq!(told(), TlsError::Empty { path: folder.key() });
    fs::remove_file(folder.key()).unwrap();
    assert!(matches!(told(), TlsError::File { path, .. } if path == folder.key()));
    fs::write(folder.cert(), "").unwrap();
    assert_eq!(told(), TlsError::Empty { path: folder.cert() });
}
